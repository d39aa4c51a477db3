"""`clients.jsonl`: what it holds, and that a run that resumes leaves the same file."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.files.whole import append
from fedprox.report.client_lines import BEFORE, ClientLines, client_line
from fedprox.report.directory import RunDirectory
from tests.loop.test_checkpoint import Killed
from tests.report.test_report import record as a_record
from tests.test_cli import LOSSES, status
from tests.variants import mostly_slow

RECORDED = LOSSES.replace("gradients = false", "gradients = false, client_records = true")
RECORDED = RECORDED.replace('[[method]]\nname = "fedavg"\n', "")
"""Two seeds of a sweep over FedProx's mu, evaluated every two rounds of four."""


def run(folder: Path, *settings: str) -> Path:
    """A run directory that the command wrote."""
    folder.mkdir(exist_ok=True)
    (folder / "small.toml").write_text(RECORDED)
    changes = [part for setting in settings for part in ("--set", setting)]
    assert status("run", folder / "small.toml", *changes, "--out", folder / "out") == 0
    return folder / "out"


def lines(folder: Path) -> bytes:
    return (folder / "clients.jsonl").read_bytes()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of four rounds."""
    return run(tmp_path_factory.mktemp("four"))


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of seven rounds, the last of which is evaluated only as the last."""
    return run(tmp_path_factory.mktemp("seven"), "rounds=7")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of three rounds, the last of which a longer run does not evaluate."""
    return run(tmp_path_factory.mktemp("three"), "rounds=3")


def test_there_is_a_line_for_each_record_with_what_on_record_receives(four: Path) -> None:
    table = [json.loads(line) for line in lines(four).splitlines()]
    metrics = [json.loads(line) for line in (four / "metrics.jsonl").read_text().splitlines()]
    key = ("label", "seed", "round")
    assert [[t[k] for k in key] for t in table] == [[m[k] for k in key] for m in metrics]
    last = {(t["label"], t["seed"]): t for t in table}
    for final in json.loads((four / "clients.json").read_text()):  # by another program
        found = last[final["label"], final["seed"]]
        for name in ("clients", "training_rows", "test_rows"):
            assert found[name] == final[name]
        np.testing.assert_allclose(found["test_accuracy"], final["test_accuracy"])
    steps = {k: sum(sum(t["steps"]) for t in group) for k, group in by_run(table).items()}
    for m in metrics:
        if m["round"] == 4:
            assert steps[m["label"], m["seed"]] == m["total_steps"]


def by_run(table: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    """The lines of each (label, seed)."""
    grouped: dict[Any, list[dict[str, Any]]] = {}
    for line in table:
        grouped.setdefault((line["label"], line["seed"]), []).append(line)
    return grouped


def test_a_line_has_null_where_there_is_no_number() -> None:
    clients = fp.ClientRecord(
        ("a", "b"),
        np.array([1, 2]),
        np.array([0, 1]),
        np.array([np.inf, 0.5]),
        np.array([np.nan, 1.0]),
        np.array([1, 0]),
        np.array([3, 0]),
    )
    record = a_record(label="fedavg mu=1", round=5, by_client=clients)
    assert record.by_client is not None
    assert json.loads(client_line(record, record.by_client)) == {
        "label": "fedavg mu=1",
        "seed": 0,
        "round": 5,
        "clients": ["a", "b"],
        "training_rows": [1, 2],
        "test_rows": [0, 1],
        "train_loss": [None, 0.5],
        "test_accuracy": [None, 1.0],
        "rounds": [1, 0],
        "steps": [3, 0],
    }


def test_python_writes_the_same(four: Path, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(RECORDED)
    fp.run(tmp_path / "a.toml", out=tmp_path / "out", progress=False)
    assert lines(tmp_path / "out") == lines(four)


def stop_after(patch: pytest.MonkeyPatch, count: int) -> None:
    """Let the process end as it is about to write the so many-th record."""
    record, left = RunDirectory.record, itertools.count(count - 1, -1)

    def record_or_die(self: RunDirectory, each: fp.Record) -> None:
        if next(left) < 0:
            raise Killed
        record(self, each)

    patch.setattr(RunDirectory, "record", record_or_die)


def resume(out: Path, *settings: str) -> None:
    changes = [part for setting in settings for part in ("--set", setting)]
    assert status("run", "--resume", out, *changes) == 0


@pytest.mark.parametrize("count", mostly_slow((1, 7, 11), 7))
def test_a_run_that_stops_and_resumes_leaves_the_same_file(
    count: int, four: Path, tmp_path: Path
) -> None:
    """12 records; checkpoints after each round, also between evaluations."""
    (tmp_path / "small.toml").write_text(RECORDED)
    out = tmp_path / "out"
    command = ("run", tmp_path / "small.toml", "--out", out, "--checkpoint-every", 1)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, count)
        with pytest.raises(Killed):
            status(*command)
    with (out / "clients.jsonl").open("ab") as file:
        file.write(b'{"label": "torn')
    resume(out)
    assert lines(out) == lines(four)


@pytest.mark.slow
@pytest.mark.parametrize("count", [None, 1, 9, 19])
def test_a_run_that_is_extended_leaves_the_same_file(
    count: int | None, three: Path, seven: Path, tmp_path: Path
) -> None:
    """Also if the extension stops, wherever in its 20 records, and resumes."""
    out = tmp_path / "out"
    shutil.copytree(three, out)
    if count is None:
        resume(out, "rounds=7")
    else:
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, count)
            with pytest.raises(Killed):
                resume(out, "rounds=7")
        assert (out / BEFORE).read_bytes().startswith(lines(three))
        resume(out)
    assert lines(out) == lines(seven)
    assert not (out / BEFORE).exists()


@pytest.mark.slow
def test_lines_that_are_gone_or_changed_are_one_line(
    three: Path, tmp_path: Path, capsys: Any
) -> None:
    """Also if all of their JSON is right."""
    first, second, *others = lines(three).splitlines(keepends=True)
    steps = second.rindex(b"steps")
    digit = next(i for i in range(steps, len(second)) if second[i : i + 1].isdigit())
    other = b"1" if second[digit : digit + 1] != b"1" else b"2"
    changed = second[:digit] + other + second[digit + 1 :]
    for name, content, mu in (
        ("gone", b"", 0),
        ("changed", b"".join([first, changed, *others]), 1),
    ):
        out = tmp_path / name
        shutil.copytree(three, out)
        (out / "clients.jsonl").write_bytes(content)
        capsys.readouterr()
        for _ in range(2):  # and again
            assert status("run", "--resume", out, "--set", "rounds=7") == 2
            assert capsys.readouterr().err.endswith(
                f"{out}/clients.jsonl: the line of 'fedprox mu={mu}', seed 0, round 0 is gone or "
                "was changed; run the experiment anew, without --resume\n"
            )


@pytest.mark.slow
def test_results_that_are_replaced_leave_no_lines(four: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(four, out)
    (out / BEFORE).write_bytes(b"")
    command = ("run", tmp_path / "small.toml", "--set", "seed=0", "--force")
    (tmp_path / "small.toml").write_text(LOSSES)
    assert status(*command, "--out", out) == 0
    assert not (out / "clients.jsonl").exists()
    assert not (out / BEFORE).exists()
    (tmp_path / "small.toml").write_text(RECORDED)
    assert status(*command, "--out", out) == 0
    first = [line for line in lines(four).splitlines() if json.loads(line)["seed"] == 0]
    assert lines(out).splitlines() == first


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "clients.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(fp.InputError, match="is a symbolic link, which is not followed"):
        ClientLines(tmp_path, resumed=True)
    with pytest.raises(fp.InputError, match="is a symbolic link, which is not followed"):
        RunDirectory(tmp_path, {})
    assert (tmp_path / "other").read_text() == "mine"


class Full:
    """A file on a disk with room for three more bytes."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, content: bytes) -> int:
        return int(self.file.write(content[:3]))


def test_a_line_for_which_there_is_no_room_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb", buffering=0) as file:
        append(file, path, b"one\n")
        with pytest.raises(OSError, match="No space left on device") as refused:
            append(Full(file), path, b"another\n")  # type: ignore[arg-type]
        assert refused.value.filename == str(path)
        append(file, path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
