"""McMahan et al. 2017: Figure 1, averages of two models (as Goodfellow et al. 2015).

    f(theta w + (1 - theta) w'),    f the mean loss over all clients' training rows

where w and w' were trained by two clients, each only on its own rows.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.common import FEDAVG, FEDAVG_PAPER
from experiments.engine.item import Claim, Comparison, Item, Line, Other, Panel, Table
from experiments.engine.series import LOSS, Numbers, Series
from experiments.engine.summaries import Summary
from fedprox.experiment import parse, resolve
from fedprox.federation import Federation, Rows
from fedprox.loop.simulate import simulate
from fedprox.model import Model, Params
from fedprox.protocol.protocol import Evaluation

THETAS = np.linspace(-0.2, 1.2, 50)
LINE, PARENT = "theta w + (1 - theta) w'", "the better of w and w'"
"""The labels of two series: the loss at each theta, and the lower of the losses at 0 and 1."""

HALFWAY = Summary(
    "at theta = 1/2",
    lambda series, measure: float(np.interp(0.5, series.along("theta"), series.of(measure))),
)


def between(
    experiment: Table, seed: int, data_dir: Path | None = None, *, shared: bool
) -> list[Series]:
    """Train a pair of models, and measure the models on the line through them.

    Args:
        experiment: An experiment with one client a round; the first client trains w, the second w'.
        seed: Seed of the data's partition, from which the seeds of both models are derived.
        data_dir: Folder with data files.
        shared: Whether both start from the same model.

    Returns:
        The series `LINE` and `PARENT`, with "theta" and "train_loss" at `THETAS`.

    Raises:
        InputError: The experiment is refused, or data are missing.
    """
    seeded = experiment | {"data": experiment["data"] | {"seed": seed}}
    resolved = resolve(parse("between", seeded), data_dir)

    def train(client: int, model_seed: int) -> Params:
        (run,) = simulate(
            alone(resolved.federation, client),
            resolved.model,
            resolved.methods[0],
            solver=resolved.solver,
            cohort=resolved.cohort,
            rounds=experiment["rounds"],
            evaluation=Evaluation(gradients=False),
            seed=model_seed,
        )
        return run.params

    first, second = train(0, 2 * seed), train(1, 2 * seed + (not shared))
    rows = resolved.federation.train

    def series(label: str, losses: Numbers) -> Series:
        values = {"theta": THETAS, "train_loss": losses}
        return Series(label, seed, np.arange(len(THETAS)), values)

    line = losses(resolved.model, rows, first, second, THETAS)
    better = losses(resolved.model, rows, first, second, np.array([0.0, 1.0])).min()
    return [series(LINE, line), series(PARENT, np.full(len(THETAS), better))]


def alone(federation: Federation, client: int) -> Federation:
    """A federation of a single client, with its rows."""
    return federation.of_clients(np.array([client]))


def losses(model: Model, rows: Rows, first: Params, second: Params, thetas: Numbers) -> Numbers:
    """f(theta w + (1 - theta) w') over rows, shape (thetas,).

    Args:
        model: The model.
        rows: The rows.
        first: w.
        second: w'.
        thetas: Each theta, shape (thetas,).
    """

    @jax.jit
    def loss(theta: float, x: jax.Array, y: jax.Array) -> jax.Array:
        params = jax.tree.map(lambda w, v: theta * w + (1 - theta) * v, first, second)
        return jnp.mean(model.loss(model.apply(params, x), y))

    x, y = jnp.asarray(np.asarray(rows.x)), jnp.asarray(rows.y)
    return np.array([loss(theta, x, y) for theta in thetas.tolist()], np.float64)


PARENTS: Table = {
    "rounds": 1,
    "data": {"name": "mnist", "partition": "iid"},
    "model": {"name": "mlp", "hidden": [200, 200]},
    "cohort": {"clients_per_round": 1},
    "solver": {"learning_rate": 0.1, "batch_size": 50, "epochs": 20},
    "method": [FEDAVG],
}


def _claim(text: str, where: str, greater: Line, less: Line) -> Claim:
    return Claim(text, LOSS, HALFWAY, (Comparison(where, greater, less),))


FIGURE_1 = Item(
    "Figure 1: the loss of averages of two models",
    f"{FEDAVG_PAPER}, Figure 1, section 2",
    {"short": 50, "paper": 120},
    panels=(
        (
            Panel("separate initialisation", LOSS, ("separate",), x="theta"),
            Panel("shared initialisation", LOSS, ("shared",), x="theta"),
        ),
    ),
    claims=(
        _claim(
            "From a shared initialisation the average is better than the better of its parents.",
            "shared",
            Line("shared", PARENT),
            Line("shared", LINE),
        ),
        _claim(
            "From separate initialisations it is worse.",
            "separate",
            Line("separate", LINE),
            Line("separate", PARENT),
        ),
        _claim(
            "With a shared initialisation the average is better than with separate ones.",
            "both",
            Line("separate", LINE),
            Line("shared", LINE),
        ),
    ),
    others={
        "separate": Other(PARENTS, partial(between, shared=False)),
        "shared": Other(PARENTS, partial(between, shared=True)),
    },
    notes=(
        "w and w' are 2NNs that two of 100 IID clients train on their own 600 images: 240 steps of "
        "SGD with rate 0.1 and batches of 50. The loss is that of all 60,000 training images, for "
        "50 theta from -0.2 to 1.2; the level line is the better of w and w'.",
    ),
)
