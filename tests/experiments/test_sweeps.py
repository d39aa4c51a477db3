"""Lines of a sweep: the lowest, the best at each round, and how a figure shows them."""

from typing import Any

import numpy as np
import pytest

from experiments.engine.figure import figure
from experiments.engine.item import AT_EACH_ROUND, LOWEST, Item, Line, Panel, Row
from experiments.engine.summaries import FINAL, HIGHEST, Series
from experiments.engine.sweeps import envelope, lowest, of_sweep
from experiments.engine.verdicts import pick


def line(
    label: str, losses: list[float], accuracies: list[float], rounds: Any, seed: int = 0
) -> Series:
    values = {
        "train_loss": np.array(losses),
        "test_accuracy": np.array(accuracies),
        "total_steps": 10.0 * np.array(rounds),
    }
    return Series(label, seed, np.array(rounds), values, models=2.0)


SLOW = line("fedavg learning_rate=0.1", [3, 2.5, 2, 1.5], [0.1, 0.2, 0.3, 0.4], range(4))
FAST = line("fedavg learning_rate=1", [3, 1, 0.9, np.nan], [0.1, 0.5, 0.25, 0.9], range(4))
SHORT = line("fedavg learning_rate=9", [3, np.nan], [0.1, 0.1], [0, 1])
OTHER = line("fedavgm", [0, 0], [1, 1], [0, 1])


def test_the_best_at_each_round_skips_what_has_diverged_or_ended() -> None:
    (best,) = pick([SLOW, FAST, SHORT, OTHER], f"{AT_EACH_ROUND}fedavg")
    assert best.label == "fedavg, best of 3 at each round"
    assert best.rounds.tolist() == [0, 1, 2, 3]
    assert best.values["train_loss"].tolist() == [3, 1, 0.9, 1.5]
    # the accuracy of a model without a finite loss does not count
    assert best.values["test_accuracy"].tolist() == [0.1, 0.5, 0.3, 0.4]
    assert best.values["total_steps"].tolist() == [0, 10, 20, 30]
    assert best.models == 2
    (lost,) = envelope([SHORT], "fedavg")
    assert lost.label == "fedavg learning_rate=9"
    assert np.isnan(lost.values["train_loss"]).tolist() == [False, True]
    assert FINAL.of(lost, "train_loss") == np.inf
    assert HIGHEST.of(lost, "test_accuracy") == 0.1


def test_the_best_at_each_round_is_of_each_seed() -> None:
    later = SLOW._replace(seed=1, values=SLOW.values | {"train_loss": np.array([3.0, 2, 1, 0.5])})
    first, second = envelope([later, SLOW, FAST], "fedavg")
    assert (first.seed, second.seed) == (0, 1)
    assert second.values["train_loss"].tolist() == [3, 2, 1, 0.5]


def test_the_lowest_line_has_the_lowest_final_loss() -> None:
    lines = [SLOW, FAST, SHORT, OTHER]
    assert [one.label for one in pick(lines, f"{LOWEST}fedavg")] == ["fedavg learning_rate=0.1"]
    assert lowest(lines) == "fedavgm"
    with pytest.raises(KeyError, match="no 'fedprox' among"):
        of_sweep(lines, "fedprox")


def drawn(panel: Panel) -> Any:
    item = Item("Figure 0", "nowhere", {"short": 1.0}, rows=(Row("", (panel,)),))
    return figure(item, {"r": [SLOW, FAST]}).axes[0]


def test_a_panel_marks_its_level_and_begins_near_it() -> None:
    curve = Line("r", f"{AT_EACH_ROUND}fedavg", "FedAvg")
    axis = drawn(Panel("A", "test_accuracy", (curve,), best=True, level=0.45, last=2))
    best, level = axis.get_lines()
    np.testing.assert_allclose(best.get_ydata(), [0.1, 0.5, 0.5, 0.5])
    assert set(level.get_ydata()) == {0.45}
    assert axis.get_ylim()[0] == 0
    assert axis.get_xlim()[1] == 2
    near = drawn(Panel("A", "test_accuracy", (curve,), best=True, level=0.9, last=99))
    assert near.get_ylim()[0] < 0.1  # not reached
    assert near.get_xlim()[1] == 3
    reached = drawn(Panel("A", "test_accuracy", (Line("r", FAST.label, "FedAvg"),), level=0.9))
    assert reached.get_ylim()[0] == pytest.approx(0.6)


def test_a_panel_of_losses_can_be_logarithmic() -> None:
    curves = (Line("r", SLOW.label, "FedAvg"),)
    assert drawn(Panel("A", "train_loss", curves)).get_yscale() == "linear"
    assert drawn(Panel("A", "train_loss", curves, logarithmic=True)).get_yscale() == "log"
