"""A run that is killed twenty times leaves what an uninterrupted one leaves, byte for byte."""

import multiprocessing
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

KILLS = 20

EXPERIMENT = """
rounds = 130
evaluate_every = 2
data = {name = "synthetic", clients = 12}
cohort = {clients_per_round = 4}
solver = {learning_rate = 0.01, batch_size = 10, epochs = 1}
method = [{name = "fedprox", mu = [0.0, 1.0], adapt = true}, {name = "scaffold"}]
"""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Torn:
    """A file of which one line is written in part, and that is the end."""

    def __init__(self, file: Any, line: int, share: float) -> None:
        self.file, self.line, self.share = file, line, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, content: bytes) -> int:
        self.line -= 1
        if self.line < 0:
            self.file.write(content[: int(self.share * len(content))])
            kill()
        return int(self.file.write(content))


def go(folder: Path, arguments: list[str], death: tuple[str, int, float] | None) -> None:
    """The command in this process, which ends by a kill.

    Args:
        folder: The cache.
        arguments: The command's.
        death: Where: in so many-th line of "metrics", while so many-th "checkpoint" is being made,
            or at some "moment" after so many-th record; and a random number.
    """
    from fedprox.cli import main
    from fedprox.report.directory import RunDirectory
    from fedprox.simulation.checkpoint import Checkpoints

    os.environ["FEDPROX_CACHE"] = str(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["fedprox", *arguments]
    where, count, share = death or ("", 0, 0.0)
    begin, save, record = RunDirectory._begin, Checkpoints._save, RunDirectory.record
    calls = iter(range(count, -(10**6), -1))

    def torn(self: RunDirectory) -> Any:
        return Torn(begin(self), count, share)

    def timed(method: Any, seconds: float) -> Any:
        def call(self: Any, argument: Any) -> None:
            if next(calls) == 0:
                threading.Timer(share * seconds, kill).start()
            method(self, argument)

        return call

    if where == "metrics":
        RunDirectory._begin = torn  # type: ignore[method-assign]
    elif where == "checkpoint":
        Checkpoints._save = timed(save, 0.1)  # type: ignore[method-assign]
    elif where == "moment":
        RunDirectory.record = timed(record, 0.05)  # type: ignore[method-assign]
    main()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    return tmp_path


def run(cache: Path, arguments: list[str], death: tuple[str, int, float] | None = None) -> int:
    """The exit status of the command in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedprox.cli"])
    process = context.Process(target=go, args=(cache, arguments, death))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def test_a_run_that_is_killed_twenty_times_is_the_same(files: Path) -> None:
    once, killed = files / "once", files / "killed"
    command = ["run", str(files / "experiment.toml"), "--checkpoint-every", "3", "--out"]
    assert run(files, [*command, str(once)]) == 0
    chance = random.Random(0)
    known = 0
    for number in range(KILLS):
        where = ("moment", "metrics", "checkpoint")[number % 3]
        # lines of before are written again first, so a torn one may be any of them or a new one
        most = {"moment": known + 9, "metrics": known + 9, "checkpoint": 3}[where]
        least = 0 if number % 2 or where == "checkpoint" else known
        death = where, chance.randrange(least, most), chance.random()
        again = ["run", "--resume", str(killed)] if number else [*command, str(killed)]
        if number and not (killed / "experiment.toml").exists():
            again = [*command, str(killed)]
        assert run(files, again, death) == -signal.SIGKILL, death
        if (killed / "metrics.jsonl").exists():
            known = max(known, (killed / "metrics.jsonl").read_bytes().count(b"\n"))
    assert (killed / "checkpoint").is_dir()
    assert known > 40
    assert run(files, ["run", "--resume", str(killed)]) == 0
    names = sorted(path.name for path in once.iterdir())
    assert names == sorted(path.name for path in killed.iterdir())
    for name in ("metrics.jsonl", *(n for n in names if n.endswith(".safetensors"))):
        assert (once / name).read_bytes() == (killed / name).read_bytes(), name
