"""FedSplit (Pathak and Wainwright 2020): Peaceman-Rachford splitting of the mean objective.

The paper has every client in every round. Partial participation follows Acar et al. 2021, appendix
A.4. With full participation both means of the server agree. At a fixed point w_k = x for every k,
so the clients' gradients at x sum to zero.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms import base
from fedprox.errors import require_one_of
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def reflected(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + (1 / 2s) ||w - (2 x^t - z_k)||^2, from x^t."""
    anchor = jax.tree.map(lambda x, z: 2 * x - z, params, context.state)
    return Subproblem(params, mu=1 / hparams["step_size"], anchor=anchor)


def message(
    params: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[base.Pair, Params]:
    """Keep z_k' = z_k + 2 (w_k - x^t), and send z_k' - x^t and z_k' - z_k."""
    del hparams
    step = jax.tree.map(lambda a: 2 * a, base.local_update(solution))
    z = jax.tree.map(jnp.add, context.state, step)
    return (jax.tree.map(jnp.subtract, z, params), step), z


def fedsplit(step_size: HParam, *, average: Literal["all", "active"] = "active") -> base.Algorithm:
    r"""FedSplit: operator splitting, with a reflected proximal step on each client.

    Client :math:`k` keeps :math:`z_k`, at first the initial parameters. With the server's
    :math:`x^t` it approximately minimizes

    .. math:: h_k(w) = F_k(w) + \frac{1}{2 s} \|w - (2 x^t - z_k)\|^2,

    starting from :math:`x^t`, and sets :math:`z_k \leftarrow z_k + 2 (w_k - x^t)`. The server's
    :math:`x^{t+1}` is the mean of the :math:`z_k`. Stragglers' partial work is kept.

    Args:
        step_size: Step size :math:`s` of the proximal operator, above 0. A sequence sweeps over its
            values.
        average: Clients of the server's mean: "active" for the round's cohort, "all" for all
            clients.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If the step size is not above 0 or not finite, or `average` has another value.

    Example:
        >>> import fedprox as fp
        >>> fp.fedsplit(step_size=1.0, average="all").variant
        'all'

    References:
        Pathak and Wainwright, `FedSplit: An algorithmic framework for fast federated optimization
        <https://arxiv.org/abs/2005.05238>`_, NeurIPS 2020; and Acar et al., `Federated Learning
        Based on Dynamic Regularization <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix
        A.4.
    """
    require_one_of("fedsplit: average", average, ("all", "active"))

    def update(params: Params, mean: base.Pair, hparams: base.HParams) -> Params:
        """The next x, given the means over the cohort."""
        ahead, step = mean
        if average == "active":
            return base.add(params, ahead, hparams)
        return base.add_scaled(params, hparams["participation"], step)

    return base.Algorithm(
        "fedsplit",
        reflected,
        hparams={"step_size": base.check_hparam("fedsplit: step_size", step_size, positive=True)},
        stragglers="keep",
        variant=average,
        average="clients",
        fixed={
            "server": "its model is the mean of the z_k",
            "average": "its model is the plain mean of the z_k",
        },
        client=base.OnClient(
            state=base.same_params,
            message=message,
            # without z_k, which is w^0 until the client has taken part
            size=lambda sent: optax.tree.norm(sent[1]),
        ),
        server=base.OnServer(update=update),
    )
