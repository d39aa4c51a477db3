"""A run after some of its rounds, in the hands of a user who owns the loop."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import State
from fedprox.engine.compiled.compile import evaluated
from fedprox.errors import InputError, require, require_number
from fedprox.loop.execution import Done, RunState
from fedprox.loop.snapshot import Snapshot
from fedprox.model import Params
from fedprox.protocol.method import Method
from fedprox.results.record import Record
from fedprox.results.run import Run

ClientArrays = list[tuple[str, NDArray[Any]]]


class Loop(Protocol):
    """The loop that stands at a stage."""

    def set_rate(self, rate: float) -> None:
        """Give the rounds that follow another learning rate."""

    def client_state(self) -> ClientArrays:
        """A copy of the client state."""


class Stage:
    """A run after some of its rounds, as :func:`fedprox.rounds` yields it.

    Args:
        method: The method.
        run: The run.
        now: Its state; the arrays belong to this stage.
        done: What its rounds did since the record before.
        loop: The loop.

    Attributes:
        run: The run with its records so far. Its parameters are set when the loop ends or is left.
        record: The record of this round.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> for stage in fp.rounds(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.1, batch_size=10, steps=5),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=10,
        ... ):
        ...     if stage.record.round == 3:
        ...         break
        >>> sorted(stage.clients.values()), len(stage.run.history)
        ([5, 5], 4)
    """

    run: Run
    record: Record

    def __init__(self, method: Method, run: Run, now: RunState, done: Done, loop: Loop) -> None:
        self.run, self.record = run, run.final
        self._method, self._now, self._done = method, now, done
        self._loop: Loop | None = loop
        self._run = replace(run, history=list(run.history))
        self._clients: ClientArrays | None = None
        self._rate = self.record.learning_rate

    def __repr__(self) -> str:
        return f"Stage({self.record!r})"

    @cached_property
    def params(self) -> Params:
        """The model's parameters, as NumPy arrays."""
        whole = evaluated(self._method.algorithm, self._now.state)
        return jax.tree.map(lambda a: np.asarray(a[0]), whole)

    @property
    def state(self) -> State:
        """The server's state, such as SCAFFOLD's model and control variate."""
        return jax.tree.map(lambda a: a[0], self._now.state)

    @property
    def clients(self) -> Mapping[str, int]:
        """Mini-batch steps of each client that trained in the last round, by its name."""
        names, jobs = self._method.protocol.federation.names, self._done.work.jobs
        taken = self._done.taken
        steps = jobs.steps if taken is None else np.asarray(taken)[: len(jobs.steps), 0]
        counts = dict[str, int]()
        for k, count in zip(jobs.client.tolist(), steps.tolist(), strict=True):
            counts[names[k]] = counts.get(names[k], 0) + count
        return counts

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last round; set it for the rounds that follow.

        Raises:
            InputError: If it is set to a number that is not above 0, after the loop went on or was
                left, for a solver with a schedule or a decay, or in asynchronous rounds.
        """
        return self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        solver, loop = self._method.solver, self._loop
        require_number("learning_rate", rate, positive=True, single=True)
        if loop is None:
            line = f"learning_rate: the loop has left round {self.record.round}"
            raise InputError(f"{line}; set it on the last stage, while the loop is there")
        require(
            solver.schedule is None and solver.learning_rate_decay == 1,
            "learning_rate: solver.learning_rate is a function, or decays; give one number",
        )
        require(
            not self._method.several_starts,
            "learning_rate: without a barrier, clients of several rounds train at once; it must "
            "stay as it is",
        )
        loop.set_rate(float(rate))
        self._rate = float(rate)

    def leave(self, clients: ClientArrays | None) -> None:
        """Note that the loop goes on, or ends with this client state."""
        self._loop, self._clients = None, clients

    def snapshot(self) -> Snapshot:
        """What rounds can begin from.

        Raises:
            InputError: If the loop went on, and the method has client state.
        """
        clients = self._clients if self._loop is None else self._loop.client_state()
        require(
            clients is not None or self._method.algorithm.client.state is None,
            f"start: the loop went on after round {self.record.round}, and the clients' state with "
            "it; give the last stage, or use checkpoints",
        )
        # NumPy's arrays, since rounds reuse the memory of the state
        state = jax.tree.map(np.array, self._now.state)
        run = replace(self._run, history=list(self._run.history))
        return Snapshot([run], self._now._replace(state=state), client_state=clients)
