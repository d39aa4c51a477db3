"""Evaluation: one compiled pass over the rows of all clients, or of a sample of them.

It is a lane program like a round: a job is a client, a tick reads a slice of its rows and adds
their gradients, and at the end of the job the client's gradient is complete.
"""

from collections.abc import Callable, Sequence
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
from fedprox.simulation.devices.mesh import PER_DEVICE, REPLICATED, spread
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


def counts_tests_by_client(*, by_client: bool, screened: bool) -> bool:
    """Whether the jobs of the test reading are the clients."""
    return by_client or screened


def evaluation_program(
    model: Model,
    mesh: Mesh,
    *,
    gradients: bool,
    screened: bool,
    by_client: bool,
    lanes: int,
    width: int,
    test_width: int,
    rows: Sequence[Any],
    validation_width: int = 0,
    validation: Any = None,
) -> Wrapped:
    """Compile-once program that measures models on all clients, or on a sample of them.

    Args:
        model: The model.
        mesh: The devices.
        gradients: Whether to measure gradients too.
        screened: Whether clients whose own loss or gradient is not finite are left out: what is
            measured is then of the others, and NaN where there are none.
        by_client: Whether to say what is found client by client too.
        lanes: Lanes per device.
        width: Rows of a slice of training rows.
        test_width: Rows of a slice of test rows.
        rows: How x, y, test x and test y are spread over the devices.
        validation_width: Rows of a slice of validation rows.
        validation: How each part of a `Validation` is spread; None without any.

    Returns:
        (params, x, y, test x, test y, reading, sizes, shares, stand for, test reading, validation)
        -> Measures, where params have a leading axis of sweep points, sizes (clients,) are the rows
        read of each client, and shares (clients,) the p_k: of a sample of clients, n_k by the
        sample's rows. See `counts_tests_by_client` for the jobs of the test reading.
    """
    read_train = reader(width)
    jobs_are_clients = counts_tests_by_client(by_client=by_client, screened=screened)
    test = _tester(model, test_width, jobs_are_clients=jobs_are_clients)
    by_its_clients = validation is not None and validation.stand_for is not None
    validate = _validator(model, validation_width, jobs_are_clients=by_its_clients)

    def summed(params: Params, x: jax.Array, y: jax.Array, mask: jax.Array) -> Any:
        if gradients:
            found = jax.value_and_grad(loss_and_sums, argnums=1, has_aux=True)
            (loss, sums), gradient = found(model, params, x, y, mask)
            return (loss, gradient), sums
        loss, sums = loss_and_sums(model, params, x, y, mask)
        return (loss, None), sums

    summed_all = over(over(summed, (0, None, None, None)), (None, 0, 0, 0))
    each = 0 if screened else None
    include_all = over(over(include, (0, 0, each)), (0, 0, 0))

    def program(
        params: Params,
        x: Features,
        y: jax.Array,
        test_x: Features,
        test_y: jax.Array,
        reading: Reading,
        sizes: jax.Array,
        shares: jax.Array,
        stand_for: StandFor,
        test_reading: Reading,
        validation: Validation | None,
    ) -> Measures:
        reading, test_reading = my_part(reading), my_part(test_reading)
        points = jax.tree.leaves(params)[0].shape[0]
        zero = _zeros(lambda: summed_all(params, *read_train(x, y, reading, 0)))
        clients = len(sizes)
        scatter = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (lanes, *a.shape)),
            jax.vmap(nothing)(params) if gradients else None,
        )

        def tick(i: jax.Array, carry: Any) -> Any:
            current, *rest = carry
            found = summed_all(params, *read_train(x, y, reading, i))
            return jax.tree.map(jnp.add, current, found), *rest

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            (current, terms), loss, scatter, sums, screening, losses = carry
            ended, share = slot >= 0, shares[slot]
            mean_loss, gradient = per_lane(current, sizes[slot])
            own_loss = mean_loss
            weight = jnp.broadcast_to(stand_for.train[slot][:, None], mean_loss.shape)
            if screened:
                found = mean_loss, gradient
                good = jax.vmap(jax.vmap(sound))(found)
                share = good * share[:, None]
                mean_loss, gradient = scaled(good, found)
                new = jnp.stack([share, 1 - good], axis=-1)
                counts, measured = screening
                counts = counts + choose(ended, new, jnp.zeros_like(new))
                screening = counts, _noted(measured, slot, good)
                weight = good * weight
                own_loss = jnp.where(good > 0, mean_loss, jnp.nan)
            if by_client:
                losses = _noted(losses, slot, own_loss)
            if gradients:
                included = include_all(scatter, gradient, share)
                scatter = where_lanes(ended, included, scatter)
            none = jax.tree.map(jnp.zeros_like, (current, terms))
            return (
                where_lanes(ended, none, (current, terms)),
                loss + choose(ended, share, jnp.zeros_like(share)).reshape(lanes, -1) * mean_loss,
                scatter,
                _with_ended(sums, slot, weight, terms),
                screening,
                losses,
            )

        screening = measured = None
        if screened:
            screening = jnp.zeros((lanes, points, 2)), jnp.zeros((clients, points))
        losses = jnp.zeros((clients, points)) if by_client else None
        carry = (zero, jnp.zeros((lanes, points)), scatter, zero[1], screening, losses)
        _, loss, scatter, sums, screening, losses = run_segments(
            reading.ends, tick, end_jobs, carry
        )
        unmeasured = weight = None
        if screening is not None:
            counts, measured = screening[0], total(screening[1])
            weight, left = jnp.moveaxis(total(counts.sum(axis=0)), -1, 0)
            weight, unmeasured = jnp.where(left > 0, weight, 1.0), left.astype(jnp.int32)

        def of_measured(sums: jax.Array) -> jax.Array:
            return sums if weight is None else sums / weight

        variance = between = jnp.full(points, jnp.nan)
        if gradients:
            merged = _merge(scatter)
            variance = of_measured(merged.scatter)
            norm_squared = jax.vmap(optax.tree.norm)(merged.mean) ** 2
            between = dissimilarity(variance, norm_squared)

        correct = jnp.zeros((clients, points), jnp.int32)
        test_loss, metrics = jnp.full(points, jnp.nan), _values(model, "train", _of_all(sums))
        metrics |= {f"test_{name}": test_loss for name in model.metrics}
        if len(test_x):
            weights = jnp.broadcast_to(stand_for.test[:, None], correct.shape)
            weights = weights if measured is None else weights * measured
            correct, sums = test(params, test_x, test_y, test_reading, weights)
            sums = _of_all(sums)
            test_loss = sums["loss"]["sum"] / sums["loss"]["rows"]
            metrics |= _values(model, "test", sums)
        validated, validation_metrics = validate(params, validation, measured)
        return Measures(
            train_loss=of_measured(total(loss.sum(axis=0))),
            test_correct=total(correct.sum(axis=0)),
            gradient_variance=variance,
            dissimilarity=between,
            test_loss=test_loss,
            metrics=metrics | validation_metrics,
            unmeasured=unmeasured,
            by_client=None if losses is None else ByClient(total(losses), total(correct)),
            **validated,
        )

    specs = (REPLICATED, *rows, PER_DEVICE, *[REPLICATED] * 3, PER_DEVICE, validation)
    return spread(mesh, program, specs)


def _noted(found: jax.Array, slot: jax.Array, values: jax.Array) -> jax.Array:
    """Values (lanes, points) noted for the jobs that end."""
    return found.at[jnp.where(slot >= 0, slot, len(found))].set(values, mode="drop")


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
