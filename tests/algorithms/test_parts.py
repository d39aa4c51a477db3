"""Parameters that stay on clients: FedPer and FedRep against the oracle, and what is refused."""

from typing import Any

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
from tests.settings import BASE, FEDERATION, runs
from tests.variants import mostly_slow


def loss(w: Any, k: int) -> float:
    """Of client k's rows, which are its test rows too."""
    x, y = FEDERATION.train.client(k)
    p = objectives.probabilities(objectives.represented(w, np.asarray(x, float)) @ w["head"])
    return float(-np.log(p[np.arange(len(y)), y]).sum())


def decaying(learning_rate: Any) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(0.5), optax.sgd(learning_rate))


CASES = {
    "fedper": fp.fedper(["head"]),
    # the head must not decay while the body is trained
    "fedrep": fp.fedrep(["head"]).with_solver(weight_decay=0.5),
    "decay of the optimizer": fp.fedrep(["head"]).with_solver(optimizer=decaying),
}


@pytest.mark.parametrize("name", mostly_slow(CASES, "fedrep"))
def test_runs_and_own_models_are_the_oracles(name: str) -> None:
    setting: dict[str, Any] = {"cohort": fp.Cohort(2), "rounds": 3}
    (run,) = runs(methods=CASES[name], **setting)
    oracle = objectives.FedPer(initial_params(MODEL, 0), FEDERATION.train, apart=name != "fedper")
    decays = BASE["solver"].changed(weight_decay=0.0 if name == "fedper" else 0.5)
    objectives.run(oracle, seed=0, solver=decays, **setting)
    for part, expected in oracle.params.items():  # the head is not sent
        np.testing.assert_allclose(run.params[part], expected, rtol=2e-4, atol=2e-5)
    trained = sorted(oracle.heads)
    assert 0 < len(trained) < len(ROWS)
    rows = sum(ROWS[k] for k in trained)
    known = sum(loss(oracle.own(k), k) for k in trained) / rows
    assert run.final.personal_clients == len(trained)
    assert run.final.personal_loss == pytest.approx(known, rel=1e-4)
    others = [k for k in range(len(ROWS)) if k not in trained]
    new = sum(loss(oracle.own(k), k) for k in others) / sum(ROWS[k] for k in others)
    assert run.final.newcomer_loss == pytest.approx(new, rel=1e-4)


@pytest.mark.parametrize("method", [fp.fedper(["head"]), fp.fedrep(["head"])], ids=lambda m: m.name)
def test_the_parts_are_not_sent(method: fp.Algorithm) -> None:
    assert list(message_shape(method, MODEL.shapes)) == ["body"]


def test_a_proximal_term_is_relative_to_the_clients_own_parts() -> None:
    method = fp.personal_parts(fp.fedprox(mu=0.7), ["head"])
    received, own = ({"head": jnp.full(2, v), "body": jnp.full(3, v)} for v in (1.0, 5.0))
    state = Own({"head": own["head"]}, jnp.bool_(True))
    context = ClientContext(None, state, jnp.float32(1))
    problem = method.subproblem(received, {"mu": jnp.float32(0.7)}, context)
    for point in (problem.start, problem.anchor or {}):
        assert point["head"].tolist() == [5, 5]
        assert point["body"].tolist() == [1, 1, 1]
    assert method.variant == "own head"


@pytest.mark.slow
def test_parts_and_an_objective_compose() -> None:
    both = runs(methods=[fp.personal_parts(fp.fedsam([0.0, 0.5]), ["head"]), CASES["fedper"]])
    plain, sharp, fedper = (run.final.personal_loss for run in both)
    assert plain == pytest.approx(fedper, rel=1e-5)
    assert sharp != pytest.approx(fedper, rel=1e-3)


def test_names_may_be_of_layers() -> None:
    model = fp.models.mlp(FEDERATION, hidden=[4])
    sent = message_shape(fp.fedper(["layers.1"]), model.shapes)
    assert sorted(sent) == ["layers.0.bias", "layers.0.weight"]


WITH_GAMMA = {"solver": fp.Solver(0.1, "all", steps=2, gamma=0.5), "evaluation": fp.Evaluation()}


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
        (lambda: fp.personal_parts(fp.scaffold(), ["head"]), {}, "scaffold does not fit: its clie"),
        (lambda: fp.personal_parts(fp.moon(1.0), ["head"]), {}, "moon does not fit: its clients k"),
        (lambda: fp.personal_parts(fp.centralised(), ["head"]), {}, "centralised does not fit: it"),
        (
            lambda: fp.personal_parts(fp.fedprox(0.0, adapt=True), ["head"]),
            {},
            "fedprox does not fit",
        ),
        (
            lambda: fp.fedper(["head"]),
            WITH_GAMMA,
            "fedper: .*, so solver.gamma = 0.5 does not fit, since they do not start",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        runs(methods=make(), **options)


@pytest.mark.slow
def test_gamma_is_not_measured() -> None:
    (run,) = runs(methods=fp.fedper(["head"]), rounds=1, evaluation=fp.Evaluation())
    assert np.isnan(run.final.gamma_mean)
    assert np.isfinite(run.final.dissimilarity)
