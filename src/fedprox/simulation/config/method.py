"""A method of a comparison: an algorithm under a protocol, with its solver and its sweep points."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm, ClientState, HParams, State
from fedprox.algorithms.check import check_algorithm
from fedprox.errors import require
from fedprox.model import Params, check_model
from fedprox.precision import real_type
from fedprox.privacy.accounting import Mechanism, epsilon_of
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.config.sweep import label, noise_words, sweep_points
from fedprox.simulation.devices.mesh import replicate
from fedprox.solver import Solver


@dataclass(frozen=True, eq=False)
class Method:
    """An algorithm under a protocol.

    Attributes:
        protocol: The settings that compared methods share.
        algorithm: The algorithm, from `Protocol.reported`.
    """

    protocol: Protocol
    algorithm: Algorithm

    @cached_property
    def solver(self) -> Solver:
        """The local solver of its clients."""
        return self.algorithm.solver(self.protocol.solver)

    @cached_property
    def points(self) -> list[dict[str, float]]:
        """The hyperparameters of each sweep point."""
        return sweep_points(self.algorithm, self.solver)

    @cached_property
    def labels(self) -> list[str]:
        """The label of each sweep point."""
        return [label(self.algorithm, self.solver, point) for point in self.points]

    @property
    def name(self) -> str:
        """The method's name in progress reports."""
        if len(self.points) == 1:
            return self.labels[0]
        return f"{self.algorithm.name} ({len(self.points)} points together)"

    @property
    def faults(self) -> Faults | None:
        """How faulty updates are treated; None without screening."""
        return self.protocol.screening(self.algorithm)

    @property
    def tests_by_client(self) -> bool:
        """Whether evaluations count test rows client by client."""
        return self.protocol.by_client or self.faults is not None

    @property
    def private(self) -> bool:
        """Whether the clients' messages are clipped and hidden by noise."""
        return self.protocol.privacy is not None

    @property
    def has_own_models(self) -> bool:
        """Whether evaluations measure models that clients have for themselves."""
        tuned = self.protocol.evaluation.fine_tune is not None
        return (tuned or self.algorithm.personal is not None) and not self.algorithm.pooled

    @cached_property
    def mechanism(self) -> Mechanism | None:
        """What a run releases; None without privacy."""
        return self.protocol.mechanism(self.algorithm)

    def epsilon(self, done: int) -> float | None:
        """Epsilon after `done` rounds; None without privacy."""
        return None if self.mechanism is None else epsilon_of(self.mechanism, done)

    def hparams(self, mesh: Mesh) -> HParams:
        """The hyperparameters of all sweep points, arrays (points,)."""
        values: Any = {
            key: np.array([point[key] for point in self.points], real_type())
            for key in self.points[0]
        }
        if self.protocol.privacy is not None:
            words = [noise_words(self.algorithm, self.solver, point) for point in self.points]
            values["noise_words"] = np.stack(words)
        hparams: HParams = replicate(mesh, values)
        return hparams

    def initial_state(self, params: Params, mesh: Mesh) -> State:
        """The server's state before round 0, equal at all sweep points."""
        return replicate(mesh, self._at_points(self.algorithm.init(params)))

    def initial_client_state(self, params: Params) -> ClientState:
        """The state of each client before round 0, equal at all sweep points."""
        initial = self.algorithm.client_state
        return None if initial is None else self._at_points(initial(params))

    def _at_points(self, tree: Any) -> Any:
        """The same arrays at each sweep point, leaves (points, ...)."""
        count, host = len(self.points), jax.tree.map(np.asarray, tree)
        return jax.tree.map(lambda a: np.broadcast_to(a, (count, *a.shape)), host)


def checked_methods(protocol: Protocol, algorithms: Sequence[Algorithm]) -> list[Method]:
    """Check the algorithms, and make them the methods of a comparison.

    Raises:
        InputError: If the model does not fit the federation, an algorithm is invalid or cannot
            follow the protocol, or two methods have the same label.
    """
    check_model(protocol.model, protocol.federation)
    for algorithm in algorithms:
        check_algorithm(algorithm, protocol.model.shapes)
    methods = [Method(protocol, protocol.reported(algorithm)) for algorithm in algorithms]
    for method in methods:
        protocol.check(method.algorithm, method.solver)
    for name, count in Counter(name for method in methods for name in method.labels).items():
        require(
            count == 1,
            f"methods: {name!r} is given {count} times; once is enough, and hyperparameters must "
            "differ in their first six digits, schedules in their names or first rates",
        )
    return methods
