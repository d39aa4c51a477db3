"""Rows of examples inside a compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprox.engine.compiled.lanes import LONG, example_rows

OTHER = np.array([[4, 0, 7], [-3, 9, 4]], np.int32)
"""Rows of two lanes, of which two are out of range."""


@pytest.mark.parametrize("shape", [(3,), (LONG - 1,), (LONG,), (2, LONG // 2)], ids=str)
@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_rows_of_any_length_are_those_at_the_index_or_the_nearest(
    shape: tuple[int, ...], kind: str
) -> None:
    stored = np.random.default_rng(0).integers(256, size=(8, *shape)).astype(kind)
    found = jax.jit(example_rows)((stored, stored[:, 0]), OTHER)
    expected = stored[np.clip(OTHER, 0, 7)]
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], expected[:, :, 0])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="an accelerator gathers")
def test_long_rows_are_not_gathered_number_by_number() -> None:
    stored = jnp.zeros((8, 28, 28), jnp.uint8)
    program = jax.jit(lambda x, at: example_rows(x, at).astype(jnp.float32) / 255)
    compiled = program.lower(stored, OTHER).compile().as_text()
    assert compiled
    assert "gather(" not in compiled
    assert "dynamic-slice" in compiled
