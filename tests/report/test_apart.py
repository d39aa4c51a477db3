"""Runs of different experiments are never averaged as if they were seeds of one."""

from dataclasses import replace
from typing import Any

import pytest

import fedprox as fp
from fedprox.report.records import by_label
from tests.report.test_report import make_run


def of(experiment: dict[str, Any], label: str = "fedavg", **changes: Any) -> fp.Run:
    return replace(make_run(label), experiment=experiment, **changes)


def with_stragglers(share: float, *seeds: int) -> list[fp.Run]:
    """Runs of an experiment of its own, whose losses depend on the seed."""
    experiment = {"rounds": 1, "systems": {"stragglers": share}, "seed": list(seeds)}
    runs = (make_run(seed=seed, losses=(2.0, share + seed)) for seed in seeds)
    return [replace(run, experiment=experiment) for run in runs]


def test_experiments_have_rows_and_lines_of_their_own() -> None:
    few, many = with_stragglers(0.0, 3), with_stragglers(0.5, 3) + with_stragglers(0.5, 1, 2)
    named = {"fedavg · stragglers 0": few, "fedavg · stragglers 0.5": many}
    assert by_label(few + many) == named
    table = fp.table(few + many)
    assert [str(cell) for cell in table.columns[0].cells] == list(named)
    losses = [str(cell) for cell in table.columns[1].cells]
    assert losses[0] == "3.0000"
    assert " ± " in losses[1]
    drawn: Any = fp.figure(few + many)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == list(named)
    assert drawn.axes[0].lines[0].get_ydata()[-1] == 3.0


def test_records_have_the_settings_that_tell_runs_apart() -> None:
    few, many = (with_stragglers(share, 0) for share in (0.0, 0.5))
    rows = fp.records(few + many)
    known = list(fp.records(few)[0])
    assert all(list(row) == [*known, "systems.stragglers"] for row in rows)
    assert [row["systems.stragglers"] for row in rows] == [0.0] * 2 + [0.5] * 2
    assert str(fp.records(few)) == str([{key: row[key] for key in known} for row in rows[:2]])


def test_seeds_of_one_experiment_share_a_row_whatever_else_was_compared() -> None:
    rates = {"solver": {"learning_rate": [0.01, 0.2]}}
    first = {"rounds": 9, "seed": [0], "method": [{"name": "fedavg"}], **rates}
    second = {"rounds": 9, "seed": [1], "method": [], **rates, "client_store": "disk"}
    runs = [of(first), of(second, seed=1)]
    other = of(first, "fedprox mu=1", hparams={"mu": 1.0}, learning_rate=0.2)
    assert by_label([other, *runs]) == {"fedprox mu=1": [other], "fedavg": runs}
    assert by_label([of({}), of({}, seed=1)]).keys() == {"fedavg"}


def test_a_learning_rate_is_said_and_a_schedule_by_its_name() -> None:
    runs = [of({"solver": {"learning_rate": name}}) for name in ("cosine", "linear")]
    runs += [of({"solver": {"learning_rate": 0.5}}, learning_rate=0.5)]
    names = ("cosine", "linear", "0.5")
    assert list(by_label(runs)) == [f"fedavg · learning rate {name}" for name in names]


@pytest.mark.parametrize(
    ("experiments", "line"),
    [
        (
            [{f"setting_{i}": i for i in range(4)}, {"rounds": 2}],
            "runs: those of 'fedavg' are of experiments that differ in setting_0, setting_1, "
            "setting_2, setting_3, rounds, which are no seeds to average over; give the runs of "
            "one experiment at a time",
        ),
        (
            [{"systems": {"speeds": [1.0, 2.0]}}, {"systems": {"speeds": [1.0, 3.0]}}],
            "runs: those of 'fedavg' are of experiments that differ in systems.speeds, which are "
            "no seeds to average over; give the runs of one experiment at a time",
        ),
        (  # such as of two federations of as many clients and rows
            [{"rounds": 2}, {"rounds": 2}],
            "runs: 'fedavg' with seed 0 is given more than once, which are no seeds to average "
            "over; give each run once, and the runs of one experiment at a time",
        ),
    ],
)
def test_what_cannot_be_told_apart_is_one_line(
    experiments: list[dict[str, Any]], line: str
) -> None:
    runs = [of(experiment) for experiment in experiments]
    for show in (fp.table, fp.figure):
        with pytest.raises(fp.InputError) as refused:
            show(runs)
        assert str(refused.value) == line
    others = [of(experiments[0]), of(experiments[1], "fedprox mu=1")]
    assert list(by_label(others)) == ["fedavg", "fedprox mu=1"]
