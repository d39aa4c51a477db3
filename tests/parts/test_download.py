"""Models that the server sends in fewer bits, beside a loop."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import fedprox as fp
from fedprox.errors import InputError
from fedprox.parts.compression import arrived, rounded, sent_bits
from tests.parts.test_compression import CENTRES, CLIENTS, ROUNDS, ROWS, START, D, arrival, run
from tests.parts.test_population import BYTES, work_of
from tests.parts.test_population import CLIENTS as POPULATION

DOWN = fp.Compression("full", bucket=4, download=8)


@jax.jit(static_argnums=(1, 2))
def travels(x: NDArray[Any], bits: int, row: int) -> Any:
    """The whole numbers, the scales, and what arrives."""
    whole, scale = rounded(x, bits, row)
    return whole, scale, arrived(whole, scale, row)


@settings(max_examples=25)
@given(
    hnp.arrays(np.float32, 40, elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from([(8, 4), (16, 9)]),
)
def test_a_number_is_off_by_at_most_half_a_scale(x: NDArray[Any], form: tuple[int, int]) -> None:
    bits, row = form
    whole, scale, there = jax.device_get(travels(x, bits, row))
    assert whole.dtype == f"int{bits}"
    assert whole.size * bits + 32 * len(scale) == sent_bits(len(x), bits, row)
    step = np.repeat(scale.astype(np.float64), row)[: len(x)]
    off = np.abs(there.astype(np.float64) - x)
    assert (off <= step * (0.5 + 1e-3 * bits) + 1e-36).all()  # the least scale


def rounded_loop(w: NDArray[Any]) -> NDArray[Any]:
    """What arrives of a model with 8 bits, in rows of four."""
    received = np.empty(D)
    for first in range(0, D, 4):
        part = w[first : first + 4].astype(np.float32)
        scale = np.float32(np.abs(part).max()) / np.float32(127)
        received[first : first + 4] = np.rint(part / scale) * scale
    return received


CHANGED: dict[str, tuple[fp.Compression, float, dict[str, Any]]] = {
    "feedback": (
        fp.Compression("top-k", share=0.5, bucket=4, error_feedback=True, download=8),
        0.5,
        {"method": fp.fedopt(functools.partial(optax.sgd, momentum=0.5))},
    ),
    # with clients of equal speed, a buffer of the cohort is a round
    "no barrier": (
        fp.Compression("sign", bucket=4, download=8),
        0.0,
        {"asynchronous": fp.Asynchronous(CLIENTS), "population": fp.Population(1.0)},
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_run_is_that_of_a_loop(name: str) -> None:
    """The server's own model is never rounded."""
    setting, momentum, options = CHANGED[name]
    w, moved = START.copy(), np.zeros(D)
    error = np.zeros((CLIENTS, D))
    for _ in range(ROUNDS):
        start = rounded_loop(w)
        sent = 0.5 * (np.array(CENTRES) - start) + error
        changes = np.array([arrival(setting)(each) for each in sent])
        error = (sent - changes) * setting.error_feedback
        moved = momentum * moved + np.average(changes, axis=0, weights=ROWS)
        w = w + moved
    found = run(setting, cohort=fp.Cohort(CLIENTS), **options)
    np.testing.assert_allclose(found.params, w, atol=1e-5)


@pytest.mark.slow
def test_personal_models_are_nearly_themselves_with_16_bits() -> None:
    half = fp.Compression("full", download=16)
    ours, theirs = (run(setting, fp.ditto(lam=0.1)) for setting in (half, None))
    np.testing.assert_allclose(ours.params, theirs.params, atol=2e-3)
    assert (np.asarray(ours.params) != np.asarray(theirs.params)).any()


def test_a_smaller_model_takes_less_time() -> None:
    population = fp.Population(step_seconds=0.25, download=8.0, upload=2.0)
    cohort = fp.Cohort(POPULATION)
    (work,) = work_of(fp.fedavg(), 1, population, compression=DOWN, cohort=cohort)
    assert work.time == 0.25 * 2 * 4 + (8 * 2 + 32) / 8 / 8 + BYTES / 2


def test_other_bits_are_refused() -> None:
    with pytest.raises(InputError, match=r"compression\.download = 4; it must be one of 8, 16"):
        fp.Compression("full", download=4)  # type: ignore[arg-type]
