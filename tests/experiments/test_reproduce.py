"""Reproductions: items as data, verdicts, the headline's rule, the runner end to end."""

import csv
import functools
import json
import math
import sys
import tomllib
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import ITEMS, select
from experiments.__main__ import app
from experiments.engine.between import LINE, PARENT
from experiments.engine.figure import COLOURS, figure
from experiments.engine.growing import best_rate, grown, rate_of
from experiments.engine.item import (
    AT_EACH_ROUND,
    AXES,
    BEST,
    LOWEST,
    MEASURES,
    MORE_RATES,
    MOST_SEEDS,
    PARTS,
    SCALES,
    SHORT,
    Claim,
    Comparison,
    Entry,
    Item,
    Line,
    Panel,
    Race,
    RaceRow,
    Row,
    Scale,
    Statistics,
    Table,
    expand,
)
from experiments.engine.mixes import LABELS, mix
from experiments.engine.races import Count, measure, off, printed, ratio
from experiments.engine.run import Step, read_series, reproduce
from experiments.engine.summaries import (
    CLASSES,
    FALL,
    FINAL,
    HIGHEST,
    MEAN,
    MEAN_LOG,
    RISE,
    RULE,
    SPREAD,
    Series,
    at,
    stop,
)
from experiments.engine.table import blocks, markdown, table
from experiments.engine.verdicts import best, pick
from experiments.printed import PRINTED
from fedprox import Target
from fedprox.cli import main
from fedprox.datasets import DATASETS, synthetic
from fedprox.errors import InputError
from fedprox.experiment import parse, resolve
from fedprox.federation import Federation
from fedprox.report.data import statistics
from fedprox.simulation.config.sweep import label, sweep_points
from fedprox.user_code import import_function

# ---------------------------------------------------------------------------------- the items


def every_run() -> list[tuple[str, str, Table]]:
    return [(name, run, one) for name, item in ITEMS.items() for run, one in item.runs.items()]


@pytest.mark.parametrize("name", ITEMS)
def test_every_experiment_is_one(name: str) -> None:
    for run, paper in ITEMS[name].runs.items():
        for scale in SCALES.values():
            for one in expand(paper, scale).values():
                experiment = parse(f"{name}: {run}", one)
                if name.startswith("fedprox"):
                    assert experiment.solver.batch_size == 10
                name_of_data = experiment.data["name"]
                load = DATASETS.get(name_of_data) or import_function("", name_of_data, Federation)
                options = set(signature(load).parameters)
                assert experiment.data.keys() - {"name"} <= options
        assert labels(paper)


def experiment_in(paper: Table) -> Table:
    """A run without what only the scales read."""
    return {
        key: value for key, value in paper.items() if key not in (MOST_SEEDS, MORE_RATES, SHORT)
    }


def labels(paper: Table) -> set[str]:
    """The labels that an experiment's methods will have, found with data that need no file."""
    easy: Table = {"data": {"name": "synthetic", "clients": 2}, "model": {"name": "logistic"}}
    return labels_of(json.dumps(experiment_in(paper | easy)))


@functools.cache
def labels_of(text: str) -> set[str]:
    """The labels of the methods of an experiment in JSON; items share many experiments."""
    resolved = resolve(parse("easy", json.loads(text)))
    return {
        label(method, solver, point)
        for method in resolved.methods
        for solver in [method.solver(resolved.solver)]
        for point in sweep_points(method, solver)
    }


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_means_over_the_rounds_are_of_the_same_rounds(scale: Scale) -> None:
    for item in ITEMS.values():
        for claim in item.claims:
            for comparison in claim.comparisons if claim.over in (MEAN, MEAN_LOG) else ():
                sides = [item.runs[s.run] for s in (comparison.greater, comparison.less)]
                runs = [parse("", next(iter(expand(side, scale).values()))) for side in sides]
                evaluated = {(run.rounds, run.evaluation.every, run.stop_at_target) for run in runs}
                assert len(evaluated) == 1, comparison
                assert runs[0].stop_at_target == "never", comparison


@pytest.mark.parametrize("name", ITEMS)
def test_lines_and_claims_name_runs_and_methods_that_there_are(name: str) -> None:
    item = ITEMS[name]
    curves = [curve for row in item.rows for panel in row.panels for curve in panel.curves]
    sides = [
        side
        for claim in item.claims
        for comparison in claim.comparisons
        for side in (comparison.greater, comparison.less)
    ]
    sides += [score.side for score in item.scores]
    named = {(one.run, one.label) for one in curves} | {(one.run, one.label) for one in sides}
    known = {run: labels(paper) for run, paper in item.runs.items()}
    known |= {pair: {LINE, PARENT} for pair in item.between}
    known |= {split: set(LABELS) for split in item.mixes}
    for run, line in named:
        beginning = line.removeprefix(LOWEST).removeprefix(AT_EACH_ROUND)
        assert line == BEST or line in known[run] or beginning != line
        assert line == BEST or any(f"{one} ".startswith(f"{beginning} ") for one in known[run])
    for race in item.races:
        assert all(len(cells.entries) == len(race.columns) for cells in race.rows)
    for cells in [cells for race in item.races for cells in race.rows]:
        for entry in filter(None, cells.entries):
            named.add((entry.run, entry.method))
            assert any(f"{one} ".startswith(f"{entry.method} ") for one in known[entry.run])
            experiment = parse("", experiment_in(item.runs[entry.run]))
            # a run that stops goes on until the row's target, and to the best of the whole sweep
            if experiment.stop_at_target != "never":
                assert experiment.target is not None
                assert experiment.target.measure == cells.target.measure
                assert cells.target.met(experiment.target.value)
            assert experiment.stop_at_target != "any" or " " not in entry.method
            # one setting counts for all seeds, which is not always the first at the target
            one_seed = item.runs[entry.run].get(MOST_SEEDS) == 1
            assert experiment.stop_at_target != "any" or one_seed
    assert {curve.shown for curve in curves} <= COLOURS.keys()
    assert {panel.measure for row in item.rows for panel in row.panels} <= MEASURES.keys()
    assert {claim.measure for claim in item.claims} <= MEASURES.keys()
    assert all(claim.comparisons for claim in item.claims)
    # nothing is run that is neither drawn nor compared
    assert {run for run, _ in named} == {*item.runs, *item.between, *item.mixes}
    assert {panel.x for row in item.rows for panel in row.panels} <= AXES.keys()
    for row in item.rows:
        for panel in row.panels:
            assert bool(panel.curves) != bool(panel.missing)
    assert any((item.rows, item.races, item.statistics, item.scores))
    assert item.seconds.keys() == SCALES.keys()
    assert item.seconds["short"] <= 3600
    assert item.seconds["paper"] <= 10 * 3600


def test_what_the_short_scale_changes_stands_beside_the_experiment() -> None:
    paper: Table = {
        "rounds": 300,
        MOST_SEEDS: 3,
        "data": {"name": "mnist", "clients": 100},
        "solver": {"epochs": 5, "learning_rate": [0.1, 0.2]},
        SHORT: {
            MOST_SEEDS: 1,
            "client_rows": 60,
            "data": {"clients": 10},
            "solver": {"learning_rate": [0.1]},
        },
    }
    whole = {"rounds": 300, "data": paper["data"], "solver": paper["solver"], "seed": [0, 1, 2]}
    assert expand(paper, SCALES["paper"]) == {"": whole}
    assert expand(paper, SCALES["short"]) == {
        "": {
            "rounds": 300,
            "client_rows": 60,
            "data": {"name": "mnist", "clients": 10},
            "solver": {"epochs": 5, "learning_rate": [0.1]},
            "seed": [0],
        }
    }
    drawn = paper | {"data": {"name": "synthetic"}, SHORT: {"data": {"alpha": 1.0}}}
    assert expand(drawn, SCALES["short"])["-seed-1"]["data"] == {
        "name": "synthetic",
        "alpha": 1.0,
        "seed": 1,
    }


def test_runs_that_items_share_are_the_same() -> None:
    known: dict[str, Table] = {}
    for _, run, one in every_run():
        assert known.setdefault(run, one) == one
    folders = [run + end for run, one in known.items() for end in expand(one, SCALES["paper"])]
    assert len(set(folders)) == len(folders)


def test_the_papers_rule_reads_every_round() -> None:
    ruled = [
        (item, claim) for item in ITEMS.values() for claim in item.claims if claim.over is RULE
    ]
    assert len(ruled) >= 3
    for item, claim in ruled:
        for one in claim.comparisons:
            for side in (one.greater, one.less):
                assert item.runs[side.run]["evaluation"].get("every", 1) == 1


def test_a_scale_pairs_generated_data_with_the_runs_seed() -> None:
    scale = Scale("some", 4, (0, 1, 2))
    drawn = expand({"rounds": 10, "data": {"name": "synthetic"}}, scale)
    assert [(one["seed"], one["data"]["seed"]) for one in drawn.values()] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    assert all(one["rounds"] == 2 for one in drawn.values())
    read = expand({"rounds": 2, "data": {"name": "mnist"}}, scale)
    assert read == {"": {"rounds": 1, "data": {"name": "mnist"}, "seed": [0, 1, 2]}}
    fixed = expand({"rounds": 10, "data": {"name": "mnist"}, "seed": 0}, scale)
    assert [(one["seed"], one["data"]["seed"]) for one in fixed.values()] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]


# ------------------------------------------------------------------------------- the summaries


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


def test_the_rule_by_hand() -> None:
    falling = np.linspace(3, 1, 30)
    assert stop(falling) == (29, "last round")
    assert stop(np.concatenate([falling, [1.0, 0.5]])) == (30, "converged")
    jump = falling.copy()
    jump[20] = falling[10] + 1.01
    assert stop(jump) == (20, "diverged")
    jump[20] = falling[10] + 0.99
    assert stop(jump) == (29, "last round")
    # a jump within the first ten rounds has nothing ten rounds before it
    early = np.array([1.0, 9.0, 8.0])
    assert stop(early) == (2, "last round")


def series(label: str, losses: Any, seed: int = 0, accuracy: Any = None, mu: float = 0) -> Series:
    found = np.array(losses, float)
    return Series(
        label,
        seed,
        np.arange(len(found)),
        {
            "train_loss": found,
            "test_accuracy": np.array(found if accuracy is None else accuracy, float),
            "gradient_variance": found,
            "dissimilarity": found,
            "mu": np.full(len(found), mu),
        },
    )


def test_summaries_by_hand() -> None:
    one = series("a", [4.0, 2.0, 3.0, 1.0], accuracy=[0.1, 0.2, 0.3, 0.4])
    assert FINAL.of(one, "train_loss") == 1
    assert MEAN.of(one, "train_loss") == 2
    assert RISE.of(one, "train_loss") == pytest.approx(1 / 3)
    assert at(2).of(one, "test_accuracy") == 0.3
    assert at(99).of(one, "test_accuracy") == 0.4
    sparse = one._replace(rounds=np.array([0, 5, 10, 15]))
    assert at(9).of(sparse, "test_accuracy") == 0.2
    lost = series("a", [1.0, np.nan, np.nan], accuracy=[0.5, 0.1, 0.1])
    assert FINAL.of(lost, "train_loss") == RISE.of(lost, "train_loss") == math.inf
    # a model of which nothing is left still names a class, and is right by chance
    for summary in (FINAL, MEAN, at(2)):
        assert summary.of(lost, "test_accuracy") == -math.inf
        assert summary.of(lost, "gradient_variance") == math.inf
    assert HIGHEST.of(lost, "test_accuracy") == 0.5
    assert RULE.of(lost, "test_accuracy") == 0.1
    stopped = series("a", [1.0, 0.5, 0.49999, 0.1], accuracy=[0.1, 0.2, 0.3, 0.4])
    assert RULE.of(stopped, "test_accuracy") == 0.3


def test_oscillation_is_told_from_progress() -> None:
    """FALL and SPREAD see what goes up and down, and nothing in a straight line."""
    losses = np.ones(21)
    line = np.linspace(0.1, 0.5, 21)
    saw = line + 0.05 * (-1.0) ** np.arange(21)  # changes of +0.12 and -0.08 in turn
    for accuracy, fall, spread in ((line, 0, 0), (line[::-1], 0.02, 0), (saw, 0.04, 0.1)):
        one = series("a", losses, accuracy=accuracy)
        assert FALL.of(one, "test_accuracy") == pytest.approx(fall, rel=0.1, abs=1e-12)
        assert SPREAD.of(one, "test_accuracy") == pytest.approx(spread, rel=0.1, abs=1e-12)
        # what falls of one measure rises of its negative
        assert FALL.of(one, "test_accuracy") == pytest.approx(
            RISE.of(series("a", losses, accuracy=-accuracy), "test_accuracy")
        )
    # the first tenth does not count
    early = line.copy()
    early[0] = 0.9
    assert FALL.of(series("a", losses, accuracy=early), "test_accuracy") == 0
    assert SPREAD.of(series("a", [1.0], accuracy=[0.5]), "test_accuracy") == 0
    lost = series("a", [1.0, 1.0, np.nan], accuracy=[0.1, 0.5, 0.1])
    assert FALL.of(lost, "test_accuracy") == SPREAD.of(lost, "test_accuracy") == math.inf


def test_the_mean_logarithm_is_the_rate_of_convergence() -> None:
    rounds = np.arange(11)
    fast, slow = series("a", 2 * 0.1**rounds), series("a", 2 * 0.5**rounds)
    difference = MEAN_LOG.of(slow, "train_loss") - MEAN_LOG.of(fast, "train_loss")
    # the initial model does not count: rounds 1 to 10 are 5.5 on average
    smallest = np.maximum(2 * 0.1 ** rounds[1:], 1e-7)
    expected = np.log10(2 * 0.5 ** rounds[1:]).mean() - np.log10(smallest).mean()
    assert difference == pytest.approx(expected)
    assert MEAN_LOG.of(series("a", [1, 0, 0]), "train_loss") == -7
    assert MEAN_LOG.of(series("a", [1, np.nan]), "train_loss") == math.inf


# --------------------------------------------------------------------------- the line of a sweep


def test_the_best_mu_is_the_one_with_the_lowest_loss_above_zero() -> None:
    runs = [
        series("fedprox mu=0", [9, 0.1]),
        series("fedprox mu=0.1", [9, 0.3], mu=0.1),
        series("fedprox mu=0.1", [9, 0.7], 1, mu=0.1),
        series("fedprox mu=1", [9, 0.4], mu=1),
        series("fedprox mu=1", [9, 0.4], 1, mu=1),
        series("fedprox mu=0.01", [9, np.nan], mu=0.01),
        series("fedprox mu=0.01", [9, 0], 1, mu=0.01),
    ]
    assert best(runs) == "fedprox mu=1"
    assert [one.seed for one in pick(runs, BEST)] == [0, 1]


# ------------------------------------------------------------------------------------ the runner

TINY: Table = {
    "rounds": 4,
    "data": {"name": "synthetic", "clients": 4},
    "cohort": {"clients_per_round": 2, "sampling": "uniform"},
    "systems": {"stragglers": 0.5},
    "solver": {"learning_rate": 0.01, "batch_size": 10, "epochs": 1},
    "method": [{"name": "fedprox", "mu": [0.0, 1.0]}],
}
SCALE = Scale("tiny", 2, (0, 1))


def tiny(**changes: Any) -> Item:
    curves = (
        Line("a", "fedprox mu=0", "FedProx, mu = 0"),
        Line("a", BEST, "FedProx, mu > 0"),
    )
    return Item(
        "Figure 0: made up",
        "nowhere",
        {"tiny": 1.0},
        {"a": TINY | changes},
        (
            Row("some", (Panel("A", "train_loss", curves), Panel("B", "mu", (), "not yet"))),
            Row("", (Panel("A", "test_accuracy", curves),)),
        ),
        (
            Claim(
                "mu = 0 is worse.",
                "test_accuracy",
                RULE,
                (Comparison("A", Line("a", BEST), Line("a", "fedprox mu=0"), "made up"),),
                paper="+22 %",
            ),
        ),
        notes=("A note.",),
    )


class Ran(NamedTuple):
    """What an item left, and the steps it reported."""

    out: Path
    text: str
    steps: list[Step]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    out = tmp_path_factory.mktemp("reproduced")
    steps: list[Step] = []
    return Ran(out, reproduce("made/up", tiny(), SCALE, out, on_step=steps.append), steps)


def test_an_item_runs_end_to_end(ran: Ran) -> None:
    folder = ran.out / "made" / "up"
    results = json.loads((folder / "results.json").read_text())
    assert (results["item"], results["scale"], results["seeds"]) == ("made/up", "tiny", [0, 1])
    assert ran.text.endswith("\n".join(markdown(results["blocks"])).rstrip() + "\n")
    assert {curve["seed"] for curve in results["curves"]} == {0, 1}
    assert all(curve["round"] == [0, 1, 2] for curve in results["curves"])
    assert results["made"]["versions"]["jax"]
    assert {"figure.png", "figure.svg", "metrics.csv", "table.md", "report.html"} <= {
        path.name for path in folder.iterdir()
    }
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "table.md").read_text() == ran.text
    assert "2 of 4 rounds; 2 seeds; made up" in ran.text
    assert "+22 %" in ran.text
    assert "B is left out: not yet." in ran.text
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert {(row["label"], row["seed"]) for row in rows} == {
        (label, seed) for label in ("fedprox mu=0", "fedprox mu=1") for seed in "01"
    }
    assert {row["round"] for row in rows} == {"0", "1", "2"}
    assert {row["mu"] for row in rows if row["label"] == "fedprox mu=1"} == {"1"}
    assert [step.name for step in ran.steps] == ["a-seed-0", "a-seed-1"]


@pytest.mark.parametrize(
    ("note", "name", "said"),
    [
        ("short: few rows", "paper", "seeds |"),
        ("our split; short: few rows", "short", "seeds; our split; few rows |"),
    ],
)
def test_what_the_short_scale_changes_is_said_at_that_scale(
    note: str, name: str, said: str, ran: Ran
) -> None:
    item = tiny()
    (claim,) = item.claims
    compared = claim.comparisons[0]._replace(note=note)
    item = replace(
        item, claims=(claim._replace(comparisons=(compared,)),), seconds=dict.fromkeys([name], 1.0)
    )
    assert said in reproduce(f"made/{name}", item, SCALE._replace(name=name), ran.out)


def test_its_experiments_are_ordinary_run_directories(ran: Ran) -> None:
    for seed in (0, 1):
        run = ran.out / "runs" / f"a-seed-{seed}"
        again = tomllib.loads((run / "experiment.toml").read_text())
        assert (again["seed"], again["data"]["seed"], again["rounds"]) == (seed, seed, 2)
        assert (run / "summary.json").is_file()
        assert [m["mu"] for m in again["method"]] == [[0.0, 1.0]]


def test_what_is_complete_is_not_run_again(ran: Ran) -> None:
    text = reproduce("made/up", tiny(), SCALE, ran.out)
    assert "2 of 2 experiments were there already" in text
    assert text.split("\n\n")[2:] == ran.text.split("\n\n")[2:]


def test_a_folder_with_another_scale_is_refused(ran: Ran) -> None:
    with pytest.raises(InputError, match="holds another experiment's results"):
        reproduce("made/up", tiny(), Scale("other", 1, (0, 1)), ran.out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": []}, r"method = \[\]; it must be one section or several"),
        ({"method": [{"name": "fedporx"}]}, r"method\.0\.name = 'fedporx'; did you mean"),
        ({"data": {"name": "synthetic", "cliens": 3}}, "data: unknown key 'cliens'"),
        ({"cohort": {"clients_per_round": 2, "sampling": "no"}}, r"cohort\.sampling = 'no'"),
        ({"cohort": {"clients_per_round": 9}}, r"cohort\.clients_per_round = 9"),
    ],
)
def test_a_refused_experiment_ends_the_item(changes: Table, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^made/up: a-seed-0: {message}") as error:
        reproduce("made/up", tiny(**changes), SCALE, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_missing_data_are_known_before_anything_runs(tmp_path: Path) -> None:
    late = tiny()
    runs = {"a": TINY, "b": TINY | {"data": {"name": "mnist"}}}
    item = Item(late.title, late.source, late.seconds, runs, late.rows)
    with pytest.raises(InputError, match="made/up: b: mnist: train-images"):
        reproduce("made/up", item, SCALE, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_series_of_a_run_directory(ran: Ran) -> None:
    found = read_series(ran.out / "runs" / "a-seed-1", 1)
    assert [(one.label, one.seed) for one in found] == [("fedprox mu=0", 1), ("fedprox mu=1", 1)]
    for one, mu in zip(found, (0, 1), strict=True):
        assert one.rounds.tolist() == [0, 1, 2]
        assert one.of("mu").tolist() == [mu] * 3
        lines = (ran.out / "runs" / "a-seed-1" / "metrics.jsonl").read_text().splitlines()
        losses = [x["train_loss"] for x in map(json.loads, lines) if x["label"] == one.label]
        assert one.of("train_loss").tolist() == losses
    assert read_series(ran.out / "runs" / "a-seed-1")[0].seed == 1


def test_a_seed_that_stopped_early_does_not_shorten_the_others() -> None:
    item = tiny()
    measured = {
        "a": [
            series("fedprox mu=0", [2, np.nan], 0, [0.1, 0.1]),
            series("fedprox mu=0", [2, 1.5, 1.2, 1], 1, [0.1, 0.2, 0.3, 0.4]),
            *(series("fedprox mu=1", [2, 1.5, 1.2, 1], s, [0.1, 0.2, 0.3, 0.4], 1) for s in (0, 1)),
        ]
    }
    axis = figure(item, measured).axes[0]
    zero, one = (np.asarray(line.get_ydata(), float) for line in axis.get_lines())
    assert np.isfinite(zero).tolist() == [True, False, False, False]
    np.testing.assert_allclose(one, [2, 1.5, 1.2, 1])
    band = axis.collections[0].get_paths()[0].vertices
    assert np.asarray(band)[:, 0].max() == 3


def test_a_panel_over_steps_of_the_best_so_far() -> None:
    item = tiny()
    runs = [
        series("fedprox mu=0", [2, 1.5, 1.2, 1], seed, [0.1, 0.4, accuracy, 0.5])
        for seed, accuracy in enumerate((0.2, 0.45))
    ]
    for run in runs:
        run.values["total_steps"] = np.array([0.0, 30.0, 60.0, 90.0])
    curve = Line("a", "fedprox mu=0", "FedAvg")
    panel = Panel("A", "test_accuracy", (curve,), x="total_steps", best=True)
    drawn = figure(replace(item, rows=(Row("", (panel,)),)), {"a": runs})
    (axis,) = drawn.axes
    (line,) = axis.get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [0, 30, 60, 90]
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [0.1, 0.4, 0.425, 0.5])
    assert axis.get_xlabel() == "mini-batch gradients"


def test_statistics_stand_below_the_papers(tmp_path: Path) -> None:
    item = Item(
        "Table 0",
        "nowhere",
        {"tiny": 1.0},
        statistics=(
            Statistics("Drawn", (30, 1000, 33, 9), {"name": "synthetic", "clients": 30}),
            Statistics("Alike", (4, 4, 4, 4), {"name": "synthetic-feddyn", "clients": 4}),
        ),
    )
    text = reproduce("made/up", item, SCALE, tmp_path)
    assert "| Drawn | paper | 30 | 1,000 | 33 | 9 |" in text
    assert "|  | ours | 30 | " in text
    assert text.count("2 draws") == 1
    assert "|  | ours | 4 | 1,600 | 400 | 0 |  |" in text


def test_training_and_test_examples_are_counted_apart(tmp_path: Path) -> None:
    data = {"name": "synthetic", "clients": 4}
    row = Statistics("Drawn", (1000, 100), data, "short: two seeds", PARTS)
    item = Item("Table 0", "nowhere", {"tiny": 1.0}, statistics=(row,))
    text = reproduce("made/up", item, SCALE._replace(seeds=(3,)), tmp_path)
    drawn = synthetic(clients=4, seed=3)
    assert "| data |  | training examples | test examples | made with |" in text
    assert "| Drawn | paper | 1,000 | 100 |  |" in text
    assert f"|  | ours | {len(drawn.train):,} | {len(drawn.test):,} |" in text


def test_mixes_count_the_clients_by_their_classes(tmp_path: Path) -> None:
    item = Item(
        "Figure 0",
        "nowhere",
        {"tiny": 1.0},
        rows=(Row("", (Panel("Drawn", "clients", (Line("m", "80 %", "IID"),), x="classes"),)),),
        claims=(
            Claim(
                "More classes make up more.",
                "clients",
                CLASSES,
                (Comparison("drawn", Line("m", "80 %"), Line("m", "40 %")),),
            ),
        ),
        mixes={"m": {"name": "synthetic", "clients": 12}},
    )
    assert item.data == ("synthetic",)
    text = reproduce("made/up", item, SCALE, tmp_path)
    measured = mix(item.mixes["m"], 0)
    assert [series.label for series in measured] == list(LABELS) == ["40 %", "60 %", "80 %"]
    needed = statistics(synthetic(clients=12, seed=0), "train").most
    assert measured[2].values["clients"].tolist() == [(needed == k).sum() for k in range(1, 11)]
    assert CLASSES.of(measured[2], "clients") == pytest.approx(needed.mean())
    (axis,) = figure(item, {"m": measured}).axes
    (line,) = axis.get_lines()
    assert np.asarray(line.get_ydata()).tolist() == measured[2].values["clients"].tolist()
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("classes", "clients")
    assert "(clients as the mean number of classes; 1 within noise)" in text


def test_a_diverged_line_does_not_flatten_the_others() -> None:
    item = tiny()
    calm = np.linspace(2, 1, 20)
    wild = np.concatenate([calm[:5], np.geomspace(2, 1e6, 10), np.full(5, np.nan)])
    measured = {
        "a": [
            one
            for seed in (0, 1)
            for one in (
                series("fedprox mu=0", wild, seed, calm / 2),
                series("fedprox mu=1", calm, seed, calm / 2, mu=1.0),
            )
        ]
    }
    drawn = figure(item, measured)
    axis = drawn.axes[0]
    assert 2 < axis.get_ylim()[1] < 15
    colours = [line.get_color() for line in axis.get_lines()]
    assert colours == [COLOURS[c.shown] for c in item.rows[0].panels[0].curves]
    assert axis.get_title() == r"A, $\mu$ = 1"
    text = table("made/up", item, SCALE, blocks(item, SCALE, measured, {}), "1 s")
    assert "| A | fedprox mu=0 | 10 (diverged) | 10 (diverged) |" in text
    assert "| A | fedprox mu=1 | 19 (last round) | 19 (last round) |" in text


# ------------------------------------------------------------------------------------- the races

GOAL = Target("test_accuracy", 0.8)


def climb(name: str, rounds: float, seed: int = 0, *, end: int = 100, models: float = 1) -> Series:
    """A run that is at 80 % after so many rounds, and ends there or at a last round."""
    last = min(rounds, end)
    one = series(name, [1.0, 0.5], seed, accuracy=[0.0, 0.8 * (last / rounds)])
    return one._replace(rounds=np.array([0, last]), models=models)


def race(*entries: Entry | None, unit: Any = "rounds", relative: Any = "first column") -> Race:
    columns = tuple("ABCD"[: len(entries)])
    return Race(columns, (RaceRow("digits", GOAL, entries, "made up"),), unit, relative)


def test_one_setting_of_a_sweep_counts_for_all_seeds() -> None:
    runs = {
        "r": [
            climb("fedavg learning_rate=0.1", 50),
            climb("fedavg learning_rate=0.3", 20),
            climb("fedavg learning_rate=0.1", 60, 1),
            climb("fedavg learning_rate=0.3", 95, 1),
            climb("fedavg learning_rate=1", 5),  # most luck
            climb("fedavg learning_rate=1", 1000, 1),
            climb("fedavgm", 1),
            climb("fedprox mu=1", 30),
            climb("fedprox mu=10", 20),
        ]
    }
    entries = [Entry("r", "fedavg"), Entry("r", "fedprox mu=1"), None]
    ((avg, prox, none),) = measure(race(*entries), runs)
    assert avg is not None
    assert prox is not None
    assert none is None
    np.testing.assert_allclose(avg.counts, [50, 60])
    assert (avg.setting, avg.settings) == ("learning_rate=0.1", 3)
    assert avg.mean == Count(55)
    # whole words: mu=10 does not begin with mu=1
    np.testing.assert_allclose(prox.counts, [30])
    assert (prox.setting, prox.settings) == ("", 1)
    with pytest.raises(KeyError, match="no 'fed' among"):
        measure(race(Entry("r", "fed")), runs)


@given(lines=st.lists(st.integers(1, 200), min_size=1, max_size=4))
def test_a_run_that_stopped_when_any_line_was_there_counts_the_same(lines: list[int]) -> None:
    def run(*, stops: bool) -> list[Series]:
        end = min(100, *lines) if stops else 100
        return [climb(f"m k={k}", count, end=end) for k, count in enumerate(lines)]

    found = [measure(race(Entry("r", "m")), {"r": run(stops=s)})[0][0] for s in (False, True)]
    for one in found:
        assert one is not None
        assert one.counts.tolist() == [min(100, *lines)]
        assert one.reached.tolist() == [min(lines) <= 100]
    assert len({one and one.setting for one in found}) == 1


@pytest.mark.parametrize(
    ("counts", "by_row", "by_column"),
    [
        # Acar et al. 2021, Table 1; as speed-ups the other way around
        ([637, 1852], "2.9x", "0.3x"),
        ([637, "1000+"], ">1.6x", "<0.6x"),
        (["1000+", 637], "<0.6x", ">1.6x"),
        (["1000+", "2000+"], "", ""),
        ([637, ""], "", ""),
        ([1000, 20], "0.02x", "50.0x"),
        (["", 637], "", ""),
    ],
)
def test_ratios_are_the_papers(counts: list[float | str], by_row: str, by_column: str) -> None:
    row = [printed(count) for count in counts]
    assert ratio([row], 0, 1, "first column") == by_row
    assert ratio([[count] for count in row], 1, 0, "first row") == by_column
    assert ratio([row], 0, 0, "first column") == ratio([row], 0, 0, "first row") == ""


@pytest.mark.parametrize(
    ("paper", "ours", "expected"),
    [
        (100, Count(149), ""),
        (100, Count(151), "1.5 times"),
        (100, Count(230), "2.3 times"),
        (100, Count(67), ""),
        (100, Count(50), "0.5 times"),
        ("1000+", Count(900), ""),
        ("1000+", Count(300), "less than 0.3 times"),
        (100, Count(120, more=True), ""),
        (100, Count(20, more=True), ""),
        (100, Count(500, more=True), "more than 5 times"),
        (5, Count(612), "122 times"),
        (41, Count(4100, more=True), "more than 100 times"),
        ("1000+", Count(200, more=True), ""),
        ("1000+", Count(9000, more=True), ""),
        ("", Count(5), ""),
    ],
)
def test_what_is_far_off_is_said_where_it_is_certain(
    paper: float | str, ours: Count, expected: str
) -> None:
    assert off(printed(paper), ours) == expected


def raced(race: Race, runs: dict[str, list[Series]]) -> list[list[str]]:
    """The cells of an item's table of rounds, at a fifth of the paper's rounds."""
    item = Item(
        "Table 0", "nowhere", {"short": 1.0}, {run: {"rounds": 500} for run in runs}, races=(race,)
    )
    text = table("made/up", item, SCALES["short"], blocks(item, SCALES["short"], runs, {}), "1 s")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_table_of_models_has_the_papers_and_ours_in_each_cell() -> None:
    runs = {
        "r": [
            *(climb("feddyn alpha=0.1", 20 + 2 * seed, seed) for seed in (0, 1)),
            *(climb("feddyn alpha=1", 30, seed) for seed in (0, 1)),
            *(climb("scaffold", 42, seed, models=2) for seed in (0, 1)),
            *(climb("fedavg", 90 + 20 * seed, seed) for seed in (0, 1)),
            *(climb("fedprox mu=1", 900, seed, models=2) for seed in (0, 1)),
        ]
    }
    entries = (
        Entry("r", "feddyn", 38),
        Entry("r", "scaffold", 72),
        Entry("r", "fedavg", "1000+"),
        Entry("r", "fedprox", 50),
    )
    header, _, row = raced(race(*entries, unit="models"), runs)
    assert header == ["", "target", *"ABCD", "more than 1.5 times off", "made with"]
    assert row == [
        "digits",
        "80 %",
        "paper 38; ours 21 ± 1; alpha=0.1 of 2 settings",
        "paper 72 (1.9x); ours 84 ± 0 (4.0x)",
        "paper 1000+ (>26.3x); ours 100+ (1 of 2 seeds got there) (>4.5x)",
        "paper 50 (1.3x); ours 200+ (>9.5x)",
        "**A: 0.55 times**; **D: more than 4 times**",
        "at most 100 of 500 rounds; 2 seeds; made up",
    ]


def test_a_table_of_rounds_has_speed_ups_over_its_first_row() -> None:
    runs = {
        "one": [climb("fedavg learning_rate=0.1", 90)],
        "ten": [climb("fedavg learning_rate=0.3", 8.5)],
        "wild": [series("fedavg learning_rate=9", [1, np.nan], accuracy=[0.1, 0.1])],
    }
    rows = tuple(
        RaceRow(run, GOAL, (Entry(run, "fedavg", paper), None))
        for run, paper in (("one", 316), ("ten", 87), ("wild", ""))
    )
    cells = [row[2:4] for row in raced(Race(("IID", "shards"), rows, "rounds", "first row"), runs)]
    assert cells[2:] == [
        ["paper 316; ours 90; learning_rate=0.1", ""],
        ["paper 87 (3.6x); ours 8.5 (10.6x); learning_rate=0.3", ""],
        ["ours diverged", ""],
    ]


def test_a_seed_that_diverged_leaves_no_ratio() -> None:
    lost = series("feddyn", [1, np.nan], accuracy=[0.1, 0.1])
    runs = {
        "a": [climb("feddyn", 10), climb("feddyn", 11, 1), lost._replace(seed=2)],
        "b": [climb("fedavg", 20)],
    }
    cells = race(Entry("a", "feddyn", 9), Entry("b", "fedavg", 18))
    first, second = raced(cells, runs)[-1][2:4]
    assert first == "paper 9; ours diverged (1 of 3 seeds)"
    assert second == "paper 18 (2.0x); ours 20"


def test_a_race_runs_end_to_end(tmp_path: Path) -> None:
    run = TINY | {
        "rounds": 24,
        "target_loss": 2.0,
        "stop_at_target": "any",
        "evaluation": {"gradients": False},
        "solver": {"learning_rate": [1e-9, 0.03], "batch_size": 10, "epochs": 1},
        "method": [{"name": "fedavg"}, {"name": "feddane", "mu": 1.0}],
        MOST_SEEDS: 1,
    }
    entries = (Entry("a", "fedavg", 5), Entry("a", "feddane", "40+"))
    rows = (RaceRow("drawn", Target("train_loss", 2.0), entries),)
    races = (Race(("FedAvg", "FedDANE"), rows, "models", "first column"),)
    item = Item("Table 0", "nowhere", {"tiny": 1.0}, {"a": run}, races=races)
    text = reproduce("made/up", item, SCALE, tmp_path)
    assert "Models sent, relative to one round of FedAvg, to the target" in text
    assert "| drawn | loss 2 | paper 5; ours " in text
    assert "at most 12 of 24 rounds; 1 seed |" in text
    assert "`python -m experiments made/up --scale tiny`, seed 0, " in text
    summary = json.loads((tmp_path / "runs" / "a-seed-0" / "summary.json").read_text())
    models = {one["label"]: one["models_to_target"] for one in summary}
    reached = models["fedavg learning_rate=0.03"]
    assert f"ours {reached:.1f}; learning_rate=0.03" in text
    assert reproduce("made/up", item, SCALE, tmp_path).split("\n\n")[2:] == text.split("\n\n")[2:]


# --------------------------------------------------------------------------- searches that grow

STEPS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)


@given(best=st.sampled_from(STEPS), begin=st.integers(0, 6), count=st.integers(1, 3))
def test_a_search_grows_until_the_best_rate_is_inside(best: float, begin: int, count: int) -> None:
    first = list(STEPS[begin : begin + count])
    table: Table = {"rounds": 90, "solver": {"learning_rate": first}, "evaluation": {"every": 7}}
    ran: dict[str, Table] = {}

    def train(name: str, one: Table) -> list[Series]:
        ran[name] = one
        rates = np.atleast_1d(one["solver"]["learning_rate"]).tolist()
        needs = {rate: 10 + 30 * abs(STEPS.index(rate) - STEPS.index(best)) for rate in rates}
        # a sweep ends when its first line is there, and its labels have rates if there are several
        end = min(one["rounds"], *needs.values())
        named = [f" learning_rate={rate:g}" if len(rates) > 1 else "" for rate in rates]
        return [
            climb(f"fedavg{name}", needs[rate], end=end)
            for name, rate in zip(named, rates, strict=True)
        ]

    lines = grown("r", table, STEPS, GOAL, train)
    tried = sorted(rate for line in lines if (rate := rate_of(line.label)) is not None)
    assert len(tried) == len(lines) == len(set(tried))
    assert best_rate(lines, GOAL) == best
    at = STEPS.index(best)
    assert set(STEPS[max(0, at - 1) : at + 2]) <= set(tried)
    assert tried == list(STEPS[STEPS.index(tried[0]) : STEPS.index(tried[-1]) + 1])
    ((cell,),) = measure(race(Entry("r", "fedavg")), {"r": lines})
    assert cell is not None
    assert cell.rates == tuple(tried)
    assert cell.at_edge == (best in (STEPS[0], STEPS[-1]))
    if best in first:  # the next rates need not run for longer than the best one, 10 rounds
        assert all(one["rounds"] == 14 for name, one in ran.items() if name != "r")


@given(limit=st.integers(0, 7), begin=st.integers(0, 6), count=st.integers(1, 3))
def test_a_search_leaves_rates_that_diverge(limit: int, begin: int, count: int) -> None:
    """Rates from `limit` on diverge; it goes down until a rate learns, or the grid ends."""
    first = list(STEPS[begin : begin + count])
    table: Table = {"rounds": 40, "solver": {"learning_rate": first}, "evaluation": {"every": 1}}

    def train(_: str, one: Table) -> list[Series]:
        rates = np.atleast_1d(one["solver"]["learning_rate"]).tolist()
        lost = series("", [2, 1, np.nan], accuracy=[0.1, 0.95, 0.1])
        found = [climb("", 30) if STEPS.index(rate) < limit else lost for rate in rates]
        named = [f"fedavg learning_rate={rate:g}" if len(rates) > 1 else "fedavg" for rate in rates]
        return [line._replace(label=label) for line, label in zip(found, named, strict=True)]

    lines = grown("r", table, STEPS, Target("test_accuracy", 0.999), train)
    best = best_rate(lines, Target("test_accuracy", 0.999))
    assert best == STEPS[0] or STEPS.index(best) < limit


def test_a_search_without_a_hit_names_the_closest_rate_and_an_edge() -> None:
    lines = [
        series(f"fedavg learning_rate={rate:g}", [2, 1, 1], accuracy=[0.1, best, 0.2])
        for rate, best in ((0.1, 0.3), (0.2, 0.4), (0.4, 0.6))
    ]
    (cell,) = raced(race(Entry("a", "fedavg", 9)), {"a": lines})[-1][2:3]
    assert cell == "paper 9; ours 2+; closest learning_rate=0.4 (at the edge) of 0.1, 0.2, 0.4"
    lines.append(lines[0]._replace(label="fedavg learning_rate=0.8"))
    (cell,) = raced(race(Entry("a", "fedavg", 9)), {"a": lines})[-1][2:3]
    assert cell.endswith("closest learning_rate=0.4 of 0.1, 0.2, 0.4, 0.8")


def test_a_search_grows_end_to_end(tmp_path: Path) -> None:
    run = TINY | {
        "rounds": 24,
        "data": TINY["data"] | {"seed": 0},
        "target_loss": 2.0,
        "stop_at_target": "any",
        "evaluation": {"gradients": False},
        "solver": {"learning_rate": 0.0003, "batch_size": 10, "epochs": 1},
        "method": [{"name": "fedavg"}],
        MOST_SEEDS: 1,
        MORE_RATES: [0.0003, 0.003, 0.03, 0.3, 3.0, 30.0],
    }
    rows = (RaceRow("drawn", Target("train_loss", 2.0), (Entry("a", "fedavg", 5),)),)
    races = (Race(("FedAvg",), rows, "rounds", "first row"),)
    other = {key: value for key, value in run.items() if key != MORE_RATES}
    item = Item("Table 0", "nowhere", {"tiny": 1.0}, {"a": run, "b": other}, races=races)
    steps: list[Step] = []
    text = reproduce("made/up", item, SCALE, tmp_path, on_step=steps.append)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert [step.of for step in steps] == [2, *range(3, len(steps) + 1), len(steps)]
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert folders[:3] == ["a", "a-rate-0.003", "a-rate-0.03"]
    assert " of 0.0003, 0.003, 0.03" in text
    assert "at the edge" not in text
    again = reproduce("made/up", item, SCALE, tmp_path)
    assert f"({len(folders)} of {len(folders)} experiments were there already)" in again
    assert again.split("\n\n")[2:] == text.split("\n\n")[2:]
    short = reproduce("made/up", item, SCALES["short"], tmp_path / "short")
    assert sorted(path.name for path in (tmp_path / "short" / "runs").iterdir()) == ["a", "b"]
    assert "ours" in short


# ----------------------------------------------------------------------------------- the command


def command(*arguments: str, capsys: Any, monkeypatch: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedprox", *arguments])
    with pytest.raises(SystemExit) as end:
        main(app)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_the_listing_names_every_item(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = command(capsys=capsys, monkeypatch=monkeypatch)
    assert status == 0
    for name in ITEMS | PRINTED:
        assert name in out


@pytest.mark.parametrize("path", sorted({printed.path for printed in PRINTED.values()}))
def test_what_was_only_printed_is_an_experiment(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tomllib.loads(path.read_text())
    assert parse(path.name, table).rounds >= 30
    names = [name for name, printed in PRINTED.items() if printed.path == path]
    assert not ITEMS.keys() & set(names)
    status, out, _ = command(names[-1], capsys=capsys, monkeypatch=monkeypatch)
    assert status == 0
    assert out == f"fedprox run {path}\n\n{path.read_text()}\n"
    load = signature(DATASETS[table["data"].pop("name")]).parameters
    assert table["data"].keys() <= load.keys()
    assert labels(table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedprox/figre-1"], "no item 'fedprox/figre-1'; did you mean fedprox/figure-1 or"),
        (["nothing at all"], "no item 'nothing at all'; `python -m experiments` lists them"),
        (["other/"], "no item 'other/'"),
        (["fedprox/figure-1", "--scale", "long"], "--scale long; it must be short or paper"),
    ],
)
def test_bad_names_get_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status, out, err = command(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_names_select_one_a_paper_or_all() -> None:
    assert list(select("fedprox/figure-1")) == ["fedprox/figure-1"]
    assert select("all") == ITEMS
    assert all(name.startswith("fedprox-draft/") for name in select("fedprox-draft/"))
    assert len(select("fedprox/")) == 18


def test_the_command_runs_an_item_and_prints_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Statistics("Drawn", (30, 1000, 33, 9), {"name": "synthetic"})
    item = Item("Table 0", "nowhere", {"short": 1.0, "paper": 200.0}, statistics=(drawn,))
    monkeypatch.setitem(ITEMS, "made/up", item)
    for name in ("use_cpu_devices", "use_compilation_cache"):
        monkeypatch.setattr(f"experiments.__main__.{name}", lambda *_, **__: None)
    arguments = ["made/up", "--out", str(tmp_path), "--scale", "paper"]
    status, out, err = command(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert (status, err) == (0, "")
    assert "made/up: Table 0; about 3 min on two cores" in out
    assert "| Drawn | paper | 30 | 1,000 | 33 | 9 |" in out
    assert (tmp_path / "made" / "up" / "table.md").read_text().strip() in out
