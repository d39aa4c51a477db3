"""Each name of JAX's changing parts that the library uses, and what happens without it."""

import inspect
import logging
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_allclose

import fedprox as fp
from fedprox import InputError, jax_internals
from fedprox.model import convolution
from fedprox.model.convolution import fast
from fedprox.parts.privacy.examples import clipped_sum
from tests.quadratics import one_run

X = jnp.array([1.0, 2.0])


def traced(function: Any, *args: Any) -> Any:
    return jax.make_jaxpr(function)(*args)


def test_each_name_has_a_test_here() -> None:
    own = Path(__file__).read_text()
    for name, value in vars(jax_internals).items():
        if inspect.isfunction(value) and value.__module__ == jax_internals.__name__:
            assert name.startswith("_") or f"jax_internals.{name}(" in own, name


def test_tracers_are_known_from_arrays() -> None:
    found = []
    jax.jit(lambda x: found.append(jax_internals.is_tracer(x)))(X)
    assert found == [True]
    assert not jax_internals.is_tracer(X)


def test_programs_are_read_and_run_with_their_constants() -> None:
    program = traced(lambda x: jnp.sin(x) + X, X)
    assert jax_internals.is_program(program)
    assert not jax_internals.is_program(X)
    sine, total = jax_internals.equations_of(program)
    assert [each.primitive.name for each in (sine, total)] == ["sin", "add"]
    assert jax_internals.results_of(program) == total.outvars
    (found,) = jax_internals.run_program(program, [X])
    assert_allclose(found, jnp.sin(X) + X)
    of_sine = jax_internals.with_results(program, sine.outvars)
    assert_allclose(jax_internals.run_program(of_sine, [X]), [jnp.sin(X)])
    assert_allclose(jax_internals.repeat(sine, 2 * X), jnp.sin(2 * X))


def test_the_programs_inside_of_operations_are_found_and_replaced() -> None:
    program = traced(lambda x: jax.jit(lambda y: y + X)(x), X)
    (call,) = jax_internals.equations_of(program)
    (inner,) = filter(jax_internals.is_program, call.params.values())
    (name,) = (name for name, value in call.params.items() if value is inner)
    (product,) = jax_internals.equations_of(traced(lambda x: jax.jit(lambda y: y * X)(x), X))
    (other,) = filter(jax_internals.is_program, product.params.values())
    times = jax_internals.with_equations(inner, jax_internals.equations_of(inner))
    assert_allclose(jax_internals.run_program(times, [*_missing(times), X]), [X + X])
    changed = jax_internals.with_settings(call, call.params | {name: other})
    whole = jax_internals.with_equations(program, [changed])
    assert_allclose(jax_internals.run_program(whole, [X]), [X * X])


def _missing(program: Any) -> list[Any]:
    """The constants that JAX passes to an inner program as arguments."""
    return [X] * (len(program.in_avals) - 1)


def test_an_operation_is_replaced_by_a_call() -> None:
    program = traced(lambda x: jnp.sin(x) + 1, X)
    sine, total = jax_internals.equations_of(program)
    call = jax_internals.in_place_of(sine, jax.jit(jnp.cos))
    changed = jax_internals.with_equations(program, [call, total])
    assert_allclose(jax_internals.run_program(changed, [X]), [jnp.cos(X) + 1])


def test_literals_are_numbers_in_a_program() -> None:
    (total,) = jax_internals.equations_of(traced(lambda x: x + 1, X))
    assert [jax_internals.is_literal(each) for each in total.invars] == [False, True]


def test_derivative_rules_are_changed() -> None:
    """The library's use of rules is tested in `tests/model/test_rewriting.py`."""

    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return 2 * x

    f.defvjp(lambda x: (f(x), x), lambda x, d: (3 * d * x,))
    program = traced(f, X)
    (call,) = jax_internals.equations_of(program)
    seen = []

    def of_program(program: Any) -> Any:
        seen.append("program")
        return program

    def of_function(rule: Any) -> Any:
        return lambda *args: [5 * each for each in rule(*args)]

    rules = jax_internals.changed_rules(call.params, of_program, of_function)
    assert set(rules) == {"fwd_jaxpr_thunk", "bwd"}
    changed = jax_internals.with_settings(call, call.params | rules)
    whole = jax_internals.with_equations(program, [changed])
    slope = jax.grad(lambda x: jax_internals.run_program(whole, [x])[0].sum())(X)
    assert_allclose(slope, 15 * X)
    assert seen == ["program"]


def test_a_bilinear_operation_can_be_compiled_differentiated_and_batched() -> None:
    product: Any = jax_internals.make_bilinear(
        "product",
        lambda a, b, *, times: times * a * b,
        lambda a, b, *, times: a.shape,  # noqa: ARG005
        (
            lambda d, a, b, *, times: times * d * b,  # noqa: ARG005
            lambda d, a, b, *, times: times * d * a,  # noqa: ARG005
        ),
        lambda arrays, axes, *, times: (times * arrays[0] * arrays[1], axes[0]),
        ("times",),
    )
    f = partial(product, times=3)
    assert_allclose(f(X, X), 3 * X**2)
    assert_allclose(jax.jit(f)(X, X), 3 * X**2)
    assert_allclose(jax.grad(lambda x: f(x, x).sum())(X), 6 * X)
    assert_allclose(jax.vmap(f)(X[None], X[None]), 3 * X[None] ** 2)


def test_which_arguments_a_function_reads_and_returns() -> None:
    def f(a: Any, b: Any, c: Any, d: Any) -> Any:  # noqa: ARG001
        return {"x": a, "y": jnp.sin(b), "z": c}

    assert jax_internals.inputs_read(f, X, X, X, X) == [True, True, True, False]
    assert jax_internals.inputs_returned(f, X, X, X, X) == [0, -1, 2]


def test_programs_are_compared_with_what_they_close_over() -> None:
    drawn = iter(np.arange(4.0).reshape(2, 2))

    def impure(x: Any) -> Any:
        return x + next(drawn)

    (text, (first,)), (other, (second,)) = (jax_internals.traced(impure, X) for _ in range(2))
    assert text == other
    assert [first.tolist(), second.tolist()] == [[0, 1], [2, 3]]
    assert jax_internals.traced(jnp.sin, X)[0] != jax_internals.traced(jnp.cos, X)[0]


def test_numbers_that_are_not_finite_are_allowed_for_a_while() -> None:
    logarithm = jax.jit(jnp.log)
    with jax.debug_nans(True):
        with jax_internals.nans_allowed():
            assert bool(jnp.isnan(logarithm(-X)).all())
        with pytest.raises(FloatingPointError):
            logarithm(-X)


def test_what_a_compiled_program_takes_is_known() -> None:
    stage = jax.jit(lambda x: x + jnp.sin(X)).trace(X)
    program = stage.lower().compile()
    assert jax_internals.peak_bytes(program) >= 2 * X.nbytes
    assert jax_internals.peak_bytes(jax.jit(jnp.sin)) == 0
    assert jax_internals.program_bytes(stage, program) >= X.nbytes


def test_settings_of_the_compiler() -> None:
    usual = jax_internals.compiler_settings()
    with jax.default_matmul_precision("highest"):
        assert jax_internals.compiler_settings() != usual


def test_a_program_calls_the_host() -> None:
    like = jax.ShapeDtypeStruct((2,), jnp.float32)
    double = jax.jit(lambda x: jax_internals.call_host(lambda a: 2 * np.asarray(a), like, x))
    assert_allclose(double(X), 2 * X)


def test_processes_gather_values() -> None:
    """Several do so in `tests/devices/test_hosts.py`."""
    assert np.asarray(jax_internals.gather_processes(np.int64(3))).ravel().tolist() == [3]


def test_the_folder_of_programs_is_looked_for_again() -> None:
    """Its effect is tested in `tests/devices/test_compilation_cache.py`."""
    jax_internals.forget_cache_folder()


def test_devices_that_are_there() -> None:
    """Missing ones are tested in `tests/devices/test_debugging.py`."""
    jax_internals.require_backend()


def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def test_what_fails_is_left_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise RecursionError("deep\nand more")

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert jax_internals.attempt("something of the tests", fails) is None
    (record,) = caplog.records
    assert record.getMessage().startswith("something of the tests: left out, which costs time")
    assert jax_internals.attempt("another", lambda a: a, 3) == 3


@pytest.mark.parametrize(
    "name", ["equations_of", "with_equations", "with_settings", "in_place_of", "is_program"]
)
def test_where_programs_are_unknown_convolutions_are_plain(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where JAX 0.11 came to programs that are their own `jaxpr`."""

    def unknown(*_: Any) -> Any:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(f"fedprox.model.convolution.{name}", unknown)
    x, kernel = jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1))

    def f(x: jax.Array) -> jax.Array:
        return jax.jit(lambda *args: conv(*args))(x, kernel)  # a program of its own

    def g(x: jax.Array) -> jax.Array:
        return jax.jit(fast(f))(x)

    assert "fast_convolution" not in str(jax.make_jaxpr(g)(x))
    assert_allclose(g(x), f(x))


def test_where_operations_are_unknown_convolutions_are_plain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolution, "_product", convolution._left_to_jax)
    x, kernel = jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1))
    found = convolution.fast_convolution(x, kernel, (1, 1), ((1, 1), (1, 1)))
    assert_allclose(found, conv(x, kernel))
    # of a shape that no other test has, whose program JAX would find again
    program = str(jax.make_jaxpr(fast(lambda x: conv(x, kernel)))(jnp.ones((1, 4, 7, 1))))
    assert "conv_general_dilated" in program
    assert "fast_convolution" not in program


@pytest.mark.parametrize("name", ["equations_of", "results_of", "with_results", "is_literal"])
def test_where_programs_are_unknown_gradients_are_clipped_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, weight = jnp.array([[3.0, 4.0], [0.3, 0.4]]), jnp.ones((2, 3))

    def total() -> Any:
        def loss(w: jax.Array, each: jax.Array) -> jax.Array:
            return jnp.sum((each @ w) ** 2)

        @jax.jit
        def clipped(rows: jax.Array) -> Any:
            return clipped_sum(loss, 1.0, weight, rows)(jnp.array([True, True]))

        return clipped(rows)

    wanted = total()

    def unknown(*_: Any) -> Any:
        raise AttributeError("no such thing")

    monkeypatch.setattr(f"fedprox.parts.privacy.examples.{name}", unknown)
    assert_allclose(total(), wanted, rtol=1e-5)


@pytest.mark.slow
def test_a_users_model_is_not_blamed_for_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> Any:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("fedprox.model.convolution.equations_of", unknown)
    clients = [(np.ones((2, 2), np.float32), np.array([0, 1]))] * 2
    federation = fp.Federation.from_arrays(clients, classes=2)
    model = fp.Model(lambda _: jnp.zeros((2, 2)), lambda params, x: x @ params)
    run = one_run(federation, model, fp.fedavg(), fp.Solver(0.1, 2, epochs=1))
    assert np.isfinite(run.final.train_loss)


def test_input_errors_of_a_model_stay() -> None:
    clients = [(np.ones((2, 2), np.float32), np.array([0, 1]))] * 2
    federation = fp.Federation.from_arrays(clients, classes=2)

    def apply(*_: Any) -> jax.Array:
        raise RecursionError("mine")

    model = fp.Model(lambda _: jnp.zeros((2, 2)), apply)
    with pytest.raises(InputError, match=r"model\.apply\(params, x\) raised RecursionError: mine"):
        one_run(federation, model, fp.fedavg(), fp.Solver(0.1, 2, epochs=1))
