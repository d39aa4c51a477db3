"""All keys of experiment files as rows, and the help that shows them."""

import re
import tomllib

import pytest
from typer.testing import CliRunner

import fedprox as fp
from fedprox import cli
from fedprox.algorithms.server import RULES
from fedprox.commands.keys import LISTING
from fedprox.experiment import CATALOGUES, Experiment, keys, keys_of, parse
from fedprox.experiment.listing import as_toml, listing, plain
from fedprox.experiment.schema import table_of
from fedprox.experiment.sections import HEADERS, NAMED
from fedprox.files.toml import parse_toml
from tests.test_cli import SMALL

ROWS = keys()

RENEW = """
from fedprox.commands.keys import LISTING
from fedprox.experiment.listing import listing
LISTING.write_text(listing(), encoding="utf-8")
"""


def test_each_key_is_listed_once_under_its_section() -> None:
    places = [(row.section, row.key) for row in ROWS]
    assert len(set(places)) == len(places)
    expected = set()
    for name, field in Experiment.model_fields.items():
        schema = NAMED.get(name) or table_of(field)
        if name != "versions":
            expected |= {(name, key) for key in schema.model_fields} if schema else set()
            expected |= {("", name)} if name not in HEADERS else set()
    assert set(places) == expected


def test_a_row_says_everything() -> None:
    for row in ROWS:
        assert row.description.endswith("."), row
        assert row.description.isprintable(), row
        assert row.type, row
        if row.default not in ("", "required"):
            parse_toml(f"key = {row.default}")


def test_rows_hold_types_and_defaults() -> None:
    found = {(row.section, row.key): (row.type, row.default) for row in ROWS}
    assert found["", "rounds"] == ("a whole number", "required")
    assert found["", "seed"] == ("a whole number or a list of whole numbers", "0")
    assert found["", "initial"] == ("a string or a table", "")
    assert found["evaluation", "model"] == ('one of "server", "cohort", "clients"', '"server"')
    assert found["evaluation", "rows"] == ("a whole number of at least 1", "")
    assert found["compression", "share"] == ("a number above 0 and at most 1", "0.01")
    assert found["population", "dropout"] == ("a number of at least 0 and below 1", "0.0")
    assert found["evaluation", "gradients"] == ("true or false", "true")
    assert found["initial", "path"] == ("a string", "required")
    assert found["solver", "gamma"] == ("a number", "")
    assert found["solver", "optimizer"] == ("a string", '"sgd"')
    assert found["solver", "optimizer_options"] == ("a table", "{}")
    assert found["model", "name"] == ("a string", '"logistic"')


def test_defaults_are_those_of_a_file_without_the_keys() -> None:
    table = {
        "rounds": 1,
        "data": {"name": "synthetic"},
        "cohort": {"clients_per_round": 1},
        "population": {},
        "asynchronous": {"buffer": 1},
        "attack": {"kind": "noise", "share": 0.1},
        "compression": {"codec": "sign"},
        "faults": {},
        "privacy": {"clip": 1.0},
        "study": {},
        "solver": {"learning_rate": 0.1, "batch_size": 1, "epochs": 1},
        "method": [{"name": "fedavg"}],
    }
    experiment = parse("small", table)
    for row in ROWS:
        if row.section in NAMED or row.default in ("", "required"):
            continue
        place = getattr(experiment, row.section) if row.section else experiment
        assert as_toml(getattr(place, row.key)) == row.default, row


def test_a_section_that_is_no_table_is_refused_with_its_header() -> None:
    with pytest.raises(fp.InputError, match=r"it must be a section, written \[selection\]"):
        parse("small", tomllib.loads(SMALL) | {"selection": 5})


def test_the_command_lists_every_key() -> None:
    written = LISTING.read_text(encoding="utf-8")
    assert written == listing(), f"an old file; to renew it: python -c '{RENEW}'"
    text = CliRunner().invoke(cli.app, ["keys"]).output
    words = " ".join(text.split())
    for row in ROWS:
        assert f"{row.key}: {row.type}" in words
        assert " ".join(plain(row.description).split()) in words
    shown = set(re.findall(r"[a-z_0-9]+", text))
    for catalogue in (*CATALOGUES.values(), RULES):
        for name, function in catalogue.items():
            assert {*re.findall("[a-z_0-9]+", name), *keys_of(function)} <= shown, name
