"""FedOpt: the server takes a step of its own with the clients' mean update.

Reddi et al. 2020, Algorithm 1. Clients work, and count, as in FedAvg; their mean update stands for
a gradient:

    d       = sum_{k in S_t} weight_k (w_k - w^t)
    w^{t+1} = the server's optimizer, one step from w^t with the gradient -d

With SGD of rate 1 it is FedAvg; with momentum, FedAvgM; Adam and Yogi are as optax has them, with
its corrections and constants, where Reddi et al. have none and a larger eps: theirs is nearer with
`functools.partial(optax.adam, eps=1e-3)`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedprox.algorithms.base import Algorithm, HParams, check_hparam
from fedprox.algorithms.fedavg import local_loss
from fedprox.errors import require
from fedprox.model import Params
from fedprox.solver import BY_NAME, HParam, name_of, searches_line
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The model w^t and the state of the server's optimizer."""

    params: Params
    optimizer: Any


def posed(state: State, hparams: HParams, context: Any) -> Subproblem:
    """h_k(w) = F_k(w), from w^t."""
    return local_loss(state.params, hparams, context)


def _keeps_rate(optimizer: Callable[..., optax.GradientTransformation]) -> bool:
    """Whether an optimizer's first state depends on its learning rate."""
    try:
        slow, fast = (
            jax.tree.leaves(optimizer(learning_rate=rate).init(jnp.zeros(2))) for rate in (1.0, 2.0)
        )
    except BY_NAME:
        return False
    return not all(map(np.array_equal, slow, fast))


def fedopt(
    optimizer: Callable[..., optax.GradientTransformation], *, server_learning_rate: HParam = 1.0
) -> Algorithm:
    """FedAvg with an optimizer on the server (Reddi et al. 2020), dropping stragglers.

    Args:
        optimizer: `learning_rate=` -> gradient transformation, such as `optax.yogi` or
            `functools.partial(optax.sgd, momentum=0.9)`.
        server_learning_rate: Its rate, above 0, or several to sweep over.

    Raises:
        InputError: A rate <= 0, an optimizer that needs f itself, or one that keeps its rate in
            its state: the state is the same for all rates at first.

    >>> fedopt(optax.adam, server_learning_rate=0.01).variant
    'adam'
    """
    where = "fedopt: server_learning_rate"
    rates = check_hparam(where, server_learning_rate, positive=True)
    require(
        not searches_line(optimizer, "fedopt: optimizer"),
        "fedopt: this optimizer searches along a line, for which the server has no objective",
    )
    require(
        not _keeps_rate(optimizer),
        "fedopt: this optimizer keeps its learning rate in its state, where no other can be set; "
        "leave out what does so, such as optax.inject_hyperparams",
    )

    def init(params: Params) -> State:
        return State(params, optimizer(learning_rate=1.0).init(params))

    def update(state: State, mean: Params, hparams: HParams) -> State:
        """One step of the server's optimizer."""
        server = optimizer(learning_rate=hparams["server_learning_rate"])
        gradient = jax.tree.map(lambda d: -d, mean)
        step, after = server.update(gradient, state.optimizer, state.params)
        return State(optax.apply_updates(state.params, step), after)

    return Algorithm(
        "fedopt",
        posed,
        hparams={"server_learning_rate": rates},
        stragglers="drop",
        variant=name_of(optimizer),
        init=init,
        update=update,
        params=lambda state: state.params,
    )
