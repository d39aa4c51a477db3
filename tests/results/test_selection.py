"""The model that is kept, and runs that end early: without progress, or told to."""

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import (
    Algorithm,
    Checkpoints,
    Evaluation,
    InputError,
    Metric,
    Record,
    Run,
    Selection,
    Solver,
    fedavg,
    fedprox,
    load_model,
    scaffold,
    table,
)
from fedprox.results.target import Best
from tests.byhand import START
from tests.loop.test_checkpoint import in_goes, killed_after, same, train
from tests.quadratics import quadratic_model
from tests.test_cli import LOSSES, status
from tests.variants import mostly_slow

BUMPY: dict[str, Any] = {"solver": Solver([0.3, 0.4], 3, epochs=2)}
"""A solver whose mini-batches make the training loss rise and fall."""

BEST = Selection(keep="best", measure="train_loss")


def losses(run: Run) -> list[float]:
    return [record.train_loss for record in run.history]


def equal(a: Run, b: Run) -> None:
    jax.tree.map(np.testing.assert_array_equal, a.params, b.params)


@pytest.mark.parametrize("evaluated", mostly_slow(["server", "clients"], "server"))
def test_the_best_model_is_that_of_a_run_that_ended_there(evaluated: Any) -> None:
    options = BUMPY | {
        "evaluation": Evaluation(2, model=evaluated, gradients=False),
        "seed": [0, 1],
    }
    runs, lines = train([fedprox(mu=[0.0, 1.0])], **options, selection=BEST)
    plain, plain_lines = train([fedprox(mu=[0.0, 1.0])], **options)
    assert lines == plain_lines

    @functools.cache
    def ended(rounds: int) -> list[Run]:
        if rounds == 11:
            return plain
        return train([fedprox(mu=[0.0, 1.0])], **options | {"rounds": rounds})[0]

    rounds = []
    for i, (run, other) in enumerate(zip(runs, plain, strict=True)):
        best = run.history[int(np.argmin(losses(run)))]
        assert run.model_record == best
        assert other.model_round == 11
        if best.round:
            equal(run, ended(best.round)[i])
        rounds.append(best.round)
    if evaluated == "server":  # the last round, which is irregular, is the best of some alone
        assert 11 in rounds
        assert len(set(rounds)) > 2
    else:
        assert set(rounds) == {11}


@pytest.mark.slow
def test_higher_is_better_of_a_metric_that_says_so() -> None:
    model = quadratic_model(START)

    def terms(outputs: Any, y: Any) -> Any:
        return {"sum": model.loss(outputs, y)}

    metrics = {
        name: Metric(terms, lambda sums: sums["sum"], lower_is_better=name == "lower")
        for name in ("lower", "higher")
    }
    for name, best in (("lower", min), ("higher", max)):
        options = BUMPY | {"model": replace(model, metrics=metrics), "seed": 0}
        selection = Selection(keep="best", measure=f"train_{name}")
        (run, *_), _ = train([fedavg()], **options, selection=selection)
        values = [record.value(f"train_{name}") for record in run.history]
        assert run.model_record.value(f"train_{name}") == best(values)


@given(st.lists(st.sampled_from([math.nan, 0.0, 1.0, 2.0, 3.0]), min_size=1), st.booleans())
def test_the_first_of_the_best_counts(values: Sequence[float], lower: bool) -> None:
    history = [
        Record("m", "m", {}, 0.1, 0, 3 * i, {"train_loss": value}) for i, value in enumerate(values)
    ]
    best = Best("train_loss", lower_is_better=lower, history=history)
    known = [value for value in values if not math.isnan(value)]
    if not known:
        assert (best.round, best.since) == (0, len(values))
        return
    first = values.index(min(known) if lower else max(known))
    assert (best.round, best.since) == (3 * first, len(values) - first - 1)


@pytest.mark.slow
def test_points_of_a_sweep_end_together_when_patience_does() -> None:
    options: dict[str, Any] = {
        "solver": Solver([0.02, 0.3], 3, epochs=2),
        "evaluation": Evaluation(every=1, gradients=False),
        "rounds": 40,
        "seed": 0,
    }
    selection = Selection(measure="train_loss", patience=2)
    whole, lines = train([fedavg()], **options)
    runs, ended = train([fedavg()], **options, selection=selection)
    assert ended == lines[: len(ended)]

    def end(run: Run) -> int:
        """The first round after two evaluations without progress."""
        best = np.minimum.accumulate(losses(run))
        return next(t for t in range(2, 40) if best[t] == best[t - 2])

    ends = [end(run) for run in whole]
    assert min(ends) < max(ends) < 40
    assert [run.final.round for run in runs] == [max(ends)] * 2
    shorter, _ = train([fedavg()], **options | {"rounds": max(ends)})
    equal(runs[0], shorter[0])
    best, _ = train([fedavg()], **options, selection=replace(selection, keep="best"))
    for run, other in zip(best, whole, strict=True):
        assert run.model_round == int(np.argmin(losses(other)[: max(ends) + 1]))


def test_a_function_ends_runs_and_keeps_what_was_found() -> None:
    seen: list[Record] = []

    def stop(record: Record) -> bool:
        seen.append(record)
        return record.hparams["mu"] == 0 and record.seed == 1 and record.round >= 6

    methods = [fedprox(mu=0.0), fedprox(mu=1.0)]
    runs, lines = train(methods, **BUMPY, stop=stop)
    assert {(r.hparams["mu"], r.seed): r.final.round for r in runs} == {
        (0.0, 0): 11,
        (0.0, 1): 6,
        (1.0, 0): 11,
        (1.0, 1): 11,
    }
    _, all_lines = train(methods, **BUMPY)
    known = [json.loads(line) for line in all_lines]
    is_after = [(r["mu"], r["seed"]) == (0.0, 1) and r["round"] > 6 for r in known]
    assert lines == [line for line, after in zip(all_lines, is_after, strict=True) if not after]
    shorter, _ = train([fedprox(mu=0.0)], **BUMPY, rounds=6)
    for run, other in zip(runs[2:4], shorter[2:4], strict=True):
        equal(run, other)
    assert seen == [
        r
        for run in zip(runs[::2], runs[1::2], strict=True)
        for pair in zip(*(each.history for each in run), strict=True)
        for r in pair
        if r.round < 11
    ]


def test_a_function_that_answers_something_else() -> None:
    with pytest.raises(InputError, match=r"stop\(record\) returns None; it must return True or"):
        train([fedavg()], stop=lambda _: None)
    with pytest.raises(InputError, match="stop = 3; it must be a function of a record, or None"):
        train([fedavg()], stop=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "ends", "patience"),
    [
        ([fedavg()], [2, 1], 2),
        ([fedavg(), scaffold()], [1], None),
    ],
    ids=["patience", "several methods"],
)
def test_a_run_that_is_ended_and_goes_on_keeps_the_same_model(
    methods: list[Algorithm], ends: list[int], patience: int | None, tmp_path: Path
) -> None:
    options = BUMPY | {"evaluation": Evaluation(every=2, gradients=False)}
    options["selection"] = Selection(keep="best", measure="train_loss", patience=patience)
    once = train(methods, **options)
    goes = in_goes(tmp_path / "c", ends, methods, **options)
    same(once, goes)
    assert [run.model_round for run in once[0]] == [run.model_round for run in goes[0]]


def test_another_selection_does_not_fit_checkpoints(tmp_path: Path) -> None:
    killed_after(2, [fedavg()], Checkpoints(tmp_path, 2))
    with pytest.raises(InputError, match=r"selection.keep = 'last', here 'best'"):
        train([fedavg()], Checkpoints(tmp_path, 2, resume=True), selection=BEST)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"keep": "best"},
            "selection.measure: none given, and there are no validation rows; hold some out "
            "(validation_share), or give one of train_loss",
        ),
        ({"patience": 1}, "selection.measure: none given"),
        ({"keep": "best", "measure": "loss"}, "selection.measure = 'loss'; it must be one of"),
        ({"keep": "first"}, "selection.keep = 'first'"),
        ({"patience": 0}, "selection.patience = 0"),
        ({"measure": 3}, "selection.measure = 3; it must be the name of a measure"),
    ],
)
def test_a_selection_that_is_not_possible_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        train([fedavg()], selection=Selection(**settings))
    assert message in str(error.value).replace('"', "'")


@pytest.mark.slow
def test_the_command_keeps_the_best_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(LOSSES)
    out = tmp_path / "out"
    settings = ["rounds=12", "solver.learning_rate=2.0", "seed=1", "validation_share=0.3"]
    settings += ["selection.keep=best", "selection.measure=validation_accuracy"]
    more = [part for setting in settings for part in ("--set", setting)]
    assert status("run", str(file), "--out", str(out), *more) == 0
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rounds = []
    for run in summary:
        history = [r for r in lines if r["label"] == run["label"]]
        best = max(history, key=lambda r: r["validation_accuracy"])
        assert run["model_round"] == best["round"]
        rounds.append((best["round"], history[-1]["round"]))
        assert load_model(out, run["label"], run["seed"])
    assert any(best_round < last for best_round, last in rounds)
    shown = capsys.readouterr().out
    assert "figures are of each run's best model" in " ".join(shown.split())
    assert 'keep = "best"' in (out / "experiment.toml").read_text()
    more[-1] = "selection.measure=test_accuracy"
    assert status("run", str(file), "--out", str(tmp_path / "b"), *more) == 2
    assert "test rows are read for the report alone" in " ".join(capsys.readouterr().err.split())


def test_the_table_is_of_the_models_that_are_kept() -> None:
    (run, *_), _ = train([fedavg()], **BUMPY, selection=BEST, seed=0)
    (last, *_), _ = train([fedavg()], **BUMPY, seed=0)
    assert run.model_record.round < run.final.round
    assert f"{run.model_record.train_loss:.4f}" in str(table([run]))
    assert f"{last.final.train_loss:.4f}" in str(table([last]))
