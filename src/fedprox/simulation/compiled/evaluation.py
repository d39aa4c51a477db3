"""Evaluation: one compiled pass over the rows of all clients, or of a sample of them.

An evaluation uses lanes like a round: a job is a client, a tick reads a slice of its rows and adds
their gradients, and at the end of the job the client's gradient is complete.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.diagnostics.dissimilarity import Scatter, dissimilarity, include, nothing
from fedprox.features import Features
from fedprox.metrics import Terms, terms_of, value_of, weighted_sums
from fedprox.model import Model, Params, labels_met, loss_and_sums, losses_of
from fedprox.precision import real_type
from fedprox.simulation.compiled.gradients import my_part, per_lane, reader
from fedprox.simulation.compiled.lanes import choose, over, run_segments, total, where_lanes
from fedprox.simulation.compiled.screening import scaled, sound
from fedprox.simulation.devices.mesh import REPLICATED, spread
from fedprox.simulation.planning.packing import Array
from fedprox.simulation.planning.reads import Reading

T = TypeVar("T")


class ByClient(NamedTuple):
    """The measures of each client that an evaluation reads, arrays of shape (clients, points).

    Attributes:
        loss: F_k(w); NaN for a client that is left out.
        correct: Number of correct test labels, int32.
    """

    loss: jax.Array
    correct: jax.Array


class Measures(NamedTuple):
    """The measures of an evaluation, arrays of shape (points,).

    Attributes:
        train_loss: f(w) over the training rows that are read.
        test_correct: Number of correct test labels, int32.
        gradient_variance: E_k ||grad F_k - grad f||^2; NaN if gradients are not measured.
        dissimilarity: B(w); NaN if gradients are not measured.
        test_loss: Mean loss over the test rows that are read, each client weighted by all of its
            test rows; NaN without test rows.
        metrics: The model's metrics: `train_NAME`, `test_NAME` and, if there are validation rows,
            `validation_NAME`, weighted in the same way.
        unmeasured: Number of clients that all measures except `test_correct` leave out, int32; None
            without screening.
        by_client: Loss and correct labels client by client; None if the shape does not ask for
            them.
        validation_loss: Mean loss over the validation rows, weighted like `test_loss`; None without
            validation rows.
        validation_accuracy: Share of correct validation labels, weighted like `test_loss`; NaN for
            a model without accuracy, None without validation rows.
        test_accuracy: Accuracy over all test rows, in a deployment, where nodes weight their
            clients themselves; None in a simulation.
    """

    train_loss: jax.Array
    test_correct: jax.Array
    gradient_variance: jax.Array
    dissimilarity: jax.Array
    test_loss: jax.Array
    metrics: dict[str, jax.Array]
    unmeasured: jax.Array | None
    by_client: ByClient | None
    validation_loss: jax.Array | None = None
    validation_accuracy: jax.Array | None = None
    test_accuracy: Any = None


class StandFor(NamedTuple):
    """How many rows of its client each read row represents, float32 arrays (clients,)."""

    train: Array
    test: Array


class Validation(NamedTuple):
    """The validation rows that an evaluation reads, and how.

    Attributes:
        x: Features.
        y: Labels.
        reading: Which rows each lane reads. The jobs are the clients if `stand_for` is not None.
        stand_for: How many rows of its client each read row represents, float32 (clients,); None if
            all rows have weight 1.
    """

    x: Features
    y: jax.Array
    reading: Reading
    stand_for: jax.Array | None


class Tested(NamedTuple):
    """Sums over held-out rows; leaves have leading axes of lanes and points.

    Attributes:
        correct: Number of correct labels, int32.
        sums: Sums of the terms of the loss and of each metric.
    """

    correct: jax.Array
    sums: dict[str, Terms]


class EvaluationSums(NamedTuple):
    """What an evaluation reads, summed over clients; leaves (points, ...) unless noted.

    Attributes:
        loss: sum_k p_k F_k of the measured clients.
        weight: Sum of their p_k, 1 if all clients are measured; None without screening.
        unmeasured: Number of the other clients, int32; None without screening.
        scatter: Mean and scatter of the gradients; None if gradients are not measured.
        train: Sums of the metrics' terms over training rows.
        correct: Number of correct test labels, int32.
        test: Sums of the terms of the loss and the metrics over test rows; None without test rows.
        validation: Sums of the terms of the loss, the accuracy and the metrics over validation
            rows; None without validation rows.
        by_client: Loss and correct labels client by client; None if the shape does not ask for
            them.
    """

    loss: jax.Array
    weight: jax.Array | None
    unmeasured: jax.Array | None
    scatter: Scatter | None
    train: dict[str, Terms]
    correct: jax.Array
    test: dict[str, Terms] | None
    validation: dict[str, Terms] | None
    by_client: ByClient | None


class EvaluationShape(NamedTuple):
    """The static configuration of an evaluation program.

    Attributes:
        gradients: Whether it measures gradients.
        screened: Whether it leaves out clients whose loss or gradient is not finite. Measures are
            then those of the other clients, or NaN if there are none.
        by_client: Whether it returns losses and correct labels client by client.
        lanes: Lanes per device.
        width: Rows of a slice of training rows.
        test_width: Rows of a slice of test rows.
        validation_width: Rows of a slice of validation rows; 0 without validation rows.
    """

    gradients: bool
    screened: bool
    by_client: bool
    lanes: int
    width: int
    test_width: int
    validation_width: int


class EvaluationInputs(NamedTuple):
    """The inputs of an evaluation program, except the models.

    Attributes:
        x: Features of the training rows.
        y: Labels of the training rows.
        test_x: Features of the test rows.
        test_y: Labels of the test rows.
        reading: Which training rows each lane reads; its jobs are the clients.
        sizes: Number of training rows read of each client, float32 (clients,).
        shares: p_k of each client, float32 (clients,). For a sample of clients, the share of the
            sample's rows.
        stand_for: How many rows of its client each read row represents.
        test_reading: Which test rows each lane reads. Its jobs are the clients if `screened` or
            `by_client` is set in the shape.
        validation: The validation rows; None without validation rows.
    """

    x: Features
    y: Array
    test_x: Features
    test_y: Array
    reading: Reading
    sizes: Array
    shares: Array
    stand_for: StandFor
    test_reading: Reading
    validation: Validation | None


def evaluation_program(
    model: Model, mesh: Mesh, shape: EvaluationShape, specs: EvaluationInputs
) -> Wrapped:
    """Compile-once program that measures models on all clients, or on a sample of them.

    Args:
        model: The model.
        mesh: The devices.
        shape: The program's static configuration.
        specs: How each input is spread over the devices.

    Returns:
        (params, inputs) -> Measures, where params have a leading axis of sweep points.
    """
    summed = evaluation_sums(model, shape, specs)

    def program(params: Params, inputs: EvaluationInputs) -> Measures:
        return measures_of_sums(model, summed(params, inputs))

    return spread(mesh, program, (REPLICATED, specs))


def sums_program(
    model: Model, mesh: Mesh, shape: EvaluationShape, specs: EvaluationInputs
) -> Wrapped:
    """As `evaluation_program`, with the result (params, inputs) -> EvaluationSums."""
    return spread(mesh, evaluation_sums(model, shape, specs), (REPLICATED, specs))


def evaluation_sums(
    model: Model, shape: EvaluationShape, specs: EvaluationInputs
) -> Callable[[Params, EvaluationInputs], EvaluationSums]:
    """(params, inputs) -> sums over all devices, inside `spread`."""
    by_client = shape.by_client or shape.screened
    test = _tester(model, shape.test_width, jobs_are_clients=by_client)
    spec = specs.validation
    validate = _validator(
        model,
        shape.validation_width,
        jobs_are_clients=spec is not None and spec.stand_for is not None,
    )

    def summed(params: Params, inputs: EvaluationInputs) -> EvaluationSums:
        train = _TrainingPass(model, shape, params, inputs)
        sums = train.read()
        measured, weight, unmeasured = train.screen(sums)
        points, clients = train.points, len(inputs.sizes)
        correct, terms = jnp.zeros((clients, points), jnp.int32), None
        if len(inputs.test_x):
            weights = jnp.broadcast_to(inputs.stand_for.test[:, None], correct.shape)
            weights = weights if measured is None else weights * measured
            reading = my_part(inputs.test_reading)
            correct, by_lane = test(params, inputs.test_x, inputs.test_y, reading, weights)
            terms = _sum_lanes(by_lane)
        losses = sums.losses
        return EvaluationSums(
            loss=total(sums.loss.sum(axis=0)),
            weight=weight,
            unmeasured=unmeasured,
            scatter=None if sums.scatter is None else _merge(sums.scatter),
            train=_sum_lanes(sums.terms),
            correct=total(correct.sum(axis=0)),
            test=terms,
            validation=validate(params, inputs.validation, measured),
            by_client=None if losses is None else ByClient(total(losses), total(correct)),
        )

    return summed


def measures_of_sums(model: Model, sums: EvaluationSums) -> Measures:
    """The measures of an evaluation, from its sums."""

    def mean_of_measured(summed: jax.Array) -> jax.Array:
        return summed if sums.weight is None else summed / sums.weight

    variance = b = test_loss = jnp.full(sums.loss.shape, jnp.nan)
    if sums.scatter is not None:
        variance = mean_of_measured(sums.scatter.scatter)
        norm_squared = jax.vmap(optax.tree.norm)(sums.scatter.mean) ** 2
        b = dissimilarity(variance, norm_squared)
    metrics = _values(model, "train", sums.train)
    metrics |= {f"test_{name}": test_loss for name in model.metrics}
    if sums.test is not None:
        test_loss = _mean(sums.test["loss"])
        metrics |= _values(model, "test", sums.test)
    validated = {}
    if sums.validation is not None:
        validated = {
            f"validation_{name}": _mean(sums.validation[name]) for name in ("loss", "accuracy")
        }
        metrics |= _values(model, "validation", sums.validation)
    return Measures(
        train_loss=mean_of_measured(sums.loss),
        test_correct=sums.correct,
        gradient_variance=variance,
        dissimilarity=b,
        test_loss=test_loss,
        metrics=metrics,
        unmeasured=sums.unmeasured,
        by_client=sums.by_client,
        **validated,
    )


def _mean(terms: Any) -> jax.Array:
    """The mean of a measure that has a sum and a number of rows, (points,)."""
    mean: jax.Array = terms["sum"] / terms["rows"]
    return mean


class _Sums(NamedTuple):
    """The sums over the training rows that the lanes have read so far.

    Attributes:
        client: Sums of each lane's current client: ((loss, gradient), metrics' terms), leaves
            (lanes, points, ...).
        loss: sum_k p_k F_k of the finished clients, (lanes, points).
        scatter: Mean and scatter of the finished clients' gradients; None if gradients are not
            measured.
        terms: Sums of the finished clients' metrics' terms.
        weights: Sum of p_k of the measured clients, and the number of the others, (lanes, points,
            2); None without screening.
        measured: 1 for each measured client, else 0, (clients, points); None without screening.
        losses: F_k of each client, (clients, points); None if the shape does not ask for it.
    """

    client: Any
    loss: jax.Array
    scatter: Scatter | None
    terms: Any
    weights: jax.Array | None
    measured: jax.Array | None
    losses: jax.Array | None


class _TrainingPass:
    """The pass over the training rows.

    Args:
        model: The model.
        shape: The program's static configuration.
        params: The models, leaves (points, ...).
        inputs: The program's inputs.
    """

    def __init__(
        self, model: Model, shape: EvaluationShape, params: Params, inputs: EvaluationInputs
    ) -> None:
        self.model, self.shape, self.params, self.inputs = model, shape, params, inputs
        self.reading = my_part(inputs.reading)
        self.points = jax.tree.leaves(params)[0].shape[0]
        self.slices = reader(shape.width)

    def read(self) -> _Sums:
        """Read all rows."""
        return run_segments(self.reading.ends, self.tick, self.end_jobs, self.begin())

    def begin(self) -> _Sums:
        """The sums before any row is read."""
        lanes, clients, points = self.shape.lanes, len(self.inputs.sizes), self.points
        screened = self.shape.screened
        zero = _zeros(lambda: self.slice_sums(0))
        scatter = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (lanes, *a.shape)),
            jax.vmap(nothing)(self.params) if self.shape.gradients else None,
        )
        return _Sums(
            zero,
            jnp.zeros((lanes, points)),
            scatter,
            zero[1],
            jnp.zeros((lanes, points, 2)) if screened else None,
            jnp.zeros((clients, points)) if screened else None,
            jnp.zeros((clients, points)) if self.shape.by_client else None,
        )

    def slice_sums(self, i: jax.Array | int) -> Any:
        """((loss, gradient), metrics' terms) summed over each lane's slice at tick i."""

        def summed(params: Params, x: jax.Array, y: jax.Array, mask: jax.Array) -> Any:
            if self.shape.gradients:
                with_gradient = jax.value_and_grad(loss_and_sums, argnums=1, has_aux=True)
                (loss, terms), gradient = with_gradient(self.model, params, x, y, mask)
                return (loss, gradient), terms
            loss, terms = loss_and_sums(self.model, params, x, y, mask)
            return (loss, None), terms

        summed_all = over(over(summed, (0, None, None, None)), (None, 0, 0, 0))
        rows = self.slices(self.inputs.x, self.inputs.y, self.reading, i)
        return summed_all(self.params, *rows)

    def tick(self, i: jax.Array, sums: _Sums) -> _Sums:
        """Add a slice of each lane's client."""
        return sums._replace(client=jax.tree.map(jnp.add, sums.client, self.slice_sums(i)))

    def end_jobs(self, slot: jax.Array, sums: _Sums) -> _Sums:
        """Add the finished clients, those in `slot` (lanes,), to the sums; -1 for none."""
        ended, share = slot >= 0, self.inputs.shares[slot]
        client, terms = sums.client
        mean_loss, gradient = per_lane(client, self.inputs.sizes[slot])
        own_loss = mean_loss
        stand_for = self.inputs.stand_for.train[slot]
        weight = jnp.broadcast_to(stand_for[:, None], mean_loss.shape)
        if sums.weights is not None:
            finite = jax.vmap(jax.vmap(sound))((mean_loss, gradient))
            share = finite * share[:, None]
            mean_loss, gradient = scaled(finite, (mean_loss, gradient))
            new = jnp.stack([share, 1 - finite], axis=-1)
            sums = sums._replace(
                weights=sums.weights + choose(ended, new, jnp.zeros_like(new)),
                measured=_set_clients(sums.measured, slot, finite),
            )
            weight = finite * weight
            own_loss = jnp.where(finite > 0, mean_loss, jnp.nan)
        if self.shape.by_client:
            sums = sums._replace(losses=_set_clients(sums.losses, slot, own_loss))
        if self.shape.gradients:
            share_axis = 0 if self.shape.screened else None
            include_all = over(over(include, (0, 0, share_axis)), (0, 0, 0))
            included = include_all(sums.scatter, gradient, share)
            sums = sums._replace(scatter=where_lanes(ended, included, sums.scatter))
        zeros = jax.tree.map(jnp.zeros_like, (client, terms))
        share = choose(ended, share, jnp.zeros_like(share)).reshape(len(slot), -1)
        return sums._replace(
            client=where_lanes(ended, zeros, (client, terms)),
            loss=sums.loss + share * mean_loss,
            terms=_add_ended(sums.terms, slot, weight, terms),
        )

    def screen(self, sums: _Sums) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
        """The measured clients, their weight, and the number of the others; None without screening.

        The weight is exactly 1 if all clients are measured.
        """
        if sums.weights is None:
            return None, None, None
        weight, left_out = jnp.moveaxis(total(sums.weights.sum(axis=0)), -1, 0)
        weight = jnp.where(left_out > 0, weight, 1.0)
        return total(sums.measured), weight, left_out.astype(jnp.int32)


def _set_clients(array: Any, slot: jax.Array, values: jax.Array) -> jax.Array:
    """`array` (clients, points) with the values (lanes, points) of the clients in `slot`."""
    return array.at[jnp.where(slot >= 0, slot, len(array))].set(values, mode="drop")


def row_sums(
    model: Model,
    params: Params,
    x: jax.Array,
    y: jax.Array,
    mask: jax.Array,
    *,
    accuracy: bool = False,
) -> Tested:
    """Sums of one model over some rows.

    Args:
        model: The model.
        params: Its parameters.
        x: Features.
        y: Labels.
        mask: 1 for rows that count, else 0.
        accuracy: Whether the sums include the terms of the accuracy.
    """
    outputs = model.apply(params, x)
    correct = jnp.int32(0)
    if model.correct is not None:
        met = labels_met(model, outputs, y)
        correct = jnp.sum(met & (mask > 0).reshape((-1,) + (1,) * (met.ndim - 1)))
    loss = {"sum": losses_of(model, outputs, y), "rows": jnp.ones(len(y))}
    terms = {"loss": loss, **terms_of(model.metrics, outputs, y)}
    if accuracy:
        terms["accuracy"] = _accuracy_terms(model, outputs, y)
    return Tested(correct, weighted_sums(terms, mask))


def _tester(
    model: Model, width: int, *, jobs_are_clients: bool, accuracy: bool = False
) -> Callable[..., Tested]:
    """(params, x, y, reading, weights) -> sums over held-out rows.

    If jobs are clients, each client's sums are multiplied by its weight (clients, points), and
    correct labels have shape (clients, points). Otherwise rows have weight 1, and correct labels
    have shape (lanes, points). With `accuracy`, the sums include the terms of the accuracy.
    """
    read, test = reader(width), partial(row_sums, model, accuracy=accuracy)
    test_all = over(over(test, (0, None, None, None)), (None, 0, 0, 0))

    def all_rows(
        params: Params, x: Features, y: jax.Array, reading: Reading, weights: jax.Array | None
    ) -> Tested:
        def test_slices(i: jax.Array | int) -> Tested:
            return test_all(params, *read(x, y, reading, i))

        def tick(i: jax.Array, current: Tested) -> Tested:
            return jax.tree.map(jnp.add, current, test_slices(i))

        def tick_client(i: jax.Array, carry: Any) -> Any:
            return tick(i, carry[0]), carry[1]

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            assert weights is not None
            current, (correct, sums) = carry
            correct = _set_clients(correct, slot, current.correct)
            sums = _add_ended(sums, slot, weights[slot], current.sums)
            return where_lanes(slot >= 0, zero, current), Tested(correct, sums)

        zero = _zeros(lambda: test_slices(0))
        if weights is None or not jobs_are_clients:
            return jax.lax.fori_loop(0, jnp.max(reading.ends.stop), tick, zero)
        initial = Tested(jnp.zeros(weights.shape, zero.correct.dtype), zero.sums)
        return run_segments(reading.ends, tick_client, end_jobs, (zero, initial))[1]

    return all_rows


def _validator(
    model: Model, width: int, *, jobs_are_clients: bool
) -> Callable[[Params, Validation | None, jax.Array | None], dict[str, Terms] | None]:
    """(params, validation, measured) -> sums of terms over validation rows.

    If jobs are clients, only the `measured` ones (clients, points) count; None means all of them.
    Without validation rows, the result is None.
    """
    test = _tester(model, width, jobs_are_clients=jobs_are_clients, accuracy=True)

    def validate(
        params: Params, validation: Validation | None, measured: jax.Array | None
    ) -> dict[str, Terms] | None:
        if validation is None:
            return None
        x, y, reading, stand_for = validation
        weights = None
        if stand_for is not None:
            points = jax.tree.leaves(params)[0].shape[0]
            weights = jnp.broadcast_to(stand_for[:, None], (len(stand_for), points))
            weights = weights if measured is None else weights * measured
        return _sum_lanes(test(params, x, y, my_part(reading), weights).sums)

    return validate


def _accuracy_terms(model: Model, outputs: jax.Array, y: jax.Array) -> Terms:
    """Correct labels (NaN for a model without accuracy) and all labels, by row."""
    labels = jnp.ones(len(y)) if y.ndim == 1 else _by_row(y >= 0)
    if model.correct is None:
        return {"sum": jnp.full(len(y), jnp.nan), "rows": labels}
    return {"sum": _by_row(labels_met(model, outputs, y)), "rows": labels}


def _by_row(counted: jax.Array) -> jax.Array:
    """The number of true values in each row, float32 (B,), from booleans (B, ...)."""
    return counted.reshape(len(counted), -1).sum(axis=1).astype(real_type())


def _values(model: Model, kind: str, sums: dict[str, Terms]) -> dict[str, jax.Array]:
    """The model's metrics (points,) by kind and name, from their sums, leaves (points, ...)."""
    return {
        f"{kind}_{name}": jax.vmap(partial(value_of, name, metric))(sums[name])
        for name, metric in model.metrics.items()
    }


def _zeros(function: Callable[[], T]) -> T:
    """Zeros with the shapes and types that a function returns."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function))


def _add_ended(sums: T, slot: jax.Array, weight: jax.Array, values: T) -> T:
    """Add weight (lanes, points) times values to the sums, in the lanes whose job ends."""
    parts = scaled(weight, values)
    ended = choose(slot >= 0, parts, jax.tree.map(jnp.zeros_like, parts))
    return jax.tree.map(jnp.add, sums, ended)


def _sum_lanes(sums: T) -> T:
    """The sum over all lanes on all devices; leaves are (lanes, points, ...)."""
    return total(jax.tree.map(lambda a: a.sum(axis=0), sums))


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
