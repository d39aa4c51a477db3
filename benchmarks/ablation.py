"""Where the time of a local step goes: what it takes without each of its parts.

    python -m benchmarks.ablation

The first table leaves parts out of the step of logistic regression on Synthetic(1,1), 60 features,
10 classes and B = 10, in a compiled loop on one core. The second takes the products of matrices
and the convolutions of the other models' steps by themselves, each as often as the step has it: no
step is faster while its products take so long.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedprox as fp
from benchmarks.loops import Setting
from benchmarks.models import Row, fastest, our_program, product_rate, row_named
from benchmarks.page import add, show, table
from benchmarks.rounds import SYN_SEED, few_and_many
from fedprox.jax_internals import equations_of, is_program

ROWS, FEATURES, CLASSES, BATCH = 600, 60, 10, 10
TICKS = 20_000
"""Steps of one timed loop."""

MODELS = (
    *("MNIST CNN", "CIFAR CNN 24x24", "FedDyn CNN", "character LSTM 2x100", "character LSTM 2x256"),
    *("FedAvg's character LSTM", "sentiment LSTM 2x256", "word LSTM", "MiniLM"),
)
PRODUCTS = "dot_general", "conv_general_dilated", "fast_convolution"

Params = tuple[jax.Array, jax.Array]


def loop(
    *,
    rows: bool = True,
    logits: bool = True,
    softmax: bool = True,
    gradient: bool = True,
    proximal: bool = True,
    update: bool = True,
) -> Callable[[], object]:
    """A loop of steps of logistic regression, of which parts are left out.

    Args:
        rows: Whether a mini-batch's rows are read by their indices, else those that lie in order.
        logits: Whether the product x W is computed, else its first row is taken for it.
        softmax: Whether it is the gradient of cross-entropy, else that of the squared distance.
        gradient: Whether the product of x and the logits' gradients is computed, else one row of x.
        proximal: Whether mu (w - w^t) is added.
        update: Whether w moves by the gradient, else it is replaced by it.
    """
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(ROWS, FEATURES)), jnp.float32)
    y = jnp.asarray(rng.integers(CLASSES, size=ROWS))
    order = jnp.asarray(
        rng.permuted(np.tile(np.arange(ROWS), (TICKS * BATCH // ROWS + 1, 1)), axis=1)
    )
    order = order.reshape(-1)[: TICKS * BATCH].reshape(TICKS, BATCH)
    anchor = jnp.zeros((FEATURES, CLASSES)), jnp.zeros(CLASSES)

    def tick(data: Any, t: jax.Array, params: Params) -> Params:
        (x, y, order), (w, b), first = data, params, t % (ROWS // BATCH) * BATCH
        if rows:
            batch, labels = x[order[t]], y[order[t]]
        else:
            batch, labels = (jax.lax.dynamic_slice_in_dim(a, first, BATCH) for a in (x, y))
        z = batch @ w + b if logits else batch[:, :CLASSES] + w[0] + b
        p = jax.nn.softmax(z) if softmax else z
        by_z = (p - jax.nn.one_hot(labels, CLASSES)) / BATCH
        by_w = batch.T @ by_z if gradient else batch[0][:, None] + by_z[0]
        found = by_w, by_z.sum(axis=0)
        if proximal:
            found = jax.tree.map(lambda g, a, c: g + 0.1 * (a - c), found, params, anchor)
        return jax.tree.map(lambda a, g: a - 0.01 * g if update else -0.01 * g, params, found)

    run = jax.jit(lambda *data: jax.lax.fori_loop(0, TICKS, partial(tick, data), anchor))
    return lambda: jax.block_until_ready(run(x, y, order))


WITHOUT = {
    "nothing": {},
    "the proximal term": {"proximal": False},
    "adding to the parameters": {"update": False},
    "softmax": {"softmax": False},
    "the product of rows and parameters": {"logits": False},
    "the product for the gradient": {"gradient": False},
    "reading rows by index": {"rows": False},
    "all of these": dict.fromkeys(
        ("rows", "logits", "softmax", "gradient", "proximal", "update"), False
    ),
}


def seconds_in_round() -> float:
    """Seconds of a step in the library's rounds, on one device."""
    synthetic = fp.datasets.synthetic(1.0, 1.0, seed=SYN_SEED)
    few, many = few_and_many(Setting(synthetic, fp.Solver(0.01, BATCH, epochs=20), 10, 60, 1, 1.0))
    return (many.run_seconds - few.run_seconds) / (many.client_steps - few.client_steps)


def products(program: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """The products of a traced program, and how often each is computed."""
    for equation in equations_of(program):
        if equation.primitive.name in PRODUCTS:
            yield equation, times
        inner = times * equation.params.get("length", 1)
        for value in jax.tree.leaves(equation.params, is_leaf=is_program):
            if is_program(value):
                yield from products(value, inner)


def repeated(equation: Any, count: int) -> Callable[[], object]:
    """A product, computed so often one after another."""
    left, right = (
        jax.random.normal(jax.random.key(i), each.aval.shape, each.aval.dtype)
        for i, each in enumerate(equation.invars)
    )
    if left.size < right.size:
        left, right = jnp.stack([left, left + 1]), right[None]
    else:
        left, right = left[None], jnp.stack([right, right + 1])
    out = equation.outvars[0].aval

    def compute(left: jax.Array, right: jax.Array) -> jax.Array:
        def once(i: jax.Array, before: jax.Array) -> jax.Array:
            del before
            # not the same in each iteration, which would then be computed once
            pair = (each[i % len(each)] for each in (left, right))
            found: jax.Array = equation.primitive.bind(*pair, **equation.params)
            return found

        return jax.lax.fori_loop(0, count, once, jnp.zeros(out.shape, out.dtype))

    run = jax.jit(compute)
    return lambda: jax.block_until_ready(run(left, right))


def measured(row: Row) -> tuple[float, float]:
    """Seconds of a model's step, and of its products by themselves."""
    step, params = our_program(row.federation(1), row)
    compiled = jax.jit(step)
    found, counts = dict[str, Any](), Counter[str]()
    for equation, times in products(jax.make_jaxpr(step)(params)):
        key = f"{[each.aval for each in equation.invars]} {equation.params}"
        found[key] = equation
        counts[key] += times
    alone = [repeated(found[key], times) for key, times in counts.items()]
    whole, *of_products = least([lambda: jax.block_until_ready(compiled(params)), *alone])
    return whole, sum(of_products)


def least(runs: Sequence[Callable[[], object]]) -> list[float]:
    """The least seconds of each of some runs, which take turns."""
    for run in runs:
        run()
    turns = [[fastest(run, 1) for run in runs] for _ in range(20)]
    return list(map(min, zip(*turns, strict=True)))


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.0f} %"


def main() -> None:
    """Time both, and print their tables."""
    fp.use_cpu_devices(1)
    parts = table("a tick without", "microseconds", "saved", title="logistic regression")
    # where arrays lie in memory decides between 5 and 8 microseconds
    several = [least([loop(**given) for given in WITHOUT.values()]) for _ in range(5)]
    times = map(min, zip(*several, strict=True))
    seconds = {name: each / TICKS for name, each in zip(WITHOUT, times, strict=True)}
    for name, each in seconds.items():
        saved = 1 - each / seconds["nothing"]
        add(parts, name, f"{1e6 * each:.2f}", percent(saved) if saved else "")
    add(parts, "nothing, in the library's round", f"{1e6 * seconds_in_round():.2f}", "")
    headers = "model", "B", "step ms", "its products ms", "share", "of ceiling", "products of it"
    models = table(*headers)
    best = 0.0
    for name in MODELS:
        row, best = row_named(name), max(best, product_rate())
        step, alone = measured(row)
        cells = f"{1e3 * step:.2f}", f"{1e3 * alone:.2f}", percent(alone / step)
        rates = (row.operations / each / best for each in (step, alone))
        add(models, name, str(row.batch), *cells, *map(percent, rates))
    models.caption = f"large products {1e-9 * best:.0f} GFLOP/s"
    show(parts, models)


if __name__ == "__main__":
    main()
