"""A finished comparison that goes on with more rounds is one that had them from the start."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedprox as fp
from fedprox.files.arrays import write_arrays
from fedprox.loop import snapshot
from tests.byhand import CLIENTS
from tests.loop.test_checkpoint import Killed, kept, killed_after, same, train
from tests.test_cli import LOSSES, status
from tests.variants import mostly_slow

ONE: dict[str, Any] = {"seed": 3}
CASES: dict[str, tuple[int, list[fp.Algorithm], dict[str, Any]]] = {
    # 11 rounds at last, evaluated every 3: the first end is at a round that is evaluated, or not
    "evaluated": (6, [fp.fedprox(mu=[0.0, 1.0])], {}),
    "not evaluated": (
        7,
        [fp.fedprox(mu=[0.0, 1.0], adapt=True), fp.fedavg()],
        {"evaluation": fp.Evaluation(every=3)},
    ),
    "before any evaluation": (2, [fp.fedavg()], ONE),
    "by one round": (10, [fp.fedavg()], ONE),
    "states of clients": (7, [fp.feddyn(alpha=[1.0, 2.0])], ONE),
    "privacy": (
        7,
        [fp.fedprox(mu=[0.0, 1.0]), fp.scaffold()],
        ONE
        | {
            "cohort": fp.Cohort(3, "bernoulli"),
            "privacy": fp.Privacy(0.1, noise_multiplier=1.0, adaptive_clip=fp.AdaptiveClip()),
        },
    ),
    "a rate that decays": (
        7,
        [fp.fedavg()],
        ONE | {"solver": fp.Solver(0.1, 3, epochs=1, learning_rate_decay=0.9)},
    ),
    # the first stops at round 8, the second diverges in part and goes on
    "a stop at a target": (
        9,
        [fp.fedprox(mu=0.0), fp.fedprox(mu=100.0)],
        ONE
        | {
            "target": fp.Target("train_loss", 6),
            "stop_at_target": "any",
            "evaluation": fp.Evaluation(every=2, gradients=False),
        },
    ),
    # met at round 5, which only the shorter run evaluates, and then not before round 9
    "a target at the end": (
        5,
        [fp.fedprox(mu=0.0)],
        ONE | {"target": fp.Target("train_loss", 6), "stop_at_target": "any"},
    ),
    "a target from the start": (
        5,
        [fp.fedavg()],
        ONE | {"target": fp.Target("train_loss", 9), "stop_at_target": "any"},
    ),
    # the best model of the shorter run is of a round that the longer one does not evaluate
    "the best model": (
        7,
        [fp.fedprox(mu=[0.0, 1.0]), fp.scaffold()],
        {
            "solver": fp.Solver(0.3, 3, epochs=2),
            "selection": fp.Selection(keep="best", measure="train_loss"),
        },
    ),
    "the end of patience": (
        7,
        [fp.fedavg()],
        ONE
        | {
            "solver": fp.Solver(0.3, 3, epochs=2),
            "evaluation": fp.Evaluation(every=1, gradients=False),
            "selection": fp.Selection(keep="best", measure="train_loss", patience=2),
        },
    ),
    "all diverge": (
        6,
        [fp.fedavg()],
        ONE
        | {
            "solver": fp.Solver([1e3, 3e3], 3, epochs=1),
            "evaluation": fp.Evaluation(every=1, gradients=False),
        },
    ),
}


@pytest.mark.parametrize("case", mostly_slow(CASES, "states of clients"))
def test_more_rounds_are_the_same_as_all_from_the_start(case: str, tmp_path: Path) -> None:
    rounds, methods, options = CASES[case]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "evaluation.every = 3 is more than rounds")
        train(methods, fp.Checkpoints(tmp_path), **options | {"rounds": rounds})
    once = train(methods, **options)
    more = train(methods, fp.Checkpoints(tmp_path, resume=True), **options)
    same(once, more)
    for run, again in zip(once[0], more[0], strict=True):
        assert (run.lane_idle, run.memory) == (again.lane_idle, again.memory)
    numbers = [name.partition("-")[0] for name in kept(tmp_path)]
    assert numbers == sorted(set(numbers))


@pytest.fixture(scope="module")
def once() -> tuple[list[fp.Run], list[str]]:
    """All rounds of SCAFFOLD from the start."""
    return train([fp.scaffold()])


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoints after five rounds."""
    folder = tmp_path_factory.mktemp("five")
    train([fp.scaffold()], fp.Checkpoints(folder), rounds=5)
    return folder


@pytest.fixture
def shorter(five: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(five, tmp_path / "shorter")


def test_the_shorter_run_was_the_cheaper_part(shorter: Path) -> None:
    """It goes on, and does not begin anew."""
    seen: list[int] = []
    options: dict[str, Any] = {"on_progress": lambda progress: seen.append(progress.round)}
    train([fp.scaffold()], fp.Checkpoints(shorter, resume=True), **options)
    assert min(seen) == 5


def test_a_run_under_way_may_get_more_rounds(
    once: tuple[list[fp.Run], list[str]], tmp_path: Path
) -> None:
    killed_after(1, [fp.scaffold()], fp.Checkpoints(tmp_path, 4), rounds=8)
    same(once, train([fp.scaffold()], fp.Checkpoints(tmp_path, resume=True)))


def test_rounds_cannot_become_fewer(five: Path) -> None:
    with pytest.raises(fp.InputError, match="of 5 rounds; rounds = 3 must not be fewer"):
        train([fp.scaffold()], fp.Checkpoints(five, resume=True), rounds=3)


@pytest.mark.slow
def test_noise_for_an_epsilon_is_that_of_all_rounds(tmp_path: Path) -> None:
    """More rounds would have needed more noise from the start, and fewer less."""
    privacy = fp.Privacy(0.1, epsilon=8.0, delta=0.005, accountant="rdp")
    options = ONE | {"privacy": privacy, "cohort": fp.Cohort(CLIENTS)}  # fast to account for
    train([fp.fedavg()], fp.Checkpoints(tmp_path), **options | {"rounds": 4})
    for rounds in (3, 11):
        line = f"noise of privacy.epsilon for 4 rounds; rounds = {rounds} would have needed another"
        with pytest.raises(fp.InputError, match=line):
            train(
                [fp.fedavg()], fp.Checkpoints(tmp_path, resume=True), **options | {"rounds": rounds}
            )


TIMES = [(None, 1), (None, 2), (None, 4), (2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("when", mostly_slow(TIMES, (None, 1), (2, 2)), ids=str)
def test_an_extension_that_is_killed_goes_on(
    when: tuple[int | None, int],
    once: tuple[list[fp.Run], list[str]],
    shorter: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed before a checkpoint's so many-th state is written, or after its client state."""
    every, count = when
    left = iter(range(count, 0, -1))

    def write_and_die(path: Path, head: str, arrays: Any) -> str:
        last = next(left) == 1
        if last and path.name.endswith(".state"):
            raise Killed
        checksum = write_arrays(path, head, arrays)
        if last:
            raise Killed
        return checksum

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "write_arrays", write_and_die)
        with pytest.raises(Killed):
            train([fp.scaffold()], fp.Checkpoints(shorter, every, resume=True))
    same(once, train([fp.scaffold()], fp.Checkpoints(shorter, resume=True)))


def test_without_room_for_its_last_checkpoint_a_run_is_finished_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    once = train([fp.scaffold()], seed=0)
    monkeypatch.setattr(snapshot, "write_arrays", full)
    same(once, train([fp.scaffold()], fp.Checkpoints(tmp_path), seed=0))
    (line,) = caplog.messages
    assert line == (
        f"{tmp_path / '0-11.clients-0'}: No space left on device: the last checkpoint of scaffold "
        "(2 points together), seed 0 is missing, so it cannot be extended"
    )


# On the command line


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of 3 rounds, the last of which is evaluated only as the last."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "small.toml").write_text(LOSSES)
    run = ("run", folder / "small.toml", "--set", "rounds=3")
    assert status(*run, "--out", folder / "out") == 0
    return folder / "out"


def results(folder: Path) -> dict[str, Any]:
    """What the files of a run directory hold, but for times."""
    found: dict[str, Any] = {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in (".html", ".json")
    }
    summary = json.loads((folder / "summary.json").read_text())
    for run in summary:
        for name in ("compile_seconds", "run_seconds", "callback_seconds"):
            del run[name]
    clients = json.loads((folder / "clients.json").read_text())
    return found | {"summary": summary, "clients": clients}


@pytest.mark.slow
def test_a_finished_run_is_extended(finished: Path, tmp_path: Path, capsys: Any) -> None:
    out, once = tmp_path / "out", tmp_path / "once"
    shutil.copytree(finished, out)
    (tmp_path / "small.toml").write_text(LOSSES)
    assert status("run", tmp_path / "small.toml", "--set", "rounds=7", "--out", once) == 0
    capsys.readouterr()
    assert status("run", "--resume", out, "--set", "rounds=7") == 0
    assert f"{out}: continues from round 3 to 7" in capsys.readouterr().out.replace("\n", "")
    assert results(once) == results(out)
    assert status("run", "--resume", out, "--set", "rounds=7") == 0
    assert "is complete; nothing to do" in capsys.readouterr().out


def no_checkpoint(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint")


def not_finished(folder: Path) -> None:
    (folder / "summary.json").unlink()


@pytest.mark.parametrize(
    ("change", "setting", "message"),
    [
        (None, "rounds=2", "rounds=2: {} is a run of 3 rounds; with --resume there can only be"),
        (None, "solver.epochs=3", "--set solver: with --resume only rounds can change"),
        (
            None,
            "seed=[0, 1, 5]",
            "rounds can change; train the others on their own: {}/experiment.toml --set seed=[5]",
        ),
        (None, "seed=0", "--set seed: with --resume only rounds can change\n"),
        (None, "rounds=many", "rounds"),
        (no_checkpoint, "rounds=4", "has no folder checkpoint to continue from; run it anew"),
        (not_finished, "rounds=4", "is not finished; finish it first, with fedprox run --resume"),
    ],
)
def test_what_cannot_be_extended_is_one_line_and_stays(
    change: Callable[[Path], None] | None,
    setting: str,
    message: str,
    finished: Path,
    tmp_path: Path,
    capsys: Any,
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    if change is not None:
        change(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert status("run", "--resume", out, "--set", setting) == 2
    error = capsys.readouterr().err
    assert message.format(out) in error
    assert error.count("\n") == 1
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


PRIVATE = """
rounds = 3
evaluation = {every = 2, gradients = false}
data = {name = "synthetic", clients = 6}
cohort = {clients_per_round = 6}
solver = {learning_rate = 0.01, batch_size = 10, epochs = 1}
method = [{name = "fedavg"}]
privacy = {clip = 0.1, delta = 0.001, accountant = "rdp", CALIBRATED}
"""


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("command", [["run"], ["deploy", "--local", "2"]])
def test_calibrated_noise_is_refused_before_a_guarantee_is_said(
    unit: str, command: list[str], tmp_path: Path, capsys: Any
) -> None:
    calibrated = f'epsilon = 8.0, unit = "{unit}"'
    file = tmp_path / "experiment.toml"
    file.write_text(PRIVATE.replace("CALIBRATED", calibrated))
    for rounds in (2, 5):
        assert status(*command, "--resume", tmp_path, "--set", f"rounds={rounds}") == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == (
            f"fedprox: --set rounds={rounds}: the noise is that of privacy.epsilon = 8.0 for the 3 "
            f"rounds of {tmp_path}, and other rounds would have needed other noise from the start; "
            "run it anew\n"
        )
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_given_noise_is_extended_and_costs_more(unit: str, tmp_path: Path, capsys: Any) -> None:
    file, out, once = (tmp_path / name for name in ("private.toml", "out", "once"))
    file.write_text(PRIVATE.replace("CALIBRATED", f'noise_multiplier = 2.0, unit = "{unit}"'))
    assert status("run", file, "--out", out) == 0
    (short,) = json.loads((out / "summary.json").read_text())
    assert status("run", file, "--set", "rounds=7", "--out", once) == 0
    assert status("run", "--resume", out, "--set", "rounds=7") == 0
    assert results(once) == results(out)
    (longer,) = results(out)["summary"]
    assert longer["epsilon"] > short["epsilon"]
    capsys.readouterr()


def test_force_replaces_another_experiments_results(
    finished: Path, tmp_path: Path, capsys: Any
) -> None:
    out, once = tmp_path / "out", tmp_path / "once"
    shutil.copytree(finished, out)
    (out / "diagnosis.json").write_text("{}")
    run = ("run", tmp_path / "small.toml", "--set", "method=[{name='fedavg'}]", "--out")
    (tmp_path / "small.toml").write_text(LOSSES)
    assert status(*run, once) == 0
    assert status(*run, out) == 2
    assert "; name another folder, or replace them with --force" in capsys.readouterr().err
    assert status(*run, out, "--force") == 0
    printed = capsys.readouterr().out.replace("\n", "")
    line = "--force replaces the results of an experiment that differs in method, rounds"
    assert f"{out}: {line}" in printed
    assert results(once) == results(out)
    files = [sorted(p.relative_to(f) for p in f.rglob("*")) for f in (once, out)]
    assert files[0] == files[1]


def test_force_never_replaces_other_files(finished: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "notes.txt").write_text("mine")
    (tmp_path / "small.toml").write_text(LOSSES)
    assert status("run", tmp_path / "small.toml", "--out", out, "--force") == 0
    assert (out / "notes.txt").read_text() == "mine"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "experiment.toml").write_text(LOSSES)
    assert status("run", tmp_path / "small.toml", "--out", tmp_path / "own", "--force") == 2
    assert "experiment.toml was not written by fedprox" in capsys.readouterr().err
