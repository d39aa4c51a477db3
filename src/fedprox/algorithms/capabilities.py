"""The needs and properties of methods, as named predicates.

These predicates alone decide what goes with a method: for methods that take another one, and for
`fedprox.parts.compatible` for settings.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedprox.algorithms.base import Algorithm, add, difference, same_params
from fedprox.errors import require


class Capability(NamedTuple):
    """Something that methods need or do.

    Attributes:
        words: The clause by which messages describe a method that has it.
        of: Whether a method has it.
        own_words: The method's own clause in place of `words`; None to use `words`.
    """

    words: str
    of: Callable[[Algorithm], bool]
    own_words: Callable[[Algorithm], str] | None = None

    def says(self, method: Algorithm) -> str:
        """The clause by which a message describes a method."""
        return self.words if self.own_words is None else self.own_words(method)


POOLED = Capability("it has all rows in one place", lambda m: m.pooled)
EVERYONE = Capability("it needs every client in every round", lambda m: m.everyone)
DROPS = Capability("it drops stragglers", lambda m: m.stragglers == "drop")
SEVERAL_STARTS = Capability("it begins with several random models", lambda m: m.server.starts > 1)

EXCHANGES = Capability("its clients send gradients first", lambda m: m.first.exchange is not None)
GRADIENT = Capability(
    "its clients compute a gradient over all of their rows", lambda m: m.first.gradient
)
LOSS = Capability("its clients compute a loss over all of their rows", lambda m: m.first.loss)
LABELS = Capability("its clients count the labels of their rows", lambda m: m.first.labels)
PROBES = Capability("its clients measure several models", lambda m: m.first.probe is not None)

OBJECTIVE = Capability(
    "its clients have an objective in place of F_k", lambda m: m.client.objective is not None
)
WHOLE_BATCHES = Capability(
    "its objective needs whole mini-batches", lambda m: m.client.whole_batches
)
REMEMBERS = Capability(
    "its clients remember something from step to step", lambda m: m.client.memory is not None
)
ADAPTS = Capability("its mu follows the training loss", lambda m: m.adapt is not None)
EVALUATES = Capability(
    "it evaluates another model than it sends", lambda m: m.server.evaluated is not None
)

OWN_STATE = ("own", "own layers")
"""The values of `Algorithm.model_state` with which each client has a state of its own."""

KEEPS_STATE = Capability(
    "its clients keep a state",
    lambda m: m.client.state is not None or m.model_state in OWN_STATE,
)
MESSAGE_STATE = Capability(
    "its clients keep a state that belongs to what they sent",
    lambda m: (
        m.client.state is not None
        and m.client.message is not difference
        and m.personal is None
        and not m.client.keeps_sent
    ),
)
OWN_MODELS = Capability(
    "its clients have models of their own",
    lambda m: m.personal is not None or m.model_state in OWN_STATE,
)
SECOND_PROBLEM = Capability(
    "its clients train a second model on the same rows",
    lambda m: m.personal is not None and m.personal.subproblem is not None,
)
OWN_PARTS = Capability(
    "its clients keep some parameters to themselves", lambda m: bool(m.own_parts)
)

OTHER_MESSAGE = Capability(
    "its clients do not send w_k - w^t alone", lambda m: m.client.message is not difference
)
OTHER_UPDATE = Capability(
    "its server does not take the mean of the clients' models", lambda m: m.server.update is not add
)
SERVER_STATE = Capability(
    "its server keeps more than the model", lambda m: m.server.init is not same_params
)
NOT_PRIVATE = Capability(
    "clipping its messages as a whole and adding noise does not fit it",
    lambda m: bool(m.not_private),
    lambda m: m.not_private,
)


def require_none(name: str, method: Algorithm, refused: Sequence[Capability], instead: str) -> None:
    """Raise `InputError` if a method that another one takes has one of some capabilities."""
    for each in refused:
        line = f"{name}: {method.name} does not fit: {each.says(method)}; {instead}"
        require(not each.of(method), line)
