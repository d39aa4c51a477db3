"""LEAF's division by user: the users of test/ are newcomers to the federation of train/."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox import InputError, datasets
from fedprox.experiment import load_data
from tests.datasets.test_datasets import leaf_file, write_leaf

TRAIN: dict[str, tuple[Any, Any]] = {
    "b": ([[0.0, 1.0], [1.0, 0.0]], [0, 1]),
    "a": ([[2.0, 2.0]], [1]),
}
TEST: dict[str, tuple[Any, Any]] = {
    "z": ([[float(i), 5.0] for i in range(4)], [0, 1, 2, 3]),
    "y": ([[9.0, 9.0]], [0]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that was divided by user."""
    return write_leaf(tmp_path / "set", leaf_file(TRAIN), leaf_file(TEST))


def test_training_users_are_the_federation(folder: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        federation = datasets.leaf(str(folder))
    assert federation.names == ("a", "b")
    assert federation.train.sizes.tolist() == [1, 2]
    assert len(federation.test) == 0
    assert federation.classes == 4  # as many as its newcomers have
    (line,) = caplog.messages
    assert line.startswith(f"{folder}: its 2 test users are not among its 2 training users, so ")
    of_file, _ = load_data({"name": "leaf", "path": str(folder)})
    assert of_file.names == federation.names


def test_test_users_are_newcomers(folder: Path) -> None:
    later, half, other = (
        datasets.leaf_newcomers(folder, train_share=share, seed=seed)
        for share, seed in ((0.75, 0), (0.5, 0), (0.75, 3))
    )
    assert later.names == ("y", "z")
    assert later.classes == 4
    assert (later.train.sizes.tolist(), later.test.sizes.tolist()) == ([1, 3], [0, 1])
    assert half.train.sizes.tolist() == [1, 2]
    x, y = later.train.client(1)
    rows = np.concatenate([np.asarray(x)[:, 0], np.asarray(later.test.client(1)[0])[:, 0]])
    assert sorted(rows.tolist()) == [0, 1, 2, 3]
    assert np.asarray(x)[:, 0].tolist() == y.tolist()  # each row has its own label
    assert later.test.client(1)[1].tolist() != other.test.client(1)[1].tolist()


def test_a_partition_tests_on_the_rows_of_newcomers(folder: Path) -> None:
    divided = datasets.leaf(str(folder), partition="iid", clients=3)
    assert (len(divided.train), len(divided.test), divided.classes) == (3, 5, 4)


def test_users_of_both_folders_are_no_newcomers(tmp_path: Path) -> None:
    same = write_leaf(tmp_path / "same", leaf_file(TRAIN), leaf_file(TRAIN))
    with pytest.raises(InputError) as raised:
        datasets.leaf_newcomers(same)
    assert str(raised.value).startswith(f"{same}: user 'a' is in train/ and in test/; newcomers")
    some = write_leaf(tmp_path / "some", leaf_file(TRAIN), leaf_file(TEST | {"a": TRAIN["a"]}))
    with pytest.raises(InputError, match=r"user 'b' is in train/ but not in test/"):
        datasets.leaf(str(some))
    none = write_leaf(tmp_path / "none", leaf_file(TRAIN), leaf_file({}))
    with pytest.raises(InputError, match=r"user 'a' is in train/ but not in test/"):
        datasets.leaf(str(none))


def test_newcomers_need_rows_of_the_same_shape_and_known_classes(tmp_path: Path) -> None:
    wide = write_leaf(tmp_path / "wide", leaf_file(TRAIN), leaf_file({"z": ([[1.0] * 3], [0])}))
    with pytest.raises(InputError, match=r"wide: x of train/ is \(2,\) a row, and of test/ \(3,\)"):
        datasets.leaf_newcomers(wide)
    few = write_leaf(tmp_path / "few", leaf_file(TRAIN), leaf_file(TEST))
    with pytest.raises(InputError, match=r"few/test: client 'z', train: label 2; labels are 0 to"):
        datasets.leaf_newcomers(few, classes=2)
    for share in (0.0, 1.0):
        with pytest.raises(InputError, match="train_share = "):
            datasets.leaf_newcomers(few, train_share=share)
