"""pFedMe (Dinh et al. 2020): personal models by Moreau envelopes.

In Algorithm 1 a client repeats R times: K steps of its solver on one envelope, then a step of the
envelope's centre. With R = 1, eta = 1 / lambda and beta = 1 the server averages the personal
models, which is FedProx with mu = lambda and equal weights. A client's memory is w_{k,r} - w^t,
and the number of steps so far on this envelope.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.errors import require_whole
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def begin(state: Params, context: base.ClientContext) -> tuple[Params, jax.Array]:
    """The first envelope's centre is w^t."""
    del context
    return base.zeros(state), jnp.int32(0)


def envelope(state: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """F_k(theta) + (lambda / 2) ||theta - w_{k,r}||^2, from w^t."""
    centre = base.add_scaled(state, 1.0, context.memory[0])
    return Subproblem(state, mu=hparams["lam"], anchor=centre)


def follow(
    most: Any, state: Params, hparams: base.HParams, context: base.ClientContext, theta: Params
) -> Any:
    """After `most` steps on an envelope, w_{k,r+1} = w_{k,r} - eta lambda (w_{k,r} - theta)."""
    before, steps = context.memory
    ended = steps + 1 >= most
    rate = jnp.where(ended, hparams["eta"] * hparams["lam"], 0.0)
    moved = jax.tree.map(lambda m, v, w: m + rate * (v - w - m), before, theta, state)
    return moved, jnp.where(ended, 0, steps + 1)


def message(
    state: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[Params, base.Own]:
    """Send w_{k,R} - w^t, also if its last envelope had fewer than K steps; keep theta_k."""
    most = jnp.where(context.memory[1] > 0, 0, jnp.inf)
    sent, _ = follow(most, state, hparams, context, solution.params)
    return sent, base.trained(solution.params)


def pfedme(
    lam: HParam, *, eta: HParam, beta: HParam = 1.0, inner_steps: int | None = None
) -> base.Algorithm:
    r"""Personal models by pFedMe: the server minimizes the mean of their Moreau envelopes.

    Client :math:`k` starts from :math:`w_{k,0} = w^t`. For :math:`r = 0, \dots, R - 1` it takes
    :math:`K` local steps towards :math:`\arg\min_\theta F_k(\theta) + \frac{\lambda}{2} \|\theta -
    w_{k,r}\|^2`, which give :math:`\theta_k`, and then a step on this envelope. Its own model is
    the last :math:`\theta_k`. The server averages:

    .. math::
        w_{k,r+1} &= w_{k,r} - \eta \lambda (w_{k,r} - \theta_k) \\
        w^{t+1} &= (1 - \beta) w^t + \frac{\beta}{|S_t|} \sum_{k \in S_t} w_{k,R}.

    :math:`R` is the number of a client's local steps, divided by :math:`K`. Stragglers' partial
    work is kept.

    Args:
        lam: :math:`\lambda`, above 0. A sequence sweeps over its values; so it does for eta and
            beta.
        eta: :math:`\eta`, the envelopes' rate, above 0 and sensibly at most :math:`1 / \lambda`.
        beta: :math:`\beta`, above 0.
        inner_steps: :math:`K`; None for all of a round's steps, :math:`R = 1`.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If an argument is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> sorted(fp.pfedme(lam=15.0, eta=0.05).hparams)
        ['beta', 'eta', 'lam']

    References:
        Dinh, Tran, Nguyen, `Personalized Federated Learning with Moreau Envelopes
        <https://arxiv.org/abs/2006.08848>`_, NeurIPS 2020, Algorithm 1.
    """
    given = ("lam", lam), ("eta", eta), ("beta", beta)
    if inner_steps is not None:
        require_whole("pfedme: inner_steps", inner_steps)
    return base.Algorithm(
        "pfedme",
        envelope,
        hparams={k: base.check_hparam(f"pfedme: {k}", v, positive=True) for k, v in given},
        stragglers="keep",
        variant="" if inner_steps is None else f"K={inner_steps}",
        average="clients",
        personal=base.Personal(own=lambda own, _: own),
        client=base.OnClient(
            state=base.untrained,
            message=message,
            memory=base.Memory(begin, partial(follow, inner_steps or jnp.inf)),
        ),
        server=base.OnServer(update=replace(base.add, rate="beta")),
    )
