"""Where methods end on quadratics, F_k(w) = 1/2 (w - b_k)' A_k (w - b_k), beside closed forms."""

from collections.abc import Iterable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

import fedprox as fp
from experiments.engine.item import Claim, Comparison, Line
from experiments.engine.series import Numbers, Series
from experiments.engine.summaries import FINAL

Method = tuple[fp.Algorithm, fp.Solver, Numbers]
"""A method, the local solver, and where it should end, shape (d,)."""


def point_model(d: int) -> fp.Model:
    """A model whose loss is half the squared distance of its parameters, at first 0, from y."""
    return fp.Model(
        init=lambda _: jnp.zeros(d),
        apply=lambda w, x: jnp.broadcast_to(w, (len(x), d)),
        loss=lambda w, y: 0.5 * jnp.sum((w - y) ** 2, axis=-1),
        correct=None,
    )


def points(each: Iterable[Numbers]) -> list[tuple[Numbers, Numbers]]:
    """Rows for `point_model` from each client's points, shape (n_k, d)."""
    return [(np.zeros((len(y), 1)), y) for y in each]


def proved(label: str) -> str:
    """The label of the line that has what is proved for another."""
    return f"proved for {label}"


def solution(weights: Sequence[Numbers], minima: Numbers) -> Numbers:
    """The w at which the sum of P_k (w - b_k) is 0, from each P_k and b_k."""
    moved = sum(weight @ b for weight, b in zip(weights, minima, strict=True))
    return np.asarray(np.linalg.solve(sum(weights), moved), np.float64)


def ends(
    federation: fp.Federation,
    model: fp.Model,
    star: Numbers,
    methods: Mapping[str, Method],
    rounds: int,
    seed: int,
) -> list[Series]:
    """Train with every client in every round; evaluate a hundred times.

    Args:
        federation: Clients whose test loss is half the squared distance from `star`.
        model: The model, whose parameters are w.
        star: The minimizer of f, shape (d,).
        methods: The methods by label.
        rounds: The rounds.
        seed: The scale's seed.

    Returns:
        For each label a series of the method and one of what is proved for it: the "distance" from
        `star`, and the last model's "gap", its distance from the proved end.
    """
    found = []
    for label, (method, solver, end) in methods.items():
        (run,) = fp.simulate(
            federation,
            model,
            method,
            solver=solver,
            cohort=fp.Cohort(len(federation)),
            rounds=rounds,
            evaluation=fp.Evaluation(every=rounds // 100, gradients=False),
            seed=seed,
            progress=False,
        )
        evaluated = np.array([record.round for record in run.history])
        distance = np.sqrt([2 * record.test_loss for record in run.history])
        gap = np.full(len(evaluated), np.nan)
        gap[-1] = np.linalg.norm(run.params - end)
        level, zero = np.full_like(gap, np.linalg.norm(end - star)), np.zeros_like(gap)
        found += [
            Series(label, seed, evaluated, {"distance": distance, "gap": gap}),
            Series(proved(label), seed, evaluated, {"distance": level, "gap": zero}),
        ]
    return found


def claims(
    text: str, run: str, labels: Sequence[str], farther: Mapping[str, str], within: float
) -> tuple[Claim, Claim]:
    """The claims that methods end where it is proved, and some farther off than others.

    Args:
        text: The first claim.
        run: Key of the item's `others`.
        labels: The methods.
        farther: By a method, one that ends nearer to the minimizer of f.
        within: The largest gap that counts as none.
    """
    gaps = tuple(Comparison(one, Line(run, one), Line(run, proved(one))) for one in labels)
    others = tuple(Comparison(a, Line(run, a), Line(run, b)) for a, b in farther.items())
    second = "Methods that end at another point are farther from the minimizer than those named."
    return Claim(text, "gap", FINAL, gaps, within), Claim(second, "distance", FINAL, others)
