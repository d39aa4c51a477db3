"""Lanes spread over more devices: the same result, but for the order of sums."""

import json
import subprocess
import sys

import pytest

from fedprox import Cohort, InputError, Solver, fedavg, simulate
from tests.byhand import ROWS, START
from tests.quadratics import quadratic_model, ragged_quadratics

PROGRAM = """
import json
import jax, numpy as np
import fedprox as fp

fp.use_cpu_devices(clients_per_round=7, devices=4)
federation = fp.datasets.synthetic(alpha=1.0, beta=1.0, clients=12)
found = {}
for devices in (1, 2, 4):
    runs = fp.simulate(
        federation,
        fp.models.logistic(federation),
        methods=[fp.scaffold()],
        solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=2),
        cohort=fp.Cohort(7),
        systems=fp.Systems(stragglers=0.5),
        rounds=4,
        evaluation=fp.Evaluation(every=2, model="clients"),
        devices=devices,
    )
    found[devices] = [
        [
            *np.concatenate([np.ravel(a) for a in jax.tree.leaves(run.params)]).tolist(),
            *(value for r in run.history[1:] for value in
              (r.train_loss, r.test_accuracy, r.gradient_variance, r.gamma_max)),
        ]
        for run in runs
    ]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_one_two_and_four_devices_give_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    one, *others = json.loads(done.stdout).values()
    for other in others:
        for a, b in zip(one, other, strict=True):
            assert b == pytest.approx(a, rel=2e-4, abs=2e-5)
    assert len({str(runs) for runs in (one, *others)}) > 1, "summed in the same order everywhere"


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(InputError, match="devices = 3; JAX sees 2 here"):
        simulate(
            ragged_quadratics(0, ROWS),
            quadratic_model(START),
            fedavg(),
            solver=Solver(0.1, 3, epochs=1),
            cohort=Cohort(2),
            rounds=1,
            devices=3,
        )
