"""Child processes end with their parent, whatever ends it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedprox.deployment import processes
from fedprox.deployment.processes import Child, running, tail

SLEEPER = """
import os, pathlib, signal, sys, time
def main():
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # one write, which a second program that writes to the same log cannot divide
    sys.stdout.write(" ".join(["started", *sys.argv, os.environ["COLOR"]]) + "\\n")
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(600)
"""

PARENT = """
import sys, time
from pathlib import Path
from fedprox.deployment.processes import Child, running
with running([Child(sys.argv[1], [sys.argv[2]], Path(sys.argv[3]), {"COLOR": "red"})]):
    time.sleep(600)
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> str:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    return f"{script}:main"


def pid_in(file: Path) -> int:
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(file.read_text())


def ends(pid: int, seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_programs_run_and_end_with_the_context(
    sleeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what they say is in the log at once
    log = tmp_path / "log"
    pids = [tmp_path / "a", tmp_path / "b"]
    programs = [Child(sleeper, [str(pid)], log, {"COLOR": "blue"}) for pid in pids]
    with contextlib.suppress(ZeroDivisionError), running(programs) as started:
        assert [pid_in(pid) for pid in pids] == [process.pid for process in started]
        raise ZeroDivisionError
    assert [process.returncode for process in started] == [-signal.SIGTERM] * 2
    assert f"started main {pids[0]} blue" in tail(log)


def test_a_program_that_ignores_sigterm_is_killed(
    sleeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.2)
    pid = tmp_path / "pid"
    program = Child(sleeper, [str(pid), "stubborn"], tmp_path / "log", {"COLOR": "blue"})
    with running([program]) as [process]:
        pid_in(pid)
    assert process.returncode == -signal.SIGKILL


def test_a_program_that_fails_is_seen(tmp_path: Path) -> None:
    program = Child("no_such_module:main", [], tmp_path / "log")
    with running([program]) as [process]:
        assert process.wait(30) == 1
    assert tail(program.log, 1) == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.slow
def test_a_program_ends_when_its_parent_is_killed(sleeper: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-c", PARENT, sleeper, str(file), str(tmp_path / "log")]
    with subprocess.Popen(command) as parent:
        pid = pid_in(file)
        parent.kill()
    assert ends(pid, 10)
