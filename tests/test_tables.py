"""Tables: every source gives the federation that a loop over rows gives by hand."""

import datetime
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import fedprox as fp
from fedprox import table_layout
from fedprox.columns import features_of
from fedprox.federation import Federation
from fedprox.table_layout import lay_out, training_moments
from fedprox.tables import read_table
from tests.variants import mostly_slow

Row = dict[str, Any]

KINDS: dict[str, Any] = {
    "age": {"kind": "number", "missing": 40.0, "unit": "years"},
    "bmi": {"kind": "number", "missing": "column"},
    "visits": "number",
    "smokes": {"kind": "boolean", "missing": "column"},
    "stage": fp.Column("stage", "category", ("low", "mid", "high"), missing="column"),
    "sex": {"kind": "category", "values": ["f", "m"], "missing": "m"},
    "ward": {"kind": "index", "values": [3, 5, 8]},
    "seen": {"kind": "date", "missing": 20_000.0},
}
VOCABULARIES = {"stage": ("low", "mid", "high"), "sex": ("f", "m"), "ward": (3, 5, 8)}
NUMERIC = ("age", "bmi", "visits", "seen")
ARGUMENTS: dict[str, Any] = {
    "client": "hospital",
    "label": "ill",
    "features": list(KINDS),
    "test": "split",
    "kinds": KINDS,
}

FLOATS = st.floats(-1e6, 1e6, width=32).map(lambda x: x + 0.0)  # no -0.0
DAYS = st.dates(datetime.date(1950, 1, 1), datetime.date(2050, 1, 1))
EXAMPLES = st.fixed_dictionaries(
    {
        "hospital": st.sampled_from(["b", "a", "c"]),
        "age": st.none() | FLOATS,
        "bmi": st.none() | FLOATS,
        "visits": st.integers(-9, 9),
        "smokes": st.none() | st.booleans(),
        "stage": st.none() | st.sampled_from(VOCABULARIES["stage"]),
        "sex": st.none() | st.sampled_from(VOCABULARIES["sex"]),
        "ward": st.sampled_from(VOCABULARIES["ward"]),
        "seen": st.none() | DAYS,
        "split": st.sampled_from(["train", "test", "validation"]),
        "ill": st.booleans(),
    }
)


def with_training_rows(rows: list[Row]) -> list[Row]:
    """Rows, the first of each client to train on."""
    clients = [row["hospital"] for row in rows]
    firsts = {clients.index(client) for client in clients}
    return [row | {"split": "train"} if i in firsts else row for i, row in enumerate(rows)]


TABLES = st.lists(EXAMPLES, min_size=1, max_size=12).map(with_training_rows)


def number(row: Row, name: str) -> float | None:
    """A number of a row, with what stands for a missing one."""
    value = {"age": 40.0, "seen": 20_000.0}.get(name) if row[name] is None else row[name]
    if isinstance(value, datetime.date):
        return float((value - datetime.date(1970, 1, 1)).days)
    return value


def by_hand(rows: list[Row], standardize: str | None) -> dict[str, Any]:
    """The features and labels of each part, client by client, by a loop over rows."""

    def numbers(of: list[Row], name: str) -> tuple[float, float]:
        values = [v for row in of if (v := number(row, name)) is not None]
        if not values or standardize is None:
            return 0.0, 1.0
        scale = float(np.std(values)) if min(values) < max(values) else 1.0
        return float(np.mean(values)), scale

    parts: dict[str, Any] = {}
    for part in ("train", "test", "validation"):
        x, wards, y, sizes = [], [], [], []
        for client in sorted({row["hospital"] for row in rows}):
            training = [row for row in rows if row["split"] == "train"]
            if standardize == "client":
                training = [row for row in training if row["hospital"] == client]
            own = [row for row in rows if (row["hospital"], row["split"]) == (client, part)]
            sizes.append(len(own))
            for row in own:
                features: list[float] = []
                for name in KINDS:
                    if name in NUMERIC:
                        mean, scale = numbers(training, name)
                        value = number(row, name)
                        features.append(0.0 if value is None else (value - mean) / scale)
                    elif name == "smokes":
                        features.append(float(row[name] or 0))
                    elif name != "ward":
                        word = row[name] or ("m" if name == "sex" else None)
                        features += [float(word == each) for each in VOCABULARIES[name]]
                    if name in ("bmi", "smokes", "stage"):
                        features.append(float(row[name] is None))
                x.append(features)
                wards.append(VOCABULARIES["ward"].index(row["ward"]))
                y.append(int(row["ill"]))
        parts[part] = np.array(x), wards, y, sizes
    return parts


def assert_by_hand(federation: Federation, rows: list[Row], standardize: str | None) -> None:
    expected = by_hand(rows, standardize)
    assert list(federation.names) == sorted({row["hospital"] for row in rows})
    assert federation.classes == 2
    for part in ("train", "test", "validation"):
        x, wards, y, sizes = expected[part]
        own: Any = getattr(federation, part)
        if own is None:
            assert not len(y)
            continue
        assert own.sizes.tolist() == sizes
        np.testing.assert_array_equal(own.y, y)
        np.testing.assert_array_equal(own.x["ward"], wards)
        if len(y):
            np.testing.assert_allclose(own.x["numbers"], x, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _blocks_of_three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_layout, "ROWS_AT_A_TIME", 3)


@settings(deadline=None)
@given(TABLES, st.sampled_from(["federation", "client", None]))
def test_a_table_is_that_of_a_loop_over_its_rows(rows: list[Row], standardize: Any) -> None:
    federation = fp.Federation.from_table(rows, **ARGUMENTS, standardize=standardize)
    assert_by_hand(federation, rows, standardize)


def columns_of(rows: list[Row]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def of_file(write: Callable[[Any, str], None], ending: str) -> Callable[[list[Row], Path], Any]:
    def made(rows: list[Row], folder: Path) -> Any:
        path = folder / f"patients{ending}"
        write(arrow(rows, folder), str(path))
        return path

    return made


def arrow(rows: list[Row], _: Path) -> Any:
    return pytest.importorskip("pyarrow").table(columns_of(rows))


def pandas(rows: list[Row], _: Path) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns_of(rows))


def pandas_with_own_types(rows: list[Row], _: Path) -> Any:
    frame = pandas(rows, _).convert_dtypes()
    frame["seen"] = pytest.importorskip("pandas").to_datetime(frame["seen"])
    return frame.astype({"stage": "category"})


def polars(rows: list[Row], _: Path) -> Any:
    return pytest.importorskip("polars").DataFrame(columns_of(rows))


def polars_with_categories(rows: list[Row], _: Path) -> Any:
    pl = pytest.importorskip("polars")
    frame = polars(rows, _)
    return frame.with_columns(
        pl.col("stage").cast(pl.Enum(["mid", "high", "low", "other"])),
        pl.col("hospital").cast(pl.Categorical),
        pl.col("seen").cast(pl.Datetime("us", "UTC")),
    )


def arrow_with_dictionaries(rows: list[Row], _: Path) -> Any:
    pa = pytest.importorskip("pyarrow")
    table, half = arrow(rows, _), len(rows) // 2
    table = pa.concat_tables([table[:half], table[half:]])  # chunks with their own dictionaries
    for name in ("hospital", "sex"):
        at = table.column_names.index(name)
        chunks = [chunk.dictionary_encode() for chunk in table[name].chunks if len(chunk)]
        table = table.set_column(at, name, pa.chunked_array(chunks))
    return table


SOURCES: dict[str, Callable[[list[Row], Path], Any]] = {
    "lists": lambda rows, _: columns_of(rows),
    "arrays": lambda rows, _: {k: np.array(v) for k, v in columns_of(rows).items()},
    "pyarrow": arrow,
    "pyarrow with dictionaries": arrow_with_dictionaries,
    "pandas": pandas,
    "pandas with its own types": pandas_with_own_types,
    "polars": polars,
    "polars with categories": polars_with_categories,
    "CSV": of_file(lambda t, p: pytest.importorskip("pyarrow.csv").write_csv(t, p), ".csv"),
    "Parquet": of_file(
        lambda t, p: pytest.importorskip("pyarrow.parquet").write_table(t, p, row_group_size=4),
        ".parquet",
    ),
    "Feather": of_file(
        lambda t, p: pytest.importorskip("pyarrow.feather").write_feather(t, p), ".feather"
    ),
}


@pytest.mark.parametrize("source", mostly_slow(SOURCES, "arrays", "pandas", "CSV"))
@settings(max_examples=20, deadline=None)
@given(rows=TABLES)
def test_every_source_gives_the_same_federation(
    source: str, rows: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = SOURCES[source](rows, tmp_path_factory.mktemp("table"))
    federation = fp.Federation.from_table(table, **ARGUMENTS)
    expected = fp.Federation.from_table(rows, **ARGUMENTS)
    own, other = federation.columns, expected.columns
    assert own is not None
    assert other is not None
    assert replace(own, mean=None, scale=None) == replace(other, mean=None, scale=None)
    for name in ("mean", "scale"):  # row groups of Parquet are summed one by one
        np.testing.assert_allclose(getattr(own, name), getattr(other, name), rtol=1e-9, atol=1e-9)
    assert federation.names == expected.names
    for part, of_rows in zip(federation.parts, expected.parts, strict=True):
        numbers = part.x["numbers"], of_rows.x["numbers"]
        np.testing.assert_allclose(*numbers, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(part.x["ward"], of_rows.x["ward"])
        np.testing.assert_array_equal(part.y, of_rows.y)


@settings(max_examples=20, deadline=None)
@given(TABLES, st.data())
def test_clients_do_not_depend_on_the_order_of_rows(rows: list[Row], data: st.DataObject) -> None:
    """Rows of a client stay in order, however clients' rows are mixed."""
    ranks = [row["hospital"] for row in data.draw(st.permutations(rows))]
    own = {name: [r for r in rows if r["hospital"] == name] for name in set(ranks)}
    mixed = [own[name].pop(0) for name in ranks]
    one, other = (fp.Federation.from_table(each, **ARGUMENTS) for each in (rows, mixed))
    np.testing.assert_array_equal(one.train.offsets, other.train.offsets)
    np.testing.assert_allclose(
        one.train.x["numbers"], other.train.x["numbers"], rtol=1e-5, atol=1e-5
    )


PATIENTS: dict[str, list[Any]] = {
    "hospital": ["b", "a", "b", "a", "b"],
    "age": [70, 40, 50, 60, 30],
    "sex": ["m", "f", "f", "m", "m"],
    "ill": ["no", "yes", "no", "no", "yes"],
}


def patients(**arguments: Any) -> Federation:
    columns = {k: arguments.pop(k) for k in (*PATIENTS, "split") if k in arguments}
    given: dict[str, Any] = {"client": "hospital", "label": "ill"} | arguments
    return fp.Federation.from_table(PATIENTS | columns, **given)


def test_kinds_are_inferred() -> None:
    federation = patients(standardize=None)
    assert federation.columns == fp.Columns(
        (fp.Column("age", "number"), fp.Column("sex", "category", ("f", "m"))),
        fp.Column("ill", "category", ("no", "yes")),
    )
    np.testing.assert_array_equal(federation.train.x[:, 0], [40, 60, 70, 50, 30])
    np.testing.assert_array_equal(federation.train.y, [1, 0, 0, 0, 1])
    assert federation.train.sizes.tolist() == [2, 3]


LABELS: list[tuple[list[Any], int]] = [
    ([0, 1, 2, 0, 1], 3),
    ([0.0, 1.0, 1.0, 0.0, 1.0], 2),
    ([0.0, 1.0, 20.0, 0.0, 1.0], 0),
    ([0.5, 1.0, 1.0, 0.0, 1.0], 0),
    ([0, 1, 50, 0, 1], 51),
    ([True, False, True, True, True], 2),
    (["c", "a", "b", "a", "a"], 3),
]


@pytest.mark.parametrize(("labels", "classes"), LABELS)
def test_labels_are_classes_as_in_from_arrays(labels: list[Any], classes: int) -> None:
    federation = patients(ill=labels)
    assert federation.classes == classes
    if not isinstance(labels[0], str):
        y = [labels[i] for i in (1, 3, 0, 2, 4)]
        others = fp.Federation.from_arrays([(np.zeros((5, 1)), y)])
        assert others.classes == classes
        np.testing.assert_array_equal(federation.train.y, others.train.y)
        assert federation.train.y.dtype == others.train.y.dtype


def test_whole_numbers_are_targets_where_it_is_said() -> None:
    federation = patients(label="age", features=["sex"], kinds={"age": "number"})
    assert federation.classes == 0
    np.testing.assert_array_equal(federation.train.y, [40, 60, 70, 50, 30])


def test_given_numbers_standardize() -> None:
    federation = patients(standardize={"age": [50, 10]})
    np.testing.assert_array_equal(federation.train.x[:, 0], [-1, 1, 2, 0, -2])
    assert federation.columns is not None
    assert federation.columns.standardize == "given"
    assert federation.columns.mean == (50.0,)


def test_new_rows_are_standardized_by_the_federations_numbers() -> None:
    federation = patients()
    columns = federation.columns
    assert columns is not None
    table = read_table({"age": [70], "sex": ["m"]})
    plain = {name: table.column(name).rows(0, 1) for name in table.names}
    np.testing.assert_array_equal(features_of(columns, plain), federation.train.x[2:3])
    assert replace(federation, augment=None).columns == columns
    assert federation.of_clients(np.array([1])).columns == columns


def test_a_client_of_its_own_is_that_of_the_whole_table() -> None:
    """A node that reads its own rows has the rows, the split and the moments of the federation."""
    rng = np.random.default_rng(0)
    table = {
        "hospital": rng.choice(["a", "b"], 60),
        "x": rng.normal(size=60),
        "y": rng.integers(0, 2, 60),
    }
    whole = fp.Federation.from_table(table, client="hospital", label="y", test=0.3, seed=4)
    own = {name: column[table["hospital"] == "b"] for name, column in table.items()}
    columns = whole.columns
    assert columns is not None
    assert columns.mean is not None
    assert columns.scale is not None
    given = {"x": [columns.mean[0], columns.scale[0]]}
    node = fp.Federation.from_table(
        *(own,), client_name="b", label="y", features=["x"], test=0.3, seed=4, standardize=given
    )
    for part, of_node in zip(whole.parts, node.parts, strict=True):
        np.testing.assert_array_equal(part.client(1)[0], of_node.x)  # type: ignore[union-attr]
    assert 0.2 < len(whole.test) / 60 < 0.4
    layout = lay_out(
        own,
        client=None,
        client_name="b",
        label="y",
        features=["x"],
        test=0.3,
        kinds={},
        missing={},
        standardize="federation",
        seed=4,
    )
    x = own["x"][layout.parts == 0]
    moments = training_moments(layout)
    np.testing.assert_allclose(np.ravel(moments), [len(x), x.mean(), len(x) * x.var()], rtol=1e-12)


def test_a_share_is_right_on_average_and_leaves_a_row_to_train_on() -> None:
    rows = [{"k": k % 50, "x": float(k), "y": k % 2} for k in range(500)] + [
        {"k": 99, "x": 0.0, "y": 0}
    ]
    federation = fp.Federation.from_table(rows, client="k", label="y", test=0.25, standardize=None)
    assert federation.names[-1] == "99"
    assert federation.train.sizes.tolist()[-1] == 1
    assert 0.22 < len(federation.test) / 501 < 0.28
    other = fp.Federation.from_table(
        *(rows,), client="k", label="y", test=0.25, standardize=None, seed=1
    )
    assert set(federation.test.x.ravel()) != set(other.test.x.ravel())
    both = np.concatenate([federation.train.x, federation.test.x]).ravel()
    assert sorted(both) == sorted([*map(float, range(500)), 0.0])


def test_clients_numbers_are_sorted_as_numbers() -> None:
    assert patients(hospital=[10, 9, 10, 9, 9]).names == ("9", "10")


def test_a_column_for_all_missing_values() -> None:
    federation = patients(age=[70, None, 50, 60, 30], missing="column")
    assert federation.columns is not None
    assert federation.columns.names == ("age", "age missing", "sex=f", "sex=m")
    assert federation.columns.mean == (52.5,)
    np.testing.assert_array_equal(federation.train.x[0, :2], [0, 1])


def test_a_masked_value_is_missing() -> None:
    age = np.ma.array([70, 1, 50, 60, 30], mask=[False, True, False, False, False])
    federation = fp.Federation.from_table(
        *({**PATIENTS, "age": age},), client="hospital", label="ill", missing={"age": 52.5}
    )
    assert federation.train.x[0, 0] == 0


def test_csv_keeps_the_zeros_of_a_stated_vocabulary(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "codes.csv"
    path.write_text("h,code,y\na,007,0.5\na,07,1.5\n")
    federation = fp.Federation.from_table(
        *(path,), client="h", label="y", kinds={"code": {"kind": "index", "values": ["07", "007"]}}
    )
    np.testing.assert_array_equal(federation.train.x["code"], [1, 0])


def test_only_the_columns_that_are_used_are_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = PATIENTS | {"note": [[1], [2], [3], [4], [5]]}
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), tmp_path / "p.parquet")
    federation = fp.Federation.from_table(
        *(tmp_path / "p.parquet",), client="hospital", label="ill", features="age"
    )
    assert federation.train.x.shape == (5, 1)


ERRORS: dict[str, dict[str, Any]] = {
    "table: give either client, .*, or client_name": {"client_name": "a"},
    "client_name = 3; it must be a name": {"client": None, "client_name": 3},
    "table: no column 'hospitals'; did you mean 'hospital'": {"client": "hospitals"},
    "table: no column 'il'; did you mean 'ill'": {"label": "il"},
    "table: no column 'split'; ": {"test": "split"},
    "table: no column 'weight'": {"features": ["age", "weight"]},
    "table: a column is used twice: 'ill' appears twice": {"features": ["age", "ill"]},
    "features: no columns": {"features": []},
    "test = 1.5; it must be above 0 and below 1": {"test": 1.5},
    "test = 0.1: no client has a row to spare": {"test": 0.1, "hospital": list("abcde")},
    "kinds: 'ages' is none of the columns.*did you mean 'age'": {"kinds": {"ages": "number"}},
    "kinds: 'age': 3; it must be one of number, boolean": {"kinds": {"age": 3}},
    "kinds: 'age': .*with some of kind, values": {"kinds": {"age": {"kin": "number"}}},
    "kinds: 'age' is a column of the name 'x'": {"kinds": {"age": fp.Column("x", "number")}},
    "missing: 'ages' is none of the columns": {"missing": {"ages": 1.0}},
    "column 'age': missing is stated twice": {
        "kinds": {"age": {"kind": "number", "missing": 1.0}},
        "missing": {"age": 2.0},
    },
    "standardize = 'given'; it must be one of federation, client": {"standardize": "given"},
    "standardize: 'sex' is no column of numbers; allowed: age": {"standardize": {"sex": [0, 1]}},
    r"standardize: 'age': \[1\]; it must be \[mean, scale\]": {"standardize": {"age": [1]}},
    "standardize: 'age': scale = 0; it must be above 0": {"standardize": {"age": [1, 0]}},
    "column 'hospital', row 3: a missing value; each row needs": {
        "hospital": ["a", "a", None, "b", "b"]
    },
    "column 'hospital', row 4: a missing value": {"hospital": [1, 1, 1, None, 1]},
    "column 'hospital': the clients' names must be words or whole": {"hospital": [1.5, 1, 1, 1, 1]},
    "column 'age', row 4: a missing value; say in missing": {"age": [1, 2, 3, None, 5]},
    "column 'age', row 5: inf: it must be finite": {"age": [1, 2, 3, 4, float("inf")]},
    "column 'age', row 3: 'x': row 1 has 1": {"age": [1, 2, "x", 4, 5]},
    r"column 'age', row 2: \[2\]: they must be numbers": {"age": [1, [2], 3, 4, 5]},
    "column 'ill', row 2: a missing value": {"ill": ["a", None, "b", "a", "a"]},
    "column 'ill': whole numbers from -1 to 1; classes are 0 to 9999": {"ill": [-1, 1, 1, 1, 1]},
    "column 'ill': whole numbers from 0 to 10000": {"ill": [0, 10_000, 0, 0, 0]},
    "column 'sex', row 1: 'm': not in its vocabulary: 'f'": {
        "kinds": {"sex": {"kind": "category", "values": ["f"]}}
    },
    "column 'sex', row 1: 'm': a word; the kind 'number'": {"kinds": {"sex": "number"}},
    "column 'age': dates; kinds = {'age': \"date\"}": {"age": [datetime.date(2026, 1, 1)] * 5},
    "table: 5 rows of column 'hospital' and 4 of 'age'": {"age": [1, 2, 3, 4]},
    "column 'age': no values; leave the column out": {
        "age": [None] * 5,
        "kinds": {"age": "category"},
    },
}


@pytest.mark.parametrize("message", ERRORS)
def test_what_cannot_be_used_is_named(message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        patients(**ERRORS[message])


def test_a_split_must_be_one_of_three() -> None:
    with pytest.raises(fp.InputError, match=r"column 'split', row 4: 'dev': .* train, test, val"):
        patients(split=["train", "test", "train", "dev", "train"], test="split")
    with pytest.raises(fp.InputError, match="client 'b': no training rows"):
        patients(split=["test", "train", "test", "train", "test"], test="split")
    with pytest.raises(fp.InputError, match="column 'age': no words; it must be one of train"):
        patients(test="age")


def test_a_word_among_numbers_does_not_make_words_of_them(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("h,crp,y\na,1.5,0\na,2.5,1\nb,<0.5,0\nb,3.5,1\n")
    given: dict[str, Any] = {"client": "h", "label": "y"}
    with pytest.raises(fp.InputError, match=r"column 'crp', row 3: '<0.5': a word, where most are"):
        fp.Federation.from_table(file, **given)
    with pytest.raises(fp.InputError, match=r"column 'crp', row 3: '<0.5': a word; the kind"):
        fp.Federation.from_table(file, **given, kinds={"crp": "number"})
    categories = fp.Federation.from_table(file, **given, kinds={"crp": "category"})
    assert categories.columns is not None
    assert categories.columns.names == ("crp=1.5", "crp=2.5", "crp=3.5", "crp=<0.5")


def test_too_many_words_must_be_stated() -> None:
    rows = [{"h": "a", "note": str(i), "y": 0} for i in range(1001)]
    with pytest.raises(fp.InputError, match=r"column 'note': 1,001 different values; state them"):
        fp.Federation.from_table(rows, client="h", label="y")


NOT_TABLES: dict[str, Any] = {
    "an object of type int; it must be a path, a data frame": 3,
    "table: row 2 is of type int; it must be a dict": [{"hospital": "a", "ill": 0}, 3],
    "table: row 2: no column 'ill'": [{"hospital": "a", "ill": 0}, {"hospital": "a"}],
    "table: row 2: a new column 'x'": [{"ill": 0}, {"ill": 0, "x": 1}],
    "table: 3 is not a column's name": {3: [1]},
    "column 'age': 3; it must be an array or a list": {"age": 3},
    "column 'age': array.*must be an array or a list": {"age": np.zeros((2, 2))},
    "column 'age': values of type complex128": {
        "hospital": ["a"],
        "ill": [0],
        "age": np.zeros(1, complex),
    },
    "table: no rows": {"hospital": [], "ill": [], "age": []},
    "table: no column 'ill'; allowed: no more keys": [],
    "table: no file nowhere.csv": "nowhere.csv",
    "table: patients.xlsx: its name must end in .csv, .parquet": "patients.xlsx",
}


@pytest.mark.parametrize("message", NOT_TABLES)
def test_what_is_no_table_is_refused(message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        fp.Federation.from_table(NOT_TABLES[message], client="hospital", label="ill")


BROKEN = {
    "a.csv": (b"h,y\na,0\na,1,2\n", "Expected 2 columns, got 3"),
    "b.csv": (b"h,h,y\na,b,0\n", "table: Expected unique column names"),
    "c.csv": (b"h,y\nb,\xff\n", r"column 'y': values of type Binary"),
    "e.csv": (b"", "Empty CSV file"),
    "d.parquet": (b"PAR1nothing", "d.parquet: "),
    "e.feather": (b"nothing", "e.feather: "),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    content, message = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(fp.InputError, match=message) as error:
        fp.Federation.from_table(tmp_path / name, client="h", label="y")
    assert re.match(r"table: |column ", str(error.value))


def test_a_row_of_a_csv_is_counted_without_the_header(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text("h,x,y\na,1,0\na,2,0\na,3,0\na,,1\n")
    with pytest.raises(fp.InputError, match="column 'x', row 4: a missing value"):
        fp.Federation.from_table(tmp_path / "a.csv", client="h", label="y")


def test_a_file_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("h,y\na,0\n")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(fp.InputError, match=r'pyarrow is not installed: .*".\[table\]"'):
        fp.Federation.from_table(tmp_path / "a.csv", client="h", label="y")


def test_frames_say_what_cannot_be_used() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"h": ["a"], "y": [0], "x": [[1]]})
    with pytest.raises(fp.InputError, match="column 'x': values of type List"):
        fp.Federation.from_table(frame, client="h", label="y")
    with pytest.raises(fp.InputError, match="an object of type LazyFrame"):
        fp.Federation.from_table(frame.lazy(), client="h", label="y")
    pd = pytest.importorskip("pandas")
    twice = pd.DataFrame([["a", 0, 1]], columns=["h", "y", "y"])
    with pytest.raises(fp.InputError, match="table: "):
        fp.Federation.from_table(twice, client="h", label="y")
