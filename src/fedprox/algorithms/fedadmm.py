"""FedADMM (Gong et al. 2022), with everyone FedPD (Zhang et al. 2021): ADMM for consensus.

Clients send the change of u_k = w_k + lambda_k / rho, so with rate |S_t| / N the model is the mean
of all u_k. With everyone and rate 1 this is FedDyn with alpha = rho and g_k = -lambda_k: the mean
of the u_k is mean w_k - h / alpha. With some of the clients the two differ, since FedDyn takes the
mean w_k of these alone. Clients start from w^t, as FedDyn's do.
"""

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms import base
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def augmented(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + <lambda_k, w> + (rho / 2) ||w - w^t||^2, from w^t."""
    _, dual = context.state
    return Subproblem(params, hparams["rho"], params, linear=dual)


def message(
    params: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[base.Pair, base.Pair]:
    """Send the changes of w_k and of lambda_k / rho, which is w_k - w^t; keep w_k and lambda_k."""
    del params
    last, dual = context.state
    step = base.local_update(solution)
    change = jax.tree.map(jnp.subtract, solution.params, last)
    return (change, step), (solution.params, base.add_scaled(dual, hparams["rho"], step))


def update(params: Params, mean: base.Pair, hparams: base.HParams) -> Params:
    """w^{t+1} = w^t + eta_g mean_k (change of u_k)."""
    return base.add_scaled(params, hparams["server_learning_rate"], jax.tree.map(jnp.add, *mean))


def fedadmm(rho: HParam, *, server_learning_rate: HParam = 1.0) -> base.Algorithm:
    r"""FedADMM: each client keeps a dual variable and minimizes its augmented Lagrangian.

    Client :math:`k` keeps :math:`\lambda_k`, at first zero, and its last :math:`w_k`, at first the
    initial parameters. It approximately minimizes

    .. math:: h_k(w) = F_k(w) + \langle \lambda_k, w \rangle + \frac{\rho}{2} \|w - w^t\|^2,

    starting from :math:`w^t`. With the result :math:`w_k'`, then

    .. math::
        \lambda_k' &= \lambda_k + \rho (w_k' - w^t), \qquad k \in S_t, \\
        w^{t+1} &= w^t + \frac{\eta_g}{|S_t|} \sum_{k \in S_t} \Big(w_k' +
            \frac{\lambda_k'}{\rho} - w_k - \frac{\lambda_k}{\rho}\Big).

    Stragglers' partial work is kept.

    Args:
        rho: Penalty of the augmented Lagrangian, above 0. A sequence sweeps over its values.
        server_learning_rate: :math:`\eta_g`, above 0. With the share :math:`|S_t| / N` of clients
            in a round, the server keeps the mean of all clients' :math:`w_k + \lambda_k / \rho`.
            A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If rho or a rate is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.fedadmm(rho=[0.01, 0.1]).hparams["rho"]
        (0.01, 0.1)

    References:
        Gong et al., `FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
        Heterogeneity <https://arxiv.org/abs/2204.03529>`_, ICDE 2022; and Zhang et al., `FedPD
        <https://arxiv.org/abs/2005.11418>`_, IEEE Transactions on Signal Processing, 2021.
    """
    rates = base.check_hparam("fedadmm: server_learning_rate", server_learning_rate, positive=True)
    rhos = base.check_hparam("fedadmm: rho", rho, positive=True)
    return base.Algorithm(
        "fedadmm",
        augmented,
        hparams={"rho": rhos, "server_learning_rate": rates},
        stragglers="keep",
        average="clients",
        fixed={
            "server": "its model follows the mean of all w_k + lambda_k / rho",
            "average": "server_learning_rate is a share of clients, each of which counts once",
        },
        client=base.OnClient(
            state=lambda params: (params, base.zeros(params)),
            message=message,
            # without the change since the client last took part, which may be long ago
            size=lambda sent: optax.tree.norm(sent[1]),
        ),
        server=base.OnServer(update=update),
    )
