"""Diagnosis: is the suggested mu the best one in full runs?

    python -m benchmarks.diagnose [NAME ...] [--data-dir DIR] [--data-seed N]

For each data set, without stragglers and with 90 %, the diagnosis suggests a mu from a sweep of 40
rounds over three seeds. Full runs with every mu of its grid, over five other seeds, show which mu
is best. Learning rates, rounds, batches of 10, E = 20 and 10 clients a round are the paper's.

The final loss is f(w) averaged over a run's last ten rounds. A mu is best within noise if its loss
exceeds that of the best mu by no more than two standard errors of the paired differences over
seeds, or 1 per cent. `argmin` is the mu with the lowest loss at the end of the sweep.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import fedprox as fp
from benchmarks.page import add, leave_out, show, table
from fedprox.diagnostics.diagnosis import MUS

SEEDS = (0, 1, 2, 3, 4)
DIAGNOSIS_SEED = 100
LAST = 10


class Experiment(NamedTuple):
    """A data set with the paper's learning rate and rounds."""

    load: Callable[[Path | None, int], fp.Federation]
    learning_rate: float
    rounds: int


def synthetic(alpha: float, *, iid: bool = False) -> Experiment:
    return Experiment(
        lambda _, seed: fp.datasets.synthetic(alpha, alpha, iid=iid, seed=seed), 0.01, 200
    )


def from_files(name: str, learning_rate: float, rounds: int) -> Experiment:
    def load(data_dir: Path | None, seed: int) -> fp.Federation:
        if name not in fp.datasets.DATASETS:
            raise fp.InputError(f"there is no data set {name!r} yet")
        return fp.datasets.DATASETS[name](data_dir=data_dir, seed=seed)

    return Experiment(load, learning_rate, rounds)


EXPERIMENTS = {
    "synthetic-iid": synthetic(1.0, iid=True),
    "synthetic-0-0": synthetic(0.0),
    "synthetic-0.5-0.5": synthetic(0.5),
    "synthetic-1-1": synthetic(1.0),
    "mnist": from_files("mnist", 0.03, 100),
    "femnist": from_files("femnist", 0.003, 200),
}


def final_losses(
    federation: fp.Federation, experiment: Experiment, solver: fp.Solver, systems: fp.Systems
) -> NDArray[np.float64]:
    """f(w) over the last rounds of full runs, shape (mus, seeds); infinity if a run diverged."""
    runs = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedprox(mu=MUS),
        solver=solver,
        cohort=fp.Cohort(10),
        systems=systems,
        rounds=experiment.rounds,
        seed=SEEDS,
    )
    means = {
        (run.hparams["mu"], run.seed): np.mean([r.train_loss for r in run.history[-LAST:]])
        for run in runs
    }
    losses = np.array([[means[mu, seed] for seed in SEEDS] for mu in MUS])
    return np.where(np.isfinite(losses), losses, np.inf)


def verdict(losses: NDArray[np.float64], suggested: int) -> str:
    best = int(losses.mean(axis=1).argmin())
    if suggested == best:
        return "best"
    differences = losses[suggested] - losses[best]
    excess = differences.mean() / losses[best].mean()
    if not np.isfinite(excess):
        return "no: diverged"
    noise = 2 * differences.std(ddof=1) / np.sqrt(len(differences))
    within = differences.mean() <= noise or excess <= 0.01
    return f"{'within noise' if within else 'no'}: {100 * excess:+.1f} %"


def row(name: str, federation: fp.Federation, stragglers: float) -> tuple[str, ...]:
    experiment = EXPERIMENTS[name]
    solver = fp.Solver(experiment.learning_rate, 10, epochs=20)
    systems = fp.Systems(stragglers)
    diagnosis = fp.diagnose(
        federation,
        fp.models.logistic(federation),
        solver=solver,
        cohort=fp.Cohort(10),
        systems=systems,
        rounds=experiment.rounds,
        seed=DIAGNOSIS_SEED,
    )
    losses = final_losses(federation, experiment, solver, systems)
    best = int(losses.mean(axis=1).argmin())
    late_losses = [np.inf if np.isnan(t.late_loss) else t.late_loss for t in diagnosis.sweep]
    argmin = int(np.argmin(late_losses))
    if diagnosis.suggested_mu is None:
        return name, f"{100 * stragglers:g} %", "none"
    suggested = MUS.index(diagnosis.suggested_mu)

    def loss(i: int) -> str:
        return f"{losses[i].mean():.4f} ± {losses[i].std(ddof=1):.4f}"

    return (
        name,
        f"{100 * stragglers:g} %",
        f"{MUS[suggested]:g}",
        f"{MUS[best]:g}",
        loss(suggested),
        loss(best),
        verdict(losses, suggested),
        f"{MUS[argmin]:g} ({verdict(losses, argmin)})",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--data-dir", type=Path, help="folder with data files")
    parser.add_argument("--data-seed", type=int, default=11, help="[default: 11]")
    arguments = parser.parse_args()
    names = arguments.names or list(EXPERIMENTS)
    if unknown := set(names) - set(EXPERIMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(EXPERIMENTS)}")
    fp.use_cpu_devices(10)
    losses = ("loss at suggested", "loss at best")
    shown = table("set", "stragglers", "suggested mu", "best mu", *losses, "holds?", "argmin")
    for name in names:
        try:
            federation = EXPERIMENTS[name].load(arguments.data_dir, arguments.data_seed)
        except fp.InputError as error:
            leave_out(name, error)
            continue
        for stragglers in (0.0, 0.9):
            add(shown, *row(name, federation, stragglers))
    show(shown)


if __name__ == "__main__":
    main()
