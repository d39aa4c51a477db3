"""A node: it holds clients, compiled programs and client state, and answers requests.

A node keeps no state of a conversation. A request says all that is needed to answer it, so a node
that was restarted goes on with the next one, and a request that is repeated gets the same answer.
"""

import importlib.metadata
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox.algorithms.base import ClientState
from fedprox.deployment.broadcast import broadcast_of, filled
from fedprox.deployment.messages import (
    Answer,
    Array,
    Request,
    Setup,
    digest_of,
    pack,
    prefixed,
    unpack_arrays,
    unpack_request,
)
from fedprox.deployment.network import Parcel
from fedprox.deployment.parts import Parts
from fedprox.deployment.policy import REPORTS, Policy
from fedprox.deployment.stand_in import describe, one_client
from fedprox.deployment.states import NEW, LostStateError, States, keep_last_runs
from fedprox.errors import InputError, reason, require
from fedprox.federation import Examples, Federation, Rows
from fedprox.precision import require_single
from fedprox.simulation.compiled.evaluation import EvaluationSums
from fedprox.simulation.devices.mesh import lane_mesh
from fedprox.simulation.devices.ownership import Ownership, find_ownership
from fedprox.simulation.storage.training_data import Data, copy_to_devices

RUNS_KEPT = 5
"""Runs whose client state a node keeps, so that finished ones can be extended."""

METHODS_KEPT = 4
"""Methods whose compiled programs a node keeps."""


class Node:
    """Answers the requests of a coordinator.

    Args:
        name: The node's name.
        federation: Its clients.
        folder: Where client state is stored.
        policy: What it computes and reports.

    Raises:
        InputError: If no client has enough rows for the policy, or JAX computes in double
            precision.
    """

    def __init__(self, name: str, federation: Federation, folder: Path, policy: Policy) -> None:
        require_single("a node")
        enough = np.flatnonzero(federation.train.sizes >= policy.fewest_rows)
        require(
            len(enough),
            f"policy.fewest_rows = {policy.fewest_rows}: no client has so many training rows",
        )
        if len(enough) < len(federation):
            federation = federation.of_clients(enough)
        self.name, self.federation, self.policy = name, federation, policy
        self.folder, self.mesh = folder, lane_mesh()
        self.arrays: dict[str, Array] = {}
        self.last: dict[str, Parcel] = {}
        self._parts: dict[str, Parts] = {}
        self._data: dict[Any, Data] = {}

    @property
    def reports(self) -> list[str]:
        """The measures that the node reports."""
        enough = len(self.federation) >= self.policy.fewest_clients
        return [measure for measure in REPORTS if enough and measure in self.policy.report]

    def answer(self, parcel: Parcel) -> Parcel:
        """Answer a request, also a faulty one: the answer then says in one line what is wrong."""
        try:
            request = unpack_request(parcel)
        except InputError as error:
            return pack(Answer(id=_id_of(parcel), refused=str(error)))
        if request.id in self.last:
            return self.last[request.id]
        began = time.perf_counter()
        try:
            if not self._receive(request, parcel.body):
                return pack(Answer(id=request.id, lacks=True))
            answer, arrays = self._computed(request)
        except InputError as error:
            lost = isinstance(error, LostStateError)
            return pack(Answer(id=request.id, refused=str(error), lost=lost))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return pack(Answer(id=request.id, refused=f"{where}{error.strerror or error}"))
        except Exception as error:
            # a node serves for long, so no request may end it
            logging.getLogger(__name__).exception("request %r", request.id)
            line = str(InputError(f"error in the node: {type(error).__name__}: {reason(error)}"))
            return pack(Answer(id=request.id, refused=line))
        seconds = time.perf_counter() - began
        packed = pack(answer.model_copy(update={"id": request.id, "seconds": seconds}), arrays)
        self.last = {request.id: packed}  # in case that it is asked for again
        return packed

    def _receive(self, request: Request, body: bytes) -> bool:
        """Add the arrays of a request to those known; whether all that it needs are known."""
        sent = unpack_arrays(body)
        for name, array in sent.items():
            require(digest_of(array) == name, f"the array {name!r} was changed on its way")
        known = {**self.arrays, **sent}
        # arrays that the request does not name are not needed any more
        self.arrays = {name: known[name] for name in request.arrays if name in known} or self.arrays
        return all(name in known for name in request.arrays)

    def _computed(self, request: Request) -> tuple[Answer, dict[str, Array]]:
        if request.kind == "describe":
            version = importlib.metadata.version("fedprox")
            description = describe(self.name, version, self.federation, self.reports)
            return Answer(id="", description=description), {}
        require(request.setup is not None, f"{request.kind}: the setup is missing")
        assert request.setup is not None
        parts = self._parts_of(request.setup)
        if request.kind == "prepare":
            keep_last_runs(self.folder, _folder_name(request.setup.run), RUNS_KEPT)
            return Answer(id=""), {}
        arrays = [self.arrays[name] for name in request.arrays]
        if request.kind == "evaluate":
            return self._evaluate(parts, arrays)
        if request.kind == "gradients":
            return self._gradients(parts, request, arrays)
        return self._train(parts, request, arrays)

    def _parts_of(self, setup: Setup) -> Parts:
        """The compiled programs of a method, after a check of the policy."""
        self.policy.check(setup)
        of_the_run: dict[str, Any] = dict.fromkeys(("run", "number", "seed", "rounds"), True)
        key = setup.model_dump_json(exclude=of_the_run | {"privacy": {"rounds"}})
        if key not in self._parts:
            federation = replace(self.federation, classes=setup.data.classes)
            parts = Parts(
                setup,
                federation,
                one_client(setup.data),
                self.mesh,
                self._data_of(setup, federation),
            )
            oldest = list(self._parts)[: max(0, len(self._parts) - METHODS_KEPT + 1)]
            for old in oldest:
                del self._parts[old]
            self._parts[key] = parts
        return self._parts[key]

    def _data_of(self, setup: Setup, federation: Federation) -> Data:
        """The rows on the devices, of which evaluations read at most `setup.rows` a client."""
        if setup.rows not in self._data:
            measured = federation if setup.rows is None else federation.sample(setup.rows)
            ownership = _ownership(federation)
            copied = copy_to_devices(
                self.mesh, federation, measured, ownership, _ownership(measured)
            )
            self._data = {setup.rows: copied}
        return self._data[setup.rows]

    def _evaluate(self, parts: Parts, arrays: list[Array]) -> tuple[Answer, dict[str, Array]]:
        (params,) = filled([parts.model.shapes], parts.points, arrays)
        return self._reported(parts, parts.evaluate(params))

    def _reported(self, parts: Parts, sums: EvaluationSums) -> tuple[Answer, dict[str, Array]]:
        """The sums that the policy lets the node report."""
        read = parts.measuring.protocol
        stand_for = read.sampled.test.sizes / np.maximum(read.measured.test.sizes, 1)
        correct = np.asarray(sums.correct, np.float64)
        if sums.by_client is not None:
            correct = stand_for @ np.asarray(sums.by_client.correct)
        labels = read.measured.test.labels
        if parts.model.correct is None:
            labels = np.zeros_like(labels)
        points = np.ones(parts.points, np.float32)
        held_out = {"test": sums.test, "validation": sums.validation}
        enough = {part: self._enough(getattr(read.measured, part)) for part in held_out}
        report = set(self.reports)
        shown: dict[str, Array] = {}
        if "loss" in report:
            shown |= {"loss": np.asarray(sums.loss)}
            shown["weight"] = points if sums.weight is None else np.asarray(sums.weight)
            if sums.unmeasured is not None:
                shown["unmeasured"] = np.asarray(sums.unmeasured)
        if "accuracy" in report and enough["test"]:
            shown |= {"correct": correct, "labels": np.float64(stand_for @ labels) * points}
        for part, terms in held_out.items():
            for name, each in (terms or {}).items() if enough[part] else ():
                if (name if name in ("loss", "accuracy") else "metrics") in report:
                    shown |= prefixed(f"{part}/{name}", each)
        if "metrics" in report:
            for name, each in sums.train.items():
                shown |= prefixed(f"train/{name}", each)
        if "gradients" in report and sums.scatter is not None:
            shown |= prefixed("scatter", tuple(sums.scatter))
        withheld: list[str] = [measure for measure in REPORTS if measure not in report]
        return Answer(id="", withheld=withheld), shown

    def _enough(self, rows: Rows | Examples | None) -> bool:
        """Whether measures on held-out rows are of as many clients as the policy asks."""
        if not isinstance(rows, Rows):
            return True  # they belong to no client
        return bool((rows.sizes > 0).sum() >= self.policy.fewest_clients)

    def _gradients(
        self, parts: Parts, request: Request, arrays: list[Array]
    ) -> tuple[Answer, dict[str, Array]]:
        require(request.work is not None, "gradients: the work is missing")
        assert request.work is not None
        (params,) = filled([parts.model.shapes], parts.points, arrays)
        jobs = parts.jobs(request.work, request.participation)
        return Answer(id=""), parts.gradients(jobs, params).arrays()

    def _train(
        self, parts: Parts, request: Request, arrays: list[Array]
    ) -> tuple[Answer, dict[str, Array]]:
        work, setup = request.work, request.setup
        require(work is not None, "train: the work is missing")
        assert work is not None
        assert setup is not None
        jobs = parts.jobs(work, request.participation)
        self.policy.check_work(parts.solver, jobs.size, jobs.steps)
        sent = broadcast_of(parts.algorithm, parts.model.shapes)
        stateful = parts.algorithm.client_state is not None
        needs = sent.initial and NEW in work.state
        require(request.initial or not needs, "train: w^0 is missing")
        state, hparams, initial = sent.received(parts.method, arrays, with_initial=request.initial)
        states = States(self.folder / _folder_name(setup.run) / f"{setup.number}-{setup.seed}")
        before: list[ClientState] = []
        if stateful:
            like = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), parts.model.shapes)
            fresh = parts.method.initial_client_state(initial if request.initial else like)
            for name, round_, kept in zip(work.names, work.state, work.kept, strict=True):
                states.forget(name, round_, kept)
                new = round_ == NEW
                before.append(fresh if new else states.read(name, round_, parts.client_state))
        part, after = parts.train(jobs, setup.seed, request.round, state, hparams, before)
        if before:
            for i, name in enumerate(work.names):
                if part.counts[i].any():
                    states.write(name, request.round, jax.tree.map(lambda a, i=i: a[i], after))
        return Answer(id=""), part.arrays()


def _ownership(federation: Federation) -> Ownership:
    return find_ownership(federation.train.offsets, 1)


def _folder_name(run: str) -> str:
    """The folder of a run.

    Raises:
        InputError: If the run's identifier cannot be a folder's name.
    """
    require(run.isalnum() and run.isascii() and len(run) <= 64, f"run {run!r}: no identifier")
    return run


def _id_of(parcel: Parcel) -> str:
    """The identifier in the head of a faulty request; empty if there is none."""
    try:
        return str(json.loads(parcel.head)["id"])[:200]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
