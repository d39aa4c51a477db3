"""Central accuracies: the settings of Acar et al. 2021, appendix A.2."""

import pytest

from experiments.engine.item import SCALES, expand
from experiments.models import ITEMS
from fedprox.experiment import parse
from fedprox.experiment.resolved import solver_of
from fedprox.solver import Solver

ITEM = {
    "central-2nn": "centralised",
    "central-emnist-l": "centralised",
    "central-cifar-cnn": "centralised-cifar-10",
    "central-feddyn-cnn": "centralised-cifar-10",
    "central-feddyn-cnn-100": "centralised-cifar-100",
    "central-char-lstm-iid": "centralised-shakespeare",
    "central-char-lstm": "centralised-shakespeare",
}


def solver_and_epochs(run: str) -> tuple[Solver, int]:
    (one,) = expand(ITEMS[ITEM[run]].runs[run], SCALES["paper"]).values()
    experiment = parse(run, one)
    solver, _ = solver_of(experiment.solver)
    # all clients take part with one epoch, so a round of central SGD is an epoch of all rows
    assert solver.epochs == 1
    assert experiment.cohort.clients_per_round == experiment.data["clients"]
    return solver, experiment.rounds


@pytest.mark.parametrize(
    ("run", "rate", "batch"),
    [
        ("central-2nn", 0.1, 50),
        ("central-emnist-l", 0.1, 50),
        ("central-char-lstm-iid", 1.0, 100),
        ("central-char-lstm", 1.0, 100),
    ],
)
def test_150_epochs_with_a_rate_halved_every_50(run: str, rate: float, batch: int) -> None:
    solver, epochs = solver_and_epochs(run)
    assert epochs == 150
    assert solver.batch_size == batch
    assert solver.weight_decay == 1e-4
    rates = [solver.rates[0] * solver.factor(t) for t in (0, 1, 49, 50, 99, 100, 149)]
    halves = [1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert rates == pytest.approx([rate * half for half in halves], rel=1e-6)


@pytest.mark.parametrize("run", ["central-feddyn-cnn", "central-feddyn-cnn-100"])
def test_500_epochs_with_a_decay_of_0992(run: str) -> None:
    solver, epochs = solver_and_epochs(run)
    assert epochs == 500
    assert solver.batch_size == 50
    assert solver.weight_decay == 1e-3
    rates = [solver.rates[0] * solver.factor(t) for t in (0, 1, 499)]
    assert rates == pytest.approx([0.1, 0.0992, 0.1 * 0.992**499])


def test_fedavgs_sgd_takes_197500_steps() -> None:
    """McMahan et al. 2017, section 3: mini-batches of 100 of 50,000 images."""
    solver, epochs = solver_and_epochs("central-cifar-cnn")
    assert solver.batch_size == 100
    assert epochs * 50_000 // 100 == 197_500


def test_each_central_accuracy_stands_in_a_table() -> None:
    printed = " ".join(score.paper for item in ITEMS.values() for score in item.scores)
    for number in ("98.4", "95.0", "85.2", "55.3", "50.8", "51.2", "86"):
        assert f"{number} %" in printed
