"""What an algorithm is: a few pure functions around the one local problem.

A round with cohort S_t runs

    h_k      = subproblem(state, numbers, own_k)             from what the server sends, on client k
    w_k      = the local solver's answer to h_k              on client k
    m_k      = message(h_k, w_k)                             on client k
    state   <- update(state, sum_k weight_k m_k, numbers)    on the server

where the weights of those who took part sum to one (or are all zero, if nobody did).

A method with a first exchange begins a round with a cohort of its own, drawn independently:

    state   <- exchange(state, sum_k weight_k grad F_k(w^t)),

and its clients pose h_k knowing their own gradient, own_k = grad F_k(w^t).
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.errors import require_number
from fedprox.model import Params
from fedprox.solver import Numbers, Solver, as_numbers
from fedprox.subproblem import Subproblem

State = Any  # a pytree
Message = Any  # a pytree

Scalars = Mapping[str, jax.Array]
"""The algorithm's own numbers and "learning_rate", each a scalar."""


def difference(problem: Subproblem, params: Params) -> Params:
    """w_k - s_k: how far the client moved."""
    return jax.tree.map(jnp.subtract, params, problem.start)


def add(state: Params, mean: Params, numbers: Scalars) -> Params:
    """w^{t+1} = w^t + sum_k weight_k (w_k - w^t) = sum_k weight_k w_k."""
    del numbers
    return jax.tree.map(jnp.add, state, mean)


def check_mu(method: str, mu: Numbers) -> tuple[float, ...]:
    """One or several weights of a proximal term, as a tuple.

    Raises:
        InputError: One is negative or not finite.
    """
    values = as_numbers(f"{method}: mu", mu)
    for value in values:
        require_number(f"{method}: mu", value)
    return values


def same_params(params: Params) -> Params:
    """A server that keeps the model and nothing else."""
    return params


class Algorithm(NamedTuple):
    """A federated optimization method.

    Attributes:
        name: As in experiment files and tables.
        subproblem: State, numbers, own_k -> h_k; own_k is None without a first exchange.
        numbers: The algorithm's own numbers by name (`mu`, ...), each one or several to sweep.
        stragglers: What happens to clients that cannot finish: their partial work is kept, or
            they are dropped and never train.
        local: The solver this algorithm uses, given the experiment's.
        pooled: All rows lie with one client, which takes as many steps a round as the cohort
            would together: the centralised baseline.
        init: Initial parameters -> state.
        message: h_k, w_k -> what the client sends.
        update: State, weighted mean of the messages, numbers -> state.
        params: State -> the model that is sent out and evaluated.
        exchange: State, weighted mean of grad F_k(w^t) over a first cohort -> state; None for a
            method that does without.
        communication: What a round sends, in units of FedAvg's: a model to every client of the
            cohort and one back.
        adapt: Whether "mu" follows the loss, see `adaptive`.
    """

    name: str
    subproblem: Callable[[State, Scalars, Params | None], Subproblem]
    numbers: Mapping[str, Numbers]
    stragglers: Literal["keep", "drop"]
    local: Callable[[Solver], Solver] = lambda solver: solver
    pooled: bool = False
    init: Callable[[Params], State] = same_params
    message: Callable[[Subproblem, Params], Message] = difference
    update: Callable[[State, Message, Scalars], State] = add
    params: Callable[[State], Params] = same_params
    exchange: Callable[[State, Params], State] | None = None
    communication: int = 1
    adapt: bool = False
