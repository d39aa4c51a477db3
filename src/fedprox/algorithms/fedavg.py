"""FedAvg (McMahan et al. 2017): h_k = F_k, and a server that averages; and its special cases.

The paper's server waits for the whole cohort. This one drops clients that cannot finish, as in the
experiments of Li et al. 2020, section 5.2. FedSGD is FedAvg with E = 1 and B = all; centralised SGD
has one client with all rows.

FedOpt and FedExP are FedAvg with a server rule. With SGD of rate 1, FedOpt is FedAvg, with momentum
FedAvgM. optax's Adam and Yogi correct their biases and have other constants than the paper's, which
has no correction and a larger eps; `functools.partial(optax.adam, eps=1e-3)` comes nearer. The
paper of FedExP evaluates the mean of the last two models, evaluations here the last one.
"""

from collections.abc import Callable
from dataclasses import replace

import optax

from fedprox.algorithms import base
from fedprox.algorithms.server import extrapolate, stepping
from fedprox.model import Params
from fedprox.solver import HParam, Solver
from fedprox.subproblem import Subproblem


def local_loss(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """h_k(w) = F_k(w), from w^t."""
    del hparams, context
    return Subproblem(start=params)


def fedavg(
    *, stragglers: base.Stragglers = "drop", average: base.Average = "rows"
) -> base.Algorithm:
    r"""FedAvg: clients run SGD on their own data, and the server averages their models.

    Client :math:`k` computes :math:`w_k` by :math:`E` epochs of SGD on :math:`F_k` from
    :math:`w^t`. The server computes

    .. math:: w^{t+1} = \sum_{k \in S_t} \frac{n_k}{\sum_{j \in S_t} n_j} w_k.

    Args:
        stragglers: "keep" averages the partial work of stragglers; "drop" leaves stragglers out.
        average: Weights of the server's mean. "rows" weights clients by their training rows
            :math:`n_k`. "clients" weights them equally, so that the objective is the plain mean of
            the :math:`F_k`.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If `stragglers` or `average` has another value.

    Example:
        >>> import fedprox as fp
        >>> fp.fedavg().stragglers, fp.fedavg(stragglers="keep", average="clients").average
        ('drop', 'clients')

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, Algorithm 1.
    """
    plain = base.Algorithm("fedavg", local_loss, hparams={}, stragglers="drop")
    return plain.with_stragglers(stragglers).with_average(average)


def one_full_batch(solver: Solver) -> Solver:
    """The same optimizer and learning rate, for one step on all of a client's rows."""
    return replace(solver, batch_size="all", epochs=1, steps=None)


def fedsgd() -> base.Algorithm:
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
    return base.Algorithm(
        "fedsgd",
        local_loss,
        hparams={},
        stragglers="drop",
        client=base.OnClient(solver=one_full_batch),
    )


def centralised() -> base.Algorithm:
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
    return base.Algorithm(
        "centralised",
        local_loss,
        hparams={},
        stragglers="keep",
        pooled=True,
        fixed=dict.fromkeys(
            ("server", "stragglers", "average", "model_state"), "it has no clients"
        ),
    )


def fedopt(
    optimizer: Callable[..., optax.GradientTransformation], *, server_learning_rate: HParam = 1.0
) -> base.Algorithm:
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
        InputError: If a rate is not above 0. Also if the optimizer needs values of f (a line
            search), or keeps its learning rate in its state, which sweep points share.

    Example:
        >>> import fedprox as fp
        >>> fp.fedopt(optax.adam, server_learning_rate=0.01).variant
        'adam'

    References:
        Reddi et al., `Adaptive Federated Optimization <https://arxiv.org/abs/2003.00295>`_, ICLR
        2021, Algorithm 1.
    """
    rates = base.check_hparam("fedopt: server_learning_rate", server_learning_rate, positive=True)
    rule = stepping("fedopt", optimizer, rates)
    return fedavg().with_server(rule)._replace(name="fedopt")


def fedexp(epsilon: HParam = 1e-3) -> base.Algorithm:
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
    rule = extrapolate(base.check_hparam("fedexp: epsilon", epsilon, positive=True))
    method = fedavg().with_average("clients").with_server(rule)
    return method._replace(name="fedexp", variant="")
