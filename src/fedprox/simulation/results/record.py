"""Records: what is known of a run after an evaluated round."""

import math
from typing import NamedTuple


class Record(NamedTuple):
    """What is known of one run after `round` rounds. The names are those of `metrics.jsonl`.

    Attributes:
        label: Method and those numbers that tell the run from the others of its comparison.
        method: Name of the algorithm.
        hparams: The algorithm's hyperparameters, such as mu, that led to this model; an adaptive mu
            is that of the last round.
        learning_rate: The local solver's; of a schedule that of the last round, and of round 0 for
            the initial model.
        seed: Seed of the run.
        round: Rounds done; 0 is the initial model.
        train_loss: f(w) over the rows that evaluations read; NaN or infinity once diverged.
        test_accuracy: Over all clients' test rows; where evaluations read some of them, a client
            still counts by all it has. NaN without any.
        gradient_variance: E_k ||grad F_k - grad f||^2; NaN where gradients are not measured.
        dissimilarity: B(w); likewise.
        gamma_mean: Mean gamma_k over the clients that trained in this round, and whose updates
            were not faulty; NaN if there are none, and likewise.
        gamma_max: The greatest of them, gamma^t of Corollary 9.
        solves: Local problems worked on in this round.
        unsolved: Of these, those that came to the solver's limit before its gamma; faulty ones not
            counted.
        clients: Clients of this round's cohort.
        stragglers: Of these, those that could not finish.
        dropped: Of these, those that the method dropped.
        client_steps: Mini-batch steps taken in this round.
        total_steps: Mini-batch steps taken in all rounds so far.
        communication: What all rounds so far have sent, in units of a round of FedAvg.
        empty_rounds: Rounds since the record before in which no client took part, so that the model
            stayed as it was.
        faulty: Faulty updates since the record before; None without screening, see
            `fedprox.Faults`.
        faulty_clients: Names of the clients that sent them, in the federation's order; likewise.
        unmeasured: Clients whose own loss or gradient was not finite, whom training loss, gradient
            variance and B(w) leave out; likewise.
        train_loss_se: Standard error of `train_loss` as an estimate from a sample of clients; None
            where evaluations read all.
        test_accuracy_se: That of `test_accuracy`.
        test_loss: Mean loss over all clients' test rows, likewise; NaN without any. With screening,
            the clients that the training loss leaves out are left out here, too.
        metrics: The model's metrics, `train_NAME` over the training rows and `test_NAME` over the
            test rows of the same clients, each of whom counts by all the rows it has; and
            `validation_NAME` where there are validation rows.
        validation_loss: Mean loss over the validation rows: of the clients, as `test_loss`, or of
            the set that belongs to no client. None without any.
        validation_accuracy: Likewise; NaN for a model without accuracy.
    """

    label: str
    method: str
    hparams: dict[str, float]
    learning_rate: float
    seed: int
    round: int
    train_loss: float
    test_accuracy: float
    gradient_variance: float
    dissimilarity: float
    gamma_mean: float
    gamma_max: float
    solves: int
    unsolved: int
    clients: int
    stragglers: int
    dropped: int
    client_steps: int
    total_steps: int
    communication: int
    empty_rounds: int = 0
    faulty: int | None = None
    faulty_clients: list[str] | None = None
    unmeasured: int | None = None
    train_loss_se: float | None = None
    test_accuracy_se: float | None = None
    test_loss: float = math.nan
    metrics: dict[str, float] = {}  # noqa: RUF012 (of a named tuple)
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    def value(self, measure: str) -> float:
        """A measure by its name in `metrics.jsonl`, such as "test_accuracy" or "test_NAME".

        Raises:
            KeyError: The record has no such measure.
        """
        found: float | None = (
            self.metrics[measure] if measure in self.metrics else self._asdict()[measure]
        )
        if found is None:
            raise KeyError(measure)
        return found

    def __repr__(self) -> str:
        return f"Record({self.label!r}, seed {self.seed}, round {self.round}: {figures(self)})"


def figures(record: Record) -> str:
    """Loss and accuracy of a record as text; without accuracy where there is none."""
    loss = f"train loss {record.train_loss:.4g}"
    if math.isnan(record.test_accuracy):
        return loss
    return f"{loss}, test accuracy {percent(record.test_accuracy)}"


def percent(fraction: float) -> str:
    """A fraction as text, in per cent."""
    return f"{100 * fraction:.2f} %"
