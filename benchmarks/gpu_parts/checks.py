"""Checks that results on a GPU are right, and the tests that matter there if pytest is installed.

The checks are plain functions that return what they found, and raise `AssertionError` if it is
wrong. The tests call them too.
"""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedprox as fp
from benchmarks.gpu_parts import environment
from benchmarks.gpu_parts.lanes import with_lanes
from benchmarks.gpu_parts.part import Part
from benchmarks.models import ROWS, Row, row_named
from fedprox.devices.programs import PROGRAMS
from fedprox.model import weighted_loss
from tests.byhand import CASES, beside_the_oracle

Check = Callable[[], dict[str, Any]]

TESTS = (
    "tests/engine/compiled/test_round.py",
    "tests/algorithms",
    "tests/models",
)
"""The tests that matter on a GPU."""

FOR_CPUS = (
    "tests/algorithms/test_oracles.py::test_runs_are_the_oracles[scaffold 1]",
    "tests/models/test_models.py::test_a_round_of_a_large_model_holds_few_copies_of_it",
)
"""Those of them that need two devices, or the number of lanes that a CPU has."""

REHEARSED = f"{TESTS[0]}::test_fedavg_equals_the_numpy_loop_without_stragglers"
"""The test of a rehearsal."""

ENDING = 15.0
"""Seconds in which a check ends and the tests' results are written when the time is nearly over."""

SAME = 1e-3
"""Largest relative difference between results of equal precision."""

ORACLES = ("fedprox", "feddyn", "scaffold 2", "fedsplit", "fednova")
"""The cases of the tests' oracle that are checked."""


def equals_the_oracle(name: str) -> dict[str, Any]:
    """A method's runs equal those of the NumPy oracle, stragglers and sweep points included."""
    with jax.default_matmul_precision("highest"):
        case = CASES[name]
        beside_the_oracle(case.method, case.oracle, **case.options)
    return {}


def difference(found: Any, expected: Any) -> float:
    """||found - expected|| / ||expected|| of two pytrees."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    away = sum(float(np.sum((np.asarray(a, float) - np.asarray(b, float)) ** 2)) for a, b in pairs)
    size = sum(float(np.sum(np.asarray(b, float) ** 2)) for _, b in pairs)
    return float(np.sqrt(away / size))


def ragged(row: Row, clients: int) -> fp.Federation:
    """Random data of a model's shape for clients of different sizes, on average 30 rows."""
    whole = row.federation(1).train
    rng = np.random.default_rng(1)
    x, y = whole.client(0)
    sizes = np.clip(rng.lognormal(3.2, 0.6, clients), 3, 120).astype(int)
    drawn = [rng.integers(len(y), size=size) for size in sizes]
    return fp.Federation.from_arrays([(x[i], y[i]) for i in drawn], classes=row.classes)


def lanes_agree(name: str, clients: int = 24) -> dict[str, Any]:
    """Several lanes give the model that one lane gives."""
    row = row_named(name)
    federation = ragged(row, clients)
    runs: dict[int, fp.Run] = {}
    for lanes in (1, 3, 8):
        with with_lanes(lanes), jax.default_matmul_precision("highest"):
            (runs[lanes],) = fp.simulate(
                federation,
                row.model(federation),
                fp.fedprox(mu=0.1),
                solver=fp.Solver(0.05, row.batch, epochs=2),
                cohort=fp.Cohort(clients // 2),
                systems=fp.Systems(stragglers=0.5),
                rounds=2,
                evaluation=fp.Evaluation(every=2, gradients=False),
                devices=1,
                progress=False,
            )
    found = {lanes: difference(runs[lanes].params, runs[1].params) for lanes in (3, 8)}
    assert max(found.values()) < SAME, f"results of several lanes and of one differ: {found}"
    return {"difference": max(found.values())}


def step_equals_the_cpus(name: str) -> dict[str, Any]:
    """A model's gradients in two lanes equal those that a CPU computes.

    The difference in the default precision, TF32 on most GPUs, is returned too and has no limit.
    """
    row = row_named(name)
    federation = row.federation(1)
    model = row.model(federation)
    x, y = (a[: row.batch] for a in federation.train.client(0))
    weights = np.full(len(y), 1 / len(y), np.float32)
    (cpu, *_) = jax.local_devices(backend="cpu")

    def gradients(precision: str | None, device: jax.Device | None) -> Any:
        def one(params: Any) -> Any:
            return jax.grad(weighted_loss, argnums=1)(
                model, params, jnp.asarray(x), jnp.asarray(y), jnp.asarray(weights)
            )

        with jax.default_device(device), jax.default_matmul_precision(precision):
            return jax.device_get(jax.jit(jax.vmap(one))(jax.tree.map(jnp.asarray, params)))

    with jax.default_device(cpu):
        keys = jax.random.split(jax.random.key(0))
        params = jax.device_get(jax.vmap(model.init)(keys))
        before = jax.config.read("jax_disable_most_optimizations")
        jax.config.update("jax_disable_most_optimizations", True)  # it runs but once
        try:
            expected = gradients("highest", cpu)
        finally:
            jax.config.update("jax_disable_most_optimizations", before)
    found = {
        "difference": difference(gradients("highest", None), expected),
        "default precision": difference(gradients(None, None), expected),
    }
    assert found["difference"] < SAME, f"gradients on this device and on a CPU differ: {found}"
    return found


def programs_compile_once() -> dict[str, Any]:
    """A run compiles one program for rounds, one for evaluations and one for gamma."""
    row = row_named("logistic")
    federation = ragged(row, 12)
    model = row.model(federation)
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(kwargs.get("fun_name")))

    def run(rounds: int) -> None:
        fp.simulate(
            federation,
            model,
            fp.fedprox(mu=0.1),
            solver=fp.Solver(0.05, row.batch, epochs=2),
            cohort=fp.Cohort(4),
            systems=fp.Systems(stragglers=0.5),
            rounds=rounds,
            evaluation=fp.Evaluation(every=2),
            progress=False,
        )

    run(2)  # what JAX compiles for single operations
    PROGRAMS.clear()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        run(9)
    finally:
        jax.monitoring.clear_event_listeners()
    assert len(compiled) == 3, f"compiled {sorted(compiled)}; three programs are needed"
    return {"programs": len(compiled)}


CHECKS: dict[str, Check] = {
    **{f"NumPy oracle: {name}": partial(equals_the_oracle, name) for name in ORACLES},
    "three programs a run": programs_compile_once,
    "lanes: logistic": partial(lanes_agree, "logistic"),
    "lanes: FedDyn CNN": partial(lanes_agree, "FedDyn CNN"),
    "lanes: character LSTM 2x100": partial(lanes_agree, "character LSTM 2x100"),
    **{f"step: {row.name}": partial(step_equals_the_cpus, row.name) for row in ROWS},
}

CHEAP = (
    "NumPy oracle: fedprox",
    "NumPy oracle: feddyn",
    "three programs a run",
    "lanes: logistic",
    "step: logistic",
    "step: 2NN",
)
"""The checks of a rehearsal."""


def main(part: Part) -> None:
    """Run the checks, and the tests beside them; the exit status is 1 if anything is wrong."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # processes share the GPU's memory
    log = part.out / "tests.log"
    tests = start_tests(part, log)
    try:
        for name in CHEAP if part.tiny else CHECKS:
            check(part, name)
    finally:  # also if the time is over in the middle of a check
        if tests is None:
            remark = "pytest or hypothesis is not installed; the checks alone ran"
            part.write("Tests", result=remark)
        else:
            finish_tests(part, tests, log)


def check(part: Part, name: str) -> None:
    """Run a check, and write what it found and whether it is right."""
    if part.left < ENDING:
        part.write("Checks", check=name, result="not run: no time was left")
        return
    begin = time.perf_counter()
    found: dict[str, Any] = {}
    try:
        found, result = CHECKS[name](), ""
    except Exception as error:  # a check that cannot run must not end the others
        result = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    seconds = time.perf_counter() - begin
    part.write("Checks", check=name, right=not result, result=result, seconds=seconds, **found)


def start_tests(part: Part, log: Path) -> subprocess.Popen[bytes] | None:
    """Begin to run the tests in pytest; None if it or hypothesis is not installed."""
    if not all(map(importlib.util.find_spec, ("pytest", "hypothesis"))):
        return None
    options = ["-v", "--tb=short", "-p", "no:cacheprovider", "-W", "default"]
    options += ["-m", "not slow and not network"]
    names: tuple[str, ...] = (REHEARSED,)
    changes = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    if not part.tiny:
        names = TESTS
        changes["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
        for test in FOR_CPUS:
            options += ["--deselect", test]
        if importlib.util.find_spec("xdist"):
            options += ["-n", str(max(1, min(8, (os.cpu_count() or 1) - 2)))]
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *names],
            cwd=environment.ROOT,
            env=os.environ | changes,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def finish_tests(part: Part, tests: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the tests as long as the time allows, and write their results.

    Tests that the time was too short for are not failures.
    """
    try:
        tests.wait(max(part.left - 5.0, 1.0))
        complete = True
    except subprocess.TimeoutExpired:
        tests.kill()
        complete = False
    lines = log.read_text(errors="replace").splitlines()
    of_tests = [line for line in lines if "::" in line]
    failed = [line for line in of_tests if "FAILED" in line or "ERROR" in line]
    for line in failed:
        part.write("Tests that failed", test=line[:300])
    passed = sum("PASSED" in line for line in of_tests)
    result = lines[-1].strip("= ") if complete and lines else "the time was too short for the rest"
    right = not failed and (not complete or tests.returncode == 0)
    part.write("Tests", right=right, passed=passed, result=result)
