"""Sums of losses, labels met and metrics over rows, for whatever measures models.

Evaluations of a run and of nodes, of clients' own models and of newcomers all compute these.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Wrapped
from numpy.typing import NDArray

from fedprox.devices.programs import Request, compiled
from fedprox.federation import Rows
from fedprox.metrics import Terms, terms_of, weighted_sums
from fedprox.model import Model, Params, labels_met, losses_of, with_base
from fedprox.precision import real_type

TOGETHER = 2**15
"""Most rows of several clients that are measured together by the same models."""

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
