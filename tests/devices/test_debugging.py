"""JAX's settings for debugging, and devices that are not there."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedprox as fp
from tests.objectives import MODEL
from tests.settings import CLIENTS, FEDERATION, runs

ROOT = Path(__file__).parents[2]
X, Y = FEDERATION.test.x, FEDERATION.test.y


UNTESTED = replace(FEDERATION, test=fp.Rows(X[:0], Y[:0], np.zeros(CLIENTS + 1, np.int64)))


def small(**options: Any) -> fp.Run:
    (run,) = runs(methods=fp.fedprox(mu=0.1), rounds=1, **options)
    return run


def numbers(run: fp.Run) -> list[float]:
    """The loss and the model of a run."""
    leaves = jax.tree.leaves(run.params)
    return [run.final.train_loss, *(float(w) for leaf in leaves for w in leaf.ravel())]


def debugged() -> list[float]:
    """The numbers of a run on one device, whose evaluations leave measures out."""
    run = small(federation=UNTESTED, devices=1)
    assert np.isnan(run.final.gradient_variance)
    assert np.isnan(run.final.test_accuracy)
    return numbers(run)


@pytest.fixture
def debug_nans() -> Iterator[None]:
    jax.config.update("jax_debug_nans", True)
    yield
    jax.config.update("jax_debug_nans", False)


@pytest.mark.slow
def test_a_healthy_run_has_no_nan(request: pytest.FixtureRequest) -> None:
    """What is not measured is left out of a program's results, not NaN."""
    wanted = numbers(small())
    request.getfixturevalue("debug_nans")
    assert_allclose(debugged(), wanted, rtol=1e-4)


@pytest.mark.usefixtures("debug_nans")
def test_a_run_with_a_nan_ends() -> None:
    def apply(params: Any, x: jax.Array) -> jax.Array:
        return MODEL.apply(params, x) + jnp.log(-1.0 - jnp.sum(params["body"] ** 2))

    with pytest.raises(FloatingPointError, match="nan"):
        runs(model=replace(MODEL, apply=apply, representation=None), devices=1)


def in_process(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["JAX_DEBUG_NANS", "JAX_DISABLE_JIT"])
def test_a_run_for_a_debugger_has_the_same_results(variable: str) -> None:
    """With variables of the environment, as users set them."""
    module = "tests.devices.test_debugging"
    done = in_process(
        f"import json; from {module} import debugged; print(json.dumps(debugged()))",
        **{variable: "1"},
    )
    assert done.returncode == 0, done.stderr
    assert_allclose(json.loads(done.stdout), numbers(small()), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "deploy --local 3"])
def test_a_missing_device_is_said_in_one_line(command: str, tmp_path: Path) -> None:
    name, *options = command.split()
    arguments = [name, "examples/demo.toml", *options, "--out", str(tmp_path / "run")]
    code = f"import sys; sys.argv[1:] = {arguments}; from fedprox.cli import main; main()"
    done = in_process(code, JAX_PLATFORMS="cuda")
    if "loading the data" in done.stderr:
        pytest.skip("there is a GPU")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedprox: JAX_PLATFORMS = 'cuda': ")
    assert line.endswith("; leave it out, or set it to cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_users_function_is_not_blamed_for_a_missing_device() -> None:
    code = """
import jax.numpy as jnp, fedprox as fp
try:
    fp.Model(lambda key: jnp.zeros(2), lambda params, x: x @ params).shapes
except fp.InputError as error:
    print(error)
"""
    done = in_process(code, JAX_PLATFORMS="nonsense")
    assert done.stdout.startswith("JAX_PLATFORMS = 'nonsense': ")
