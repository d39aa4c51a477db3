"""A damaged checkpoint is never used: the one before is, or the run is refused in one line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import Checkpoints, InputError, fedavg, scaffold
from fedprox.simulation.loop import checkpoint_files
from fedprox.simulation.loop.snapshot import Fingerprint, Snapshot
from tests.files.test_lock import contents
from tests.report.test_disk import TINY
from tests.simulation.loop.test_checkpoint import same, train
from tests.test_cli import status

STEPS = 4, 8
FILES = ("8.state", "8.clients-0")


class Made:
    """A folder with two checkpoints, and what they are of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        begin = Checkpoints.begin

        def noting(made: Checkpoints, comparison: Fingerprint) -> Snapshot:
            self.comparison = comparison
            return begin(made, comparison)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "begin", noting)
            self.once = train([scaffold()], Checkpoints(folder, 4), seed=0)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, content in self.files.items():
            (self.folder / name).write_bytes(content)

    def begin(self) -> int:
        """The round at which a run begins that goes on."""
        return Checkpoints(self.folder, resume=True).begin(self.comparison).round


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made") / "checkpoint")


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "the first bit": lambda path: flip(path, 0),
    "the format": lambda path: flip(path, 8 * path.read_bytes().index(b"2")),
    "in the middle": lambda path: flip(path, 4 * path.stat().st_size),
    "the last bit": lambda path: flip(path, 8 * path.stat().st_size - 1),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over(
    name: str, damage: str, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    made.restore()
    DAMAGES[damage](made.folder / name)
    assert made.begin() == STEPS[0]
    (line,) = caplog.messages
    assert line.startswith(f"{made.folder / name}: ")
    assert line.endswith("; the one before is used")


@pytest.mark.parametrize("name", FILES)
def test_a_run_goes_on_from_the_one_before(name: str, made: Made) -> None:
    made.restore()
    DAMAGES["in the middle"](made.folder / name)
    same(made.once, train([scaffold()], Checkpoints(made.folder, resume=True), seed=0))


@given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True))
def test_every_bit_counts(made: Made, name: str, place: float) -> None:
    made.restore()
    flip(made.folder / name, int(place * 8 * len(made.files[name])))
    assert made.begin() == STEPS[0]


def test_a_checkpoint_of_which_a_file_is_gone_is_passed_over(made: Made) -> None:
    for name in FILES:
        made.restore()
        (made.folder / name).unlink()
        assert made.begin() == STEPS[0]


def test_files_of_others_do_no_harm(made: Made) -> None:
    made.restore()
    for name in ("12.tmp", "notes.txt", ".12.state.partial", "x.state"):
        (made.folder / name).write_bytes(b"anything")
    assert made.begin() == STEPS[1]


def test_where_all_are_damaged_the_run_is_refused(made: Made) -> None:
    made.restore()
    for step in STEPS:
        flip(made.folder / f"{step}.state", 1000)
    with pytest.raises(InputError) as error:
        made.begin()
    assert str(error.value) == (
        f"{made.folder / '8.state'}: damaged, for its checksum does not fit; no other is whole: "
        "begin anew, without resuming"
    )


def test_a_checkpoint_of_another_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "FORMAT", checkpoint_files.FORMAT + 1)
        train([fedavg()], Checkpoints(tmp_path, 4), seed=0)
    advice = "go on with the version that wrote it, or begin anew"
    with pytest.raises(InputError) as error:
        train([fedavg()], Checkpoints(tmp_path, resume=True), seed=0)
    assert str(error.value) == (
        f"{tmp_path / '8.state'}: a checkpoint of format 5; this version reads 4: {advice}"
    )
    (tmp_path / "state").mkdir()  # as version 0.1 had it
    with pytest.raises(InputError, match="a checkpoint of format 1; this version reads 4: "):
        train([fedavg()], Checkpoints(tmp_path, resume=True), seed=0)


def test_the_command_goes_on_from_the_one_before_or_says_why_not(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "remove", lambda _: None)
        command = ("run", tmp_path / "tiny.toml", "--checkpoint-every", "1", "--out", out)
        assert status(*command) == 0
    once = contents(out)
    before, last = sorted((out / "checkpoint").glob("*.state"), key=lambda path: int(path.stem))
    whole = before.read_bytes()
    flip(before, 5000)
    flip(last, 5000)
    capsys.readouterr()
    assert status("run", "--resume", out) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"fedprox: {last}: damaged")
    before.write_bytes(whole)
    assert status("run", "--resume", out) == 0
    again = contents(out)
    assert len(again) == len(once) - 2
    for name, content in again.items():
        if name.endswith((".jsonl", ".safetensors")):
            assert content == once[name]
