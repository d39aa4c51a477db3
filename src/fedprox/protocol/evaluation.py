"""How often, on which rows and clients, and of which model records are measured."""

from dataclasses import dataclass, replace
from typing import Any

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.reporting import Evaluated, reporting
from fedprox.errors import PositiveInt, check_fields
from fedprox.federation import Federation
from fedprox.parts.part import Part, Setting


@dataclass(frozen=True)
class Evaluation(Part):
    """How the records of a run are measured.

    The same rows and clients are read for all methods, seeds and rounds. The initial and the final
    model are always evaluated.

    Attributes:
        every: Rounds between evaluations, at least 1.
        rows: Training, test and validation rows of each client that an evaluation reads at most,
            chosen at random. Losses and accuracies still weight a client by all of its rows. None
            for all rows.
        clients: Clients that an evaluation reads at most, drawn uniformly without replacement.
            Losses and accuracies are then estimates with standard errors; gradient variance and
            B(w) are those of the drawn clients. None for all clients.
        model: The evaluated model. "server": the model that the server sends out. "cohort": the
            mean of the last round's clients. "clients": the mean of every client's last model.
        gradients: Whether gradient variance, B(w) and gamma are measured. Without them an
            evaluation takes about a third of the time, and no client's model is stored after its
            round.
        fine_tune: Steps that each client takes on its own rows from the server's model, before
            that model is measured on its own test rows; None for no fine-tuning. A client with a
            model of its own, as in Ditto, is measured with that.
        by_client: Whether records have the distribution of the clients' test accuracies,
            `client_accuracy_mean` and others, see `fedprox.Record`.
        client_records: Whether the records that callbacks receive hold the measures of each
            client, see `fedprox.ClientRecord`. A run directory then has `clients.jsonl`.

    Raises:
        InputError: If a number is not a whole number of at least 1, or another value is none of the
            allowed ones.

    Example:
        >>> Evaluation(every=5, clients=1000).rows is None  # all rows of these clients
        True
    """

    every: PositiveInt = 1
    rows: PositiveInt | None = None
    clients: PositiveInt | None = None
    model: Evaluated = "server"
    gradients: bool = True
    fine_tune: PositiveInt | None = None
    by_client: bool = False
    client_records: bool = False

    def __post_init__(self) -> None:
        check_fields("evaluation", self)

    @property
    def program_key(self) -> Any:
        """Programs depend on nothing beside the method that `wrap` returns."""
        return None

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method with the model that is evaluated."""
        del setting
        return reporting(method, self.model)

    def of(self, federation: Federation) -> "Evaluation":
        """The same evaluation, with `clients` set to None if it is not fewer than all clients."""
        sampled = self.clients is not None and self.clients < len(federation)
        return self if sampled else replace(self, clients=None)
