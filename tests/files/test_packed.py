"""Packed files as streams: whole, damaged, and with a progress bar."""

import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fedprox import InputError
from fedprox.files.packed import reading
from fedprox.terminal import Bar


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


@pytest.mark.parametrize(("pack", "end"), [(gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_a_packed_file_of_several_streams_is_read_to_its_end(
    pack: Any, end: str, tmp_path: Path
) -> None:
    path = tmp_path / f"text{end}"
    path.write_bytes(pack(b"one ") + pack(b"two ") + pack(b"three"))
    with reading(path) as stream:
        assert stream.read() == b"one two three"


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
