"""The precision of what is computed: single, or double where JAX is set to it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from fedprox.errors import require


def real_type() -> np.dtype[Any]:
    """The type of real numbers: float32, or float64 with `jax_enable_x64`.

    >>> real_type().name
    'float32'
    """
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def in_shape(shape: tuple[int, ...], kind: Any) -> jax.ShapeDtypeStruct:
    """An array in shape, of the type that JAX computes with for a type of the host."""
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(kind))


def require_for_all_threads() -> None:
    """Raise `InputError` if the precision is set for this thread alone."""
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(real_type).result()
    require(
        elsewhere == real_type(),
        "jax.enable_x64 holds for one thread alone, but rounds are planned in others; use "
        'jax.config.update("jax_enable_x64", ...)',
    )


def require_single(what: str) -> None:
    """Raise `InputError` if JAX computes in double precision."""
    require(
        real_type() == np.float32,
        f"jax_enable_x64 is set: {what} works in single precision alone; turn it off",
    )
