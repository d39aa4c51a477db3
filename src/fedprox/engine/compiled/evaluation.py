"""Evaluation: one compiled pass over the rows of all clients, or of a sample of them.

A pass uses lanes like a round. A job is a client, or rows of any clients where nothing is needed
client by client. A tick reads a slice of its rows. At the end of the job its mean loss, its correct
labels and its gradient are complete. Training, test and validation rows are read by the same
function. Evaluations of a run and of nodes, of clients' own models and of newcomers, and
`fedprox.evaluate`, all compute the same sums of rows.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.stages import Wrapped
from numpy.typing import NDArray

from fedprox.devices.mesh import PER_DEVICE, REPLICATED, replicate, shard, spread
from fedprox.devices.processes import Ownership
from fedprox.devices.programs import ProgramSpec, compiled
from fedprox.engine.compiled.gradients import per_lane, reader
from fedprox.engine.compiled.lanes import (
    T,
    choose,
    entries,
    over,
    put,
    run_segments,
    squeezed,
    total,
    where_lanes,
    zeros_like,
)
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.jobs import Array
from fedprox.engine.planning.reads import ReadSlices, plan_reading, row_groups, slice_width
from fedprox.engine.storage.training_data import DeviceData, rows_spec
from fedprox.errors import require
from fedprox.features import Features, index_of, look_up, rows_at, with_index
from fedprox.federation import Examples, Rows, offsets_of
from fedprox.measures import Scatter, dissimilarity, include, nothing, squared_norms
from fedprox.metrics import Terms, metric_value, terms_of, weighted_sums
from fedprox.model import (
    Model,
    Params,
    has_accuracy,
    labels_met,
    losses_of,
    opened,
    trainable,
    with_base,
)
from fedprox.parts.part import scaled, sound
from fedprox.precision import in_shape, real_type
from fedprox.protocol.method import Method

TOGETHER = 2**15
"""Most rows of several clients that are measured together by the same models."""

ROWS = 512
"""Most rows of any clients that `row_totals` has on the device at once."""

HELD_OUT = ("test", "validation")
"""The parts that a model does not train on."""


class ReadPart(NamedTuple):
    """The rows of a part of the data that an evaluation reads, in jobs.

    Attributes:
        x: Features.
        y: Labels.
        reading: Which rows each lane reads for which job.
        size: Rows of each job, float32 (jobs,).
        labels: Labels of these rows, float32 (jobs,); 0 for a model without accuracy.
        stand_for: How many rows of its client each read row represents, float32 (jobs,).
    """

    x: Features
    y: Array
    reading: ReadSlices
    size: Array
    labels: Array
    stand_for: Array


EvaluationInputs = tuple[Array, Mapping[str, ReadPart]]
"""The inputs of an evaluation program, except the models.

p_k of each client, float32 (clients,), for a sample of clients the share of the sample's rows; and
the parts with rows, by name: "train", "test", "validation".
"""


class EvaluationShape(NamedTuple):
    """The static configuration of an evaluation program.

    Attributes:
        gradients: Whether it measures gradients.
        screened: Whether it leaves out clients whose loss or gradient is not finite. Measures are
            then those of the other clients, or NaN if there are none.
        by_client: Whether it returns losses and correct labels client by client.
        widths: Rows of a slice, by part.
        clients: The parts whose jobs are clients.
        held_out: Whether it also returns those of held-out rows client by client.
    """

    gradients: bool
    screened: bool
    by_client: bool
    widths: Mapping[str, int]
    clients: frozenset[str]
    held_out: bool = False


class ByClient(NamedTuple):
    """The measures of each client that an evaluation reads, arrays of shape (clients, points).

    Attributes:
        loss: F_k(w); NaN for a client that is left out.
        correct: Number of correct test labels, int32; None without test rows.
        held_out: Loss and number of correct labels of each part of held-out rows, by its name; None
            unless the shape asks for them.
    """

    loss: jax.Array
    correct: jax.Array | None
    held_out: Mapping[str, tuple[jax.Array, jax.Array]] | None = None


class EvaluationSums(NamedTuple):
    """The sums of an evaluation over clients; leaves (points, ...) unless noted.

    Attributes:
        loss: sum_k p_k F_k of the measured clients.
        weight: Sum of their p_k, 1 if all clients are measured; None without screening.
        unmeasured: Number of the other clients, int32; None without screening.
        scatter: Mean and scatter of the gradients; None if gradients are not measured.
        train: Sums of the metrics' terms over training rows.
        test: "sum" and "rows" of the loss and of the accuracy, and sums of the metrics' terms, over
            test rows; None without test rows. Clients that are not measured count for the accuracy
            alone.
        validation: The same over validation rows, without clients that are not measured.
        by_client: Loss and correct labels client by client; None if the shape does not ask for
            them.
    """

    loss: jax.Array
    weight: jax.Array | None
    unmeasured: jax.Array | None
    scatter: Scatter | None
    train: dict[str, Terms]
    test: dict[str, Terms] | None = None
    validation: dict[str, Terms] | None = None
    by_client: ByClient | None = None


class Measures(NamedTuple):
    """The measures of an evaluation, arrays of shape (points,).

    Attributes:
        train_loss: f(w) over the training rows that are read.
        gradient_variance: E_k ||grad F_k - grad f||^2; None if gradients are not measured.
        dissimilarity: B(w); None if gradients are not measured.
        held_out: "test_loss", "test_accuracy" and the same of validation rows, if there are any:
            the sum and the number of rows or labels, each client weighted by all of its rows.
        metrics: The model's metrics: `train_NAME` and, if there are such rows, `test_NAME` and
            `validation_NAME`, weighted in the same way.
        unmeasured: Number of clients that all measures but test accuracy leave out, int32; None
            without screening.
        by_client: Loss and correct labels client by client; None if they are not asked for.
        given: False if the losses are unknown, since no node of a deployment gave them; else None.
    """

    train_loss: jax.Array
    gradient_variance: jax.Array | None
    dissimilarity: jax.Array | None
    held_out: dict[str, Any]
    metrics: dict[str, jax.Array]
    unmeasured: jax.Array | None
    by_client: ByClient | None
    given: Literal[False] | None = None


def evaluation_program(
    model: Model,
    mesh: Mesh,
    shape: EvaluationShape,
    specs: EvaluationInputs,
    result: Callable[[EvaluationSums], Any] = lambda sums: sums,
) -> Wrapped:
    """Compile-once program that measures models on all clients, or on a sample of them."""

    def program(base: Any, params: Params, inputs: EvaluationInputs) -> Any:
        return result(_evaluate(with_base(model, base), shape, params, inputs))

    return spread(mesh, program, (REPLICATED, REPLICATED, specs))


def _evaluate(
    model: Model, shape: EvaluationShape, params: Params, inputs: EvaluationInputs
) -> EvaluationSums:
    """The sums over all devices, inside `spread`."""
    (shares, parts), points = inputs, jax.tree.leaves(params)[0].shape[0]

    def stand_for(name: str) -> jax.Array:
        weights = parts[name].stand_for
        return jnp.broadcast_to(weights[:, None], (len(weights), points))

    def read(name: str, weights: jax.Array, **options: Any) -> Any:
        return read_part(model, params, parts[name], shape.widths[name], weights, **options)

    loss, _, train, scatter = read(
        "train",
        stand_for("train"),
        shares=shares if shape.gradients else None,
        screened=shape.screened,
    )
    losses, weight, unmeasured, measured = loss, None, None, jnp.ones((), bool)
    if shape.screened:
        measured = jnp.isfinite(losses)
        losses = jnp.where(measured, losses, 0.0)
        unmeasured = jnp.sum(~measured, axis=0, dtype=jnp.int32)
        weight = jnp.where(unmeasured > 0, shares @ measured, 1.0)
    held_out: dict[str, Any] = {}
    correct, by_part = None, dict[str, tuple[jax.Array, jax.Array]]()
    for name in HELD_OUT:
        if name not in parts:
            continue
        weights, part = stand_for(name), parts[name]
        if shape.screened and name in shape.clients:
            weights = weights * measured
        mean, met, terms, _ = read(name, weights, counted=True)
        rows = weights * part.size[:, None]
        counts = stand_for(name) if name == "test" else weights  # all clients are tested
        losses_of_rows = jnp.where(rows > 0, rows * mean, 0.0)
        held_out[name] = {
            "loss": {"sum": losses_of_rows.sum(axis=0), "rows": rows.sum(axis=0)},
            "accuracy": {
                "sum": jnp.sum(counts * met, axis=0),
                "rows": jnp.sum(counts * part.labels[:, None], axis=0),
            },
            **terms,
        }
        correct = met if name == "test" else correct
        if shape.held_out and name in shape.clients:
            by_part[name] = mean, met
    by_client = ByClient(loss, correct, by_part if shape.held_out else None)
    return EvaluationSums(
        shares @ losses,
        weight,
        unmeasured,
        scatter,
        train,
        **held_out,
        by_client=by_client if shape.by_client else None,
    )


def measures_of_sums(model: Model, sums: EvaluationSums) -> Measures:
    """The measures of an evaluation, from its sums."""

    def mean_of_measured(summed: jax.Array) -> jax.Array:
        return summed if sums.weight is None else summed / sums.weight

    variance = b = None
    if sums.scatter is not None:
        variance = mean_of_measured(sums.scatter.scatter)
        b = dissimilarity(variance, squared_norms(sums.scatter.mean))
    metrics = _values(model, "train", sums.train)
    held_out: dict[str, Any] = {}
    for part, terms in (("test", sums.test), ("validation", sums.validation)):
        if terms is not None:
            held_out |= {f"{part}_{name}": terms[name] for name in ("loss", "accuracy")}
            metrics |= _values(model, part, terms)
    return Measures(
        mean_of_measured(sums.loss),
        variance,
        b,
        held_out,
        metrics,
        sums.unmeasured,
        sums.by_client,
    )


def read_part(
    model: Model,
    params: Params,
    part: ReadPart,
    width: int,
    weights: jax.Array,
    *,
    shares: jax.Array | None = None,
    screened: bool = False,
    counted: bool = False,
) -> tuple[jax.Array, jax.Array | None, dict[str, Terms], Scatter | None]:
    """Read all rows of a part, inside `spread`.

    It returns four results. The first is the mean loss of each job's rows, (jobs, points), NaN for
    a job that is left out. The second is the number of its correct labels, int32 (jobs, points), if
    they are counted. The third are the sums of the metrics' terms, those of each job times its
    weight, leaves (points, ...). The last are the mean and scatter of the jobs' gradients, given
    their shares.
    """
    reading, slices, (jobs, points) = squeezed(part.reading), reader(width), weights.shape
    sums_of_rows = partial(row_sums, model, counted=counted)

    def summed(params: Params, x: jax.Array, y: jax.Array, inside: jax.Array) -> Any:
        if shares is None:
            loss, others = sums_of_rows(params, x, y, inside)
            return (loss, None), others
        trained, around = opened(params)

        def of_trained(trained: Params) -> Any:
            return sums_of_rows(around(trained), x, y, inside)

        (loss, others), gradient = jax.value_and_grad(of_trained, has_aux=True)(trained)
        return (loss, gradient), others

    summed_all = over(summed, (0, None, None, None), (None, 0, 0, 0))

    def slice_sums(i: jax.Array | int) -> Any:
        return summed_all(params, *slices(part.x, part.y, reading, i))

    def tick(i: jax.Array, carry: Any) -> Any:
        current, found = carry
        return jax.tree.map(jnp.add, current, slice_sums(i)), found

    def end_jobs(slot: jax.Array, carry: Any) -> Any:
        (sums, (correct, terms)), (*by_job, added, scatter) = carry
        ended, weight = slot >= 0, entries(weights, slot)
        loss, gradient = per_lane(sums, entries(part.size, slot))
        finite = jax.vmap(jax.vmap(sound))((loss, gradient)) if screened else None
        if finite is not None:
            loss, gradient = jnp.where(finite > 0, loss, jnp.nan), scaled(finite, gradient)
            weight = finite * weight
        by_job = put(by_job, jnp.where(ended, slot, jobs), [loss, correct])
        if shares is not None:
            share = jnp.broadcast_to(entries(shares, slot)[:, None], loss.shape)
            share = share if finite is None else finite * share
            included = over(include, (0, 0, 0), (0, 0, 0))(scatter, gradient, share)
            scatter = where_lanes(ended, included, scatter)
        added = _add_ended(added, slot, weight, terms)
        return where_lanes(ended, zero, carry[0]), (*by_job, added, scatter)

    zero = zeros_like(jax.eval_shape(lambda: slice_sums(0)))
    scatter = None
    if shares is not None:
        scatter = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (len(zero[0][0]), *a.shape)),
            jax.vmap(nothing)(trainable(params)),
        )
    correct = jnp.zeros((jobs, points), jnp.int32) if counted else None
    begin = (jnp.zeros((jobs, points)), correct, zero[1][1], scatter)
    loss, correct, terms, scatter = run_segments(reading.ends, tick, end_jobs, (zero, begin))[1]
    terms = jax.tree.map(lambda a: a.sum(axis=0), terms)
    loss, correct, terms = total((loss, correct, terms))
    return loss, correct, terms, scatter and _merge(scatter)


def _values(model: Model, kind: str, sums: dict[str, Terms]) -> dict[str, jax.Array]:
    """The model's metrics (points,) by kind and name, from their sums, leaves (points, ...)."""
    return {
        f"{kind}_{name}": jax.vmap(partial(metric_value, name, metric))(sums[name])
        for name, metric in model.metrics.items()
    }


def _add_ended(sums: T, slot: jax.Array, weight: jax.Array, values: T) -> T:
    """Add weight (lanes, points) times values to the sums, in the lanes whose job ends."""
    parts = scaled(weight, values)
    ended = choose(slot >= 0, parts, jax.tree.map(jnp.zeros_like, parts))
    return jax.tree.map(jnp.add, sums, ended)


def _merge(parts: Scatter) -> Scatter:
    """Merge the scatters of all lanes on all devices; leaves are (lanes, points, ...)."""

    def weighted(a: jax.Array) -> jax.Array:
        weight = parts.weight.reshape(parts.weight.shape + (1,) * (a.ndim - 2))
        return total(jnp.sum(weight * a, axis=0))

    weight = total(parts.weight.sum(axis=0))
    mean = jax.tree.map(
        lambda a: weighted(a) / weight.reshape((-1,) + (1,) * (a.ndim - 2)), parts.mean
    )
    apart = jax.tree.map(jnp.subtract, parts.mean, mean)
    between = parts.weight * jax.vmap(jax.vmap(optax.tree.norm))(apart) ** 2
    return Scatter(weight, mean, total(jnp.sum(parts.scatter + between, axis=0)))


ALONE = Ownership(np.array([0, 1]), 0)
"""The ownership of rows that belong to no client, which each process has: those of one client."""


def plan_evaluation(
    method: Method, data: DeviceData, layout: Layout, mesh: Mesh
) -> tuple[EvaluationShape, EvaluationInputs, EvaluationInputs]:
    """Plan what the evaluations of a method read."""
    protocol = method.protocol
    whole, read = protocol.sampled, protocol.measured
    same: Any = REPLICATED
    split: Any = PER_DEVICE
    parts, specs, widths, clients = {}, {}, {}, set()
    for name, (x, y) in data.read.items():
        rows: Rows | Examples = getattr(read, name)
        offsets, ownership = np.array([0, len(rows)]), ALONE
        if isinstance(rows, Rows):
            offsets, ownership = rows.offsets, protocol.measured_ownership
        bounds = ownership.first_rows(offsets)
        by_client = name == "train" or (isinstance(rows, Rows) and method.tests_by_client)
        widths[name] = slice_width(np.diff(offsets) if by_client else offsets[1:][-1:])
        shape = layout.reading._replace(width=widths[name], processes=ownership.processes)
        if by_client:
            clients.add(name)
            first, last = offsets[:-1], offsets[1:]
            owner = ownership.of(np.arange(len(first)))
            stand_for = getattr(whole, name).sizes / np.maximum(last - first, 1)
        else:
            first, last, owner = row_groups(bounds, shape)
            stand_for = np.ones(len(first))
        base, labels = bounds[owner], np.zeros(len(first), np.int64)
        if name in HELD_OUT and has_accuracy(method.protocol.model, rows.y.dtype):
            labels = _labels(rows.y, first, last)
            most = labels.max(initial=0)
            require(
                most <= MOST_LABELS,
                f"evaluation: {most:,} {name} labels are counted in one number, which "
                f"holds {MOST_LABELS:,}; give evaluation.rows, the most rows of a client",
            )
        reading = plan_reading(first - base, last - base, owner, shape)
        numbers = tuple(a.astype(real_type()) for a in (last - first, labels, stand_for))
        parts[name] = ReadPart(x, y, shard(mesh, reading), *replicate(mesh, numbers))
        specs[name] = ReadPart(
            rows_spec(x, ownership), rows_spec(y, ownership), split, same, same, same
        )
    evaluated = EvaluationShape(
        protocol.evaluation.gradients,
        method.reduction.screen is not None,
        protocol.by_client,
        widths,
        frozenset(clients),
        protocol.clips_measures,
    )
    shares = replicate(mesh, whole.shares.astype(real_type()))
    return evaluated, (shares, parts), (same, specs)


MOST_LABELS = 2**31 - 1
"""Most labels, such as of pixels, that a device counts in one number."""


def _labels(
    y: NDArray[Any], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Number of labels in some ranges of rows."""
    if y.ndim == 1:
        return last - first
    before = offsets_of(np.count_nonzero(y >= 0, axis=tuple(range(1, y.ndim))))
    return before[last] - before[first]


def row_sums(
    model: Model, params: Params, x: Any, y: Any, inside: Any, *, counted: bool
) -> tuple[jax.Array, tuple[jax.Array | None, dict[str, Terms]]]:
    """Sums of one model over the rows inside: loss, and (labels met if counted, metrics' terms)."""
    outputs = model.apply(params, x)
    by_row = losses_of(model, outputs, y), terms_of(model.metrics, outputs, y)
    loss, terms = weighted_sums(by_row, inside)
    if not counted:
        return loss, (None, terms)
    correct = jnp.int32(0)
    if has_accuracy(model, y.dtype):
        met = labels_met(model, outputs, y)
        counts = met & (inside > 0).reshape((-1,) + (1,) * (met.ndim - 1))
        correct = jnp.sum(counts, dtype=jnp.int32)
    return loss, (correct, terms)


def client_sums(
    model: Model, models: Params, rows: Rows, clients: NDArray[np.int64], *, own: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of losses and of labels met over the rows of some clients, (clients, models).

    With `own` each client has models of its own, leaves (clients, models, ...), else all have the
    same, leaves (models, ...). A client -1 has no rows.
    """
    longest = int(np.where(clients >= 0, rows.sizes[clients], 0).max(initial=1))
    count = 1 << (longest - 1).bit_length()
    if not own:  # else whoever gives the models limits how many rows are together
        count = min(count, max(1, TOGETHER // len(clients)))
    loss: Any = 0.0
    met: Any = 0.0
    for first in range(0, longest, count):
        x, y, inside = rows.padded(clients, first, count)
        arguments = (model.base, models, x, y, inside.astype(real_type()))
        known = "own models", model, own
        spec = ProgramSpec(lambda: _sums_program(model, own), arguments, known)
        with jax.default_matmul_precision("highest"):  # as in evaluations of a run
            part = compiled(spec)(*arguments)
        loss, met = loss + np.asarray(part[0]), met + np.asarray(part[1])
    return loss, met


def _sums_program(model: Model, own: bool) -> Wrapped:
    """(base, models, x, y, weights) -> sums of losses and of labels met (clients, models)."""

    def sums(base: Any, models: Params, *rows: Any) -> Any:
        whole = with_base(model, base)

        def summed(params: Params, x: jax.Array, y: jax.Array, inside: jax.Array) -> Any:
            loss, (met, _) = row_sums(whole, params, x, y, inside, counted=True)
            return loss, met

        of_models = jax.vmap(summed, (0, None, None, None))
        return jax.vmap(of_models, (0 if own else None, 0, 0, 0))(models, *rows)

    return jax.jit(sums)


def row_totals(model: Model, params: Params, rows: Rows) -> dict[str, Any]:
    """Sums of one model over each client's rows: float64, leaves (clients, ...).

    They are "loss", the metrics' terms by their names as "metrics" and, for a model with accuracy,
    the labels met as "correct". Rows are read in slices of any clients, so one program serves all.
    """
    clients, index = len(rows.sizes), index_of(rows.x)
    owner = np.repeat(np.arange(clients), rows.sizes)
    shared = jax.device_put(rows_at(rows.x, slice(0)))  # such as a text, without rows
    width = max(1, min(ROWS, len(rows)))

    def of_slice(a: Any) -> Any:
        return in_shape((width, *a.shape[1:]), a.dtype)

    params = jax.tree.map(jnp.asarray, params)
    arguments = (
        model.base,
        params,
        with_index(shared, jax.tree.map(of_slice, index)),
        of_slice(rows.y),
        in_shape((width,), np.int32),
    )

    def no_rows(summed: dict[str, Any]) -> dict[str, Any]:
        return jax.tree.map(lambda a: np.zeros((clients, *a.shape[1:])), summed)

    if not len(rows):
        return no_rows(jax.eval_shape(_totals(model), *arguments))
    sums: dict[str, Any] = {}
    summed = compiled(ProgramSpec(lambda: _totals(model), arguments, ("row totals", model)))
    for start in range(0, len(rows), width):
        # the last slice is as wide as the others
        begin = min(start, len(rows) - width)
        at = slice(begin, begin + width)
        here, place = np.unique(owner[at], return_inverse=True)
        place[: start - begin] = width  # rows of the slice before are dropped
        x = with_index(shared, rows_at(index, at))
        part = summed(model.base, params, x, rows.y[at], place.astype(np.int32))
        sums = sums or no_rows(part)
        for summed_rows, of_part in zip(*map(jax.tree.leaves, (sums, part)), strict=True):
            summed_rows[here] += np.asarray(of_part)[: len(here)]
    return sums


def _totals(model: Model) -> Wrapped:
    """(base, params, x, y, place) -> sums over the rows of each place, leaves (rows, ...)."""

    def totals(base: Any, params: Params, x: Any, y: jax.Array, place: jax.Array) -> dict[str, Any]:
        whole = with_base(model, base)
        outputs = whole.apply(params, look_up(x, index_of(x)))
        by_row = {
            "loss": losses_of(whole, outputs, y),
            "metrics": terms_of(whole.metrics, outputs, y),
        }
        if has_accuracy(whole, y.dtype):
            met = labels_met(whole, outputs, y)
            by_row["correct"] = met.reshape(len(y), -1).sum(axis=1)
        return jax.tree.map(lambda a: jax.ops.segment_sum(a, place, len(y)), by_row)

    return jax.jit(totals)
