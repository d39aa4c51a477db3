"""Models that the server sends in fewer bits, beside a loop."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import fedprox as fp
from fedprox.errors import InputError
from fedprox.parts.compression import arrived, rounded, sent_bits
from tests.parts.test_compression import CENTRES, CLIENTS, ROWS, START, D, run

DOWN = fp.Compression("full", bucket=4, download=8)


@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from([8, 16]),
    st.integers(2, 9),
)
def test_a_number_is_off_by_at_most_half_a_scale(x: NDArray[Any], bits: int, row: int) -> None:
    whole, scale = rounded(jnp.asarray(x), bits, row)
    assert whole.dtype == f"int{bits}"
    assert whole.size * bits + 32 * len(scale) == sent_bits(len(x), bits, row)
    step = np.repeat(np.asarray(scale, np.float64), row)[: len(x)]
    off = np.abs(np.asarray(arrived(whole, scale, row), np.float64) - x)
    assert (off <= step * (0.5 + 1e-3 * bits) + 1e-36).all()  # the least scale


def rounded_loop(w: NDArray[Any]) -> NDArray[Any]:
    """What arrives of a model with 8 bits, in rows of four."""
    received = np.empty(D)
    for first in range(0, D, 4):
        part = w[first : first + 4].astype(np.float32)
        scale = np.float32(np.abs(part).max()) / np.float32(127)
        received[first : first + 4] = np.rint(part / scale) * scale
    return received


def test_a_run_is_that_of_a_loop() -> None:
    w, rows = START.astype(np.float32).astype(np.float64), np.array(ROWS, float)
    for _ in range(8):
        start = rounded_loop(w)
        changes = [0.5 * (centre - start) for centre in CENTRES]
        w = w + sum(n * change for n, change in zip(rows, changes, strict=True)) / rows.sum()
    found = run(DOWN, cohort=fp.Cohort(CLIENTS))
    np.testing.assert_allclose(found.params, w, atol=1e-5)
    plain = run(None, cohort=fp.Cohort(CLIENTS))
    # the server's model is never rounded
    assert 0 < np.abs(np.asarray(found.params) - np.asarray(plain.params)).max() < 2e-2


@pytest.mark.parametrize(
    "method",
    [
        fp.fedprox(mu=0.5),
        fp.fedopt(functools.partial(optax.sgd, momentum=0.5)),
        fp.ditto(lam=0.1),
    ],
    ids=lambda method: str(method.name),
)
def test_methods_are_nearly_themselves_with_16_bits(method: fp.Algorithm) -> None:
    half = fp.Compression("full", download=16)
    ours, theirs = run(half, method), run(None, method)
    np.testing.assert_allclose(ours.params, theirs.params, atol=2e-3)
    assert (np.asarray(ours.params) != np.asarray(theirs.params)).any()


def test_it_goes_with_feedback_and_without_a_barrier() -> None:
    both = fp.Compression("top-k", share=0.5, error_feedback=True, download=8)
    assert np.isfinite(run(both).params).all()
    found = run(
        fp.Compression("quantize", download=8),
        asynchronous=fp.Asynchronous(2),
        population=fp.Population(fp.LogNormal(1.0, 1.0)),
    )
    assert np.isfinite(found.params).all()


def test_a_smaller_model_takes_less_time() -> None:
    def seconds(setting: fp.Compression) -> float | None:
        population = fp.Population(step_seconds=1.0, download=8.0, upload=2.0)
        return run(setting, population=population, rounds=1).final.time

    assert seconds(DOWN) == 1 + (8 * D + 2 * 32) / 8 / 8 + 4 * D / 2


def test_what_the_server_computes_is_not_sent_so() -> None:
    doubled = fp.fedavg()._replace(
        server=fp.fedavg().server._replace(params=lambda state: 2 * state)
    )
    line = "fedavg: a method whose server sends what it computes from its state does not go with "
    with pytest.raises(InputError, match=line):
        run(DOWN, doubled)


def test_other_bits_are_refused() -> None:
    with pytest.raises(InputError, match=r"compression\.download = 4; it must be one of 8, 16"):
        fp.Compression("full", download=4)  # type: ignore[arg-type]
