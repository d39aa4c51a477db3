"""The oracle itself, against closed forms; and the setting in which runs are compared with it."""

from collections.abc import Callable

import numpy as np
import pytest

from fedprox import Cohort, Solver
from tests import methods
from tests.byhand import CLIENTS, DEVICES, ROWS, SLOW, SOME, START
from tests.quadratics import ragged_quadratics

GRADIENT_STEPS = Solver(0.05, "all", steps=10)

MAKE: dict[str, tuple[Callable[[], methods.Method], Solver | None]] = {
    "FedDyn": (lambda: methods.FedDyn(START, CLIENTS, 2.0), None),
    "SCAFFOLD 1": (lambda: methods.Scaffold(START, CLIENTS, 1), GRADIENT_STEPS),
    "SCAFFOLD 2": (lambda: methods.Scaffold(START, CLIENTS, 2), GRADIENT_STEPS),
    "FedSplit": (lambda: methods.FedSplit(START, CLIENTS, 1.0, "all"), None),
}


@pytest.mark.parametrize("name", MAKE)
def test_all_three_models_go_to_the_minimiser_with_few_clients(name: str) -> None:
    federation = ragged_quadratics(0, ROWS)
    make, solver = MAKE[name]
    path = methods.run(make(), federation, cohort=SOME, rounds=400, solver=solver)
    star = methods.minimiser(federation)
    for models in path:
        assert np.linalg.norm(models[-1] - star) < 1e-6
        assert np.linalg.norm(models[20] - star) > 1e-3


def test_averaging_the_active_alone_does_not() -> None:
    # the z_k differ at the minimiser, and their mean over a part of the clients is another point
    federation = ragged_quadratics(0, ROWS)
    star = methods.minimiser(federation)
    for cohort, ends_there in ((Cohort(CLIENTS), True), (SOME, False)):
        method = methods.FedSplit(START, CLIENTS, 1.0, "active")
        path = methods.run(method, federation, cohort=cohort, rounds=200)
        assert (np.linalg.norm(path.server[-20:] - star, axis=1).min() < 1e-6) == ends_there


@pytest.mark.parametrize("seed", [0, 1])
def test_the_setting_has_empty_rounds_partial_work_and_whole_work(seed: int) -> None:
    train, solver = ragged_quadratics(0, ROWS).train, Solver(0.1, 3, epochs=2)
    done = []
    for t in range(8):
        chosen = SOME.draw(seed, t, train.offsets).clients
        in_time = SLOW.deadline // np.array(DEVICES.step_seconds)[chosen]
        work = SLOW.work(seed, t, chosen, train.sizes[chosen], solver, in_time=in_time)
        done.append((int(work.steps.sum()), bool((work.steps[work.stragglers] > 0).any())))
    assert any(steps == 0 for steps, _ in done)
    assert any(late for _, late in done)
    assert any(steps > 3 for steps, _ in done)
