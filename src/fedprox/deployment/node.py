"""A node: it holds clients, compiled programs and client state, and answers requests.

A node keeps no state of a conversation. A request says all that is needed to answer it, so a node
that was restarted goes on with the next one, and a request that is repeated gets the same answer.
It counts what it answers with its data, on disk, before an answer leaves it (`spending`).
"""

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprox import __version__
from fedprox.algorithms.base import ClientState
from fedprox.deployment.broadcast import filled
from fedprox.deployment.declared import check_clip, check_declaration, check_jobs, check_steps
from fedprox.deployment.messages import (
    Answer,
    Array,
    DataKind,
    Request,
    Setup,
    Work,
    digest_of,
    pack,
    prefixed,
    unpack_arrays,
    unpack_request,
)
from fedprox.deployment.network import Parcel
from fedprox.deployment.parts import Parts, model_on_node
from fedprox.deployment.policy import REPORTS, Policy
from fedprox.deployment.round_part import RoundPart
from fedprox.deployment.secure.keys import Identity
from fedprox.deployment.secure.sums import Sums, claims_of, measured_claims_of, secret_of
from fedprox.deployment.spending import read_spent, write_spent
from fedprox.deployment.stand_in import describe, one_client
from fedprox.deployment.states import NEW, LostStateError, States, keep_last_runs
from fedprox.errors import (
    LARGEST,
    InputError,
    printable,
    reason,
    require,
    require_number,
    require_whole,
    users_level,
)
from fedprox.federation import Examples, Federation, Rows
from fedprox.model import Model, with_base
from fedprox.precision import require_single
from fedprox.privacy.accounting import Mechanism
from fedprox.privacy.setting import Hidden
from fedprox.simulation.compiled.evaluation import EvaluationSums
from fedprox.simulation.devices.mesh import lane_mesh, replicate
from fedprox.simulation.devices.processes import find_ownership
from fedprox.simulation.planning.jobs import Jobs
from fedprox.simulation.storage.training_data import Data, copy_to_devices

RUNS_KEPT = 5
"""Runs whose client state a node keeps, so that finished ones can be extended."""

ANSWERS_KEPT = 4
"""Last answers that a node keeps, since requests are repeated while it works on others."""

METHODS_KEPT = 4
"""Methods whose compiled programs a node keeps."""


class Asked(NamedTuple):
    """A request for something that is computed from data.

    Attributes:
        request: The request.
        digest: Digest of its head, which names the arrays by theirs.
        setup: The method.
        parts: Its compiled programs.
        arrays: The arrays that the request names.
    """

    request: Request
    digest: str
    setup: Setup
    parts: Parts
    arrays: list[Array]


class Node:
    """Answers the requests of a coordinator.

    Args:
        name: The node's name.
        federation: Its clients.
        folder: Where client state is stored, and what the node has spent.
        policy: What it computes and reports.
        identity: Its key and those of other nodes, for a policy with secure sums.

    Raises:
        InputError: If no client has enough rows for the policy, a file of the folder is damaged, or
            JAX computes in double precision.
    """

    def __init__(
        self,
        name: str,
        federation: Federation,
        folder: Path,
        policy: Policy,
        identity: Identity | None = None,
    ) -> None:
        require_single("a node")
        enough = np.flatnonzero(federation.train.sizes >= policy.fewest_rows)
        require(
            len(enough),
            f"policy.fewest_rows = {policy.fewest_rows}: no client has so many training rows",
        )
        if len(enough) < len(federation):
            federation = federation.of_clients(enough)
        if policy.measured_rows is not None:
            require_whole("policy.measured_rows", policy.measured_rows, least=policy.fewest_rows)
        if policy.privacy is not None:
            require_number("policy.privacy.epsilon", policy.privacy.epsilon, positive=True)
            require_number("policy.privacy.delta", policy.privacy.delta, most=1, positive=True)
            hidden = Hidden.of(policy.privacy.unit, federation.train.sizes)
            hidden.require_delta("policy.privacy.delta", policy.privacy.delta)
            for line in hidden.warnings("policy.privacy.delta", policy.privacy.delta):
                warnings.warn(line, stacklevel=users_level())
        self.name, self.federation, self.policy = name, federation, policy
        self.folder, self.runs, self.mesh = folder, folder / "runs", lane_mesh()
        self.spent = read_spent(folder)
        self.identity = identity
        self.sums = None if identity is None else Sums(identity, folder)
        self.arrays: dict[str, Array] = {}
        self.last: dict[str, Parcel] = {}
        self._parts: dict[str, Parts] = {}
        self._data: Data | None = None
        self._model: tuple[str, Model] | None = None

    @cached_property
    def kind(self) -> DataKind:
        """What the data have in common with those of other nodes."""
        return describe(self.name, "", self.federation, [], sampled=False).kind

    @property
    def reports(self) -> list[str]:
        """The measures that the node reports."""
        enough = len(self.federation) >= self.policy.fewest_clients
        return [*self.policy.reported] if enough else []

    def answer(self, parcel: Parcel) -> Parcel:
        """Answer a request, also a faulty one: the answer then says in one line what is wrong.

        Each request is logged in one line.
        """
        log, began, lost = logging.getLogger(__name__), time.perf_counter(), False
        try:
            request = unpack_request(parcel)
        except InputError as error:
            log.warning("refused: %s", error)
            return pack(Answer(id=_id_of(parcel), refused=str(error)))
        asked = _in_words(request)
        if request.id in self.last:
            log.info("%s: the same answer again", asked)
            return self.last[request.id]
        try:
            if not self._receive(request, parcel.body):
                log.info("%s: asked for the arrays that are missing", asked)
                return pack(Answer(id=request.id, lacks=True))
            answer, arrays = self._computed(request, parcel.head)
        except InputError as error:
            refused, lost = str(error), isinstance(error, LostStateError)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            refused = printable(f"{where}{error.strerror or error}")
        except Exception as error:
            # a node serves for long, so no request may end it
            log.exception("%s", asked)
            refused = str(InputError(f"error in the node: {type(error).__name__}: {reason(error)}"))
        else:
            seconds = time.perf_counter() - began
            packed = pack(answer.model_copy(update={"id": request.id, "seconds": seconds}), arrays)
            kept = list(self.last.items())[1 - ANSWERS_KEPT :]
            self.last = {**dict(kept), request.id: packed}  # in case that it is asked for again
            log.info(
                "%s: %.3f s, %s bytes in, %s bytes out",
                *(asked, seconds, f"{_size(parcel):,}", f"{_size(packed):,}"),
            )
            return packed
        log.warning("%s: refused: %s", asked, refused)
        return pack(Answer(id=request.id, refused=refused, lost=lost))

    def _receive(self, request: Request, body: bytes) -> bool:
        """Add the arrays of a request to those known; whether all that it needs are known."""
        sent = unpack_arrays(body)
        for name, array in sent.items():
            require(digest_of(array) == name, f"the array {name!r} was changed on its way")
        known = {**self.arrays, **sent}
        # arrays that the request does not name are not needed any more
        self.arrays = {name: known[name] for name in request.arrays if name in known} or self.arrays
        return all(name in known for name in request.arrays)

    def _computed(self, request: Request, head: bytes) -> tuple[Answer, dict[str, Array]]:
        if request.kind == "describe":
            sampled = self.policy.measured_rows is not None
            description = describe(
                self.name, __version__, self.federation, self.reports, sampled=sampled
            )
            return Answer(id="", description=description), {}
        setup = request.setup
        if setup is None:
            raise InputError(f"{request.kind}: the setup is missing")
        self.policy.check(setup)
        if setup.secure is not None:
            self._sums.check(setup)
        parts = self._parts_of(setup)
        self.policy.check_measures(parts.given, parts.solver)
        if setup.privacy is not None:
            check_declaration(setup, setup.privacy, parts.given, parts.points)
            others, before = self.spent.others(setup), self.spent.before
            self.policy.check_privacy(setup.privacy, others, before)
        if setup.private_steps is not None:
            check_steps(setup, parts.points)
        if request.kind == "prepare":
            self._check_planned(request, setup, parts)
            self.policy.check_planned(parts.given, parts.solver, self.federation.train.sizes)
            left = setup.rounds - 1 - self.spent.of(setup).round
            self.policy.check_rounds(self.spent.rounds, max(0, left) * parts.points)
            keep_last_runs(self.runs, setup.run, RUNS_KEPT)
            return Answer(id=""), {}
        if request.kind in ("share", "accept", "confirm", "reveal"):
            return self._sums.answer(request), {}
        digest = hashlib.blake2b(head, digest_size=16).hexdigest()
        arrays = [self.arrays[name] for name in request.arrays]
        asked = Asked(request, digest, setup, parts, arrays)
        secret = request.secret
        if request.kind == "evaluate" or (secret is not None and secret.of == "evaluate"):
            return self._evaluate(asked)
        if request.work is None:
            raise InputError(f"{request.kind}: the work is missing")
        jobs = self._jobs(asked, request.work)
        if request.kind == "advertise":
            return self._sums.advertise(request, setup, claims_of(secret_of(request), jobs)), {}
        if setup.secure is not None:
            self._sums.check_signed(request, setup, claims_of(secret_of(request), jobs))
        if request.kind == "gradients":
            part = self._gradients(asked, jobs)
        else:
            part = self._train(asked, request.work, jobs)
        if setup.secure is None:
            return Answer(id=""), part.arrays()
        return Answer(id=""), self._sums.masked(request, setup, part)

    @property
    def _sums(self) -> Sums:
        """The node's secure sums."""
        require(self.sums is not None, "secure sums: the node has no policy.secure")
        assert self.sums is not None
        return self.sums

    def _jobs(self, asked: Asked, work: Work) -> Jobs:
        """The jobs of a request, after a check of what the policy and the run allow."""
        request, setup, parts = asked.request, asked.setup, asked.parts
        t, rounds = request.round, setup.rounds
        require(t < rounds, f"round {t + 1}; the run has {rounds} rounds")
        jobs = parts.jobs(work, request.participation)
        if setup.privacy is not None:
            check_jobs(setup, setup.privacy, jobs, request.participation)
        if parts.given.first.measures:
            self.policy.check_clients(jobs)
        return jobs

    def _check_planned(self, request: Request, setup: Setup, parts: Parts) -> None:
        """Raise `InputError` if the steps that a run has planned cost more than is left.

        That is a courtesy, since whatever was planned, each request is checked by itself.
        """
        taken, planned = self.spent.of(setup).steps, request.planned
        unknown = sorted(set(planned) - set(parts.index))
        require(not unknown, f"planned: clients {', '.join(unknown)} are not on this node")
        left = {name: max(0, steps - taken.get(name, 0)) for name, steps in planned.items()}
        steps = self.spent.with_steps(parts.releases(left))
        self.policy.check_steps(steps, self.spent.steps_before)

    def _pay(self, asked: Asked) -> None:
        """Count a request on disk, before anything is computed from data.

        Raises:
            InputError: If it is more than the policy allows, or than the run has declared.
        """
        work, steps = asked.request.work, dict[str, tuple[Mechanism, int]]()
        if work is not None:
            steps = asked.parts.releases(dict(zip(work.names, work.steps, strict=True)))
        after = self.spent.paid(asked.request, asked.parts.points, asked.digest, steps)
        self.policy.check_steps({name: after.steps[name] for name in steps}, after.steps_before)
        self.policy.check_rounds(self.spent.rounds, after.rounds - self.spent.rounds)
        own, hiding = after.of(asked.setup), asked.setup.privacy
        require(
            hiding is None or own.releases <= hiding.rounds,
            f"{own.releases} private rounds; the run has declared {hiding and hiding.rounds}",
        )
        if after != self.spent:
            write_spent(self.folder, after)
            self.spent = after

    def _parts_of(self, setup: Setup) -> Parts:
        """The compiled programs of a method."""
        self._check_kind(setup)
        of_the_run: dict[str, Any] = dict.fromkeys(("run", "number", "seed", "rounds"), True)
        key = setup.model_dump_json(exclude=of_the_run | {"privacy": {"rounds"}})
        if key not in self._parts:
            federation = replace(self.federation, classes=setup.data.classes)
            model, data = self._model_of(setup), self._rows_on_devices()
            rows = self.policy.measured_rows
            parts = Parts(setup, federation, model, self.mesh, data, rows)
            oldest = list(self._parts)[: max(0, len(self._parts) - METHODS_KEPT + 1)]
            for old in oldest:
                del self._parts[old]
            self._parts[key] = parts
        return self._parts[key]

    def _model_of(self, setup: Setup) -> Model:
        """The model of a run, whose methods share its base."""
        key = setup.model_dump_json(include={"data", "model", "base", "parameters"})
        if self._model is None or self._model[0] != key:
            model = model_on_node(setup, one_client(setup.data), self.policy.base)
            self._model = key, with_base(model, replicate(self.mesh, model.base))
        return self._model[1]

    def _check_kind(self, setup: Setup) -> None:
        """Raise `InputError` if a run's data are of another kind than the node's."""
        own = self.kind.model_dump()
        for key, given in setup.data.model_dump().items():
            fits = given == own[key]
            if key in ("classes", "greatest"):  # those of all nodes
                fits = own[key] <= given <= LARGEST
            require(fits, f"data.{key} = {given!r}; the node's data have {own[key]!r}")

    def _rows_on_devices(self) -> Data:
        """The rows on the devices, which rounds and evaluations read."""
        if self._data is None:
            own, rows = self.federation, self.policy.measured_rows
            measured = own if rows is None else own.sample(rows)
            ownership, of_measured = (
                find_ownership(each.train.offsets, 1) for each in (own, measured)
            )
            self._data = copy_to_devices(self.mesh, own, measured, ownership, of_measured)
        return self._data

    def _evaluate(self, asked: Asked) -> tuple[Answer, dict[str, Array]]:
        request, _, setup, parts, arrays = asked
        report, most = self.reports, setup.rounds
        require(request.round <= most, f"round {request.round}; the run has {most} rounds")
        measures = self._measures(parts, report)
        if setup.secure is not None:
            claims = measured_claims_of(secret_of(request), len(self.federation.train), measures)
            if request.kind == "advertise":
                return self._sums.advertise(request, setup, claims), {}
            self._sums.check_signed(request, setup, claims)
        (params,) = filled([parts.model.shapes], parts.points, arrays)
        shown: dict[str, Array] = {}
        if measures:
            self._pay(asked)
            sums = parts.evaluate(params)
            if self._selects(sums):
                # whoever chooses the model would choose whose losses are summed
                require(setup.secure is None, "evaluate: some of its losses are not finite")
                report = [measure for measure in report if measure == "accuracy"]
                measures = self._measures(parts, report)
            shown = _shown(sums, measures)
        if setup.secure is not None:
            return Answer(id=""), self._sums.masked_measures(request, setup, parts.shapes, shown)
        withheld = [str(measure) for measure in REPORTS if measure not in report]
        return Answer(id="", withheld=withheld), shown

    def _selects(self, sums: EvaluationSums) -> bool:
        """Whether some clients are left out of losses, which would show the others' alone."""
        if sums.unmeasured is None:
            return False
        left_out, count = np.asarray(sums.unmeasured), len(self.federation)
        if self.policy.secure is not None:
            return bool(left_out.any())
        bounded = max(self.policy.fewest_clients, self.policy.fewest_rows) > 1
        return bounded and bool(((left_out > 0) & (left_out < count)).any())

    def _measures(self, parts: Parts, report: Collection[str]) -> list[str]:
        """The measures of an evaluation, as arrays are named, of which some are reported."""
        read, metrics = parts.measuring.protocol.measured, list(parts.model.metrics)
        accuracy = ["accuracy"] if parts.model.correct else []
        named = {"loss": ["loss"], "accuracy": accuracy, "metrics": metrics}
        measures = ["loss"] if "loss" in report else []
        measures += [f"train/{name}" for name in metrics if "metrics" in report]
        for part in ("test", "validation"):
            rows = getattr(read, part)
            if rows is not None and len(rows) and self._enough(rows):
                measures += [f"{part}/{name}" for kind in report for name in named.get(kind, ())]
        return [*measures, "scatter"] if "gradients" in report else measures

    def _enough(self, rows: Rows | Examples) -> bool:
        """Whether measures on held-out rows are of as many rows and clients as the policy asks."""
        if len(rows) < self.policy.fewest_rows:
            return False
        if not isinstance(rows, Rows):
            return True  # they belong to no client
        return bool((rows.sizes > 0).sum() >= self.policy.fewest_clients)

    def _gradients(self, asked: Asked, jobs: Jobs) -> RoundPart:
        parts = asked.parts
        require(
            parts.given.first.exchange is not None, "gradients: the method has no first exchange"
        )
        (params,) = filled([parts.model.shapes], parts.points, asked.arrays)
        self._pay(asked)
        part = parts.gradients(jobs, params, asked.request.seconds)
        self.policy.check_counted(jobs, part.counted)
        return part

    def _train(self, asked: Asked, work: Work, jobs: Jobs) -> RoundPart:
        request, setup, parts = asked.request, asked.setup, asked.parts
        self.policy.check_work(parts.solver, jobs.size, jobs.steps)
        sent = parts.broadcast
        stateful = parts.algorithm.client.state is not None
        require(
            all(len(rounds) == parts.points for rounds in work.state),
            "work: each client's state has one round for each sweep point",
        )
        needs = sent.initial and any(NEW in rounds for rounds in work.state)
        require(request.initial or not needs, "train: w^0 is missing")
        state, hparams, initial = sent.received(
            parts.method, asked.arrays, with_initial=request.initial
        )
        if setup.privacy is not None:
            check_clip(setup, setup.privacy, request.round, state.clip)
        states = States(self.runs / setup.run / f"{setup.number}-{setup.seed}")
        before: list[ClientState] = []
        if stateful:
            like = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), parts.model.shapes)
            fresh = parts.method.initial_client_state(initial if request.initial else like)
            for name, rounds, kept in zip(work.names, work.state, work.kept, strict=True):
                states.forget(name, rounds, kept)
                before.append(states.read_points(name, rounds, parts.client_state, fresh))
        self._pay(asked)
        part, after = parts.train(
            jobs, setup.seed, request.round, state, hparams, before, request.seconds
        )
        if parts.given.first.measures:
            self.policy.check_counted(jobs, part.counted)
        if before:
            for i, name in enumerate(work.names):
                if part.counts[i].any():
                    states.write(name, request.round, jax.tree.map(lambda a, i=i: a[i], after))
        return part


def _shown(sums: EvaluationSums, measures: Collection[str]) -> dict[str, Array]:
    """The arrays of an evaluation's measures."""
    trees: dict[str, Any] = {f"train/{name}": each for name, each in sums.train.items()}
    for part, terms in (("test", sums.test), ("validation", sums.validation)):
        trees |= {f"{part}/{name}": each for name, each in (terms or {}).items()}
    if sums.scatter is not None:
        trees["scatter"] = tuple(sums.scatter)
    shown: dict[str, Array] = {}
    if "loss" in measures:
        weight = np.ones_like(sums.loss) if sums.weight is None else sums.weight
        shown = {"loss": np.asarray(sums.loss), "weight": np.asarray(weight)}
        if sums.unmeasured is not None:
            shown["unmeasured"] = np.asarray(sums.unmeasured)
    for name in measures:
        shown |= prefixed(name, trees[name]) if name in trees else {}
    return shown


def _in_words(request: Request) -> str:
    """What is asked, for the log, with foreign text escaped.

    >>> _in_words(Request(version=2, id="1", kind="describe"))
    'describe'
    """
    words: list[str] = [request.kind]
    if request.setup is not None:
        setup = request.setup
        words.append(f"run {setup.run}, {setup.method.get('name')}, seed {setup.seed}")
    if request.work is not None:
        work = request.work
        words.append(f"round {request.round + 1}")
        words.append(f"{len(work.names)} clients, {sum(work.steps)} steps")
    return printable(", ".join(words))


def _size(parcel: Parcel) -> int:
    """Bytes of a message."""
    return len(parcel.head) + len(parcel.body)


def _id_of(parcel: Parcel) -> str:
    """The identifier in the head of a faulty request; empty if there is none."""
    try:
        return str(json.loads(parcel.head)["id"])[:200]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
