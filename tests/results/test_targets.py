"""Rounds and models to a target, and runs that stop there."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import (
    Cohort,
    Evaluation,
    InputError,
    Run,
    Solver,
    Target,
    datasets,
    fedavg,
    fedprox,
    figure,
    models,
    simulate,
    table,
)
from fedprox.experiment import parse, resolve, train
from fedprox.report.directory import summarise
from fedprox.report.figure import curves
from fedprox.report.records import by_label
from fedprox.report.table import note_on_costs, warnings_on
from fedprox.results.record import Record
from fedprox.results.target import target_of

ACCURACY = "test_accuracy"
LOSS = "train_loss"


def run_with(
    accuracies: Sequence[float], every: int = 1, sends: int = 1, label: str = "m", seed: int = 0
) -> Run:
    """A run with these accuracies, whose loss is 1 - accuracy."""
    run = Run("m", {}, 0.1, seed, label)
    run.history = [
        Record(
            *(label, "m", {}, 0.1, seed, every * i),
            {
                "train_loss": 1 - accuracy,
                "test_accuracy": accuracy,
                "communication": sends * every * i,
            },
        )
        for i, accuracy in enumerate(accuracies)
    ]
    return run


# ------------------------------------------------------------------------------- rounds to a target


def test_rounds_to_a_target_interpolate_the_best_so_far() -> None:
    run = run_with([0.1, 0.5, 0.2, 0.9], every=10)
    for value, rounds in ((0.3, 5), (0.5, 10), (0.7, 25), (0.05, 0), (0.95, None)):
        assert run.rounds_to(Target(ACCURACY, value)) == (rounds and pytest.approx(rounds))
        assert run.rounds_to(Target(LOSS, 1 - value)) == (rounds and pytest.approx(rounds))


def test_a_line_says_what_is_counted_until_the_target() -> None:
    ends = "; communication: until then, in rounds of FedAvg"
    runs = [run_with([0.1, 0.8])]
    assert note_on_costs(runs, None) == [
        f"rounds to 80 %: until the test accuracy reaches it{ends}"
    ]
    (line,) = note_on_costs(runs, Target(LOSS, 0.3))
    assert line == f"rounds to loss 0.3: until the train loss reaches it{ends}"
    assert note_on_costs([run_with([0.0, 0.0])], None) == []


def test_figures_hold_a_seed_that_stopped_at_its_last_record() -> None:
    runs = [run_with([0.1, 0.8], every=5), run_with([0.1, 0.2, 0.4, 0.6], every=5, seed=1)]
    axis = figure(runs).axes[1]
    (line,) = axis.lines
    assert np.asarray(line.get_xdata()).tolist() == [0, 5, 10, 15]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([0.1, 0.5, 0.6, 0.7])
    (drawn,) = curves(by_label(runs), "round", "round")
    assert drawn.x.tolist() == [0, 5, 10, 15]
    assert drawn.values.tolist() == [[0, 5, 5, 5], [0, 5, 10, 15]]
    assert warnings_on(runs) == ["m: its seeds stopped after 5, 15 rounds; figures are of then"]
    assert not warnings_on(runs[:1])


def test_a_loss_that_rises_is_warned_of() -> None:
    worse, better, lost = run_with([0.5, -9.0]), run_with([0.5, 0], seed=1), run_with([0.5, -9.0])
    assert warnings_on([worse, better]) == [
        "m: training loss rose from 0.5 to 10 in 1 of 2 seeds; a smaller learning rate is the "
        "usual remedy"
    ]
    lost.history[-1] = replace(lost.final, measures={**lost.final.measures, "train_loss": math.nan})
    (line,) = warnings_on([lost])
    assert line.startswith("m: training loss rose from 0.5 to a number that is not finite; ")


VALUES = st.lists(st.floats(0.01, 1) | st.just(math.nan), min_size=1, max_size=8)


@given(values=VALUES, gaps=st.lists(st.integers(1, 5), min_size=7, max_size=7), aim=st.data())
def test_rounds_are_the_first_where_the_best_so_far_meets_it(
    values: list[float], gaps: list[int], aim: Any
) -> None:
    """A walk in small steps along the interpolated curve finds no earlier crossing."""
    known = [v for v in values if not math.isnan(v)]
    rounds = [0, *np.cumsum(gaps).tolist()][: len(values)]
    value = aim.draw(st.sampled_from(known) | st.floats(0.01, 1) if known else st.just(0.5))
    first = next((i for i, v in enumerate(values) if not math.isnan(v)), 0)
    for target, best in (
        (Target(ACCURACY, value), np.fmax.accumulate(values)),
        (Target(LOSS, value), np.fmin.accumulate(values)),
    ):
        found = target.rounds(rounds, values)
        if found is None:
            assert not any(map(target.met, known))
            continue
        at = float(np.interp(found, rounds[first:], best[first:]))
        assert target.met(at) or at == pytest.approx(value)
        for before in np.arange(rounds[first], found - 1e-9, 1 / 16):
            assert not target.met(float(np.interp(before, rounds[first:], best[first:])))


def test_models_are_rounds_times_what_a_round_sends() -> None:
    target = Target(ACCURACY, 0.7)
    assert run_with([0.1, 0.5, 0.2, 0.9], every=10, sends=2).models_to(target) == 50
    assert run_with([0.1, 0.5, 0.2, 0.9], every=10).models_to(target) == 25
    assert run_with([0.8, 0.9], sends=2).models_to(target) == 0
    assert run_with([0.8]).models_to(target) == 0  # before the first round nothing was sent
    assert run_with([0.1, 0.2], sends=2).models_to(target) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5, 0.5), "target_accuracy = 0.5 and target_loss = 0.5; give one of them, and not both"),
        ((80.0, None), "target_accuracy = 80.0; it must be above 0 and at most 1"),
        ((math.nan, None), "target_accuracy = nan; it must be above 0"),
        ((None, 0.0), "target_loss = 0.0; it must be above 0"),
        ((None, math.inf), "target_loss = inf; it must be finite and above 0"),
        ((True, None), "target_accuracy = True; it must be a number above 0"),
        (("0.9", None), "target_accuracy = '0.9'; it must be a number above 0"),
    ],
)
def test_targets_out_of_range_are_refused(arguments: tuple[Any, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        target_of(*arguments)


def test_another_measure_is_refused() -> None:
    with pytest.raises(InputError, match=r"target.measure = 'accuracy'; it must be one of test"):
        Target("accuracy", 0.9)


# ---------------------------------------------------------------------------- tables and summaries


def cells(runs: Sequence[Run], target: Target | None) -> dict[str, list[str]]:
    """The table's columns by their headings."""
    return {
        str(column.header): list(map(str, column.cells)) for column in table(runs, target).columns
    }


def test_the_table_says_1000_plus_and_2000_plus_as_the_paper_does() -> None:
    slow = [0.1, 0.5]
    runs = [
        run_with([0.1, 0.9], 1000, label="feddyn"),
        run_with(slow, 1000, label="fedavg"),
        run_with(slow, 1000, sends=2, label="scaffold"),
    ]
    found = cells(runs, Target(ACCURACY, 0.7))
    assert found["rounds to 70 %"] == ["750.0", "1000+", "1000+"]
    assert found["communication"] == ["750.0", "1000+", "2000+"]
    found = cells(runs, Target(LOSS, 0.3))
    assert found["rounds to loss 0.3"] == ["750.0", "1000+", "1000+"]
    assert cells(runs, None)["rounds to 50 %"] == ["500.0", "1000.0", "1000.0"]


def test_a_seed_that_did_not_reach_it_speaks_for_all() -> None:
    two = [run_with([0.1, 0.9], 10, sends=2), run_with([0.1, 0.5], 10, sends=2, seed=1)]
    found = cells(two, Target(ACCURACY, 0.7))
    assert (found["rounds to 70 %"], found["communication"]) == (["10+"], ["20+"])
    found = cells(two, Target(ACCURACY, 0.5))
    assert (found["rounds to 50 %"], found["communication"]) == (
        ["7.5 ± 3.5"],
        ["15.0 ± 7.1"],
    )


def test_the_summary_holds_target_rounds_and_models() -> None:
    run = run_with([0.1, 0.5, 0.9], sends=2)
    keys = ("target_accuracy", "target_loss", "rounds_to_target", "models_to_target")
    for target, expected in (
        (Target(ACCURACY, 0.9), [0.9, None, 2.0, 4.0]),
        (Target(LOSS, 0.01), [None, 0.01, None, None]),
        (None, [None, None, None, None]),
    ):
        assert [summarise(run, target)[key] for key in keys] == expected


# ------------------------------------------------------------------------------ stopping at targets

FEDERATION = datasets.synthetic(clients=6)
MODEL = models.logistic(FEDERATION)
STILL, SLOW, FAST, WILD = 1e-12, 0.003, 0.03, 1e38
"""Learning rates; the greatest diverges at once."""


def grid(*rates: float, every: int = 2, method: Any = None, **stop: Any) -> list[Run]:
    """FedAvg on a small synthetic federation for twelve rounds."""
    return simulate(
        FEDERATION,
        MODEL,
        method or fedavg(),
        solver=Solver(list(rates), batch_size=10, epochs=1),
        cohort=Cohort(3),
        rounds=12,
        evaluation=Evaluation(every=every, gradients=False),
        **stop,
    )


def first_met(run: Run, target: Target) -> float:
    """The first evaluated round at which a run has reached a target."""
    met = (r.round for r in run.history if target.met(getattr(r, target.measure)))
    return next(met, math.inf)


@pytest.fixture(scope="module")
def whole() -> list[Run]:
    """A grid that runs to its end, with two seeds."""
    return grid(SLOW, FAST, seed=[0, 1])


@pytest.mark.parametrize(("stop", "place"), [("any", 0), ("any", 2), ("all", 2)])
def test_a_run_stops_at_the_first_evaluation_that_meets_its_target(
    whole: list[Run], stop: Any, place: int
) -> None:
    target = Target(LOSS, whole[1].history[place].train_loss)
    stopped = grid(SLOW, FAST, seed=[0, 1], target=target, stop_at_target=stop)
    reach = {"all": max, "any": min}[stop]
    for seed in (0, 1):
        runs, ours = ([r for r in group if r.seed == seed] for group in (whole, stopped))
        end = min(reach(first_met(run, target) for run in runs), 12)
        for run, short in zip(runs, ours, strict=True):
            expected = [record for record in run.history if record.round <= end]
            np.testing.assert_equal(short.history, expected)
            assert short.client_steps == expected[-1].total_steps
            # and the model is the one that was measured last
            outputs = MODEL.apply(short.params, FEDERATION.test.x)
            accuracy = np.mean(np.argmax(outputs, axis=1) == FEDERATION.test.y)
            assert short.final.test_accuracy == pytest.approx(accuracy)


def test_points_that_have_diverged_are_not_waited_for(whole: list[Run]) -> None:
    target = Target(LOSS, 0.99 * whole[0].history[0].train_loss)
    fast, wild = grid(FAST, WILD, target=target, stop_at_target="all")
    assert wild.diverged_at == 2
    assert fast.final.round == wild.final.round == first_met(fast, target) < 12
    # a point that stays where it is keeps the others going, unless any will do
    for stop, rounds in (("all", 12), ("any", fast.final.round)):
        runs = grid(STILL, FAST, target=target, stop_at_target=stop)
        assert [run.final.round for run in runs] == [rounds] * 2


@pytest.mark.slow
def test_an_adaptive_mu_stops_between_its_rounds_too() -> None:
    method = fedprox(mu=0.1, adapt=True)
    (whole,) = grid(FAST, method=method, every=3)
    target = Target(ACCURACY, whole.history[2].test_accuracy)
    (short,) = grid(FAST, method=method, every=3, target=target, stop_at_target="all")
    place = [record.round for record in whole.history].index(int(first_met(whole, target)))
    np.testing.assert_equal(short.history, whole.history[: place + 1])


def test_each_method_stops_for_itself(whole: list[Run]) -> None:
    target = Target(LOSS, 0.99 * whole[0].history[0].train_loss)
    methods = [fedavg(), fedavg().with_solver(learning_rate=[STILL, 2 * STILL])]
    quick, _, slow, _ = grid(SLOW, FAST, method=methods, target=target, stop_at_target="all")
    assert 0 < quick.final.round < slow.final.round == 12
    assert quick.rounds_to(target) is not None
    assert slow.rounds_to(target) is None


@pytest.mark.slow
def test_an_experiment_file_gives_target_and_stop() -> None:
    written: dict[str, Any] = {
        "rounds": 12,
        "target_loss": 2.0,
        "stop_at_target": "any",
        "evaluation": {"gradients": False},
        "data": {"name": "synthetic", "clients": 6},
        "cohort": {"clients_per_round": 3},
        "solver": {"learning_rate": [STILL, FAST], "batch_size": 10, "epochs": 1},
        "method": [{"name": "fedavg"}],
    }
    experiment = parse("here", written)
    resolved = resolve(experiment)
    assert {key: resolved.table[key] for key in ("target_loss", "stop_at_target")} == {
        "target_loss": 2.0,
        "stop_at_target": "any",
    }
    runs = train(experiment, resolved)
    assert len({run.final.round for run in runs}) == 1
    assert runs[0].final.round == math.ceil(runs[1].rounds_to(Target(LOSS, 2.0)) or math.inf) < 12
    with pytest.raises(InputError, match=r"and target_loss = 2\.0; give one of them"):
        resolve(parse("here", written | {"target_accuracy": 0.5}))
