"""FedSplit: Peaceman-Rachford splitting of the mean of the clients' objectives.

Pathak and Wainwright 2020, adapted to partial participation as in Acar et al. 2021, appendix A.4.
Client k keeps z_k, the initial model at first; x^t is the model sent out:

    w_k     ~= argmin_w F_k(w) + (1 / 2s) ||w - (2 x^t - z_k)||^2,   from x^t
    z_k     <- z_k + 2 (w_k - x^t)                                   for k in S_t
    x^{t+1}  = mean of z_k, over all clients ("all") or over S_t ("active")

With every client in every round the two means agree, and where it stands still, w_k = x for every
k: the gradients at x add up to nothing.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    HParams,
    Solution,
    add,
    add_scaled,
    check_hparam,
    local_update,
    same_params,
)
from fedprox.errors import require_one_of
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class Message(NamedTuple):
    """The client's z_k from now on, and how far it moved, both as differences.

    Attributes:
        ahead: z_k' - x^t.
        step: z_k' - z_k = 2 (w_k - x^t).
    """

    ahead: Params
    step: Params


def reflected(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + (1 / 2s) ||w - (2 x^t - z_k)||^2, from x^t."""
    anchor = jax.tree.map(lambda x, z: 2 * x - z, params, context.state)
    return Subproblem(params, mu=1 / hparams["step_size"], anchor=anchor)


def message(
    params: Params, hparams: HParams, context: ClientContext, solution: Solution
) -> tuple[Message, Params]:
    """Send and keep z_k' = z_k + 2 (w_k - x^t)."""
    del hparams
    step = jax.tree.map(lambda a: 2 * a, local_update(solution))
    z = jax.tree.map(jnp.add, context.state, step)
    return Message(jax.tree.map(jnp.subtract, z, params), step), z


def fedsplit(step_size: HParam, *, average: Literal["all", "active"] = "active") -> Algorithm:
    """FedSplit (Acar et al. 2021, appendix A.4), keeping stragglers' partial work.

    Args:
        step_size: s of the proximal operator, above 0, or several to sweep over.
        average: The server's model: the mean of the z_k of the round's clients, or of all.

    Raises:
        InputError: s <= 0, or another mean.

    >>> fedsplit(step_size=1.0, average="all").name
    'fedsplit'
    """
    require_one_of("fedsplit: average", average, ("all", "active"))

    def update(params: Params, mean: Message, hparams: HParams) -> Params:
        """x^{t+1}, given the means over the round's clients."""
        if average == "active":
            return add(params, mean.ahead, hparams)
        return add_scaled(params, hparams["participation"], mean.step)

    return Algorithm(
        "fedsplit",
        reflected,
        hparams={"step_size": check_hparam("fedsplit: step_size", step_size, positive=True)},
        stragglers="keep",
        variant=average,
        average="clients",
        client_state=same_params,
        message=message,
        size=lambda message: optax.tree.norm(message.step),  # z_k is w^0 until k has taken part
        update=update,
    )
