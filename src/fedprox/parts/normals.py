r"""Standard normal numbers in compiled programs, for noise that hides something.

Each number is :math:`\sqrt{-2 \ln u} \cos(2 \pi v)` (Box and Muller 1958) of 64 random bits of its
own: 42 give u and 22 give v. So its distribution has no gaps that single precision can tell but
beyond 7.7, where a normal number is with a probability of :math:`2^{-43}`. `jax.random.normal` has
23 bits for a number and ends at 5.4, which models of many parameters reach.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)

PARITY = np.uint32(0x1BD11BDA)

SINE = [(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(7)]
"""The series of sin(pi a), whose rest is below 1e-9 up to 1/2."""


def random_key(words: jax.Array | None) -> Any:
    """The random key of two words; None without."""
    return None if words is None else jax.random.wrap_key_data(words, impl="threefry2x32")


def standard_normals(words: jax.Array, purpose: int, tree: Any) -> Any:
    """Independent standard normal numbers, one for each number of a tree."""
    key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), purpose)
    own = jax.random.key_data(key)
    leaves, structure = jax.tree.flatten(tree)
    normals = [_normals(own, number, leaf) for number, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, normals)


def _normals(words: jax.Array, number: int, like: jax.Array) -> jax.Array:
    """Standard normal numbers for a leaf of a tree."""
    counter = jax.lax.iota(jnp.uint32, like.size)
    normals = normal_of(*threefry(words, jnp.full_like(counter, number), counter))
    return normals.reshape(like.shape).astype(like.dtype)


def normal_of(first: jax.Array, second: jax.Array) -> jax.Array:
    """Standard normal numbers of random words."""
    lower = (second & np.uint32(1023)).astype(jnp.float32)
    u = (first.astype(jnp.float32) + (lower + 0.5) * np.float32(2**-10)) * np.float32(2**-32)
    half_turns = jax.lax.bitcast_convert_type(second >> np.uint32(10) << np.uint32(10), jnp.int32)
    # cos(pi t) = sin(pi a) with |a| at most 1/2, for t from -1 to 1
    a = 0.5 - jnp.abs(half_turns.astype(jnp.float32) * np.float32(2**-31))
    return jnp.sqrt(-2 * jnp.log(u)) * a * jnp.polyval(jnp.array(SINE[::-1], jnp.float32), a * a)


def threefry(words: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Random words of a key and counters, by Threefry-2x32 with 20 rounds (Salmon et al. 2011).

    As JAX computes them, but in one expression, which takes a third of the time on a CPU.
    """
    keys = words[0], words[1], words[0] ^ words[1] ^ PARITY
    first, second = first + keys[0], second + keys[1]
    for number in range(5):
        for distance in map(np.uint32, ROTATIONS[number % 2]):
            first = first + second
            second = (second << distance | second >> np.uint32(32) - distance) ^ first
        first = first + keys[(number + 1) % 3]
        second = second + keys[(number + 2) % 3] + np.uint32(number + 1)
    return first, second
