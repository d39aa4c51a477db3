"""The evaluation of clients' own models: those that they keep, and those after fine-tuning."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import ClientContext, HParams, Own, own_or
from fedprox.algorithms.personal import fine_tuning
from fedprox.devices.mesh import accept_host_arrays, replicate, shard
from fedprox.devices.programs import ProgramSpec, compiled
from fedprox.engine.compiled.compile import known, plan_call
from fedprox.engine.compiled.evaluation import TOGETHER, client_sums
from fedprox.engine.compiled.layout import bucket, lay_out, needed
from fedprox.engine.compiled.node_part import part_program
from fedprox.engine.compiled.round import Server
from fedprox.engine.planning.jobs import jobs_of
from fedprox.engine.planning.round_work import RoundWork
from fedprox.engine.storage.client_store import Store
from fedprox.engine.storage.training_data import DeviceData, TrainingRows, rows_spec
from fedprox.model import Params
from fedprox.precision import real_type
from fedprox.protocol.method import Method

BLOCK = 64
"""Clients whose models are measured together."""


class OwnMeasures(NamedTuple):
    """The measures of clients' own models on their own test rows.

    Attributes:
        loss: Mean test loss of each client, (clients, points).
        correct: Number of correct test labels of each client, (clients, points).
        labels: Number of test labels of each client, (clients,).
        rows: Number of test rows of each client, (clients,).
        trained: Whether each client has a model of its own, (clients, points); the others are
            measured with the global model.
    """

    loss: NDArray[np.float64]
    correct: NDArray[np.float64]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]
    trained: NDArray[np.bool_]


class OwnModels:
    """Measures the own models of all clients that an evaluation reads, and that have test rows."""

    def __init__(self, method: Method, mesh: Mesh, data: DeviceData, params: Params) -> None:
        self.method, self.mesh = method, mesh
        protocol = method.protocol
        self.test = protocol.measured.test
        sampled = protocol.evaluation.clients
        count = len(protocol.federation)
        chosen = np.arange(count) if sampled is None else protocol.federation.drawn(sampled)
        self.at = {int(k): i for i, k in enumerate(chosen) if self.test.sizes[i]}
        steps = protocol.evaluation.fine_tune
        self.tuning = None if steps is None else FineTuning(method, mesh, data, params, steps)

    def measure(
        self, state: Any, hparams: HParams, store: Store | None, seed: int, done: int
    ) -> OwnMeasures:
        """Measure the clients' own models."""
        model, points = self.method.protocol.model, len(self.method.points)
        params = jax.vmap(self.method.algorithm.server.params)(state)
        clients, shape = len(self.test.sizes), (len(self.test.sizes), points)
        loss, correct = np.full(shape, np.nan), np.zeros(shape)
        trained = np.zeros(shape, bool)
        for block in self._blocks():
            at, own = self._models(block, state, params, hparams, store, seed, done)
            rows = np.array([self.at[k] if k >= 0 else -1 for k in at.tolist()])
            here = rows >= 0
            sums = client_sums(model, own.model, self.test, rows, own=True)
            summed, met = (each[here] for each in sums)
            loss[rows[here]] = summed / self.test.sizes[rows[here], None]
            correct[rows[here]] = met
            trained[rows[here]] = np.asarray(own.trained)[here]
        labels = self.test.labels if model.correct is not None else np.zeros(clients, np.int64)
        return OwnMeasures(loss, correct, labels, self.test.sizes, trained)

    def _blocks(self) -> Iterator[NDArray[np.int64]]:
        """The clients in blocks of similar sizes."""
        clients = np.array(sorted(self.at, key=lambda k: (-self.test.sizes[self.at[k]], k)))
        first = 0
        while first < len(clients):
            most = bucket(int(self.test.sizes[self.at[int(clients[first])]]))
            count = max(1, min(BLOCK, TOGETHER // most))
            yield clients[first : first + count]
            first += count

    def _models(
        self,
        block: NDArray[np.int64],
        state: Any,
        params: Params,
        hparams: HParams,
        store: Store | None,
        seed: int,
        done: int,
    ) -> tuple[NDArray[np.int64], Own]:
        """The client at each place, -1 for none, and its own model."""
        algorithm, points = self.method.algorithm, len(self.method.points)

        def first(at: NDArray[np.int64]) -> Params:
            """The server's model, or that of the client at each place, (places, points, ...)."""
            if algorithm.first.probe is not None:
                return self._received(at, state)
            return jax.tree.map(lambda a: np.broadcast_to(a, (len(at), *a.shape)), params)

        if self.tuning is None:
            places = bucket(-(-len(block) // self.mesh.devices.size)) * self.mesh.devices.size
            at = np.full(places, -1)
            at[: len(block)] = block
            tuned = params if algorithm.first.probe is None else first(at)
        else:
            at, tuned = self.tuning(block, params, first, hparams, seed, done)
        personal = algorithm.personal
        if personal is None or store is None:
            return at, Own(tuned, jax.numpy.ones((len(at), points), bool))
        own = jax.vmap(jax.vmap(personal.own), in_axes=(0, None))(store.read(at), params)
        # after fine-tuning each client has its own parameters, else all have the server's
        others = None if self.tuning is None else 0
        return at, own._replace(model=jax.vmap(jax.vmap(own_or), (0, others))(own, tuned))

    def _received(self, at: NDArray[np.int64], state: Any) -> Params:
        """The model of the client at each place by its losses, leaves (places, points, ...)."""
        algorithm, protocol = self.method.algorithm, self.method.protocol
        assert algorithm.first.probe is not None
        assert algorithm.server.received is not None
        train = protocol.federation.train
        probed = jax.vmap(algorithm.first.probe)(state)  # leaves (points, models, ...)
        flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), probed)
        sums, _ = client_sums(protocol.model, flat, train, at, own=False)
        sizes = np.where(at >= 0, train.sizes[at], 0)
        means = sums / np.maximum(sizes, 1).astype(sums.dtype)[:, None]
        losses = means.reshape(len(at), len(self.method.points), -1)
        size = sizes / train.sizes.mean()
        relative = np.broadcast_to(size[:, None].astype(real_type()), losses.shape[:2])
        context = ClientContext(None, None, relative_size=relative, probed=losses)  # type: ignore[arg-type]
        received: Params = jax.vmap(jax.vmap(algorithm.server.received), (None, 0))(state, context)
        return received


class FineTuning:
    """Local steps of clients from given models, by the compiled program of rounds."""

    def __init__(
        self, method: Method, mesh: Mesh, data: DeviceData, params: Params, steps: int
    ) -> None:
        protocol = method.protocol
        alone = protocol.plain(min(BLOCK, len(protocol.federation)))
        self.mesh, self.method = mesh, Method(alone, fine_tuning(method.algorithm, steps))
        federation = protocol.federation
        self.rows = TrainingRows(mesh, federation.train, data, protocol.ownership, ahead=1)
        self.layout = lay_out(self.method, self.rows, mesh.devices.size, params).together(1)
        self.programs: dict[Any, Any] = {}

    def __call__(
        self,
        block: NDArray[np.int64],
        params: Params,
        first: Callable[[NDArray[np.int64]], Params],
        hparams: HParams,
        seed: int,
        done: int,
    ) -> tuple[NDArray[np.int64], Params]:
        """The client at each place, -1 for none, and its model, leaves (places, points, ...)."""
        method, train = self.method, self.method.protocol.federation.train
        solver, t = method.solver, max(0, done - 1)
        ones = np.ones(len(block))
        jobs = jobs_of(
            train,
            method.protocol.ownership,
            block,
            steps=solver.steps_for(train.sizes[block]),
            weight=ones,
            gamma=solver.gammas(t, block),
            participation=ones / len(block),
            relative_size=ones,
        )
        work = RoundWork(len(block), jobs=jobs)
        need = needed(self.layout, solver, work)
        room = self.rows.needed([work], self.layout.reading.width)
        self.layout = self.layout.fitting(need._replace(rows=room))
        call = plan_call(method, self.rows, self.layout, seed, t, [work])
        at = call.clients  # which keep their models
        models = jax.tree.map(np.asarray, first(at))
        state = Own(models, jax.numpy.zeros((len(at), len(method.points)), bool))
        inputs = call.inputs._replace(hparams=dict(hparams))
        server = Server(replicate(self.mesh, params), shard(self.mesh, state))
        if call.layout not in self.programs:
            specs = tuple(rows_spec(a, method.protocol.ownership) for a in (inputs.x, inputs.y))
            request = ProgramSpec(
                lambda: part_program(method, call.layout, self.mesh, specs),
                (method.protocol.model.base, server, inputs),
                ("part", *known(method, call.layout, self.mesh)),
            )
            self.programs[call.layout] = accept_host_arrays(compiled(request))
        part = self.programs[call.layout](method.protocol.model.base, server, inputs)
        return at, part.client_state.model
