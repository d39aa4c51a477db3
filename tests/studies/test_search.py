"""Searches: what is drawn, kept, told to optuna and trained."""

import itertools
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import fedprox as fp
from fedprox.experiment import read_study
from fedprox.protocol.method import sweep_points
from fedprox.report.directory import RunDirectory
from fedprox.studies import run as of_runs
from fedprox.studies.search import JOURNAL
from tests.studies.test_study import BASE, FEDERATION, METHODS, files, study

RANGES = {"mu": (0.0, 4.0), "learning_rate": (1e-4, 1.0)}


@given(st.integers(2, 200), st.integers(1, 300), st.one_of(st.none(), st.integers(2, 5)))
def test_rungs_end_with_all_rounds_and_few_candidates(
    candidates: int, rounds: int, halving: int | None
) -> None:
    rungs = fp.Search(candidates, halving).rungs(candidates, rounds)
    counts, until = zip(*rungs, strict=True)
    assert counts[0] == candidates
    assert until[-1] == rounds
    assert until[0] >= 1
    if halving is None:
        assert len(rungs) == 1
        return
    for i in range(len(rungs) - 1):
        assert counts[i + 1] == candidates // halving ** (i + 1) >= 1
        assert until[i + 1] // halving == until[i]
    # a further rung would have no candidate, or no round
    assert candidates < halving ** len(rungs) or rounds < halving ** len(rungs)


def quality(point: dict[str, float]) -> float:
    """The best is at 0.1 and 1, whatever the rounds."""
    return -((math.log10(point["learning_rate"]) + 1) ** 2) - (point["mu"] - 1) ** 2


def searched(search: fp.Search, out: Path | None = None, **changes: Any) -> Any:
    """The candidate that a search finds, and what it asked for."""
    asked = list[tuple[int, int, list[dict[str, float]]]]()

    def means(batch: int, until: int, points: Sequence[dict[str, float]]) -> list[float]:
        asked.append((batch, until, list(points)))
        return [changes.get("quality", quality)(point) for point in points]

    best = search.best("cell", RANGES, 27, search.storage(out), means, lower=False)
    return best, asked


@pytest.mark.parametrize("halving", [None, 3])
def test_the_best_of_all_candidates_is_found_if_rounds_do_not_change_their_order(
    halving: int | None,
) -> None:
    best, asked = searched(fp.Search(27, halving))
    drawn = asked[0][2]
    assert len({tuple(point.values()) for point in drawn}) == 27
    assert best == max(drawn, key=quality)
    for name, (low, high) in RANGES.items():
        assert all(low <= point[name] <= high for point in drawn)
    # half of the rates are below the middle of their logarithms, and half of the mu's below 2
    assert 7 <= sum(point["learning_rate"] < 1e-2 for point in drawn) <= 20
    assert 7 <= sum(point["mu"] < 2 for point in drawn) <= 20
    if halving:
        assert [(until, len(points)) for _, until, points in asked] == [
            (1, 27),
            (3, 9),
            (9, 3),
            (27, 1),
        ]
        for (_, _, before), (_, _, after) in itertools.pairwise(asked):
            assert after == sorted(before, key=quality, reverse=True)[: len(after)]
    else:
        assert [(until, len(points)) for _, until, points in asked] == [(27, 27)]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_same_seed_draws_the_same_candidates(sampler: Any) -> None:
    first, again = (searched(fp.Search(10, 2, sampler, seed=3)) for _ in range(2))
    assert first == again
    assert searched(fp.Search(10, 2, sampler, seed=4)) != first
    batches = [len(points) for _, until, points in first[1] if until == first[1][0][1]]
    assert batches == ([10] if sampler == "random" else [3, 3, 2, 2])


def test_optuna_has_every_trial_and_what_became_of_it(tmp_path: Path) -> None:
    def diverging(point: dict[str, float]) -> float:
        return quality(point) if point["learning_rate"] < 0.05 else -math.inf

    best, asked = searched(fp.Search(9, 3), tmp_path / "out", quality=diverging)
    assert best["learning_rate"] < 0.05
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "out" / JOURNAL)))
    told = optuna.load_study(study_name="cell", storage=storage)
    assert [trial.state for trial in told.trials].count(TrialState.PRUNED) == 8
    (done,) = told.get_trials(states=[TrialState.COMPLETE])
    assert done.value == quality(best)
    assert list(done.intermediate_values) == [3, 9, 27]
    assert {k: float(f"{v:.6g}") for k, v in done.params.items()} == best
    assert len(asked[0][2]) == 9

    best, asked = searched(fp.Search(4), quality=lambda _: -math.inf)
    assert best == asked[0][2][0]


def test_paired_values_are_points_of_their_own() -> None:
    paired = fp.fedprox(mu=[0.1, 0.2, 0.3])._replace(paired=True)
    points = sweep_points(paired, fp.Solver([1.0, 2.0, 3.0], 10, epochs=1))
    assert [tuple(p.values()) for p in points] == [(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)]
    points = sweep_points(paired, fp.Solver(1.0, 10, epochs=1))
    assert [tuple(p.values()) for p in points] == [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0)]


def by_search(**changes: Any) -> fp.Study:
    """A study whose methods try two rates, first for one of the two rounds."""
    tuning = fp.Tuning(search=fp.Search(2, halving=2))
    return study(**{"vary": None, "tuning": tuning} | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[fp.Study, Path]:
    """A study with a search, and its folder."""
    with pytest.MonkeyPatch.context() as patch:
        from matplotlib.figure import Figure

        patch.setattr(fp.Study, "figure", lambda _: Figure(figsize=(1, 1)))
        folder = tmp_path_factory.mktemp("search") / "out"
        return by_search(out=folder), folder


def test_what_is_chosen_is_trained_as_a_simulation(finished: tuple[fp.Study, Path]) -> None:
    found, folder = finished
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    others = {k: v for k, v in BASE.items() if k not in ("model", "seeds", "solver", "rounds")}
    rates = list[list[float]]()
    for outcome in found.outcomes:
        assert outcome.tried == 2
        trials = optuna.load_study(study_name=outcome.method, storage=storage).trials
        rates.append([float(f"{t.params['learning_rate']:.6g}") for t in trials])
        # each candidate as a run of its own, for the rounds of the first rung
        means = []
        for rate, trial in zip(rates[-1], trials, strict=True):
            assert 0.01 <= rate <= 0.1
            runs = fp.simulate(
                FEDERATION,
                fp.models.logistic(FEDERATION),
                METHODS[outcome.method],
                **others,
                solver=fp.Solver(rate, batch_size=10, steps=3),
                rounds=1,
                seed=BASE["seeds"],
            )
            means.append(sum(run.final.validation_accuracy or 0 for run in runs) / 2)
            assert trial.intermediate_values[1] == pytest.approx(means[-1])
        assert {run.learning_rate for run in outcome.runs} == {rates[-1][means.index(max(means))]}
        assert [(run.seed, run.final.round) for run in outcome.runs] == [(0, 2), (1, 2)]
    assert rates[0] == rates[1]  # equal ranges and seeds
    assert (
        "Each method tried 2 combinations of hyperparameters, drawn at random, of which successive "
        "halving kept 1 in 2, chosen by the mean validation accuracy over these seeds."
    ) in found.table().caption


@pytest.mark.slow
def test_a_search_goes_on_where_it_was_stopped(
    finished: tuple[fp.Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = RunDirectory.record

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fp.Study, "figure", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "record", stop)  # once both rungs are trained
        with pytest.raises(KeyboardInterrupt):
            by_search(out=tmp_path / "out")
    trained = list[str]()

    def note(**settings: Any) -> Any:
        before = settings["checkpoints"].made
        runs = fp.simulate(**settings)
        if settings["checkpoints"].made > before:
            trained.append(settings["checkpoints"].folder.parent.name)
        return runs

    monkeypatch.setattr(of_runs, "simulate", note)
    monkeypatch.setattr(RunDirectory, "record", written)
    monkeypatch.setattr("fedprox.studies.results.write_figure", lambda *_, **__: None)
    again = by_search(out=tmp_path / "out")
    assert str(again) == str(finished[0])
    of_second = ("FedProx@search-0-1", "FedProx@search-0-2")
    assert trained == ["FedAvg", *of_second, "FedProx"]
    ours, theirs = (
        {k: v for k, v in files(each).items() if k != JOURNAL and "figure" not in k}
        for each in (tmp_path / "out", finished[1])
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"trials": 1}, "search.trials = 1; it must be a whole number of at least 2"),
        ({"halving": 1}, "search.halving = 1; it must be a whole number of at least 2"),
        ({"sampler": "grid"}, "search.sampler = 'grid'; it must be one of random, tpe"),
    ],
)
def test_settings_of_a_search_are_checked(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError, match=re.escape(line)):
        fp.Search(**settings)


def test_all_methods_need_something_to_search(tmp_path: Path) -> None:
    methods = {"a": fp.fedavg(), "b": fp.fedprox(mu=[0.1, 1.0])}
    solver = fp.Solver(0.1, batch_size=10, steps=3)
    with pytest.raises(fp.InputError, match="unequal budgets: a tries 1, b tries 2; give each as"):
        by_search(methods=methods, solver=solver, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    wrong: Any = 3
    with pytest.raises(fp.InputError, match=r"tuning\.search = 3; it must be a fedprox\.Search"):
        fp.Tuning(search=wrong)


def test_a_file_has_a_search() -> None:
    table: dict[str, Any] = {
        "rounds": 2,
        "data": {"name": "synthetic"},
        "cohort": {"clients_per_round": 2},
        "solver": {"learning_rate": [0.01, 0.1], "batch_size": 10, "steps": 3},
        "method": [{"name": "fedavg"}],
        "study": {"tuning": {"seeds": [7], "search": {"trials": 20, "halving": 3}}},
    }
    assert read_study("a.toml", table).tuning == fp.Tuning(seeds=[7], search=fp.Search(20, 3))
    table["study"]["tuning"]["search"]["trials"] = 1
    with pytest.raises(fp.InputError, match=r"a\.toml: .*search\.trials = 1; it must be a whole"):
        read_study("a.toml", table)


def test_without_optuna_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(fp.InputError, match=r"search: no module 'optuna': .*\[optuna\]"):
        by_search(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
