"""`fedprox.rounds`: a loop that a user owns has the results of `simulate`."""

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from tests import objectives
from tests.settings import BASE, CASES, FEDERATION, SELDOM, never, runs
from tests.variants import mostly_slow

METHODS = {"fedprox": fp.fedprox(mu=0.1), "adaptive": fp.fedprox(mu=0.1, adapt=True)}
METHODS |= {"scaffold": fp.scaffold(), "ditto": fp.ditto(lam=0.1)}


def rounds(method: fp.Algorithm = METHODS["fedprox"], **options: Any) -> Any:
    setting = {name: value for name, value in BASE.items() if name != "methods"} | options
    return fp.rounds(setting.pop("federation"), setting.pop("model"), method, **setting)


def simulated(method: fp.Algorithm = METHODS["fedprox"], **options: Any) -> fp.Run:
    (run,) = runs(methods=method, **options)
    return run


def stage_after(count: int, method: fp.Algorithm = METHODS["fedprox"], **options: Any) -> fp.Stage:
    """The stage after some rounds, at which the loop is left."""
    for stage in rounds(method, **options):
        if stage.record.round == count:
            break
    found: fp.Stage = stage
    return found


def same(one: Any, other: Any) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


@pytest.mark.parametrize("name", mostly_slow(METHODS, "scaffold"))
def test_the_loop_has_the_bits_of_simulate_also_where_it_is_left_and_goes_on(name: str) -> None:
    method, whole = METHODS[name], simulated(METHODS[name])
    stages = list(rounds(method))
    assert [stage.record for stage in stages] == whole.history == stages[-1].run.history
    assert same(stages[-1].params, whole.params)
    assert same(stages[-1].run.params, whole.params)
    assert same(stages[2].params, simulated(method, rounds=2).params)  # no later round changes it
    stage = stage_after(2, method)
    assert stage.run.history == whole.history[:3]
    assert same(stage.run.params, stage.params)  # a run that was left has its parameters
    stage = stage_after(4, method, start=stage)
    *_, last = rounds(method, start=stage)
    assert last.run.history == whole.history
    assert same(last.params, whole.params)
    assert stage.run.history == whole.history[:5]


def test_a_stage_has_the_state_and_what_the_clients_did() -> None:
    run, steps = None, 0
    first = objectives.MODEL.init(jax.random.key(0))
    shapes = jax.tree.map(np.shape, fp.scaffold().initial(first))
    for stage in rounds(METHODS["scaffold"]):
        run, taken = stage.run, stage.clients
        assert sum(taken.values()) == stage.record.client_steps
        assert set(taken) <= set(FEDERATION.names)
        steps += sum(taken.values())
        assert jax.tree.map(np.shape, stage.state) == shapes
    assert run is not None
    assert run.final.total_steps == steps


@pytest.mark.slow
def test_a_finished_loop_goes_on_with_more_rounds() -> None:
    options = SELDOM
    *_, short = rounds(rounds=3, **options)  # its last record is of round 3
    *_, last = rounds(start=short, **options)
    assert last.run.history == simulated(**options).history


def test_a_loop_is_its_own_iterator() -> None:
    loop = rounds()
    for stage in loop:
        if stage.record.round == 2:
            break
    assert [stage.record.round for stage in loop] == [3, 4, 5]


def test_another_learning_rate_is_that_of_a_schedule() -> None:
    rates = [0.1, 0.1, 0.0123456789, 0.01, 0.02]
    for stage in rounds():
        if stage.record.round < len(rates):
            stage.learning_rate = rates[stage.record.round]
            assert stage.learning_rate == rates[stage.record.round]
    solver = fp.Solver(lambda t: rates[t], 3, epochs=2)
    scheduled = simulated(solver=solver)
    assert same(stage.params, scheduled.params)
    assert stage.run.history == scheduled.history


def test_a_changed_learning_rate_is_kept_where_a_loop_goes_on() -> None:
    def halved(start: fp.Stage | None, until: int) -> fp.Stage:
        for stage in rounds(start=start):
            if stage.record.round == 1:
                stage.learning_rate /= 2
            if stage.record.round == until:
                break
        found: fp.Stage = stage
        return found

    assert halved(halved(None, 3), 5).run.history == halved(None, 5).run.history


def test_leaving_early_ends_threads_and_closes_files(tmp_path: Path) -> None:
    gc.freeze()  # so that the search below looks at what is made here alone
    before, ended = set(threading.enumerate()), list[Any]()
    checkpoints = fp.Checkpoints(tmp_path / "c", every=1)
    options: dict[str, Any] = {"checkpoints": checkpoints, "client_store": "disk"}
    options["callbacks"] = [fp.Callback(on_end=ended.append)]
    stage = stage_after(2, METHODS["scaffold"], **options)
    assert ended == [None]
    gc.collect()
    until = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before
    checkpoints = fp.Checkpoints(tmp_path / "c", every=1, resume=True)
    *_, last = rounds(METHODS["scaffold"], checkpoints=checkpoints)
    assert last.run.history == simulated(METHODS["scaffold"]).history
    assert stage.record == last.run.history[2]


def test_an_early_end_is_that_of_simulate() -> None:
    loss = simulated().history[3].train_loss
    options: dict[str, Any] = {"target": fp.Target("train_loss", loss), "stop_at_target": "any"}
    *_, last = rounds(**options, rounds=30)
    assert last.run.history == simulated(**options, rounds=30).history
    assert last.record.round < 30


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": [fp.fedavg()]}, r"rounds: method = .*; it must be one algorithm"),
        ({"method": fp.fedprox(mu=[0.0, 1.0])}, "rounds: 2 sweep points; a loop has one run"),
        ({"seed": [0, 1]}, "rounds: 2 seeds; a loop has one run"),
        ({"round": 3}, "rounds: no argument 'round'; did you mean 'rounds'"),
        ({"start": 3}, "rounds: start = 3; it must be a stage"),
        ({"callbacks": [never]}, r"callbacks\[0\] = "),
    ],
)
def test_what_does_not_fit_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        rounds(**given)


def test_a_stage_of_another_run_is_refused() -> None:
    stage = stage_after(1)
    with pytest.raises(fp.InputError, match=r"start: a stage of fedprox mu=0.1, seed 0, .*; here"):
        rounds(fp.fedavg(), start=stage)
    with pytest.raises(fp.InputError, match=r"here fedprox mu=0.1, seed 1"):
        rounds(start=stage, seed=1)
    with pytest.raises(fp.InputError, match=r"learning rate 0.1; here .*rate 0.2"):
        rounds(start=stage, solver=fp.Solver(0.2, 3, epochs=2))
    with pytest.raises(fp.InputError, match="rounds = 0"):
        rounds(start=stage, rounds=0)
    other = fp.models.mlp(FEDERATION, hidden=[3])
    with pytest.raises(fp.InputError, match="start: its arrays are not those of this model"):
        rounds(model=other, start=stage)


def test_only_the_last_stage_has_the_clients_state() -> None:
    stages = list(rounds(METHODS["scaffold"]))
    with pytest.raises(fp.InputError, match="start: the loop went on after round 2, and the cl"):
        rounds(METHODS["scaffold"], start=stages[2])
    assert list(rounds(METHODS["scaffold"], start=stages[-1])) == []


def test_a_learning_rate_that_cannot_be_set_is_refused() -> None:
    loop = rounds()
    first = next(loop)
    with pytest.raises(fp.InputError, match="learning_rate = 0; it must be above 0"):
        first.learning_rate = 0
    next(loop)
    with pytest.raises(fp.InputError, match="learning_rate: the loop has left round 0"):
        first.learning_rate = 0.1
    of_cases = {
        "a decay": "solver.learning_rate is a function, or decays",
        "no barrier": "without a barrier, clients of several rounds train at once",
    }
    for case, line in of_cases.items():
        loop = rounds(**CASES[case])
        stage = next(loop)
        with pytest.raises(fp.InputError, match=f"learning_rate: {line}"):
            stage.learning_rate = 0.1


@pytest.mark.slow
def test_a_loop_that_stands_still_at_the_end_of_a_program_is_silent() -> None:
    program = (
        "import fedprox as fp\n"
        "federation = fp.datasets.synthetic(clients=3)\n"
        "solver = fp.Solver(learning_rate=0.1, batch_size=10, steps=1)\n"
        "loop = fp.rounds(federation, fp.models.logistic(federation), fp.fedavg(), solver=solver,\n"
        "    cohort=fp.Cohort(clients_per_round=1), rounds=9)\n"
        "print(next(loop).record.round)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"0\n", b"")
