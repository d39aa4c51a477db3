"""Pages that errors name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedprox as fp
from fedprox.columns import Column, Columns, features_of
from fedprox.datasets import sources
from fedprox.deployment import flower_operator
from fedprox.errors import PAGES, InputError, installing, page_of
from fedprox.report.directory import RunDirectory
from fedprox.user_code import call
from tests.docs.test_links import slugs
from tests.objectives import MODEL
from tests.settings import BASE, runs
from tests.studies.test_study import study
from tests.test_cli import SMALL, status
from tests.test_exports import RUN, row_by_row
from tests.test_predictions import BY_CLIENT, ROWS, linear, saved

DOCS = Path(__file__).parents[1] / "docs"
ILL = Column("ill", "boolean")


def features(column: Column, value: float) -> None:
    features_of(Columns((column,), ILL), {column.name: np.array([value])})


def on_traced(function: Callable[[Any], Any]) -> None:
    call("f(x)", jax.eval_shape, function, jax.ShapeDtypeStruct((2,), np.float32))


def not_downloaded(folder: Path) -> None:
    nowhere = ("http://127.0.0.1:9/",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPROX_CACHE", str(folder))
        sources.fetch(sources.Source("mnist", "a.gz", 0, "md5:00", nowhere))


def of_other_weights(folder: Path) -> None:
    file = folder / "other.safetensors"
    safetensors.numpy.save_file({"v": np.zeros(2, np.float32)}, file)
    fp.load_model(file)


def of_another_comparison(folder: Path) -> None:
    for rate in (0.1, 0.2):
        checkpoints = fp.Checkpoints(folder / "checkpoint", resume=True)
        runs(rounds=1, solver=replace(BASE["solver"], learning_rate=rate), checkpoints=checkpoints)


def two_experiments(folder: Path) -> None:
    for rounds in (1, 2):
        with RunDirectory(folder / "out", {"rounds": rounds, "method": [{"name": "x"}]}) as run:
            run.record(runs(rounds=1)[0].history[0])


def no_server(folder: Path) -> None:
    with flower_operator._one_line("127.0.0.1:1", folder, folder):
        raise httpx.ConnectError("refused")


def fail(line: str) -> None:
    raise InputError(line)


def of_no_table(folder: Path) -> None:
    fp.save_model(folder / "a.safetensors", {"w": np.zeros(2, np.float32)})
    fp.predict(folder / "a.safetensors", ROWS, model=MODEL)


def unknown_loss(_: Path) -> None:
    x = np.zeros((2, 3), np.float32)
    tags = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    federation = fp.Federation.from_arrays([(x, tags)])
    model = fp.Model(lambda _: {"w": jnp.zeros((3, 2))}, lambda params, x: x @ params["w"])
    runs(federation=federation, model=model, cohort=fp.Cohort(1))


PROVOKED: dict[str, Callable[[Path], Any]] = {
    "in a clone of fedprox, pip install": lambda _: fail(installing("flower")),
    " is missing; put it": lambda folder: fp.datasets.mnist(data_dir=folder),
    " could not be downloaded": not_downloaded,
    "a missing value; say in missing": lambda _: features(Column("age", "number"), np.nan),
    ": not in its vocabulary": lambda _: features(Column("age", "category", values=(1,)), 2.0),
    "was not trained on a table": of_no_table,
    "each client's own mean and deviation standardize": lambda folder: fp.predict(
        saved(folder, ILL, **BY_CLIENT), ROWS, model=linear()
    ),
    "uses NumPy on a traced array": lambda _: on_traced(lambda x: np.sort(x)),
    "uses a traced value as a Python": lambda _: on_traced(lambda x: 1 if x[0] > 0 else x),
    "give loss=fedprox.losses": unknown_loss,
    "fp.load_weights loads what": of_other_weights,
    "no validation rows": lambda _: study(data=fp.datasets.synthetic(clients=4), vary=None),
    "methods: unequal budgets": lambda _: study(
        methods={"a": fp.fedavg(), "b": fp.fedprox(mu=[0.0, 1.0])}, vary=None
    ),
    "checkpoints of another comparison": of_another_comparison,
    " holds another experiment's results": two_experiments,
    "code cannot be exported": lambda folder: fp.export(
        RUN, folder, model=replace(linear(), apply=row_by_row), example=np.zeros((1, 3))
    ),
    " does not answer: ": no_server,
}
"""What raises an error with each of these words."""


@pytest.mark.parametrize("words", PAGES)
def test_an_error_names_its_page_which_there_is(words: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, ConnectionError)) as refused:
        PROVOKED[words](tmp_path)
    assert words in str(refused.value)
    page, _, heading = PAGES[words].partition("#")
    assert (DOCS / page).is_file()
    assert not heading or heading in slugs(DOCS / page)
    assert page_of(str(refused.value)) == f"see docs/{PAGES[words]}"
    if isinstance(refused.value, InputError):
        assert refused.value.__notes__ == [f"see docs/{PAGES[words]}"]


def test_few_errors_have_a_page() -> None:
    assert len(PAGES) <= 20
    assert set(PROVOKED) == set(PAGES)


def test_the_command_ends_with_the_page(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.toml").write_text("rouds = 3\n")
    assert status("run", tmp_path / "a.toml") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    (tmp_path / "a.toml").write_text(SMALL.replace('"synthetic"\nclients = 6', '"mnist"'))
    assert status("run", tmp_path / "a.toml", "--data-dir", tmp_path) == 2
    first, last = capsys.readouterr().err.splitlines()
    assert " is missing; put it" in first
    assert last == "fedprox: see docs/howto/data.md#the-librarys-data-sets"
