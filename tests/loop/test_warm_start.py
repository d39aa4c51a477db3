"""Runs that begin with given parameters."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.cli import main
from fedprox.report.records import metrics_line
from tests.objectives import MODEL
from tests.settings import runs


def train(methods: Any = None, **options: Any) -> list[fp.Run]:
    methods = methods or [fp.fedavg(), fp.scaffold(), fp.fedopt(optax.adam)]
    return runs(**{"methods": methods, "rounds": 2} | options)


def lines(found: list[fp.Run]) -> list[Any]:
    return [metrics_line(record) for run in found for record in run.history]


@pytest.mark.slow
def test_a_warm_start_is_a_model_that_begins_there_bit_for_bit(tmp_path: Path) -> None:
    (first,) = train(fp.fedavg(), seed=5)
    fp.save_model(tmp_path / "first.safetensors", first.params)
    loaded = fp.load_model(tmp_path / "first.safetensors")
    warm = train(initial=loaded, seed=[0, 1])
    there = jax.tree.map(jnp.asarray, first.params)
    expected = train(model=replace(MODEL, init=lambda _: there), seed=[0, 1])
    assert lines(warm) == lines(expected)
    for found, run in zip(warm, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, found.params, run.params)
        assert found.history[0].train_loss == first.final.train_loss


@pytest.mark.slow
def test_containers_that_name_their_parts_alike_and_whole_numbers_are_taken() -> None:
    model = fp.Model(lambda _: [jnp.zeros((5, 3))], lambda params, x: x @ params[0])
    (run,) = train(fp.fedavg(), model=model, initial=(np.ones((5, 3), int),), rounds=1)
    assert isinstance(run.params, list)


@pytest.mark.parametrize(
    ("initial", "line"),
    [
        ({"kernel": np.zeros((5, 3))}, "initial: parameters have 'kernel' where "),
        (lambda like: jax.tree.map(lambda a: a[:1], like), "initial: .*shape .* is needed"),
        (lambda like: jax.tree.map(lambda a: a / 0, like), "initial: .*: not all numbers are fin"),
        (lambda like: jax.tree.map(lambda a: a.astype(str), like), "initial: .*of type <U"),
        ("runs/a", "initial: parameters have one array where"),
    ],
)
def test_what_is_not_the_models_is_refused(initial: Any, line: str) -> None:
    if callable(initial):
        with np.errstate(all="ignore"):
            initial = initial(jax.tree.map(lambda a: np.ones(a.shape), MODEL.shapes))
    with pytest.raises(fp.InputError, match=line):
        train(initial=initial)


def test_checkpoints_of_another_start_are_refused(tmp_path: Path) -> None:
    start = jax.tree.map(lambda a: np.ones(a.shape), MODEL.shapes)

    def part(rounds: int, initial: Any) -> list[fp.Run]:
        checkpoints = fp.Checkpoints(tmp_path, resume=True)
        return train(fp.fedavg(), rounds=rounds, initial=initial, checkpoints=checkpoints)

    part(1, start)
    for other in (None, jax.tree.map(lambda a: a + 1, start)):
        with pytest.raises(fp.InputError, match="checkpoints of another comparison: initial = "):
            part(2, other)
    assert lines(part(2, start)) == lines(train(fp.fedavg(), initial=start))


FILE = """
rounds = 1
evaluation = {{gradients = false}}
data = {{name = "synthetic", clients = 4}}
cohort = {{clients_per_round = 2}}
solver = {{learning_rate = 0.1, batch_size = 10, steps = 3}}
method = [{{name = "fedavg"}}, {{name = "fedprox", mu = 1.0}}]
{initial}
"""


@pytest.mark.slow
def test_an_experiment_begins_with_a_run_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = {run.label: run for run in _run(tmp_path, "first", "")}
    section = '[initial]\npath = "first"\nlabel = "fedprox mu=1"\nseed = 0'
    for run in _run(tmp_path, "second", section):
        assert run.history[0].train_loss == first["fedprox mu=1"].final.train_loss
    monkeypatch.chdir("/")
    file = tmp_path / "c.toml"
    file.write_text(FILE.format(initial='initial = "first"'))
    with pytest.raises(fp.InputError, match="initial: no first"):
        fp.run(file)
    with pytest.raises(fp.InputError, match="give label, one of 'fedavg', 'fedprox mu=1'"):
        fp.run(file, data_dir=tmp_path)
    monkeypatch.setattr("sys.argv", ["fedprox", "run", str(file), "--set", "initial=3"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "initial = 3; it must be a string or a table" in capsys.readouterr().err


def _run(folder: Path, name: str, initial: str) -> list[fp.Run]:
    (folder / f"{name}.toml").write_text(FILE.format(initial=initial))
    return fp.run(folder / f"{name}.toml", out=folder / name)
