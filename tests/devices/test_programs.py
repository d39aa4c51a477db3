"""The compiled programs that a process keeps, and what it lets go."""

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.devices import programs
from fedprox.devices.programs import ProgramSpec, compiled
from tests.quadratics import one_run

SOLVER = fp.Solver(0.1, 2, epochs=1)


class Scaled:
    """An object whose methods a user gives."""

    def __init__(self, table: jax.Array) -> None:
        self.table = table

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        """Call a function that is jitted, and one that is differentiated by a rule of its own."""
        table = self.table

        @jax.custom_vjp
        def shifted(x: jax.Array) -> jax.Array:
            return x + table[:2]

        shifted.defvjp(lambda x: (shifted(x), None), lambda _, d: (d * table[0],))
        return shifted(jax.jit(lambda x: x @ params + table[:2])(x))


def made(table: jax.Array) -> tuple[fp.Model, fp.Algorithm]:
    """A model and a method with functions of their own."""
    base = fp.fedavg()

    def update(params: Any, mean: Any, _: Any) -> Any:
        return jax.tree.map(lambda w, d: w + d * table[0], params, mean)

    @jax.jit
    def loss(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum((outputs - y[:, None]) ** 2, 1) * table[0]

    model = fp.Model(lambda _: table[:4].reshape(2, 2), Scaled(table).apply, loss)
    server = base.server._replace(update=update, init=lambda params: params)
    return model, base._replace(server=server)


def small() -> fp.Federation:
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 2)).astype(np.float32), rng.integers(2, size=n)) for n in (3, 4)]
    return fp.Federation.from_arrays(rows, classes=2)


PRIVATE = fp.Privacy(1.0, noise_multiplier=1.0, delta=0.01, unit="example")


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"privacy": PRIVATE}, marks=pytest.mark.slow)]
)
def test_programs_are_let_go_with_the_functions_of_which_they_are_made(
    settings: dict[str, Any],
) -> None:
    gc.freeze()  # what others left is not looked at
    federation = small()
    programs.PROGRAMS.clear()
    table = jnp.ones(1000)
    gone = weakref.ref(table)
    model, method = made(table)
    one_run(federation, model, method, SOLVER, **settings)
    assert len(programs.PROGRAMS) == 2  # of rounds and of evaluations
    del table, model, method
    for _ in range(2):  # JAX's own caches let some go after the first
        gc.collect()
    assert not programs.PROGRAMS
    assert gone() is None


def program(constant: jax.Array, *known: Any) -> ProgramSpec:
    return ProgramSpec(lambda: jax.jit(lambda x: x + constant.sum()), (jnp.ones(2),), known)


def test_a_program_is_found_again_while_its_function_is_held() -> None:
    def of_user() -> None: ...

    programs.PROGRAMS.clear()
    first = compiled(program(jnp.ones(2), of_user, "a"))
    assert compiled(program(jnp.ones(2), of_user, "a")) is first
    assert compiled(program(jnp.ones(2), of_user, "b")) is not first


def test_programs_without_a_key_are_not_kept() -> None:
    programs.PROGRAMS.clear()
    compiled(program(jnp.ones(2), np.ones(2)))  # arrays are not compared
    assert not programs.PROGRAMS


def test_the_programs_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    programs.PROGRAMS.clear()
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 3)
    monkeypatch.setattr(programs, "FEWEST_PROGRAMS", 1)
    a, b, c, again, d = [compiled(program(jnp.ones(2), name)) for name in "abcad"]
    assert again is a
    kept = [each.program for each in programs.PROGRAMS.values()]
    assert kept == [c, a, d]
    assert b not in kept


def test_programs_are_bounded_by_the_bytes_of_their_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs.PROGRAMS.clear()
    monkeypatch.setattr(programs, "MOST_BYTES", 100_000)
    monkeypatch.setattr(programs, "FEWEST_PROGRAMS", 1)
    large = jnp.ones(15_000)  # 60,000 bytes
    for name in ("a", "b", "c"):
        compiled(program(jnp.ones(2), name))
    assert len(programs.PROGRAMS) == 3
    compiled(program(large, "d"))
    assert len(programs.PROGRAMS) == 4
    compiled(program(large, "e"))
    assert [kept.bytes for kept in programs.PROGRAMS.values()] == [60_000]
    monkeypatch.setattr(programs, "FEWEST_PROGRAMS", 2)
    compiled(program(large, "f"))
    assert len(programs.PROGRAMS) == 2
