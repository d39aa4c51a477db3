"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the clients' drift.

Option 2 of Algorithm 1 divides by the steps that the client took, at the round's learning rate. The
result is the mean gradient on the client's path only for plain SGD; a clip or the weight decay of
the solver is part of it.

The method minimizes the plain mean of the F_k. Parameters and control variates travel both ways, so
its communication counts twice. The solver says how many local steps it takes:
`scaffold().with_solver(steps=600)`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.errors import require_one_of
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters w^t and the mean c of all clients' control variates."""

    params: Params
    control: Params


def corrected(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + <c - c_k, w>, from w^t."""
    del hparams
    return Subproblem(state.params, linear=jax.tree.map(jnp.subtract, state.control, context.state))


def along(state: State, mean: base.Pair, hparams: base.HParams) -> tuple[Params, State]:
    """Along the mean update; to c, the mean change times the share of clients that took part."""
    step, change = mean
    control = base.add_scaled(state.control, hparams["participation"], change)
    return step, state._replace(control=control)


def scaffold(*, option: int = 2, server_learning_rate: HParam = 1.0) -> base.Algorithm:
    r"""SCAFFOLD: control variates correct each local step towards the global gradient.

    Client :math:`k` keeps a control variate :math:`c_k` and the server their mean :math:`c`, all
    zero at first. The client takes :math:`K` steps of SGD with learning rate :math:`\eta` on

    .. math:: h_k(w) = F_k(w) + \langle c - c_k, w \rangle,

    starting from :math:`w^t`, and renews its control variate by one of

    .. math::
        c_k' &= \nabla F_k(w^t) & \text{(option 1)} \\
        c_k' &= c_k - c + \frac{w^t - w_k}{K \eta} & \text{(option 2)}.

    With :math:`N` clients in all the server computes

    .. math::
        w^{t+1} &= w^t + \frac{\eta_g}{|S_t|} \sum_{k \in S_t} (w_k - w^t), \\
        c &\leftarrow c + \frac{1}{N} \sum_{k \in S_t} (c_k' - c_k).

    Stragglers' partial work is kept.

    Args:
        option: How a client renews its control variate: 1 takes one more pass over its rows, 2 uses
            the steps it took and needs plain SGD.
        server_learning_rate: :math:`\eta_g`, above 0. A sequence sweeps over its values.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If `option` is neither 1 nor 2, or a rate is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.scaffold().communication
        2

    References:
        Karimireddy et al., `SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
        <https://arxiv.org/abs/1910.06378>`_, ICML 2020, Algorithm 1.
    """
    require_one_of("scaffold: option", option, (1, 2))
    plain = "scaffold: option 2 needs solver.optimizer = sgd without options; use it, or option 1"
    rates = base.check_hparam("scaffold: server_learning_rate", server_learning_rate, positive=True)

    def message(
        state: State, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[base.Pair, Params]:
        """Send w_k - w^t and c_k' - c_k; the client's next state is c_k'."""
        step = base.local_update(solution)
        if option == 1:
            change = jax.tree.map(jnp.subtract, context.gradient, context.state)
            return (step, change), context.gradient
        length = solution.steps * hparams["learning_rate"]
        change = jax.tree.map(
            # a client without steps has computed no gradient
            lambda c, s: jnp.where(length > 0, -c - s / jnp.where(length > 0, length, 1), 0),
            state.control,
            step,
        )
        return (step, change), base.add_scaled(context.state, 1, change)

    return base.Algorithm(
        "scaffold",
        corrected,
        hparams={"server_learning_rate": rates},
        stragglers="keep",
        variant="" if option == 2 else "option 1",
        average="clients",
        communication=2,
        fixed={"average": "c is the plain mean of the control variates"},
        client=base.OnClient(
            message,
            state=base.zeros,
            solver=base.plain_sgd(plain) if option == 2 else lambda solver: solver,
        ),
        server=base.beside_model(
            lambda params: State(params, base.zeros(params)),
            base.Direction(along, sent=lambda sent: sent[0], rate="server_learning_rate"),
        ),
        first=base.First(gradient=option == 1),
    )
