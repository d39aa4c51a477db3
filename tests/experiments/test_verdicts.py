"""Verdicts: tests on paired seeds, the correction within an item, how often chance has one."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.engine.blocks import blocks, spread
from experiments.engine.item import Claim, Comparison, Item, Line
from experiments.engine.series import BEST, Series
from experiments.engine.summaries import FINAL
from experiments.engine.table import judged_in, table
from experiments.engine.verdicts import LEVEL, verdicts
from fedprox.report.compare import Evidence, evidence_of
from tests.experiments.made_up import SCALE, series


def verdict(differences: list[float], alike: float | None = None) -> str:
    return verdicts([evidence_of(np.array(differences), alike)])[0]


@pytest.mark.parametrize(
    ("differences", "alike", "expected"),
    [
        ([0.5], None, "one seed"),
        ([math.inf], None, "one seed"),
        ([1.0, 1.2, 0.8], None, "holds"),
        ([-1.0, -1.2, -0.8], None, "does not hold"),
        ([1.0, -0.8, 0.1], None, "within noise"),
        ([0.0, 0.0], None, "within noise"),
        ([0.5, 0.5], None, "holds"),
        # two and a half standard errors of five seeds
        ([1.0, 2.0, 1.0, 5.0, 1.0], None, "within noise"),
        ([1.0, 2.0, 1.0, 2.0, 100.0], None, "within noise"),
        # a side diverged: the signs, of which six must agree
        ([math.inf] * 5, None, "within noise"),
        ([math.inf, 1.0, 2.0, 1.0, math.inf, 3.0], None, "holds"),
        ([-math.inf, *[-1.0] * 5], None, "does not hold"),
        ([math.inf, *[-1.0] * 5], None, "within noise"),
        ([math.nan] * 6, None, "within noise"),
        ([0.001, -0.001, 0.0], 0.02, "holds"),
        ([0.05, 0.051, 0.049], 0.02, "does not hold"),
        ([-0.05, -0.051, -0.049], 0.02, "does not hold"),
        ([0.05, -0.05, 0.03], 0.02, "within noise"),
        ([math.inf] * 6, 0.02, "does not hold"),
        ([math.nan] * 6, 0.02, "does not hold"),
        ([0.0], 0.02, "one seed"),
    ],
)
def test_verdicts(differences: list[float], alike: float | None, expected: str) -> None:
    assert verdict(differences, alike) == expected


def test_the_p_value_is_students() -> None:
    differences = np.array([0.3, -0.1, 0.5, 0.2, 0.4])
    expected = stats.ttest_1samp(differences, 0.0).pvalue
    assert evidence_of(differences, None).p == pytest.approx(expected)
    # alike within 1: the nearer of two one-sided tests, for two directions
    one_sided = stats.ttest_1samp(differences, 1.0, alternative="less").pvalue
    assert evidence_of(differences, 1.0).p == pytest.approx(2 * one_sided)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_without_any_effect_an_item_has_a_verdict_as_often_as_is_said(seeds: int) -> None:
    """The chance is `LEVEL` for an item of any number of comparisons; so is their mean number."""
    rng = np.random.default_rng(seeds)
    for count in (1, 12):
        drawn = rng.standard_normal((1500, count, seeds))
        found = [
            sum(one != "within noise" for one in verdicts([evidence_of(d, None) for d in item]))
            for item in drawn
        ]
        error = math.sqrt(LEVEL * (1 - LEVEL) / len(drawn))
        assert np.mean([n > 0 for n in found]) == pytest.approx(LEVEL, abs=4 * error)
        assert np.mean(found) < LEVEL + 5 * error


@pytest.mark.parametrize(
    ("p", "held"),
    [([0.004, 0.011, 0.02, 0.04], 4), ([0.004, 0.02, 0.02, 0.04], 1), ([0.013] * 4, 0)],
)
def test_many_comparisons_of_an_item_need_more(p: list[float], held: int) -> None:
    evidence = [None, *(Evidence(1.0, one) for one in [*p, math.nan])]
    found = verdicts(evidence)
    assert (found[0], found[-1]) == ("one line", "one seed")
    assert found[1:-1] == ["holds"] * held + ["within noise"] * (4 - held)


def judged(claims: tuple[Claim, ...], runs: dict[str, list[Series]]) -> list[list[str]]:
    item = Item("Figure 0", "nowhere", {"tiny": 1.0}, claims=claims)
    return [list(group) for group in judged_in(blocks(item, SCALE, runs, {}))]


def test_a_line_is_not_compared_with_itself() -> None:
    """The paper's mu may be the best."""
    pair = (Comparison("here", Line("r", BEST), Line("r", "fedprox mu=1")),)
    claims = (
        Claim("the best ends higher", "train_loss", FINAL, pair),
        Claim("the paper's is near the best", "train_loss", FINAL, pair, alike=0.02),
    )
    for rival, expected in ((3.0, ["one line", "holds"]), (1.0, ["does not hold"] * 2)):
        lines = [
            series(f"fedprox mu={mu}", [4, last], seed, mu=mu)
            for mu, last in ((1, 2), (2, rival))
            for seed in (0, 1)
        ]
        assert judged(claims, {"r": lines}) == [[one] for one in expected]


def test_claims_are_judged_in_pairs_of_seeds_together() -> None:
    pairs = (
        Comparison("first", Line("r", "one"), Line("r", "two")),
        Comparison("second", Line("r", "one"), Line("s", "two")),
    )
    runs = {
        # seeds in another order: pairs go by seed
        "r": [
            series("one", [9, 11], 1),
            series("one", [9, 1], 0),
            series("two", [9, 0.5], 0),
            series("two", [9, 10.49], 1),
        ],
        "s": [series("two", [9, 20], 0), series("two", [9, 40], 1)],
    }
    # differences 0.5 and 0.51, -19 and -29
    assert judged((Claim("above", "train_loss", FINAL, pairs),), runs) == [
        ["holds", "within noise"]
    ]


def test_a_chosen_line_says_of_how_many_and_a_bound_all_its_digits() -> None:
    pair = (Comparison("here", Line("r", BEST), Line("r", "fedprox mu=0")),)
    claim = Claim("alike", "test_accuracy", FINAL, pair, alike=0.0005)
    lines = [
        series(f"fedprox mu={mu}", [4, 3 - mu], s, [0, 0.5], mu=mu)
        for mu in (0, 1, 2)
        for s in (0, 1)
    ]
    item = Item("Figure 0", "nowhere", {"tiny": 1.0}, claims=(claim,))
    text = table("made/up", item, SCALE, blocks(item, SCALE, {"r": lines}, {}), "1 s")
    assert "fedprox mu=2 (best of 2 by training loss) 50.0 ± 0.0 %" in text
    assert "within 0.05 %, by our reading" in text
    assert "All comparisons: 1 holds." in text
    assert "about 0.05 verdicts of an item are expected by chance" in text


def test_equal_numbers_have_no_deviation() -> None:
    assert np.full(5, 0.832).std(ddof=1) > 0  # by rounding
    assert spread(np.full(5, 0.832), percent=False, brackets=False) == "0.832 ± 0"
