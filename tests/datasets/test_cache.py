"""The cache of prepared data: made once, whole or not at all."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox import InputError
from fedprox.datasets import sources


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepared"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"content")
    return path


ARRAYS: dict[str, Any] = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bytes": np.frombuffer(b"text", np.uint8),
    "none": np.zeros((0, 4), np.int64),
    "turned": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    **sources.pack_strings("words", ["", "one\n", "\ud800"]),
}


class Builder:
    """Makes the arrays and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return dict(ARRAYS)


def check(arrays: dict[str, Any]) -> None:
    assert arrays.keys() == ARRAYS.keys()
    for key, array in ARRAYS.items():
        assert arrays[key].dtype == array.dtype
        np.testing.assert_array_equal(arrays[key], array)
    assert sources.unpack_strings(arrays, "words") == ["", "one\n", "\ud800"]
    assert sources.unpack_strings(arrays, "words", np.array([1])) == ["one\n"]


def test_arrays_are_made_once_for_each_source_option_version_and_name(
    source: Path, folder: Path
) -> None:
    build = Builder()
    for _ in range(3):
        check(sources.prepared("made", [source], {"n": 1}, build))
    assert build.calls == len(list(folder.iterdir())) == 1
    sources.prepared("made", [source], {"n": 2}, build)
    sources.prepared("made", [source], {"n": 1}, build, version=2)
    sources.prepared("other", [source], {"n": 1}, build)
    assert build.calls == 4
    again = source.with_name("again")
    again.write_bytes(b"content")
    sources.prepared("made", [again], {"n": 1}, build)  # it is the content that counts
    assert build.calls == 4
    source.write_bytes(b"Content")
    sources.prepared("made", [source], {"n": 1}, build)
    assert build.calls == 5


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda entry: os.truncate(entry, 140),
    "empty": lambda entry: entry.write_bytes(b""),
    "a bit turned": lambda entry: flip(entry, entry.read_bytes().index(b"text")),
    "a bit of a header turned": lambda entry: flip(entry, entry.read_bytes().index(b"descr")),
    "something else": lambda entry: entry.write_bytes(b"something else"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_found_out_and_made_again(
    damage: str, source: Path, folder: Path
) -> None:
    build = Builder()
    sources.prepared("made", [source], {}, build)
    (entry,) = folder.iterdir()
    DAMAGES[damage](entry)
    for _ in range(2):
        check(sources.prepared("made", [source], {}, build))
    assert list(folder.iterdir()) == [entry]
    assert build.calls == 2


SLOW = """
import sys
from pathlib import Path
import numpy as np
from fedprox.datasets import sources

def replace(self, target):
    print("ready", flush=True)
    sys.stdin.readline()
    return real(self, target)

real, Path.replace = Path.replace, replace
arrays = sources.prepared("made", [Path(sys.argv[1])], {}, lambda: {"x": np.full(1_000, 7.0)})
print(arrays["x"].sum(), flush=True)
"""


def start(source: Path) -> "subprocess.Popen[str]":
    """A process that has written an entry under another name, and waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
def test_two_processes_at_once_and_one_that_is_killed(source: Path, folder: Path) -> None:
    with start(source) as killed, start(source) as first, start(source) as second:
        killed.kill()
        assert len(list(folder.iterdir())) == 3
        outputs = [process.communicate("\n")[0] for process in (first, second)]
    assert outputs == ["7000.0\n"] * 2
    left, entry = sorted(folder.iterdir(), reverse=True)
    assert (left.name[:4], entry.name[:5]) == ("tmp-", "made-")


def test_a_folder_that_cannot_be_written_is_one_warning(
    source: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir()
    folder.write_bytes(b"a file where the folder should be")
    build = Builder()
    with caplog.at_level(logging.WARNING):
        check(sources.prepared("made", [source], {}, build))
        check(sources.prepared("made", [source], {}, build))
    assert build.calls == 2
    (first, _) = [record.getMessage() for record in caplog.records]
    assert first.startswith(f"made: not kept for the next time, since {folder} cannot be written: ")
    assert "\n" not in first


def test_a_full_disk_leaves_nothing(
    source: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    check(sources.prepared("made", [source], {}, Builder()))
    assert "cannot be written: No space left on device" in caplog.text
    assert list(folder.iterdir()) == []


def test_what_build_raises_leaves_nothing(source: Path, folder: Path) -> None:
    def build() -> dict[str, Any]:
        raise InputError("source: broken")

    with pytest.raises(InputError, match="source: broken"):
        sources.prepared("made", [source], {}, build)
    assert not folder.exists()


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent: cannot be read: .*No such file"):
        sources.prepared("made", [tmp_path / "absent"], {}, Builder())
