"""Client state on a node's disk: used only by the run, client and round that it is of, and kept."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox.deployment.states import LostStateError, States, keep_last_runs
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
