"""A comparison that is ended anywhere and goes on is the same as one that was not, bit for bit."""

import dataclasses
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.files.arrays import write_arrays
from fedprox.loop import snapshot
from fedprox.loop.checkpoint import stopping_on_signals
from fedprox.loop.following import Progress
from fedprox.loop.snapshot import check_file, read_file, write_file
from fedprox.protocol.protocol import Storage
from fedprox.report.records import metrics_line
from tests.byhand import CLIENTS, ROWS, START, ragged_runs
from tests.quadratics import quadratic_model, ragged_quadratics
from tests.variants import mostly_slow


class Killed(BaseException):
    pass


def kill(*_: object) -> None:
    raise Killed


def train(
    methods: list[fp.Algorithm], checkpoints: fp.Checkpoints | None = None, **options: Any
) -> tuple[list[fp.Run], list[str]]:
    """The runs and the lines of metrics.jsonl."""
    records: list[fp.Record] = []
    runs = ragged_runs(
        methods,
        checkpoints=checkpoints,
        callbacks=[fp.Callback(on_record=records.append)],
        **{"seed": [0, 1]} | options,
    )
    return runs, [json.dumps(metrics_line(record)) for record in records]


def same(some: tuple[list[fp.Run], list[str]], others: tuple[list[fp.Run], list[str]]) -> None:
    assert some[1] == others[1]
    for a, b in zip(some[0], others[0], strict=True):
        assert (a.label, a.seed, a.client_steps) == (b.label, b.seed, b.client_steps)
        assert a.models_a_round == b.models_a_round
        jax.tree.map(np.testing.assert_array_equal, a.params, b.params)


def killed_after(
    count: int, methods: list[fp.Algorithm], checkpoints: fp.Checkpoints, **options: Any
) -> None:
    """Train until right after the so many-th checkpoint is written."""
    save, left = fp.Checkpoints._save, itertools.count(count - 1, -1)

    def save_and_end(self: fp.Checkpoints, *given: Any) -> None:
        save(self, *given)
        if not next(left):
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp.Checkpoints, "_save", save_and_end)
        with pytest.raises(Killed):
            train(methods, checkpoints, **options)


def in_goes(
    folder: Path, counts: Sequence[int], methods: list[fp.Algorithm], **options: Any
) -> tuple[list[fp.Run], list[str]]:
    """Train in some goes, of which each but the last ends after some checkpoints."""
    for count in counts:
        killed_after(count, methods, fp.Checkpoints(folder, 4, resume=True), **options)
    return train(methods, fp.Checkpoints(folder, resume=True), **options)


def kept(folder: Path) -> list[str]:
    """The names of a folder's checkpoints."""
    return sorted(path.stem for path in folder.glob("*.state"))


SIZE = fp.Metric(lambda _, y: {"size": jnp.abs(y[:, 0])}, lambda sums: sums["size"])
MEASURED = replace(quadratic_model(START), metrics={"size": SIZE})
ONE_SEED: dict[str, Any] = {"seed": 3}
CASES: dict[str, tuple[list[int], list[fp.Algorithm], dict[str, Any]]] = {
    # within the first leg, between two, and within the last
    "legs": ([2, 1, 2], [fp.fedprox(mu=[0.0, 1.0])], {}),
    "privacy": (
        [2],
        [fp.fedprox(mu=[0.0, 1.0])],
        {
            "cohort": fp.Cohort(3, "bernoulli"),
            "privacy": fp.Privacy(0.1, noise_multiplier=1.0, adaptive_clip=fp.AdaptiveClip()),
        },
    ),
    "metrics of users": ([1], [fp.scaffold()], {"model": MEASURED, "seed": 0}),
    "methods": ([3, 2], [fp.fedopt(optimizer=optax.adam), fp.fedavg()], ONE_SEED),
    "a rule beside states": (
        [3],
        [
            fp.scaffold().with_server(fp.server.extrapolate()),
            fp.fedprox(mu=0.5).with_server(fp.server.yogi(0.1)),
        ],
        ONE_SEED,
    ),
    "an adaptive mu": ([2], [fp.fedprox(mu=[0.0, 1.0], adapt=True)], ONE_SEED),
    "a first exchange": ([1], [fp.feddane(mu=1.0)], ONE_SEED),
    "models of all clients": (
        [2],
        [fp.scaffold()],
        ONE_SEED | {"evaluation": fp.Evaluation(every=3, model="clients")},
    ),
    "state on disk": (
        [1, 3],
        [fp.feddyn(alpha=[1.0, 2.0]), fp.fedavg()],
        ONE_SEED | {"client_store": "disk"},
    ),
    "a stop at a target": (
        [1],
        [fp.fedavg()],
        {
            "target": fp.Target("train_loss", 1.5),
            "stop_at_target": "any",
            "evaluation": fp.Evaluation(every=1, gradients=False),
        },
    ),
    "all diverge": (
        [1],
        [fp.fedavg()],
        ONE_SEED
        | {
            "solver": fp.Solver([1e3, 3e3], 3, epochs=1),
            "evaluation": fp.Evaluation(every=1, gradients=False),
        },
    ),
    "faulty updates": (
        [1],
        [fp.fedprox(mu=[0.0, 1.0])],
        ONE_SEED | {"faults": fp.Faults(norm=1.2)},
    ),
    "a stop rule": (
        [1],
        [fp.fedprox(mu=1.0)],
        ONE_SEED
        | {"solver": fp.Solver(0.05, 3, epochs=4, gamma=0.6), "evaluation": fp.Evaluation(every=5)},
    ),
}


@pytest.mark.parametrize("case", mostly_slow(CASES, "legs"))
def test_a_comparison_that_goes_on_is_the_same(case: str, tmp_path: Path) -> None:
    counts, methods, options = CASES[case]
    same(train(methods, **options), in_goes(tmp_path, counts, methods, **options))
    numbers = [name.partition("-")[0] for name in kept(tmp_path)]
    assert numbers == sorted(set(numbers))
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == set(kept(tmp_path))


@pytest.mark.slow
def test_the_last_two_of_a_seed_run_under_way_are_kept(tmp_path: Path) -> None:
    """And what killed processes left is removed."""
    for name in (".0-3.clients-0.partial", ".0-4.state.partial", "0-2.clients-1"):
        (tmp_path / name).touch()
    killed_after(5, [fp.scaffold()], fp.Checkpoints(tmp_path, 4, resume=True))
    assert kept(tmp_path) == ["0-11", "1-4", "1-8"]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{part}" for name in kept(tmp_path) for part in ("state", "clients-0")
    }


PLACES: list[Storage] = ["device", "host", "disk"]


@pytest.mark.slow
def test_state_goes_on_in_another_place(tmp_path: Path) -> None:
    once = train([fp.scaffold()], client_store="device", seed=0)
    for place in PLACES[:2]:
        again = fp.Checkpoints(tmp_path, 4, resume=True)
        killed_after(1, [fp.scaffold()], again, seed=0, client_store=place)
    again = fp.Checkpoints(tmp_path, resume=True)
    same(once, train([fp.scaffold()], again, seed=0, client_store=PLACES[2]))


@pytest.mark.parametrize("asked", [{"every": 4}, {"interval": 0.0}])
def test_what_was_asked_outlives_a_kill_before_the_first_checkpoint(
    asked: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    once = train([fp.fedavg()], seed=0)
    folder = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(fp.Checkpoints, "_save", kill)
        with pytest.raises(Killed):
            train([fp.fedavg()], fp.Checkpoints(folder, **asked), seed=0)
    again = fp.Checkpoints(folder, resume=True)
    same(once, train([fp.fedavg()], again, seed=0))
    assert asked.items() <= vars(again).items()
    assert again.made >= 3
    (line,) = caplog.messages
    assert line == f"{folder}: no checkpoint was made yet; the comparison begins anew"


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "int4", "bool", "uint32", "complex64", "float64"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_of_all_types_and_shapes_come_back(
    dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    given = [("a", array), ("['b'].c/d", array.T)]
    write_file(tmp_path / "a", given)
    check_file(tmp_path / "a")
    for (name, written), (found_name, found) in zip(given, read_file(tmp_path / "a"), strict=True):
        assert (found_name, found.dtype, found.shape) == (name, written.dtype, written.shape)
        np.testing.assert_array_equal(found, written)


SETTING: dict[str, Any] = {
    "methods": [fp.fedprox(mu=0.1234568)],
    "solver": fp.Solver(0.1, 3, epochs=2),
    "rounds": 5,
    "seed": 0,
}


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint of that."""
    folder = tmp_path_factory.mktemp("checkpointed") / "checkpoint"
    train(checkpoints=fp.Checkpoints(folder), **SETTING)
    return folder


DATA = ragged_quadratics(0, ROWS)
TESTED = replace(DATA, test=DATA.train)
PLAIN = quadratic_model(START)
NAMED = dataclasses.replace(
    PLAIN,
    init=lambda key: {"w": PLAIN.init(key)},
    apply=lambda params, x: PLAIN.apply(params["w"], x),
)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"solver": fp.Solver(0.2, 3, epochs=2)}, r"solver.learning_rate = 0.1, here 0.2"),
        ({"solver": fp.Solver(0.1, 3, epochs=4)}, r"solver.epochs = 2, here 4"),
        (
            {"solver": fp.Solver(0.1, 3, epochs=2, optimizer=partial(optax.sgd, momentum=0.9))},
            r"solver.optimizer = sgd, here sgd momentum=0.9",
        ),
        ({"cohort": fp.Cohort(5, "bernoulli")}, r"cohort.sampling = 'uniform', here 'bernoulli'"),
        ({"systems": fp.Systems(stragglers=0.25)}, r"systems\.\w+ = .*, here "),
        (
            {"privacy": fp.Privacy(1.0, noise_multiplier=1.0, accountant="rdp")},
            r"privacy.clip = None, here 1.0",
        ),
        ({"faults": fp.Faults(norm=5)}, r"faults.policy = None, here 'drop'"),
        (
            {"evaluation": fp.Evaluation(every=3, model="clients")},
            r"evaluation.model = 'server', here 'clients'",
        ),
        ({"evaluation": fp.Evaluation(every=2)}, r"evaluation.every = 3, here 2"),
        ({"methods": [fp.fedprox(mu=0.1234567)]}, r"points"),
        ({"federation": ragged_quadratics(0, [*ROWS[:-1], ROWS[-1] + 1])}, r"training rows = "),
        (
            {
                "federation": ragged_quadratics(0, [*ROWS, 1]),
                "systems": fp.Systems(),
                "population": None,
            },
            rf"clients = {CLIENTS}, here {CLIENTS + 1}",
        ),
        ({"federation": TESTED}, r"test rows = 0, here "),
        ({"model": NAMED}, r"parameters = float32\[3\], here w float32\[3\]"),
        ({"seed": [0, 1]}, r"seeds = \[0\], here \[0, 1\]"),
    ],
)
def test_a_changed_setting_is_another_comparison(
    changed: dict[str, Any], named: str, checkpointed: Path
) -> None:
    with pytest.raises(fp.InputError, match=f"another comparison: {named}"):
        train(checkpoints=fp.Checkpoints(checkpointed, resume=True), **SETTING | changed)


def test_checkpoints_may_be_used_for_one_comparison_after_another(tmp_path: Path) -> None:
    """Without resuming, those of the comparison before are removed."""
    checkpoints = fp.Checkpoints(tmp_path / "checkpoint", 3)
    for rounds in (5, 4, 4):
        train([fp.fedavg()], checkpoints, seed=0, rounds=rounds)
        assert kept(checkpoints.folder) == [f"0-{rounds}"]


def test_a_signal_ends_the_round(tmp_path: Path) -> None:
    once = train([fp.fedavg()], seed=0)
    checkpoints = fp.Checkpoints(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)

    def interrupt(progress: Progress) -> None:
        if progress.round == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    where = r"after round [69] of fedavg \(2 points together\), seed 0"
    with pytest.raises(fp.Stopped, match=where) as stopped, stopping_on_signals(checkpoints):
        train([fp.fedavg()], checkpoints, seed=0, on_progress=interrupt)
    assert stopped.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is handler
    same(once, train([fp.fedavg()], fp.Checkpoints(tmp_path, resume=True), seed=0))


@pytest.mark.slow
def test_a_signal_while_a_checkpoint_is_written_between_methods_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [fp.scaffold(), fp.fedavg()]
    once = train(methods, seed=0)
    checkpoints = fp.Checkpoints(tmp_path, interval=3600.0)
    threads = list[str]()

    def slow(path: Path, head: str, arrays: Any) -> str:
        threads.append(threading.current_thread().name)
        if path.name == "0-11.state":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        return write_arrays(path, head, arrays)

    where = r"after scaffold \(2 points together\), seed 0"
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "write_arrays", slow)
        with pytest.raises(fp.Stopped, match=where), stopping_on_signals(checkpoints):
            train(methods, checkpoints, seed=0)
    assert set(threads) == {"MainThread"}
    assert kept(tmp_path) == ["0-11"]
    same(once, train(methods, fp.Checkpoints(tmp_path, resume=True), seed=0))


@pytest.mark.slow
def test_progress_goes_on_between_evaluations(tmp_path: Path) -> None:
    """Each call of rounds is reported, with the last loss that is known."""
    steps: list[Progress] = []
    evaluation = fp.Evaluation(every=12, gradients=False)
    options: dict[str, Any] = {"seed": 0, "rounds": 24, "evaluation": evaluation}
    (run, *_), _ = train(
        [fp.fedavg()],
        fp.Checkpoints(tmp_path, 2),
        on_progress=steps.append,
        progress=False,
        **options,
    )
    assert [step.phase for step in steps[:3]] == ["planning", "compiling", "training"]
    assert [step.loss for step in steps[:3]] == [None] * 3
    rounds = [step.round for step in steps[3:]]
    assert rounds == sorted(rounds)
    assert set(rounds) >= {2, 4, 6, 8, 12, 14, 16, 18, 20, 24}  # 12 is known before 10 is told
    assert all(step.loss is not None and np.isfinite(step.loss) for step in steps[3:])
    assert steps[3].loss <= run.history[0].train_loss


def test_a_run_that_goes_on_is_not_reported_as_diverged(tmp_path: Path) -> None:
    killed_after(3, [fp.fedavg()], fp.Checkpoints(tmp_path, 3), seed=0)
    steps: list[Progress] = []
    train([fp.fedavg()], fp.Checkpoints(tmp_path, resume=True), seed=0, on_progress=steps.append)
    assert [(step.round, step.phase, step.loss) for step in steps[:2]] == [
        (9, "planning", None),
        (9, "compiling", None),
    ]
    assert all(np.isfinite(step.loss) for step in steps[2:])  # type: ignore[arg-type]


def test_whole_numbers_may_be_numpys(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "rounds": 5,
        "evaluation": fp.Evaluation(every=3, rows=3, gradients=False),
    }
    once = train([fp.fedavg()], seed=[0, 1], **options)
    numpys = fp.Evaluation(every=np.int64(3), rows=np.int64(3), gradients=False)  # type: ignore[arg-type]
    again = {"rounds": np.int64(5), "evaluation": numpys}
    made = fp.Checkpoints(str(tmp_path / "c"), np.int64(3))  # type: ignore[arg-type]
    killed_after(2, [fp.fedavg()], made, seed=np.arange(2), **again)
    same(
        once,
        train([fp.fedavg()], fp.Checkpoints(tmp_path / "c", resume=True), seed=[0, 1], **options),
    )


def test_the_number_of_rounds_between_is_checked(tmp_path: Path) -> None:
    with pytest.raises(fp.InputError, match="checkpoint_every = 0"):
        fp.Checkpoints(tmp_path, 0)
