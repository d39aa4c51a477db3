"""What theory promises for FedDyn on its own synthetic data, and what happens.

    python -m benchmarks.bounds

Logistic regression on Synthetic of Acar et al. 2021, type 1: 20 clients of 200 rows whose labels
follow different models, two of them a round, 200 rounds, five seeds. All clients have equally many
rows, so the training loss is the theorems' f. w^* is found by Newton's method.

L is measured twice: by `curvature` at w = 0, which is where runs start, and as half the largest
eigenvalue of a client's second moments, which bounds the curvature everywhere.
"""

import jax
import numpy as np
from numpy.typing import NDArray

import fedprox as fp
from benchmarks.page import show, table
from fedprox.diagnostics import convex_rate, curvature, feddyn_convex

ROUNDS, COHORT, SEEDS = 200, 2, 5
Floats = NDArray[np.float64]


class Logistic:
    """The clients' losses F_k of a matrix of weights, features and classes, in float64."""

    def __init__(self, federation: fp.Federation) -> None:
        parts = [federation.train.client(k) for k in range(len(federation))]
        self.x = np.array([np.hstack([x, np.ones((len(x), 1))]) for x, _ in parts], float)
        self.y = np.eye(federation.classes)[np.array([y for _, y in parts])]

    def chances(self, w: Floats) -> Floats:
        """The softmax of all rows, (clients, rows, classes)."""
        scores = np.exp(self.x @ w)
        return np.asarray(scores / scores.sum(axis=-1, keepdims=True))

    def loss(self, w: Floats) -> float:
        """f, the mean of all rows' losses."""
        return float(-np.log((self.chances(w) * self.y).sum(axis=-1)).mean())

    def gradients(self, w: Floats) -> Floats:
        """Those of all clients, flat: (clients, features * classes)."""
        slopes = np.einsum("kni,knc->kic", self.x, self.chances(w) - self.y) / self.x.shape[1]
        return np.asarray(slopes.reshape(len(self.x), -1))

    def minimiser(self) -> Floats:
        """w^*, by Newton's method."""
        w = np.zeros((self.x.shape[-1], self.y.shape[-1]))
        x = self.x.reshape(-1, self.x.shape[-1])
        for _ in range(20):
            p = self.chances(w).reshape(len(x), -1)
            inner = np.einsum("nc,cd->ncd", p, np.eye(p.shape[1])) - np.einsum("nc,nd->ncd", p, p)
            hessian = np.einsum("ni,ncd,nj->icjd", x, inner, x, optimize=True) / len(x)
            # equal weights of all classes change nothing: the shortest step has none
            flat = hessian.reshape(w.size, w.size)
            w = w - np.linalg.lstsq(flat, self.gradients(w).mean(axis=0), rcond=1e-9)[0].reshape(
                w.shape
            )
        return w

    def smoothness(self) -> float:
        """A bound of the curvature at every w: softmax has no eigenvalue above 1/2."""
        moments = np.einsum("kni,knj->kij", self.x, self.x) / self.x.shape[1]
        return float(np.linalg.eigvalsh(moments).max() / 2)


def excess(federation: fp.Federation, alpha: float, solver: fp.Solver, least: float) -> Floats:
    """f(gamma^t) - f(w^*) of each seed, t = 0, ..., ROUNDS."""
    runs = fp.simulate(
        federation,
        fp.models.logistic(federation, initial="zeros"),
        fp.feddyn(alpha),
        solver=solver,
        cohort=fp.Cohort(COHORT),
        rounds=ROUNDS,
        seed=range(SEEDS),
        evaluation=fp.Evaluation(model="cohort", gradients=False),
    )
    return np.array([[record.train_loss for record in run.history] for run in runs]) - least


def main() -> None:
    federation = fp.datasets.synthetic_feddyn("type1")
    problem = Logistic(federation)
    star = problem.minimiser()
    slopes = problem.gradients(star)
    assert np.abs(slopes.mean(axis=0)).max() < 1e-9
    zero = np.zeros_like(star)
    least, gap = problem.loss(star), problem.loss(zero) - problem.loss(star)
    distance, dispersion = float((star**2).sum()), float((slopes**2).sum(axis=1).mean())
    model = fp.models.logistic(federation, initial="zeros")
    here = curvature(federation, model, model.init(jax.random.key(0))).smoothness
    everywhere = problem.smoothness()
    title = f"problem: f(0) - f(w*) = {gap:.4f}, D = {distance:.2f}, G = {dispersion:.3f}"
    headers = ("L", "", "alpha", "bound", "as printed", "rounds until f(0) - f(w*)")
    bounds = table(*headers, title=title)
    for name, smoothness in (("at w = 0", here), ("everywhere", everywhere)):
        found = feddyn_convex(
            ROUNDS,
            smoothness=smoothness,
            clients=len(federation),
            clients_per_round=COHORT,
            squared_distance=distance,
            squared_gradients=dispersion,
        )
        bounds.add_row(
            name,
            f"{smoothness:.3f}",
            f"{found.alpha:.1f}",
            f"{found.bound:.3f}",
            f"{found.printed:.1f}",
            f"{ROUNDS * found.bound / gap:,.0f}",
        )
    solvers = {
        found.alpha: fp.Solver(1 / (found.alpha + everywhere / 2), "all", steps=5),  # exact
        1.0: fp.Solver(0.1, 10, epochs=10),
        0.1: fp.Solver(0.1, 10, epochs=10),
    }
    runs = table("alpha", "mean excess", "after the last round", left=0)
    for alpha, solver in solvers.items():
        measured = excess(federation, alpha, solver, least)
        mean, last = measured[:, :ROUNDS].mean(), measured[:, -1].mean()
        runs.add_row(f"{alpha:.1f}", f"{mean:.5f}", f"{last:.5f}")

    of_clients = problem.gradients(zero)
    squared = float((of_clients.mean(axis=0) ** 2).sum())
    variance = float(((of_clients - of_clients.mean(axis=0)) ** 2).sum(axis=1).mean())
    rate = convex_rate(everywhere, gap, variance, squared / 4)
    runs.caption = (
        f"FedProx: squared gradient {squared:.4f}, variance there {variance:.3f}; a quarter: {rate}"
    )
    show(bounds, runs)


if __name__ == "__main__":
    main()
