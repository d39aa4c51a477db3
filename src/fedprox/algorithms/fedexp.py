"""FedExP (Jhunjhunwala et al. 2023): FedAvg whose server extrapolates along the mean update.

The paper evaluates the mean of the last two models, evaluations here the last one.
"""

from fedprox.algorithms.base import Algorithm, check_hparam
from fedprox.algorithms.fedavg import fedavg
from fedprox.algorithms.server import extrapolating
from fedprox.solver import HParam


def fedexp(epsilon: HParam = 1e-3) -> Algorithm:
    r"""FedExP: the server's step grows with the disagreement of the clients' updates.

    Clients work as in FedAvg. With the updates :math:`d_k = w_k - w^t` of the :math:`m` clients
    that finish, the server computes

    .. math::
        \eta_g &= \max\Big(1, \frac{\sum_{k \in S_t} \|d_k\|^2}
            {2 m (\|\bar d\|^2 + \varepsilon)}\Big), \qquad
            \bar d = \frac{1}{m} \sum_{k \in S_t} d_k, \\
        w^{t+1} &= w^t + \eta_g \bar d.

    Stragglers are dropped. It is :func:`fedprox.fedavg` with equal weights and
    :func:`fedprox.server.extrapolate`, which other methods take too.

    Args:
        epsilon: :math:`\varepsilon`, above 0, which bounds the step where updates cancel. It is
            compared with squared norms of updates. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If epsilon is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.fedexp(epsilon=[0.001, 0.1]).hparams["epsilon"]
        (0.001, 0.1)

    References:
        Jhunjhunwala et al., `FedExP: Speeding Up Federated Averaging via Extrapolation
        <https://arxiv.org/abs/2301.09604>`_, ICLR 2023.
    """
    rule = extrapolating(check_hparam("fedexp: epsilon", epsilon, positive=True))
    method = fedavg().with_average("clients").with_server(rule)
    return method._replace(name="fedexp", variant="")
