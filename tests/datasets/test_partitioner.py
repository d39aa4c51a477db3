"""Federations from partitioners with the interface of flwr-datasets, of which one stands here."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedprox import InputError
from fedprox.datasets import from_partitioner


@pytest.fixture(scope="module")
def library() -> Any:
    """The library of the partitions, an optional extra."""
    pytest.importorskip("pyarrow", reason="an optional extra: pip install datasets")
    return pytest.importorskip("datasets", reason="an optional extra: pip install datasets")


class Blocks:
    """A partitioner that gives each partition some rows, as those of flwr-datasets do."""

    def __init__(self, dataset: Any, rows: Sequence[Sequence[int]]) -> None:
        self.dataset, self.rows = dataset, rows

    @property
    def num_partitions(self) -> int:
        """How many there are; it needs the data set, as there."""
        if self.dataset is None:
            raise AttributeError("The dataset field should be set before using it.")
        return len(self.rows)

    def load_partition(self, partition_id: int) -> Any:
        """The rows of a partition."""
        return self.dataset.select(self.rows[partition_id])


class Natural(Blocks):
    """A partitioner by the values of a column."""

    def __init__(self, dataset: Any, column: str) -> None:
        values = np.array(dataset[column])
        self.names = sorted(set(values.tolist()))
        super().__init__(dataset, [np.flatnonzero(values == name).tolist() for name in self.names])

    @property
    def partition_id_to_natural_id(self) -> dict[int, str]:
        """The values by the numbers of their partitions."""
        return dict(enumerate(self.names))


def data_of(library: Any, rows: int = 12) -> Any:
    """A data set whose row i has features i and -i."""
    return library.Dataset.from_dict(
        {
            "x": [[float(i), -float(i)] for i in range(rows)],
            "a": [float(i) for i in range(rows)],
            "y": [("no", "yes")[i % 2] for i in range(rows)],
            "who": [("ann", "bob", "cem")[i % 3] for i in range(rows)],
        }
    )


def first(rows: Any, k: int) -> list[int]:
    """Which rows of the data set a client has."""
    return [int(row[0]) for row in np.asarray(rows.client(k)[0])]


ROWS = [[5, 0, 7], [1], [2, 11]]


def test_a_partition_is_a_client(library: Any) -> None:
    federation = from_partitioner(Blocks(data_of(library), ROWS), "x", "y")
    assert federation.names == ("0", "1", "2")
    assert federation.classes == 2
    assert [first(federation.train, k) for k in range(3)] == ROWS
    labels = [federation.train.client(k)[1].tolist() for k in range(3)]
    assert labels == [[row % 2 for row in rows] for rows in ROWS]
    assert len(federation.test) == 0
    x, _ = federation.train.client(0)
    np.testing.assert_array_equal(x, [[5, -5], [0, 0], [7, -7]])


def test_values_of_a_column_name_clients(library: Any) -> None:
    federation = from_partitioner(Natural(data_of(library), "who"), ["a"], "y")
    assert federation.names == ("ann", "bob", "cem")
    assert [first(federation.train, k) for k in range(3)] == [
        [k, k + 3, k + 6, k + 9] for k in range(3)
    ]


def test_a_share_of_each_clients_rows_is_to_test_on(library: Any) -> None:
    partitioner = Natural(data_of(library), "who")
    federation, again, other = (
        from_partitioner(partitioner, "x", "y", test=0.25, seed=seed) for seed in (0, 0, 5)
    )
    for k in range(3):
        train, test = first(federation.train, k), first(federation.test, k)
        assert (len(train), len(test)) == (3, 1)
        assert sorted(train + test) == [k, k + 3, k + 6, k + 9]
    held, same, others = (
        [first(each.test, k) for k in range(3)] for each in (federation, again, other)
    )
    assert held == same != others


def test_another_partitioner_has_the_test_rows(library: Any) -> None:
    data, more = data_of(library), data_of(library, 30).select(range(20, 30))
    test = Blocks(more, [[9], [], [0, 4]])
    federation = from_partitioner(Blocks(data, ROWS), "x", "y", test=test)
    assert [first(federation.train, k) for k in range(3)] == ROWS
    assert [first(federation.test, k) for k in range(3)] == [[29], [], [20, 24]]


def test_what_cannot_be_used_is_said(library: Any) -> None:
    data = data_of(library)
    good = Blocks(data, ROWS)
    transformed = Blocks(data.with_transform(lambda batch: batch), ROWS)
    for partitioner, options, line in (
        (data, {}, "partitioner: an object of type Dataset; it must be a partitioner of flwr-data"),
        (
            Blocks(None, ROWS),
            {},
            "partitioner: Blocks has no partitions to load: The dataset field",
        ),
        (Blocks(data, [[1], []]), {}, "partitioner: partition '1' has no rows to train on"),
        (Blocks(data, []), {}, "partitioner: no partitions"),
        (transformed, {}, "partitioner: it has a transform"),
        (good, {"features": "z"}, "partitioner: no column 'z'; it has x, a, y, who"),
        (good, {"features": []}, "data.features = []; at least one column is needed"),
        (good, {"label": "x"}, "partitioner: column 'x' cannot be the label; "),
        (good, {"test": 1.0}, "test = 1.0; it must be above 0 and below 1"),
        (good, {"test": 0}, "test = 0; "),
        (good, {"test": "all"}, "test: an object of type str; it must be a partitioner"),
        (
            good,
            {"test": Blocks(data, ROWS[:2])},
            "test: its partitions are not those of the partit",
        ),
    ):
        given: dict[str, Any] = {"features": "x", "label": "y"} | options
        with pytest.raises(InputError) as raised:
            from_partitioner(partitioner, **given)
        assert str(raised.value).startswith(line)


def test_a_partitioner_of_something_else_is_refused(library: Any) -> None:
    class Lists:
        num_partitions = 1

        def load_partition(self, partition_id: int) -> list[int]:
            return [partition_id]

    del library
    with pytest.raises(InputError, match=r"^partitioner: a partition is of type list; it must be"):
        from_partitioner(Lists(), "x", "y")


@pytest.mark.parametrize("kind", ["IidPartitioner", "NaturalIdPartitioner"])
def test_a_partitioner_of_flwr_datasets(kind: str, library: Any) -> None:
    real = pytest.importorskip("flwr_datasets.partitioner", reason="pip install flwr-datasets")
    data = data_of(library)
    partitioner = (
        real.IidPartitioner(num_partitions=3)
        if kind == "IidPartitioner"
        else real.NaturalIdPartitioner(partition_by="who")
    )
    partitioner.dataset = data
    federation = from_partitioner(partitioner, "x", "y")
    names = ("0", "1", "2") if kind == "IidPartitioner" else ("ann", "bob", "cem")
    assert federation.names == names
    expected = [partitioner.load_partition(k)["a"] for k in range(3)]
    assert [first(federation.train, k) for k in range(3)] == [
        list(map(int, each)) for each in expected
    ]
