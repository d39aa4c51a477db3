"""All methods beside each other, with 0 and 90 % stragglers, each with its best hyperparameters.

    python examples/compare_methods.py [--data-dir DIR] [--out FOLDER] [--data synthetic mnist ...]

A study of logistic regression on Synthetic(1,1), on MNIST over 1,000 clients and on FEMNIST over
200, 10 clients a round, five seeds. Each method tries three values of its own number, or three
learning rates, and the one with the best accuracy on validation rows is trained with the seeds.
Own models are those of Ditto and pFedMe, and after 20 steps of fine-tuning those of the other
methods. A call with the same folder goes on where the last one ended.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import optax

import fedprox as fp

MEASURES = ("test_accuracy", "client_accuracy_worst", "personal_accuracy")


class Setting(NamedTuple):
    """A data set and how it is trained; rates are those of Li et al. 2020 for these data."""

    federation: fp.Federation
    rate: float
    rounds: int
    target: float


def setting_of(name: str, data_dir: str | None) -> Setting:
    """The setting of a data set, with a fifth of the training rows for validation."""
    if name == "synthetic":
        federation, *others = fp.datasets.synthetic(alpha=1.0, beta=1.0), 0.01, 200, 0.75
    elif name == "mnist":
        federation, *others = fp.datasets.mnist("power-law", data_dir=data_dir), 0.03, 100, 0.85
    else:
        federation, *others = fp.datasets.femnist(data_dir=data_dir), 0.003, 100, 0.70
    return Setting(federation.hold_out(0.2), *others)


def methods(rate: float) -> dict[str, fp.Algorithm]:
    """The methods, each with three combinations to try, around a learning rate."""
    rates = [rate / 3, rate, 3 * rate]
    return {
        "FedAvg": fp.fedavg().with_solver(learning_rate=rates),
        "FedProx": fp.fedprox(mu=[0.01, 0.1, 1.0]),
        "FedDANE": fp.feddane(mu=[0.01, 0.1, 1.0]),
        "SCAFFOLD": fp.scaffold().with_solver(learning_rate=rates),
        "FedDyn": fp.feddyn(alpha=[0.01, 0.1, 1.0]),
        "FedADMM": fp.fedadmm(rho=[0.01, 0.1, 1.0]),
        "FedAdam": fp.fedopt(optax.adam, server_learning_rate=[0.001, 0.01, 0.1]),
        "FedNova": fp.fednova().with_solver(learning_rate=rates),
        "FedExP": fp.fedexp().with_solver(learning_rate=rates),
        "Mime": fp.mime(beta=[0.0, 0.5, 0.9]),
        "MimeLite": fp.mime(beta=[0.0, 0.5, 0.9], lite=True),
        "q-FedAvg": fp.qffl(q=[0.1, 1.0, 2.0]),
        "Ditto": fp.ditto(lam=0.1).with_solver(learning_rate=rates),
        "pFedMe": fp.pfedme(lam=0.1, eta=[0.1, 1.0, 10.0]),
    }


def main() -> None:
    """Run what is not stored yet, and print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--out", type=Path, default=Path("comparison"))
    parser.add_argument("--data", nargs="*", default=["synthetic", "mnist", "femnist"])
    arguments = parser.parse_args()
    for name in arguments.data:
        setting = setting_of(name, arguments.data_dir)
        study = fp.study(
            methods(setting.rate),
            data={name: setting.federation},
            vary={"stragglers": {"0 %": fp.Systems(0.0), "90 %": fp.Systems(0.9)}},
            tuning=fp.Tuning(seeds=[100]),
            model=fp.models.logistic,
            solver=fp.Solver(setting.rate, 10, epochs=20),
            cohort=fp.Cohort(10),
            rounds=setting.rounds,
            evaluation=fp.Evaluation(every=5, gradients=False, by_client=True, fine_tune=20),
            out=arguments.out / name,
        )
        for measure in (*MEASURES, fp.Target("test_accuracy", setting.target)):
            print(f"\n{study.table(measure=measure)}")
        print("\n".join(study.conclusions()), flush=True)


if __name__ == "__main__":
    main()
