"""Any partition of labelled rows, and of LEAF folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Examples, InputError, datasets
from fedprox.datasets.labelled import PARTITION_OPTIONS, PARTITIONS, divide
from tests.datasets.test_datasets import leaf_file, write_leaf

NUMBERS = {"classes_per_client": 2, "concentration": 0.8, "size_spread": 0.3}


def numbers(partition: str, clients: int) -> dict[str, float]:
    """What a partition needs."""
    return {name: NUMBERS.get(name, clients) for name in PARTITION_OPTIONS[partition]}


@pytest.mark.parametrize("partition", PARTITIONS)
@settings(max_examples=12)
@given(clients=st.integers(2, 8), seed=st.integers(0, 99))
def test_no_row_goes_to_two_clients_and_none_is_lost_or_loses_its_label(
    partition: Any, clients: int, seed: int
) -> None:
    stream = np.random.default_rng(seed)
    y, test_y = (stream.permutation(np.repeat(np.arange(4), n)) for n in (25, 12))
    train = Examples(np.arange(100)[:, None], y)
    test = Examples(np.arange(48)[:, None], test_y)
    uses_all = partition != "power-law"  # which rounds down
    clients = clients if uses_all else 4 * (1 + clients % 2)
    given_numbers = numbers(partition, clients)
    federation = divide(train, test, partition, given_numbers, classes=4, seed=seed)
    assert len(federation) == clients
    assert federation.classes == 4
    for rows, whole in ((federation.train, train), (federation.test, test)):
        used = rows.x[:, 0].tolist()
        assert len(set(used)) == len(used)
        assert len(used) == len(whole.y) or not uses_all
        assert rows.y.tolist() == whole.y[rows.x[:, 0]].tolist()
    for k in range(clients):
        held, tested = (set(r.client(k)[1].tolist()) for r in (federation.train, federation.test))
        assert tested <= held
    again = divide(train, test, partition, given_numbers, classes=4, seed=seed)
    assert np.array_equal(again.train.x, federation.train.x)
    assert np.array_equal(again.test.x, federation.test.x)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_no_test_row_is_lost_though_no_client_trains_on_its_class(partition: Any) -> None:
    train = Examples(np.zeros((100, 1)), np.arange(100) % 2)
    test = Examples(np.arange(60.0)[:, None], np.arange(60) % 4)
    federation = divide(train, test, partition, numbers(partition, 4), classes=4, seed=0)
    assert sorted(federation.test.x[:, 0].tolist()) == list(range(60))
    assert federation.test.y.tolist() == (federation.test.x[:, 0] % 4).tolist()


def test_training_rows_that_a_partition_leaves_out_are_counted(caplog: Any) -> None:
    rows = Examples(np.zeros((1000, 1)), np.arange(1000) % 4)
    federation = divide(rows, rows, "power-law", {"clients": 8}, classes=4, seed=0)
    left = 1000 - len(federation.train)
    assert left > 0
    assert caplog.messages == [
        f"data.partition = 'power-law' leaves out {left} of the 1000 training rows"
    ]


def test_labels_that_are_not_classes_are_dealt_evenly() -> None:
    rows = Examples(np.arange(20.0)[:, None], np.linspace(0, 1, 20))
    few = Examples(rows.x[:3], rows.y[:3])
    federation = divide(rows, few, "iid", {"clients": 4}, classes=0, seed=0)
    assert federation.train.sizes.tolist() == [5] * 4
    assert federation.test.sizes.sum() == 3
    np.testing.assert_allclose(federation.train.y, federation.train.x[:, 0] / 19)


def test_a_leaf_folder_can_be_divided_anew(tmp_path: Path) -> None:
    def users(begin: int) -> dict[str, Any]:
        ids = range(begin, begin + 40)
        rows = {u: [i for i in ids if i % 5 == u] for u in range(5)}
        return leaf_file(
            {f"u{u}": ([[float(i)] for i in r], [i % 4 for i in r]) for u, r in rows.items()}
        )

    path = str(write_leaf(tmp_path / "set", users(0), users(100)))
    whole = datasets.leaf(path)
    assert whole.names == ("u0", "u1", "u2", "u3", "u4")
    for partition in PARTITIONS.keys() - {"power-law"}:
        options: dict[str, Any] = numbers(partition, 4)
        federation = datasets.leaf(path, partition=partition, **options)  # type: ignore[arg-type]
        assert (len(federation), federation.classes) == (4, 4)
        for part, begin in ((federation.train, 0), (federation.test, 100)):
            assert sorted(part.x[:, 0].tolist()) == list(range(begin, begin + 40))
            assert part.y.tolist() == (part.x[:, 0] % 4).tolist()
    dealt = datasets.leaf(path, partition="classes-per-client", clients=4, classes_per_client=1)
    for k in range(4):
        labels = [set(part.client(k)[1].tolist()) for part in (dealt.train, dealt.test)]
        assert labels[0] == labels[1]
        assert len(labels[0]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 3}, r"data\.clients = 3; it needs a partition"),
        ({"partition": "iid"}, r"data\.clients: missing; partition 'iid' needs it"),
        ({"partition": "iid", "clients": 0}, r"data\.clients = 0"),
        ({"partition": "idd", "clients": 3}, r"data\.partition = 'idd'; it must be one of iid, sh"),
        (
            {"partition": "shards", "clients": 3, "concentration": 0.1},
            r"data\.concentration = 0\.1; it belongs to partition dirichlet-by-client or dirichlet-"
            "by-class, not 'shards'",
        ),
        (
            {"partition": "classes-per-client", "clients": 3},
            r"data\.classes_per_client: missing; partition 'classes-per-client' needs it",
        ),
        (
            {"partition": "classes-per-client", "clients": 3, "classes_per_client": 9},
            r"data\.classes_per_client = 9; there are 2 classes",
        ),
        (
            {"partition": "dirichlet-by-client", "clients": 2, "concentration": -1.0},
            r"data\.concentration = -1\.0",
        ),
    ],
)
def test_numbers_that_a_partition_does_not_have_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    users = leaf_file({"a": ([[0.0]] * 4, [0, 1, 0, 1])})
    path = str(write_leaf(tmp_path / "set", users, users))
    with pytest.raises(InputError, match=message) as error:
        datasets.leaf(path, **options)
    assert "\n" not in str(error.value)
