"""Records: their measures as attributes, what is not measured, and equality."""

import math

import pytest

import fedprox as fp
from fedprox.measures import AXES, DRAWN, MEASURES, OPTIONAL
from fedprox.results.record import RECORD_COLUMNS, Record


def record(**measures: object) -> Record:
    return Record("fedavg", "fedavg", {"mu": 1.0}, 0.1, 0, 3, measures, {"test_f1": 0.5})


def test_measures_are_attributes() -> None:
    found = record(train_loss=2.0, epsilon=0.5)
    assert (found.train_loss, found.epsilon, found.value("train_loss")) == (2.0, 0.5, 2.0)
    assert found.value("test_f1") == 0.5


def test_what_is_not_measured_is_none_or_nan_or_none_of_it() -> None:
    empty = record()
    for name, measure in MEASURES.items():
        value = getattr(empty, name)
        if name in OPTIONAL:
            assert value is None
        else:
            assert value == 0 if measure.kind is int else value == 0 or math.isnan(value)


def test_an_unknown_name_is_an_error_that_names_those_that_exist() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'test_loss_se'; .*test_loss"):
        _ = record().test_loss_se


def test_a_record_as_a_table_has_all_columns_in_their_order() -> None:
    table = record(train_loss=2.0).as_dict()
    assert list(table) == RECORD_COLUMNS
    assert set(MEASURES) < set(table)
    assert table["hparams"] == {"mu": 1.0}


def test_records_are_equal_if_all_values_are() -> None:
    assert record(train_loss=math.nan) == record(train_loss=float("nan"))
    assert record(train_loss=1.0) != record(train_loss=2.0)
    assert record(epsilon=1.0) != record()
    assert record() != "a record"


def test_the_documentation_has_each_measure_with_its_type() -> None:
    text = fp.Record.__doc__ or ""
    for name, measure in MEASURES.items():
        assert f"        {name} (" in text
        assert measure.doc.split()[-1] in text
    assert "epsilon (float | None): Epsilon of the" in text
    assert "solves (int): Number of local problems" in text


def test_a_report_draws_known_measures() -> None:
    assert set(DRAWN) <= {*MEASURES, *AXES}
    assert all(measure.title for name, measure in MEASURES.items() if name in DRAWN)
