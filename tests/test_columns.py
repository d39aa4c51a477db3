"""Columns: how values become features, what is refused, and moments that nodes can join."""

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import fedprox as fp
from fedprox.columns import (
    Moments,
    Words,
    features_of,
    joined,
    labels_of,
    moments_of,
    scaling,
    standardized,
)

LABEL = fp.Column("y", "number")
AGE = fp.Column("age", "number", unit="years")
STAGE = fp.Column("stage", "category", values=("I", "II"), missing="column")
WARD = fp.Column("ward", "index", values=(10, 20, 30))
COLUMNS = fp.Columns((AGE, STAGE, WARD), LABEL, "given", mean=(50.0,), scale=(10.0,))


def words(*values: str | None) -> Words:
    known = sorted({value for value in values if value is not None})
    return Words(np.array([-1 if v is None else known.index(v) for v in values]), known)


def test_columns_survive_json() -> None:
    text = json.dumps(COLUMNS.as_json())
    assert fp.Columns.of_json(json.loads(text)) == COLUMNS
    plain = fp.Columns((AGE,), fp.Column("ill", "category", values=("no", "yes")))
    assert fp.Columns.of_json(json.loads(json.dumps(plain.as_json()))) == plain
    assert (COLUMNS.classes, plain.classes) == (0, 2)


def test_an_index_makes_features_a_dict() -> None:
    table: Any = {
        "age": np.array([40, 60]),
        "stage": words("II", None),
        "ward": np.array([30.0, 10.0]),
    }
    features = features_of(COLUMNS, table)
    assert COLUMNS.names == ("age", "stage=I", "stage=II", "stage missing")
    np.testing.assert_array_equal(features["numbers"], [[-1, 0, 1, 0], [1, 0, 0, 1]])
    np.testing.assert_array_equal(features["ward"], [2, 0])
    assert features["numbers"].dtype == np.float32
    assert features["ward"].dtype == np.int32


def test_dates_are_days_since_1970() -> None:
    columns = fp.Columns((fp.Column("seen", "date", missing="column"),), LABEL)
    days = [[1.0, 0.0], [1.5, 0.0], [0.0, 1.0]]
    at = np.array(["1970-01-02", "1970-01-02T12:00", "NaT"], "datetime64[us]")
    np.testing.assert_array_equal(features_of(columns, {"seen": at}), days)
    texts = words("1970-01-02", "1970-01-02T12:00", None)
    np.testing.assert_array_equal(features_of(columns, {"seen": texts}), days)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("column", [[-0.5, 0], [0, 1], [0.5, 0]]), (5.0, [[-0.5], [0.5], [0.5]])],
)
def test_a_missing_number_is_a_value_or_a_column(missing: Any, expected: Any) -> None:
    column = fp.Column("v", "number", missing=missing)
    columns = fp.Columns((column,), LABEL, "given", mean=(4.0,), scale=(2.0,))
    table = {"v": np.array([3.0, np.nan, 5.0])}
    np.testing.assert_array_equal(features_of(columns, table), expected)


def test_labels_are_classes_by_their_vocabulary() -> None:
    label = fp.Column("y", "category", values=("yes", "no"))
    columns = fp.Columns((AGE,), label)
    np.testing.assert_array_equal(labels_of(columns, {"y": words("no", "yes")}), [1, 0])
    boolean = replace(columns, label=fp.Column("y", "boolean"))
    y = labels_of(boolean, {"y": np.array([True, False])})
    np.testing.assert_array_equal(y, [1, 0])
    assert y.dtype == np.int32


ROWS = st.lists(st.tuples(st.integers(0, 3), st.floats(-1e3, 1e3)), min_size=1, max_size=30)


@given(ROWS, st.sampled_from([0.0, 1e6]))
def test_joined_moments_are_those_of_all_rows(rows: list[tuple[int, float]], base: float) -> None:
    owners = np.array([owner for owner, _ in rows])
    values = base + np.array([value for _, value in rows])
    columns, table = fp.Columns((AGE,), LABEL), {"age": values}
    by_client = moments_of(columns, table, owners=owners, clients=4)
    for k in range(4):  # as a node with client k computes them
        own = moments_of(columns, {"age": values[owners == k]})
        for one, all_ in zip(own, by_client, strict=True):
            np.testing.assert_allclose(one[0], all_[k], rtol=1e-9, atol=1e-6)
    (mean,), (scale,) = scaling(joined(by_client))
    np.testing.assert_allclose(mean, values.mean(), rtol=1e-12, atol=1e-9)
    if np.ptp(values) > 0:
        np.testing.assert_allclose(scale, values.std(), rtol=1e-7, atol=1e-7)


@given(st.floats(-1e9, 1e9), st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_a_constant_column_is_exactly_0(value: float, owners: list[int]) -> None:
    columns, table = fp.Columns((AGE,), LABEL, "federation"), {"age": np.full(len(owners), value)}
    moments = moments_of(columns, table, owners=np.array(owners), clients=4)
    known = standardized(columns, moments)
    assert known.mean == (value,)
    assert known.scale == (1.0,)
    assert not features_of(known, table).any()


def test_a_client_without_values_does_not_count() -> None:
    two = Moments(np.array([[0.0], [2.0]]), np.array([[99.0], [3.0]]), np.array([[0.0], [8.0]]))
    counts, means, squares = (float(each.item()) for each in joined(two))
    assert (counts, means, squares) == (2, 3, 8)


def test_numbers_by_row_standardize_in_place_of_the_columns() -> None:
    columns = fp.Columns((AGE,), LABEL, "client")
    table = {"age": np.array([1.0, 1.0])}
    numbers = np.array([[0.0], [1.0]]), np.array([[2.0], [1.0]])
    np.testing.assert_array_equal(features_of(columns, table, numbers=numbers), [[0.5], [0.0]])
    with pytest.raises(fp.InputError, match="standardize = 'client' without mean and scale"):
        features_of(columns, table)


COLUMN_ERRORS: dict[str, dict[str, Any]] = {
    r"column 'a': kind = 'text'; it must be one of number, boolean, category": {"kind": "text"},
    r"column 'a': no values; a category needs at least one": {"kind": "category"},
    r"column 'a': values of a number; leave them out": {"kind": "number", "values": (1,)},
    r"column 'a': values = 'ab'; they must be a list": {"kind": "category", "values": "ab"},
    r"column 'a': values has None": {"kind": "category", "values": (None,)},
    r"column 'a': values: '1' appears twice": {"kind": "category", "values": (1, "1")},
    r'column \'a\': missing = "column"; an index has none': {
        "kind": "index",
        "values": ("x",),
        "missing": "column",
    },
    r"column 'a': missing = 'y'; it must be one of the values, or \"column\"": {
        "kind": "category",
        "values": ("x",),
        "missing": "y",
    },
    r"column 'a': missing = 2; it must be true, false or \"column\"": {
        "kind": "boolean",
        "missing": 2,
    },
    r"column 'a': missing = 'x'; it must be a number or \"column\"": {
        "kind": "number",
        "missing": "x",
    },
    r"column 'a': missing = nan; it must be finite": {"kind": "number", "missing": float("nan")},
    r"column 'a': unit = 3; it must be a string": {"kind": "number", "unit": 3},
}


@pytest.mark.parametrize("message", COLUMN_ERRORS)
def test_a_column_that_does_not_fit_is_refused(message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        fp.Column("a", **COLUMN_ERRORS[message])


COLUMNS_ERRORS: dict[str, dict[str, Any]] = {
    "features: no columns": {"features": ()},
    "column 'age' appears twice": {"features": (AGE, AGE)},
    "standardize = 'all'; it must be one of federation, client, given": {"standardize": "all"},
    "label 'y': kind = 'date'; it must be one of number, boolean": {
        "label": fp.Column("y", "date")
    },
    "label 'y': missing; a label is never made up": {
        "label": fp.Column("y", "number", missing=0.0)
    },
    "mean: 2 numbers; 1 columns are numbers": {"mean": (1.0, 2.0), "scale": (1.0, 2.0)},
    "scale of column 'age' = 0.0; it must be .*above 0": {"mean": (1.0,), "scale": (0.0,)},
    "mean and scale: give both or neither": {"mean": (1.0,)},
    "column 'a b': the name of an index is that of a model's input": {
        "features": (fp.Column("a b", "index", values=("x",)),)
    },
    "column 'numbers': the name of an index": {
        "features": (fp.Column("numbers", "index", values=("x",)),)
    },
}


@pytest.mark.parametrize("message", COLUMNS_ERRORS)
def test_columns_that_do_not_fit_are_refused(message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        replace(fp.Columns((AGE,), LABEL), **COLUMNS_ERRORS[message])


JSON_ERRORS: dict[str, Any] = {
    "columns: it must be a table$": [],
    "columns: features: it must be a list of tables": {"features": {}},
    "columns: features.0: it must be a table with some of name, kind": {"features": [{"nme": 1}]},
    "columns: features.0: .*missing.*'kind'": {"features": [{"name": "a"}]},
    "columns: label: it must be a table": {"features": [{"name": "a", "kind": "number"}]},
    "columns: it must be a table with some of features": {
        "features": [{"name": "a", "kind": "number"}],
        "label": {"name": "y", "kind": "number"},
        "color": 1,
    },
}


@pytest.mark.parametrize("message", JSON_ERRORS)
def test_json_that_does_not_fit_is_refused(message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        fp.Columns.of_json(JSON_ERRORS[message])


VALUE_ERRORS: list[tuple[str, fp.Column, Any]] = [
    ("column 'a', row 12: 'x': a word; the kind 'number'", fp.Column("a", "number"), words("x")),
    ("column 'a', row 13: '<1': a word; the", fp.Column("a", "number"), words("3", "<1", "x")),
    ("column 'a', row 12: inf: it must be finite", fp.Column("a", "number"), np.array([np.inf])),
    (
        "column 'a', row 12: 1e\\+39: it is not finite as",
        fp.Column("a", "number"),
        np.array([1e39]),
    ),
    ("column 'a', row 12: a missing value", fp.Column("a", "number"), np.array([np.nan])),
    ("column 'a', row 12: 2: it must be 0 or 1", fp.Column("a", "boolean"), np.array([2])),
    (
        "column 'a', row 12: 'x': not in its vocabulary: 'u', 'v'",
        fp.Column("a", "category", values=("u", "v")),
        words("x"),
    ),
    (
        "column 'a', row 12: 3: not in its vocabulary: 1, 2",
        fp.Column("a", "index", values=(1, 2)),
        np.array([3]),
    ),
    (
        "column 'a', row 12: 3: not in its vocabulary: '3'",
        fp.Column("a", "index", values=("3",)),
        np.array([3]),
    ),
    (
        "column 'a', row 12: a missing value",
        fp.Column("a", "category", values=("u", "v")),
        words(None),
    ),
    ("column 'a', row 12: 'soon': no date", fp.Column("a", "date"), words("soon")),
    (
        "column 'a', row 12: 20260131: a number; a date",
        fp.Column("a", "date"),
        np.array([20260131]),
    ),
    (
        "column 'a', row 12: 2026-01-31: a date; its kind is 'number'",
        fp.Column("a", "number"),
        np.array(["2026-01-31"], "datetime64[D]"),
    ),
]


@pytest.mark.parametrize(("message", "column", "values"), VALUE_ERRORS)
def test_a_value_that_cannot_be_used_is_named(message: str, column: fp.Column, values: Any) -> None:
    columns = fp.Columns((column,), LABEL)
    with pytest.raises(fp.InputError, match=message):
        features_of(columns, {"a": values}, first=11)


def test_a_label_that_cannot_be_used_is_named() -> None:
    columns = fp.Columns((AGE,), LABEL)
    with pytest.raises(fp.InputError, match=r"column 'y', row 2: a missing value"):
        labels_of(columns, {"y": np.array([1.0, np.nan])})
    with pytest.raises(fp.InputError, match=r"column 'y', row 1: 1e\+39: it is not finite"):
        labels_of(columns, {"y": np.array([1e39])})


def test_a_long_vocabulary_is_cut_in_a_message() -> None:
    column = fp.Column("a", "index", values=tuple(range(100)))
    with pytest.raises(fp.InputError, match=r"vocabulary: 0, 1, .*, 19, \.\.\. \(100 in all\)"):
        features_of(fp.Columns((column,), LABEL), {"a": np.array([100])})
