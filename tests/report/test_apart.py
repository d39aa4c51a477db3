"""Runs of different experiments are never averaged as if they were seeds of one."""

from dataclasses import replace
from typing import Any

import pytest

import fedprox as fp
from fedprox.report.records import by_label
from tests.byhand import ROWS, START
from tests.quadratics import quadratic_model, ragged_quadratics
from tests.report.test_report import make_run


def trained(**changes: Any) -> list[fp.Run]:
    setting: dict[str, Any] = {
        "solver": fp.Solver(0.05, 3, epochs=2),
        "cohort": fp.Cohort(5),
        "rounds": 2,
        "evaluation": fp.Evaluation(gradients=False),
        "seed": 0,
    }
    return fp.simulate(
        ragged_quadratics(0, ROWS), quadratic_model(START), fp.fedavg(), **setting | changes
    )


def test_experiments_have_rows_and_lines_of_their_own() -> None:
    few, many = (trained(systems=fp.Systems(stragglers=share)) for share in (0.0, 0.5))
    more = trained(systems=fp.Systems(stragglers=0.5), seed=[1, 2])
    runs = few + many + more
    named = {"fedavg · stragglers 0": few, "fedavg · stragglers 0.5": many + more}
    assert by_label(runs) == named
    table = fp.table(runs)
    assert [str(cell) for cell in table.columns[0].cells] == list(named)
    losses = [str(cell) for cell in table.columns[1].cells]
    assert losses[0] == f"{few[0].final.train_loss:.4f}"
    assert " ± " in losses[1]
    drawn: Any = fp.figure(runs)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == list(named)
    assert drawn.axes[0].lines[0].get_ydata()[-1] == few[0].final.train_loss


def test_records_have_the_settings_that_tell_runs_apart() -> None:
    few, many = (trained(systems=fp.Systems(stragglers=share)) for share in (0.0, 0.5))
    rows = fp.records(few + many)
    known = list(fp.records(few)[0])
    assert all(list(row) == [*known, "systems.stragglers"] for row in rows)
    assert [row["systems.stragglers"] for row in rows] == [0.0] * 3 + [0.5] * 3
    assert fp.records(few) == [{key: row[key] for key in known} for row in rows[:3]]


def of(experiment: dict[str, Any], label: str = "fedavg", **changes: Any) -> fp.Run:
    return replace(make_run(label), experiment=experiment, **changes)


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
