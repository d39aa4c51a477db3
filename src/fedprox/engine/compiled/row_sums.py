"""Sums of losses, labels met and metrics over rows, for whatever measures models.

Evaluations of a run and of nodes, of clients' own models and of newcomers all compute these, and
`fedprox.evaluate`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Wrapped
from numpy.typing import NDArray

from fedprox.devices.programs import Request, compiled
from fedprox.features import index_of, look_up, with_index
from fedprox.federation import Rows
from fedprox.metrics import Terms, terms_of, weighted_sums
from fedprox.model import Model, Params, labels_met, losses_of, with_base
from fedprox.precision import in_shape, real_type

TOGETHER = 2**15
"""Most rows of several clients that are measured together by the same models."""

ROWS = 512
"""Most rows of any clients that `row_totals` has on the device at once."""

Values = NDArray[np.float64]


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
    if model.correct is not None:
        met = labels_met(model, outputs, y)
        counts = met & (inside > 0).reshape((-1,) + (1,) * (met.ndim - 1))
        correct = jnp.sum(counts, dtype=jnp.int32)
    return loss, (correct, terms)


def client_sums(
    model: Model, models: Params, rows: Rows, clients: NDArray[np.int64], *, own: bool
) -> tuple[Values, Values]:
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
        request = Request(lambda: _sums_program(model, own), arguments, ("own models", model, own))
        with jax.default_matmul_precision("highest"):  # as in evaluations of a run
            part = compiled(request)(*arguments)
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
    shared = jax.device_put(with_index(rows.x, index[:0]))  # such as a text, without rows
    width = max(1, min(ROWS, len(rows)))
    params = jax.tree.map(jnp.asarray, params)
    arguments = (
        model.base,
        params,
        with_index(shared, in_shape((width, *index.shape[1:]), index.dtype)),
        in_shape((width, *rows.y.shape[1:]), rows.y.dtype),
        in_shape((width,), np.int32),
    )
    sums = jax.tree.map(
        lambda a: np.zeros((clients, *a.shape[1:])), jax.eval_shape(_totals(model), *arguments)
    )
    if not len(rows):
        return sums
    summed = compiled(Request(lambda: _totals(model), arguments, ("row totals", model)))
    for start in range(0, len(rows), width):
        # the last slice is as wide as the others
        begin = min(start, len(rows) - width)
        at = slice(begin, begin + width)
        here, place = np.unique(owner[at], return_inverse=True)
        place[: start - begin] = width  # rows of the slice before are dropped
        x = with_index(shared, index[at])
        part = summed(model.base, params, x, rows.y[at], place.astype(np.int32))
        for total, of_slice in zip(*map(jax.tree.leaves, (sums, part)), strict=True):
            total[here] += np.asarray(of_slice)[: len(here)]
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
        if whole.correct is not None:
            met = labels_met(whole, outputs, y)
            by_row["correct"] = met.reshape(len(y), -1).sum(axis=1)
        return jax.tree.map(lambda a: jax.ops.segment_sum(a, place, len(y)), by_row)

    return jax.jit(totals)
