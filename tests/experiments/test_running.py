"""Items run with the library's guards: one process a folder, evaluations between, no warnings."""

import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

import fedprox as fp
from experiments import ITEMS
from experiments.engine import run as engine
from experiments.engine.item import SCALES, expand
from fedprox.errors import InputError
from fedprox.experiment import parse, resolve, train
from fedprox.files.lock import locked
from tests.test_cli import SMALL


class Begun(BaseException):
    """The first method's rounds would begin now."""


def stop(_: object) -> None:
    raise Begun


def test_an_item_is_run_by_one_process(tmp_path: Path) -> None:
    name, item = next(iter(ITEMS.items()))
    with locked(tmp_path / name), pytest.raises(InputError, match="is being written by"):
        engine.reproduce(name, item, SCALES["short"], tmp_path)
    assert list(tmp_path.rglob("*.*")) == []


def test_an_item_does_not_warn_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tomllib.loads(SMALL) | {"seed": 0, "method": [{"name": "fedavg"}]}
    # a class that only test rows have
    table |= {"data": {"name": "synthetic", "clients": 2, "seed": 1}}
    table["cohort"]["clients_per_round"] = 2
    experiment = parse("small", table)
    with pytest.warns(UserWarning, match=r"in training \(4\)"), suppress(Begun):
        train(experiment, resolve(experiment), [fp.Callback(on_record=stop)], progress=False)
    monkeypatch.setattr("fedprox.report.directory.RunDirectory.record", lambda *_: stop(None))
    with suppress(Begun):
        engine._train("small", experiment, tmp_path / "out", None)


@pytest.mark.parametrize("scale", SCALES)
def test_items_evaluate_between(scale: str) -> None:
    for name, item in ITEMS.items():
        for paper in item.runs.values():
            for table in expand(paper, SCALES[scale]).values():
                assert table.get("evaluation", {}).get("every", 1) <= table["rounds"], name
