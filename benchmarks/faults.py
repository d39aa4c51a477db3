"""The cost of screening faulty updates, and of robust rules.

    python -m benchmarks.faults [--data-dir DIR]

FedAvg on MNIST, 10 clients a round, B = 10, E = 1: logistic regression over the 1,000 clients of
the power law, and the 2NN over 100 IID clients. The same rounds run without screening, with a check
that updates are finite, with a check of their norms too, and with each rule in place of the mean;
no update is faulty. The initial and the final model are evaluated on a row of each client, without
gradients. All alternate in this process, and the shortest run counts; the final losses of those
that take the mean must agree.
"""

import argparse
import math
import os
from typing import Any, Literal, get_args

import fedprox as fp
from benchmarks.page import show, table
from fedprox.parts.robust import RuleName

TURNS = 5
PROBLEMS: tuple[tuple[str, Literal["power-law", "iid"], int], ...] = (
    ("logistic", "power-law", 400),
    ("2NN", "iid", 12),
)
SCREENED: dict[str, dict[str, Any]] = {
    "no screening": {},
    "must be finite": {"faults": fp.Faults(norm=math.inf)},
    "norms compared": {"faults": fp.Faults(norm=100)},
}
ROBUST: dict[str, dict[str, Any]] = {
    rule: {"aggregation": fp.Aggregation(rule, faulty=0.2)}
    for rule in get_args(RuleName)
    if rule not in ("mean", "product")
}
MIXED = fp.Aggregation("trimmed-mean", faulty=0.2, before="mixing")
VARIANTS = SCREENED | ROBUST | {"trimmed-mean after mixing": {"aggregation": MIXED}}


def train(federation: fp.Federation, model: fp.Model, variant: str, rounds: int) -> fp.Run:
    """A run of some rounds with a key of `VARIANTS`."""
    (run,) = fp.simulate(
        federation,
        model,
        fp.fedavg(),
        solver=fp.Solver(0.03, 10, epochs=1),
        cohort=fp.Cohort(10),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
        **VARIANTS[variant],
    )
    return run


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    headers, columns = ["variant"], []
    for name, partition, rounds in PROBLEMS:
        federation = fp.datasets.mnist(partition, data_dir=arguments.data_dir)
        two_layers = fp.models.mlp(federation, hidden=[200, 200])
        model = two_layers if name == "2NN" else fp.models.logistic(federation)
        times = dict.fromkeys(VARIANTS, math.inf)
        for _ in range(TURNS):
            losses = []
            for variant in VARIANTS:
                run = train(federation, model, variant, rounds)
                times[variant] = min(times[variant], 1000 * run.run_seconds / rounds)
                losses += [run.final.train_loss] * (variant in SCREENED)
                if run.faulty:
                    raise SystemExit(f"{name}, {variant}: {run.faulty} faulty updates")
            if max(losses) - min(losses) > 1e-3 * min(losses):
                raise SystemExit(f"{name}: losses differ, {losses}")
        none = times["no screening"]
        columns.append([[f"{each:.2f}", f"{each / none:.2f}"] for each in times.values()])
        headers += [name, "ratio"]
    shown = table(*headers, title="milliseconds a round, and ratios to no screening")
    for variant, *cells in zip(VARIANTS, *columns, strict=True):
        shown.add_row(variant, *(text for cell in cells for text in cell))
    show(shown)


if __name__ == "__main__":
    main()
