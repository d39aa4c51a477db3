"""The command ends at once on a signal, wherever it is, and what it then says is true."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands import start, status

EXPERIMENT = """
rounds = 40
evaluation = {every = 4, gradients = false}
data = {name = "synthetic", clients = 6}
cohort = {clients_per_round = 3}
solver = {learning_rate = 0.01, batch_size = 10, epochs = 1}
method = [{name = "fedavg"}, {name = "fedprox", mu = 1.0}]
"""

AT_ONCE = 5.0
"""Seconds that an end may take, of which a busy machine needs most; a hang is forever."""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command prints."""
    return tmp_path_factory.mktemp("commands") / "output"


def hang(marker: Path) -> None:
    """Compute in a compiled program for ever, where no Python handler is run."""
    import jax

    marker.touch()
    program = jax.jit(lambda x: jax.lax.while_loop(lambda v: v >= 0, jax.numpy.cos, x))
    program(1.0).block_until_ready()


def hang_in(where: str, marker: Path) -> None:
    """Have this process hang at some place."""
    from fedprox.engine.compiled.compile import Compiler
    from fedprox.report.directory import RunDirectory

    patch = pytest.MonkeyPatch()  # for good
    record, compile_any = RunDirectory.record, Compiler._compile

    def hanging(*_: object, **__: object) -> None:
        hang(marker)

    def compile_one(self: Compiler, layout: Any) -> Any:
        second = self.method.algorithm.name == "fedprox"
        return hang(marker) if second else compile_any(self, layout)

    def record_and_interrupt(self: RunDirectory, given: Any) -> None:
        record(self, given)
        if given.round == 4:
            signal.raise_signal(signal.SIGINT)

    places = {
        "loading": "fedprox.commands.training.resolve",
        "planning": "fedprox.engine.planning.round_work.round_work",
        "compiling": "jax.stages.Lowered.compile",
        "a checkpoint": "fedprox.loop.checkpoint.Checkpoints._save",
        "writing": "fedprox.report.directory.write_clients",
    }
    if where == "the second method":
        patch.setattr(Compiler, "_compile", compile_one)
    else:
        patch.setattr(places[where], hanging)
    if where == "a checkpoint":  # that a signal asks for
        patch.setattr(RunDirectory, "record", record_and_interrupt)


def end(tmp_path: Path, output: Path, where: str, number: signal.Signals, *options: str) -> str:
    """What a run says that is ended by a signal while it hangs; it ends at once."""
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    marker, out = tmp_path / "marker", tmp_path / "out"
    command = ["run", str(tmp_path / "experiment.toml"), "--out", str(out), *options]
    process = start(output, command, hang_in, where, marker)
    while not marker.exists() and process.is_alive():
        time.sleep(0.02)
    time.sleep(0.2)  # into the program
    os.kill(process.pid, number)
    begin = time.perf_counter()
    assert status(process) == 128 + number, output.read_text()
    assert time.perf_counter() - begin < AT_ONCE
    assert not (out / ".lock").exists()
    return said(output)


def said(output: Path) -> str:
    """What the command says, but for its progress."""
    lines = output.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith(("fedprox: ", "SIG")))


@pytest.mark.parametrize(
    ("where", "number", "line"),
    [
        ("loading", signal.SIGHUP, "fedprox: ended by SIGHUP\n"),
        pytest.param(
            *("planning", signal.SIGTERM, "fedprox: ended by SIGTERM\n"), marks=pytest.mark.slow
        ),
        pytest.param(
            *("compiling", signal.SIGINT, "fedprox: interrupted\n"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_signal_before_the_first_round_ends_at_once_and_leaves_nothing(
    where: str, number: signal.Signals, line: str, tmp_path: Path, output: Path
) -> None:
    assert end(tmp_path, output, where, number) == line
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_second_signal_ends_at_once(tmp_path: Path, output: Path) -> None:
    out = tmp_path / "out"
    first, second = end(tmp_path, output, "a checkpoint", signal.SIGINT).splitlines()
    assert first.startswith("SIGINT: finishing the rounds under way for a checkpoint; once more")
    assert second == f"fedprox: interrupted; {out}/metrics.jsonl holds the rounds evaluated so far"
    assert json.loads((out / "metrics.jsonl").read_text().splitlines()[1])["round"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "number", "how", "options"),
    [
        ("writing", signal.SIGINT, "interrupted", ["--checkpoint-every", "20"]),
        ("the second method", signal.SIGTERM, "ended by SIGTERM", []),
    ],
)
def test_a_run_that_was_ended_continues_from_its_last_checkpoint(
    where: str, number: signal.Signals, how: str, options: list[str], tmp_path: Path, output: Path
) -> None:
    """While results are written, and where a finished method is kept and the next is compiled."""
    out = tmp_path / "out"
    line = end(tmp_path, output, where, number, *options)
    again = f"continue from the last checkpoint with: fedprox run --resume {out}"
    assert line == f"fedprox: {how}; {again}\n"
    before = (out / "metrics.jsonl").read_bytes()
    assert status(start(output, ["run", "--resume", str(out)])) == 0
    after = (out / "metrics.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 2 * 11
    assert (out / "summary.json").exists()


def slow_between(marker: Path, seconds: float) -> None:
    """Have checkpoints between two methods take long, in the middle of a file."""
    from fedprox.files.arrays import write_arrays
    from fedprox.loop import snapshot

    def slow(path: Path, head: str, arrays: Any) -> str:
        def waiting() -> Any:
            for i, pair in enumerate(arrays):
                if i == 1 and path.parent.name == "checkpoint" and path.name == "0-40.state":
                    marker.touch()
                    time.sleep(seconds)
                yield pair

        return write_arrays(path, head, waiting())

    pytest.MonkeyPatch().setattr(snapshot, "write_arrays", slow)


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_during_a_checkpoint_between_methods_waits_for_it_and_the_second_does_not(
    signals: int, tmp_path: Path, output: Path
) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    out, marker = tmp_path / "out", tmp_path / "marker"
    command = ["run", str(tmp_path / "experiment.toml"), "--checkpoint-every", "40"]
    process = start(output, [*command, "--out", str(out)], slow_between, marker, 1.0)
    while not marker.exists() and process.is_alive():
        time.sleep(0.02)
    for _ in range(signals):
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.2)
    assert status(process) == 128 + signal.SIGTERM
    first, *_, last = said(output).splitlines()
    assert first.startswith("SIGTERM: finishing the rounds under way for a checkpoint; once more")
    waited = f"stopped after fedavg, seed 0; continue with: fedprox run --resume {out}"
    ended = f"ended by SIGTERM; {out}/metrics.jsonl holds the rounds evaluated so far"
    assert last == f"fedprox: {waited if signals == 1 else ended}"
    kept = [path.name for path in (out / "checkpoint").iterdir()]
    assert kept == ["0-40.state" if signals == 1 else "0-0.state"]


def fail_to_answer() -> None:
    """Have the answer to a signal fail, as of a disk that is gone, while the process trains."""
    from fedprox.loop.checkpoint import Checkpoints
    from fedprox.report.directory import RunDirectory

    def fail(*_: object) -> bool:
        raise OSError(5, "Input/output error")

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)

    patch = pytest.MonkeyPatch()
    patch.setattr(Checkpoints, "ask_to_stop", fail)
    patch.setattr(RunDirectory, "record", interrupt)


def test_a_signal_whose_answer_fails_is_not_lost(tmp_path: Path, output: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = ["run", str(tmp_path / "experiment.toml"), "--out", str(tmp_path / "out")]
    assert status(start(output, command, fail_to_answer), 50) == 128 + signal.SIGINT
    assert said(output) == "fedprox: interrupted; [Errno 5] Input/output error\n"


def hang_up() -> None:
    """Have this process, started as by nohup, be hung up on, with nobody at the other end."""
    from fedprox.report.directory import RunDirectory

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    record = RunDirectory.record

    def hung_up(self: RunDirectory, given: Any) -> None:
        record(self, given)
        signal.raise_signal(signal.SIGHUP)

    pytest.MonkeyPatch().setattr(RunDirectory, "record", hung_up)


@pytest.mark.slow
def test_an_ignored_hangup_and_a_broken_pipe_do_not_end_a_run(tmp_path: Path, output: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = ["run", str(tmp_path / "experiment.toml"), "--out", str(tmp_path / "out")]
    assert status(start(output, command, hang_up)) == 0
    line = "fedprox: stdout: Broken pipe; the command continues without it\n"
    assert said(output) == line
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"summary.json", "clients.json", "figure.png", "report.html"} <= names
