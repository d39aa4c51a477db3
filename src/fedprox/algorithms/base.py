"""What an algorithm is: a few pure functions around the one local problem.

A round with cohort S_t runs

    h_k           = subproblem(state, hparams, context_k)           on client k
    w_k           = the local solver's answer to h_k            on client k
    m_k, kept_k  <- message(state, hparams, context_k, solution_k)  on client k
    state        <- update(state, sum_k weight_k m_k, numbers)  on the server

where the weights of those who took part sum to one. A round in which nobody did leaves the state
as it was.

context_k is what client k knows by itself: its state after the last round in which it took part,
and for some methods its own gradient grad F_k(w^t). A method with a first exchange begins a round
with a second cohort, drawn independently:

    state   <- exchange(state, sum_k weight_k grad F_k(w^t)).
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedprox.errors import require, require_number
from fedprox.model import Params
from fedprox.solver import HParam, Solver, as_values
from fedprox.subproblem import Subproblem

State = Any  # a pytree
Message = Any  # a pytree
ClientState = Any  # a pytree, or None for a client that keeps nothing

Stragglers = Literal["keep", "drop"]
"""What happens to the work of clients that cannot finish."""

Average = Literal["rows", "clients"]
"""What the server's mean weighs a client by: its rows, or each client once."""

HParams = Mapping[str, jax.Array]
"""The algorithm's hyperparameters, "learning_rate", the round's local one, and "participation": the
share of all clients' weight in the mean that took part in the round. Each is a scalar."""


class ClientContext(NamedTuple):
    """What client k knows by itself.

    Attributes:
        gradient: grad F_k(w^t), for a method whose clients read it before they begin.
        state: The client's state after the last round in which it took part, or its first one.
        relative_size: n_k / the mean n of all clients.
    """

    gradient: Params | None
    state: ClientState
    relative_size: jax.Array


class Solution(NamedTuple):
    """What client k made of its local problem.

    Attributes:
        problem: h_k.
        params: w_k.
        steps: Mini-batch steps K that it took.
    """

    problem: Subproblem
    params: Params
    steps: jax.Array


def local_update(solution: Solution) -> Params:
    """w_k - s_k: how far the client moved."""
    return jax.tree.map(jnp.subtract, solution.params, solution.problem.start)


def difference(
    state: State, hparams: HParams, context: ClientContext, solution: Solution
) -> tuple[Message, ClientState]:
    """Send w_k - w^t; keep what there was."""
    del state, hparams
    return local_update(solution), context.state


def add(state: State, mean: Params, hparams: HParams) -> Params:
    """w^{t+1} = w^t + sum_k weight_k (w_k - w^t) = sum_k weight_k w_k."""
    del hparams
    return jax.tree.map(jnp.add, state, mean)


def zeros(params: Params) -> Params:
    """0, shaped like the parameters."""
    return jax.tree.map(jnp.zeros_like, params)


def add_scaled(a: Params, scale: jax.Array | float, b: Params) -> Params:
    """A + scale b."""
    return jax.tree.map(lambda x, y: x + scale * y, a, b)


def check_hparam(name: str, given: HParam, *, positive: bool = False) -> tuple[float, ...]:
    """One or several of a method's hyperparameters, as a tuple.

    Raises:
        InputError: One is negative or not finite, or 0 where it must be positive, in single
            precision.
    """
    values = as_values(name, given)
    for value in values:
        require_number(name, value, positive=positive, single=True)
    return values


def same_params(params: Params) -> Params:
    """A server that keeps the model and nothing else."""
    return params


class Adaptation(NamedTuple):
    """How a method's hyperparameters follow the training loss from round to round.

    Both functions work on arrays of shape (points,): the hyperparameters and losses of all sweep
    points.

    Attributes:
        init: Hyperparameters, f(w^0) -> what is remembered, any pytree.
        update: Hyperparameters, what is remembered, f after the round -> both for the next round.
    """

    init: Callable[[HParams, jax.Array], Any]
    update: Callable[[HParams, Any, jax.Array], tuple[HParams, Any]]


class Algorithm(NamedTuple):
    """A federated optimization method.

    Attributes:
        name: As in experiment files and tables.
        subproblem: State, hparams, context_k -> h_k, which starts from the model that is sent out.
        hparams: The algorithm's hyperparameters by name (`mu`, ...), each one or several to sweep.
        stragglers: What happens to clients that cannot finish: their partial work is kept, or
            they are dropped and never train.
        variant: Which form of the method it is, where there are several; labels show it.
        average: Whether the server's mean weighs a client by its rows, n_k, or counts each once.
            (Under proportional sampling each draw counts once.)
        local: The solver this algorithm uses, given the experiment's.
        settings: Its own settings of the solver, see `with_solver`.
        pooled: All rows lie with one client, which takes as many steps a round as the cohort
            would together: the centralised baseline.
        init: Initial parameters -> state.
        client_state: Initial parameters -> the state that every client starts with; None for a
            method whose clients keep no state.
        own_gradient: Whether clients read grad F_k(w^t) before they begin.
        message: State, hparams, context_k, solution_k -> what the client sends, and what it keeps.
        size: Message -> how large it is, by which one far beyond the others is known to be faulty
            (`fedprox.Faults`): what it holds that differs between sound clients for a reason, such
            as how long ago they last took part, is left out.
        update: State, weighted mean of the messages, hparams -> state.
        params: State -> the model that is sent out.
        evaluated: State -> the model that is evaluated; None for the one that is sent out.
        exchange: State, weighted mean of grad F_k(w^t) over a first cohort -> state; None for a
            method that does without. It takes `own_gradient` beside it: the cohort's own gradients
            are read in the same pass.
        communication: What a round sends, in units of FedAvg's: a model to every client of the
            cohort and one back.
        adapt: How hyperparameters follow the training loss; None if they stay as they are.
    """

    name: str
    subproblem: Callable[[State, HParams, ClientContext], Subproblem]
    hparams: Mapping[str, HParam]
    stragglers: Stragglers
    variant: str = ""
    average: Average = "rows"
    local: Callable[[Solver], Solver] = lambda solver: solver
    settings: Mapping[str, Any] = {}
    pooled: bool = False
    init: Callable[[Params], State] = same_params
    client_state: Callable[[Params], ClientState] | None = None
    own_gradient: bool = False
    message: Callable[[State, HParams, ClientContext, Solution], tuple[Message, ClientState]] = (
        difference
    )
    size: Callable[[Message], jax.Array] = optax.tree.norm
    update: Callable[[State, Message, HParams], State] = add
    params: Callable[[State], Params] = same_params
    evaluated: Callable[[State], Params] | None = None
    exchange: Callable[[State, Params], State] | None = None
    communication: int = 1
    adapt: Adaptation | None = None

    def with_solver(self, **settings: Any) -> "Algorithm":
        """The method with settings of the solver that are its own in a comparison.

        Args:
            settings: Attributes of `Solver`; of `epochs` and `steps` the one given replaces the
                other.
        """
        lengths = {"epochs", "steps"}
        before = {
            name: value
            for name, value in self.settings.items()
            if name not in lengths or not lengths & settings.keys()
        }
        return self._replace(settings={**before, **settings})

    def solver(self, solver: Solver) -> Solver:
        """The solver that its clients use, given the experiment's.

        Raises:
            InputError: The method cannot use it.
        """
        used = self.local(solver.changed(**self.settings))
        for name, value in self.settings.items():
            found = getattr(used, name)
            same = np.array_equal(found, value)  # one or several
            require(same, f"{self.name}: its {name} is always {found}, not {value}")
        return used
