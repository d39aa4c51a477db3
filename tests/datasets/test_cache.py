"""The cache of prepared data: made once, whole or not at all."""

import gzip
import io
import logging
import lzma
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import InputError
from fedprox.bar import Bar
from fedprox.datasets import cache
from fedprox.files.packed import reading


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
        assert not arrays[key].flags.writeable


def test_arrays_are_made_once_and_mapped_after_that(source: Path, folder: Path) -> None:
    build = Builder()
    for _ in range(3):
        arrays = cache.prepared("made", [source], {"n": 1}, build)
        check(arrays)
        assert isinstance(arrays["x"].base, np.memmap)
    assert build.calls == 1
    assert len(list(folder.iterdir())) == 1


def test_another_source_option_version_or_name_is_another_entry(source: Path) -> None:
    build = Builder()
    cache.prepared("made", [source], {"n": 1}, build)
    cache.prepared("made", [source], {"n": 2}, build)
    cache.prepared("made", [source], {"n": 1}, build, version=2)
    cache.prepared("other", [source], {"n": 1}, build)
    assert build.calls == 4
    again = source.with_name("again")
    again.write_bytes(b"content")
    cache.prepared("made", [again], {"n": 1}, build)  # it is the content that counts
    assert build.calls == 4
    source.write_bytes(b"Content")
    cache.prepared("made", [source], {"n": 1}, build)
    assert build.calls == 5


def entry(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


DAMAGES: dict[str, Callable[[Path], object]] = {
    "an array cut short": lambda entry: os.truncate(entry / "x.npy", 140),
    "an array empty": lambda entry: (entry / "x.npy").write_bytes(b""),
    "an array gone": lambda entry: (entry / "x.npy").unlink(),
    "a bit turned": lambda entry: flip(entry / "x.npy", -3),
    "a bit of the header turned": lambda entry: flip(entry / "x.npy", 12),
    "another array in its place": lambda entry: np.save(entry / "x.npy", np.zeros((2, 3), "f4")),
    "the manifest cut short": lambda entry: os.truncate(entry / "manifest.json", 20),
    "the manifest of another kind": lambda entry: (entry / "manifest.json").write_text("[1]"),
    "the manifest gone": lambda entry: (entry / "manifest.json").unlink(),
}


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_found_out_and_made_again(
    damage: str, source: Path, folder: Path
) -> None:
    build = Builder()
    cache.prepared("made", [source], {}, build)
    DAMAGES[damage](entry(folder))
    check(cache.prepared("made", [source], {}, build))
    assert build.calls == 2
    check(cache.prepared("made", [source], {}, build))
    assert build.calls == 2
    assert [path.name[:5] for path in folder.iterdir()] == ["made-"]


SLOW = """
import sys, time
from pathlib import Path
import numpy as np
from fedprox.datasets import cache
from fedprox.files.packed import reading

def build():
    print("building", flush=True)
    return {"x": np.full(1_000, 7.0)}

if sys.argv[2] == "stop":
    def save(*arguments, **options):
        real(*arguments, **options)
        print("saved", flush=True)
        time.sleep(60)
    real, np.save = np.save, save
else:
    def rename(self, target):
        print("ready", flush=True)
        sys.stdin.readline()
        return real(self, target)
    real, Path.rename = Path.rename, rename
arrays = cache.prepared("made", [Path(sys.argv[1])], {}, build)
print(arrays["x"].sum(), flush=True)
"""


def start(source: Path, how: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(source), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_until(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"the process ended before {word!r}")


def test_killed_half_way_the_next_start_begins_clean(source: Path, folder: Path) -> None:
    other: dict[str, Any] = {"n": 1}
    with start(source, "stop") as process:
        read_until(process, "saved")
        (left,) = folder.iterdir()
        assert left.name.startswith(".made-")
        assert any(left.rglob("x.npy"))
        cache.prepared("made", [source], other, Builder())
        assert left.is_dir()  # what a living process writes is left alone
        process.send_signal(signal.SIGKILL)
        process.wait()
    build = Builder()
    check(cache.prepared("made", [source], {}, build))
    assert build.calls == 1
    assert [path.name[:5] for path in folder.iterdir()] == ["made-", "made-"]


def test_two_processes_at_once(source: Path, folder: Path) -> None:
    with start(source, "wait") as first, start(source, "wait") as second:
        for process in (first, second):
            read_until(process, "ready")  # both have built; neither entry is in place
        assert len(list(folder.iterdir())) == 2
        outputs = [process.communicate("\n\n\n")[0] for process in (first, second)]
    assert [output.split()[-1] for output in outputs] == ["7000.0", "7000.0"]
    assert [path.name[:5] for path in folder.iterdir()] == ["made-"]


def test_a_folder_that_cannot_be_written_is_one_warning(
    source: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir()
    folder.write_bytes(b"a file where the folder should be")
    build = Builder()
    with caplog.at_level(logging.WARNING):
        check(cache.prepared("made", [source], {}, build))
        check(cache.prepared("made", [source], {}, build))
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

    monkeypatch.setattr(np, "save", full)
    check(cache.prepared("made", [source], {}, Builder()))
    assert "cannot be written: No space left on device" in caplog.text
    assert list(folder.iterdir()) == []


def test_what_build_raises_leaves_nothing(source: Path, folder: Path) -> None:
    def build() -> dict[str, Any]:
        raise InputError("source: broken")

    with pytest.raises(InputError, match="source: broken"):
        cache.prepared("made", [source], {}, build)
    assert not folder.exists()


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent: cannot be read: .*No such file"):
        cache.prepared("made", [tmp_path / "absent"], {}, Builder())


def test_streams_are_read_unpacked(tmp_path: Path) -> None:
    content = b"one\ntwo\n" * 100_000
    plain, packed, archive = (tmp_path / f"text{end}" for end in (".txt", ".gz", ".zip"))
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("folder/text.txt", content)
    for path in (plain, packed, archive):
        with reading(path, "text.txt") as stream:
            assert stream.read() == content
    with reading(packed, unpack=False) as stream:
        assert stream.read() == packed.read_bytes()
    with (
        pytest.raises(InputError, match=r"text\.zip: other is missing in this archive"),
        reading(archive, "other"),
    ):
        pass
    for path in (packed, archive):
        path.write_bytes(path.read_bytes()[:-30])
        with (
            pytest.raises(InputError, match=r"text\.\w+: cannot be read"),
            reading(path, "text.txt") as stream,
        ):
            stream.read()


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_file_of_several_streams_is_read_to_its_end(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / ("text.gz" if pack is gzip.compress else "text.xz")
    path.write_bytes(pack(b"one ") + bytes(200_000) + pack(b"two ") + pack(b"three") + bytes(4))
    with reading(path) as stream:
        assert stream.read() == b"one two three"
    path.write_bytes(pack(b"one ") + b"garbage")
    with (
        reading(path) as stream,
        pytest.raises(InputError, match=r"text\.\w+: cannot be read"),
    ):
        stream.read()


def test_an_archive_where_a_packed_file_is_meant_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.zip"
    path.write_bytes(archive())
    with (
        pytest.raises(InputError, match=r"text\.zip: a \.zip archive cannot be read here; unpack"),
        reading(path),
    ):
        pass


def archive() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("folder/text.txt", b"one two " * 50)
        file.writestr("\u00e9.txt", b"")
    return raw.getvalue()


PACKED = {"text.zip": archive(), "text.gz": gzip.compress(b"one two " * 50)}


@pytest.mark.parametrize("name", PACKED)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 400),
)
@settings(max_examples=300)
def test_a_damaged_archive_is_read_or_refused_in_one_line(
    name: str, changes: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(PACKED[name])
    for place, value in changes:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content[: len(content) - cut] if cut < 100 else content)
    try:
        with reading(path, "text.txt") as stream:
            stream.read()
    except InputError as error:
        message = str(error)
    else:
        return
    assert "\n" not in message
    assert name in message


@pytest.mark.parametrize(("name", "size"), [("text.zip", 400), ("text.gz", len(PACKED["text.gz"]))])
def test_a_progress_bar_counts_to_the_end(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = []

    class Seen(Bar):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            bars.append((self, given))

    monkeypatch.setattr("fedprox.files.packed.Bar", Seen)
    (tmp_path / name).write_bytes(PACKED[name])
    with reading(tmp_path / name, "text.txt") as stream:
        assert len(stream.read()) == 400
    ((bar, given),) = bars
    assert given == (name, size)
    assert bar.done == size
