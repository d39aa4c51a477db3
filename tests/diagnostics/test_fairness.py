"""The distribution of a measure over clients."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import Fairness, InputError, fairness

ACCURACIES = st.lists(st.floats(0, 1) | st.just(math.nan), max_size=40)


@given(ACCURACIES)
def test_it_is_that_of_a_plain_loop(accuracies: list[float]) -> None:
    known = sorted(a for a in accuracies if not math.isnan(a))
    found = fairness(accuracies)
    if not known:
        assert all(map(math.isnan, found))
        return
    tenth = max(1, math.ceil(len(known) / 10))
    mean = sum(known) / len(known)
    variance = sum((a - mean) ** 2 for a in known) / len(known)
    assert found.mean == pytest.approx(mean)
    assert found.std == pytest.approx(math.sqrt(variance), abs=1e-9)
    assert found.worst == pytest.approx(sum(known[:tenth]) / tenth)
    assert found.best == pytest.approx(sum(known[-tenth:]) / tenth)
    assert found.worst <= found.mean + 1e-12
    assert found.mean <= found.best + 1e-12


@given(ACCURACIES, st.randoms())
def test_the_order_of_clients_does_not_matter(accuracies: list[float], chance: Any) -> None:
    shuffled = list(accuracies)
    chance.shuffle(shuffled)
    np.testing.assert_array_equal(fairness(shuffled), fairness(accuracies))


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_a_tenth_is_rounded_up(clients: int, tenth: int) -> None:
    found = fairness(np.arange(clients))
    assert found.worst == np.mean(range(tenth))
    assert found.best == np.mean(range(clients - tenth, clients))


def test_equal_clients_have_no_spread() -> None:
    assert fairness(np.full(25, 0.5, np.float32)) == Fairness(0.5, 0.0, 0.5, 0.5)


@pytest.mark.parametrize("wrong", [0.5, [[0.5]], ["a"], [True], [None]])
def test_what_is_no_list_of_numbers_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="it must have one number for each client"):
        fairness(wrong)
