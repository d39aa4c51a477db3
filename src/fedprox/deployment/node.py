"""A node: it holds clients, compiled programs and client state, and answers requests.

A node keeps no state of a conversation. A request says all that is needed to answer it. So a node
that was restarted goes on with the next one, and a request that is repeated gets the same answer.
It counts what it answers with its data, on disk, before an answer leaves it (`kept`).
"""

import hashlib
import json
import logging
import re
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprox import __version__
from fedprox.algorithms.base import ClientState
from fedprox.columns import Columns, Moments, joined
from fedprox.deployment import noised
from fedprox.deployment.audit import Audit, Outcome, cost_of, line_of
from fedprox.deployment.combine import OF_LOSS, NodeMeasures, arrays_of, by_measure
from fedprox.deployment.crypto import Identity
from fedprox.deployment.joining import ALIKE, description_of, differences, one_client
from fedprox.deployment.kept import (
    NEW,
    LostStateError,
    NodeSpent,
    States,
    keep_last_runs,
    read_kept,
    write_kept,
)
from fedprox.deployment.moments import REFUSED, require_enough, summed_part
from fedprox.deployment.network import Parcel
from fedprox.deployment.node_method import NodeMethod, model_on_node
from fedprox.deployment.own_noise import SiteGuarantee
from fedprox.deployment.payload import RoundPart, at_points, filled
from fedprox.deployment.policy import (
    REPORTS,
    Policy,
    check_clip,
    check_declaration,
    check_jobs,
)
from fedprox.deployment.secure_sum import Sums, check_weights, share_of
from fedprox.deployment.wire import (
    STAGES,
    Answer,
    Array,
    DataKind,
    NodeWork,
    Request,
    Setup,
    digest_of,
    parcel_of,
    prefixed,
    required,
    unpack_arrays,
    unpack_request,
)
from fedprox.devices.mesh import lane_mesh, replicate
from fedprox.devices.processes import find_ownership
from fedprox.engine.compiled.evaluation import EvaluationSums
from fedprox.engine.planning.jobs import Jobs
from fedprox.engine.storage.training_data import DeviceData, copy_to_devices
from fedprox.errors import (
    InputError,
    foreign,
    plural,
    printable,
    reason,
    require,
    require_number,
    require_whole,
    users_level,
)
from fedprox.federation import Examples, Federation, Rows
from fedprox.model import Model, Params, has_accuracy, with_base
from fedprox.parts.privacy.accounting import Hidden, Mechanism
from fedprox.precision import require_single

RUNS_KEPT = 5
"""Runs whose client state a node keeps, so that finished ones can be extended."""

ANSWERS_KEPT = 4
"""Last answers that a node keeps, since requests are repeated while it works on others."""

METHODS_KEPT = 4
"""Methods whose compiled programs a node keeps."""


class FromTable(NamedTuple):
    """A table that the rows of all nodes together standardize.

    Attributes:
        moments: Those of each client's training rows.
        standardized: (columns with numbers) -> the federation that they standardize.
    """

    moments: Moments
    standardized: Callable[[Columns], Federation]


class Node:
    """Answers the requests of a coordinator.

    Args:
        table: Where the federation is from, if its columns wait for the numbers of all nodes.
    """

    def __init__(
        self,
        name: str,
        federation: Federation,
        folder: Path,
        policy: Policy,
        identity: Identity | None = None,
        table: FromTable | None = None,
    ) -> None:
        require_single("a node")
        enough = np.flatnonzero(federation.train.sizes >= policy.fewest_rows)
        require(
            len(enough),
            f"policy.fewest_rows = {policy.fewest_rows}: no client has so many training rows",
        )
        if len(enough) < len(federation):
            federation = federation.of_clients(enough)
        self._clients, self.table = enough, table
        for digest in policy.runs or ():
            require(
                re.fullmatch("[0-9a-f]{64}", digest),
                f"policy.runs: {digest!r}; a digest, as `fedprox deploy FILE --describe` prints "
                "it, has 64 of the characters 0 to 9 and a to f",
            )
        if policy.measured_rows is not None:
            require_whole("policy.measured_rows", policy.measured_rows, least=policy.fewest_rows)
        own = None
        if policy.privacy is not None:
            policy.privacy.require_whole()
            own = policy.privacy.own
        self.own = None if own is None else SiteGuarantee(own, folder, len(federation))
        if policy.bound is not None:
            require_number("policy.privacy.epsilon", policy.bound.epsilon, positive=True)
            require_number("policy.privacy.delta", policy.bound.delta, most=1, positive=True)
            hidden = Hidden.of(policy.bound.unit, federation.train.sizes)
            hidden.require_delta("policy.privacy.delta", policy.bound.delta)
            for line in hidden.warnings("policy.privacy.delta", policy.bound.delta):
                warnings.warn(line, stacklevel=users_level())
        self.name, self.federation, self.policy = name, federation, policy
        self.folder, self.runs, self.mesh = folder, folder / "runs", lane_mesh()
        self.spent, self.audit = read_kept(NodeSpent, folder), Audit(folder)
        self.identity = identity
        self.sums = None if identity is None else Sums(identity, folder)
        self.arrays: dict[str, Array] = {}
        self.last: dict[str, Parcel] = {}
        self._methods: dict[str, NodeMethod] = {}
        self._data: tuple[Columns | None, Federation, DeviceData] | None = None
        self._model: tuple[str, Model] | None = None
        self._left_out = ""

    @cached_property
    def kind(self) -> DataKind:
        """The kind of the data, which is the same on all nodes."""
        return description_of(self.name, "", self.federation, [], sampled=False).kind

    @property
    def reports(self) -> list[str]:
        """The measures that the node reports."""
        enough = len(self.federation) >= self.policy.fewest_clients
        return [*self.policy.reported] if enough else []

    def answer(self, parcel: Parcel) -> Parcel:
        """Answer a request, also a faulty one: the answer then says in one line what is wrong.

        Each request is logged in one line, and has a line of the node's audit.
        """
        before, own_before = self.spent, self.own and self.own.spent
        request, packed, outcome, why = self._answered(parcel)

        def line() -> dict[str, Any]:
            cost = {}
            if request is not None:
                cost = cost_of(request, before, self.spent, self.policy.bound)
            if self.own is not None and self.own.spent is not own_before:
                cost["own_epsilon"] = self.own.epsilon(self.federation.names)
            return line_of(parcel, request, packed, outcome, why) | cost

        self.audit.add(line)
        return packed

    def _answered(self, parcel: Parcel) -> tuple[Request | None, Parcel, Outcome, str]:
        """A request, its answer, what became of it, and why it is refused."""
        log, began, lost = logging.getLogger(__name__), time.perf_counter(), False
        try:
            request = unpack_request(parcel)
        except InputError as error:
            log.warning("refused: %s", error)
            refusal = parcel_of(Answer(id=_id_of(parcel), refused=str(error)))
            return None, refusal, "refused", str(error)
        asked = _in_words(request)
        if request.id in self.last:
            log.info("%s: the same answer again", asked)
            return request, self.last[request.id], "repeated", ""
        try:
            if not self._receive(request, parcel.body):
                log.info("%s: asked for the arrays that are missing", asked)
                return request, parcel_of(Answer(id=request.id, lacks=True)), "lacks arrays", ""
            answer, arrays = self._computed(request, parcel.head)
            seconds = time.perf_counter() - began
            packed = parcel_of(Answer(id=request.id, seconds=seconds, **answer), arrays)
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
            kept = list(self.last.items())[1 - ANSWERS_KEPT :]
            self.last = {**dict(kept), request.id: packed}  # in case that it is asked for again
            log.info(
                "%s: %.3f s, %s bytes in, %s bytes out",
                *(asked, seconds, f"{parcel.size:,}", f"{packed.size:,}"),
            )
            return request, packed, "answered", ""
        log.warning("%s: refused: %s", asked, refused)
        refusal = parcel_of(Answer(id=request.id, refused=refused, lost=lost))
        return request, refusal, "refused", refused

    def _receive(self, request: Request, body: bytes) -> bool:
        """Add the arrays of a request to those known; whether all that it needs are known."""
        sent = unpack_arrays(body)
        for name, array in sent.items():
            require(digest_of(array) == name, f"the array {name!r} was changed on its way")
        known = {**self.arrays, **sent}
        # arrays that the request does not name are not needed any more
        self.arrays = {name: known[name] for name in request.arrays if name in known} or self.arrays
        return all(name in known for name in request.arrays)

    def _computed(self, request: Request, head: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
        """The fields of an answer's head, and its arrays."""
        if request.kind == "describe":
            sampled = self.policy.measured_rows is not None
            data = self.federation, self.reports
            described = description_of(self.name, __version__, *data, sampled=sampled)
            more = {
                "own": None if self.own is None else self.own.declared,
                "silent": self.policy.silent_on_losses(len(self.federation)),
                "keys": {} if self.sums is None else self.sums.identity.digests,
            }
            self._hear(request.left_out)
            return {"description": described.model_copy(update=more)}, {}
        setup = required(request.setup, f"{request.kind}: the setup is missing")
        self.policy.check(setup)
        if setup.secure is not None:
            self._sums.check(setup)
        self._check_kind(setup)
        if request.kind in STAGES and request.kind != "advertise":
            return self._sums.answer(request), {}
        if request.kind == "moments" or (request.secret and request.secret.of == "moments"):
            return self._moments(request, setup)
        method = self._method_of(setup)
        self.policy.check_measures(method.given, method.solver)
        check_declaration(setup, method.given, method.points)
        if setup.privacy is not None:
            others, before = self.spent.others(setup), self.spent.before
            measured = setup.measures
            if measured is not None:
                evaluations = measured.evaluations + measured.again
                others = [*others, (measured.mechanism, evaluations)]
            self.policy.check_privacy(setup.privacy, others, before)
        if request.kind == "prepare":
            self._prepare(request, setup, method)
            return {}, {}
        if request.kind == "advertise":
            asked = self._asked(setup, method, self._reports(setup))
            return self._sums.advertise(request, setup, asked), {}
        digest = hashlib.blake2b(head, digest_size=16).hexdigest()
        pay = partial(self._pay, request, setup, method, digest)
        if request.kind == "evaluate":
            return self._evaluate(request, setup, method, pay)
        work = required(request.work, f"{request.kind}: the work is missing")
        jobs = self._jobs(request, setup, method, work)
        if setup.secure is not None:
            check_weights(self._sums.check_next(request, setup), jobs)
        if request.kind == "gradients":
            require(
                method.given.first.exchange is not None,
                "gradients: the method has no first exchange",
            )
            params = self._model_in(request, method)
            pay()
            part = method.gradients(jobs, params, request.seconds)
            self.policy.check_counted(jobs, part.counted)
        else:
            part = self._train(request, setup, method, work, jobs, pay)
        if self.own is not None:
            noise = self.own.multiplier(setup, method.given, method.points)
            part = self.own.noised(part, jobs, noise)
        if setup.secure is None:
            return {}, part.arrays()
        return {}, self._sums.masked(request, setup, part)

    def _arrays_of(self, request: Request) -> list[Array]:
        return [self.arrays[name] for name in request.arrays]

    def _model_in(self, request: Request, method: NodeMethod) -> Params:
        """The model that a request has, at each sweep point."""
        return filled(at_points(method.model.shapes, method.points), self._arrays_of(request))

    def _hear(self, left_out: str) -> None:
        """Log once why the operator's run goes on without the node."""
        if left_out not in ("", self._left_out):
            line = printable(left_out)
            logging.getLogger(__name__).warning("the operator leaves this node out: %s", line)
        self._left_out = left_out

    @property
    def _sums(self) -> Sums:
        """The node's secure sums."""
        return required(self.sums, "secure sums: the node has no policy.secure")

    def _jobs(self, request: Request, setup: Setup, method: NodeMethod, work: NodeWork) -> Jobs:
        """The jobs of a request, after a check of what the policy and the run allow."""
        t, rounds = request.round, setup.rounds
        require(t < rounds, f"round {t + 1}; the run has {plural(rounds, 'round')}")
        jobs = method.jobs(work, request.participation)
        if setup.privacy is not None:
            check_jobs(setup, setup.privacy, jobs, request.round, request.participation)
        if method.given.first.measures:
            self.policy.check_clients(jobs)
        return jobs

    def _prepare(self, request: Request, setup: Setup, method: NodeMethod) -> None:
        """Raise `InputError` if what a run has planned is more than the policy allows or is left.

        That is a courtesy, since whatever was planned, each request is checked by itself.
        """
        spent, planned = self.spent.of(setup), request.planned
        unknown = sorted(set(planned) - set(method.index))
        require(not unknown, f"planned: clients {', '.join(unknown)} are not on this node")
        left = {name: max(0, n - spent.steps.get(name, 0)) for name, n in planned.items()}
        steps = self.spent.with_steps(method.releases(left))
        if setup.measures is not None and setup.private_steps is not None:
            planned_evaluations = max(0, setup.measures.evaluations - spent.evaluations)
            names = dict.fromkeys(method.index, (setup.measures.mechanism, planned_evaluations))
            steps = {
                name: [*steps.get(name, self.spent.steps.get(name, [])), more]
                for name, more in names.items()
            }
        self.policy.check_steps(steps, self.spent.steps_before)
        self.policy.check_planned(method.given, method.solver, self.federation.train.sizes)
        rounds = max(0, setup.rounds - 1 - spent.round) * method.points
        self.policy.check_rounds(self.spent.rounds, rounds)
        if self.own is not None and rounds:
            noise = self.own.multiplier(setup, method.given, method.points)
            self.own.paid(self.federation.names, noise, method.points)
        keep_last_runs(self.runs, setup.run, RUNS_KEPT)

    def _pay(self, request: Request, setup: Setup, method: NodeMethod, digest: str) -> None:
        """Count a request on disk, before anything is computed from data."""
        work, steps = request.work, dict[str, tuple[Mechanism, int]]()
        if work is not None:
            steps = method.releases(dict(zip(work.names, work.steps, strict=True)))
        measured = setup.measures if request.kind == "evaluate" else None
        of_rows = [*method.index] if measured and setup.private_steps is not None else []
        after = self.spent.paid(request, method.points, digest, steps, of_rows)
        changed = {*steps, *of_rows}
        self.policy.check_steps({name: after.steps[name] for name in changed}, after.steps_before)
        self.policy.check_rounds(self.spent.rounds, after.rounds - self.spent.rounds)
        own, hiding = after.of(setup), setup.privacy
        taken = method.releases({name: own.steps.get(name, 0) for name in changed})
        beside = None
        if setup.measures is not None:
            beside = setup.measures.mechanism, own.evaluations
        self.policy.check_declared_steps(setup.private_steps, taken, beside)
        most = setup.measures and setup.measures.evaluations + setup.measures.again
        require(
            not most or own.evaluations <= most,
            f"{plural(own.evaluations, 'evaluation')} with noise; the run has declared {most}",
        )
        require(
            hiding is None or own.releases <= hiding.rounds,
            f"{own.releases} private rounds; the run has declared {hiding and hiding.rounds}",
        )
        if self.own is not None and work is not None:
            noise = self.own.multiplier(setup, method.given, method.points)
            self.own.pay(work.names, noise, method.points)
        if after != self.spent:
            write_kept(self.folder, after)
            self.spent = after

    def _method_of(self, setup: Setup) -> NodeMethod:
        """The compiled programs of a method."""
        of_the_run: dict[str, Any] = dict.fromkeys(("run", "number", "seed", "rounds"), True)
        key = setup.model_dump_json(exclude=of_the_run | {"privacy": {"rounds"}})
        if key not in self._methods:
            held, data = self._rows_on_devices(self._columns(setup))
            federation, model = replace(held, classes=setup.data.classes), self._model_of(setup)
            rows = self.policy.measured_rows
            oldest = list(self._methods)[: max(0, len(self._methods) - METHODS_KEPT + 1)]
            clip = None if self.own is None else self.own.given.clip
            method = NodeMethod(setup, federation, model, self.mesh, data, rows, clip)
            for old in oldest:
                del self._methods[old]
            self._methods[key] = method
        return self._methods[key]

    def _model_of(self, setup: Setup) -> Model:
        """The model of a run, whose methods share its base."""
        key = setup.model_dump_json(include={"data", "model", "base", "parameters"})
        if self._model is None or self._model[0] != key:
            model = model_on_node(setup, one_client(setup.data), self.policy.base)
            self._model = key, with_base(model, replicate(self.mesh, model.base))
        return self._model[1]

    def _check_kind(self, setup: Setup) -> None:
        """Raise `InputError` if a run's data are of another kind than the node's."""
        own, given = self.kind, setup.data
        alike = {key: (getattr(given, key), getattr(own, key)) for key in ALIKE}
        for key, (asked, have) in {"features": (given.arrays, own.arrays), **alike}.items():
            require(asked == have, f"data.{key} = {asked!r}; the node's data have {have!r}")
        for what, have, asked in differences(own, given):
            raise InputError(f"data.columns: {what}: {foreign(asked)}; the node has {have}")
        # those of all nodes
        require(
            own.classes <= given.classes,
            f"data.classes = {given.classes}; the node's data have {own.classes}",
        )
        for array, mine in zip(given.features, own.features, strict=True):
            require(
                mine.greatest <= array.greatest,
                f"data.features: {array.greatest} is the greatest; the node's data have "
                f"{mine.greatest}",
            )

    def _columns(self, setup: Setup) -> Columns | None:
        """The columns with a run's numbers; None if the data are as they are loaded."""
        columns = self.federation.columns
        if self.table is None or columns is None:
            require(not setup.mean + setup.scale, "mean and scale: the node's data take none")
            return None
        columns = replace(columns, mean=tuple(setup.mean), scale=tuple(setup.scale))
        require(columns.numeric and setup.scale, "mean and scale: the node's data wait for them")
        return columns

    def _rows_on_devices(self, columns: Columns | None) -> tuple[Federation, DeviceData]:
        """The node's rows, and those on the devices, which rounds and evaluations read."""
        if self._data is None or self._data[0] != columns:
            own, rows = self.federation, self.policy.measured_rows
            if columns is not None and self.table is not None:
                own = self.table.standardized(columns).of_clients(self._clients)
                sizes = [each.train.sizes.tolist() for each in (own, self.federation)]
                require(sizes[0] == sizes[1], "the table has changed; start the node again")
            measured = own if rows is None else own.sample(rows)
            ownership, of_measured = (
                find_ownership(each.train.offsets, 1) for each in (own, measured)
            )
            data = copy_to_devices(self.mesh, own, measured, ownership, of_measured)
            self._data = columns, own, data
        return self._data[1:]

    def _moments(self, request: Request, setup: Setup) -> tuple[dict[str, Any], dict[str, Array]]:
        """The moments of the node's columns, which do not depend on what a run asks."""
        columns = self.federation.columns
        if self.table is None or columns is None:
            raise InputError(f"{REFUSED}no rows of other nodes standardize this node's data")
        private = setup.privacy is not None or setup.private_steps is not None
        require(not private, f"{REFUSED}they have no noise, and the run has [privacy]")
        require(
            self.own is None,
            f"{REFUSED}they have no noise, and the node has policy.privacy.own",
        )
        count, rows = len(self.federation), len(self.federation.train)
        fewest = self.policy.fewest_clients
        require(count >= fewest, f"{REFUSED}{count} clients; policy.fewest_clients = {fewest}")
        own = joined(Moments(*(each[self._clients] for each in self.table.moments)))
        require_enough(columns, own, self.policy.fewest_rows)
        if setup.secure is None:
            return {}, prefixed("moments", own)
        if request.kind == "advertise":
            return self._sums.advertise(request, setup, ["moments"]), {}
        share = share_of(self._sums.check_next(request, setup), rows)
        part = summed_part(own, self._arrays_of(request), rows / share)
        return {}, self._sums.masked_by_all(request, setup, part)

    def _evaluate(
        self,
        request: Request,
        setup: Setup,
        method: NodeMethod,
        pay: Callable[[], None],
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        report, most = self._reports(setup), setup.rounds
        require(
            request.round <= most, f"round {request.round}; the run has {plural(most, 'round')}"
        )
        measures, share = self._asked(setup, method, report), 1.0
        if setup.secure is not None:
            secret = self._sums.check_next(request, setup)
            share = share_of(secret, len(self.federation.train))
            if setup.measures is not None and setup.privacy is not None:
                share = len(self.federation) / setup.clients  # clients weigh the same
        params = self._model_in(request, method)
        shown: NodeMeasures = {}
        if measures:
            pay()
            sums = method.evaluate(params)
            if setup.measures is not None:
                shown = noised.shown(method.measuring.protocol, setup, sums, measures)
            elif self._selects(sums):
                # whoever chooses the model would choose whose losses are summed
                require(setup.secure is None, "evaluate: some of its losses are not finite")
                report = [measure for measure in report if measure == "accuracy"]
                measures = self._measures(method, report)
            if setup.measures is None:
                known = by_measure(sums)
                shown = {each: known[each] for each in measures if each in known}
        if setup.secure is not None:
            return {}, self._sums.masked_measures(request, setup, method.shapes, shown, share)
        return {"withheld": [str(each) for each in REPORTS if each not in report]}, arrays_of(shown)

    def _reports(self, setup: Setup) -> list[str]:
        """The measures that the node reports in a run."""
        if setup.measures is None:
            return self.reports
        enough = len(self.federation) >= self.policy.fewest_clients
        return [*self.policy.reported_with_noise] if enough else []

    def _asked(self, setup: Setup, method: NodeMethod, report: Collection[str]) -> list[str]:
        """As `_measures`, in a run whose measures may have noise."""
        measures = self._measures(method, report)
        if setup.measures is None:
            return measures
        known = noised.names_of(method.measuring.protocol)
        # losses that are not reported are not released, and without them nothing is
        return [each for each in measures if each in known] if "loss" in measures else []

    def _selects(self, sums: EvaluationSums) -> bool:
        """Whether some clients are left out of losses, which would show the others' alone."""
        if sums.unmeasured is None:
            return False
        left_out, count = np.asarray(sums.unmeasured), len(self.federation)
        if self.policy.secure is not None:
            return bool(left_out.any())
        bounded = max(self.policy.fewest_clients, self.policy.fewest_rows) > 1
        return bounded and bool(((left_out > 0) & (left_out < count)).any())

    def _measures(self, method: NodeMethod, report: Collection[str]) -> list[str]:
        """The measures of an evaluation, as arrays are named, of which some are reported."""
        read, metrics = method.measuring.protocol.measured, list(method.model.metrics)
        labels = self.federation.train.y.dtype
        accuracy = ["accuracy"] if has_accuracy(method.model, labels) else []
        named = {"loss": ["loss"], "accuracy": accuracy, "metrics": metrics}
        measures = [*OF_LOSS] if "loss" in report else []
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

    def _train(
        self,
        request: Request,
        setup: Setup,
        method: NodeMethod,
        work: NodeWork,
        jobs: Jobs,
        pay: Callable[[], None],
    ) -> RoundPart:
        self.policy.check_work(method.solver, jobs.size, jobs.steps)
        require(
            all(len(rounds) == method.points for rounds in work.state),
            "work: each client's state has one round for each sweep point",
        )
        needs = method.sent.initial and any(NEW in rounds for rounds in work.state)
        require(request.initial or not needs, "train: w^0 is missing")
        state, hparams, initial = method.sent.received(
            method.method, self._arrays_of(request), with_initial=request.initial
        )
        if setup.privacy is not None:
            check_clip(setup, setup.privacy, request.round, state.clip)
        states = States(self.runs / setup.name)
        before: list[ClientState] = []
        if method.algorithm.client.state is not None:
            like = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), method.model.shapes)
            fresh = method.method.initial_client_state(initial if request.initial else like)
            for name, rounds, kept in zip(work.names, work.state, work.kept, strict=True):
                states.forget(name, rounds, kept)
                before.append(states.read_points(name, rounds, method.client_state, fresh))
        pay()
        part, after = method.train(
            *(jobs, setup.seed, request.round, state, hparams, before, request.seconds)
        )
        if method.given.first.measures:
            self.policy.check_counted(jobs, part.counted)
        for i, name in enumerate(work.names if before else ()):
            if part.counts[i].any():
                states.write(name, request.round, jax.tree.map(lambda a, i=i: a[i], after))
        return part


def _in_words(request: Request) -> str:
    """A request in words, for the log, with foreign text escaped.

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
        words.append(f"{plural(len(work.names), 'client')}, {plural(sum(work.steps), 'step')}")
    return printable(", ".join(words))


def _id_of(parcel: Parcel) -> str:
    """The identifier in the head of a faulty request; empty if there is none."""
    try:
        return str(json.loads(parcel.head)["id"])[:200]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
