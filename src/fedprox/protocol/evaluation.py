"""How often, on which rows and clients, and of which model records are measured."""

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.reporting import Evaluated, reporting
from fedprox.errors import require, require_one_of, require_whole, shown
from fedprox.federation import Federation
from fedprox.parts.part import Part, Setting


@dataclass(frozen=True)
class Evaluation(Part):
    """How the records of a run are measured.

    The same rows and clients are read for all methods, seeds and rounds. The initial and the final
    model are always evaluated.

    Args:
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

    every: int = 1
    rows: int | None = None
    clients: int | None = None
    model: Evaluated = "server"
    gradients: bool = True
    fine_tune: int | None = None
    by_client: bool = False
    client_records: bool = False

    def __post_init__(self) -> None:
        for name in ("every", "rows", "clients", "fine_tune"):
            value = getattr(self, name)
            if value is not None or name == "every":
                require_whole(f"evaluation.{name}", value)
                object.__setattr__(self, name, int(value))  # no NumPy integers in JSON files
        require_one_of("evaluation.model", self.model, get_args(Evaluated))
        for name in ("gradients", "by_client", "client_records"):
            value = getattr(self, name)
            require(
                isinstance(value, bool | np.bool_),
                f"evaluation.{name} = {shown(value)}; it must be True or False",
            )
            object.__setattr__(self, name, bool(value))

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
