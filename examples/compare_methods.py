"""All methods beside each other, with 0 and 90 % stragglers.

    python examples/compare_methods.py [--data-dir DIR] [--out FOLDER] [--data synthetic mnist ...]

Logistic regression on Synthetic(1,1), on MNIST over 1,000 clients and on FEMNIST over 200, 10
clients a round, five seeds. Each method has a small grid for its own number; the table shows the
value with the best mean accuracy at the end. Own models are those of Ditto and pFedMe, and after 20
steps of fine-tuning those of the other methods (on MNIST of FedAvg and FedProx alone). Results are
stored as they come, and a call with the same folder goes on where the last one ended.
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import optax

import fedprox as fp

SEEDS, STRAGGLERS, FINE_TUNING = range(5), (0.0, 0.9), 20
PERSONAL = ("ditto", "pfedme")
MANY, TUNED = 500, ("fedavg", "fedprox", *PERSONAL)


HEADER = """| best value | tried | rounds | models | 1,000 steps | accuracy | worst 10 % | own |
|---|---|---|---|---|---|---|---|"""


class Setting(NamedTuple):
    """A data set and how it is trained."""

    federation: fp.Federation
    solver: fp.Solver
    rounds: int
    every: int
    target: float


def setting_of(name: str, data_dir: str | None) -> Setting:
    """The setting of a data set; rates are those of Li et al. 2020 for these data."""
    if name == "synthetic":
        return Setting(
            fp.datasets.synthetic(alpha=1.0, beta=1.0), fp.Solver(0.01, 10, epochs=20), 200, 5, 0.75
        )
    if name == "mnist":
        federation = fp.datasets.mnist("power-law", data_dir=data_dir)
        return Setting(federation, fp.Solver(0.03, 10, epochs=20), 100, 5, 0.85)
    federation = fp.datasets.femnist(data_dir=data_dir)
    return Setting(federation, fp.Solver(0.003, 10, epochs=20), 100, 5, 0.70)


def methods(clients: int) -> list[fp.Algorithm]:
    """The methods, each with its grid, for a number of clients in all."""
    return [
        fp.fedavg(),
        fp.fedprox(mu=[0.0, 0.01, 0.1, 1.0]),
        fp.feddane(mu=[0.1, 1.0]),
        fp.scaffold(),
        fp.feddyn(alpha=[0.01, 0.1, 1.0]),
        fp.fedadmm(rho=[0.01, 0.1, 1.0], server_learning_rate=[10 / clients, 1.0]),
        fp.fedopt(optax.adam, server_learning_rate=[0.001, 0.01, 0.1]),
        fp.fednova(),
        fp.fedexp(),
        fp.mime(beta=[0.0, 0.5, 0.9]),
        fp.mime(beta=[0.0, 0.5, 0.9], lite=True),
        fp.qffl(q=[0.1, 1.0, 2.0]),
        fp.ditto(lam=[0.01, 0.1, 1.0]),
        fp.pfedme(lam=[0.1, 1.0, 10.0], eta=[0.1, 1.0, 10.0]),
    ]


def train(setting: Setting, method: fp.Algorithm, stragglers: float) -> list[dict[str, Any]]:
    """The runs of a method: its values and seeds."""
    tuned = len(setting.federation) < MANY or method.name in TUNED
    runs = fp.simulate(
        setting.federation,
        fp.models.logistic(setting.federation),
        method,
        solver=setting.solver,
        cohort=fp.Cohort(10),
        systems=fp.Systems(stragglers=stragglers),
        rounds=setting.rounds,
        seed=list(SEEDS),
        evaluation=fp.Evaluation(
            every=setting.every,
            gradients=False,
            by_client=True,
            fine_tune=FINE_TUNING if tuned else None,
        ),
    )
    return [summary(run, setting.target) for run in runs]


def summary(run: fp.Run, target: float) -> dict[str, Any]:
    """What the table needs of a run."""
    goal = fp.Target("test_accuracy", target)
    rounds = run.rounds_to(goal)
    reached = next((r for r in run.history if r.test_accuracy >= target), None)
    final = run.final
    return {
        "label": run.label,
        "seed": run.seed,
        "rounds": rounds,
        "models": run.models_to(goal),
        "steps": None if reached is None else reached.total_steps,
        "accuracy": final.test_accuracy,
        "worst": final.client_accuracy_worst,
        "personal": final.personal_accuracy,
    }


def best(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of the value with the best accuracy at the end."""
    measure = "personal" if runs[0]["label"].startswith(PERSONAL) else "accuracy"
    labels = dict.fromkeys(run["label"] for run in runs)
    groups = [[run for run in runs if run["label"] == label] for label in labels]

    def mean(group: Sequence[dict[str, Any]]) -> float:
        accuracy = fmean(run[measure] for run in group)
        return accuracy if math.isfinite(accuracy) else -1.0

    return max(groups, key=mean)


def row(runs: Sequence[dict[str, Any]], count: int) -> str:
    """A row of the table, in Markdown."""

    def percent(key: str) -> str:
        values = [100 * run[key] for run in runs if run[key] is not None]
        return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else "-"

    def cost(key: str, unit: float = 1.0) -> str:
        values = [run[key] / unit for run in runs if run[key] is not None]
        reached = f" ({len(values)} of {len(runs)})" if len(values) < len(runs) else ""
        return f"{fmean(values):.0f}{reached}" if values else "-"

    cells = [runs[0]["label"], str(count), cost("rounds"), cost("models"), cost("steps", 1000)]
    cells += [percent("accuracy"), percent("worst"), percent("personal")]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run what is not stored yet, and print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", type=Path, default=Path("comparison"))
    parser.add_argument("--data", nargs="*", default=["synthetic", "mnist", "femnist"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.data:
        setting = setting_of(name, arguments.data_dir)
        for stragglers in STRAGGLERS:
            print(f"\n{name}, {stragglers:.0%} stragglers, target {setting.target:.0%}\n")
            print(HEADER)
            for number, method in enumerate(methods(len(setting.federation))):
                file = arguments.out / f"{name}-{stragglers:g}-{number}-{method.name}.json"
                if not file.exists():
                    file.write_text(json.dumps(train(setting, method, stragglers)))
                runs = json.loads(file.read_text())
                print(row(best(runs), len(runs) // len(SEEDS)), flush=True)


if __name__ == "__main__":
    main()
