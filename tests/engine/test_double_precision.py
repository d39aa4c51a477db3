"""Double precision: with `jax_enable_x64` runs are the oracle's, which is in float64, to 1e-10."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.coordinator import Coordinator
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from tests import methods
from tests.byhand import CLIENTS, DEVICES, ROWS, SLOW, SOME, START
from tests.quadratics import one_run, quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

SOLVER = fp.Solver(0.2, 3, epochs=2, learning_rate_decay=0.9, weight_decay=0.05, clip=1.5)

Case = tuple[fp.Algorithm, Callable[[], methods.Method]]

CASES: dict[str, Case] = {
    "fedavg": (fp.fedavg(), lambda: methods.FedProx(START, CLIENTS, drop=True)),
    "fedprox": (fp.fedprox(mu=0.7), lambda: methods.FedProx(START, CLIENTS, 0.7)),
    "scaffold": (fp.scaffold(), lambda: methods.Scaffold(START, CLIENTS)),
    "feddyn": (fp.feddyn(alpha=0.3), lambda: methods.FedDyn(START, CLIENTS, 0.3)),
    "fednova": (fp.fednova(mu=0.7), lambda: methods.FedNova(START, CLIENTS, 0.7)),
    "mime": (fp.mime(0.6), lambda: methods.Mime(START, CLIENTS, 0.6)),
}


@pytest.fixture
def double() -> Iterator[None]:
    """JAX computes in double precision."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def in_double() -> fp.Model:
    return replace(quadratic_model(START), init=lambda _: jnp.asarray(START, jnp.float64))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", mostly_slow(CASES, "scaffold"))
def test_runs_are_the_oracles_to_ten_digits(name: str) -> None:
    algorithm, make = CASES[name]
    federation = ragged_quadratics(0, ROWS)
    setting: dict[str, Any] = {"solver": SOLVER, "cohort": SOME, "systems": SLOW, "rounds": 8}
    setting["population"] = DEVICES
    run = one_run(federation, in_double(), algorithm, **setting)
    path = methods.run(make(), federation, **setting)
    np.testing.assert_allclose(run.params, path.server[-1], rtol=1e-10)
    assert run.final.train_loss == pytest.approx(
        methods.objective(federation, path.server[-1]), rel=1e-10
    )


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_everything_that_is_measured_works_in_double(tmp_path: Path) -> None:
    """Gradients, gamma, faults, adaptive mu and checkpoints, whose arrays must keep their type."""
    federation = fp.datasets.synthetic(clients=4)
    setting: dict[str, Any] = {
        "solver": fp.Solver(0.1, 10, epochs=2, gamma=0.9),
        "cohort": fp.Cohort(3),
        "faults": fp.Faults("clip"),
        "progress": False,
    }
    model, method = fp.models.logistic(federation), fp.fedprox(mu=[0.1, 1.0], adapt=True)
    train = partial(fp.simulate, federation, model, method, **setting)
    checkpoints = fp.Checkpoints(tmp_path, resume=True)
    whole, _, again = (
        train(rounds=rounds, checkpoints=each)
        for rounds, each in ((4, None), (2, checkpoints), (4, checkpoints))
    )
    for run, resumed in zip(whole, again, strict=True):
        assert run.params["dense"]["weight"].dtype == np.float64
        assert run.final == resumed.final
        assert run.final.gamma_max > 0


@pytest.mark.usefixtures("double")
def test_parameters_in_single_precision_are_refused() -> None:
    with pytest.raises(fp.InputError) as error:
        one_run(ragged_quadratics(0, [1, 2]), quadratic_model(START), fp.fedavg(), SOLVER)
    assert str(error.value) == (
        "model: its parameters: float32, but jax_enable_x64 is set; all parameters must then be "
        "float64"
    )


def test_the_precision_of_one_thread_is_refused() -> None:
    with jax.enable_x64(True), pytest.raises(fp.InputError, match="holds for one thread alone"):
        one_run(ragged_quadratics(0, [1, 2]), in_double(), fp.fedavg(), SOLVER)


@pytest.mark.usefixtures("double")
def test_deployments_are_refused(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(fp.InputError, match="jax_enable_x64 is set: a deployment works in single"):
        Coordinator(nothing, nothing, nothing, nothing)
    with pytest.raises(fp.InputError, match="jax_enable_x64 is set: a node works in single"):
        Node("a", ragged_quadratics(0, [1, 2]), tmp_path, Policy())
