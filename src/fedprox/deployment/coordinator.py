"""The experiment of a deployment on the nodes that have joined, and asking them for their parts."""

import logging
import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import TypeAdapter

from fedprox.algorithms.base import Algorithm, HParams, State
from fedprox.algorithms.check import message_shape
from fedprox.columns import Columns
from fedprox.deployment.combine import declared_by, evaluation_shapes
from fedprox.deployment.conversation import Answered, Conversation, Failed
from fedprox.deployment.fixed_point import fixed_point_of, size_of
from fedprox.deployment.joining import Joined, require_same_keys, silence_in_words, stand_in
from fedprox.deployment.node_method import on_nodes, parameters_in_words
from fedprox.deployment.noised import declared_with_noise
from fedprox.deployment.payload import Possible, at_points, coded_of, sent_state_of
from fedprox.deployment.policy import require_threshold
from fedprox.deployment.sum_keys import OperatorKeys
from fedprox.deployment.wire import (
    VERSION,
    Allowed,
    Array,
    PrivateMeasures,
    PrivateRounds,
    PrivateSteps,
    Request,
    RequestKind,
    Securing,
    Setup,
)
from fedprox.devices.mesh import lane_mesh
from fedprox.devices.programs import jit_once
from fedprox.engine.compiled.client_step import round_hparams
from fedprox.engine.compiled.compile import evaluated
from fedprox.engine.compiled.lanes import choose
from fedprox.engine.planning.round_work import LocalSteps
from fedprox.epsilon import noise_of
from fedprox.errors import (
    InputError,
    plural,
    require,
    require_number,
    require_one_of,
    require_whole,
)
from fedprox.experiment.resolved import Described, Resolved, describe, resolve_with
from fedprox.experiment.schema import Table
from fedprox.experiment.sections import DEPLOYED, Experiment
from fedprox.files.whole import write_whole
from fedprox.measures import ACCURACIES, LOSSES
from fedprox.model import Params, digest, trainable
from fedprox.parts import compatible
from fedprox.parts.compatible import Case, check_case
from fedprox.parts.faults import Faults
from fedprox.parts.privacy.setting import releases
from fedprox.precision import require_single
from fedprox.protocol.method import Method, checked_methods, sweep_points
from fedprox.protocol.protocol import Protocol
from fedprox.report.directory import DEPLOYMENT_FILE
from fedprox.results.target import VALIDATION_LOSS

T = TypeVar("T")


@dataclass
class Ledger:
    """The facts of a run that must survive whatever happens to its checkpoints.

    A round that is repeated after an interruption is released once more, with other noise. Privacy
    counts both, so a round is counted here before anything of it leaves the coordinator.

    Attributes:
        folder: The run directory; None to keep nothing.
        run: Identifier of the run, under which nodes store client state.
        released: Round up to which the rounds have been released.
        repeated: Rounds, first and end, that were released, and after an interruption once more,
            each time.
        measured: Evaluations with noise that have been asked for.
        given_up: Rounds of secure sums that were counted and given up before a node was asked for
            what its rows give, each time.
        unmeasured: Evaluations with noise likewise, each by the round before it.
        clients: The training rows of each client, by node and client, in their order.
        mean: Means that are subtracted from the numeric columns of a table, if the rows of all
            nodes standardize it; empty if they do not.
        scale: Likewise, by what it is divided then.
    """

    folder: Path | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    released: int = 0
    repeated: list[tuple[int, int]] = field(default_factory=list)
    clients: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    measured: int = 0
    given_up: list[int] = field(default_factory=list)
    unmeasured: list[int] = field(default_factory=list)

    def begin(self, first: int) -> None:
        """Begin or go on with a round; what was released from it on is repeated."""
        if first < self.released:
            self.repeated.append((first, self.released))
            self.released = first
            self.write()

    def release(self) -> None:
        """Count a round, on disk."""
        self.released += 1
        self.write()

    def measure(self) -> None:
        """Count an evaluation with noise, on disk."""
        self.measured += 1
        self.write()

    def give_up(self, round_: int) -> None:
        """Note that a round that was counted has released nothing, on disk."""
        self.given_up.append(round_)
        self.write()

    def leave_unmeasured(self, round_: int) -> None:
        """Note the same of an evaluation after some rounds."""
        self.unmeasured.append(round_)
        self.write()

    def write(self) -> None:
        """Write the file."""
        if self.folder is not None:
            write_whole(self.folder / DEPLOYMENT_FILE, self.content())

    def content(self) -> bytes:
        """The content of the file."""
        without = {key for key in ("measured", "given_up", "unmeasured") if not getattr(self, key)}
        return LEDGER.dump_json(self, exclude={"folder", *without})


LEDGER = TypeAdapter(Ledger)


def read_ledger(folder: Path) -> Ledger:
    """The ledger of the run in a run directory."""
    path = folder / DEPLOYMENT_FILE
    try:
        content = path.read_bytes()
        ledger = replace(LEDGER.validate_json(content), folder=folder)
        require(ledger.content() == content, "not as it was written, such as without a field")
        return ledger
    except (OSError, ValueError):
        raise InputError(f"{path}: missing or damaged; this run cannot be resumed") from None


def require_same_clients(where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `InputError` unless a run goes on with the nodes and clients that it began with.

    The order of clients numbers them, and so draws cohorts and mini-batches.
    """
    _require_same(where, "nodes", list(before), list(now))
    for node, clients in before.items():
        _require_same(f"{where}: node {node!r}", "clients", list(clients), list(now[node]))
        for client, rows in clients.items():
            have = now[node][client]
            require(
                rows == have,
                f"{where}: client {client!r} of node {node!r} has "
                f"{plural(have, 'training row')}; it had {rows} when the run began",
            )


def _require_same(where: str, what: str, before: Sequence[str], now: Sequence[str]) -> None:
    """Raise `InputError` unless two lists of names are the same; the message names a difference."""
    for i, names in enumerate(zip_longest(before, now), start=1):
        had, have = ("not there" if name is None else repr(name) for name in names)
        require(
            had == have,
            f"{where}: number {i} of the {what} is {have}; it was {had} when the run began",
        )


FINITE = Faults("drop", math.inf)
"""Screening of updates if the experiment does not say: those that are not finite are left out."""


def check_deployable(experiment: Experiment) -> Described:
    """The runs of an experiment; `InputError` if it cannot be deployed whatever nodes hold."""
    described = describe(experiment)
    for method in described.methods:
        check_case(Case(experiment, method, place="deployment"), of=compatible.ON_NODES)
    return described


def measures_gradients(experiment: Experiment, described: Described) -> bool:
    """Whether a deployment measures gradients, which cost an upload of the model's size.

    Unless the experiment says, they are measured only where gamma needs them.
    """
    if "gradients" in experiment.evaluation.model_fields_set:
        return bool(experiment.evaluation.gradients)
    solvers = (method.solver(described.solver) for method in described.methods)
    return any(solver.gamma is not None for solver in solvers)


def asked_by_file(settings: Any, table: Table, number: int, seed: int) -> Table:
    """The fields of a method's `Setup` that the experiment file alone decides.

    Those about privacy and secure sums are left out. `settings` has the objects of the sections as
    attributes, and `table` is the experiment with every default.
    """
    # stragglers are not among them: the coordinator draws who takes fewer steps, each request has
    # them, and a node takes at most its solver's
    compression, population = settings.compression, settings.population
    return {
        "seed": seed,
        "rounds": table["rounds"],
        "clients_per_round": settings.cohort.clients_per_round,
        "model": table["model"],
        "solver": table["solver"],
        "method": table["method"][number],
        "evaluated": settings.evaluation.model,
        "gradients": table["evaluation"]["gradients"],
        "deadline": settings.systems.deadline if population is None else None,
        "compression": None if compression is None else asdict(compression),
        "products": settings.aggregation.rule == "product",
    }


def _resolved(experiment: Experiment, joined: Joined) -> tuple[Resolved, Securing | None]:
    """The objects of an experiment with a stand-in for the data, and how messages are summed."""
    gradients = measures_gradients(experiment, check_deployable(experiment))
    federation = stand_in(joined.kind, joined.descriptions)
    rows = sum(sum(each.clients.train) for each in joined.descriptions)
    data = {"name": DEPLOYED, "nodes": len(joined.nodes), "training_rows": rows}
    data["clients"] = len(federation)
    resolved = resolve_with(experiment, lambda: (federation, data))
    secure = _securing(experiment, resolved, [each.name for each in joined.descriptions])
    if secure is not None:
        require_same_keys(joined.descriptions)
    if resolved.faults is None:  # one node's numbers must not ruin the others' model
        resolved.settings["faults"] = FINITE
        resolved.table["faults"] = {"policy": FINITE.policy, "norm": FINITE.norm}
    solvers = [method.solver(resolved.solver) for method in resolved.methods]
    resolved.table["evaluation"]["gradients"] = gradients
    resolved.settings["evaluation"] = replace(resolved.evaluation, gradients=gradients)
    for method, solver in zip(resolved.methods, solvers, strict=True):
        check_case(Case(resolved, method, solver, "deployment", secure))
    if resolved.privacy is not None:
        runs = len(experiment.seeds) * sum(map(len, map(sweep_points, resolved.methods, solvers)))
        require(
            runs == 1,
            f"{runs} runs: with [privacy] a deployment has one method, one value of each "
            "hyperparameter and one seed, since each run would spend the epsilon once more",
        )
        finite = resolved.privacy.clip < math.inf
        require(finite, "privacy.clip = inf; in a deployment it must be finite")
    _require_measures(resolved, joined.reports)
    return resolved, secure


def _require_measures(resolved: Resolved, reported: Collection[str]) -> None:
    """Raise `InputError` if an experiment needs a measure that no node reports."""
    needs = [
        (f"{method.name}: an adaptive mu", "train_loss")
        for method in resolved.methods
        if method.adapt is not None
    ]
    if resolved.target is not None:
        needs.append((resolved.target.key, resolved.target.measure))
    if resolved.selection.selects:
        needs.append(("selection", resolved.selection.measure or VALIDATION_LOSS))
    for what, measure in needs:
        kind = "loss" if measure in LOSSES else "accuracy" if measure in ACCURACIES else "metrics"
        if resolved.privacy is not None and resolved.privacy.measures is not None:
            continue  # nodes report what has noise
        require(
            kind in reported,
            f'{what} needs {measure}, and no node reports "{kind}" (policy.report, and '
            "exact_measures in policy.privacy)",
        )


def _securing(experiment: Experiment, resolved: Resolved, nodes: Sequence[str]) -> Securing | None:
    """How a run's messages are summed in secret; None if they are not."""
    given = experiment.deployment.secure
    if given is None:
        return None
    require_whole("deployment.secure.threshold", given.threshold)
    require_threshold(given.threshold, len(nodes))
    hidden = resolved.privacy is not None and resolved.privacy.unit == "client"
    sizes = {"bound": given.bound, "norm": given.norm}
    require(
        list(sizes.values()).count(None) == 1 + hidden,
        "deployment.secure: "
        + ", ".join(f"{name} = {value}" for name, value in sizes.items())
        + "; one of them is needed without [privacy] of clients, and both follow from "
        "privacy.clip with it",
    )
    for name, value in sizes.items():
        if value is not None:
            require_number(f"deployment.secure.{name}", value, positive=True)
    require_whole("deployment.secure.honest", given.honest, most=given.threshold)
    require(
        given.honest == 1 or hidden,
        f"deployment.secure.honest = {given.honest}; it is for [privacy]: leave it out",
    )
    require_one_of("deployment.secure.bits", given.bits, (32, 64))
    everybody = resolved.cohort.clients_per_round == len(resolved.federation)
    require(
        not hidden or everybody,
        f"cohort.clients_per_round = {resolved.cohort.clients_per_round}; with [privacy] and "
        f"deployment.secure it must be {len(resolved.federation)}, all clients: the operator knows "
        "who takes part, so cohorts hide nobody",
    )
    return Securing.model_validate(given.model_dump() | {"nodes": sorted(nodes)})


def own_noise(joined: Joined, methods: Sequence[Method]) -> dict[str, Table]:
    """The norm and the noise multiplier for each method, of nodes that add noise themselves."""
    return {
        each.name: {
            "clip": each.own.clip,
            "noise_multiplier": [
                each.own.multiplier(
                    method.protocol.rounds, len(method.points), releases(method.algorithm)
                )
                for method in methods
            ],
        }
        for each in joined.descriptions
        if each.own is not None
    }


def own_noise_in_words(joined: Joined, methods: Sequence[Method]) -> list[str]:
    """A line for each node that adds noise itself."""
    silent = [each.name for each in joined.descriptions if not each.reports]
    return [
        f"node {name} adds noise of its own to its sums: noise multiplier "
        f"{', '.join(f'{noise:.4g}' for noise in own['noise_multiplier'])}, norm {own['clip']:g}"
        f"{'; it reports no measures' * (name in silent)}"
        for name, own in own_noise(joined, methods).items()
    ]


class Coordinator:
    """An experiment on the nodes that have joined: what all its methods share.

    Attributes:
        resolved: The experiment's objects, with a stand-in for the data.
        ledger: The run's identifier, and how many of its rounds have been released.
        secure: How messages are summed in secret; None if the operator sees each node's.
        repeated: Rounds of a private run that were released before an interruption and are repeated
            after it, each time.
        measured_before: Evaluations with noise likewise.
        dishonest: Why nodes are left out of secure sums, by index.
        keys: The keys that nodes have agreed on for the next secure sums; None if there are none.
    """

    def __init__(
        self,
        conversation: Conversation,
        experiment: Experiment,
        joined: Joined,
        ledger: Ledger,
    ) -> None:
        require_single("a deployment")
        self.conversation, self.joined, self.ledger = conversation, joined, ledger
        self.resolved, self.secure = _resolved(experiment, joined)
        privacy, enough = self.resolved.privacy, 1 if self.secure is None else self.secure.threshold
        exact = privacy is None or privacy.measures is None
        if exact and (line := silence_in_words(joined.descriptions, enough)):
            logging.getLogger(__name__).warning("%s", line)
        settings = self.resolved.settings | {"client_store": "auto"}
        protocol = Protocol(**settings, seeds=tuple(experiment.seeds))
        self.methods = checked_methods(protocol, self.resolved.methods)
        self.protocol = self.methods[0].protocol
        if own := own_noise(joined, self.methods):
            self.resolved.table["data"]["own_noise"] = own
        self.nodes, self.owner, self.kind = joined.nodes, joined.owner, joined.kind
        self.mesh = lane_mesh(1)
        self.session, self.asked = secrets.token_hex(4), 0
        self.repeated: Sequence[range] = ()
        self.measured_before = 0
        self.dishonest: dict[int, str] = {}
        self.keys: OperatorKeys | None = None
        sizes, base = self.protocol.federation.train.sizes, self.protocol.model.base
        self.base = None if base is None else digest(base)
        self.rows = np.bincount(self.owner, sizes)
        self.shares = self.rows / sizes.sum()

    @property
    def columns(self) -> Columns | None:
        """The columns of the nodes' tables, with the run's numbers; None for other data."""
        columns, ledger = self.protocol.federation.columns, self.ledger
        if columns is None or not ledger.scale:
            return columns
        return replace(columns, mean=ledger.mean, scale=ledger.scale)

    def setup(self, method: Method, seed: int) -> Setup:
        """The description of a method for nodes."""
        number, protocol = self.number(method), self.protocol
        return Setup(
            run=self.ledger.run,
            number=number,
            clients=len(protocol.federation),
            data=self.kind,
            mean=list(self.ledger.mean),
            scale=list(self.ledger.scale),
            parameters=parameters_in_words(protocol.model.shapes),
            base=self.base,
            **asked_by_file(protocol, self.resolved.table, number, seed),
            **self._privacy(method),
            secure=self.secure,
        )

    def _privacy(self, method: Method) -> dict[str, Any]:
        """The privacy of a method's clients, or of their rows, as nodes are told."""
        given, mechanism, noise = self.protocol.privacy, method.mechanism, noise_of(method)
        rounds = steps = None
        if given is not None and mechanism is not None:
            rounds = PrivateRounds(
                clip=given.clip,
                epsilon=given.epsilon,
                adaptive_clip=given.adaptive_clip,
                mechanism=mechanism,
                rounds=self.protocol.rounds + sum(map(len, self.repeated)),
            )
        if given is not None and noise is not None and self.protocol.hides_examples:
            steps = PrivateSteps(
                clip=given.clip,
                epsilon=given.epsilon,
                noise_multiplier=noise,
                delta=given.delta,
                accountant=given.accountant or "pld",
            )
        return {"privacy": rounds, "private_steps": steps, "measures": self._measures()}

    def _measures(self) -> PrivateMeasures | None:
        """How the measures of a run get noise."""
        given, evaluations = self.protocol.privacy, self.protocol.evaluations
        planned = None if given is None else given.of_measures(evaluations)
        if given is None or given.measures is None or planned is None:
            return None
        noised = given.measures
        return PrivateMeasures(
            loss_bound=noised.loss_bound,
            share=noised.share,
            only=None if noised.only is None else list(noised.only),
            noise_multiplier=planned[0].noise_multiplier,
            delta=given.delta,
            evaluations=evaluations,
            again=self.measured_before,
        )

    def number(self, method: Method) -> int:
        """A method's number in the experiment."""
        return next(i for i, each in enumerate(self.methods) if each is method)

    def planned(self, method: Method, seed: int) -> dict[int, dict[str, int]]:
        """The private local steps of each node's clients in the whole run, by node and name."""
        if not self.protocol.hides_examples:
            return {}
        counted = LocalSteps(method, seed, self.repeated).counted(self.protocol.rounds)
        names, planned = self.protocol.federation.names, dict[int, dict[str, int]]()
        for k in np.flatnonzero(counted).tolist():
            planned.setdefault(int(self.owner[k]), {})[names[k]] = int(counted[k])
        return planned

    def request(self, kind: RequestKind, setup: Setup, **others: Any) -> Request:
        """A request, which is not sent; the others are fields of `Request`."""
        self.asked += 1
        number = f"{self.session}-{self.asked}"
        return Request(version=VERSION, id=number, kind=kind, setup=setup, **others)

    def begin(
        self,
        requests: Mapping[int, Request],
        arrays: Sequence[Array] = (),
        allowed: Mapping[int, Allowed] = MappingProxyType({}),
    ) -> dict[int, str]:
        """Open requests to nodes, by index, and return their identifiers."""
        setups = [request.setup for request in requests.values() if request.setup is not None]
        asked = self.conversation.begin_all(
            {self.nodes[index]: request for index, request in requests.items()},
            arrays,
            allowed={self.nodes[index]: each for index, each in allowed.items()},
            extra=max((each.deadline or 0.0 for each in setups), default=0.0),
        )
        return {index: asked[self.nodes[index]] for index in requests}

    def gather(
        self, asked: Mapping[int, str], read: Callable[[int, Answered], T]
    ) -> tuple[dict[int, T], dict[int, Failed]]:
        """Each node's answer as read, and why the others have none that can be used."""
        ended = self.conversation.answers({self.nodes[i]: number for i, number in asked.items()})
        values, failed = dict[int, T](), dict[int, Failed]()
        for index in asked:
            answer = ended[self.nodes[index]]
            if isinstance(answer, Failed):
                failed[index] = answer
                continue
            try:
                values[index] = read(index, answer)
            except InputError as error:
                failed[index] = Failed(f"its answer is refused: {error}")
        return values, failed

    def name(self, index: int) -> str:
        """The name of a node."""
        return self.joined.descriptions[index].name


class RemoteMethod:
    """A method whose clients are on nodes.

    Attributes:
        sent: The part of the server's state that nodes are sent.
        messages: The shapes of the nodes' parts of a round, leaves (points, ...), by kind of
            request.
        coded: How clients' messages travel by themselves; None for sums in full.
        shapes: The shapes of nodes' answers to an evaluation; `declared` has what each may answer.
    """

    def __init__(self, server: Coordinator, method: Method) -> None:
        self.server, self.method = server, method
        self.hparams = method.hparams(server.mesh)
        self.compile_seconds, self.memory, self.lane_idle = 0.0, 0, 0.0
        algorithm, protocol, points = method.algorithm, method.protocol, len(method.points)
        shapes = protocol.model.shapes
        given = server.resolved.methods[server.number(method)]
        there = on_nodes(protocol.reported(given, sent="message"))
        self.sent = sent_state_of(there, shapes)
        self.params = jax.vmap(there.server.params)
        self.messages: dict[str, Any] = {
            "train": at_points(message_shape(there, shapes), points),
            "gradients": at_points(trainable(shapes), points),
        }
        self.coded = coded_of(protocol, there, points)
        self.update = jit_once(partial(_updated, algorithm))
        self.evaluated = jit_once(partial(evaluated, algorithm))
        self.shapes = evaluation_shapes(protocol.model, server.kind, points)
        setup = server.setup(method, protocol.seeds[0])
        self.declared = [
            declared_with_noise(declared_by(each, float(share), protocol.model), setup)
            for each, share in zip(server.joined.descriptions, server.shares, strict=True)
        ]
        possible = algorithm.client.possible
        self._possible = None if possible is None else jit_once(jax.vmap(possible))
        if server.secure is not None:
            for like in self.messages.values():
                fixed_point_of(setup, "train").require_hidden(size_of(jax.tree.leaves(like)))
        self.prepare()

    def prepare(self) -> None:
        """Ask all nodes whether they take part; one that does not answer may answer later."""
        server, seed = self.server, self.method.protocol.seeds[0]
        setup, planned = server.setup(self.method, seed), server.planned(self.method, seed)
        requests = {
            i: server.request("prepare", setup, planned=planned.get(i, {}))
            for i in range(len(server.nodes))
        }
        answers, failed = server.gather(server.begin(requests), lambda _, answer: answer)
        for index, (why, refused, _) in failed.items():
            line = f"{self.method.name}: node {server.name(index)!r}: {why}"
            require(answers and not refused, line)
            logging.getLogger(__name__).warning("%s; it may take part later", line)

    def arrays(
        self, state: State, hparams: Mapping[str, Any], initial: Params | None = None
    ) -> list[Array]:
        """The arrays of a request to train from a state; `initial` if clients need w^0."""
        return self.sent.sent(state, {n: hparams[n] for n in self.method.points[0]}, initial)

    def possible(self, t: int, hparams: HParams) -> Possible | None:
        """Which mean messages clients can send in a round; None if they may be any."""
        if self._possible is None:
            return None
        rate = jnp.float32(self.method.solver.factor(t))
        return partial(self._possible, round_hparams(hparams, rate, jnp.float32(0)))


def _updated(
    algorithm: Algorithm,
    state: State,
    mean: Any,
    hparams: HParams,
    before: State,
    counts: jax.Array,
) -> State:
    """The state after a round; that before it at points (points,) where no update counts."""
    return choose(counts, jax.vmap(algorithm.server.update)(state, mean, hparams), before)
