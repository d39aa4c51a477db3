"""The items as data: what they name exists, and runs at a scale are what they should be."""

import functools
import json
import tomllib
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

from experiments import ITEMS, LONG, select
from experiments.engine.item import (
    AXES,
    MEASURES,
    MOST_SEEDS,
    NO_SETTINGS,
    SCALES,
    SHORT,
    Item,
    Line,
    Scale,
    Table,
    expand,
)
from experiments.engine.series import BEST, LOWEST, without_choice
from experiments.engine.summaries import MEAN, RULE
from experiments.fedavg.averages import LINE, PARENT
from experiments.feddyn.data import LABELS
from experiments.independent import fednova, fedsplit
from experiments.independent.ditto import MULTIPLES
from experiments.independent.fixed_points import proved
from experiments.printed import PRINTED
from experiments.studies.adapters import COST_LABELS
from fedprox.datasets import DATASETS
from fedprox.experiment import parse, resolve
from fedprox.federation import Federation
from fedprox.protocol.method import label, sweep_points
from fedprox.user_code import import_function

INDEPENDENT = (*fednova.LABELS, *fedsplit.LABELS, *MULTIPLES)
OTHERS = {
    *(LINE, PARENT, *LABELS, fedsplit.BOUND),
    *INDEPENDENT,
    *map(proved, INDEPENDENT),
    *COST_LABELS.values(),
}
"""The labels of what is measured beside runs."""


def check_options(data: Table) -> None:
    load = DATASETS.get(data["name"]) or import_function("", data["name"], Federation)
    assert data.keys() - {"name", "skew"} <= signature(load).parameters.keys()


@pytest.mark.parametrize("name", ITEMS)
def test_every_experiment_is_one(name: str) -> None:
    for run, paper in ITEMS[name].runs.items():
        for scale in SCALES.values():
            for one in expand(paper, scale).values():
                experiment = parse(f"{name}: {run}", one)
                check_options(experiment.data)
                assert experiment.evaluation.every <= experiment.rounds
                if name.startswith("fedprox"):
                    assert experiment.solver.batch_size == 10


@pytest.mark.parametrize(
    "path", sorted({one.path for one in PRINTED.values()}), ids=lambda p: p.stem
)
def test_what_is_only_printed_is_an_experiment(path: Path) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert parse(path.name, table).rounds >= 30
    check_options(table["data"])
    assert labels(table)


def test_items_are_run_or_printed_and_the_long_ones_are_run() -> None:
    assert not ITEMS.keys() & PRINTED.keys()
    assert {printed.path for printed in PRINTED.values()} == set(
        (Path(__file__).parents[2] / "experiments" / "printed").glob("*.toml")
    )
    assert list(select("long")) == list(LONG)
    assert list(select("fedprox/figure-1")) == ["fedprox/figure-1"]
    assert select("fedavg/table-3") == {"fedavg/table-3": PRINTED["fedavg/table-3"]}
    assert select("all") == ITEMS
    assert all(name.startswith("fedprox-draft/") for name in select("fedprox-draft/"))
    assert len(select("fedprox/")) == 18


def labels(paper: Table) -> set[str]:
    """The labels that an experiment's methods will have, found with data that need no file."""
    easy: Table = {"data": {"name": "synthetic", "clients": 2}, "model": {"name": "logistic"}}
    known = {k: v for k, v in paper.items() if k not in (MOST_SEEDS, *NO_SETTINGS)}
    return labels_of(json.dumps(known | easy))


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


def sides(item: Item) -> Iterator[Line]:
    """All that an item draws, compares or counts."""
    for panel in [panel for row in item.panels for panel in row]:
        for run in panel.runs:
            yield from (Line(run, one) for one in panel.labels or (LOWEST,))
    for claim in item.claims:
        for comparison in claim.comparisons:
            yield from (comparison.greater, comparison.less)
    for table in item.values:
        for _, lines in table.rows:
            yield from filter(None, lines)
    yield from (Line(score.run, "centralised") for score in item.scores)
    for row in [row for race in item.races for row in race.rows]:
        for one in filter(None, row.entries):
            swept = without_choice(one.method) == one.method
            yield Line(one.run, f"{LOWEST}{one.method}" if swept else one.method)


@pytest.mark.parametrize("name", ITEMS)
def test_lines_name_runs_and_methods_that_there_are(name: str) -> None:
    item = ITEMS[name]
    named = set(sides(item))
    known = {run: labels(paper) for run, paper in item.runs.items()}
    for group, runs in item.joined.items():
        each = [(words, known.pop(run)) for run, words in runs.items()]
        known[group] = {
            " ".join([words[method], *rest])
            for words, found in each
            for method, *rest in map(str.split, found)
        }
    known |= dict.fromkeys(item.others, OTHERS)
    for run, line in named - {one for one in named if one.label in (BEST, LOWEST)}:
        beginning = without_choice(line)
        assert line in known[run] or beginning != line
        assert any(f"{one} ".startswith(f"{beginning} ") for one in known[run])
    # nothing is run that is neither drawn nor compared
    assert {run for run, _ in named} == known.keys()
    panels = [panel for row in item.panels for panel in row]
    assert {panel.measure for panel in panels} <= MEASURES.keys()
    assert {panel.x for panel in panels} <= AXES.keys()
    assert {claim.measure for claim in item.claims} <= MEASURES.keys()
    assert all(claim.comparisons for claim in item.claims)
    assert any((item.panels, item.races, item.statistics, item.scores))
    assert item.seconds.keys() == SCALES.keys()
    assert item.seconds["short"] <= 3600
    assert item.seconds["paper"] <= 10 * 3600


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.races])
def test_a_race_goes_on_until_its_target(name: str) -> None:
    item = ITEMS[name]
    for race in item.races:
        for row in race.rows:
            assert len(row.entries) == len(race.columns)
            for entry in filter(None, row.entries):
                run = item.runs.get(entry.run, {})  # joined runs end at a time
                if run.get("stop_at_target", "never") == "never":
                    continue
                # a run that stops goes on until the row's target, and to the best of the sweep
                assert row.target.met(run.get("target_accuracy") or run["target_loss"])
                # one setting counts for all seeds, which is not always the first at the target
                assert run["stop_at_target"] == "all" or run[MOST_SEEDS] == 1


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_means_over_the_rounds_are_of_the_same_rounds(scale: Scale) -> None:
    for item in ITEMS.values():
        for claim in item.claims:
            for one in claim.comparisons if claim.over is MEAN else ():
                runs = [expand(item.runs[s.run], scale) for s in (one.greater, one.less)]
                first = [next(iter(run.values())) for run in runs]
                assert len({(x["rounds"], x["evaluation"].get("every", 1)) for x in first}) == 1
                assert not any("stop_at_target" in x for x in first)


def test_the_papers_rule_reads_every_round() -> None:
    ruled = [(i, c) for i in ITEMS.values() for c in i.claims if c.over is RULE]
    assert len(ruled) >= 3
    for item, claim in ruled:
        for one in claim.comparisons:
            for side in (one.greater, one.less):
                assert item.runs[side.run]["evaluation"].get("every", 1) == 1


def test_runs_that_items_share_are_the_same() -> None:
    known: dict[str, Table] = {}
    for item in ITEMS.values():
        for run, one in item.runs.items():
            assert known.setdefault(run, one) == one
    folders = [run + end for run, one in known.items() for end in expand(one, SCALES["paper"])]
    assert len(set(folders)) == len(folders)


PAPER: Table = {
    "rounds": 300,
    MOST_SEEDS: 3,
    "data": {"name": "mnist", "clients": 100},
    "solver": {"epochs": 5, "learning_rate": [0.1, 0.2]},
}
CHANGES: Table = {MOST_SEEDS: 1, "client_rows": 60, "solver": {"learning_rate": [0.1]}}
SHORTER: Table = {
    "rounds": 300,
    "client_rows": 60,
    "data": PAPER["data"],
    "solver": {"epochs": 5, "learning_rate": [0.1]},
    "seed": [0],
}


@pytest.mark.parametrize(
    ("table", "scale", "expected"),
    [
        # what the short scale changes stands beside the experiment
        (PAPER | {SHORT: CHANGES}, "short", {"": SHORTER}),
        (
            PAPER | {SHORT: CHANGES},
            "paper",
            {"": {k: v for k, v in PAPER.items() if k != MOST_SEEDS} | {"seed": [0, 1, 2]}},
        ),
        # else it has a fifth of the rounds
        (
            {"rounds": 2, "data": {"name": "mnist"}},
            "short",
            {"": {"rounds": 1, "data": {"name": "mnist"}, "seed": [0, 1]}},
        ),
        # generated data have the run's seed
        (
            {"rounds": 10, "data": {"name": "synthetic"}},
            "short",
            {
                f"-seed-{s}": {"rounds": 2, "data": {"name": "synthetic", "seed": s}, "seed": s}
                for s in (0, 1)
            },
        ),
        # a fixed seed of the run: one draw of the data for each seed
        (
            {"rounds": 5, "data": {"name": "mnist"}, "seed": 0},
            "short",
            {
                f"-seed-{s}": {"rounds": 1, "data": {"name": "mnist", "seed": s}, "seed": 0}
                for s in (0, 1)
            },
        ),
        # generated data with a fixed seed are the same for all seeds
        (
            {"rounds": 5, "data": {"name": "synthetic-feddyn", "seed": 7}},
            "short",
            {
                "": {
                    "rounds": 1,
                    "data": {"name": "synthetic-feddyn", "seed": 7},
                    "seed": [0, 1],
                }
            },
        ),
    ],
)
def test_a_run_at_a_scale(table: Table, scale: str, expected: dict[str, Table]) -> None:
    assert expand(table, SCALES[scale]) == expected
