"""A client's step with each kind of flax's layers, beside the same step alone, compiled.

    python -m benchmarks.flax_layers [NAME ...]

Each row is a model of `flax.nnx` with that layer and a dense one, as a user would bring it to
`fp.Model.from_nnx`. *Alone* is its gradient step as a program of its own, called from Python, where
XLA's CPU backend has other paths than inside the loops of a round. *In a round* is the difference
of two runs, so that planning and evaluations cancel. Both are processor time of all cores, the
least of several in turns, on one CPU device.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import fedprox as fp
from benchmarks.page import show, table
from fedprox.losses import CrossEntropy
from fedprox.model.flax_functions import of_nnx

BATCH = 10
CLASSES = 10
STEPS = 50
"""Mini-batches of a client."""

ASKED = 1.3


@dataclass(frozen=True)
class Row:
    """A kind of layer.

    Attributes:
        layer: (rngs=random keys) -> the layer.
        shape: Shape of one example.
        width: Numbers of one example that come out of the layer.
        tokens: Number of different tokens if examples are tokens, else 0.
    """

    layer: Callable[..., Any]
    shape: tuple[int, ...]
    width: int
    tokens: int = 0


class WithHead(nnx.Module):
    """A layer, and a dense layer of all that comes out of it."""

    def __init__(self, row: Row, rngs: nnx.Rngs) -> None:
        self.layer = row.layer(rngs=rngs)
        self.head = nnx.Linear(row.width, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, ...) -> (B, classes)."""
        return self.head(nnx.relu(self.layer(x)).reshape(len(x), -1))


class TwoConvolutions(nnx.Module):
    """FedAvg's two 5x5 convolutions with pooling, by flax alone, each normalized or not."""

    def __init__(self, rngs: nnx.Rngs, *, normalized: bool = False) -> None:
        layers = []
        for inputs, outputs in ((1, 32), (32, 64)):
            layer = nnx.Conv(inputs, outputs, (5, 5), rngs=rngs)
            norm = [nnx.BatchNorm(outputs, rngs=rngs)] if normalized else []
            layers.append(nnx.Sequential(layer, *norm))
        self.layers = nnx.List(layers)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 28, 28, 1) -> (B, 7, 7, 64)."""
        for layer in self.layers:
            x = nnx.max_pool(nnx.relu(layer(x)), (2, 2), (2, 2))
        return x


def attention(rngs: nnx.Rngs) -> Any:
    """Self-attention of four heads."""
    return nnx.MultiHeadAttention(4, 64, decode=False, rngs=rngs)


def recurrent(cell: Any, rngs: nnx.Rngs) -> Any:
    """A recurrent layer that returns every step."""
    return nnx.RNN(cell(32, 64, rngs=rngs))


def conv(inputs: int, outputs: int, size: tuple[int, ...], rngs: nnx.Rngs, **options: Any) -> Any:
    """A convolution behind another of size 1, so that it also computes its input's gradient."""
    ones = (1,) * len(size)
    return nnx.Sequential(
        nnx.Conv(inputs, inputs, ones, rngs=rngs),
        nnx.Conv(inputs, outputs, size, rngs=rngs, **options),
    )


def transposed(inputs: int, outputs: int, size: tuple[int, ...], rngs: nnx.Rngs) -> Any:
    """A transposed convolution with stride 2, behind another of size 1."""
    ones, twos = (1,) * len(size), (2,) * len(size)
    return nnx.Sequential(
        nnx.Conv(inputs, inputs, ones, rngs=rngs),
        nnx.ConvTranspose(inputs, outputs, size, twos, rngs=rngs),
    )


ROWS = {
    "Linear": Row(partial(nnx.Linear, 784, 200), (784,), 200),
    "Conv 1-D": Row(partial(conv, 16, 32, (5,)), (128, 16), 128 * 32),
    "Conv 2-D": Row(partial(conv, 16, 32, (3, 3)), (14, 14, 16), 14 * 14 * 32),
    "Conv 2-D, stride 2": Row(partial(conv, 16, 32, (3, 3), strides=2), (28, 28, 16), 14 * 14 * 32),
    "Conv 2-D, dilation 2": Row(
        partial(conv, 16, 32, (3, 3), kernel_dilation=2), (14, 14, 16), 14 * 14 * 32
    ),
    "Conv 2-D, 4 groups": Row(
        partial(conv, 32, 32, (3, 3), feature_group_count=4), (14, 14, 32), 14 * 14 * 32
    ),
    "Conv 2-D, depthwise": Row(
        partial(conv, 32, 32, (3, 3), feature_group_count=32), (14, 14, 32), 14 * 14 * 32
    ),
    "Conv 2-D, small images": Row(partial(conv, 64, 64, (3, 3)), (4, 4, 64), 4 * 4 * 64),
    "Conv 3-D": Row(partial(conv, 8, 8, (3, 3, 3)), (8, 8, 8, 8), 8**4),
    "two Conv 5x5, max_pool": Row(TwoConvolutions, (28, 28, 1), 7 * 7 * 64),
    "ConvTranspose 1-D": Row(partial(transposed, 16, 16, (4,)), (64, 16), 128 * 16),
    "ConvTranspose 2-D": Row(partial(transposed, 16, 16, (3, 3)), (7, 7, 16), 14 * 14 * 16),
    "Embed": Row(partial(nnx.Embed, 1000, 64), (40,), 40 * 64, tokens=1000),
    "LayerNorm": Row(
        lambda rngs: nnx.Sequential(nnx.Linear(64, 64, rngs=rngs), nnx.LayerNorm(64, rngs=rngs)),
        (40, 64),
        40 * 64,
    ),
    "GroupNorm": Row(
        lambda rngs: nnx.Sequential(
            nnx.Linear(32, 32, rngs=rngs), nnx.GroupNorm(32, num_groups=4, rngs=rngs)
        ),
        (14, 14, 32),
        14 * 14 * 32,
    ),
    "BatchNorm": Row(
        lambda rngs: nnx.Sequential(nnx.Linear(32, 32, rngs=rngs), nnx.BatchNorm(32, rngs=rngs)),
        (14, 14, 32),
        14 * 14 * 32,
    ),
    "two Conv 5x5, BatchNorm, max_pool": Row(
        partial(TwoConvolutions, normalized=True), (28, 28, 1), 7 * 7 * 64
    ),
    "MultiHeadAttention": Row(attention, (40, 64), 40 * 64),
    "LSTMCell": Row(partial(recurrent, nnx.LSTMCell), (40, 32), 40 * 64),
    "GRUCell": Row(partial(recurrent, nnx.GRUCell), (40, 32), 40 * 64),
}


def federation(row: Row) -> fp.Federation:
    """Random data of one client."""
    rng, rows = np.random.default_rng(0), STEPS * BATCH
    size = (rows, *row.shape)
    x = rng.integers(row.tokens, size=size) if row.tokens else rng.normal(size=size)
    kind = np.int32 if row.tokens else np.float32
    client = x.astype(kind), rng.integers(CLASSES, size=rows)
    return fp.Federation.from_arrays([client], classes=CLASSES)


def rounds_of(data: fp.Federation, model: fp.Model, rounds: int) -> fp.Run:
    """Rounds of the client, and two evaluations of one row."""
    return fp.simulate(
        data,
        model,
        fp.fedavg(),
        solver=fp.Solver(0.01, BATCH, epochs=1),
        cohort=fp.Cohort(1),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=BATCH, gradients=False),
        progress=False,
    )[0]


def alone(data: fp.Federation, module: Callable[[nnx.Rngs], Any]) -> Callable[[int], object]:
    """(number) -> as many steps of the module by itself, called from Python."""
    functions: Any = of_nnx(module)
    key = jax.random.key(0)
    params, state = functions.init(key), functions.state and functions.state(key)
    x, y = (jnp.asarray(a[:BATCH]) for a in data.train.client(0))

    def loss(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        outputs, after = (
            (functions.apply(params, x), None)
            if state is None
            else functions.train(params, state, x, key, None)
        )
        return CrossEntropy()(outputs, y).mean(), after

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        gradient, after = jax.grad(loss, has_aux=True)(params, state, x, y)
        return jax.tree.map(lambda w, g: w - 0.01 * g, params, gradient), after

    at = [params, state]

    def steps(number: int) -> None:
        for _ in range(number):
            at[:] = step(*at, x, y)
        jax.block_until_ready(at)

    return steps


def used(run: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def measure(row: Row, *, repeats: int, seconds: float) -> tuple[float, float, float]:
    """Processor seconds of a step in a round and of one alone, and seconds to compile."""
    data, module = federation(row), partial(WithHead, row)
    model = fp.Model.from_nnx(module)
    steps = alone(data, module)
    steps(3)
    cold = rounds_of(data, model, 1)
    number = max(3, round(seconds / (used(lambda: steps(5)) / 5)))
    rounds = max(1, round(number / STEPS))
    rounds_of(data, model, 1 + rounds)
    one = more = by_itself = float("inf")
    for _ in range(repeats):
        one = min(one, used(lambda: rounds_of(data, model, 1)))
        more = min(more, used(lambda: rounds_of(data, model, 1 + rounds)))
        by_itself = min(by_itself, used(lambda: steps(number)))
    return (more - one) / rounds / STEPS, by_itself / number, cold.compile_seconds


def main() -> None:
    """Measure the layers that are named, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows of the table; all if none")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    given = parser.parse_args()
    fp.use_cpu_devices(1)
    shown = table("layer", "in a round, ms", "alone, ms", "ratio", "compile, s")
    for name, row in ROWS.items():
        if not given.names or name in given.names:
            inside, outside, compiled = measure(row, repeats=given.repeats, seconds=given.seconds)
            cells = f"{1e3 * inside:.3f}", f"{1e3 * outside:.3f}", f"{inside / outside:.2f}"
            shown.add_row(name, *cells, f"{compiled:.1f}")
            print(f"done: {name} {cells[2]}")
    show(shown)


if __name__ == "__main__":
    main()
