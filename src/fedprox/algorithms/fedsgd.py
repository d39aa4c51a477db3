"""FedSGD (McMahan et al. 2017, section 2): FedAvg with E = 1 and B = all."""

from dataclasses import replace

from fedprox.algorithms.base import Algorithm, OnClient
from fedprox.algorithms.fedavg import local_loss
from fedprox.solver import Solver


def one_full_batch(solver: Solver) -> Solver:
    """The same optimizer and learning rate, for one step on all of a client's rows."""
    return replace(solver, batch_size="all", epochs=1, steps=None)


def fedsgd() -> Algorithm:
    r"""FedSGD: every client takes one full-batch gradient step, and the server averages.

    With all clients in every round this is gradient descent on the global objective :math:`f`:

    .. math:: w^{t+1} = w^t - \eta \sum_k \frac{n_k}{n} \nabla F_k(w^t) = w^t - \eta \nabla f(w^t).

    Stragglers are dropped.

    Returns:
        An algorithm for :func:`fedprox.simulate`. It sets the solver's `batch_size` and `epochs`.

    Example:
        >>> import fedprox as fp
        >>> fp.fedsgd().solver(fp.Solver(learning_rate=0.1, batch_size=10, epochs=20)).epochs
        1

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 2.
    """
    return Algorithm(
        "fedsgd", local_loss, hparams={}, stragglers="drop", client=OnClient(solver=one_full_batch)
    )
