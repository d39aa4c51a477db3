"""The help of `fedprox run`: made from the keys, and an experiment file that runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedprox.algorithms import ALGORITHMS
from fedprox.datasets import DATASETS
from fedprox.experiment import example_file, keys, keys_of, read_experiment
from fedprox.experiment.example import OFF
from fedprox.experiment.messages import HEADERS
from fedprox.experiment.sections import NAMED
from fedprox.models import MODELS
from tests.test_cli import status


@pytest.fixture(scope="module")
def help_text() -> str:
    """What `fedprox run --help` prints on a terminal of the usual width."""
    command = [sys.executable, "-m", "fedprox.cli", "run", "--help"]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


@pytest.fixture(scope="module")
def pasted(help_text: str) -> str:
    """The experiment file of the help, without the two spaces that all paragraphs have."""
    _, _, after = help_text.partition("An experiment file, with every key:\n")
    lines = after.partition("Bad input is reported")[0].splitlines()
    return "\n".join(line.removeprefix("  ") for line in lines) + "\n"


def section_of(pasted: str, name: str) -> str:
    """From a section's header to the next one; what is above all sections for no name."""
    off = "# " if name in OFF else ""
    begin = pasted.partition(f"\n  {off}{HEADERS[name]}")[2] if name else pasted
    return re.split(r"\n  (?:# )?\[", begin)[0]


def test_help_shows_every_option(help_text: str) -> None:
    for option in ("--set", "--out", "--data-dir", "--devices", "--checkpoint-every", "--resume"):
        assert option in help_text


def test_help_shows_every_key_with_its_description(pasted: str) -> None:
    for row in keys():
        if row.section and row.section not in HEADERS:
            continue  # a table within a line
        text = section_of(pasted, row.section)
        assert re.search(rf"^  (# )?{row.key} = ", text, re.M), row
        words = " ".join(re.sub(r"^ *(.*? )?# ", "", line) for line in text.splitlines())
        assert row.description in words
        facts = words.partition(row.description)[2].partition(")")[0]
        assert f"({row.type}" in facts
        assert row.default in facts


def test_help_shows_the_keys_of_every_name(pasted: str) -> None:
    words = set(re.findall(r"[a-z_0-9]+", pasted))
    for catalogue in (DATASETS, MODELS, ALGORITHMS):
        for name, function in catalogue.items():
            assert set(re.findall("[a-z0-9]+", name)) <= words
            assert set(keys_of(function)) <= words, name


def test_its_lines_are_short(pasted: str) -> None:
    assert max(map(len, pasted.splitlines())) <= 98
    assert pasted.split() == " ".join(example_file()).split()


def test_the_file_of_the_help_runs(pasted: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "pasted.toml"
    path.write_text(pasted)
    changes = ("rounds=2", "solver.epochs=1", "method.0.solver.epochs=1", "data.clients=12")
    settings = [part for change in changes for part in ("--set", change)]
    assert status("run", path, *settings, "--out", tmp_path / "out") == 0
    assert capsys.readouterr().err == ""  # no warning either


def test_every_value_behind_a_comment_has_the_right_type(pasted: str, tmp_path: Path) -> None:
    path = tmp_path / "pasted.toml"
    for name in OFF:
        section = section_of(pasted, name)
        used = re.sub(r"^  # (?=\w+ = )", "  ", section, flags=re.M)
        pasted = pasted.replace(f"  # {HEADERS[name]}{section}", f"  {HEADERS[name]}{used}")
    path.write_text(pasted)
    assert all(getattr(read_experiment(path), name) is not None for name in OFF)
    commented = re.findall(r"^  # (\w+ = .*?)(?: +#.*)?$", pasted, re.M)
    assert len(commented) > 10
    for line in commented:
        path.write_text(pasted.replace(f"  # {line}", f"  {line}"))
        read_experiment(path)


def test_named_sections_show_the_keys_that_are_not_their_functions(pasted: str) -> None:
    for name, schema in NAMED.items():
        for key in schema.model_fields:
            assert f"{key} = " in section_of(pasted, name)
