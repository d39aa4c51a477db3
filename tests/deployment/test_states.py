"""Client state on a node's disk: used only by the run, client and round that it is of, and kept."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprox.deployment.kept import FIRST_LINE, NEW, LostStateError, States, keep_last_runs
from fedprox.files.arrays import check_arrays, read_arrays, write_arrays

STATE = {"c": np.arange(4, dtype=np.float32).reshape(1, 4), "n": np.ones(1, np.int32)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The states of two clients in two runs with two methods, of two rounds each."""
    root = tmp_path_factory.mktemp("states")
    for run in ("run1", "run2"):
        for seed_run in ("0-0", "1-0"):
            for client in ("a", "b"):
                for round_ in (3, 4):
                    States(root / run / seed_run).write(client, round_, STATE)
    return root


def file_of(folder: Path, run: str, seed_run: str, client: str, round_: int) -> Path:
    return States(folder / run / seed_run)._of(client) / f"{round_}.state"


@pytest.mark.parametrize(
    "place", [("run2", "0-0", "a", 4), ("run1", "1-0", "a", 4), ("run1", "0-0", "b", 4)]
)
def test_state_of_another_run_method_or_client_is_lost(
    place: tuple[str, str, str, int], folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "node")
    target = file_of(tmp_path / "node", "run1", "0-0", "a", 4)
    shutil.copy(file_of(folder, *place), target)
    states = States(tmp_path / "node" / "run1" / "0-0")
    with pytest.raises(LostStateError) as lost:
        states.read("a", 4, STATE)
    assert str(lost.value) == (
        f"state of client 'a' after round 5: {target} is not its file, but of another run, client "
        "or round; begin the run anew"
    )
    shutil.copy(file_of(folder, "run1", "0-0", "a", 3), target)
    with pytest.raises(LostStateError, match="but of another run, client or round"):
        states.read("a", 4, STATE)
    read = states.read("a", 3, STATE)
    assert {key: value.tolist() for key, value in read.items()} == {
        key: value.tolist() for key, value in STATE.items()
    }


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "gone": lambda arrays: arrays.pop(),
    "twice": lambda arrays: arrays.append(arrays[0]),
    "in the other's place": lambda arrays: arrays.reverse(),
    "another type": lambda arrays: arrays.append((arrays.pop()[0], np.ones(1, np.float16))),
    "another shape": lambda arrays: arrays.append((arrays.pop()[0], np.ones((1, 1), np.int32))),
    "nothing": lambda arrays: arrays.clear(),
}


@pytest.mark.parametrize("how", CHANGES)
def test_forged_state_is_lost(folder: Path, how: str) -> None:
    path = file_of(folder, "run2", "1-0", "b", 3)
    States(folder / "run2" / "1-0").write("b", 3, STATE)
    arrays = list(read_arrays(path))
    CHANGES[how](arrays)
    head, _ = check_arrays(path)
    assert json.loads(head.removeprefix("fedprox client state 2 ")) == ["run2", "1-0", "b", 3]
    write_arrays(path, head, arrays)
    with pytest.raises(LostStateError, match="holds arrays of other shapes; begin the run anew"):
        States(folder / "run2" / "1-0").read("b", 3, STATE)


@pytest.mark.parametrize(
    ("used", "kept", "left"),
    [
        ([4], [], [4, 5, 10]),
        ([3], [1], [1, 3, 4, 5, 10]),
        ([2, 5], [], [2, 5, 10]),
        ([10], [3, 4], [3, 4, 10]),
        ([NEW], [], [0, 1, 2, 3, 4, 5, 10]),
        # a round that was never stored
        ([7], [], [10]),
    ],
)
def test_rounds_before_the_last_that_was_used_are_forgotten(
    used: list[int], kept: list[int], left: list[int], tmp_path: Path
) -> None:
    states = States(tmp_path / "run1" / "0-0")
    assert states.rounds("a") == []
    for round_ in (10, 3, 4, 5, 0, 1, 2):
        states.write("a", round_, STATE)
    (states._of("a") / "5.state.partial").touch()
    (states._of("a") / "notes.txt").touch()
    states.write("b", 0, STATE)
    states.forget("a", used, kept)
    assert states.rounds("a") == left
    assert states.rounds("b") == [0]
    assert {"5.state.partial", "notes.txt"} <= {path.name for path in states._of("a").iterdir()}
    states.forget("nobody", used, kept)


def test_a_file_that_another_process_removed_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = States(tmp_path / "run1" / "0-0")
    monkeypatch.setattr(states, "_files", lambda client: [tmp_path / client / "1.state"])
    states.forget("a", [2], [])


def test_each_sweep_point_continues_from_its_own_round(tmp_path: Path) -> None:
    states = States(tmp_path / "run1" / "0-0")

    def state(number: int) -> dict[str, Any]:
        return {
            "c": np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * number,
            "n": np.full(3, number, np.int32),
        }

    for round_ in (0, 1, 2):
        states.write("a", round_, state(round_))
    like, fresh = state(0), state(-1)
    for rounds in ([2, 0, NEW], [1, 1, 0], [2, 2, 2], [NEW, NEW, NEW]):
        read = states.read_points("a", rounds, like, fresh)
        assert read["n"].tolist() == rounds
        expected = [state(r)["c"][point].tolist() for point, r in enumerate(rounds)]
        assert read["c"].tolist() == expected
        assert (read["c"].dtype, read["n"].dtype) == (np.float32, np.int32)
    one = jax.tree.map(lambda a: a[:1], fresh)
    assert states.read_points("b", [NEW], like, one) is one
    with pytest.raises(LostStateError, match=r"^state of client 'a' after round 4: .*No such file"):
        states.read_points("a", [2, 3, NEW], like, fresh)


def test_state_is_one_file_of_arrays_in_a_folder_of_its_client(tmp_path: Path) -> None:
    states = States(tmp_path / "run1" / "0-0")
    name = "ward 3/ä-" + "x" * 60
    states.write(name, 7, [jnp.float32(1.5), (np.arange(3), None)])
    (folder,) = (tmp_path / "run1" / "0-0").iterdir()
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    assert folder.name == f"ward_3__-{'x' * 31}-{digest}"
    (file,) = folder.iterdir()
    assert file.name == "7.state"
    assert check_arrays(file)[0] == f'{FIRST_LINE} ["run1", "0-0", {json.dumps(name)}, 7]'
    assert [(keys, array.tolist()) for keys, array in read_arrays(file)] == [
        (["state", "0"], 1.5),
        (["state", "1"], [0, 1, 2]),
    ]
    like = [np.float32(0), (jax.ShapeDtypeStruct((3,), np.int64), None)]
    one, (three, nothing) = states.read(name, 7, like)
    assert (one, three.tolist(), nothing) == (1.5, [0, 1, 2], None)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(LostStateError) as lost:
        states.read(name, 7, like)
    assert str(lost.value) == (
        f"state of client {name!r} after round 8: {file}: damaged, for its checksum does not fit; "
        "begin the run anew"
    )


@pytest.mark.parametrize(("runs", "kept"), [(1, 1), (3, 3), (5, 5), (7, 5)])
def test_the_last_runs_are_kept(runs: int, kept: int, tmp_path: Path) -> None:
    names = [f"run{i}" for i in range(runs)]
    for second, name in enumerate(names):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (second, second))
    keep_last_runs(tmp_path, names[-1], 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == names[-kept:]
    # an old run that is resumed is the last one
    keep_last_runs(tmp_path, "run0", 5)
    others = [name for name in names[-kept:] if name != "run0"]
    assert {path.name for path in tmp_path.iterdir()} == {"run0", *others[-4:]}


def test_only_folders_of_runs_are_removed(tmp_path: Path) -> None:
    node = tmp_path / "new" / "node"
    keep_last_runs(node, "run1", 2)
    assert [path.name for path in node.iterdir()] == ["run1"]
    (node / "spent.json").touch()
    for second, name in enumerate(("run2", "run3")):
        (node / name / "0-0").mkdir(parents=True)
        (node / name / "0-0" / "1.state").touch()
        os.utime(node / name, (second, second))
    keep_last_runs(node, "run1", 2)
    assert {path.name for path in node.iterdir()} == {"run1", "run3", "spent.json"}
    before = time.time()
    os.utime(node / "run3", (0, 0))
    keep_last_runs(node, "run3", 2)
    assert (node / "run3").stat().st_mtime >= before - 1
    # the run that is asked for stays, whatever the clock says
    os.utime(node / "run1", (2 * before, 2 * before))
    keep_last_runs(node, "run3", 1)
    assert {path.name for path in node.iterdir()} == {"run3", "spent.json"}


def test_a_run_that_cannot_be_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run1" / "0-0").mkdir(parents=True)

    def fails(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "rmdir", fails)
    keep_last_runs(tmp_path, "run2", 1)
    assert (tmp_path / "run1").is_dir()
