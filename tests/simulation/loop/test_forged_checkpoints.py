"""Files with a right checksum in a wrong place, or with wrong contents, are refused in one line."""

import copy
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Checkpoints, Evaluation, InputError, fedprox, scaffold
from fedprox.files.arrays import Damaged, check_arrays, read_arrays, write_arrays
from fedprox.simulation.devices.mesh import lane_mesh
from fedprox.simulation.loop.snapshot import Fingerprint, Snapshot
from fedprox.simulation.storage.client_store import KNOWN, open_store
from tests.simulation.loop.test_checkpoint import train

ELSEWHERE = "a file of another place; put the right one back, or begin anew, without resuming"


class Made:
    """The checkpoints and last states of a comparison, to be changed and restored."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.ends = folder / "checkpoint", folder / "state"
        begin = Checkpoints.begin

        def noting(made: Checkpoints, comparison: Fingerprint) -> Snapshot:
            self.comparison = comparison
            return begin(made, comparison)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "begin", noting)
            train(checkpoints=Checkpoints(self.folder, 4, ends=self.ends), **options)
        shutil.copytree(folder, folder.with_name("whole"))

    def restore(self) -> None:
        shutil.rmtree(self.folder.parent)
        shutil.copytree(self.folder.parent.with_name("whole"), self.folder.parent)

    def resumed(self) -> Checkpoints:
        return Checkpoints(self.folder, resume=True, ends=self.ends)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made") / "run"
    return Made(folder, methods=[scaffold()])


MOVES = [
    ("16.clients-0", "20.clients-0", "not the client state of {folder}/20.state"),
    ("16.state", "20.state", "a checkpoint of step 16"),
    ("../state/1-11.clients-0", "20.clients-0", "not the client state of {folder}/20.state"),
    ("../state/0-11.state", "20.state", "a checkpoint of step 11"),
    (
        *("../state/1-11.state", "20.state"),
        "holds 'scaffold learning_rate=0.05', seed 1, where 'scaffold learning_rate=0.05', seed 0, "
        "belongs",
    ),
]


@pytest.mark.parametrize(("source", "target", "problem"), MOVES)
def test_a_checkpoint_of_another_round_is_refused(
    source: str, target: str, problem: str, made: Made
) -> None:
    made.restore()
    shutil.copy(made.folder / source, made.folder / target)
    with pytest.raises(InputError) as refused:
        made.resumed().begin(made.comparison)
    line = f"{made.folder / target}: {problem.format(folder=made.folder)}: {ELSEWHERE}"
    assert str(refused.value) == line


def test_last_states_of_another_seed_are_refused(made: Made) -> None:
    """By the run, which is not extended with another seed's numbers."""
    for kind, problem in {
        "clients-0": f"not the client state of {made.ends}/0-11.state: {ELSEWHERE}",
        "state": "holds 'scaffold learning_rate=0.05', seed 1, where 'scaffold "
        f"learning_rate=0.05', seed 0, belongs: {ELSEWHERE}",
    }.items():
        made.restore()
        shutil.copy(made.ends / f"1-11.{kind}", made.ends / f"0-11.{kind}")
        shutil.rmtree(made.folder)
        with pytest.raises(InputError) as refused:
            train([scaffold()], made.resumed(), rounds=12)
        assert str(refused.value) == f"{made.ends}/0-11.{kind}: {problem}"


# Contents that somebody else wrote


def rewrite(path: Path, change: Callable[[list[tuple[list[str], Any]]], object]) -> str:
    """Change a file's arrays in place; it gets a right checksum, which is returned."""
    arrays = list(read_arrays(path))
    change(arrays)
    head, _ = check_arrays(path)
    return write_arrays(path, head, arrays)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys that lead to each value within a value of JSON."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [above, *(place for key, each in inner for place in places(each, (*above, key)))]


GONE = object()
VALUES: Sequence[Any] = (
    *(GONE, None, True, -1, 0, 1, 3, 2**40, 2**70, 0.5, math.inf, math.nan, "", "a", [], {}),
    *([[]], [None], ["a"], [0], {"a": 1}, {"round": 3}),
)


def changed(table: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A value of JSON in which the value at a place is another, or gone."""
    if not place:
        return {} if value is GONE else value
    table = copy.deepcopy(table)
    inner = table
    for key in place[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return table


CHANGES: dict[str, Callable[[Any], Any]] = {
    "another type": lambda a: a.astype(np.float16),
    "whole numbers": lambda a: np.nan_to_num(np.asarray(a, float)).astype(np.int64),
    "flags": lambda a: a.astype(bool),
    "flat": lambda a: a.reshape(-1),
    "one axis more": lambda a: a[None],
    "shorter": lambda a: a.reshape(-1)[:-1],
    "nothing": lambda a: a.reshape(-1)[:0],
    "negative": lambda a: np.full_like(a, -1 if a.dtype.kind != "u" else 255),
    "large": lambda a: np.full_like(a, np.iinfo(a.dtype).max if a.dtype.kind in "iu" else 1e30),
    "transposed": lambda a: a.T,
}
NAMES: Sequence[list[str]] = (
    [],
    ["state"],
    ["position"],
    ["state", "0"],
    ["a"],
    ["state", "0", "a"],
)


@st.composite
def forgeries(draw: st.DrawFn) -> Callable[[list[tuple[list[str], Any]]], None]:
    """A change of the arrays of a state."""
    kind = draw(st.sampled_from(["position", "array", "name", "gone", "twice"]))
    number, value = draw(st.floats(0, 1, exclude_max=True)), draw(st.sampled_from(VALUES))
    how, name = draw(st.sampled_from(sorted(CHANGES))), draw(st.sampled_from(NAMES))

    def change(arrays: list[tuple[list[str], Any]]) -> None:
        at = int(number * len(arrays))
        keys, array = arrays[at]
        if kind == "position":
            at = next(i for i, (keys, _) in enumerate(arrays) if keys == ["position"])
            table = json.loads(arrays[at][1].tobytes())
            found = places(table)
            table = changed(table, found[int(number * len(found))], value)
            arrays[at] = (["position"], np.frombuffer(json.dumps(table).encode(), np.uint8))
        elif kind == "array":
            arrays[at] = (keys, CHANGES[how](array))
        elif kind == "name":
            arrays[at] = (name, array)
        elif kind == "gone":
            del arrays[at]
        else:
            arrays.append((keys, array))

    return change


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Checkpoints with all kinds of arrays: of a finished run, and of one under way."""
    return Made(
        tmp_path_factory.mktemp("adapted") / "run",
        methods=[fedprox(mu=[0.0, 1.0], adapt=True), scaffold()],
        seed=0,
        evaluation=Evaluation(every=3, client_records=True),
    )


@given(forgeries())
@settings(max_examples=150)
def test_forged_states_are_a_result_or_one_line(
    adapted: Made, change: Callable[[list[tuple[list[str], Any]]], None]
) -> None:
    adapted.restore()
    (adapted.folder / "16.state").unlink()
    rewrite(adapted.folder / "20.state", change)
    problem, snapshot = f"{adapted.folder}", None
    try:
        snapshot = adapted.resumed().begin(adapted.comparison)
    except InputError as error:
        problem = str(error)
    assert problem.startswith(str(adapted.folder))
    assert problem.isprintable()
    if snapshot is not None:
        assert (snapshot.round, len(list(snapshot.records))) == (8, 26)


@pytest.mark.parametrize(
    "line",
    [
        *("", "[]", "{}", '"a"', "1", "[1, 2, 3]", "\xff", "[" * 100_000, "9" * 5000),
        *('[["a"], "object", [1]]', '[["a"], "a5", [1]]', '[["a"], "V5", [1]]'),
        *('["a", "int8", []]', '[[1], "int8", [1]]', '[["a"], 1, [1]]', '[["a"], "f4,f4", [1]]'),
        *('[["a"], "int8", [-1]]', '[["a"], "int8", [1000]]', '[["a"], "int8", [1.0]]'),
        *('[["a"], "int8", [true]]', f'[["a"], "int8", [{2**62}]]', f'[["a"], "int8", {[0] * 99}]'),
        *(f'[["a"], "int64", [0, {2**61}, {2**61}]]', f'[["a"], "int8", [0, {10**20}]]'),
        *('[["a"], "int99", [1]]', f'[["a"], "int8", {[9] * 200_000}]'),
    ],
)
def test_an_array_that_is_described_wrongly_is_one_line(line: str, tmp_path: Path) -> None:
    content = f"head\n{line}\n".encode("latin-1") + bytes(8)
    (tmp_path / "a").write_bytes(content + hashlib.sha256(content).digest())
    assert check_arrays(tmp_path / "a")[0] == "head"
    with pytest.raises(Damaged) as refused:
        list(read_arrays(tmp_path / "a"))
    assert str(refused.value) == (
        f"{tmp_path / 'a'}: damaged, although its checksum fits: an array is not described as it "
        "should be"
    )


KEPT = [
    (KNOWN, np.array([True, False, True, False, True])),
    ("0-0-9", np.ones((3, 1, 2), np.float32)),
    ("1-0-9", np.ones((3, 1), np.float32)),
]


@given(
    st.sampled_from(["host", "device"]),
    st.integers(0, 2),
    st.sampled_from([*CHANGES, "gone", "twice", "all", "1-1-9", "-1-0-9", "7-0-9", "a", "0-0-9"]),
)
def test_forged_client_state_is_restored_or_damaged(where: str, at: int, how: str) -> None:
    blocks = list(KEPT)
    name, array = blocks[at]
    if how == "gone":
        del blocks[at]
    elif how == "twice":
        blocks.append(blocks[at])
    elif how == "all":
        blocks[0] = (KNOWN, np.ones(5, bool))
    elif how in CHANGES and array.dtype != bool:
        blocks[at] = (name, CHANGES[how](array))
    elif how not in CHANGES:
        blocks[at] = (how, array)
    if [(n, a.dtype, a.shape) for n, a in blocks] == [(n, a.dtype, a.shape) for n, a in KEPT]:
        return
    initial = {"c": np.zeros((1, 2), np.float32), "d": np.zeros(1, np.float32)}
    store = open_store(where, initial, range(5), lane_mesh(1), 4)  # type: ignore[arg-type]
    with pytest.raises(Damaged):
        store.restore(blocks)


def test_forged_client_state_ends_a_run_in_one_line(made: Made) -> None:
    made.restore()
    clients = made.folder / "20.clients-0"
    checksum = rewrite(clients, lambda arrays: arrays.pop())

    def trust(arrays: list[tuple[list[str], Any]]) -> None:
        at = next(i for i, (keys, _) in enumerate(arrays) if keys == ["position"])
        table = json.loads(arrays[at][1].tobytes()) | {"clients": [checksum]}
        arrays[at] = (["position"], np.frombuffer(json.dumps(table).encode(), np.uint8))

    rewrite(made.folder / "20.state", trust)
    shutil.rmtree(made.ends)
    with pytest.raises(InputError) as refused:
        train([scaffold()], made.resumed())
    assert str(refused.value) == (
        f"{clients}: its block '' of client state is not as it should be; begin anew, without "
        "resuming"
    )
