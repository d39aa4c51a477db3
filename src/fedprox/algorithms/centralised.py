"""Centralised SGD: the baseline of training on pooled data."""

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.fedavg import local_loss


def centralised() -> Algorithm:
    r"""Centralised SGD: all training rows in one place.

    A round minimizes the global objective directly,

    .. math:: f(w) = \sum_k \frac{n_k}{n} F_k(w),

    by mini-batch steps on all clients' rows together. It takes as many steps as the round's cohort
    would take together, so that equal rounds mean equal work.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Example:
        >>> import fedprox as fp
        >>> fp.centralised().pooled
        True

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3, the baseline "SGD".
    """
    return Algorithm(
        "centralised",
        local_loss,
        hparams={},
        stragglers="keep",
        pooled=True,
        fixed=dict.fromkeys(("server", "stragglers", "average"), "it has no clients"),
    )
