"""SiloBN and FedBN: FedAvg whose clients keep statistics, or normalization layers, of their own.

Both are FedAvg with a `model_state`, which any method takes: see `Algorithm.with_model_state`.
"""

from fedprox.algorithms import base
from fedprox.algorithms.fedavg import fedavg


def silobn() -> base.Algorithm:
    r"""SiloBN: FedAvg whose clients keep their running statistics.

    Client :math:`k` normalizes by its own running means and variances :math:`s_k` where it is
    evaluated, and shares all parameters, those of the normalization layers too. The server's model
    is evaluated with the mean of the clients' statistics. Stragglers are dropped.

    Returns:
        An algorithm for :func:`fedprox.simulate`, for models with state.

    Example:
        >>> import fedprox as fp
        >>> fp.silobn().model_state
        'own'

    References:
        Andreux et al., `Siloed Federated Learning for Multi-Centric Histopathology Datasets
        <https://arxiv.org/abs/2008.07424>`_, DCL 2020, section 3.
    """
    return fedavg().with_model_state("own")._replace(name="silobn", variant="")


def fedbn() -> base.Algorithm:
    r"""FedBN: FedAvg whose clients keep their normalization layers.

    Client :math:`k` keeps the parameters of the layers that have running statistics, and these
    statistics; it trains all layers and sends the others. The server's values of the layers' own
    parameters stay the initial ones. Stragglers are dropped.

    Returns:
        An algorithm for :func:`fedprox.simulate`, for models with state.

    Example:
        >>> import fedprox as fp
        >>> fp.fedbn().model_state
        'own layers'

    References:
        Li et al., `FedBN: Federated Learning on Non-IID Features via Local Batch Normalization
        <https://arxiv.org/abs/2102.07623>`_, ICLR 2021, section 3.
    """
    return fedavg().with_model_state("own layers")._replace(name="fedbn", variant="")
