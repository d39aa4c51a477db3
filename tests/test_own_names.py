"""Models, methods and data of the user's own, named by an experiment file."""

import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedprox as fp
from fedprox.experiment import parse, read_experiment, resolve

MODULE = """
from collections.abc import Callable, Sequence
import jax.numpy as jnp
import numpy as np
import fedprox as fp

def net(fed: fp.Federation, width: int = 2, act: Callable = jnp.tanh) -> fp.Model:
    def init(key):
        return jnp.zeros((fed.features.shape[0], fed.classes)) * width
    return fp.Model(init, lambda w, x: act(x) @ w)

def mine(mu: float | Sequence[float]) -> fp.Algorithm:
    def local(params, hparams, context):
        return fp.Subproblem(params, mu=hparams["mu"], anchor=params)
    return fp.Algorithm("mine", local, hparams={"mu": mu}, stragglers="keep")

def rows(clients: int, plain=3) -> fp.Federation:
    x = np.arange(4.0)[:, None] + plain
    return fp.Federation.from_arrays([(x, [0, 1, 0, 1])] * clients)

def number(federation):
    return 3

def fails(federation):
    return {}["a"]

def strange(federation, act: Callable):
    return None
"""

TABLE: dict[str, Any] = {
    "rounds": 1,
    "cohort": {"clients_per_round": 2},
    "solver": {"learning_rate": 0.1, "batch_size": 2, "epochs": 1},
    "data": {"name": "own.parts:rows", "clients": 3},
    "model": {"name": "own.parts:net"},
    "method": [{"name": "own.parts:mine", "mu": [0.0, 1.0]}],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A current folder with the user's modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")
    (tmp_path / "own" / "parts.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("x = 1 +")
    (tmp_path / "needs.py").write_text("import nowhere_at_all")
    yield
    for name in ("own", "own.parts", "broken", "needs"):
        sys.modules.pop(name, None)


def test_own_parts_are_found_in_the_current_folder_and_trained(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(tomli_w.dumps(TABLE | {"evaluation": {"gradients": False}}))
    runs = fp.run("a.toml", out="out", progress=False)
    assert [run.label for run in runs] == ["mine mu=0", "mine mu=1"]
    assert runs[0].final.train_loss < runs[0].history[0].train_loss
    again = resolve(read_experiment(tmp_path / "out/experiment.toml"))
    assert again.table == resolve(read_experiment(tmp_path / "a.toml")).table
    table = dict(runs[0].experiment)
    assert table["model"] == {"name": "own.parts:net", "width": 2}
    assert table["data"] == {"name": "own.parts:rows", "clients": 3, "plain": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": {"name": "nothing.here:net"}},
            r"model.name = 'nothing.here:net': no module 'no",
        ),
        ({"model": {"name": "own.other:net"}}, r"no module 'own.other' in .* or on Python's path$"),
        ({"model": {"name": "needs:net"}}, r"no module 'nowhere_at_all', which 'needs' imports in"),
        ({"model": {"name": "broken:net"}}, r"importing 'broken' raised SyntaxError"),
        ({"model": {"name": "own.parts:absent"}}, r"'own.parts' has no function 'absent'$"),
        ({"model": {"name": "own.parts:"}}, r'it must be "package.module:function"$'),
        ({"model": {"name": "own.parts:number"}}, r"returns a value of type int; it must return a"),
        ({"model": {"name": "own.parts:fails"}}, r"^own.parts:fails raised KeyError: 'a'$"),
        ({"model": {"name": "own.parts:strange"}}, r"its parameter 'act' has a type that no key"),
        ({"model": {"name": "own.parts:net", "width": "a"}}, r"model.width = 'a'; it must be a wh"),
        (
            {"model": {"name": "own.parts:net", "depth": 1}},
            r"unknown key 'depth'; .*allowed: width",
        ),
        ({"data": {"name": "own.parts:rows"}}, r"data: the key 'clients' is missing"),
        (
            {"data": {"name": "own.parts:mine", "mu": 1.0}},
            r"type Algorithm; .* fedprox.Federation$",
        ),
        ({"method": [{"name": "own.parts:mine"}]}, r"method.0: the key 'mu' is missing"),
        ({"model": {"name": "mlq"}}, r'or one of your own as "package.module:function"$'),
    ],
)
def test_what_is_wrong_with_an_own_part_is_one_line(change: Any, message: str) -> None:
    with pytest.raises(fp.InputError, match=message) as refused:
        resolve(parse("a.toml", TABLE | change))
    assert "\n" not in str(refused.value)
