"""Records: the measures of a run after an evaluated round."""

import math
from typing import Any, NamedTuple

from fedprox.errors import InputError, choices
from fedprox.simulation.results.clients import ClientRecord


class Record(NamedTuple):
    """The measures of one run after `round` rounds, under their names in `metrics.jsonl`.

    Attributes:
        label: The method, and the hyperparameters in which the run differs from the others of its
            comparison.
        method: Name of the algorithm.
        hparams: The algorithm's hyperparameters, such as mu. An adaptive mu has its value in the
            last round.
        learning_rate: Learning rate of the local solver. A schedule has its value in the last
            round, or in round 0 for the initial model.
        seed: Seed of the run.
        round: Number of rounds done; 0 is the initial model.
        train_loss: f(w) over the training rows that evaluations read; NaN or infinity once the run
            has diverged, and NaN if it was not measured, see `measured`.
        test_accuracy: Accuracy over the test rows that evaluations read, each client weighted by
            all of its test rows; NaN without test rows.
        gradient_variance: E_k ||grad F_k - grad f||^2; NaN if gradients are not measured.
        dissimilarity: B(w); NaN if gradients are not measured.
        gamma_mean: Mean gamma_k over the clients that trained in the last round and whose updates
            were not faulty; NaN without such clients, or if gradients are not measured.
        gamma_max: The maximum of these gamma_k, gamma^t of Corollary 9.
        solves: Number of local problems in the last round.
        unsolved: How many of these reached the solver's limit of steps before its gamma, without
            faulty updates.
        clients: Number of clients in the last round's cohort.
        stragglers: How many of these could not finish.
        dropped: How many of these the method dropped.
        client_steps: Mini-batch steps taken in the last round.
        total_steps: Mini-batch steps taken in all rounds so far.
        communication: Communication of all rounds so far, in units of one round of FedAvg.
        time: Seconds from the begin of the run to the end of the round, by the clients' devices;
            None without a `fedprox.Population`.
        staleness: Mean staleness of the last round's updates, see `fedprox.Asynchronous`; None in
            rounds with a barrier.
        empty_rounds: Rounds since the previous record in which no client took part, so that the
            model did not change.
        faulty: Number of faulty updates since the previous record; None without screening, see
            `fedprox.Faults`.
        faulty_clients: Names of the clients that sent them, in the federation's order; None without
            screening.
        unmeasured: Number of clients whose loss or gradient was not finite. Training loss, gradient
            variance and B(w) leave these clients out. None without screening.
        train_loss_se: Standard error of `train_loss` as an estimate from a sample of clients; None
            if evaluations read all clients.
        test_accuracy_se: Standard error of `test_accuracy`; None if evaluations read all clients.
        test_loss: Mean loss over the test rows that evaluations read, each client weighted by all
            of its test rows; NaN without test rows. With screening, the unmeasured clients are left
            out.
        metrics: The model's metrics: `train_NAME` over training rows, `test_NAME` over test rows
            and, if there are any, `validation_NAME` over validation rows. Each client is weighted
            by all of its rows.
        validation_loss: Mean loss over the validation rows of the clients, or of the validation set
            that belongs to no client; None without validation rows.
        validation_accuracy: Accuracy over the validation rows; NaN for a model without accuracy,
            None without validation rows.
        seconds: Seconds of the rounds and evaluations since the previous record, in a deployment;
            None in a simulation.
        bytes_down: Bytes that nodes received in this time; None in a simulation.
        bytes_up: Bytes that nodes sent in this time; None in a simulation.
        nodes: Number of nodes that answered in this time; None in a simulation.
        network: The clients that took part since the previous record, by name: their node and,
            summed over their rounds, "rounds", "steps", "seconds", "bytes_down" and "bytes_up". A
            node's bytes are divided equally among its clients of a round. None in a simulation.
        measured: Whether nodes reported losses of this model; None in a simulation. They may keep
            their measures to themselves, or not have answered.
        bits_up: Bits of all messages of clients so far, see `fedprox.Compression`; None without it.
        epsilon: Epsilon of the (epsilon, delta)-differential privacy after these rounds,
            see `fedprox.Privacy`; None without privacy.
        delta: Its delta; None without privacy.
        personal_clients: Clients with a model of their own, among those with test rows; None if
            clients have none, as in the next five.
        personal_loss: Mean loss of these models, each on its client's test rows.
        personal_accuracy: Their accuracy.
        personal_accuracy_worst: Mean of their clients' accuracies over the worst tenth of them.
        newcomer_loss: Mean loss over the test rows of all other clients, which have not taken part
            yet and have the server's model, fine-tuned if `Evaluation.fine_tune` is set. NaN if
            there are none.
        newcomer_accuracy: The accuracy of these.
        client_accuracy_mean: Mean of the clients' test accuracies, over the clients with test rows,
            each of which counts once. None without `Evaluation(by_client=True)`.
        client_accuracy_std: Their standard deviation; None likewise.
        client_accuracy_worst: Mean accuracy of the worst tenth of these clients; None likewise. A
            tenth of N clients are N / 10, rounded up, see `fedprox.fairness`.
        client_accuracy_best: Mean accuracy of the best tenth of these clients; None likewise.
        by_client: The measures of each client, in records that callbacks receive while a run
            with `Evaluation(client_records=True)` trains. None in `Run.history`, which would keep
            those of all rounds in memory, and in records that come from a checkpoint.
        by_client_checksum: SHA-256 of `by_client` as `clients.jsonl` has it, by which a run that
            resumes checks the lines that it keeps; None without client records.
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
    communication: int | float
    time: float | None = None
    staleness: float | None = None
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
    seconds: float | None = None
    bytes_down: int | None = None
    bytes_up: int | None = None
    nodes: int | None = None
    network: dict[str, dict[str, Any]] | None = None
    measured: bool | None = None
    bits_up: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    personal_clients: int | None = None
    personal_loss: float | None = None
    personal_accuracy: float | None = None
    personal_accuracy_worst: float | None = None
    newcomer_loss: float | None = None
    newcomer_accuracy: float | None = None
    client_accuracy_mean: float | None = None
    client_accuracy_std: float | None = None
    client_accuracy_worst: float | None = None
    client_accuracy_best: float | None = None
    by_client: ClientRecord | None = None
    by_client_checksum: str | None = None

    @property
    def diverged(self) -> bool:
        """Whether the training loss was measured and is not finite."""
        return self.measured is not False and not math.isfinite(self.train_loss)

    def value(self, measure: str) -> float:
        """A measure by its name in `metrics.jsonl`, such as "test_accuracy" or "test_NAME".

        Raises:
            InputError: If the record has no such measure.
        """
        known = {**self._asdict(), **self.metrics}
        known = {name: value for name, value in known.items() if isinstance(value, int | float)}
        if measure not in known:
            raise InputError(f"record: no measure {measure!r}; {choices(measure, known)}")
        value: float = known[measure]
        return value

    def __repr__(self) -> str:
        return f"Record({self.label!r}, seed {self.seed}, round {self.round}: {figures(self)})"


def figures(record: Record) -> str:
    """Loss and accuracy of a record as text, without an accuracy that is NaN."""
    loss = f"train loss {record.train_loss:.4g}"
    if record.measured is False:
        loss = "no losses measured"
    if math.isnan(record.test_accuracy):
        return loss
    return f"{loss}, test accuracy {percent(record.test_accuracy)}"


def percent(fraction: float) -> str:
    """A fraction as text, in per cent."""
    return f"{100 * fraction:.2f} %"
