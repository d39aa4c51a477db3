"""FedOpt (Reddi et al. 2021): FedAvg whose server applies an optimizer to the mean update.

With SGD of rate 1 it is FedAvg, with momentum FedAvgM. optax's Adam and Yogi correct their biases
and have other constants than the paper's, which has no correction and a larger eps;
`functools.partial(optax.adam, eps=1e-3)` comes nearer.
"""

from collections.abc import Callable

import optax

from fedprox.algorithms.base import Algorithm, check_hparam
from fedprox.algorithms.fedavg import fedavg
from fedprox.algorithms.server import stepping
from fedprox.solver import HParam


def fedopt(
    optimizer: Callable[..., optax.GradientTransformation], *, server_learning_rate: HParam = 1.0
) -> Algorithm:
    r"""FedOpt: FedAvg with an optimizer on the server (FedAvgM, FedAdam, FedYogi, ...).

    Clients work as in FedAvg. The server takes one step of its optimizer from :math:`w^t`, with
    the negative mean update in place of a gradient:

    .. math:: -\Delta^t = - \sum_{k \in S_t} \frac{n_k}{\sum_{j \in S_t} n_j} (w_k - w^t).

    Stragglers are dropped. It is :func:`fedprox.fedavg` with :func:`fedprox.server.optimizer`,
    which any other method takes too.

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
    rates = check_hparam("fedopt: server_learning_rate", server_learning_rate, positive=True)
    rule = stepping("fedopt", optimizer, rates)
    return fedavg().with_server(rule)._replace(name="fedopt")
