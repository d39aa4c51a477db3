"""Statistics of paired differences against SciPy, published tables and their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedprox.report.compare import evidence_of, holm, interval

P_VALUES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


def test_the_test_and_the_interval_are_students() -> None:
    differences = np.array([0.3, -0.1, 0.5, 0.2, 0.4])
    known = stats.ttest_1samp(differences, 0.0)
    assert evidence_of(differences).p == pytest.approx(known.pvalue)
    expected = known.confidence_interval(0.95)
    assert interval(differences) == pytest.approx((expected.low, expected.high))
    # the quantile of Student's table for four degrees of freedom
    half = 2.776 * differences.std(ddof=1) / math.sqrt(5)
    assert interval(differences)[1] == pytest.approx(differences.mean() + half, abs=1e-4)


@pytest.mark.parametrize("differences", [[0.5], [math.inf, 1.0, 2.0], [math.nan, 1.0]])
def test_without_a_spread_there_is_no_interval(differences: list[float]) -> None:
    assert all(map(math.isnan, interval(np.array(differences))))


def test_an_interval_without_zero_is_a_test_below_five_per_cent() -> None:
    rng = np.random.default_rng(0)
    for differences in rng.normal(1.0, 1.0, (200, 4)):
        low, high = interval(differences)
        assert (low > 0 or high < 0) == (evidence_of(differences).p < 0.05)


def test_holm_agrees_with_a_worked_example() -> None:
    # 0.01 * 4, 0.02 * 3 against 0.03 * 2 and 0.04
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


@given(P_VALUES)
def test_holm_rejects_what_the_step_down_procedure_rejects(p: list[float]) -> None:
    level, rejected = 0.05, set()
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if (len(p) - rank) * p[place] > level:
            break
        rejected.add(place)
    assert {i for i, one in enumerate(holm(p)) if one <= level} == rejected


@given(P_VALUES)
def test_holm_keeps_the_order_and_never_lowers_a_p_value(p: list[float]) -> None:
    corrected = holm([*p, math.nan])
    assert math.isnan(corrected.pop())
    assert all(1 >= after >= before for before, after in zip(p, corrected, strict=True))
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [corrected[i] for i in order] == sorted(corrected)
