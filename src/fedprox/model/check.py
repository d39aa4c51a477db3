"""Whether a model's functions fit together, fit a federation, and treat each row by itself."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, FunctionType
from typing import Any
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, users_level
from fedprox.features import Features, arrays_at, index_of, row_count, rows_like
from fedprox.federation import Federation
from fedprox.jax_internals import nans_allowed, traced
from fedprox.losses import (
    CrossEntropy,
    SigmoidCrossEntropy,
    Squared,
    by_labels,
    classes_loss,
    fitting,
)
from fedprox.metrics import metric_value, terms_of
from fedprox.model.model import (
    Model,
    arguments,
    dotted,
    has_accuracy,
    labels_met,
    losses_of,
    named,
    outputs_of,
    with_base,
)
from fedprox.model.state import opened_at
from fedprox.model.variables import Params, opened
from fedprox.user_code import LIBRARIES, describe, shapes_of

ROUNDING_OF_A_ROW = 1e-4
"""By how much, relatively, a row's outputs may differ if other rows of the same batch change."""

OTHER_SHAPE = 0.05
"""The same if the batch has another number of rows, in bfloat16 too."""


def check_model(model: Model, federation: Federation) -> None:
    """Raise `InputError` unless a model's functions fit together and fit a federation's rows.

    The functions are traced, then run on a few rows, and `init` twice.
    """
    x, y = rows_like(federation.train.x), rows_like(federation.train.y)
    outputs = jax.eval_shape(model.apply, model.shapes, x)
    if model.train:
        found = jax.eval_shape(partial(_train_outputs, model), model.shapes, x, jax.random.key(0))
        require(
            describe(found) == describe(outputs),
            f"{named('train', _variables(model), ', key')} returns {describe(found)}; it must "
            f"return what model.apply does, {describe(outputs)}",
        )
    jax.eval_shape(partial(losses_of, model), outputs, y)
    _check_labels(model, federation, outputs, y)
    if federation.augment:
        stored, what = rows_like(index_of(federation.train.x)), "federation.augment(key, rows)"
        key = jax.random.key(0)
        augmented = shapes_of(what, federation.augment, key, stored, given={"rows": stored})
        shapes, needed = (jax.tree.map(np.shape, each) for each in (augmented, x))
        require(
            shapes == needed,
            f"{what} returns {describe(augmented)} for {describe(stored)}; it must return features "
            f"of shape {needed}",
        )
    if has_accuracy(model, y.dtype) and any(map(len, federation.parts[1:])):
        jax.eval_shape(partial(labels_met, model), outputs, y)
    terms = jax.eval_shape(partial(terms_of, model.metrics), outputs, y)
    for name, metric in model.metrics.items():
        sums = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), terms[name])
        jax.eval_shape(partial(metric_value, name, metric), sums)

    if not is_of_library(model) and _CHECKED.get(id(model)) is not model:
        with nans_allowed():  # parameters are others than those of the run
            check_run(model, federation)
        _CHECKED[id(model)] = model


FEW_LABELS = 2**16
"""Labels that are looked at, to see whether all are 0 or 1."""


ROWS_WITHOUT_CHANCE = 10
"""Rows of which each has one 1 not by chance: fewer may be tagged so."""


def _check_labels(model: Model, federation: Federation, outputs: Any, y: Any) -> None:
    """Raise `InputError` if a loss of the library does not fit the labels' values."""
    default = model.loss is by_labels
    loss = fitting(outputs, y) if default else model.loss
    needed = federation.classes
    if isinstance(loss, CrossEntropy):
        have = outputs.shape[-1]
        hint = " or, for labels of 0 and 1, one and loss=fedprox.losses.sigmoid_cross_entropy()"
        require(
            have >= needed,
            f"model: {have} outputs for {needed} classes; it needs one for each"
            + hint * (have == 1 and needed == 2),
        )
    if not isinstance(loss, SigmoidCrossEntropy | Squared) or not len(federation.train):
        return
    given = f"model: an output for each label of shape {y.shape[1:]}"
    stored = federation.train.y
    some = np.asarray(stored[: max(1, FEW_LABELS // max(1, stored[0].size))])
    known = some[some >= 0] if isinstance(loss, SigmoidCrossEntropy) else some
    # a coordinator has zeros in place of its nodes' labels
    binary = needed <= 2 and bool(known.any() and np.isin(known, (0, 1)).all())
    if isinstance(loss, SigmoidCrossEntropy):
        require(
            needed <= 2 and (known <= 1).all(),
            f"{given}, labels up to {max(needed - 1, known.max(initial=0))}: sigmoid cross-entropy "
            "needs 0 and 1; for classes, give outputs for each; for numbers, "
            "loss=fedprox.losses.squared() or huber()",
        )
    if not default or some.ndim == 1:
        return
    flat = some.reshape(len(some), -1)
    several = flat.shape[1] > 1 and len(flat) >= ROWS_WITHOUT_CHANCE
    one_hot = binary and several and bool((flat.sum(axis=1) == 1).all())
    require(
        not one_hot,
        f"{given}, of which each row has one 1: if they are classes, give numpy.argmax(y, axis=1) "
        "for cross-entropy, else loss=fedprox.losses.sigmoid_cross_entropy()",
    )
    require(
        not (binary and isinstance(loss, Squared)),
        f"{given}, which are 0.0 and 1.0: give loss=fedprox.losses.sigmoid_cross_entropy(), or "
        "squared() if they are numbers",
    )


def check_run(model: Model, federation: Federation) -> None:
    """Run a model's functions, and raise `InputError` if they depend on more than they should."""
    params = _check_init(model)
    if len(federation.train):
        _check_rows(model, federation, params)


_CHECKED = WeakValueDictionary[int, Model]()
"""The models that have been run in this process, by their identity, as long as others hold them."""


def is_of_library(given: Any) -> bool:
    """Whether a model, or one of the functions that it consists of, holds no code of the user's."""
    if isinstance(given, Model):
        return all(map(is_of_library, [getattr(given, f.name) for f in fields(given)]))
    if isinstance(given, partial):
        return all(map(is_of_library, (given.func, *given.args, *given.keywords.values())))
    if isinstance(given, tuple | list):
        return all(map(is_of_library, given))
    if isinstance(given, Mapping):
        return all(map(is_of_library, given.values()))
    if isinstance(given, FunctionType):
        cells = [cell.cell_contents for cell in given.__closure__ or () if _is_filled(cell)]
        return _root(given) in LIBRARIES and all(map(is_of_library, cells))
    if is_dataclass(given) and not isinstance(given, type):
        parts = [getattr(given, f.name) for f in fields(given)]
        return _root(type(given)) in LIBRARIES and all(map(is_of_library, parts))
    if hasattr(given, "__wrapped__"):
        return is_of_library(given.__wrapped__)
    kind = given if isinstance(given, type) else type(given)
    return not callable(given) or _root(kind) in LIBRARIES


def _root(code: Any) -> str:
    return str(code.__module__).partition(".")[0]


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _check_init(model: Model) -> Params:
    """Raise `InputError` if `init` draws from anything but its key; else its parameters.

    A program holds what was drawn from elsewhere when it was traced, so two are traced.
    """
    key = jax.random.key(0)
    (text, constants), (other_text, other_constants) = (traced(model.init, key) for _ in range(2))
    init = model.init if model.base else jax.jit(model.init)
    params = init(key)
    if text == other_text and _same(constants, other_constants):
        return params
    other = jax.jit(lambda key: model.init(key))(key)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(other), strict=True
    ):
        require(
            _same([a], [b]),
            f"model.init(key): {dotted(path) or 'its array'} differs between two calls with one "
            "key; draw all numbers from the key, with jax.random",
        )
    return params


def _variables(model: Model) -> tuple[Params, ...]:
    """The arguments of a model's functions before the features, in shape."""
    return tuple(model.shapes) if model.state else (model.shapes,)


def _train_outputs(model: Model, whole: Params, x: Any, key: jax.Array) -> Any:
    """The result of `train` on rows that all count."""
    model, params = opened_at(model, whole, jnp.ones(row_count(x), bool), moves=True)
    return outputs_of(model, params, x, key)


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether two lists of arrays are equal, where NaN equals itself."""
    pairs = zip(first, second, strict=True)
    return all(a is b or np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _check_rows(model: Model, federation: Federation, params: Params) -> None:
    """Raise `InputError` if what a model gives for a row depends on other rows of its batch."""
    tested = any(map(len, federation.parts[1:]))
    x, y = map(_some_rows, (federation.train.x, federation.train.y))
    program = jax.jit(partial(_first_row, model, tested))
    found = program(model.base, params, x, y, jax.random.key(0))
    among, copies, alone = jax.device_get(found)
    outputs = among["model.apply(params, x)"]
    if classes_loss(model.loss, outputs, y[:1]) and _are_probabilities(outputs):
        warnings.warn(PROBABILITIES, stacklevel=users_level())
    _require_same(among, copies, ROUNDING_OF_A_ROW)
    _require_same(among, alone, OTHER_SHAPE)


PROBABILITIES = (
    "model.apply returns probabilities, since no output is negative and those of a label add up to "
    "one, but cross-entropy takes logits: leave the last softmax out"
)


def _are_probabilities(outputs: NDArray[Any]) -> bool:
    """Whether outputs, (..., classes), are at least 0 and add up to one."""
    sums = np.asarray(outputs, np.float64).sum(axis=-1)
    return bool(outputs.shape[-1] > 1 and (outputs >= 0).all() and (abs(sums - 1) < 0.01).all())


def _some_rows(stored: Features) -> Any:
    """Three rows of a federation, and one of zeros, in case that all are the same."""
    count = row_count(stored)

    def with_zeros(rows: np.ndarray) -> jax.Array:
        rows = np.concatenate([rows, np.zeros_like(rows[:1])])
        return jnp.asarray(rows.astype(jax.dtypes.canonicalize_dtype(rows.dtype)))

    return jax.tree.map(with_zeros, arrays_at(stored, np.array([0, count // 2, count - 1])))


def _moved(leaf: jax.Array) -> jax.Array:
    """Parameters that are not all zero, as those of a last layer may be at first."""
    return leaf + (0.1 * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype))).reshape(leaf.shape)


def _first_row(
    model: Model, tested: bool, base: Any, params: Params, x: Features, y: jax.Array, key: Any
) -> tuple[dict[str, Any], ...]:
    """A model's outputs for the first row among others, among its copies, and alone.

    The results are named by the functions. Functions of outputs have the same outputs in all three,
    and those of a key are left out for the row alone, which has other random numbers.
    """
    whole, (trained, around) = with_base(model, base), opened(params)
    params = around(jax.tree.map(_moved, trained))

    def copies(rows: jax.Array) -> jax.Array:
        return jnp.broadcast_to(rows[:1], rows.shape)

    def alone(rows: jax.Array) -> jax.Array:
        return rows[:1]

    def functions_of_x(x: Features) -> dict[str, Any]:
        found = {"model.apply(params, x)": whole.apply(params, x)}
        if model.representation:
            given = arguments(params, whole.base)
            found[named("representation", given)] = model.representation(*given, x)
        if model.train and not model.state and row_count(x) > 1:
            found["model.train(params, x, key)"] = outputs_of(whole, params, x, key)
        return found

    def functions_of_outputs(outputs: Any, y: jax.Array) -> dict[str, Any]:
        found = {"model.loss(outputs, y)": losses_of(model, outputs, y)}
        if has_accuracy(model, y.dtype) and tested:
            found["model.correct(outputs, y)"] = labels_met(model, outputs, y)
        terms = terms_of(model.metrics, outputs, y)
        return found | {f"model.metrics[{name!r}].terms(outputs, y)": terms[name] for name in terms}

    one = jax.tree.map(alone, x)
    outputs, of_one = whole.apply(params, x), jax.eval_shape(whole.apply, params, one)

    def of_rows(rows: Callable[[jax.Array], jax.Array]) -> Any:
        """The outputs for some rows; what does not grow with the rows belongs to none."""
        return jax.tree.map(lambda a, b: a if a.shape == b.shape else rows(a), outputs, of_one)

    batches = [
        functions_of_x(jax.tree.map(rows, x)) | functions_of_outputs(of_rows(rows), rows(y))
        for rows in (lambda rows: rows, copies, alone)
    ]
    return tuple(jax.tree.map(lambda a: jnp.atleast_1d(a)[:1], batches))


def _require_same(found: dict[str, Any], other: dict[str, Any], rounding: float) -> None:
    """Raise `InputError` if two batches give different things for their first row."""
    for what, value in other.items():
        pairs = zip(*(jax.tree.leaves(each) for each in (found[what], value)), strict=True)
        for a, b in pairs:
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            most = np.max(np.abs(np.where(np.isfinite(a), a, 0)), initial=0)
            require(
                np.allclose(a, b, rtol=0, atol=rounding * most, equal_nan=True),
                f"{what}: a row's values depend on the other rows of its batch, but batches are "
                "padded and read in parts: normalize each row by itself, as nnx.GroupNorm or "
                "nnx.LayerNorm, and divide by no number of rows",
            )
