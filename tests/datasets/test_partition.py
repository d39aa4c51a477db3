"""Partitions: whose rows, how many, of which classes."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import InputError
from fedprox.datasets import partition
from fedprox.datasets.labelled import PARTITIONS as DIVIDING

SEEDS = st.integers(0, 2**40)
SPREADS = st.sampled_from([0.0, 0.3, 1.0, 3.0])
CONCENTRATIONS = st.sampled_from([0.001, 0.05, 0.3, 0.6, 5.0, 1e6])


@st.composite
def labelled(draw: Any) -> Any:
    """Labels of a few classes, not all of which occur."""
    values = draw(st.lists(st.integers(0, 6), min_size=1, max_size=150))
    return np.array(values)


def all_once(parts: list[Any], rows: int) -> bool:
    return sorted(np.concatenate(parts).tolist()) == list(range(rows))


@given(rows=st.integers(1, 5000), clients=st.integers(1, 60), spread=SPREADS, seed=SEEDS)
def test_sizes_give_out_every_row_and_at_least_one(
    rows: int, clients: int, spread: float, seed: int
) -> None:
    if clients > rows:
        with pytest.raises(InputError, match=r"data\.clients"):
            partition.sizes(rows, clients=clients, spread=spread, seed=seed)
        return
    counts = partition.sizes(rows, clients=clients, spread=spread, seed=seed)
    assert counts.sum() == rows
    assert counts.min() >= 1
    assert len(counts) == clients
    assert spread or np.ptp(counts) <= 1


def test_log_normal_sizes_have_the_deviation_asked_for() -> None:
    counts = partition.sizes(10**7, clients=5000, spread=0.3, seed=1)
    assert np.log(counts).std() == pytest.approx(0.3, rel=0.03)
    # rescaled to the total: the mean of LogNormal(0, s) is exp(s^2 / 2)
    assert np.median(counts) == pytest.approx(2000 * np.exp(-(0.3**2) / 2), rel=0.02)


PARTITIONS: dict[str, Callable[..., list[Any]]] = {
    "iid": partition.iid,
    "by client": lambda labels, **options: partition.dirichlet_by_client(
        labels, concentration=0.3, **options
    ),
}


@pytest.mark.parametrize("kind", PARTITIONS)
@given(labels=labelled(), clients=st.integers(1, 20), spread=SPREADS, seed=SEEDS)
def test_sizes_and_label_mixes_compose(
    kind: str, labels: Any, clients: int, spread: float, seed: int
) -> None:
    clients = min(clients, len(labels))
    options: dict[str, Any] = {"clients": clients, "spread": spread, "seed": seed}
    parts = PARTITIONS[kind](labels, **options)
    assert all_once(parts, len(labels))
    counts = partition.sizes(len(labels), **options)
    np.testing.assert_array_equal([len(part) for part in parts], counts)
    again = PARTITIONS[kind](labels, **options)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


@given(
    labels=labelled(),
    clients=st.integers(1, 20),
    concentration=CONCENTRATIONS,
    spread=SPREADS,
    seed=SEEDS,
)
def test_dirichlet_by_client_uses_every_row_at_any_concentration(
    labels: Any, clients: int, concentration: float, spread: float, seed: int
) -> None:
    parts = partition.dirichlet_by_client(
        labels,
        clients=min(clients, len(labels)),
        concentration=concentration,
        spread=spread,
        seed=seed,
    )
    assert all_once(parts, len(labels))


def shares(labels: Any, parts: list[Any]) -> Any:
    """Each client's label mix, largest share first."""
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    return -np.sort(-counts / counts.sum(axis=1, keepdims=True), axis=1)


@pytest.mark.parametrize(("concentration", "low", "high"), [(0.6, 4, 5), (0.3, 3, 4)])
def test_dirichlet_by_client_has_the_papers_label_skew(
    concentration: float, low: int, high: int
) -> None:
    """Acar et al. 2021, appendix A.2: 4 or 5, and 3 or 4 classes make 80 % of most clients."""
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    parts = partition.dirichlet_by_client(labels, clients=100, concentration=concentration, seed=0)
    needed = (shares(labels, parts).cumsum(axis=1) < 0.8).sum(axis=1) + 1
    assert low <= needed.mean() <= high
    assert [len(part) for part in parts] == [600] * 100


@pytest.mark.slow
def test_where_rows_are_plenty_a_clients_mix_is_a_dirichlet_draw() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 16_000)
    parts = partition.dirichlet_by_client(labels, clients=40, concentration=1e6, seed=0)
    assert np.abs(shares(labels, parts)[:, :4] - 0.25).max() < 0.1
    # a share of Dirichlet(a, ..., a) over C classes has variance (C - 1) / (C^2 (C a + 1))
    found = []
    for seed in range(12):
        # the first half of the picks, before any class runs out
        first = partition.dirichlet_by_client(labels, clients=40, concentration=0.6, seed=seed)
        counts = np.array([np.bincount(labels[part[:200]], minlength=4) for part in first])
        found.append((counts / 200).var())
    sampling = 0.25 * 0.75 / 200
    assert np.mean(found) == pytest.approx(3 / (16 * (4 * 0.6 + 1)) + sampling, rel=0.08)


def redraw(rng: np.random.Generator, rows: int, concentration: float) -> int:
    """The authors' loop for two clients and two classes: client 0's rows of class 0."""
    left, held = [rows, rows], [0, 0]
    priors = rng.dirichlet([concentration] * 2, 2)
    count = 0
    while sum(held) < 2 * rows:
        k = int(rng.integers(2))
        if held[k] == rows:
            continue
        c = int(rng.random() > priors[k, 0])
        while left[c] == 0:
            c = int(rng.random() > priors[k, 0])
        left[c] -= 1
        held[k] += 1
        count += k == 0 and c == 0
    return count


def test_dirichlet_by_client_is_the_authors_drawing_again() -> None:
    rng = np.random.default_rng(0)
    theirs = np.bincount([redraw(rng, 4, 1.5) for _ in range(2500)], minlength=5) / 2500
    labels = np.repeat([0, 1], 4)
    ours = np.zeros(5)
    for seed in range(2500):
        part = partition.dirichlet_by_client(labels, clients=2, concentration=1.5, seed=seed)[0]
        ours[(labels[part] == 0).sum()] += 1 / 2500
    # a frequency of 2500 draws has a standard error of at most 0.01
    np.testing.assert_allclose(ours, theirs, atol=0.03)


@settings(max_examples=30)
@given(
    labels=labelled(),
    clients=st.integers(1, 8),
    concentration=st.sampled_from([1.0, 5.0, 1e6]),
    seed=SEEDS,
)
def test_dirichlet_by_class_uses_every_row_and_leaves_nobody_without(
    labels: Any, clients: int, concentration: float, seed: int
) -> None:
    options: dict[str, Any] = {"concentration": concentration, "seed": seed}
    try:
        parts = partition.dirichlet_by_class(labels, clients=clients, **options)
    except InputError as error:
        assert "it must be larger, or data.clients smaller" in str(error)  # noqa: PT017
        return
    assert len(parts) == clients
    assert all_once(parts, len(labels))
    assert min(map(len, parts)) >= 1


def test_dirichlet_by_class_divides_each_class_by_a_draw_of_its_own() -> None:
    labels = np.repeat(np.arange(300), 500)
    parts = partition.dirichlet_by_class(labels, clients=5, concentration=0.7, seed=0)
    given = np.array([np.bincount(labels[part], minlength=300) for part in parts]) / 500
    assert given.mean() == pytest.approx(1 / 5)
    assert given.var() == pytest.approx(4 / (25 * (5 * 0.7 + 1)), rel=0.1)
    # sizes vary here, and do not where every client draws its own classes
    assert len({len(part) for part in parts}) > 1


@given(
    each=st.integers(60, 90),
    clients=st.integers(1, 30),
    held=st.integers(1, 7),
    seed=SEEDS,
)
def test_classes_per_client_gives_each_its_number_of_classes(
    each: int, clients: int, held: int, seed: int
) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(7), each))
    if clients * held < 7:
        with pytest.raises(InputError, match="classes without a client"):
            partition.classes_per_client(labels, clients=clients, classes=held, seed=seed)
        return
    parts = partition.classes_per_client(labels, clients=clients, classes=held, seed=seed)
    assert all_once(parts, len(labels))
    assert {len(np.unique(labels[part])) for part in parts} == {held}
    holders = [sum(c in labels[part] for part in parts) for c in range(7)]
    assert max(holders) - min(holders) <= 1


@given(ids=st.lists(st.text(max_size=3), min_size=1, max_size=60))
def test_natural_clients_are_the_ids(ids: list[str]) -> None:
    names, parts = partition.natural(np.array(ids, object))
    assert names == sorted(set(ids))
    assert all_once(parts, len(ids))
    for name, rows in zip(names, parts, strict=True):
        assert {ids[row] for row in rows} == {name}


@given(labels=labelled(), others=labelled(), clients=st.integers(1, 12), seed=SEEDS)
def test_a_test_set_is_dealt_whole_in_the_mix_of_the_training_rows(
    labels: Any, others: Any, clients: int, seed: int
) -> None:
    train = partition.dirichlet_by_client(
        labels, clients=min(clients, len(labels)), concentration=0.3, seed=seed
    )
    dealt = partition.like(train, labels, others, seed=seed)
    used = np.concatenate(dealt)
    assert sorted(used.tolist()) == list(range(len(others)))
    for c in np.unique(labels):
        held = np.array([(labels[part] == c).sum() for part in train])
        test = np.array([(others[part] == c).sum() for part in dealt])
        # rounded where each client's share ends
        assert np.abs(test - held / held.sum() * (others == c).sum()).max() < 1
    unheld = ~np.isin(others, labels)
    test, sizes = (
        np.array([count(part) for part in parts])
        for count, parts in ((lambda part: unheld[part].sum(), dealt), (len, train))
    )
    assert np.abs(test - sizes / len(labels) * unheld.sum()).max() < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda y: partition.iid(y, clients=0, seed=0),
            r"data\.clients = 0; it must be a whole",
        ),
        (
            lambda y: partition.iid(y, clients=7, seed=0),
            r"data\.clients = 7; it must be from 1 to",
        ),
        (
            lambda y: partition.iid(y, clients=2, spread=-1.0, seed=0),
            r"data\.size_spread = -1\.0; it must be from 0 to 10",
        ),
        (
            lambda y: partition.dirichlet_by_client(y, clients=2, concentration=0.0, seed=0),
            r"data\.concentration = 0\.0; it must be at least 0\.001",
        ),
        (
            lambda y: partition.dirichlet_by_class(y, clients=9, concentration=1.0, seed=0),
            r"data\.concentration = 1\.0; in 1,000 draws some client of 9 was left without a row",
        ),
        (
            lambda y: partition.classes_per_client(y, clients=2, classes=4, seed=0),
            r"data\.classes_per_client = 4; there are 3 classes",
        ),
        (
            lambda y: partition.classes_per_client(y, clients=9, classes=3, seed=0),
            r"data\.clients = 9; class \d has 2 rows for 9 clients",
        ),
        (
            lambda y: partition.with_test_set(
                *("iid", y, y), clients=2, concentration=0.3, size_spread=0.0, seed=0
            ),
            r'data\.concentration = 0\.3; partition "iid" has none',
        ),
    ],
)
def test_partitions_say_what_cannot_be(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(np.repeat([0, 1, 2], 2))


@given(percent=st.integers(1, 99), hundreds=st.integers(1, 50), seed=SEEDS)
def test_a_split_has_its_share_to_the_row(percent: int, hundreds: int, seed: int) -> None:
    rows = np.arange(100 * hundreds)
    (train,), (test,) = partition.split([rows], train_share=percent / 100, seed=seed)
    assert len(train) == percent * hundreds
    assert all_once([train, test], len(rows))


def _like(labels: Any, *, clients: int, seed: int) -> list[Any]:
    return partition.like([np.arange(clients)], np.zeros(clients), labels, seed=seed)


BY_CLASS: list[Callable[..., Any]] = [
    partial(partition.dirichlet_by_client, concentration=0.5),
    partial(partition.dirichlet_by_class, concentration=0.5),
    partial(partition.classes_per_client, classes=1),
    partition.shards,
    partition.two_class_power_law,
    partial(partition.rotating_classes, classes_per_client=1),
    _like,
]


@pytest.mark.parametrize("divide", BY_CLASS)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.eye(3)[[0, 1, 2, 0]], r"labels: shape \(4, 3\); .* labels\.argmax\(axis=1\)$"),
        (np.zeros((4, 1, 1)), r"labels: shape \(4, 1, 1\); a class for each row is needed, .*,\)$"),
        (np.array([0.5, 1.0, 0.0]), "labels: numbers that are not whole; classes are needed, or"),
        (np.array([0.0, np.nan]), "labels: numbers that are not whole; classes are needed, or"),
        (
            np.ma.array([0, 1], mask=[False, True]),
            "labels: a masked array, whose mask would be lost",
        ),
        (7, "labels: an object of type int; an array of numbers with a row for each example"),
    ],
)
def test_labels_that_are_no_classes_are_refused(
    divide: Callable[..., Any], labels: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        divide(labels, clients=2, seed=0)


@pytest.mark.parametrize("divide", [partition.two_class_power_law, partition.rotating_classes])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-1, 0, 1], "the classes of this partition are whole numbers from 0"),
        (["no", "yes"], "the classes of this partition are whole numbers from 0"),
        ([], "no rows; at least one is needed"),
    ],
)
def test_classes_without_numbers_are_refused_where_numbers_are_needed(
    divide: Callable[..., Any], labels: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        divide(labels, clients=2, seed=0)


@pytest.mark.parametrize("divide", DIVIDING.values(), ids=DIVIDING)
def test_all_partitions_take_labels_a_number_of_clients_and_a_seed(
    divide: Callable[..., Any],
) -> None:
    labels = np.arange(400) % 2
    needed: dict[str, Any] = {"concentration": 0.9, "classes": 1}
    options = {name: needed[name] for name in inspect.signature(divide).parameters.keys() & needed}
    expected = [part.tolist() for part in divide(labels, clients=4, seed=0, **options)]
    assert len(expected) == 4
    for same in (labels.tolist(), labels.astype(float)):
        parts = divide(same, clients=4, seed=0, **options)
        assert [part.tolist() for part in parts] == expected
