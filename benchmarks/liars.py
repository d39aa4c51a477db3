"""What one malicious node does to a model, under secure sums and in the clear.

    python -m benchmarks.liars [--data-dir DIR]

FedAvg over 5 and 20 nodes of a client each, which weigh the same: logistic regression on MNIST
(digits by Dirichlet(0.5), at most 200 rows of a client) and on Synthetic(1,1), 30 rounds. One node
knows what the others send. In each round it makes the mean of all messages as large as the check of
a secure sum allows, against the mean of the others, or, "constant", along a vector of ones.

* bound: each number of the mean is at most 1, or at most the largest number of an honest message of
  the same round, than which no bound can be tighter.
* norm: the norm of the mean is at most 4 times the largest norm of an honest message of the round,
  or at most that, or that of the mean of the honest messages.
* in the clear: the message of bound 1, beside clipping to twice the median norm, and beside the
  median of each coordinate.

"once" is one such round after 15 honest ones, before 14 more. The test accuracy of three seeds, of
data, liar and run: their mean and half of their range.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fedprox as fp
from benchmarks.page import show, table

ROUNDS, BEFORE, SEEDS = 30, 15, 3


@dataclass(frozen=True)
class Liar(fp.Attack):
    """A node that makes the mean as large as a check of the sum allows.

    Attributes:
        checked: What the check bounds: each number of the mean, or its norm; "mean" for the norm
            that it has without the liar.
        most: The bound; 0 for the largest of the round's honest messages times `loose`.
        constant: Whether the mean lies along a vector of ones, and not against the honest mean.
    """

    checked: Literal["number", "norm", "mean"] = "number"
    most: float = 0.0
    loose: float = 1.0
    constant: bool = False

    def sent(
        self, messages: Any, counts: jax.Array, attacks: jax.Array, key: jax.Array | None
    ) -> Any:
        """The messages of a round, with the liar's."""
        del key
        honest = (counts & ~attacks)[:, None]
        rows = jax.vmap(lambda message: ravel_pytree(message)[0])(messages)
        restore = ravel_pytree(jax.tree.map(lambda a: a[0], messages))[1]
        known = jnp.where(honest, rows, 0)
        wish = jnp.ones(rows.shape[1]) if self.constant else -known.sum(axis=0)
        if self.checked == "number":
            largest, along = jnp.abs(known).max(), jnp.sign(wish)
        else:
            each = known.sum(axis=0, keepdims=True) / honest.sum()
            norms = jnp.linalg.norm(each if self.checked == "mean" else known, axis=1)
            length = jnp.linalg.norm(wish)
            largest, along = norms.max(), wish / jnp.where(length > 0, length, 1)
        most = self.most or self.loose * largest
        lie = counts.sum() * most * along - known.sum(axis=0)
        return jax.vmap(restore)(jnp.where((attacks & counts)[:, None], lie, rows))


LIES: dict[str, dict[str, Any]] = {
    "bound 1, constant": {"most": 1.0, "constant": True},
    "bound 1": {"most": 1.0},
    "the tightest bound": {},
    "4 times the tightest norm": {"checked": "norm", "loose": 4.0},
    "the tightest norm": {"checked": "norm"},
    "the norm of the honest mean": {"checked": "mean"},
}
IN_THE_CLEAR: dict[str, dict[str, Any]] = {
    "clipped to twice the median norm": {"faults": fp.Faults("clip", norm=2.0)},
    "median": {"aggregation": fp.Aggregation("median")},
}


def federation_of(data: str, nodes: int, seed: int, folder: str | None) -> fp.Federation:
    """Nodes of a client each."""
    if data == "Synthetic":
        return fp.datasets.synthetic(1.0, 1.0, clients=nodes, seed=seed)
    dealt = fp.datasets.mnist(
        "dirichlet", clients=nodes, concentration=0.5, seed=seed, data_dir=folder
    )
    return dealt.sample(200, seed=seed)


Train = Callable[..., fp.Run]


def trained(federation: fp.Federation, seed: int, rounds: int = ROUNDS, **others: Any) -> fp.Run:
    """A run over all clients."""
    (run,) = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedavg().with_average("clients"),
        solver=fp.Solver(0.01, 10, epochs=2),
        cohort=fp.Cohort(len(federation)),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, gradients=False),
        seed=seed,
        progress=False,
        **others,
    )
    return run


def accuracies(train: Train, nodes: int, seed: int) -> dict[str, float]:
    """The final accuracy of each variant."""

    def liar(settings: Mapping[str, Any]) -> fp.Attack:
        return Liar("sign-flip", share=1 / nodes, seed=seed, **settings)

    first = train(rounds=BEFORE)

    def once(settings: Mapping[str, Any]) -> fp.Run:
        spoilt = train(rounds=1, initial=first.params, attack=liar(settings))
        return train(rounds=ROUNDS - BEFORE - 1, initial=spoilt.params)

    found = {"nobody lies": train()}
    found |= {f"nobody lies, {name}": train(**each) for name, each in IN_THE_CLEAR.items()}
    found |= {name: train(attack=liar(each)) for name, each in LIES.items()}
    found |= {
        f"{name}, once": once(each) for name, each in LIES.items() if not each.get("constant")
    }
    attack = liar(LIES["bound 1"])
    for name, each in IN_THE_CLEAR.items():
        found[f"in the clear, {name}"] = train(attack=attack, **each)
    return {name: float(run.final.test_accuracy or 0) for name, run in found.items()}


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    folder = parser.parse_args().data_dir
    columns: dict[str, dict[str, list[float]]] = {}
    for data in ("MNIST", "Synthetic"):
        for nodes in (5, 20):
            seeds = [
                accuracies(partial(trained, federation, seed), nodes, seed)
                for seed in range(SEEDS)
                for federation in [federation_of(data, nodes, seed, folder)]
            ]
            found = {name: [100 * each[name] for each in seeds] for name in seeds[0]}
            columns[f"{data}, {nodes} nodes"] = found
    shown = table("variant", *columns, title="test accuracy in %, mean and half of the range")
    for name in found:
        cells = [column[name] for column in columns.values()]
        shown.add_row(name, *(f"{np.mean(c):.0f} ± {np.ptp(c) / 2:.0f}" for c in cells))
    show(shown)


if __name__ == "__main__":
    main()
