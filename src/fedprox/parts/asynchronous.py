"""Asynchronous rounds: the server steps whenever some updates are in, and waits for nobody."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.asynchronous import asynchronous
from fedprox.algorithms.base import Algorithm
from fedprox.errors import require, require_number, require_one_of, require_whole
from fedprox.parts.part import Columns, Part, Reduction, Setting

Staleness = Literal["constant", "polynomial", "hinge"]
"""How the weight of an update falls with its staleness."""

Adds = Literal["updates", "models"]
"""What the server adds to its model."""


@dataclass(frozen=True)
class Asynchronous(Part):
    r"""Rounds without barrier: M clients are at work at any time, the server steps at B updates.

    M is `Cohort.clients_per_round`. A client that has sent its update is replaced at once by
    another, drawn uniformly from those that are neither at work nor in the buffer; it starts from
    the server's current model. An update whose client started :math:`\tau` steps of the server ago
    has the weight :math:`s(\tau)` of a fresh one:

    .. math:: w^{t+1} = w^t + \sum_{k \in \text{buffer}} p_k \, s(\tau_k) (w_k - w^{t - \tau_k}),

    with :math:`p_k` as in a round of these B clients. A round is a step of the server: `rounds`,
    records and schedules count them, and a client uses the learning rate of the step from which it
    started. In a simulation, the devices of a :class:`fedprox.Population` order the events; in a
    deployment without one, its nodes do. With screening, a faulty update counts as zero, and the
    others keep their weights.

    Attributes:
        buffer: B, the updates of a step, at most M. With 1 and ``adds="models"`` this is FedAsync.
        staleness: s: "constant" is 1; "polynomial" is :math:`(1 + \tau)^{-a}`; "hinge" is 1 up to
            :math:`\tau = b`, and :math:`1 / (1 + a (\tau - b))` beyond it.
        a: How fast s falls, above 0.
        b: The last staleness whose weight "hinge" leaves as it is.
        most_staleness: Staleness beyond which an update is left out. The server keeps its last
            `most_staleness` states in memory.
        adds: "updates" adds what clients changed, as FedBuff does; "models" moves towards the
            clients' models, :math:`w_k - w^t`, as FedAsync does.

    Raises:
        InputError: If a setting is unknown or out of range.

    Example:
        >>> Asynchronous(buffer=10).factor(np.array([0, 3])).tolist()
        [1.0, 0.5]

    References:
        Nguyen et al., `Federated Learning with Buffered Asynchronous Aggregation
        <https://arxiv.org/abs/2106.06639>`_, AISTATS 2022, Algorithm 1; Xie et al., `Asynchronous
        Federated Optimization <https://arxiv.org/abs/1903.03934>`_, 2019, Algorithm 1 and section
        5.2.
    """

    buffer: int
    staleness: Staleness = "polynomial"
    a: float = 0.5
    b: int = 4
    most_staleness: int = 20
    adds: Adds = "updates"

    def __post_init__(self) -> None:
        require_whole("asynchronous.buffer", self.buffer)
        require_one_of("asynchronous.staleness", self.staleness, get_args(Staleness))
        require_number("asynchronous.a", self.a, positive=True)
        require_whole("asynchronous.b", self.b, least=0)
        require_whole("asynchronous.most_staleness", self.most_staleness, least=0, most=10_000)
        require_one_of("asynchronous.adds", self.adds, get_args(Adds))

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise `InputError` if a step needs more updates than there are clients at work."""
        del sizes
        require(
            self.buffer <= setting.per_round,
            f"asynchronous.buffer = {self.buffer}; it must be at most the clients at work, "
            f"cohort.clients_per_round = {setting.per_round}",
        )

    def factor(self, staleness: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of updates, relative to fresh ones."""
        late = staleness.astype(np.float64)
        if self.staleness == "polynomial":
            return (1.0 + late) ** -self.a
        if self.staleness == "hinge":
            return 1.0 / (1.0 + self.a * np.maximum(late - self.b, 0.0))
        return np.ones_like(late)

    several_starts = True
    """The clients of a step started from different models."""

    always_updates = True
    """A server with a buffer has some messages."""

    def columns(self, clients: NDArray[Any], count: int) -> Columns:
        """Steps of the server since the clients started, and their rates relative to the round's.

        These are those of clients that start with the round; the order of events sets others.
        """
        del count
        return {"age": np.zeros(len(clients), np.int64), "rate": np.ones(len(clients))}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """Each client knows when it started, and its rate."""
        del key
        return {name: numbers[name] for name in ("age", "rate")}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method whose clients start from models of the past, which nodes are sent."""
        if setting.sent != "arrives":
            return method
        return asynchronous(method, self.most_staleness, models=self.adds == "models")

    def reduce(self, reduction: Reduction) -> Reduction:
        """The other updates of a buffer keep their weights."""
        return reduction._replace(fixed=True)

    def measures(self, columns: Columns) -> Mapping[str, float]:
        """The mean staleness of a round's updates."""
        late = columns.get("age", np.zeros(0))
        return {"staleness": float(late.mean()) if len(late) else 0.0}

    def models_a_round(self, per_round: int) -> float:
        """A step has the updates of a buffer."""
        return self.buffer / per_round
