"""One writer to a folder, a lock that goes with its process, and files of their owner alone."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedprox import InputError
from fedprox.files import whole as lock
from fedprox.files.whole import locked, write_private
from fedprox.report.directory import RunDirectory
from tests.test_cli import LOSSES, record, status

HERE = f"process {os.getpid()} on {socket.gethostname()}"

HOLD = """
import sys, time
from pathlib import Path
from fedprox.files.whole import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with locked(folder):
        with pytest.raises(InputError) as error, locked(folder):
            pass
        assert str(error.value).startswith(f"{folder} is being written by {HERE}; wait until")
        assert (folder / ".lock").is_file()  # the refused one has not removed it
        (folder / "kept").touch()
    with locked(folder):
        pass
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_only_folders_made_for_the_lock_and_left_empty_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with locked(tmp_path / "a"):
        pass
    with locked(tmp_path / "a" / "b" / "c"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"by process {process.pid} on "), locked(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (tmp_path / ".lock").is_file()
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == HERE
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_that_goes_while_it_is_taken_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = lock._lock, []

    def slow(file: int, folder: Path) -> None:
        calls.append(file)
        real(file, folder)
        if len(calls) == 1:  # the one who held it lets go between our opening and our locking
            (folder / ".lock").unlink()

    monkeypatch.setattr(lock, "_lock", slow)
    with locked(tmp_path):
        assert len(calls) == 2
        with pytest.raises(InputError), locked(tmp_path):
            pass


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path), locked(tmp_path):
        pass


@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_a_second_process_is_refused_before_it_writes(
    command: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "small.toml").write_text(LOSSES)
    out = tmp_path / "out"
    with locked(out):
        (out / ".experiment.toml.partial").write_text("half")
        before = contents(out)
        assert status(command, tmp_path / "small.toml", "--out", out) == 2
        assert contents(out) == before
    error = capsys.readouterr().err
    assert error == (
        f"fedprox: {out} is being written by {HERE}; wait until it ends, or name another folder\n"
    )


def test_what_another_process_wrote_before_the_lock_is_found(tmp_path: Path) -> None:
    out = tmp_path / "out"
    late = RunDirectory(out, {"rounds": 2})
    with RunDirectory(out, {"rounds": 1}) as directory:
        directory.record(record(0))
    before = contents(out)
    with pytest.raises(InputError, match="holds another experiment's results"), late:
        pass
    assert contents(out) == before


@pytest.mark.parametrize("target", ["no/lock", "file", "."])
def test_a_lock_that_is_a_link_is_refused(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("another's")
    link = tmp_path / ".lock"
    link.symlink_to(tmp_path / target)
    with pytest.raises(InputError) as error, locked(tmp_path):
        pass
    assert str(error.value) == f"{link} is a symbolic link, which is not followed; remove it"
    assert (tmp_path / "file").read_text() == "another's"
    assert link.is_symlink()


def test_a_private_file_is_new_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "secret"
    elsewhere.write_text("other")
    path.symlink_to(elsewhere)
    write_private(path, b"secret")
    assert path.read_bytes() == b"secret"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert elsewhere.read_text() == "other"
