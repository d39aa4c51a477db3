"""Summaries of runs, and lines of sweeps: the lowest, the best at each round."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engine.series import (
    AT_EACH_ROUND,
    BEST,
    LOWEST,
    candidates,
    envelope,
    lowest,
    of_sweep,
    pick,
)
from experiments.engine.summaries import FINAL, MEAN, RISE, RULE, Summary, at, stop
from tests.experiments.made_up import series


@given(st.lists(st.floats(0, 5) | st.sampled_from([0.5, 0.50005, math.inf]), min_size=1))
def test_the_rule_stops_at_the_first_round_that_meets_it(losses: list[float]) -> None:
    found = stop(np.array(losses))

    def met(t: int) -> str | None:
        if not math.isfinite(losses[t]) or (t >= 10 and losses[t] - losses[t - 10] > 1):
            return "diverged"
        return "converged" if t and abs(losses[t] - losses[t - 1]) < 0.0001 else None

    assert all(met(t) is None for t in range(found.place))
    expected = met(found.place)
    assert found.why == (expected or "last round")
    assert expected or found.place == len(losses) - 1


FALLING = np.linspace(3, 1, 30).tolist()


@pytest.mark.parametrize(
    ("losses", "place", "why"),
    [
        (FALLING, 29, "last round"),
        ([*FALLING, 1.0, 0.5], 30, "converged"),
        ([*FALLING[:20], FALLING[10] + 1.01, *FALLING[21:]], 20, "diverged"),
        ([*FALLING[:20], FALLING[10] + 0.99, *FALLING[21:]], 29, "last round"),
        # a jump within the first ten rounds has nothing ten rounds before it
        ([1.0, 9.0, 8.0], 2, "last round"),
    ],
)
def test_the_rule_by_hand(losses: list[float], place: int, why: str) -> None:
    assert stop(np.array(losses)) == (place, why)


ONE = series("a", [4.0, 2.0, 3.0, 1.0], accuracy=[0.1, 0.2, 0.3, 0.4])
LOST = series("a", [1.0, np.nan, np.nan], accuracy=[0.5, 0.1, 0.1])
STOPPED = series("a", [1.0, 0.5, 0.49999, 0.1], accuracy=[0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    ("summary", "run", "measure", "expected"),
    [
        (FINAL, ONE, "train_loss", 1),
        (MEAN, ONE, "train_loss", 2),
        (RISE, ONE, "train_loss", 1 / 3),
        (RISE, series("a", [2.0]), "train_loss", 0),
        (at(2), ONE, "test_accuracy", 0.3),
        (at(99), ONE, "test_accuracy", 0.4),
        (at(9), ONE._replace(rounds=np.array([0, 5, 10, 15])), "test_accuracy", 0.2),
        (RULE, STOPPED, "test_accuracy", 0.3),
        # a model of which nothing is left still names a class, and is right by chance
        *((one, LOST, "test_accuracy", -math.inf) for one in (FINAL, MEAN, at(2))),
        *((one, LOST, "gradient_variance", math.inf) for one in (FINAL, MEAN, at(2))),
        (FINAL, LOST, "train_loss", math.inf),
        (RISE, LOST, "train_loss", math.inf),
        (RULE, LOST, "test_accuracy", 0.1),
    ],
)
def test_summaries_by_hand(summary: Summary, run: Any, measure: str, expected: float) -> None:
    assert summary.of(run, measure) == pytest.approx(expected)


SLOW = series("fedavg learning_rate=0.1", [3, 2.5, 2, 1.5], 0, [0.1, 0.2, 0.3, 0.4], models=2)
FAST = series("fedavg learning_rate=1", [3, 1, 0.9, np.nan], 0, [0.1, 0.5, 0.25, 0.9], models=2)
SHORT = series("fedavg learning_rate=9", [3, np.nan], 0, [0.1, 0.1], models=2)
OTHER = series("fedavgm", [0, 0], 0, [1, 1])


def test_the_best_at_each_round_skips_what_has_diverged_or_ended() -> None:
    (best,) = pick([SLOW, FAST, SHORT, OTHER], f"{AT_EACH_ROUND}fedavg")
    assert best.label == "fedavg, best of 3 at each round"
    assert best.rounds.tolist() == [0, 1, 2, 3]
    assert best.values["train_loss"].tolist() == [3, 1, 0.9, 1.5]
    # the accuracy of a model without a finite loss does not count
    assert best.values["test_accuracy"].tolist() == [0.1, 0.5, 0.3, 0.4]
    assert best.models == 2
    (lost,) = envelope([SHORT], "fedavg")
    assert lost.label == "fedavg learning_rate=9"
    assert np.isnan(lost.values["train_loss"]).tolist() == [False, True]
    later = SLOW._replace(seed=1, values=SLOW.values | {"train_loss": np.array([3.0, 2, 1, 0.5])})
    first, second = envelope([later, SLOW, FAST], "fedavg")
    assert (first.seed, second.seed) == (0, 1)
    assert second.values["train_loss"].tolist() == [3, 2, 1, 0.5]


def test_the_lowest_line_has_the_lowest_final_loss() -> None:
    lines = [SLOW, FAST, SHORT, OTHER]
    assert [one.label for one in pick(lines, f"{LOWEST}fedavg")] == ["fedavg learning_rate=0.1"]
    assert lowest(lines) == "fedavgm"
    for label in ("fedprox", f"{LOWEST}fedprox", BEST):
        with pytest.raises(KeyError, match=r"no '.*fedprox.*' among"):
            pick(lines, label)
    with pytest.raises(KeyError, match="no 'fed' among"):
        of_sweep(lines, "fed")


def test_the_best_mu_is_the_one_with_the_lowest_loss_above_zero() -> None:
    runs = [
        series("fedprox mu=0", [9, 0.1]),
        series("fedprox mu=0.1", [9, 0.3], mu=0.1),
        series("fedprox mu=0.1", [9, 0.7], 1, mu=0.1),
        series("fedprox mu=1", [9, 0.4], 1, mu=1),
        series("fedprox mu=1", [9, 0.4], mu=1),
        series("fedprox mu=0.01", [9, np.nan], mu=0.01),
        series("fedprox mu=0.01", [9, 0], 1, mu=0.01),
    ]
    assert [(one.label, one.seed) for one in pick(runs, BEST)] == [
        ("fedprox mu=1", 0),
        ("fedprox mu=1", 1),
    ]
    assert len({one.label for one in candidates(runs, BEST)}) == 3
