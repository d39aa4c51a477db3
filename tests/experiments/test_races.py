"""Tables of rounds and models to a target, and the searches for the learning rates in them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engine.blocks import blocks
from experiments.engine.growing import best_rate, grown
from experiments.engine.item import SCALES, Entry, Item, Race, RaceRow, Table
from experiments.engine.races import Count, measure, off, printed, rate_of, ratio
from experiments.engine.series import Series
from experiments.engine.table import table
from fedprox import Target
from tests.experiments.made_up import climb, series

GOAL = Target("test_accuracy", 0.8)


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
    assert (avg.setting, avg.settings, avg.mean) == ("learning_rate=0.1", 3, Count(55))
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
        (100, Count(67), ""),
        (100, Count(50), "0.5 times"),
        ("1000+", Count(900), ""),
        ("1000+", Count(300), "less than 0.3 times"),
        (100, Count(120, more=True), ""),
        (100, Count(20, more=True), ""),
        (100, Count(500, more=True), "more than 5 times"),
        (5, Count(612), "122 times"),
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
    rounds: dict[str, Table] = {run: {"rounds": 500} for run in runs}
    item = Item("Table 0", "nowhere", {"short": 1.0}, rounds, races=(race,))
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
        "paper 50 (1.3x); ours 200+ (>9.5x); closest mu=1",
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
    lost = series("feddyn", [1, np.nan], 2, [0.1, 0.1])
    runs = {"a": [climb("feddyn", 10), climb("feddyn", 11, 1), lost], "b": [climb("fedavg", 20)]}
    cells = race(Entry("a", "feddyn", 9), Entry("b", "fedavg", 18))
    first, second = raced(cells, runs)[-1][2:4]
    assert first == "paper 9; ours diverged (1 of 3 seeds)"
    assert second == "paper 18 (2.0x); ours 20"


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

    goal = Target("test_accuracy", 0.999)
    best = best_rate(grown("r", table, STEPS, goal, train), goal)
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
