"""Parameters that stay on clients: FedPer and FedRep against the oracle, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.algorithms.base import ClientContext, Own
from fedprox.algorithms.check import message_shape
from fedprox.protocol.protocol import initial_params
from tests import objectives
from tests.objectives import MODEL, ROWS

SOLVER, SOME = fp.Solver(0.3, 3, epochs=2), fp.Cohort(2)
FEDERATION = objectives.federation()


def one(method: fp.Algorithm, **options: Any) -> fp.Run:
    given: dict[str, Any] = {
        "solver": SOLVER,
        "cohort": SOME,
        "rounds": 3,
        "evaluation": fp.Evaluation(every=3, gradients=False),
    }
    return fp.simulate(FEDERATION, MODEL, method, progress=False, **(given | options))[0]


def loss(w: Any, k: int) -> float:
    """Of client k's rows, which are its test rows too."""
    x, y = FEDERATION.train.client(k)
    p = objectives.probabilities(objectives.represented(w, np.asarray(x, float)) @ w["head"])
    return float(-np.log(p[np.arange(len(y)), y]).sum())


@pytest.mark.parametrize("apart", [False, True])
def test_runs_and_own_models_are_the_oracles(apart: bool) -> None:
    run = one(fp.fedrep(["head"]) if apart else fp.fedper(["head"]))
    oracle = objectives.FedPer(initial_params(MODEL, 0), FEDERATION.train, apart=apart)
    objectives.run(oracle, solver=SOLVER, cohort=SOME, rounds=3, seed=0)
    for name, expected in oracle.params.items():
        np.testing.assert_allclose(run.params[name], expected, rtol=2e-4, atol=2e-5)
    trained = sorted(oracle.heads)
    assert 0 < len(trained) < len(ROWS)
    rows = sum(ROWS[k] for k in trained)
    known = sum(loss(oracle.own(k), k) for k in trained) / rows
    assert run.final.personal_clients == len(trained)
    assert run.final.personal_loss == pytest.approx(known, rel=1e-4)
    others = [k for k in range(len(ROWS)) if k not in trained]
    new = sum(loss(oracle.own(k), k) for k in others) / sum(ROWS[k] for k in others)
    assert run.final.newcomer_loss == pytest.approx(new, rel=1e-4)


def decaying(learning_rate: Any) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(0.5), optax.sgd(learning_rate))


@pytest.mark.filterwarnings("ignore:.*test labels that evaluations read")
@pytest.mark.parametrize(
    "setting",
    [{"weight_decay": 0.5}, {"optimizer": decaying}],
    ids=["of the solver", "of the optimizer"],
)
def test_weight_decay_moves_what_is_trained_alone(setting: dict[str, Any]) -> None:
    """By hand for one client; the head must not decay while the body is trained."""
    client = FEDERATION.of_clients(np.array([int(np.argmax(ROWS))]))
    x, y = (jnp.asarray(a) for a in client.train.client(0))
    start = initial_params(MODEL, 0)

    def loss(w: Any) -> Any:
        return MODEL.loss(MODEL.apply(w, x), y).mean()

    def descended(w: Any, name: str) -> Any:
        for _ in range(4):
            w = w | {name: w[name] - 0.3 * (jax.grad(loss)(w)[name] + 0.5 * w[name])}
        return w

    head = descended(start, "head")["head"]
    expected = descended(start | {"head": head}, "body")["body"]
    (run,) = fp.simulate(
        client,
        MODEL,
        fp.fedrep(["head"]),
        solver=fp.Solver(0.3, "all", steps=4, **setting),
        cohort=fp.Cohort(1),
        rounds=1,
        evaluation=fp.Evaluation(gradients=False),
        progress=False,
    )
    np.testing.assert_allclose(run.params["body"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [fp.fedper(["head"]), fp.fedrep(["head"])], ids=lambda m: m.name)
def test_the_parts_are_not_sent(method: fp.Algorithm) -> None:
    assert list(message_shape(method, MODEL.shapes)) == ["body"]
    start = initial_params(MODEL, 0)
    np.testing.assert_array_equal(one(method).params["head"], start["head"])


def test_a_proximal_term_is_relative_to_the_clients_own_parts() -> None:
    method = fp.personal_parts(fp.fedprox(mu=0.7), ["head"])
    received, own = ({"head": jnp.full(2, v), "body": jnp.full(3, v)} for v in (1.0, 5.0))
    state = Own({"head": own["head"]}, jnp.bool_(True))
    context = ClientContext(None, state, jnp.float32(1))
    problem = method.subproblem(received, {"mu": jnp.float32(0.7)}, context)
    for point in (problem.start, problem.anchor or {}):
        assert point["head"].tolist() == [5, 5]
        assert point["body"].tolist() == [1, 1, 1]
    assert one(method).label == "fedprox own head mu=0.7"


def test_parts_and_an_objective_compose() -> None:
    sharp, plain = (fp.personal_parts(fp.fedsam(rho), ["head"]) for rho in (0.5, 0.0))
    runs = [one(m).final.personal_loss for m in (sharp, plain, fp.fedper(["head"]))]
    assert runs[1] == pytest.approx(runs[2], rel=1e-5)
    assert runs[0] != pytest.approx(runs[2], rel=1e-3)


def test_names_may_be_of_layers() -> None:
    model = fp.models.mlp(FEDERATION, hidden=[4])
    sent = message_shape(fp.fedper(["layers.1"]), model.shapes)
    assert sorted(sent) == ["layers.0.bias", "layers.0.weight"]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda: fp.personal_parts(fp.fedavg(), "head"),
            {},
            r"fedavg: parts = 'head'; it must be a list of names",
        ),
        (lambda: fp.fedrep([]), {}, r"fedrep: parts = \[\]; it must be a list of names"),
        (lambda: fp.fedper(["hea"]), {}, "parts: the model has no part 'hea'; it has body, head"),
        (lambda: fp.fedper(["head", "body"]), {}, "parts: these are all parameters; leave some"),
        (
            lambda: fp.personal_parts(fp.scaffold(), ["head"]),
            {},
            "scaffold does not fit: its clients",
        ),
        (
            lambda: fp.personal_parts(fp.moon(1.0), ["head"]),
            {},
            "moon does not fit: its clients keep",
        ),
        (
            lambda: fp.personal_parts(fp.centralised(), ["head"]),
            {},
            "centralised does not fit: it has",
        ),
        (
            lambda: fp.personal_parts(fp.fedprox(0.0, adapt=True), ["head"]),
            {},
            "fedprox does not fit",
        ),
        (
            lambda: fp.fedper(["head"]),
            {
                "solver": fp.Solver(0.1, "all", steps=2, gamma=0.5),
                "evaluation": fp.Evaluation(every=3),
            },
            "fedper: .*, so solver.gamma = 0.5 does not fit, since they do not start",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        one(make(), **options)


def test_gamma_is_not_measured() -> None:
    final = one(fp.fedper(["head"]), evaluation=fp.Evaluation(every=3)).final
    assert np.isnan(final.gamma_mean)
    assert np.isfinite(final.dissimilarity)
