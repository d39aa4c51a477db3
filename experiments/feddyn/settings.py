"""Acar et al. 2021: what its tables and figures share.

The tables count models sent until a test accuracy, or for Table 6 a training loss, is reached. The
settings are those of appendices A.1 and A.2. Settings that the paper omits are those of the
authors' code, see `AS_IN_THE_CODE`; with partial participation, clients participate independently
of each other.
"""

from experiments.common import FEDDYN_PAPER
from experiments.engine.item import Entry, Table
from fedprox.results.target import Target

PAPER = FEDDYN_PAPER
COLUMNS = ("FedDyn", "SCAFFOLD", "FedAvg", "FedProx")
NAMES = ("feddyn", "scaffold", "fedavg", "fedprox")

Printed = tuple[float, int | str, int | str, int | str, int | str]
"""A line of a table: the accuracy in per cent, or the loss, and the models that each method sent,
in the order of `COLUMNS`."""

SPLITS: dict[str, tuple[str, Table]] = {
    "iid": ("IID", {"partition": "iid"}),
    "dirichlet-0.6": ("Dirichlet (.6)", {"partition": "dirichlet", "concentration": 0.6}),
    "dirichlet-0.3": ("Dirichlet (.3)", {"partition": "dirichlet", "concentration": 0.3}),
}
"""Partitions of the data over clients: a title, and the data set's options."""


def all_methods(feddyn: Table, scaffold: Table, fedprox: Table) -> list[Table]:
    """`[[method]]` for all four methods, with the keys of each; FedAvg has none."""
    keys: tuple[Table, ...] = (feddyn, scaffold, {}, fedprox)
    return [{"name": name, **table} for name, table in zip(NAMES, keys, strict=True)]


MEAN_OF_CLIENTS: Table = {"model": "clients", "gradients": False}
"""The model that the paper evaluates, as `[evaluation]` names it."""


def share(percent: float) -> float:
    """A printed accuracy as a fraction, rounded to the nearest float of the decimal.

    >>> 94.9 / 100, share(94.9)
    (0.9490000000000001, 0.949)
    """
    return round(percent / 100, 6)


def accuracy(percent: float) -> Target:
    """The target of a printed accuracy."""
    return Target("test_accuracy", share(percent))


def entries(run: str, line: Printed) -> tuple[Entry, ...]:
    """The cells of a line of a table."""
    return tuple(Entry(run, *cell) for cell in zip(NAMES, line[1:], strict=True))


FEDPROX_EPOCHS = "The paper names no number of epochs for FedProx; it has FedAvg's."
EMPTY_ROUNDS = (
    "The paper's counts most likely include the rounds in which nobody takes part, 37 % of all at "
    "1 % of 100 clients, and ours do not: divided by 0.634 those to the lower targets of MNIST and "
    "EMNIST-L come within about 20 % of the paper's."
)
AS_IN_THE_CODE = (
    "What the paper does not say is as in the authors' code: gradients are clipped at norm 10 (the "
    "paper names a clip for Shakespeare, not its norm), and models begin as torch's do. FedProx is "
    "whole here; the code most likely left (mu / 2) ||w||^2 out when the tables were made (Table 6 "
    "has both)."
)
EVALUATED = (
    "What is evaluated is the mean of all clients' last models, the initial one for a client that "
    "has not taken part yet. Below full participation each client takes part with a probability of "
    "its own, and an empty round is drawn anew, as in the authors' code: at 1 % of 100 clients 1.6 "
    "take part on average. The paper counts whole rounds; ours are interpolated, which is half a "
    "round less on average."
)
