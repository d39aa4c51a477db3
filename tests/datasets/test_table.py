"""`[data] table = "..."`: a file of the user's in an experiment file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.experiment import load_data
from fedprox.files.toml import parse_toml

pytest.importorskip("pyarrow")

CSV = """hospital,age,sex,stage,seen,ill
a,40,f,I,2026-01-31,no
b,50,m,II,2026-02-01,yes
a,,f,II,2026-01-31,yes
b,70,m,I,2026-01-31,no
"""

SECTION = """
table = "patients.csv"
client = "hospital"
label = "ill"
test = 0.5
missing = { age = "column" }
seed = 3

[kinds]
seen = "date"
stage = { kind = "category", values = ["I", "II", "III"], unit = "TNM" }
"""


def load(text: str, folder: Path) -> tuple[fp.Federation, dict[str, Any]]:
    (folder / "patients.csv").write_text(CSV)
    return load_data(parse_toml(text), folder)


def test_a_section_with_a_table_is_from_table(tmp_path: Path) -> None:
    federation, table = load(SECTION, tmp_path)
    expected = fp.Federation.from_table(
        tmp_path / "patients.csv",
        client="hospital",
        label="ill",
        test=0.5,
        missing={"age": "column"},
        seed=3,
        kinds={
            "seen": "date",
            "stage": fp.Column("stage", "category", ("I", "II", "III"), unit="TNM"),
        },
    )
    assert federation.columns == expected.columns
    np.testing.assert_array_equal(federation.train.x, expected.train.x)
    np.testing.assert_array_equal(federation.test.x, expected.test.x)
    assert table["name"] == "table"
    again, shown = load_data(table, tmp_path)  # what a run writes can be run again
    assert shown == table
    np.testing.assert_array_equal(again.train.x, federation.train.x)


def test_numbers_are_standardized_as_the_section_says(tmp_path: Path) -> None:
    plain = 'table = "patients.csv"\nclient = "hospital"\nlabel = "ill"\nfeatures = ["age"]\n'
    plain += "missing = { age = 60.0 }\n"
    none, _ = load(plain + 'standardize = "none"', tmp_path)
    np.testing.assert_array_equal(none.train.x, [[40], [60], [50], [70]])
    given, _ = load(plain + "standardize = { age = [50, 10] }", tmp_path)
    np.testing.assert_array_equal(given.train.x, [[-1], [1], [0], [2]])
    own, _ = load(plain + 'standardize = "client"', tmp_path)
    np.testing.assert_array_equal(own.train.x, [[-1], [1], [-1], [1]])
    of_one, _ = load(plain.replace('client = "hospital"', 'client_name = "c"'), tmp_path)
    assert of_one.names == ("c",)


HEAD = 'table = "patients.csv"\nclient = "hospital"\nlabel = "ill"\n'

ERRORS = {
    "data.table: no file nowhere.csv or .*nowhere.csv": HEAD.replace("patients", "nowhere"),
    "data: the key 'label' is missing": 'table = "patients.csv"',
    "data.name = 'tables'; did you mean 'table'": 'name = "tables"',
    "data.standardize = 'all'; it must be one of": HEAD + 'standardize = "all"',
    "data: unknown key 'clients'; did you mean 'client'": HEAD + "clients = 3",
    "kinds: 'age': 3; it must be one of number": HEAD + "kinds = { age = 3 }",
}


@pytest.mark.parametrize("message", ERRORS)
def test_what_a_section_cannot_say_is_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(fp.InputError, match=message):
        load(ERRORS[message], tmp_path)


@pytest.mark.slow
def test_the_file_of_the_page_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "data.md"
    text = page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    assert len(text.splitlines()) <= 12
    rows = [
        f"{'abc'[i % 3]},{i % 70},{'fm'[i % 2]},{'no' if i % 70 < 35 else 'yes'}" for i in range(90)
    ]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,sex,ill", *rows]))
    (tmp_path / "first.toml").write_text(text)
    (run,) = fp.run(tmp_path / "first.toml", ["rounds=2"], data_dir=tmp_path, progress=False)
    assert len(run.history) == 3
