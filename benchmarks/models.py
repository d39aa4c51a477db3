"""The papers' models: a client's step in a compiled round against the same step in torch.

    python -m benchmarks.models [NAME ...]

A round has ten clients (on an accelerator also fifty), each with a few mini-batches of random data
of the right shape. The library runs it with `simulate`, torch as a plain loop over the clients.
Both alternate, the fastest of several runs counts, and both are compared with the fastest product
of two large matrices. Operations are counted from the layers' shapes: a step has the products of
the forward pass and of both gradients, except the gradient of the first layer's input. Without
torch its columns are empty.
"""

import argparse
import importlib
import importlib.util
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

import fedprox as fp
from benchmarks.page import add, show, table
from fedprox.model import weighted_loss

Array = NDArray[Any]

REPEATS = 4
SECONDS = 1.0
"""About how long one timed run should take."""

MOST_ROUNDS = 1000
"""Most rounds of one timed run."""

HAS_TORCH = importlib.util.find_spec("torch") is not None


def by_torch(module: str, name: str, *args: int) -> Callable[[], Any]:
    """A function that makes a torch module, and imports torch only then."""

    def make() -> Any:
        return getattr(importlib.import_module(f"benchmarks.{module}"), name)(*args)

    return make


@dataclass(frozen=True)
class Row:
    """A model of the table.

    Attributes:
        name: The model's name.
        batch: Rows B of a mini-batch.
        model: Our model for a federation.
        torch: The same model as a torch module; images have their channels first.
        shape: Shape of one example.
        products: Multiply-add operations of each layer's product for one example.
        classes: Number of classes.
        tokens: Number of different tokens if features are tokens, else 0.
        labels: Shape of one example's labels.
        learns_input: Whether the first product needs the gradient of its input, an embedding.
        wanted: Required speed relative to torch; None for no requirement.
        steps: Mini-batches of a client.
    """

    name: str
    batch: int
    model: Callable[[fp.Federation], fp.Model]
    torch: Callable[[], Any]
    shape: tuple[int, ...]
    products: tuple[int, ...]
    classes: int = 10
    tokens: int = 0
    labels: tuple[int, ...] = ()
    learns_input: bool = False
    wanted: float | None = None
    steps: int = 5

    @property
    def operations(self) -> float:
        """Floating-point operations of a step."""
        free = 0 if self.learns_input else self.products[0]
        return 2.0 * self.batch * (3 * sum(self.products) - free)

    def federation(self, clients: int) -> fp.Federation:
        """Random data, different for each client."""
        rng, rows = np.random.default_rng(0), self.steps * self.batch

        def client() -> tuple[Array, Array]:
            size = (rows, *self.shape)
            x = rng.integers(self.tokens, size=size) if self.tokens else rng.normal(size=size)
            kind = np.int32 if self.tokens else np.float32
            return x.astype(kind), rng.integers(self.classes, size=(rows, *self.labels))

        data = [client() for _ in range(clients)]
        return fp.Federation.from_arrays(data, classes=self.classes)


def resnet_products() -> tuple[int, ...]:
    """The products of ResNet-18 on 32x32 images."""
    stem, blocks = 16 * 16 * 7 * 7 * 3 * 64, []
    for side, inputs, outputs in ((8, 64, 64), (4, 64, 128), (2, 128, 256), (1, 256, 512)):
        shortcut = side * side * inputs * outputs if inputs != outputs else 0
        blocks += [side * side * 9 * outputs * (inputs + 3 * outputs), shortcut]
    return (stem, *blocks, 512 * 10)


def lstm_products(length: int, width: int, *units: int) -> tuple[int, ...]:
    """The products of LSTM layers: for each, those of its inputs and of its previous outputs."""
    layers = zip((width, *units[:-1]), units, strict=True)
    return tuple(length * 4 * h * size for d, h in layers for size in (d, h))


ROWS = (
    Row(
        "logistic",
        10,
        fp.models.logistic,
        by_torch("torch_models", "logistic"),
        (784,),
        (784 * 10,),
        wanted=10.0,
    ),
    Row(
        "2NN",
        10,
        partial(fp.models.mlp, hidden=[200, 200]),
        by_torch("torch_models", "two_layers"),
        (784,),
        (784 * 200, 200 * 200, 200 * 10),
    ),
    Row(
        "MNIST CNN",
        10,
        fp.models.mnist_cnn,
        by_torch("torch_models", "mnist_cnn"),
        (28, 28, 1),
        (28 * 28 * 25 * 32, 14 * 14 * 25 * 32 * 64, 3136 * 512, 512 * 10),
        wanted=1.0,
    ),
    Row(
        "CIFAR CNN 24x24",
        50,
        fp.models.cifar_cnn,
        by_torch("torch_models", "cifar_cnn"),
        (24, 24, 3),
        (24 * 24 * 75 * 64, 12 * 12 * 1600 * 64, 2304 * 384, 384 * 192, 192 * 10),
    ),
    Row(
        "FedDyn CNN",
        50,
        fp.models.wide_lenet,
        by_torch("torch_models", "wide_lenet"),
        (32, 32, 3),
        (28 * 28 * 75 * 64, 10 * 10 * 1600 * 64, 1600 * 384, 384 * 192, 192 * 10),
        wanted=0.9,
    ),
    Row(
        "ResNet-18",
        50,
        fp.models.resnet18,
        by_torch("torch_models", "resnet18"),
        (32, 32, 3),
        resnet_products(),
        steps=1,
    ),
    Row(
        "character LSTM 2x100",
        10,
        fp.models.char_lstm,
        by_torch("torch_recurrent", "char_lstm", 100),
        (80,),
        (*lstm_products(80, 8, 100, 100), 100 * 80),
        classes=80,
        tokens=80,
        learns_input=True,
        wanted=1.2,
    ),
    Row(
        "character LSTM 2x256",
        10,
        partial(fp.models.char_lstm, hidden=256),
        by_torch("torch_recurrent", "char_lstm", 256),
        (80,),
        (*lstm_products(80, 8, 256, 256), 256 * 80),
        classes=80,
        tokens=80,
        learns_input=True,
        wanted=1.0,
    ),
    Row(
        "FedAvg's character LSTM",
        10,
        fp.models.peephole_char_lstm,
        by_torch("torch_recurrent", "peephole_char_lstm"),
        (80,),
        (*lstm_products(80, 8, 256, 256), 80 * 256 * 258),
        classes=258,
        tokens=258,
        labels=(80,),
        learns_input=True,
    ),
    Row(
        "sentiment LSTM 2x256",
        10,
        fp.models.sentiment_lstm,
        by_torch("torch_recurrent", "sentiment_lstm", 256),
        (25, 300),
        (*lstm_products(25, 300, 256, 256), 256 * 30, 30),
        classes=2,
    ),
    Row(
        "word LSTM",
        10,
        fp.models.peephole_word_lstm,
        by_torch("torch_recurrent", "peephole_word_lstm"),
        (10,),
        (*lstm_products(10, 192, 256), 10 * 256 * 10_000),
        classes=10_000,
        tokens=10_000,
        labels=(10,),
        learns_input=True,
    ),
    Row(
        "MiniLM",
        8,
        partial(fp.models.bert, layers=6, width=384),
        by_torch("torch_models", "MiniLM"),
        (64,),
        (6 * 64 * 384 * (4 * 384 + 2 * 64 + 2 * 1536), 384 * 2),
        classes=2,
        tokens=30_522,
        learns_input=True,
        steps=1,
    ),
)


def row_named(name: str) -> Row:
    """The row of a model."""
    return next(row for row in ROWS if row.name == name)


Convert = Callable[[fp.Model], fp.Model]
"""A change of a model before it is measured, such as to another precision."""


def unchanged(model: fp.Model) -> fp.Model:
    """The model itself."""
    return model


def our_round(
    federation: fp.Federation, row: Row, rounds: int, convert: Convert = unchanged
) -> fp.Run:
    """Rounds of all clients, and two evaluations of one row of each."""
    return fp.simulate(
        federation,
        convert(row.model(federation)),
        fp.fedavg(),
        solver=fp.Solver(0.01, row.batch, epochs=1),
        cohort=fp.Cohort(len(federation)),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
        progress=False,
    )[0]


def our_program(
    federation: fp.Federation, row: Row, convert: Convert = unchanged
) -> tuple[Callable[[Any], Any], Any]:
    """One step by itself as a function of the parameters, and the first of these."""
    model = convert(row.model(federation))
    x, y = (jax.numpy.asarray(a[: row.batch]) for a in federation.train.client(0))
    weights = jax.numpy.full(row.batch, 1 / row.batch)

    def step(params: Any) -> Any:
        gradient = jax.grad(weighted_loss, argnums=1)(model, params, x, y, weights)
        return jax.tree.map(lambda w, g: w - 0.01 * g, params, gradient)

    return step, model.init(jax.random.key(0))


def our_step(
    federation: fp.Federation, row: Row, convert: Convert = unchanged
) -> Callable[[], object]:
    """The same, compiled and called from Python."""
    step, params = our_program(federation, row, convert)
    compiled = jax.jit(step)
    return lambda: jax.block_until_ready(compiled(params))


def fastest(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def product_rate(size: int = 2048, dtype: Any = np.float32) -> float:
    """Operations a second of a product of two large matrices in JAX."""
    a = jax.random.normal(jax.random.key(0), (size, size), dtype)
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(a))
    return 2.0 * size**3 / fastest(lambda: product(a).block_until_ready(), 10)


def torch_product_rate(size: int = 2048) -> float:
    """Operations a second of a product of two large matrices in torch; NaN without torch."""
    if not HAS_TORCH:
        return math.nan
    from benchmarks import torch_models

    values = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    b = torch_models.to_device(values)

    def product() -> None:
        b @ b
        torch_models.wait()

    product()
    return 2.0 * size**3 / fastest(product, 10)


class Timing(NamedTuple):
    """A model's step, by us and by torch; torch's are NaN without it.

    Attributes:
        parameters: Number of parameters.
        step: Seconds of a step by itself.
        torch_step: The same in torch.
        in_round: Seconds of a step in a round.
        torch_in_round: The same in torch.
        rate: Operations a second of our steps in a round.
        compile_seconds: Seconds to compile a run's programs.
        memory: Bytes of a round's program without the data.
    """

    parameters: int
    step: float
    torch_step: float
    in_round: float
    torch_in_round: float
    rate: float
    compile_seconds: float
    memory: int


def rounds_for(seconds: float, run: Callable[[int], fp.Run]) -> int:
    """The number of further rounds after the first that take about some seconds."""
    one = run(1).run_seconds
    rounds = min(MOST_ROUNDS, max(1, math.ceil(seconds / one)))
    took = run(1 + rounds).run_seconds - one
    # the first round came with planning and evaluations, so there may be time for more
    return min(MOST_ROUNDS, max(1, math.ceil(rounds * seconds / max(took, seconds / 20))))


def measure(
    row: Row,
    clients: int,
    *,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    torch: bool = HAS_TORCH,
    convert: Convert = unchanged,
) -> Timing:
    """Time a model's step.

    Args:
        row: The model.
        clients: Clients of a round.
        repeats: Timed runs, of which the fastest counts.
        seconds: About how long a timed run should take.
        torch: Whether to time torch's loop too.
        convert: A change of our model.
    """
    federation = row.federation(clients)
    alone = our_step(federation, row, convert)
    alone()
    cold = our_round(federation, row, 1, convert)
    rounds = rounds_for(seconds, lambda rounds: our_round(federation, row, rounds, convert))
    theirs: Callable[[], object] | None = None
    their_step: Callable[[], object] | None = None
    their_rounds = 1
    if torch:
        from benchmarks import torch_models

        module = torch_models.Loop(row.torch(), federation, row.batch)
        theirs, their_step = module.round, module.step
        module.step()
        module.round()
        their_rounds = max(1, math.ceil(seconds / fastest(module.round, 1)))
    one, more, our_one = (math.inf,) * 3
    their_round, their_one = (math.inf if torch else math.nan,) * 2
    for _ in range(repeats):
        one = min(one, our_round(federation, row, 1, convert).run_seconds)
        more = min(more, our_round(federation, row, 1 + rounds, convert).run_seconds)
        our_one = min(our_one, fastest(alone, 10))
        if theirs is not None and their_step is not None:
            their_round = min(their_round, fastest(theirs, their_rounds))
            their_one = min(their_one, fastest(their_step, 10))
    each = clients * row.steps
    # planning and evaluations cancel; what remains can be lost in noise
    ours = (more - one) / rounds / each if more > one else math.nan
    data = federation.train.x.nbytes + federation.train.y.nbytes
    return Timing(
        parameters=sum(a.size for a in jax.tree.leaves(cold.params)),
        step=our_one,
        torch_step=their_one,
        in_round=ours,
        torch_in_round=their_round / each,
        rate=row.operations / ours,
        compile_seconds=cold.compile_seconds,
        memory=cold.memory - data,
    )


HEADERS = (
    *("model", "B", "clients", "parameters", "step ms", "torch ms", "in a round ms", "torch ms"),
    *("torch / ours", "wanted", "GFLOP/s", "of ceiling", "compile s", "memory MiB", "in models"),
)


def cells(row: Row, clients: int, timing: Timing, best: float) -> tuple[str, ...]:
    """A row of the table; `best` is the rate of the product of two large matrices."""

    def milliseconds(value: float) -> str:
        return "" if math.isnan(value) else f"{1e3 * value:.3f}"

    ratio = timing.torch_in_round / timing.in_round
    return (
        row.name,
        str(row.batch),
        str(clients),
        f"{timing.parameters:,}",
        milliseconds(timing.step),
        milliseconds(timing.torch_step),
        milliseconds(timing.in_round),
        milliseconds(timing.torch_in_round),
        "" if math.isnan(ratio) else f"{ratio:.2f}",
        "" if row.wanted is None else f"{row.wanted:g}",
        f"{1e-9 * timing.rate:.0f}",
        f"{100 * timing.rate / best:.0f} %",
        f"{timing.compile_seconds:.1f}",
        f"{timing.memory / 2**20:.1f}",
        f"{timing.memory / (4 * timing.parameters):.1f}",
    )


def main() -> None:
    """Time the models that are named, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows of the table; all if none")
    names = parser.parse_args().names
    fp.use_cpu_devices(10)
    shown = table(*HEADERS)
    rates = [0.0, math.nan]
    with tempfile.TemporaryDirectory() as folder:
        fp.use_compilation_cache(Path(folder))
        for row in ROWS:
            if not names or row.name in names:
                rates = [np.fmax(rates[0], product_rate()), np.fmax(rates[1], torch_product_rate())]
                for clients in (10,) if jax.default_backend() == "cpu" else (10, 50):
                    timing = measure(row, clients)
                    add(shown, *cells(row, clients, timing, float(np.nanmax(rates))))
    kind, ours, theirs = jax.devices()[0].device_kind, *(1e-9 * rate for rate in rates)
    shown.caption = f"{kind}; large products: jax {ours:.0f}, torch {theirs:.0f} GFLOP/s"
    show(shown)


if __name__ == "__main__":
    main()
