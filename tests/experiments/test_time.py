"""The study of time to accuracy: its devices and grids, and measures by the devices' time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from experiments import ITEMS
from experiments.engine.blocks import blocks
from experiments.engine.figure import figure
from experiments.engine.item import (
    DEVICES,
    MOST_SEEDS,
    SCALES,
    SECONDS,
    SHORT,
    Claim,
    Comparison,
    Entry,
    Item,
    Line,
    Panel,
    Race,
    RaceRow,
    Table,
    Values,
    expand,
    seconds_of,
)
from experiments.engine.run import reproduce
from experiments.engine.series import ACCURACY, VALIDATED, Series, pick
from experiments.engine.speeds import by_speed
from experiments.engine.summaries import END, OVER_TIME
from experiments.studies.time import (
    AT_WORK,
    POPULATIONS,
    RARE,
    RULES,
    SPREAD,
    TASKS,
    place,
    rare_share,
    tied_speeds,
)
from fedprox import Target
from fedprox.errors import InputError
from fedprox.federation import Federation
from tests.experiments.made_up import SCALE, TINY
from tests.experiments.test_items import labels

STUDIES = [f"studies/time-{task.key}" for task in TASKS]


def federation(clients: list[list[int]]) -> Federation:
    """Clients whose rows have these labels."""
    return Federation.from_arrays([(np.zeros((len(y), 1)), y) for y in clients])


# ------------------------------------------------------------------------------------ the devices


def test_rare_classes_are_the_fifth_with_the_fewest_rows() -> None:
    # of six classes the two rarest: 5, with one row, and 4, with two
    clients = [[0, 0, 0, 1, 1, 1], [2, 2, 2, 4], [3, 3, 3, 4, 5]]
    np.testing.assert_allclose(rare_share(federation(clients)), [0, 1 / 4, 2 / 5])


LABELS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@given(clients=st.lists(LABELS, min_size=2, max_size=20))
def test_devices_of_clients_with_rarer_classes_are_slower(clients: list[list[int]]) -> None:
    owners = federation(clients)
    seconds = np.array(tied_speeds(owners)["step_seconds"])
    assert seconds.tolist() == tied_speeds(owners)["step_seconds"]
    share = rare_share(owners)
    for one in np.unique(share):
        assert (seconds[share == one].min() > seconds[share < one]).all()
    # whose devices they are differs; which there are does not
    at = (np.arange(len(clients)) + 0.5) / len(clients)
    np.testing.assert_allclose(np.sort(seconds), np.exp(SPREAD * norm.ppf(at)))


def test_the_share_is_of_rows() -> None:
    counts = np.bincount(np.concatenate(ONE_OF_EACH := [[k] * (k + 1) for k in range(10)]))
    rare = np.argsort(counts)[: round(RARE * 10)]
    assert rare_share(federation(ONE_OF_EACH)).tolist() == [float(k in rare) for k in range(10)]


@given(st.data())
def test_slow_and_fast_clients_are_a_fifth_each(data: Any) -> None:
    count = data.draw(st.integers(2, 30))
    order = np.array(data.draw(st.permutations(range(count))))
    rows = np.array(data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count)))
    found = by_speed(1.0 + order, order / count, rows)
    most = -(-count // 5)
    for name, chosen in (
        ("slow_accuracy", order >= count - most),
        ("fast_accuracy", order < most),
    ):
        expected = (rows * order / count)[chosen].sum() / rows[chosen].sum()
        assert found[name] == pytest.approx(expected)


def test_equal_devices_have_no_slow_clients_nor_have_clients_without_test_rows() -> None:
    assert set(by_speed([2, 2], [0.1, 0.9], [3, 3]).values()) == {None}
    found = by_speed([1, 2, 9], [0.1, 0.9, np.nan], [3, 3, 0])
    assert found == {"slow_accuracy": 0.9, "fast_accuracy": pytest.approx(0.1)}


# -------------------------------------------------------------------------------------- the grids


@pytest.mark.parametrize("name", STUDIES)
def test_rules_have_equal_grids_and_the_same_time_and_devices(name: str) -> None:
    item = ITEMS[name]
    for group, runs in item.joined.items():
        found = [
            " ".join([words[method], *rest])
            for run, words in runs.items()
            for method, *rest in map(str.split, labels(item.runs[run]))
        ]
        assert len(set(found)) == len(found) == 16 * len(RULES)
        assert {sum(one.startswith(f"{rule} ") for one in found) for rule in RULES} == {16}
        tables = [item.runs[run] for run in runs]
        population = group.rpartition(", ")[2]
        for table in tables:
            assert (DEVICES in table) == callable(POPULATIONS[population])
        for scale in SCALES.values():
            assert len({seconds_of(table, scale) for table in tables}) == 1
            short = [next(iter(expand(table, scale).values())) for table in tables]
            assert (
                len({json.dumps([x["data"], x["seed"], x["validation_share"]]) for x in short}) == 1
            )
        # nobody has more clients at work
        for cohort in (table["cohort"] for table in tables):
            drawn = np.ceil(cohort["clients_per_round"] * cohort.get("over_selection", 1.0))
            assert drawn <= AT_WORK
    devices = {json.dumps(table.get("population")) for table in item.runs.values()}
    assert len(devices) == len(POPULATIONS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.key)
def test_every_claim_has_each_population_on_its_own_row(task: Any) -> None:
    for claim in ITEMS[f"studies/time-{task.key}"].claims:
        rows = [one.where for one in claim.comparisons]
        assert len(set(rows)) == len(rows)
        assert set(rows) <= {place(task, population) for population in POPULATIONS}
        for one in claim.comparisons:
            assert one.greater.run == one.less.run == one.where


# ------------------------------------------------------------------------ measures by the time


def timed(label: str, times: Any, accuracies: Any, seed: int = 0, validation: Any = None) -> Series:
    """A run with these test accuracies at these times."""
    values = {
        "train_loss": np.ones(len(times)),
        "time": np.array(times, float),
        ACCURACY: np.array(accuracies, float),
        "validation_accuracy": np.array(accuracies if validation is None else validation, float),
    }
    return Series(label, seed, np.arange(len(times)), values)


def test_the_mean_over_the_time_is_that_of_the_models_that_the_server_has() -> None:
    one = timed("a", [0, 1, 4, 9], [0.0, 0.4, 0.8, 1.0]).until(6.0)
    assert one.values["time"].tolist() == [0, 1, 4, 6]
    assert one.rounds.tolist() == [0, 1, 2, 2]
    assert OVER_TIME.of(one, ACCURACY) == pytest.approx((0 * 1 + 0.4 * 3 + 0.8 * 2) / 6)
    assert END.of(one, ACCURACY) == 0.8
    assert one.time_to(Target(ACCURACY, 0.6)) == pytest.approx(2.5)
    assert one.time_to(Target(ACCURACY, 0.9)) is None


def test_a_run_that_diverged_has_no_mean() -> None:
    one = timed("a", [0, 1], [0.5, 0.1])
    one.values["train_loss"][1] = np.nan
    assert OVER_TIME.of(one.until(6.0), ACCURACY) == -np.inf


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.floats(0, 1)),
        min_size=1,
        max_size=9,
        unique_by=lambda p: p[0],
    ),
    st.integers(1, 60),
)
def test_a_cut_run_has_the_value_of_each_time(points: list[tuple[int, float]], end: int) -> None:
    times, values = zip((0, 0.5), *sorted(points), strict=True)
    cut = timed("a", times, values).until(end)
    assert cut.values["time"][-1] == end
    exact = sum(values[np.searchsorted(times, t, "right") - 1] for t in range(end)) / end
    assert OVER_TIME.of(cut, ACCURACY) == pytest.approx(exact)


def test_validation_rows_choose_and_test_rows_are_reported() -> None:
    runs = [
        timed("rule k=1", [0, 5, 9], [0.1, 0.5, 0.5], 0, [0.1, 0.9, 0.9]),
        timed("rule k=1", [0, 5, 9], [0.1, 0.6, 0.6], 1, [0.1, 0.9, 0.9]),
        timed("rule k=2", [0, 5, 9], [0.1, 0.9, 0.9], 0, [0.1, 0.8, 0.8]),
        timed("rule k=2", [0, 5, 9], [0.1, 0.9, 0.9], 1, [0.1, 0.8, 0.8]),
        timed("ruler", [0, 1, 9], [1.0, 1.0, 1.0]),
    ]
    chosen = f"{VALIDATED}rule"
    assert [(one.label, one.seed) for one in pick(runs, chosen)] == [
        ("rule k=1", 0),
        ("rule k=1", 1),
    ]
    line = Line("g", chosen)
    goal = Target(ACCURACY, 0.5)
    item = Item(
        "Study",
        "nowhere",
        {},
        panels=((Panel("g", ACCURACY, ("g",), (chosen,), "time"),),),
        claims=(
            Claim("a", ACCURACY, END, (Comparison("g", line, Line("g", "ruler")),), by="we say"),
        ),
        races=(
            Race(
                ("A", "B"),
                (RaceRow("g", goal, (Entry("g", "ruler"), Entry(*line))),),
                "seconds",
                "first column",
            ),
        ),
        values=(
            Values("Both.", ((ACCURACY, OVER_TIME), (ACCURACY, END)), ("A",), (("g", (line,)),)),
        ),
        joined={"g": {}},
    )
    race, table, claim = blocks(item, SCALE, {"g": runs}, {})
    assert race["header"] == ["", "target", "A", "B", "made with"]
    assert race["rows"][0][3:] == ["ours 4.5 ± 0.7; k=1 of 2 settings", "2 seeds"]
    assert race["words"].startswith("Seconds by the clients' devices to the target")
    assert table["rows"] == [["g", "30.0 ± 3.1 % / 55.0 ± 7.1 %"]]
    assert claim["by"] == "we say"
    assert claim["comparisons"][0]["labels"][0] == "rule k=1 (best of 2 by validation accuracy)"
    assert claim["comparisons"][0]["greater"] == [0.5, 0.6]
    axis = figure(item, {"g": runs}).axes[0]
    (drawn,) = axis.get_lines()
    x, y = (np.asarray(each, float) for each in drawn.get_data())
    assert (x[0], x[-1]) == (0, 9)
    np.testing.assert_allclose(y[x < 5], 0.1)
    np.testing.assert_allclose(y[x >= 5], 0.55)
    assert axis.get_xlabel() == "seconds by the clients' devices"


# ------------------------------------------------------------------------------------ end to end

CLOCKED: Table = TINY | {
    "rounds": 1000,
    "validation_share": 0.25,
    "data": TINY["data"] | {"seed": 0},
    "systems": {},
    "evaluation": {"gradients": False},
    "method": [{"name": "fedavg"}, {"name": "fedprox", "mu": [0.0, 1.0]}],
    SECONDS: 400.0,
    SHORT: {SECONDS: 200.0, MOST_SEEDS: 1},
}


def clocked(**changes: Any) -> Item:
    """An item of two joined runs, on devices that depend on the data."""
    runs = {
        "fast": CLOCKED | {DEVICES: tied_speeds} | changes,
        "slow": CLOCKED | {"population": {"step_seconds": 9.0}},
    }
    words = {run: {"fedavg": f"A {run}", "fedprox": f"B {run}"} for run in runs}
    a, b = (Line("both", f"{VALIDATED}{rule}") for rule in "AB")
    return Item(
        "Study",
        "nowhere",
        {},
        runs,
        claims=(Claim("a", ACCURACY, OVER_TIME, (Comparison("both", a, b),)),),
        values=(Values("w", (("slow_accuracy", END), (ACCURACY, END)), ("B",), (("r", (b,)),)),),
        joined={"both": words},
    )


def test_a_study_runs_end_to_end_and_resumes(tmp_path: Path) -> None:
    text = reproduce("made/up", clocked(), SCALE._replace(divisor=1), tmp_path)
    results = json.loads((tmp_path / "made" / "up" / "results.json").read_text())
    (comparison,) = results["blocks"][1]["comparisons"]
    assert comparison["labels"][0].split()[0] == "A"
    assert "(best of 2 by validation accuracy)" in comparison["labels"][0]
    assert "(best of 4 by validation accuracy)" in comparison["labels"][1]
    assert "2 seeds" in text
    experiment = (tmp_path / "runs" / "fast" / "experiment.toml").read_text()
    assert "[population]" in experiment
    for run in ("fast", "slow"):
        lines = (tmp_path / "runs" / run / "metrics.jsonl").read_text().splitlines()
        times = [json.loads(line)["time"] for line in lines]
        assert max(times) >= 400
        assert sum(time >= 400 for time in times) == 6  # the last evaluation of each line and seed
        speeds = json.loads((tmp_path / "runs" / run / "by-speed.json").read_text())
        assert {one["slow_accuracy"] is None for one in speeds} == {run == "slow"}
    again = reproduce("made/up", clocked(), SCALE._replace(divisor=1), tmp_path)
    assert "2 of 2 experiments were there already" in again


def test_the_short_scale_has_less_time(tmp_path: Path) -> None:
    reproduce("made/up", clocked(), SCALES["short"], tmp_path)
    lines = (tmp_path / "runs" / "slow" / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["time"] for line in lines]
    assert 200 <= max(times) < 400


def test_rounds_that_end_before_the_time_are_refused(tmp_path: Path) -> None:
    few = replace(
        clocked(), runs={name: run | {"rounds": 1} for name, run in clocked().runs.items()}
    )
    with pytest.raises(InputError, match=r"its rounds end before 400 s of devices' time"):
        reproduce("made/up", few, SCALE._replace(divisor=1), tmp_path)
