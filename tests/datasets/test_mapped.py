"""Federations mapped from files: what is written is read, and a bad folder is one clear line."""

import dataclasses
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from fedprox import Examples, Federation, InputError, Rows, Windows
from fedprox.datasets import mapped, synthetic, write_mapped
from fedprox.features import named_leaves
from fedprox.federation import offsets_of
from fedprox.files.mapping import MappedFile, copy_stretches, map_file

Array = NDArray[Any]
FEW = [([[0.0, 1.0]] * 3, [0, 1, 2]), ([[2.0, 3.0]], [0])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients with test rows."""
    write_mapped(tmp_path / "few", FEW, [([], []), ([[4.0, 5.0]], [1])])
    return tmp_path / "few"


def test_a_federation_comes_back_as_it_was(tmp_path: Path) -> None:
    whole = synthetic(clients=5)
    named = Federation(whole.train, whole.test, whole.classes, ("a", "b", "ü", "", "e"))
    for federation in (whole, named):
        path = tmp_path / federation.names[0]
        write_mapped(path, federation)
        found = mapped(path.name, classes=10, data_dir=tmp_path)
        assert list(found.names) == list(federation.names)
        assert found.classes == federation.classes
        for rows, others in (
            (found.train, federation.train),
            (found.test, federation.test),
        ):
            assert isinstance(rows.x, np.memmap)
            assert isinstance(rows.y, np.memmap)
            for array, other in zip(vars(rows).values(), vars(others).values(), strict=True):
                np.testing.assert_array_equal(array, other)
                assert array.dtype == other.dtype
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0", "a"]


def test_clients_without_test_rows_need_no_files(folder: Path) -> None:
    for file in folder.glob("test_*"):
        file.unlink()
    assert mapped(str(folder)).test.sizes.tolist() == [0, 0]


def test_numbers_are_kept_small(tmp_path: Path) -> None:
    x, labels = np.ones((2, 4), np.float16), np.array([[3, -1]] * 2)
    write_mapped(tmp_path / "small", [(x, labels), (x, labels)], [([], []), ([], [])])
    found = mapped(str(tmp_path / "small"))
    assert [a.dtype.str for a in (found.train.x, found.train.y)] == ["<f2", "<i4"]
    assert (found.test.x.shape, found.test.y.shape, found.classes) == ((0, 4), (0, 2), 4)
    numbers = [(np.ones((2, 4), np.uint8), np.array([0.5, 1.5]))]
    write_mapped(tmp_path / "numbers", numbers)
    assert mapped(str(tmp_path / "numbers")).classes == 0


@pytest.mark.parametrize("order", [">", "<"])
def test_numbers_of_either_byte_order_come_back(order: str, tmp_path: Path) -> None:
    x, y = np.array([[1.5, 2], [3, 4]], f"{order}f4"), np.array([0, 300], f"{order}i2")
    write_mapped(tmp_path / "new", [(x, y)])
    train = mapped(str(tmp_path / "new")).train
    np.testing.assert_array_equal(np.asarray(train.x), x)
    assert train.y.tolist() == [0, 300]


def test_writing_takes_the_memory_of_a_client(tmp_path: Path) -> None:
    def clients() -> Iterator[tuple[Array, Array]]:
        for k in range(200):
            yield np.full((100, 250), k, np.float32), np.full(100, k % 7)

    tracemalloc.start()
    write_mapped(tmp_path / "many", clients())
    found = mapped(str(tmp_path / "many"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.train.x.nbytes == 200 * 100 * 250 * 4
    assert peak < found.train.x.nbytes / 20
    assert found.train.client(123)[0][0, 0] == 123


LEFT, RIGHT = np.arange(4.0)[:, None], np.arange(8, dtype=np.uint8).reshape(4, 2)
SEVERAL = {"left": LEFT, "right": (RIGHT, LEFT[:, 0])}
FILES = ["left", "right.0", "right.1"]


def rows_of(x: Any, first: int, last: int) -> Any:
    return jax.tree.map(lambda a: a[first:last], x)


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Two clients with several inputs, and with test rows of one."""
    train = [(rows_of(SEVERAL, 0, 3), [0, 1, 2]), (rows_of(SEVERAL, 3, 4), [0])]
    write_mapped(tmp_path / "several", train, [([], []), (rows_of(SEVERAL, 1, 2), [1])])
    return tmp_path / "several"


def test_several_inputs_have_a_file_each(several: Path, tmp_path: Path) -> None:
    names = [f"{part}x.{name}" for part in ("", "test_") for name in FILES]
    names += ["offsets", "y", "test_offsets", "test_y"]
    assert sorted(p.stem for p in several.iterdir()) == sorted(names)
    found = mapped(str(several))
    expected = jax.tree.map(lambda a: a.astype("f4") if a.dtype == "f8" else a, SEVERAL)
    validation = Examples(rows_of(found.train.x, 0, 2), np.array([2, 2], np.int32))
    write_mapped(tmp_path / "again", dataclasses.replace(found, validation=validation))
    again = mapped(str(tmp_path / "again"))
    assert again.validation is not None
    for federation in (found, again):
        for x, like in (
            (federation.train.x, expected),
            (federation.test.x, rows_of(expected, 1, 2)),
            (again.validation.x, rows_of(expected, 0, 2)),
        ):
            leaves, others = map(named_leaves, (x, like))
            assert list(leaves) == list(others) == FILES
            for name, array in leaves.items():
                np.testing.assert_array_equal(array, others[name])
                assert array.dtype == others[name].dtype
                assert isinstance(array, np.memmap)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("test_x.right.0", None, "several/test_x.right.0.npy: missing"),
        ("x.right.0", RIGHT[:3], "several/y.npy: 4 labels for the 3 rows of x.right.0.npy"),
        ("x.right.0", RIGHT[:, :1], r"test_x.right.0.npy: rows of uint8 \(2,\); those to train on"),
        ("x", RIGHT, "several: x: arrays named .'', 'left', 'right.0', 'right.1'., which form no"),
        ("x.a b", RIGHT, "several: x: arrays named .'a b', 'left', 'right.0', 'right"),
        ("x.right.3", RIGHT, "several: x.right: arrays named .'0', '1', '3'., which form no tree"),
    ],
)
def test_a_bad_folder_of_several_inputs_is_one_clear_line(
    several: Path, name: str, array: Any, message: str
) -> None:
    path = several / f"{name}.npy"
    if array is None:
        path.unlink()
    else:
        np.save(path, array)
    with pytest.raises(InputError, match=message) as error:
        mapped(str(several))
    assert "\n" not in str(error.value)


def replaced(name: str, array: Any) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / f"{name}.npy", np.asarray(array))


def cut(name: str, size: int) -> Callable[[Path], None]:
    def shorten(folder: Path) -> None:
        content = (folder / f"{name}.npy").read_bytes()
        (folder / f"{name}.npy").write_bytes(content[:size])

    return shorten


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / f"{name}.npy").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("x"), "data.path: no x.npy in "),
        (without("y"), "few/y.npy: missing"),
        (without("test_y"), "few/test_y.npy: missing"),
        (cut("x", 0), "few/x.npy: not an array that can be mapped"),
        (cut("x", 50), "few/x.npy: not an array that can be mapped"),
        (cut("x", 140), "few/x.npy: not an array that can be mapped"),
        (replaced("x", np.array([{}] * 4)), "few/x.npy: not an array that can be mapped"),
        (
            replaced("x", np.zeros((4, 2))),
            "few/x.npy: numbers of type <f8; they must be .* 32 bits",
        ),
        (replaced("x", np.zeros((4, 2), ">f4")), "few/x.npy: numbers of type >f4"),
        (replaced("x", np.array(["a"] * 4)), "few/x.npy: numbers of type <U1"),
        (replaced("x", np.zeros((4, 2), "f4", order="F")), "few/x.npy: in Fortran's order"),
        (replaced("x", np.float32(1)), "few/x.npy: a single number"),
        (replaced("x", np.zeros((4, 0), "f4")), r"few/x.npy: shape \(4, 0\); no features"),
        (replaced("x", np.zeros((3, 2), "f4")), "few/y.npy: 4 labels for the 3 rows of x.npy"),
        (replaced("y", np.zeros((4, 0), "i4")), r"few/y.npy: shape \(4, 0\); no labels"),
        (
            replaced("y", np.array([0, 1, -1, 0], "i4")),
            "few/y.npy: labels from -1 to 1; labels are",
        ),
        (replaced("test_x", np.zeros((1, 3), "f4")), r"test_x.npy: rows of float32 \(3,\); those"),
        (replaced("test_y", np.zeros(1, "f4")), r"test_y.npy: rows of float32 \(\); those"),
        (replaced("offsets", [[0, 4]]), r"offsets.npy: shape \(1, 2\); it must be \(clients"),
        (replaced("offsets", [0.0, 4.0]), "offsets.npy: numbers of type <f8; they must be whole"),
        (
            replaced("offsets", [0, 3, 5]),
            "offsets.npy: from 0 to 5; they must rise from 0 to the 4",
        ),
        (replaced("offsets", [0, 4, 3, 4]), "offsets.npy: from 0 to 4; they must rise"),
        (replaced("offsets", [0, 4, 4]), "client '1': no training rows; one is needed"),
        (replaced("offsets", [0, 1, 2, 4]), "test_offsets.npy: 2 clients; offsets.npy has 3"),
        (replaced("names", [1, 2]), r"names.npy: int64 of shape \(2,\); it must be a string"),
        (replaced("names", ["a"]), r"names.npy: <U1 of shape \(1,\); it must be a string"),
        (replaced("names", np.array([{}] * 2)), "names.npy: not an array that can be mapped"),
        (replaced("names", ["a", "a"]), "names.npy: a name appears twice"),
        (
            replaced("y", np.array([0, 1, 10_000, 0], "i4")),
            "few/y.npy: labels from 0 to 10000; labels are 0 to 9999; for more, give data.cl",
        ),
    ],
)
def test_a_bad_folder_is_one_clear_line(
    folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder)
    with pytest.raises(InputError, match=message) as error:
        mapped(str(folder))
    assert "\n" not in str(error.value)


def test_a_label_that_is_no_class_count(folder: Path) -> None:
    for classes in (0, True, 2.5):
        with pytest.raises(InputError, match=r"data\.classes"):
            mapped(str(folder), classes=classes)  # type: ignore[arg-type]
    assert mapped(str(folder), classes=7).classes == 7


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "no clients; at least one is needed"),
        ([([[1.0]], [0]), ([], [])], "client 1, train: no rows"),
        ([([[1.0]], [0]), ([[1.0, 2.0]], [0])], r"client 1, train: rows of float32 \(2,\)"),
        ([([[1.0]], [0]), ([[1]], [0])], r"client 1, train: rows of int32 \(1,\)"),
        ([([[1.0], [2.0]], [0])], "client 0, train: 2 rows and 1 label"),
        ([([[1.0], [2.0, 3.0]], [0, 1])], "client 0, train: features: ragged rows"),
        ([(None, [0])], "client 0, train: features: an object of type NoneType; an array of n"),
        ([([[1.0]], [0], [0])], "client 0, train: an object of type tuple of length 3; each"),
        ([([[1.0]], np.ma.array([0]))], "client 0, train: labels: a masked array, whose mask"),
        ([([[1.0]], [[]])], "client 0, train: one label is needed"),
        ([([[]], [0])], "client 0, train: one feature is needed"),
        ([([["a"]], [0])], "client 0, train: features of type <U1; they must be num"),
        ([([[1.0]], [2**31])], "client 0, train: labels: a number beyond 32 bits"),
        ([([[1e39]], [0])], "client 0, train: features: a number beyond 32 bits"),
        ([([[1.0]], [-1e39])], "client 0, train: labels: a number beyond 32 bits"),
        ([({"a": [1.0]}, [0]), ([1.0], [0])], "client 1, train: features are one array; the firs"),
        ([({"a": [1.0]}, [0, 1])], "client 0, train, features.a: 1 row and 2 labels"),
        (
            [({"a": [1.0]}, [0]), ({"a": [1]}, [0])],
            r"client 1, train, features.a: rows of int32 \(\); the first client's are of float32",
        ),
    ],
)
def test_clients_that_do_not_fit_leave_nothing(tmp_path: Path, clients: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_mapped(tmp_path / "new", clients)
    assert not list(tmp_path.iterdir())


def test_rows_are_read_by_any_way_that_there_is(folder: Path) -> None:
    whole = mapped(str(folder)).train.x
    first, size, place = np.array([3, 0, 1]), np.array([1, 2, 0]), np.array([0, 2, 2])
    expected = np.array([[2.0, 3.0], [0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    part, plain = whole[:], np.array(whole)
    assert isinstance(whole, MappedFile)
    assert isinstance(part, MappedFile)
    assert (whole.file is not None, part.file) == (True, None)
    for source in (whole, part, plain):
        np.testing.assert_array_equal(copy_stretches(source, first, size, place, 5), expected)
    assert copy_stretches(whole, first[:0], size[:0], place[:0], 0).shape == (0, 2)


def test_stretches_are_asked_for_once_before_they_are_read_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(900, dtype=np.int16).reshape(300, 3)
    np.save(tmp_path / "rows.npy", rows)
    source, log, ask, read = map_file(tmp_path / "rows.npy"), [], os.posix_fadvise, os.preadv

    def asked(file: int, first: int, length: int, advice: int) -> None:
        log.append(("ask", first, length))
        ask(file, first, length, advice)

    def got(file: int, buffers: list[Any], first: int) -> int:
        log.append(("read", first, sum(buffer.nbytes for buffer in buffers)))
        return read(file, buffers, first)

    monkeypatch.setattr(os, "posix_fadvise", asked)
    monkeypatch.setattr(os, "preadv", got)
    first, size = np.arange(0, 300, 2), np.arange(150) % 3
    copied = copy_stretches(source, first, size, offsets_of(size)[:-1], int(size.sum()))
    expected = [rows[f : f + n] for f, n in zip(first, size, strict=True)]
    np.testing.assert_array_equal(copied, np.concatenate(expected))
    asks, reads = ([each[1:] for each in log if each[0] == what] for what in ("ask", "read"))
    assert asks == reads
    assert len(reads) == np.count_nonzero(size)
    for place in asks:
        assert log.index(("ask", *place)) < log.index(("read", *place))


def test_a_file_that_is_cut_short_meanwhile_is_one_line(folder: Path) -> None:
    whole = mapped(str(folder)).train.x
    cut("x", 140)(folder)
    with pytest.raises(InputError, match=r"x\.npy: shorter than it was"):
        copy_stretches(whole, np.array([3]), np.array([1]), np.array([0]), 1)


def test_what_cannot_be_written_is_said(folder: Path) -> None:
    with pytest.raises(InputError, match="few: exists already; name a new folder"):
        write_mapped(folder, FEW)
    with pytest.raises(InputError, match=r"few/x.npy/new: cannot be written"):
        write_mapped(folder / "x.npy" / "new", FEW)
    with pytest.raises(InputError, match="new: 2 clients to train on, 1 to test"):
        write_mapped(folder / "new", FEW, FEW[:1])
    windows = Rows(Windows(np.zeros(9, np.uint8), np.arange(4), 3), np.zeros(4), offsets_of([4]))
    with pytest.raises(InputError, match="features must be arrays"):
        write_mapped(folder / "new", Federation(windows, windows, 2, ("a",)))
