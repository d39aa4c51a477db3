"""A run that is killed again and again leaves what an uninterrupted one leaves, byte for byte."""

import os
import random
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.commands import start, status

KILLS = 12

EXPERIMENT = """
rounds = 90
evaluation = {every = 2, gradients = false, client_records = true}
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


def die(where: str, count: int, share: float) -> None:
    """Have this process end by a kill.

    Args:
        where: In the so many-th line of "metrics", while the so many-th "checkpoint" is being made,
            before or after the "removal" of the so many-th file of one, or at some "moment" after
            the so many-th record.
        count: Which one.
        share: A random number.
    """
    from fedprox.loop.checkpoint import Checkpoints
    from fedprox.report.directory import RunDirectory

    begin, save, record = RunDirectory._begin, Checkpoints._save, RunDirectory.record
    unlink = Path.unlink
    calls = iter(range(count, -(10**6), -1))

    def torn(self: Any) -> None:
        begin(self)
        self._metrics = Torn(self._metrics, count, share)

    def timed(method: Any, seconds: float) -> Any:
        def call(self: Any, *arguments: Any) -> None:
            if next(calls) == 0:
                threading.Timer(share * seconds, kill).start()
            method(self, *arguments)

        return call

    def removed(path: Path, missing_ok: bool = False) -> None:
        last = re.fullmatch(r"\d+-\d+", path.stem) and next(calls) == 0
        if last and share < 0.5:
            kill()
        unlink(path, missing_ok)
        if last:
            kill()

    if where == "metrics":
        RunDirectory._begin = torn  # type: ignore[method-assign]
    elif where == "checkpoint":
        Checkpoints._save = timed(save, 0.02)  # type: ignore[method-assign]
    elif where == "removal":
        Path.unlink = removed  # type: ignore[assignment, method-assign]
    elif where == "moment":
        RunDirectory.record = timed(record, 0.05)  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_is_the_same(tmp_path: Path) -> None:
    once, killed, output = (tmp_path / name for name in ("once", "killed", "output"))
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = ["run", str(tmp_path / "experiment.toml"), "--checkpoint-every", "3", "--out"]
    assert status(start(output, [*command, str(once)])) == 0
    chance = random.Random(0)
    known = 0
    for number in range(KILLS):
        where = ("moment", "metrics", "checkpoint", "removal")[number % 4]
        # lines of before are written again first, so a torn one may be any of them or a new one
        lines = where in ("moment", "metrics")
        most, least = (known + 9, 0 if chance.random() < 0.5 else known) if lines else (4, 0)
        death = where, chance.randrange(least, most), chance.random()
        again = ["run", "--resume", str(killed)] if number else [*command, str(killed)]
        if number and not (killed / "experiment.toml").exists():
            again = [*command, str(killed)]
        assert status(start(output, again, die, *death)) == -signal.SIGKILL, death
        if (killed / "metrics.jsonl").exists():
            known = max(known, (killed / "metrics.jsonl").read_bytes().count(b"\n"))
    assert (killed / "checkpoint").is_dir()
    assert known > 25
    assert status(start(output, ["run", "--resume", str(killed)])) == 0
    names = sorted(path.name for path in once.iterdir())
    assert names == sorted(path.name for path in killed.iterdir())
    for name in (
        "metrics.jsonl",
        "clients.jsonl",
        *(n for n in names if n.endswith(".safetensors")),
    ):
        assert (once / name).read_bytes() == (killed / name).read_bytes(), name
