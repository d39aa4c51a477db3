"""Scaffnew (Mishchenko et al. 2022): ProxSkip for federated averaging, with accelerated exchange.

The paper flips a coin after every local step and averages with probability p. A round here is the
steps up to an average, so their number is geometric, the same for all clients, and a function of
seed and round. The h_k sum to zero only if everyone takes part, so other rounds are refused. The
new h_k needs w^{t+1}, so a client computes it at the beginning of its next round.
"""

import optax

from fedprox.algorithms import base
from fedprox.errors import require, require_number
from fedprox.model import Params
from fedprox.solver import Solver
from fedprox.streams import Purpose, generator
from fedprox.subproblem import Subproblem


def control(params: Params, hparams: base.HParams, state: base.Pair) -> Params:
    """h_k + (p / gamma) (w^t - w_k), with h_k and w_k of the round before."""
    last, result = state
    moved = optax.tree.sub(params, result)
    return base.add_scaled(last, hparams["p"] / hparams["learning_rate"], moved)


def corrected(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """F_k(w) - <h_k, w>, from w^t."""
    linear = optax.tree.scale(-1.0, control(params, hparams, context.state))
    return Subproblem(params, linear=linear)


def message(
    params: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[Params, base.Pair]:
    """Send w_k - w^t; keep h_k and w_k."""
    kept = control(params, hparams, context.state), solution.params
    return base.local_update(solution), kept


def fixed_sgd(solver: Solver) -> Solver:
    """The same solver: SGD with one learning rate in all rounds, and without a stop rule."""
    require(solver.optimizer is optax.sgd, "scaffnew needs solver.optimizer = sgd without options")
    same = solver.schedule is None and solver.learning_rate_decay == 1
    require(same, "scaffnew needs the same solver.learning_rate in all rounds")
    require(solver.gamma is None, "scaffnew: leave out solver.gamma; all clients take equal steps")
    return solver


def scaffnew(p: float) -> base.Algorithm:
    r"""Scaffnew: control variates and a random number of local steps, which saves communication.

    Client :math:`k` keeps :math:`h_k`, at first zero. All clients take the same number of steps of
    SGD with learning rate :math:`\gamma`, geometric with mean :math:`1 / p`, on

    .. math:: F_k(w) - \langle h_k, w \rangle,

    starting from :math:`w^t`. With their results :math:`w_k`, then

    .. math::
        w^{t+1} = \frac{1}{N} \sum_{k=1}^N w_k, \qquad
        h_k \leftarrow h_k + \frac{p}{\gamma} (w^{t+1} - w_k).

    Every client takes part in every round, without stragglers. The solver's epochs or steps are
    ignored. With :math:`\gamma = 1 / L` and :math:`p = 1 / \sqrt{\kappa}`, where :math:`\kappa` is
    the largest condition number of an :math:`F_k`, the number of rounds grows with
    :math:`\sqrt{\kappa}`.

    Args:
        p: Probability of an exchange after a local step, above 0 and at most 1.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If p is not above 0 and at most 1.

    Example:
        >>> import fedprox as fp
        >>> [fp.scaffnew(p=0.25).client.round_steps(0, t) for t in range(4)]
        [6, 4, 2, 4]

    References:
        Mishchenko et al., `ProxSkip: Yes! Local Gradient Steps Provably Lead to Communication
        Acceleration! Finally! <https://arxiv.org/abs/2202.09357>`_, ICML 2022, Algorithm 2.
    """
    require_number("scaffnew: p", p, most=1, positive=True, single=True)
    return base.Algorithm(
        "scaffnew",
        corrected,
        hparams={"p": p},
        stragglers="drop",
        average="clients",
        everyone=True,
        not_private="everyone takes part, so cohorts are not sampled",
        fixed={
            "server": "the h_k sum to zero only if the model is the mean of the w_k",
            "stragglers": "every client takes part with all of its work",
            "average": "the h_k sum to zero only with equal weights",
        },
        client=base.OnClient(
            solver=fixed_sgd,
            round_steps=lambda seed, t: int(generator(seed, Purpose.STEPS, t).geometric(p)),
            state=lambda params: (base.zeros(params), params),
            message=message,
            keeps_sent=True,
        ),
    )
