"""Evaluation: one compiled pass over the rows of all clients, or of a sample of them.

It is a lane program like a round: a job is a client, a tick reads a slice of its rows and adds
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
from fedprox.simulation.compiled.gradients import my_part, per_lane, reader
from fedprox.simulation.compiled.lanes import choose, over, run_segments, total, where_lanes
from fedprox.simulation.compiled.screening import scaled, sound
from fedprox.simulation.devices.mesh import REPLICATED, spread
from fedprox.simulation.planning.packing import Array
from fedprox.simulation.planning.reads import Reading

T = TypeVar("T")


class ByClient(NamedTuple):
    """What an evaluation finds of each client that it reads, each of shape (clients, points).

    Attributes:
        loss: F_k(w); NaN for a client that is left out.
        correct: How many of its test labels are met, int32.
    """

    loss: jax.Array
    correct: jax.Array


class Measures(NamedTuple):
    """What an evaluation finds, each of shape (points,).

    Attributes:
        train_loss: f(w) over the training rows that are read.
        test_correct: How many of all clients' test labels are met, int32.
        gradient_variance: E_k ||grad F_k - grad f||^2; NaN where gradients are not measured.
        dissimilarity: B(w); likewise.
        test_loss: Mean loss over the test rows that are read, where a client counts by all it has;
            NaN without any.
        metrics: The model's metrics, `train_NAME`, `test_NAME` and, where there are validation
            rows, `validation_NAME`, likewise.
        unmeasured: Clients that the other measures but test_correct leave out, int32; None where
            none is.
        by_client: The same client by client; None where nobody asks.
        validation_loss: As `test_loss` over the validation rows; None without any.
        validation_accuracy: The share of validation labels that are met, where a client counts by
            all it has; NaN for a model without accuracy, None without any validation rows.
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


class StandFor(NamedTuple):
    """How many of a client's rows each that is read stands for, float32 arrays (clients,)."""

    train: Array
    test: Array


class Validation(NamedTuple):
    """The validation rows that an evaluation reads, and how.

    Attributes:
        x: Features.
        y: Labels.
        reading: Which rows each lane reads; the jobs are clients where `stand_for` is given.
        stand_for: How many of a client's rows each that is read stands for, float32 (clients,);
            None where all rows are read alike.
    """

    x: Features
    y: jax.Array
    reading: Reading
    stand_for: jax.Array | None


class Tested(NamedTuple):
    """What is summed over held-out rows; leaves have leading axes of lanes and points.

    Attributes:
        correct: Labels that are met, int32.
        sums: Of the loss, and of each metric's terms.
    """

    correct: jax.Array
    sums: dict[str, Terms]


class EvaluationShape(NamedTuple):
    """What an evaluation program is compiled for.

    Attributes:
        gradients: Whether it measures gradients too.
        screened: Whether it leaves out clients whose own loss or gradient is not finite. Measures
            are then those of the other clients, and NaN if there are none.
        by_client: Whether it reports losses and labels met client by client too.
        lanes: Lanes per device.
        width: Rows of a slice of training rows.
        test_width: Rows of a slice of test rows.
        validation_width: Rows of a slice of validation rows; 0 without any.
    """

    gradients: bool
    screened: bool
    by_client: bool
    lanes: int
    width: int
    test_width: int
    validation_width: int


class EvaluationInputs(NamedTuple):
    """What an evaluation reads beside the models.

    Attributes:
        x: Features of training rows.
        y: Their labels.
        test_x: Features of test rows.
        test_y: Their labels.
        reading: Which training rows each lane reads; its jobs are the clients.
        sizes: Training rows that are read of each client, float32 (clients,).
        shares: p_k of each client, float32 (clients,); of a sample of clients, n_k by the sample's
            rows.
        stand_for: How many rows each row that is read stands for.
        test_reading: Which test rows each lane reads. Its jobs are the clients if the shape is
            screened or by client.
        validation: The validation rows; None without any.
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
        shape: What it is compiled for.
        specs: How each input is spread over the devices.

    Returns:
        (params, inputs) -> Measures, where params have a leading axis of sweep points.
    """
    by_client = shape.by_client or shape.screened
    test = _tester(model, shape.test_width, jobs_are_clients=by_client)
    spec = specs.validation
    validate = _validator(
        model,
        shape.validation_width,
        jobs_are_clients=spec is not None and spec.stand_for is not None,
    )

    def program(params: Params, inputs: EvaluationInputs) -> Measures:
        train = _Training(model, shape, params, inputs)
        sums = train.read()
        measured, unmeasured, of_measured = train.screen(sums)
        variance, between = train.gradients(sums, of_measured)
        metrics = _values(model, "train", _of_all(sums.terms))

        points, clients = train.points, len(inputs.sizes)
        correct, test_loss = jnp.zeros((clients, points), jnp.int32), jnp.full(points, jnp.nan)
        metrics |= {f"test_{name}": test_loss for name in model.metrics}
        if len(inputs.test_x):
            weights = jnp.broadcast_to(inputs.stand_for.test[:, None], correct.shape)
            weights = weights if measured is None else weights * measured
            reading = my_part(inputs.test_reading)
            correct, terms = test(params, inputs.test_x, inputs.test_y, reading, weights)
            terms = _of_all(terms)
            test_loss = terms["loss"]["sum"] / terms["loss"]["rows"]
            metrics |= _values(model, "test", terms)
        validated, validation_metrics = validate(params, inputs.validation, measured)
        losses = sums.losses
        return Measures(
            train_loss=of_measured(total(sums.loss.sum(axis=0))),
            test_correct=total(correct.sum(axis=0)),
            gradient_variance=variance,
            dissimilarity=between,
            test_loss=test_loss,
            metrics=metrics | validation_metrics,
            unmeasured=unmeasured,
            by_client=None if losses is None else ByClient(total(losses), total(correct)),
            **validated,
        )

    return spread(mesh, program, (REPLICATED, specs))


class _Sums(NamedTuple):
    """What the lanes have summed over the training rows so far.

    Attributes:
        client: Loss and gradient, and the metrics' terms, of each lane's client; leaves (lanes,
            points, ...).
        loss: sum_k p_k F_k of the clients that are done, (lanes, points).
        scatter: Mean and scatter of their gradients; None without gradients.
        terms: The sums of their metrics' terms.
        weights: With screening, the p_k of the measured clients and the number of others, (lanes,
            points, 2); else None.
        measured: With screening, 1 for each client that is measured, (clients, points); else None.
        losses: F_k of each client, (clients, points), where asked for; else None.
    """

    client: Any
    loss: jax.Array
    scatter: Scatter | None
    terms: Any
    weights: jax.Array | None
    measured: jax.Array | None
    losses: jax.Array | None


class _Training:
    """The pass over the training rows.

    Args:
        model: The model.
        shape: What the program is compiled for.
        params: The models, leaves (points, ...).
        inputs: What is read.
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
        """Nothing is read yet."""
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
        """Count the clients whose rows are all read: those in `slot` (lanes,), -1 for none."""
        ended, share = slot >= 0, self.inputs.shares[slot]
        client, terms = sums.client
        mean_loss, gradient = per_lane(client, self.inputs.sizes[slot])
        own_loss = mean_loss
        stand_for = self.inputs.stand_for.train[slot]
        weight = jnp.broadcast_to(stand_for[:, None], mean_loss.shape)
        if sums.weights is not None:
            good = jax.vmap(jax.vmap(sound))((mean_loss, gradient))
            share = good * share[:, None]
            mean_loss, gradient = scaled(good, (mean_loss, gradient))
            new = jnp.stack([share, 1 - good], axis=-1)
            sums = sums._replace(
                weights=sums.weights + choose(ended, new, jnp.zeros_like(new)),
                measured=_noted(sums.measured, slot, good),
            )
            weight = good * weight
            own_loss = jnp.where(good > 0, mean_loss, jnp.nan)
        if self.shape.by_client:
            sums = sums._replace(losses=_noted(sums.losses, slot, own_loss))
        if self.shape.gradients:
            each = 0 if self.shape.screened else None
            include_all = over(over(include, (0, 0, each)), (0, 0, 0))
            included = include_all(sums.scatter, gradient, share)
            sums = sums._replace(scatter=where_lanes(ended, included, sums.scatter))
        none = jax.tree.map(jnp.zeros_like, (client, terms))
        share = choose(ended, share, jnp.zeros_like(share)).reshape(len(slot), -1)
        return sums._replace(
            client=where_lanes(ended, none, (client, terms)),
            loss=sums.loss + share * mean_loss,
            terms=_with_ended(sums.terms, slot, weight, terms),
        )

    def screen(
        self, sums: _Sums
    ) -> tuple[jax.Array | None, jax.Array | None, Callable[[jax.Array], jax.Array]]:
        """Which clients are measured, how many are not, and how to make sums means over them."""
        if sums.weights is None:
            return None, None, lambda summed: summed
        measured = total(sums.measured)
        weight, left_out = jnp.moveaxis(total(sums.weights.sum(axis=0)), -1, 0)
        weight = jnp.where(left_out > 0, weight, 1.0)
        return measured, left_out.astype(jnp.int32), lambda summed: summed / weight

    def gradients(
        self, sums: _Sums, of_measured: Callable[[jax.Array], jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Gradient variance and B(w); NaN where gradients are not measured."""
        if sums.scatter is None:
            unknown = jnp.full(self.points, jnp.nan)
            return unknown, unknown
        merged = _merge(sums.scatter)
        variance = of_measured(merged.scatter)
        norm_squared = jax.vmap(optax.tree.norm)(merged.mean) ** 2
        return variance, dissimilarity(variance, norm_squared)


def _noted(known: Any, slot: jax.Array, values: jax.Array) -> jax.Array:
    """`known` (clients, points) with the values (lanes, points) of the clients in `slot`."""
    return known.at[jnp.where(slot >= 0, slot, len(known))].set(values, mode="drop")


def _tester(
    model: Model, width: int, *, jobs_are_clients: bool, accuracy: bool = False
) -> Callable[..., Tested]:
    """(params, x, y, reading, weights) -> what is found on held-out rows, the weights by client.

    With `accuracy` the sums hold that of the labels that are met, as they hold that of the loss.

    Where jobs are clients, labels met are (clients, points), and sums have these weights (clients,
    points); else both are those of each lane, (lanes, points, ...), and rows have weight 1.
    """
    read = reader(width)

    def tested(params: Params, x: jax.Array, y: jax.Array, mask: jax.Array) -> Tested:
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

    tested_all = over(over(tested, (0, None, None, None)), (None, 0, 0, 0))

    def all_rows(
        params: Params, x: Features, y: jax.Array, reading: Reading, weights: jax.Array | None
    ) -> Tested:
        def found(i: jax.Array | int) -> Tested:
            return tested_all(params, *read(x, y, reading, i))

        def tick(i: jax.Array, current: Tested) -> Tested:
            return jax.tree.map(jnp.add, current, found(i))

        def tick_on(i: jax.Array, carry: Any) -> Any:
            return tick(i, carry[0]), carry[1]

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            assert weights is not None
            current, (correct, sums) = carry
            correct = _noted(correct, slot, current.correct)
            sums = _with_ended(sums, slot, weights[slot], current.sums)
            return where_lanes(slot >= 0, zero, current), Tested(correct, sums)

        zero = _zeros(lambda: found(0))
        if weights is None or not jobs_are_clients:
            return jax.lax.fori_loop(0, jnp.max(reading.ends.stop), tick, zero)
        nothing = Tested(jnp.zeros(weights.shape, zero.correct.dtype), zero.sums)
        return run_segments(reading.ends, tick_on, end_jobs, (zero, nothing))[1]

    return all_rows


Found = dict[str, jax.Array]
"""Measures by name, each (points,)."""


def _validator(
    model: Model, width: int, *, jobs_are_clients: bool
) -> Callable[[Params, Validation | None, jax.Array | None], tuple[Found, Found]]:
    """(params, validation, measured) -> loss and accuracy on validation rows, and the metrics.

    Where jobs are clients, those count that are `measured` (clients, points), all if it is None.
    Without validation there are no measures.
    """
    test = _tester(model, width, jobs_are_clients=jobs_are_clients, accuracy=True)

    def validate(
        params: Params, validation: Validation | None, measured: jax.Array | None
    ) -> tuple[Found, Found]:
        if validation is None:
            return {}, {}
        x, y, reading, stand_for = validation
        weights = None
        if stand_for is not None:
            points = jax.tree.leaves(params)[0].shape[0]
            weights = jnp.broadcast_to(stand_for[:, None], (len(stand_for), points))
            weights = weights if measured is None else weights * measured
        sums = _of_all(test(params, x, y, my_part(reading), weights).sums)
        found = {
            f"validation_{name}": sums[name]["sum"] / sums[name]["rows"]
            for name in ("loss", "accuracy")
        }
        return found, _values(model, "validation", sums)

    return validate


def _accuracy_terms(model: Model, outputs: jax.Array, y: jax.Array) -> Terms:
    """What each row adds to the labels met and to all labels; NaN for a model without accuracy."""
    labels = jnp.ones(len(y)) if y.ndim == 1 else _by_row(y >= 0)
    if model.correct is None:
        return {"sum": jnp.full(len(y), jnp.nan), "rows": labels}
    return {"sum": _by_row(labels_met(model, outputs, y)), "rows": labels}


def _by_row(counted: jax.Array) -> jax.Array:
    """How many are true in each row, float32 (B,), given booleans (B, ...)."""
    return counted.reshape(len(counted), -1).sum(axis=1).astype(jnp.float32)


def _values(model: Model, kind: str, sums: dict[str, Terms]) -> dict[str, jax.Array]:
    """The model's metrics (points,) by kind and name, given their sums, leaves (points, ...)."""
    return {
        f"{kind}_{name}": jax.vmap(partial(value_of, name, metric))(sums[name])
        for name, metric in model.metrics.items()
    }


def _zeros(found: Callable[[], T]) -> T:
    """Zeros of the shapes and types that a function returns."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(found))


def _with_ended(sums: T, slot: jax.Array, weight: jax.Array, found: T) -> T:
    """Sums plus weight (lanes, points) times what is found, in the lanes whose job ends."""
    parts = scaled(weight, found)
    ended = choose(slot >= 0, parts, jax.tree.map(jnp.zeros_like, parts))
    return jax.tree.map(jnp.add, sums, ended)


def _of_all(sums: T) -> T:
    """Sums over all lanes on all devices; leaves are (lanes, points, ...)."""
    return total(jax.tree.map(lambda a: a.sum(axis=0), sums))


def _merge(parts: Scatter) -> Scatter:
    """Scatter of all lanes on all devices together; leaves are (lanes, points, ...)."""

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
