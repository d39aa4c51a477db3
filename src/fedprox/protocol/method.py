"""A method of a comparison: an algorithm under a protocol, with its solver and its sweep points.

A method that cannot be trained is refused here. Warnings say what makes results misleading.
"""

import hashlib
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, ClientState, HParams, State
from fedprox.algorithms.check import (
    Still,
    check_algorithm,
    check_objective,
    require_still,
    still_round,
)
from fedprox.devices.mesh import replicate
from fedprox.devices.programs import jit_once
from fedprox.errors import require, users_level
from fedprox.jax_internals import nans_allowed
from fedprox.losses import CrossEntropy, classes_loss
from fedprox.model import Model, Params, trainable, with_base
from fedprox.model.check import check_model
from fedprox.parts.part import Columns, Part, Reduction
from fedprox.parts.privacy.accounting import Mechanism
from fedprox.parts.privacy.setting import delta_warnings
from fedprox.precision import in_shape, real_type
from fedprox.protocol.protocol import Protocol, initial_params
from fedprox.solver import Solver, as_values, name_of

T = TypeVar("T")


def sweep_points(algorithm: Algorithm, solver: Solver) -> list[dict[str, float]]:
    """Every combination of hyperparameters and learning rates; a schedule's learning rate is 1."""
    axes = {name: as_values(name, value) for name, value in algorithm.hparams.items()}
    axes["learning_rate"] = solver.rates
    if algorithm.paired:
        count = max(map(len, axes.values()))
        rows = zip(
            *(axis * count if len(axis) == 1 else axis for axis in axes.values()), strict=True
        )
        return [dict(zip(axes, values, strict=True)) for values in rows]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def label(algorithm: Algorithm, solver: Solver, point: dict[str, float]) -> str:
    """The label of a run in its comparison: method, hyperparameters and settings.

    It includes the learning rate if there is more than one or the method sets its own, and the
    server's learning rate unless it is exactly 1.
    """

    def shown(key: str) -> bool:
        if key == "learning_rate":
            return len(solver.rates) > 1 or key in algorithm.settings
        return key != "server_learning_rate" or algorithm.hparams[key] != (1.0,)

    def text(key: str, value: float) -> str:
        if key != "learning_rate" or solver.schedule is None:
            return f"{value:g}"
        name = name_of(solver.schedule)
        return name if " " in name else f"{name} from {solver.factor(0):g}"

    hparams = [f"{k}={text(k, v)}" for k, v in point.items() if shown(k)]
    settings = [
        f"{k}={name_of(v) if callable(v) else v}"
        for k, v in algorithm.settings.items()
        if k not in point
    ]
    parts = [algorithm.name, algorithm.variant, *hparams, *settings]
    return " ".join(part for part in [*parts, "adaptive" * (algorithm.adapt is not None)] if part)


def noise_words(
    algorithm: Algorithm, solver: Solver, point: dict[str, float]
) -> NDArray[np.uint32]:
    """Two words for the noise of a sweep point with privacy, a digest of its method and numbers.

    Runs of a comparison have noise of their own, so that no two published models share noise that
    their difference would cancel.
    """
    settings = {k: name_of(v) if callable(v) else v for k, v in algorithm.settings.items()}
    schedule = None if solver.schedule is None else name_of(solver.schedule)
    what = (algorithm.name, algorithm.variant, sorted(point.items()), settings, schedule)
    return np.frombuffer(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "<u4")


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
    def computed(self) -> dict[Callable[..., Any], Any]:
        """The results of functions marked `kept`."""
        return {}

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

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its runs; central training has none."""
        return () if self.algorithm.pooled else self.protocol.parts

    @cached_property
    def reduction(self) -> Reduction:
        """How the messages of a round become one."""
        reduction = Reduction()
        for part in self.parts:
            reduction = part.reduce(reduction)
        return reduction

    @property
    def keyed(self) -> bool:
        """Whether its rounds need random keys beside those of mini-batches."""
        return any(part.keyed for part in self.parts)

    @property
    def several_starts(self) -> bool:
        """Whether the clients of a round start from different models of the server."""
        return any(part.several_starts for part in self.parts)

    @property
    def apart(self) -> bool:
        """Whether a node sends the message of each client, and not a sum."""
        params = trainable(self.protocol.model.shapes)
        return any(part.coding(params) is not None for part in self.parts)

    @cached_property
    def no_columns(self) -> Columns:
        """The columns of no jobs, which say what its programs read."""
        return self.protocol.columns(np.zeros(0, np.int64)) if self.parts else {}

    @property
    def tests_by_client(self) -> bool:
        """Whether evaluations count test rows client by client."""
        return self.protocol.by_client or self.reduction.screen is not None

    @property
    def has_own_models(self) -> bool:
        """Whether evaluations measure models that clients have for themselves, without noise."""
        if self.protocol.noised is not None:
            return False
        tuned = self.protocol.evaluation.fine_tune is not None
        return (tuned or self.algorithm.several_models) and not self.algorithm.pooled

    @cached_property
    def mechanism(self) -> Mechanism | None:
        """The mechanism of a run, for its clients; None unless privacy hides them."""
        return self.protocol.mechanism(self.algorithm)

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The hyperparameters of all sweep points, (points,), and what tells their noise apart."""
        values: dict[str, Any] = {
            key: np.array([point[key] for point in self.points], real_type())
            for key in self.points[0]
        }
        if any(part.own_noise for part in self.parts):
            words = [noise_words(self.algorithm, self.solver, point) for point in self.points]
            values["noise_words"] = np.stack(words)
        return values

    def hparams(self, mesh: Mesh) -> HParams:
        """The same on devices."""
        hparams: HParams = replicate(mesh, self.values)
        return hparams

    def initial_state(self, starts: Sequence[Params], mesh: Mesh) -> State:
        """The server's state before round 0, equal at all sweep points."""
        return replicate(mesh, self._at_points(self.algorithm.initial(*starts)))

    def initial_client_state(self, params: Params) -> ClientState:
        """The state of each client before round 0, equal at all sweep points."""
        initial = self.algorithm.client.state
        return None if initial is None else self._at_points(initial(params))

    def _at_points(self, tree: Any) -> Any:
        """The same arrays at each sweep point, leaves (points, ...)."""
        count, host = len(self.points), jax.tree.map(np.asarray, tree)
        return jax.tree.map(lambda a: np.broadcast_to(a, (count, *a.shape)), host)


def kept(function: Callable[[Method], T]) -> Callable[[Method], T]:
    """A function whose value of a method is computed once, and let go with the method."""

    @wraps(function)
    def once(method: Method) -> T:
        values = method.computed
        if function not in values:
            values[function] = function(method)
        value: T = values[function]
        return value

    return once


def checked_methods(protocol: Protocol, algorithms: Sequence[Algorithm]) -> list[Method]:
    """Check the algorithms, and make them the methods of a comparison."""
    check_model(protocol.model, protocol.federation)
    for algorithm in algorithms:
        check_algorithm(algorithm, trainable(protocol.model.shapes))
        protocol.check(algorithm, algorithm.solver(protocol.solver))
    methods = [Method(protocol, protocol.reported(algorithm)) for algorithm in algorithms]
    for algorithm, method in zip(algorithms, methods, strict=True):
        check_objective(algorithm, protocol.model, protocol.federation)
        _check_still(algorithm, method)
    for name, count in Counter(name for method in methods for name in method.labels).items():
        require(
            count == 1,
            f"methods: {name!r} is given {count} times; once is enough, and hyperparameters must "
            "differ in their first six digits, schedules in their names or first rates",
        )
    return methods


def _check_still(algorithm: Algorithm, method: Method) -> None:
    """Check what an algorithm does in a round in which no client's model changes."""
    protocol, solver = method.protocol, method.solver
    # one program for all values of hyperparameters and settings, which it does not read
    still = jit_once(partial(still_round, algorithm.functions, trainable(protocol.model.shapes)))

    def with_rate(rate: float) -> Still:
        hparams = {**method.points[0], "learning_rate": rate, "participation": 1.0}
        arrays = {name: np.asarray(value, real_type()) for name, value in hparams.items()}
        with nans_allowed():  # methods may divide by the rate
            return jax.device_get(still(arrays, np.ones((), real_type())))

    usual = with_rate(1.0)
    require_still(algorithm, usual)
    if solver.schedule is None:  # its rates are above 0
        return
    without = with_rate(0.0)
    if not np.isfinite(without.moved) or without.finite < usual.finite:
        for t in range(protocol.rounds):
            require(
                solver.factor(t),
                f"{algorithm.name}: it divides by the learning rate, which solver.learning_rate "
                f"gives as 0 in round {t}; it must be above 0 in all rounds",
            )


BLOCK = 2**16
"""Labels that are read together: most data sets have all of their classes in the first block."""


CLASSES_NAMED = 5
"""Most classes that a warning names."""


Array = NDArray[Any]


def warn_of(protocol: Protocol) -> None:
    """Issue a `UserWarning` for each setting or property of the data that spoils a comparison."""
    lines = [
        *_seldom_evaluated(protocol),
        *_one_class(protocol),
        *_without_class_0(protocol),
        *_unseen_classes(protocol),
        *_raw_features(protocol),
        *delta_warnings(protocol.privacy, protocol.federation.train.sizes),
    ]
    for line in lines:
        warnings.warn(line, stacklevel=users_level())


def _seldom_evaluated(protocol: Protocol) -> Iterator[str]:
    every = protocol.evaluation.every
    if every > protocol.rounds:
        yield (
            f"evaluation.every = {every} is more than rounds = {protocol.rounds}: "
            "only the initial and the final model are evaluated"
        )


def _one_class(protocol: Protocol) -> Iterator[str]:
    # reads only labels that are copied to the devices anyway
    seen = np.zeros(protocol.federation.classes, bool)
    for block in _blocks(protocol, protocol.measured.train.y):
        seen[block] = True
        if seen.sum() > 1:
            return
    for only in np.flatnonzero(seen):
        yield (
            f"all training labels that evaluations read are of class {only}: a model that always "
            f"answers {only} fits them, so losses and accuracies do not tell methods apart"
        )


def _without_class_0(protocol: Protocol) -> Iterator[str]:
    seen = np.zeros(protocol.federation.classes, bool)
    for rows in (protocol.measured.train, protocol.measured.test):
        for block in _blocks(protocol, rows.y):
            seen[block] = True
            if seen[0]:
                return
    if seen[1:].sum() > 1 and seen[1:].all():
        yield (
            f"labels are 1 to {len(seen) - 1}, which are {len(seen)} classes with class 0, of "
            "which there are no rows; number classes from 0"
        )


def _unseen_classes(protocol: Protocol) -> Iterator[str]:
    read, train = protocol.measured, protocol.federation.train
    if isinstance(train.y, np.memmap) and read.train is not train:
        return  # files may hold many more labels than evaluations read
    unseen = np.zeros(protocol.federation.classes, bool)
    for block in _blocks(protocol, read.test.y):
        unseen[block] = True
    for block in _blocks(protocol, train.y):
        if not unseen.any():
            return
        unseen[block] = False
    classes = np.flatnonzero(unseen)
    if len(classes):
        count = sum(int(unseen[block].sum()) for block in _blocks(protocol, read.test.y))
        named = ", ".join(map(str, classes[:CLASSES_NAMED]))
        named += ", ..." * (len(classes) > CLASSES_NAMED)
        yield (
            f"{count:,} of the {int(read.test.labels.sum()):,} test labels that evaluations read "
            f"are of classes that no client has in training ({named}): a model does not learn to "
            "predict them, and test accuracy counts them as errors"
        )


LARGE_FEATURES = 10
"""Features whose root mean square is as large may be raw, such as pixels from 0 to 255."""


FAR_ABOVE = 4
"""An initial loss is far above that of guessing if it is larger by this factor."""


def _raw_features(protocol: Protocol) -> Iterator[str]:
    """That the features' scale makes the initial loss large, by a few rows."""
    train, model = protocol.federation.train, protocol.model
    if not isinstance(train.x, np.ndarray) or jax.process_count() > 1:
        return  # others are prepared as they are read
    at = np.unique(np.linspace(0, len(train) - 1, 8).astype(np.int64))
    x, y = np.asarray(train.x[at]), np.asarray(train.y[at])
    values = np.abs(x.astype(np.float64))
    largest, scale = float(values.max()), math.sqrt((values**2).mean())
    # whole numbers that are no bytes are ids, such as of words
    pixels = x.dtype.kind == "f" or (x.min() >= 0 and 128 <= largest < 256)
    if not (LARGE_FEATURES <= scale < math.inf and pixels):
        return
    outputs = jax.eval_shape(model.apply, model.shapes, in_shape(x.shape, x.dtype))
    if not classes_loss(model.loss, outputs, in_shape(y.shape, y.dtype)):
        return
    params = protocol.initial
    if params is None:
        params = initial_params(model, protocol.seeds[0])
    with nans_allowed():
        loss = float(jax.jit(partial(_mean_loss, model))(model.base, params, x, y))
    guessing = math.log(outputs.shape[-1])
    if math.isfinite(loss) and loss > FAR_ABOVE * guessing:
        yield (
            f"features are as large as {largest:,.6g}, and the initial loss is {loss:.3g}, where "
            f"guessing among {outputs.shape[-1]} classes gives {guessing:.3g}: scale the features, "
            "such as pixels from 0 to 255 by x / 255"
        )


def _mean_loss(model: Model, base: Any, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean cross-entropy of some rows, without weights of classes."""
    return jnp.mean(CrossEntropy()(with_base(model, base).apply(params, x), y))


def _blocks(protocol: Protocol, y: Array) -> Iterator[Array]:
    """The labels block by block, without missing labels; no blocks if labels are not classes.

    A model without accuracy does not treat labels as classes, even if they are whole numbers.
    """
    classes = protocol.federation.classes
    if not classes or protocol.model.correct is None:
        return
    for begin in range(0, len(y), BLOCK):
        block = np.asarray(y[begin : begin + BLOCK])
        yield block[(block >= 0) & (block < classes)]
