"""Files with a right checksum and wrong contents, which somebody else wrote, do no harm."""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Checkpoints, Evaluation, InputError, fedprox, scaffold
from fedprox.devices.mesh import lane_mesh
from fedprox.engine.storage.client_store import KNOWN, open_store
from fedprox.files.arrays import Damaged, check_arrays, read_arrays, write_arrays
from tests.loop.test_checkpoint import train
from tests.loop.test_damaged_checkpoints import Made

Arrays = list[tuple[list[str], Any]]


def rewrite(path: Path, change: Callable[[Arrays], object]) -> str:
    """Change a file's arrays in place; it gets a right checksum, which is returned."""
    arrays = list(read_arrays(path))
    change(arrays)
    head, _ = check_arrays(path)
    return write_arrays(path, head, arrays)


def rewritten(arrays: Arrays, change: Callable[[Any], Any]) -> None:
    """Change the text of a state."""
    table = change(json.loads(arrays[0][1].tobytes()))
    arrays[0] = (["text"], np.frombuffer(json.dumps(table).encode(), np.uint8))


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys that lead to each value within a value of JSON."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [above, *(place for key, each in inner for place in places(each, (*above, key)))]


VALUES: Sequence[Any] = (
    *(None, True, -1, 0, 1, 3, 2**40, 2**70, 0.5, math.inf, math.nan, "", "a", [], {}),
    *([[]], [None], ["a"], [0], {"a": 1}, {"round": 3}),
)


def changed(table: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A value of JSON in which the value at a place is another."""
    if not place:
        return value
    table = copy.deepcopy(table)
    inner = table
    for key in place[:-1]:
        inner = inner[key]
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
NAMES: Sequence[list[str]] = ([], ["text"], ["[0]"], ["a"], ["[0]", "a"])


@st.composite
def forgeries(draw: st.DrawFn) -> Callable[[Arrays], None]:
    """A change of the arrays of a state."""
    kind = draw(st.sampled_from(["text", "array", "name", "gone", "twice"]))
    number, value = draw(st.floats(0, 1, exclude_max=True)), draw(st.sampled_from(VALUES))
    how, name = draw(st.sampled_from(sorted(CHANGES))), draw(st.sampled_from(NAMES))

    def change_text(table: Any) -> Any:
        found = places(table)
        return changed(table, found[int(number * len(found))], value)

    def change(arrays: Arrays) -> None:
        at = int(number * len(arrays))
        keys, array = arrays[at]
        if kind == "text":
            rewritten(arrays, change_text)
        elif kind == "array":
            arrays[at] = (keys, CHANGES[how](array))
        elif kind == "name":
            arrays[at] = (name, array)
        elif kind == "gone":
            del arrays[at]
        else:
            arrays.append((keys, array))

    return change


OPTIONS: dict[str, Any] = {
    "methods": [fedprox(mu=[0.0, 1.0], adapt=True), scaffold()],
    "seed": 0,
    "evaluation": Evaluation(every=3, client_records=True),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Checkpoints with all kinds of arrays: of a finished run, and of one under way."""
    return Made(tmp_path_factory.mktemp("made") / "checkpoint", **OPTIONS)


@pytest.mark.slow
@given(st.integers(0, 1), forgeries())
@settings(max_examples=50)
def test_forged_states_are_a_result_or_one_line(
    made: Made, number: int, change: Callable[[Arrays], None]
) -> None:
    made.restore()
    rewrite(made.folder / ("0-11.state", "1-8.state")[number], change)
    last, problem = None, str(made.folder)
    try:
        last = made.last(number)
    except InputError as error:
        problem = str(error)
    assert problem.startswith(str(made.folder))
    assert problem.isprintable()
    if last is not None:
        assert last.now.round in ((11,), (8, 4))[number]
        assert len(list(last.records)) % len(last.runs) == 0


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


@pytest.mark.slow
def test_forged_client_state_ends_a_run_in_one_line(made: Made) -> None:
    made.restore()
    clients = made.folder / "1-8.clients-0"
    checksum = rewrite(clients, lambda arrays: arrays.pop())
    trust = partial(rewritten, change=lambda table: table | {"clients": [checksum]})
    rewrite(made.folder / "1-8.state", trust)
    with pytest.raises(InputError) as refused:
        train(**OPTIONS, checkpoints=Checkpoints(made.folder, resume=True))
    assert str(refused.value) == (
        f"{clients}: its block '' of client state is not as it should be; begin anew, without "
        "resuming"
    )
