"""FedOpt (Reddi et al. 2021): FedAvg whose server applies an optimizer to the mean update.

With SGD of rate 1 it is FedAvg, with momentum FedAvgM. optax's Adam and Yogi correct their biases
and have other constants than the paper's, which has no correction and a larger eps;
`functools.partial(optax.adam, eps=1e-3)` comes nearer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedprox.algorithms.base import Algorithm, HParams, OnServer, check_hparam
from fedprox.algorithms.fedavg import local_loss
from fedprox.errors import require
from fedprox.model import Params
from fedprox.solver import BY_NAME, HParam, name_of, searches_line
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters w^t and the state of the server's optimizer."""

    params: Params
    optimizer: Any


def local_problem(state: State, hparams: HParams, context: Any) -> Subproblem:
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


def _moves_alone(optimizer: Callable[..., optax.GradientTransformation]) -> bool:
    """Whether an optimizer moves parameters whose gradient is zero, as by weight decay."""
    server, params = optimizer(learning_rate=1.0), jnp.ones(2)
    try:
        step, _ = server.update(jnp.zeros(2), server.init(params), params)
    except BY_NAME:
        return True
    return bool(jnp.any(step != 0))


def fedopt(
    optimizer: Callable[..., optax.GradientTransformation], *, server_learning_rate: HParam = 1.0
) -> Algorithm:
    r"""FedOpt: FedAvg with an optimizer on the server (FedAvgM, FedAdam, FedYogi, ...).

    Clients work as in FedAvg. The server takes one step of its optimizer from :math:`w^t`, with
    the negative mean update in place of a gradient:

    .. math:: -\Delta^t = - \sum_{k \in S_t} \frac{n_k}{\sum_{j \in S_t} n_j} (w_k - w^t).

    Stragglers are dropped.

    Args:
        optimizer: A function of `learning_rate` that returns an optax optimizer, such as
            `optax.yogi` or `functools.partial(optax.sgd, momentum=0.9)`.
        server_learning_rate: Learning rate of the server's optimizer, above 0. A sequence sweeps
            over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If a rate is not above 0, if the optimizer needs values of f (a line search),
            or if it keeps its learning rate in its state, which a sweep shares at first.

    Example:
        >>> import fedprox as fp
        >>> fp.fedopt(optax.adam, server_learning_rate=0.01).variant
        'adam'

    References:
        Reddi et al., `Adaptive Federated Optimization <https://arxiv.org/abs/2003.00295>`_, ICLR
        2021, Algorithm 1.
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
        "use it without optax.inject_hyperparams or the like",
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
        local_problem,
        hparams={"server_learning_rate": rates},
        stragglers="drop",
        variant=name_of(optimizer),
        server=OnServer(
            init=init,
            update=update,
            params=lambda state: state.params,
            moves_alone=_moves_alone(optimizer),
        ),
    )
