"""Each check of a policy, at its limits."""

from types import SimpleNamespace as Given
from typing import Any

import numpy as np
import pytest

from fedprox.algorithms import ALGORITHMS, First
from fedprox.deployment.policy import REPORTS, Policy, PrivacyPolicy, SecurePolicy, check_jobs
from fedprox.engine.planning.jobs import Jobs, no_jobs
from fedprox.errors import InputError
from fedprox.models import MODELS
from fedprox.parts.privacy.accounting import Mechanism, epsilon_together
from fedprox.solver import Solver
from tests.deployment.federations import EVERYTHING

OWN = "package.module:function"
RELEASED = Mechanism(100, 10, "bernoulli", None, 2.0, 1, 0.1, "rdp")
"""What a round of a private run releases."""

EPSILON = epsilon_together(((RELEASED, 3),), 1e-5)
EXACT = Policy(privacy=PrivacyPolicy(epsilon=EPSILON, delta=1e-5))
OF_ROWS = Policy(privacy=PrivacyPolicy(unit="example", epsilon=EPSILON, delta=1e-5))
"""It allows three rounds, to the last bit."""

SECURE = Policy(secure=SecurePolicy(threshold=4, peers={}))
THREE = Policy(fewest_clients=3)
PRIVATE: Any = Given()


def setup(
    method: str = "fedavg",
    model: str = "logistic",
    *,
    loss: Any = None,
    solver: Any = None,
    options: Any = None,
    privacy: Any = None,
    private_steps: Any = None,
    secure: Any = None,
    compression: Any = None,
) -> Any:
    """What a policy reads of a run."""
    table = {"name": method, **(options or {})}
    asked = {"solver": solver or {}, "secure": secure}
    asked |= {"privacy": privacy, "private_steps": private_steps}
    return Given(
        method=table, model={"name": model, "loss": loss}, compression=compression, **asked
    )


def securing(threshold: int, nodes: int, honest: int = 1) -> Any:
    names = [str(i) for i in range(nodes)]
    return Given(threshold=threshold, nodes=names, honest=honest)


def hiding(rounds: int) -> Any:
    return Given(mechanism=RELEASED, rounds=rounds)


def sends(*, gradient: bool = False, loss: bool = False) -> Any:
    return Given(name="own", first=First(gradient=gradient, loss=loss))


def gamma(value: float | None) -> Any:
    return Given(gamma=value)


def jobs(weights: list[float], sizes: list[int] | None = None) -> Jobs:
    count = len(weights)
    size = np.array(sizes or [10] * count)
    return no_jobs()._replace(client=np.arange(count), weight=np.array(weights), size=size)


def counted(*weights: float) -> Any:
    return np.array(weights, np.float32)


FOUR = jobs([0.25] * 4)
BY_ROWS = jobs([0.2, 0.3, 0.5], [20, 30, 50])
LARGE = jobs([40.0, 40.0, 40.0])
TEN = Solver(0.1, batch_size=10, epochs=1)
ROWS = np.array([5, 20, 35])
EPOCHS = {epochs: Solver(0.1, batch_size=10, epochs=epochs) for epochs in (2, 3)}


@pytest.mark.parametrize(
    ("policy", "check", "given", "line"),
    [
        (SECURE, "check", [setup(secure=securing(4, 7))], ""),
        (SECURE, "check", [setup(secure=securing(4, 4))], ""),
        (SECURE, "check", [setup(secure=securing(4, 7, honest=2))], "deployment.secure.honest = 2"),
        (SECURE, "check", [setup(secure=securing(3, 4))], "deployment.secure.threshold = 3; at le"),
        (SECURE, "check", [setup(secure=securing(4, 8))], "deployment.secure.threshold = 4; with"),
        (SECURE, "check", [setup(secure=securing(5, 4))], "deployment.secure.threshold = 5; with"),
        (SECURE, "check", [setup(secure=securing(51, 100))], ""),
        (SECURE, "check", [setup(secure=securing(52, 101))], "deployment.secure: 101 nodes; a sec"),
        (SECURE, "check", [setup()], "a run without deployment.secure"),
        (Policy(), "check", [setup(secure=securing(3, 3))], "deployment.secure: the node has"),
        (Policy(), "check", [setup()], ""),
        (Policy(methods=[OWN], models=[OWN]), "check", [setup(OWN, OWN)], ""),
        (Policy(methods=[]), "check", [setup()], "method 'fedavg'; allowed: none"),
        (Policy(models=["cnn"]), "check", [setup()], "model 'logistic'; allowed: cnn"),
        (Policy(), "check", [setup(OWN)], f"method {OWN!r}; allowed: "),
        (Policy(), "check", [setup(model=OWN)], f"model {OWN!r}; allowed: "),
        (Policy(), "check", [setup(solver={"a": [0.1, "b"], "c": {"d": "e"}})], ""),
        (Policy(), "check", [setup(solver={"a": [0.1, {"b": OWN}]})], f"solver {OWN!r}; a node"),
        (Policy(), "check", [setup(solver={"a": (OWN,)})], f"solver {OWN!r}; a node"),
        (Policy(), "check", [setup(options={"mu": "a:b"})], ""),
        (Policy(), "check", [setup(loss={"name": "huber", "delta": 1.0})], ""),
        (Policy(), "check", [setup(loss={"name": OWN})], f"loss {OWN!r}; a node runs the losses"),
        (
            *(Policy(), "check"),
            [setup(options={"solver": {"optimizer": OWN}})],
            f"solver {OWN!r}; a node",
        ),
        (Policy(), "check", [setup(compression={"codec": "sign"})], ""),
        (THREE, "check", [setup()], ""),
        (THREE, "check", [setup(compression={"codec": "sign"})], "compression: each client's mess"),
        (Policy(), "check", [setup(privacy=PRIVATE)], ""),
        (EXACT, "check", [setup(privacy=PRIVATE)], ""),
        (EXACT, "check", [setup()], "a run without [privacy]; at most epsilon = "),
        (EXACT, "check", [setup(private_steps=PRIVATE)], 'a run whose privacy.unit is not "client'),
        (OF_ROWS, "check", [setup(private_steps=PRIVATE)], ""),
        (OF_ROWS, "check", [setup(privacy=PRIVATE)], 'a run whose privacy.unit is not "example"; '),
        (OF_ROWS, "check", [setup()], "a run without [privacy]; at most epsilon = "),
        (Policy(), "check_rounds", [10**9, 10**9], ""),
        (Policy(most_rounds=5), "check_rounds", [3, 2], ""),
        (Policy(most_rounds=5), "check_rounds", [4, 2], "2 more rounds; the node has answered 4, "),
        (Policy(most_rounds=0), "check_rounds", [0, 1], "1 more rounds; the node has answered 0, "),
        (Policy(), "check_privacy", [hiding(10**6), ()], ""),
        (EXACT, "check_privacy", [hiding(3), ()], ""),
        (EXACT, "check_privacy", [hiding(1), [(RELEASED, 1), (RELEASED, 1)]], ""),
        (EXACT, "check_privacy", [hiding(4), ()], "privacy: epsilon = "),
        (EXACT, "check_privacy", [hiding(1), [(RELEASED, 3)]], "privacy: epsilon = "),
        (Policy(), "check_steps", [{"a": [(RELEASED, 10**6)]}], ""),
        (OF_ROWS, "check_steps", [{}], ""),
        (OF_ROWS, "check_steps", [{"a": [(RELEASED, 3)]}], ""),
        (
            OF_ROWS,
            "check_steps",
            [{"a": [(RELEASED, 3)], "b": [(RELEASED, 4)]}],
            "privacy: epsilon",
        ),
        (Policy(report=[]), "check_measures", [sends(), gamma(None)], ""),
        (Policy(), "check_measures", [sends(), gamma(0.5)], "solver.gamma: "),
        (EVERYTHING, "check_measures", [sends(), gamma(0.5)], ""),
        *(
            (
                EVERYTHING.model_copy(update=hidden),
                "check_measures",
                [sends(), gamma(0.5)],
                "solver",
            )
            for hidden in (
                {"privacy": PrivacyPolicy(epsilon=1.0, delta=1e-5)},
                {"privacy": PrivacyPolicy(epsilon=1.0, delta=1e-5, exact_measures=True)},
                {"secure": SECURE.secure},
                {"fewest_clients": 2},
            )
        ),
        (Policy(), "check_measures", [sends(loss=True), gamma(None)], ""),
        (Policy(), "check_measures", [sends(gradient=True), gamma(None)], "own: its clients se"),
        (THREE, "check_measures", [sends(), gamma(0.5)], "solver.gamma: "),
        (
            *(Policy(report=["loss", "accuracy", "metrics"]), "check_measures"),
            *([sends(), gamma(0.0)], "solver.gamma: "),
        ),
        (Policy(report=["gradients"]), "check_measures", [sends(), gamma(0.5)], ""),
        (*(Policy(report=["loss"]), "check_measures"), *([sends(loss=True), gamma(None)], "")),
        (Policy(report=["gradients"]), "check_measures", [sends(gradient=True), gamma(None)], ""),
        (
            *(Policy(report=["loss"]), "check_measures", [sends(gradient=True), gamma(None)]),
            'own: its clients send what they measure, and policy.report does not have "gradients"',
        ),
        (
            *(Policy(report=["gradients"]), "check_measures", [sends(loss=True), gamma(None)]),
            'own: its clients send what they measure, and policy.report does not have "loss"',
        ),
        (Policy(), "check_clients", [jobs([1.0])], ""),
        (Policy(), "check_clients", [jobs([1.0, 0.0, 2.0])], ""),
        (Policy(fewest_clients=2), "check_clients", [jobs([1.0])], "1 client; gradients and "),
        (Policy(fewest_clients=2), "check_clients", [jobs([0.0, 0.0])], "weights [0.0, 0.0]; in"),
        (THREE, "check_clients", [BY_ROWS], ""),
        (THREE, "check_clients", [FOUR], ""),
        (THREE, "check_clients", [LARGE], ""),
        (THREE, "check_clients", [jobs([1.0, 1.0, 1 + 0.9e-6], [1, 2, 3])], ""),
        (THREE, "check_clients", [jobs([1.0, 1.0, 1 + 1.1e-6], [1, 2, 3])], "weights [1.0, 1.0, "),
        (THREE, "check_clients", [jobs([1.0, 1e9, 1e9], [1, 2, 3])], "weights [1.0, 10"),
        (THREE, "check_clients", [jobs([0.5, 0.3, 0.2], [20, 30, 50])], "weights [0.5, 0.3, "),
        (THREE, "check_clients", [jobs([-1.0] * 3)], "weights [-1.0, "),
        (THREE, "check_clients", [jobs([])], "0 clients; gradients and losses of fewer than 3 "),
        (THREE, "check_clients", [jobs([1.0, 0.0, 0.0])], "weights [1.0, 0.0, 0.0]; in a sum of "),
        (THREE, "check_clients", [jobs([1.0, 1e-30, 1e-30])], "weights [1.0, 1e-30, 1e-30]; in"),
        (Policy(), "check_counted", [FOUR, counted(0.1)], ""),
        (THREE, "check_counted", [FOUR, counted(1.0, 0.75)], ""),
        # nothing is sent at a point where nothing counts
        (THREE, "check_counted", [FOUR, counted(0.0, 1.0)], ""),
        (THREE, "check_counted", [FOUR, counted(0.0, 0.0)], ""),
        (THREE, "check_counted", [FOUR, counted(0.5, 1.0)], "2 clients; gradients and losses of "),
        (THREE, "check_counted", [FOUR, counted(1.0, 0.5)], "2 clients; gradients and losses of "),
        (THREE, "check_counted", [FOUR, counted(0.746)], "2 clients; gradients and losses of "),
        (THREE, "check_counted", [FOUR, counted(0.7499)], ""),
        (THREE, "check_counted", [BY_ROWS, counted(0.5)], "0 clients; gradients and losses of "),
        (THREE, "check_counted", [LARGE, counted(120.0)], ""),
        (THREE, "check_counted", [LARGE, counted(80.0)], "2 clients; gradients and losses of "),
        (Policy(fewest_clients=2), "check_counted", [LARGE, counted(40.0)], "1 client; gradients"),
        (Policy(), "check_work", [TEN, ROWS, np.array([100, 200, 400])], ""),
        (Policy(most_epochs=2.0), "check_work", [TEN, ROWS, np.array([2, 4, 8])], ""),
        (Policy(most_epochs=2.0), "check_work", [TEN, ROWS[:0], ROWS[:0]], ""),
        (
            *(Policy(most_epochs=2.0), "check_work", [TEN, ROWS, np.array([1, 5, 8])]),
            "2.5 epochs; at most 2 are allowed",
        ),
        (Policy(most_epochs=2.0), "check_planned", [sends(), EPOCHS[2], ROWS], ""),
        (Policy(most_epochs=2.0), "check_planned", [sends(), EPOCHS[3], ROWS], "3 epochs; at most"),
    ],
)
def test_a_check_of_a_policy(policy: Policy, check: str, given: list[Any], line: str) -> None:
    checked = getattr(policy, check)
    if not line:
        checked(*given)
        return
    with pytest.raises(InputError) as raised:
        checked(*given)
    assert str(raised.value).startswith(line)


@pytest.mark.parametrize(
    ("sampling", "capacity", "most"),
    [("bernoulli", None, 6), ("bernoulli", 4, 4), ("uniform", 6, 3), ("cyclic", None, 3)],
)
def test_a_private_round_has_no_more_clients_than_declared(
    sampling: str, capacity: int | None, most: int
) -> None:
    mechanism = Mechanism(6, 3, sampling, capacity, 1.0, 1, 1e-5, "rdp")
    run, hides = Given(seed=0, clients_per_round=3, clients=6), Given(mechanism=mechanism)

    def check(count: int) -> None:
        work = jobs([1 / 3] * count)._replace(relative_size=np.ones(count))
        check_jobs(run, hides, work, 0, 0.5)  # type: ignore[arg-type]

    check(most)
    with pytest.raises(
        InputError, match=f"^{most + 1} clients; a private round has at most {most}$"
    ):
        check(most + 1)


def test_a_policy_allows_what_the_library_has() -> None:
    policy = Policy()
    assert (policy.methods, policy.models, policy.report) == (
        list(ALGORITHMS),
        list(MODELS),
        ["loss", "accuracy", "metrics"],
    )
    assert REPORTS == ("loss", "accuracy", "metrics", "gradients")
    assert (policy.fewest_rows, policy.fewest_clients) == (1, 1)
    assert [policy.most_rounds, policy.most_epochs, policy.privacy] == [None] * 3
    policy.methods.clear()
    assert Policy().methods
    policy.report.clear()
    assert Policy().report
    assert Policy.model_validate({"report": list(REPORTS)}).report == list(REPORTS)
