"""Models on the line through two others (McMahan et al. 2017, Figure 1; Goodfellow et al. 2015).

    f(theta w + (1 - theta) w'),    f the mean loss over all clients' training rows

where w and w' were trained by two clients, each only on its own rows.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.engine.item import Between
from experiments.engine.summaries import Numbers, Series
from fedprox.experiment import parse, resolve
from fedprox.federation import Federation, Rows
from fedprox.model import Model, Params
from fedprox.simulation.config.evaluation import Evaluation
from fedprox.simulation.simulate import simulate

THETAS = np.linspace(-0.2, 1.2, 50)
LINE, PARENT = "theta w + (1 - theta) w'", "the better of w and w'"
"""The labels of two series: the loss at each theta, and the lower of the losses at 0 and 1."""


def between(pair: Between, seed: int, data_dir: Path | None = None) -> list[Series]:
    """Train a pair of models, and measure the models on the line through them.

    Args:
        pair: The experiment of both models, and whether they share the initial model.
        seed: Seed of the data's partition, from which the seeds of both models are derived.
        data_dir: Folder with data files.

    Returns:
        The series `LINE` and `PARENT`, with "theta" and "train_loss" at `THETAS`.

    Raises:
        InputError: The experiment is refused, or data are missing.
    """
    table = pair.experiment
    experiment = parse("between", table | {"data": table["data"] | {"seed": seed}})
    resolved = resolve(experiment, data_dir)

    def train(client: int, model_seed: int) -> Params:
        (run,) = simulate(
            alone(resolved.federation, client),
            resolved.model,
            resolved.methods[0],
            solver=resolved.solver,
            cohort=resolved.cohort,
            rounds=experiment.rounds,
            evaluation=Evaluation(gradients=False),
            seed=model_seed,
        )
        return run.params

    first, second = train(0, 2 * seed), train(1, 2 * seed + (not pair.shared))
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
