"""A run writes its own files, and none that links in its folder lead to."""

from pathlib import Path

import pytest

from fedprox import Checkpoints, InputError, fedavg
from fedprox.report.directory import RunDirectory
from tests.files.test_lock import contents
from tests.loop.test_checkpoint import train
from tests.report.test_disk import FILES, write
from tests.report.test_report import EXPERIMENT
from tests.test_cli import record


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A folder of somebody else's, with a file."""
    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "file").write_text("another's")
    return folder


@pytest.mark.parametrize("target", ["file", "new"])
def test_metrics_are_not_written_through_a_link(target: str, others: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with RunDirectory(out, EXPERIMENT) as opened:
        opened.diagnosis({})
        link = out / "metrics.jsonl"
        link.symlink_to(others / target)
        line = f"{link} is a symbolic link, which is not followed; remove it"
        with pytest.raises(InputError) as error:
            opened.record(record(0))
        assert str(error.value) == line
    with pytest.raises(InputError) as error:
        RunDirectory(out, EXPERIMENT)
    assert str(error.value) == line
    assert contents(others) == {"file": b"another's"}


@pytest.mark.parametrize("partial", [True, False])
def test_whole_files_replace_links(partial: bool, others: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out)
    names = {path.name for path in out.iterdir()} - {"metrics.jsonl", "experiment.toml"}
    assert len(names) == len(FILES) - 2
    for name in names:
        (out / name).unlink()
        (out / (f".{name}.partial" if partial else name)).symlink_to(others / "file")
    write(out)
    assert contents(others) == {"file": b"another's"}
    assert names < {path.name for path in out.iterdir() if not path.is_symlink()}


@pytest.mark.parametrize("target", [".", "new"])
def test_checkpoints_are_not_written_through_a_link(
    target: str, others: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    folder.symlink_to(others / target)
    with pytest.raises(InputError, match="checkpoint is a symbolic link, which is not followed"):
        train([fedavg()], Checkpoints(folder, 4), seed=0)
    assert contents(others) == {"file": b"another's"}


def test_links_among_checkpoints_are_replaced(others: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in (".0-4.state.partial", "0-8.state", "0-4.state"):
        (folder / name).symlink_to(others / "file")
    (tmp_path / ".checkpoint.removed").symlink_to(others)
    checkpoints = Checkpoints(folder, 4)
    train([fedavg()], checkpoints, seed=0)
    assert contents(others) == {"file": b"another's"}
    assert set(contents(folder)) == {"0-11.state"}
    assert {path.name for path in tmp_path.iterdir()} == {"others", "checkpoint"}


@pytest.mark.parametrize("name", [".git", ".hidden", "checkpoint/model.pt"])
def test_a_folder_with_files_of_others_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(InputError, match="holds other files; name a new or empty folder"):
        RunDirectory(tmp_path, EXPERIMENT)


def test_what_an_ended_process_left_before_its_first_record_is_no_obstacle(tmp_path: Path) -> None:
    for name in (".lock", ".experiment.toml.partial", "checkpoint/0-0.state"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".checkpoint.removed").mkdir()
    write(tmp_path)
    assert (tmp_path / "summary.json").is_file()
