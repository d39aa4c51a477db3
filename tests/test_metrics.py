"""Metrics of one's own: what they come to, in plain NumPy, wherever evaluations compute them."""

import dataclasses
import json
import math
from collections.abc import Sequence
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
from fedprox.diagnostics.clients import client_measures
from fedprox.federation import no_rows
from fedprox.measures import MEASURES
from fedprox.metrics import TAKEN, Metric, weighted_sums
from fedprox.report.directory import RunDirectory, write_clients
from fedprox.report.records import metrics_line, read_record

Vector = NDArray[np.float64]
LABELS = 3
WEIGHTS = np.random.default_rng(9).normal(size=(4, LABELS)).astype(np.float32)


def squared(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((outputs - y) ** 2, axis=1)


def first_column(metric: Metric) -> Metric:
    """The same metric of the first label alone."""
    return Metric(lambda outputs, y: metric.terms(outputs[:, 0], y[:, 0]), metric.value)


METRICS = {
    "rows": fp.Metric(lambda _, y: jnp.ones(len(y)), lambda sums: sums),  # no ratio of two sums
    "mse": fp.metrics.mean_squared_error(),
    "f1": fp.metrics.f1(),
    "auc": first_column(fp.metrics.auc(bins=64)),
}
MODEL = fp.Model(
    lambda key: jnp.asarray(WEIGHTS) + 0 * jax.random.normal(key, WEIGHTS.shape),
    lambda params, x: x @ params,
    squared,
    metrics=METRICS,
)
PLAIN = dataclasses.replace(MODEL, metrics={})
LOSSES = fp.Evaluation(gradients=False)
SOLVER = fp.Solver([0.05, 0.5], 5, steps=2)
"""Two points of a sweep."""


def clients(seed: int, sizes: Sequence[int]) -> list[tuple[Any, Any]]:
    stream = np.random.default_rng(seed)
    return [
        (
            stream.normal(size=(n, 4)).astype(np.float32),
            stream.integers(0, 2, (n, LABELS)).astype(np.float32),
        )
        for n in sizes
    ]


RAGGED = fp.Federation.from_arrays(
    clients(0, [1, 40, 3, 17, 70, 2, 9, 5]), clients(1, [0, 30, 0, 90, 4, 1, 0, 12])
)


def mse(outputs: Vector, y: Vector, weights: Vector) -> float:
    return float(np.average(((outputs - y) ** 2).mean(axis=1), weights=weights))


def f1(outputs: Vector, y: Vector, weights: Vector) -> float:
    met, predicted, actual = (outputs > 0) & (y > 0), outputs > 0, y > 0
    both, first, second = (float(weights @ a.sum(axis=1)) for a in (met, predicted, actual))
    return 2 * both / (first + second)


def binned_auc(outputs: Vector, y: Vector, weights: Vector, bins: int = 64) -> float:
    """The Mann-Whitney statistic of outputs in bins from -10 to 10, pair by pair."""
    scores = np.floor((outputs[:, 0] + 10) * bins / 20)
    positive = y[:, 0] > 0
    apart = scores[positive][:, None] - scores[~positive]
    pairs = weights[positive][:, None] * weights[~positive]
    return float(np.sum(pairs * ((apart > 0) + (apart == 0) / 2)) / pairs.sum())


def test_labels_that_are_not_known_are_no_part_of_f1() -> None:
    stream = np.random.default_rng(4)
    outputs, y = stream.normal(size=(30, 4)), stream.integers(-1, 2, (30, 4)).astype(float)
    known = y >= 0
    expected = f1(outputs[known][:, None], y[known][:, None], np.ones(known.sum()))
    found = jax.jit(fp.metrics.f1())(outputs.astype(np.float32), y.astype(np.int32))
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize("metric", [fp.metrics.f1(), fp.metrics.auc()])
def test_two_outputs_of_a_softmax_are_one_logit(metric: Metric) -> None:
    stream = np.random.default_rng(3)
    outputs = stream.normal(size=(50, 2)).astype(np.float32)
    y = stream.integers(0, 2, 50).astype(np.int32)
    of = jax.jit(metric)
    assert of(outputs, y) == of(outputs[:, 1] - outputs[:, 0], y)
    with pytest.raises(fp.InputError, match=r"outputs float32\[50,3\] for labels int32\[50\]"):
        of(np.zeros((50, 3), np.float32), y)


ORACLES = {"rows": lambda *given: float(given[-1].sum()), "mse": mse, "f1": f1, "auc": binned_auc}


def expected(rows: fp.Rows, whole: fp.Rows, params: Vector) -> dict[str, float]:
    """Each metric of rows that stand for all of their clients' rows, and the loss."""
    weights = np.repeat(whole.sizes / np.maximum(rows.sizes, 1), rows.sizes)
    outputs, y = np.asarray(rows.x, float) @ params, np.asarray(rows.y, float)
    return {name: oracle(outputs, y, weights) for name, oracle in ORACLES.items()}


def runs(federation: fp.Federation, **options: Any) -> list[fp.Run]:
    return fp.simulate(
        federation,
        options.pop("model", MODEL),
        fp.fedavg(),
        solver=SOLVER,
        cohort=fp.Cohort(4),
        rounds=1,
        progress=False,
        **options,
    )


def check(record: fp.Record, params: Any, read: fp.Federation, whole: fp.Federation) -> None:
    params = np.asarray(params, float)
    assert set(record.metrics) == {
        f"{kind}_{name}" for kind in ("train", "test") for name in METRICS
    }
    for kind in ("train", "test"):
        values = expected(getattr(read, kind), getattr(whole, kind), params)
        for name, value in values.items():
            assert record.metrics[f"{kind}_{name}"] == pytest.approx(value, rel=1e-5), (kind, name)
    assert record.test_loss == pytest.approx(record.metrics["test_mse"], rel=1e-5)
    assert record.train_loss == pytest.approx(record.metrics["train_mse"], rel=1e-5)


SOME: dict[str, Any] = {"evaluation": fp.Evaluation(clients=5, rows=7, gradients=False)}
FAULTS: dict[str, Any] = {"evaluation": LOSSES, "faults": fp.Faults()}


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({"evaluation": LOSSES}, 2),
        (SOME, 2),
        pytest.param({}, 1, marks=pytest.mark.slow),
        pytest.param({"evaluation": fp.Evaluation(rows=4)}, 1, marks=pytest.mark.slow),
        pytest.param(FAULTS, 1, marks=pytest.mark.slow),
    ],
    ids=["all", "some rows of some clients", "gradients", "some rows", "faults"],
)
def test_metrics_are_those_of_plain_numpy(options: dict[str, Any], devices: int) -> None:
    evaluation = options.get("evaluation", fp.Evaluation())
    whole = RAGGED.sample_clients(evaluation.clients or len(RAGGED))
    read = whole.sample(evaluation.rows or 1000)
    slow, fast = runs(RAGGED, devices=devices, **options)
    assert np.abs(fast.params - slow.params).max() > 0.01
    for run in (slow, fast):
        check(run.history[0], WEIGHTS, read, whole)
        check(run.final, run.params, read, whole)


@pytest.fixture(scope="module")
def measured() -> list[fp.Run]:
    """Runs of the model with metrics."""
    return runs(RAGGED, evaluation=LOSSES)


@pytest.fixture(scope="module")
def plain() -> list[fp.Run]:
    """The same of the model without metrics."""
    return runs(RAGGED, evaluation=LOSSES, model=PLAIN)


@pytest.mark.slow
def test_metrics_leave_every_other_number_as_it_was(
    measured: list[fp.Run], plain: list[fp.Run]
) -> None:
    for one, other in zip(measured, plain, strict=True):
        np.testing.assert_array_equal(one.params, other.params)
        for record, without in zip(one.history, other.history, strict=True):
            assert without.metrics == {}
            own = dataclasses.replace(record, metrics={})
            assert repr(own) == repr(without)  # with repr NaN is NaN


def test_the_test_loss_is_that_of_the_test_rows_of_any_model(plain: list[fp.Run]) -> None:
    run = plain[0]
    whole = expected(RAGGED.test, RAGGED.test, run.params)
    assert run.final.test_loss == pytest.approx(whole["mse"], rel=1e-5)
    assert run.final.metrics == {}


def test_without_test_rows_they_are_unknown() -> None:
    untested = dataclasses.replace(RAGGED, test=no_rows(RAGGED.train))
    (run, _) = runs(untested, evaluation=LOSSES)
    assert math.isnan(run.final.test_loss)
    assert all(math.isnan(run.final.metrics[f"test_{name}"]) for name in METRICS)
    assert all(math.isfinite(run.final.metrics[f"train_{name}"]) for name in METRICS)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [6, None])
def test_clients_that_cannot_be_measured_are_left_out(rows: int | None) -> None:
    spoilt = 3
    x, y = RAGGED.train.x.copy(), RAGGED.test.x.copy()
    x[RAGGED.train.offsets[spoilt]] = np.nan
    y[RAGGED.test.offsets[spoilt]] = np.nan
    federation = dataclasses.replace(
        RAGGED,
        train=dataclasses.replace(RAGGED.train, x=x),
        test=dataclasses.replace(RAGGED.test, x=y),
    )
    others = np.delete(np.arange(len(RAGGED)), spoilt)
    left = dataclasses.replace(
        RAGGED,
        train=RAGGED.train.of_clients(others),
        test=RAGGED.test.of_clients(others),
        names=tuple(RAGGED.names[k] for k in others.tolist()),
    )
    losses = fp.Evaluation(rows=rows, gradients=False)
    run = runs(federation, faults=fp.Faults(), evaluation=losses)[0]
    assert run.history[0].unmeasured == 1
    # the sample is drawn from each client's own stream, by its number
    read = federation.sample(rows or 1000)
    read = dataclasses.replace(
        left, train=read.train.of_clients(others), test=read.test.of_clients(others)
    )
    check(run.history[0], WEIGHTS, read, left)
    assert math.isnan(runs(federation, evaluation=LOSSES)[0].history[0].test_loss)


# By client, and in files


def test_by_client_they_are_those_of_each_clients_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedprox.engine.compiled.evaluation.ROWS", 16)  # clients and slices cross
    found = client_measures(RAGGED, MODEL, WEIGHTS)
    assert np.isnan(found["test_accuracy"]).all()
    for kind in ("train", "test"):
        rows = getattr(RAGGED, kind)
        for k, size in enumerate(rows.sizes):
            (x, y), ones = rows.client(k), np.ones(size)
            for name, oracle in ORACLES.items():
                value = found[f"{kind}_{name}"][k]
                with np.errstate(all="ignore"):
                    wanted = oracle(x @ WEIGHTS, y, ones) if size else math.nan
                assert value == pytest.approx(wanted, rel=1e-5, nan_ok=True), (kind, name, k)
    np.testing.assert_allclose(found["test_loss"], found["test_mse"], rtol=1e-6)


def test_files_hold_them(measured: list[fp.Run], tmp_path: Path) -> None:
    run = measured[0]
    with RunDirectory(tmp_path / "run", {"rounds": 1}) as directory:
        for record in run.history:
            directory.record(record)
        directory.finish([run], None)
        write_clients(tmp_path / "run", RAGGED, MODEL, [run])
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert repr(read_record(last.encode())) == repr(run.final)
    line = json.loads(last)
    (summary,) = json.loads((tmp_path / "run" / "summary.json").read_text())
    (by_client,) = json.loads((tmp_path / "run" / "clients.json").read_text())
    for name, value in {"test_loss": run.final.test_loss, **run.final.metrics}.items():
        assert line[name] == summary[f"final_{name}"] == value
    assert by_client["test_f1"][0] is None  # no test rows
    assert len(by_client["train_f1"]) == len(by_client["test_loss"]) == len(RAGGED)
    unknown = dataclasses.replace(run.final, metrics={"test_f1": math.nan, "train_f1": 0.5})
    written = json.dumps(metrics_line(unknown), allow_nan=False).encode()
    assert repr(read_record(written)) == repr(unknown)


def test_the_table_and_the_figure_show_those_on_test_rows(
    measured: list[fp.Run], plain: list[fp.Run]
) -> None:
    run = measured[0]
    column = next(c for c in fp.table([run]).columns if c.header == "test f1")
    assert list(column.cells) == [f"{run.final.metrics['test_f1']:.4f}"]
    titles = [axis.get_title() for axis in fp.figure([run]).axes]
    assert titles[-3:] == ["test mse", "test f1", "test auc"]
    other = dataclasses.replace(plain[0], label="other")
    column = next(c for c in fp.table([run, other]).columns if c.header == "test f1")
    assert list(column.cells)[1] == "-"
    assert len(fp.figure([run, other]).axes) == len(titles)


# Ready-made metrics

AUC = fp.metrics.auc(bins=100)


@jax.jit
def weighted_auc(outputs: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
    return AUC.value(weighted_sums(AUC.terms(outputs, y), weights))


scored = st.tuples(st.floats(-20, 20, width=32), st.booleans(), st.integers(0, 3))


@pytest.mark.slow
@given(st.lists(scored, min_size=30, max_size=30))
def test_auc_is_within_its_bound_of_the_exact_one(rows: list[tuple[float, bool, int]]) -> None:
    outputs, y, weights = (np.array(column) for column in zip(*rows, strict=True))
    value = float(weighted_auc(outputs.astype(np.float32), y, weights.astype(np.float32)))
    outputs, y = np.repeat(outputs.astype(np.float32), weights), np.repeat(y, weights)
    if y.all() or not y.any():
        assert math.isnan(value)
        return
    apart = outputs[y][:, None] - outputs[~y]
    exact = np.mean((apart > 0) + (apart == 0) / 2)
    bins = np.clip(np.floor((outputs / np.float32(10) + 1) * 50), 0, 99)
    same = np.mean(bins[y][:, None] == bins[~y])
    assert abs(value - exact) <= same / 2 + 1e-5


def test_auc_of_an_unknown_score_is_unknown() -> None:
    auc, y = jax.jit(fp.metrics.auc()), np.array([0, 1, 1])
    assert math.isnan(auc(np.array([0.0, 1.0, np.nan], np.float32), y))
    assert float(auc(np.array([-1e9, 1.0, np.inf], np.float32), y)) == 1.0


# Mistakes

OK = METRICS["mse"]
MISTAKES: list[tuple[Any, str]] = [
    (OK, "model.metrics = Metric("),
    ({"loss": OK}, "model.metrics: name 'loss'; it is taken, as are all of loss, accuracy, "),
    ({"f 1": OK}, "model.metrics: name 'f 1'; it must be letters, digits and underscores"),
    ({3: OK}, "model.metrics: name 3; it must be letters"),
    ({"f1": lambda outputs, _: outputs}, "model.metrics['f1'] = <function"),
]
T, V = "model.metrics['mine'].terms", "model.metrics['mine'].value"
TRACED: list[tuple[Any, Any, str]] = [
    (lambda outputs: outputs, sum, f"{T}(outputs, y) raised TypeError"),
    (lambda o, _: np.asarray(o), sum, f"{T}(outputs, y) uses NumPy on a traced array"),
    (lambda o, y: (o - y).mean(), sum, f"{T}: float32[] for 2 rows; it must return arrays of num"),
    (lambda *_: 1.0, sum, f"{T}: float for 2 rows; it must return arrays"),
    (lambda *_: {}, sum, f"{T}: nothing for 2 rows; it must return arrays"),
    (lambda o, _: o * 1j, sum, f"{T}: complex64[2,3] for 2 rows; it must return arrays of numbers"),
    (lambda o, _: o, lambda s: s, f"{V}(sums) returns float32[3]; it must return one real number"),
    (lambda o, _: o, lambda _: None, f"{V}(sums) returns nothing; it must return one real number"),
    (lambda o, _: o, lambda s: s["tp"], f"{V}(sums) raised "),
    (lambda o, _: o, lambda s: float(s[0]), f"{V}(sums) needs the value of a traced array"),
    (fp.metrics.auc().terms, fp.metrics.auc().value, "auc: labels of shape (2, 3); they must have"),
    (lambda o, y: OK.terms(o[:, 0], y), OK.value, "mean_squared_error: outputs float32[2] for"),
]


@pytest.mark.parametrize(("metrics", "message"), MISTAKES)
def test_what_is_no_metric_is_refused(metrics: Any, message: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        dataclasses.replace(MODEL, metrics=metrics)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("terms", "value", "message"), TRACED)
def test_a_mistake_in_a_metric_is_one_line(terms: Any, value: Any, message: str) -> None:
    model = dataclasses.replace(MODEL, metrics={"mine": Metric(terms, value)})
    with pytest.raises(fp.InputError) as refused:
        runs(RAGGED, model=model)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_metrics_need_functions() -> None:
    with pytest.raises(fp.InputError, match=r"Metric\.value = 3; it must be a function"):
        Metric(OK.terms, 3)  # type: ignore[arg-type]
    with pytest.raises(fp.InputError, match="bins = 1; it must be a whole number of at least 2"):
        fp.metrics.auc(bins=1)
    with pytest.raises(fp.InputError, match="limit = 0; it must be above 0"):
        fp.metrics.auc(limit=0)


def test_names_that_records_use_are_taken() -> None:
    used = [name.partition("_") for name in MEASURES]
    assert {rest for kind, _, rest in used if kind in ("train", "test")} == set(TAKEN)


def test_a_model_with_metrics_can_be_hashed_and_compared() -> None:
    assert hash(dataclasses.replace(MODEL)) == hash(MODEL)
    assert dataclasses.replace(MODEL) == MODEL != dataclasses.replace(MODEL, metrics={})
