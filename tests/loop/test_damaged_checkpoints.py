"""A damaged checkpoint is never used: the one before is, or its rounds are computed again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import Algorithm, Checkpoints, InputError, fedavg, scaffold
from fedprox.loop import snapshot
from tests.loop.test_checkpoint import killed_after, same, train

FILES = ("1-8.state", "1-8.clients-0")


class Made:
    """The checkpoints of a comparison that was killed, to be changed and restored.

    Attributes:
        folder: Their folder, in which the first seed run has ended and the second has two.
    """

    def __init__(self, folder: Path, methods: list[Algorithm], **options: Any) -> None:
        self.folder, self.whole, begin = folder, folder.with_name("whole"), Checkpoints.begin

        def noting(checkpoints: Checkpoints, *comparison: Any) -> None:
            self.comparison = comparison
            begin(checkpoints, *comparison)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "begin", noting)
            killed_after(5, methods, Checkpoints(folder, 4), **options)
        folder.rename(self.whole)

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.whole, self.folder)

    def last(self, number: int) -> snapshot.Snapshot | None:
        checkpoints = Checkpoints(self.folder, resume=True)
        checkpoints.begin(*self.comparison)
        return checkpoints.last(number)

    def rounds(self, number: int) -> int:
        """The round from which a seed run goes on."""
        last = self.last(number)
        return 0 if last is None else last.now.round


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made") / "checkpoint", [scaffold()])


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "the first bit": lambda path: flip(path, 0),
    "the format": lambda path: flip(path, 8 * path.read_bytes().index(b"6")),
    "in the middle": lambda path: flip(path, 4 * path.stat().st_size),
    "the last bit": lambda path: flip(path, 8 * path.stat().st_size - 1),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "of a round before": lambda path: shutil.copy(path.with_stem("1-4"), path),
    "of another seed": lambda path: shutil.copy(path.with_stem("0-11"), path),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over(
    name: str, damage: str, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    made.restore()
    DAMAGES[damage](made.folder / name)
    assert made.rounds(1) == 4
    (line,) = caplog.messages
    assert line.startswith(f"{made.folder / name}: ")
    assert line.endswith("; the one before is used")


@given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True))
def test_every_bit_counts(made: Made, name: str, place: float) -> None:
    made.restore()
    flip(made.folder / name, int(place * 8 * (made.folder / name).stat().st_size))
    assert made.rounds(1) == 4


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_of_which_a_file_is_gone_is_passed_over(name: str, made: Made) -> None:
    made.restore()
    (made.folder / name).unlink()
    assert made.rounds(1) == 4


def test_files_of_others_do_no_harm(made: Made) -> None:
    made.restore()
    for name in ("1-12.tmp", "notes.txt", ".1-12.state.partial", "x.state", "1-9.clients-0"):
        (made.folder / name).write_bytes(b"anything")
    assert made.rounds(1) == 8


def test_a_seed_run_without_a_whole_checkpoint_is_computed_again(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    made.restore()
    file = made.folder / "0-11.state"
    flip(file, 1000)
    flip(made.folder / "1-8.state", 1000)
    same(train([scaffold()]), train([scaffold()], Checkpoints(made.folder, resume=True)))
    damaged = "damaged, for its checksum does not fit"
    assert caplog.messages == [
        f"{file}: {damaged}; its rounds are computed again",
        f"{made.folder / '1-8.state'}: {damaged}; the one before is used",
    ]


def test_a_checkpoint_of_another_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = "go on with the version that wrote it, or begin anew"
    again = Checkpoints(tmp_path, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "FORMAT", snapshot.FORMAT + 1)
        train([fedavg()], Checkpoints(tmp_path), seed=0)
    for name, written in {"0-11.state": "7", "8.state": "2 to 4", "state": "1"}.items():
        (tmp_path / name).touch()
        with pytest.raises(InputError) as error:
            train([fedavg()], again, seed=0)
        line = f"{tmp_path / name}: a checkpoint of format {written}; this version reads 6"
        assert str(error.value) == f"{line}: {advice}"
        (tmp_path / name).unlink()
