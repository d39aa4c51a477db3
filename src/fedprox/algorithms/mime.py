"""Mime and MimeLite (Karimireddy et al. 2021): every local step uses the server's momentum.

The paper's step is y - eta ((1 - beta) g + beta m); here M = m / (1 - beta). With whole gradients
and everyone, beta = 0 is FedDANE with mu = 0.
"""

from typing import Any, NamedTuple

import optax

from fedprox.algorithms import base
from fedprox.errors import require
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Reference, Subproblem


class State(NamedTuple):
    """The parameters w^t and the momentum M."""

    params: Params
    momentum: Params


def exchange(state: State, gradient: Params, hparams: base.HParams) -> State:
    """M^{t+1} = g^t + beta M^t."""
    return state._replace(momentum=base.add_scaled(gradient, hparams["beta"], state.momentum))


def mime(
    beta: HParam = 0.9, *, lite: bool = False, whole_gradients: bool = False
) -> base.Algorithm:
    r"""Mime: local steps with the server's momentum, and with a correction by the mean gradient.

    Clients of the cohort :math:`S_t` send :math:`\nabla F_k(w^t)`, whose plain mean is :math:`g^t`.
    Then client :math:`k` takes steps of SGD on

    .. math:: h_k(w) = F_k(w) + \langle g^t - \nabla F_k(w^t) + \beta M^t, w \rangle,

    from :math:`w^t`. The momentum :math:`M^t` stays fixed meanwhile. With a mini-batch :math:`z` a
    step is along

    .. math:: \nabla F_k(w; z) - \nabla F_k(w^t; z) + g^t + \beta M^t.

    The server computes

    .. math:: w^{t+1} = \frac{1}{|S_t|} \sum_{k \in S_t} w_k, \qquad M^{t+1} = g^t + \beta M^t.

    MimeLite leaves out :math:`g^t - \nabla F_k(w^t)`, and its clients send the gradient beside the
    update. Stragglers' partial work is kept.

    Args:
        beta: Momentum, from 0 to below 1. The solver's learning rate is :math:`1 - \beta` times the
            paper's. A sequence sweeps over its values.
        lite: Whether the method is MimeLite.
        whole_gradients: Whether steps subtract :math:`\nabla F_k(w^t)` of all rows in place of the
            paper's :math:`\nabla F_k(w^t; z)`: one gradient a step instead of two. Not with `lite`.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If beta is not from 0 to below 1, or `lite` and `whole_gradients` are both True.

    Example:
        >>> import fedprox as fp
        >>> fp.mime(beta=[0.0, 0.9], lite=True).variant
        'lite'

    References:
        Karimireddy et al., `Breaking the Centralized Barrier for Cross-Device Federated Learning
        <https://arxiv.org/abs/2008.03606>`_, NeurIPS 2021, Algorithm 1.
    """
    betas = base.check_hparam("mime: beta", beta)
    require(max(betas) < 1, f"mime: beta = {max(betas)}; it must be below 1")
    require(
        not (lite and whole_gradients),
        "mime: lite and whole_gradients: one of them must be false; MimeLite corrects nothing",
    )

    def subproblem(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
        """h_k(w) = F_k(w) + <g^t - grad F_k(w^t) + beta M^t, w>, from w^t."""
        if lite:
            linear = optax.tree.scale(hparams["beta"], state.momentum)
            return Subproblem(state.params, linear=linear)
        return Subproblem(
            state.params,
            linear=optax.tree.sub(state.momentum, context.gradient),
            reference=None if whole_gradients else Reference(state.params, context.gradient),
        )

    def message(
        state: State, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Any, base.ClientState]:
        """Send w_k - w^t, and in MimeLite grad F_k(w^t)."""
        del state, hparams
        step = base.local_update(solution)
        return (step, context.gradient) if lite else step, context.state

    def along(state: State, mean: Any, hparams: base.HParams) -> tuple[Params, State]:
        """Along the mean update; MimeLite's momentum follows here."""
        return (mean[0], exchange(state, mean[1], hparams)) if lite else (mean, state)

    return base.Algorithm(
        "mime",
        subproblem,
        hparams={"beta": betas},
        stragglers="keep",
        variant="lite" if lite else "whole gradients" if whole_gradients else "",
        average="clients",
        communication=2,
        not_private="" if lite else "one cohort would release gradients and then updates",
        client=base.OnClient(
            solver=base.plain_sgd("mime needs solver.optimizer = sgd without options"),
            message=message,
        ),
        server=base.beside_model(
            lambda params: State(params, base.zeros(params)),
            base.Direction(along, sent=lambda sent: sent[0] if lite else sent),
        ),
        first=base.First(gradient=True, exchange=None if lite else exchange, cohort="own"),
    )
