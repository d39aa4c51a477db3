"""Validation rows: how they are split off, what is measured on them, and what they decide."""

import functools
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedprox as fp
from fedprox.datasets import mapped, write_mapped
from fedprox.experiment import parse, resolve
from fedprox.report.archive import read_archive
from fedprox.report.directory import summarise
from fedprox.report.records import metrics_line, read_record
from tests.outputs import losses, met
from tests.quadratics import one_run
from tests.test_cli import LOSSES, status
from tests.variants import mostly_slow

Vector = NDArray[np.float64]
CLASSES = 3
WEIGHTS = np.random.default_rng(0).normal(size=(4, CLASSES)).astype(np.float32)
SURE = fp.Metric(
    lambda outputs, y: {"sum": outputs.reshape(len(y), -1).max(axis=1), "rows": jnp.ones(len(y))},
    lambda sums: sums["sum"] / sums["rows"],
    lower_is_better=True,
)
MODEL = fp.Model(
    lambda key: jnp.asarray(WEIGHTS) + 0 * jax.random.normal(key, WEIGHTS.shape),
    lambda params, x: x @ params,
    metrics={"sure": SURE},
)
SIZES = [1, 40, 3, 17, 70, 2, 9, 5]


def clients(seed: int, sizes: Sequence[int], length: int = 0) -> list[tuple[Any, Any]]:
    """Clients' rows; with a length sequences, whose labels are missing here and there."""
    stream, shape = np.random.default_rng(seed), (length,) if length else ()
    return [
        (
            stream.normal(size=(n, *shape, 4)).astype(np.float32),
            stream.integers(-1 if length else 0, CLASSES, (n, *shape)),
        )
        for n in sizes
    ]


PLAIN = fp.Federation.from_arrays(clients(0, SIZES), clients(1, [4] * 8), classes=CLASSES)
BY_CLIENT = PLAIN.hold_out(0.3)
REST = replace(BY_CLIENT, validation=None)
CENTRAL = REST.with_validation(*clients(2, [50])[0])


def run(federation: fp.Federation, **options: Any) -> fp.Run:
    return one_run(
        federation,
        options.pop("model", MODEL),
        fp.fedavg(),
        fp.Solver(0.3, 5, steps=2),
        **{"evaluation": fp.Evaluation(gradients=False), "progress": False, **options},
    )


# --------------------------------------------------------------------------------------- the split


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
def test_a_share_of_each_clients_rows_moves(sizes: list[int], share: float, seed: int) -> None:
    numbers = np.arange(sum(sizes), dtype=np.float32)[:, None]
    parts = np.split(numbers, np.cumsum(sizes)[:-1])
    whole = fp.Federation.from_arrays([(x, np.zeros(len(x), int)) for x in parts])
    try:
        split = whole.hold_out(share, seed=seed)
    except fp.InputError:  # no client had a row to spare
        assert not any(min(int(share * n), n - 1) for n in sizes)
        return
    held_out = split.validation
    assert isinstance(held_out, fp.Rows)
    for k, x in enumerate(parts):
        kept, moved = (np.asarray(rows.client(k)[0])[:, 0] for rows in (split.train, held_out))
        assert sorted([*kept, *moved]) == x[:, 0].tolist()
        assert len(kept)
        assert (np.diff(kept) > 0).all()
        assert (np.diff(moved) > 0).all()
        exact = share * len(x)
        assert len(moved) in {min(n, len(x) - 1) for n in (int(exact), int(exact) + 1)}
    again = whole.hold_out(share, seed=seed)
    np.testing.assert_array_equal(again.train.x, split.train.x)
    assert split.test is whole.test


def test_the_share_is_right_on_average_and_a_client_has_its_own_stream() -> None:
    many = fp.Federation.from_arrays([(np.arange(3.0)[:, None], np.zeros(3, int))] * 3000)
    split = many.hold_out(0.1)
    assert split.validation is not None
    assert len(split.validation) / len(many.train) == pytest.approx(0.1, abs=0.01)
    few = fp.Federation.from_arrays([(np.arange(3.0)[:, None], np.zeros(3, int))] * 30).hold_out(
        0.1
    )
    assert few.train.sizes.tolist() == split.train.sizes[:30].tolist()
    other = many.hold_out(0.1, seed=1)
    assert (other.train.sizes != split.train.sizes).any()


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1, math.nan, True, "0.1"])
def test_a_share_out_of_range_is_refused(share: Any) -> None:
    with pytest.raises(fp.InputError, match=r"^share = .*; it must be .*above 0"):
        PLAIN.hold_out(share)


def test_what_cannot_be_validation_is_refused() -> None:
    with pytest.raises(fp.InputError, match="the federation has validation rows already"):
        BY_CLIENT.hold_out(0.1)
    one = fp.Federation.from_arrays([([[1.0]], [0])])
    with pytest.raises(fp.InputError, match="no client has a training row to spare"):
        one.hold_out(0.9)
    with pytest.raises(fp.InputError, match="validation rows of 1 client; there are 8"):
        replace(PLAIN, validation=one.train)
    x = np.zeros((2, 4))
    for given_x, given_y, message in (
        (np.zeros((0, 4)), [], "validation: no rows"),
        (np.zeros((2, 3)), [0, 1], r"validation: rows of shape \(3,\); the clients' have \(4,\)"),
        (x, [[0], [1]], r"validation: labels of shape \(1,\); the clients' have \(\)"),
        (x, [0, CLASSES], "validation: label 3; labels are 0 to 2"),
        (x, [0.5, 1.0], "validation: labels of type float32; the clients' are of int32"),
        (x + np.nan, [0, 1], "validation: a feature is NaN"),
        (x, [0], "validation: features of shape"),
    ):
        with pytest.raises(fp.InputError, match=message):
            PLAIN.with_validation(given_x, given_y)
    with pytest.raises(
        fp.InputError, match="validation: the federation has validation rows already"
    ):
        BY_CLIENT.with_validation(x, [0, 1])


def test_federations_made_of_others_keep_their_validation_rows() -> None:
    assert isinstance(BY_CLIENT.validation, fp.Rows)
    assert "validation rows" in repr(BY_CLIENT)
    assert "validation" not in repr(PLAIN)
    few = BY_CLIENT.sample_clients(3)
    chosen = BY_CLIENT.drawn(3)
    assert isinstance(few.validation, fp.Rows)
    assert few.validation.sizes.tolist() == BY_CLIENT.validation.sizes[chosen].tolist()
    sampled = BY_CLIENT.sample(2).validation
    assert isinstance(sampled, fp.Rows)
    assert sampled.sizes.tolist() == np.minimum(BY_CLIENT.validation.sizes, 2).tolist()
    for other in (CENTRAL.sample_clients(3), CENTRAL.sample(2)):
        assert other.validation is CENTRAL.validation


# ------------------------------------------------------------------------------- what is measured


def expected(federation: fp.Federation, read: fp.Federation, params: Any) -> dict[str, float]:
    """The measures of the validation rows that are read, each standing for several."""
    some, whole = read.validation, federation.validation
    assert some is not None
    weights = np.ones(len(some))
    if isinstance(some, fp.Rows) and isinstance(whole, fp.Rows):
        weights = np.repeat(whole.sizes / np.maximum(some.sizes, 1), some.sizes)
    x, y = np.asarray(some.x), np.asarray(some.y)
    outputs = x @ np.asarray(params)
    labels = (y >= 0).reshape(len(y), -1).sum(axis=1)
    return {
        "validation_loss": float(np.average(losses(outputs, y), weights=weights)),
        "validation_accuracy": float(weights @ met(outputs, y) / (weights @ labels)),
        "validation_sure": float(
            np.average(outputs.reshape(len(y), -1).max(axis=1), weights=weights)
        ),
    }


def check(record: fp.Record, wanted: dict[str, float]) -> None:
    found = {name: record.value(name) for name in wanted}
    assert found == pytest.approx(wanted, rel=1e-5)


SEQUENCES = fp.Federation.from_arrays(clients(3, SIZES, length=5), clients(4, [3] * 8, length=5))


READ: dict[str, tuple[fp.Federation, int | None, int | None]] = {
    "all rows of clients": (BY_CLIENT, None, None),
    "some rows of some clients": (BY_CLIENT, 2, 5),
    "rows of nobody": (CENTRAL, 2, 5),
    "some sequences of clients": (SEQUENCES.hold_out(0.3), 2, None),
    "sequences of nobody": (SEQUENCES.with_validation(*clients(5, [30], length=5)[0]), None, None),
}
"""A federation, and how many rows of how many clients are read."""


@pytest.mark.parametrize("case", mostly_slow(READ, "all rows of clients"))
def test_measures_are_those_of_the_rows(case: str) -> None:
    federation, rows, some = READ[case]
    evaluation = fp.Evaluation(rows=rows, clients=some, gradients=False)
    found = run(federation, evaluation=evaluation, cohort=fp.Cohort(3))
    whole = federation if some is None else federation.sample_clients(some)
    read = whole if rows is None else whole.sample(rows)
    check(found.history[0], expected(whole, read, WEIGHTS))
    if rows is None:
        check(found.final, expected(whole, read, found.params))


def test_a_sample_of_rows_estimates_the_measures_without_bias() -> None:
    federation = PLAIN.hold_out(0.5)
    wanted = expected(federation, federation, WEIGHTS)
    drawn = [expected(federation, federation.sample(3, seed=s), WEIGHTS) for s in range(100)]
    for name, value in wanted.items():
        values = np.array([each[name] for each in drawn])
        assert values.mean() == pytest.approx(value, abs=4 * values.std() / 10)


@pytest.mark.slow
@pytest.mark.parametrize("federation", [BY_CLIENT, CENTRAL])
def test_one_device_and_two_give_the_same(federation: fp.Federation) -> None:
    one, two = (run(federation, devices=devices).final for devices in (1, 2))
    for name in ("validation_loss", "validation_accuracy", "validation_sure"):
        assert one.value(name) == pytest.approx(two.value(name), rel=1e-5)


@pytest.mark.slow
def test_clients_that_the_training_loss_leaves_out_are_left_out() -> None:
    assert isinstance(BY_CLIENT.validation, fp.Rows)
    spoilt, x = 3, BY_CLIENT.train.x.copy()
    x[BY_CLIENT.train.offsets[spoilt]] = np.nan
    federation = replace(BY_CLIENT, train=replace(BY_CLIENT.train, x=x))
    record = run(federation, faults=fp.Faults()).history[0]
    left = BY_CLIENT.of_clients(np.delete(np.arange(len(BY_CLIENT)), spoilt))
    assert record.unmeasured == 1
    check(record, expected(left, left, WEIGHTS))
    central = replace(federation, validation=CENTRAL.validation)
    check(run(central, faults=fp.Faults()).history[0], expected(CENTRAL, CENTRAL, WEIGHTS))


@pytest.mark.slow
def test_training_is_that_of_the_rows_that_remain() -> None:
    alone = run(REST, rounds=3)
    split = run(BY_CLIENT, rounds=3)
    np.testing.assert_array_equal(split.params, alone.params)
    for with_, without in zip(split.history, alone.history, strict=True):
        assert (with_.train_loss, with_.test_accuracy) == (
            without.train_loss,
            without.test_accuracy,
        )
        assert without.validation_loss is without.validation_accuracy is None
        assert "validation_loss" not in metrics_line(without)


@pytest.mark.slow
def test_a_model_without_accuracy_has_a_validation_loss() -> None:
    record = run(CENTRAL, model=replace(MODEL, correct=None)).final
    assert record.validation_loss is not None
    assert math.isfinite(record.validation_loss)
    assert record.validation_accuracy is not None
    assert math.isnan(record.validation_accuracy)
    line = metrics_line(record)
    assert line["validation_accuracy"] is None
    assert repr(read_record(json.dumps(line).encode())) == repr(record)


# --------------------------------------------------------------------------------- what it decides


def relabelled(federation: fp.Federation) -> fp.Federation:
    """The same with other test labels."""
    y = (federation.test.y + 1) % CLASSES
    return replace(federation, test=replace(federation.test, y=y))


@pytest.mark.parametrize("federation", [BY_CLIENT, pytest.param(CENTRAL, marks=pytest.mark.slow)])
def test_validation_rows_stop_a_run_and_test_rows_do_not(federation: fp.Federation) -> None:
    whole = run(federation, rounds=8)
    curve = [record.value("validation_accuracy") for record in whole.history]
    target = fp.Target("validation_accuracy", max(curve[2:]))
    first = next(i for i, value in enumerate(curve) if target.met(value))
    stop: dict[str, Any] = {"target": target, "stop_at_target": "all", "rounds": 8}
    runs = [run(each, **stop) for each in (federation, relabelled(federation))]
    assert [each.final.round for each in runs] == [first] * 2
    assert runs[0].final.test_accuracy != runs[1].final.test_accuracy
    np.testing.assert_array_equal(runs[0].params, runs[1].params)


@functools.cache
def some_record() -> fp.Record:
    """A record with validation rows."""
    return run(BY_CLIENT).final


def with_accuracies(validation: Sequence[float | None], test: Sequence[float]) -> fp.Run:
    """A run with these accuracies."""
    record = some_record()
    history = []
    for i, (validated, tested) in enumerate(zip(validation, test, strict=True)):
        measures = {"train_loss": 1.0, "test_accuracy": tested}
        if validated is not None:
            measures |= {"validation_accuracy": validated, "validation_loss": 1.0}
        history.append(replace(record, round=i, measures=measures))
    return fp.Run("m", {}, 0.1, 0, "m", history)


def test_the_best_accuracy_is_that_of_the_best_round_on_validation_rows() -> None:
    test = [0.1, 0.6, 0.7, 0.9]
    assert with_accuracies([0.0, 0.5, 0.5, 0.4], test).best_accuracy == 0.6
    assert with_accuracies([0.0, math.nan, 0.0, 0.0], test).best_accuracy == 0.1
    assert with_accuracies([None] * 4, test).best_accuracy == 0.9
    found = with_accuracies([0.0, 0.5, 0.505, 0.4], test)
    printed = fp.table([found])
    cells = {str(c.header): list(c.cells) for c in printed.columns}
    assert cells["best accuracy"] == ["70.00 %"]
    assert cells["validation accuracy"] == ["40.00 %"]
    assert cells["rounds to validation accuracy 50 %"] == ["1.0"]
    assert "validation accuracy" not in str(fp.table([with_accuracies([None] * 4, test)]))


REFUSED = [
    (
        BY_CLIENT,
        fp.Target("test_accuracy", 0.5),
        "test rows are read for the report alone; it must",
    ),
    (CENTRAL, fp.Target("test_sure", 0.5), "test rows are read for the report alone; it must"),
    (
        CENTRAL,
        fp.Target("validation_f1", 0.5),
        "target: validation_f1: records do not have it; it must be one of train_loss, train_sure, "
        "validation_loss, validation_accuracy, validation_sure$",
    ),
    (REST, fp.Target("validation_loss", 0.5), "target: validation_loss: records do not have it"),
]


@pytest.mark.parametrize(("federation", "target", "message"), REFUSED)
def test_a_target_that_no_run_can_have_is_refused(
    federation: fp.Federation, target: fp.Target, message: str
) -> None:
    with pytest.raises(fp.InputError, match=message):
        run(federation, target=target)


def test_a_target_on_a_metric_follows_which_values_are_better() -> None:
    falling = [3.0, 2.0, 1.0]
    assert fp.Target("test_sure", 1.5, lower_is_better=True).rounds(range(3), falling) == 1.5
    assert fp.Target("test_sure", 2.5, lower_is_better=False).rounds(range(3), falling) == 0
    with pytest.raises(fp.InputError, match="whether smaller values of test_sure are better"):
        fp.Target("test_sure", 1.5).rounds(range(3), falling)
    with pytest.raises(
        fp.InputError, match=r"target.lower_is_better = False; it is known of test_l"
    ):
        fp.Target("test_loss", 1.5, lower_is_better=False)
    found = run(REST)
    with pytest.raises(
        fp.InputError, match=r"target.measure, 'fedavg': record: no measure 'validation_loss'; "
    ):
        found.rounds_to(fp.Target("validation_loss", 0.1))
    least = run(REST, target=fp.Target("test_sure", 1e9), stop_at_target="all")
    assert least.final.round == 0  # below it from the start
    assert run(REST, target=fp.Target("test_sure", -1e9), stop_at_target="all").final.round == 1
    assert least.experiment["target_metric"] == {
        "name": "test_sure",
        "value": 1e9,
        "lower_is_better": True,
    }
    target = fp.Target("test_sure", 1e9, lower_is_better=True)
    assert summarise(least, target)["target_metric"]["name"] == "test_sure"
    assert summarise(least, target)["rounds_to_target"] == 0


# ---------------------------------------------------------------------------- files and the command


@pytest.mark.parametrize("federation", [BY_CLIENT, CENTRAL])
def test_files_hold_validation_rows(tmp_path: Path, federation: fp.Federation) -> None:
    write_mapped(tmp_path / "all", federation)
    found = mapped(str(tmp_path / "all"))
    before, after = federation.validation, found.validation
    assert type(before) is type(after)
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(after.x, before.x)
    np.testing.assert_array_equal(after.y, before.y)
    if isinstance(before, fp.Rows) and isinstance(after, fp.Rows):
        assert after.offsets.tolist() == before.offsets.tolist()
    (tmp_path / "all" / "validation_y.npy").unlink()
    with pytest.raises(fp.InputError, match=r"validation_y\.npy"):
        mapped(str(tmp_path / "all"))


def measured_logistic(federation: fp.Federation) -> fp.Model:
    """A model of one's own with a metric, as experiment files name it."""
    return replace(fp.models.logistic(federation), metrics={"sure": SURE})


def command(tmp_path: Path, *changes: str) -> tuple[int, Path]:
    (tmp_path / "small.toml").write_text(LOSSES)
    settings = [part for change in ("seed=0", *changes) for part in ("--set", change)]
    out = tmp_path / "out"
    return status("run", tmp_path / "small.toml", *settings, "--out", out), out


ONE = 'method=[{name = "fedavg"}]'
OWN = 'model={name = "tests.loop.test_validation:measured_logistic"}'


@pytest.mark.slow
def test_the_command_holds_rows_out(tmp_path: Path, capsys: Any) -> None:
    done, out = command(tmp_path, ONE, OWN, "validation_share=0.2", "target_accuracy=0.05")
    printed = " ".join(capsys.readouterr().out.split())
    assert done == 0
    assert "test rows choose nothing" in printed
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["validation_accuracy"] <= 1 for line in lines)
    (summary,) = json.loads((out / "summary.json").read_text())
    assert summary["final_validation_loss"] == lines[-1]["validation_loss"]
    assert summary["target_accuracy"] == 0.05
    archive = read_archive(out)
    assert archive.target == fp.Target("validation_accuracy", 0.05)
    assert archive.runs[0].final.validation_accuracy == lines[-1]["validation_accuracy"]
    assert fp.records(archive.runs)[0]["validation_loss"] == lines[0]["validation_loss"]
    table = tomllib.loads((out / "experiment.toml").read_text())
    assert table["validation_share"] == 0.2
    assert "Validation accuracy" in (out / "report.html").read_text()
    federation = resolve(parse("", {k: v for k, v in table.items() if k != "versions"})).federation
    (clients_,) = json.loads((out / "clients.json").read_text())
    assert clients_["training_rows"] == federation.train.sizes.tolist()
    assert isinstance(federation.validation, fp.Rows)


@pytest.mark.slow
def test_the_command_has_targets_by_any_measure(tmp_path: Path) -> None:
    target = 'target_metric={name = "validation_sure", value = 1e9}'
    stop = 'stop_at_target="all"'
    done, out = command(tmp_path, ONE, OWN, "validation_share=0.2", target, stop)
    assert done == 0
    table = tomllib.loads((out / "experiment.toml").read_text())
    assert table["target_metric"] == {
        "name": "validation_sure",
        "value": 1e9,
        "lower_is_better": True,
    }
    archive = read_archive(out)
    assert archive.target == fp.Target("validation_sure", 1e9, lower_is_better=True)
    assert [record.round for record in archive.runs[0].history] == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["validation_share=1.0"], "validation_share = 1.0; it must be above 0 and below 1"),
        (
            ['target_metric={name = "test_f1", value = 0.8}'],
            "target: test_f1: records do not have it; it must be one of train_loss, test_loss, "
            "test_accuracy",
        ),
        (
            ['target_metric={name = "f1", value = 0.8}'],
            "target.measure = 'f1'; it must be one of test_accuracy",
        ),
        (
            ['target_metric={name = "test_f1", value = 0.8}', "target_loss=0.5"],
            "target_loss = 0.5 and target_metric = ",
        ),
        (
            ["validation_share=0.2", 'target_metric={name = "test_loss", value = 0.8}'],
            "target: test_loss: with validation rows, test rows are read for the report alone",
        ),
    ],
)
def test_what_a_file_cannot_ask_for_is_one_line(
    tmp_path: Path, capsys: Any, changes: list[str], message: str
) -> None:
    done, out = command(tmp_path, *changes)
    assert done == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()
