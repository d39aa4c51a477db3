"""How records are measured: what is refused, and in which words; how a file says it."""

import tomllib
from typing import Any

import pytest
import tomli_w

import fedprox as fp
from fedprox.experiment import parse, resolve
from fedprox.protocol.protocol import Evaluation
from tests.test_cli import SMALL


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"every": 0}, "evaluation.every = 0; it must be a whole number of at least 1"),
        ({"every": None}, "evaluation.every = None; it must be a whole number of at least 1"),
        ({"every": 2.0}, "evaluation.every = 2.0; it must be a whole number of at least 1"),
        ({"every": True}, "evaluation.every = True; it must be a whole number of at least 1"),
        ({"rows": 0}, "evaluation.rows = 0; it must be a whole number of at least 1"),
        ({"rows": "all"}, "evaluation.rows = 'all'; it must be a whole number of at least 1"),
        ({"clients": -1}, "evaluation.clients = -1; it must be a whole number of at least 1"),
        ({"clients": 1.5}, "evaluation.clients = 1.5; it must be a whole number of at least 1"),
        ({"model": "all"}, "evaluation.model = 'all'; it must be one of server, cohort, clients"),
        ({"gradients": "no"}, "evaluation.gradients = 'no'; it must be True or False"),
        ({"gradients": 0}, "evaluation.gradients = 0; it must be True or False"),
        ({"by_client": 1}, "evaluation.by_client = 1; it must be True or False"),
        ({"client_records": None}, "evaluation.client_records = None; it must be True or False"),
    ],
    ids=str,
)
def test_each_bad_value_is_named_in_one_line(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        fp.Evaluation(**wrong)
    assert str(refused.value) == line


@pytest.mark.parametrize(("clients", "drawn"), [(None, None), (5, 5), (6, None), (1000, None)])
def test_as_many_clients_as_there_are_is_all(clients: int | None, drawn: int | None) -> None:
    federation = fp.datasets.synthetic(clients=6)
    assert Evaluation(2, 3, clients).of(federation) == Evaluation(2, 3, drawn)


def test_a_file_says_it_in_a_section_of_its_own() -> None:
    text = SMALL.replace("evaluation.every = 2\n", "") + (
        '[evaluation]\nevery = 2\nrows = 5\nclients = 4\nmodel = "clients"\ngradients = false\n'
        "by_client = true\nclient_records = true\n"
    )
    resolved = resolve(parse("small", tomllib.loads(text)))
    assert resolved.evaluation == Evaluation(
        2, 5, 4, "clients", gradients=False, by_client=True, client_records=True
    )
    assert resolved.table["evaluation"] == {
        "every": 2,
        "rows": 5,
        "clients": 4,
        "model": "clients",
        "gradients": False,
        "by_client": True,
        "client_records": True,
    }


def test_run_directories_hold_the_section() -> None:
    written = tomllib.loads(tomli_w.dumps(resolve(parse("small", tomllib.loads(SMALL))).table))
    assert written["evaluation"] == {
        "every": 2,
        "model": "server",
        "gradients": True,
        "by_client": False,
        "client_records": False,
    }
