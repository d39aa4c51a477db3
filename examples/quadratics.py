"""Who ends at the minimiser: four methods on clients with different quadratics.

Client k of 100 has one example, F_k(w) = 1/2 (w - b_k)' A_k (w - b_k) with w of 10 numbers, and
the A_k are scaled to have the identity as their mean. So f, the mean of the F_k, has the gradient
w - w*, and the distance to its minimiser w* follows from what every record holds: the gradient
variance V and the dissimilarity B = sqrt(1 + V / ||grad f||^2).

    python examples/quadratics.py docs/concepts/quadratics.png
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedprox as fp

CLIENTS, DIMENSIONS, ROUNDS = 100, 10, 600

METHODS = {
    "FedAvg": fp.fedavg(),
    "SCAFFOLD": fp.scaffold(),
    "FedDyn, alpha = 1": fp.feddyn(alpha=1.0),
    "FedSplit, all clients' mean, s = 1": fp.fedsplit(step_size=1.0, average="all"),
}


def clients() -> fp.Federation:
    """Random A_k, symmetric and positive definite with mean identity, and random minima b_k."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(CLIENTS, DIMENSIONS, DIMENSIONS)) / np.sqrt(DIMENSIONS)
    a = factors @ factors.transpose(0, 2, 1) + 0.1 * np.eye(DIMENSIONS)
    values, vectors = np.linalg.eigh(a.mean(axis=0))
    root = vectors / np.sqrt(values) @ vectors.T
    b = rng.normal(size=(CLIENTS, DIMENSIONS))
    return fp.Federation.from_arrays(list(zip((root @ a @ root)[:, None], b[:, None], strict=True)))


def quadratic() -> fp.Model:
    """The parameters are w itself, at first ones; an example is (A, b)."""

    def apply(w: jax.Array, x: jax.Array) -> Any:
        return x, w

    def loss(outputs: Any, y: jax.Array) -> jax.Array:
        a, w = outputs
        return 0.5 * jnp.einsum("bi,bij,bj->b", w - y, a, w - y)

    return fp.Model(lambda _: jnp.ones(DIMENSIONS), apply, loss, correct=None)


def distance(record: fp.Record) -> float:
    """||w - w*|| = ||grad f(w)|| = sqrt(V / (B^2 - 1))."""
    return float(np.sqrt(record.gradient_variance / (record.dissimilarity**2 - 1)))


def main() -> None:
    """Run the methods with all clients in a round, and with a tenth; draw the distances."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("picture", help="file to write, such as docs/concepts/quadratics.png")
    picture = parser.parse_args().picture
    federation, model = clients(), quadratic()
    drawn = Figure(figsize=(9, 3.8), layout="constrained")
    axes = drawn.subplots(1, 2, sharey=True)
    for axis, per_round in zip(axes, (CLIENTS, CLIENTS // 10), strict=True):
        runs = fp.simulate(
            federation,
            model,
            list(METHODS.values()),
            solver=fp.Solver(learning_rate=0.1, batch_size="all", steps=10),
            cohort=fp.Cohort(per_round),
            rounds=ROUNDS,
            evaluation=fp.Evaluation(every=5),
        )
        for name, run in zip(METHODS, runs, strict=True):
            rounds = [record.round for record in run.history]
            apart = [distance(record) for record in run.history]
            axis.plot(rounds, apart, label=name, linewidth=1.5)
            print(f"{per_round} clients a round, {name}: {apart[-1]:.1e}")
        axis.set_yscale("log")
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
        axis.set_title(f"{per_round} of {CLIENTS} clients in a round", fontsize=10)
    axes[0].set_ylabel(r"distance to the minimiser $\|w^t - w^*\|$")
    axes[0].legend(frameon=False, loc="center right")
    drawn.savefig(picture, dpi=150)


if __name__ == "__main__":
    main()
