"""Second local problems of methods whose clients have models of their own, and fine-tuning.

Both are methods whose message says nothing: the round that runs them changes client state alone.
"""

from typing import Any

import jax.numpy as jnp

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    OnClient,
    OnServer,
    Own,
    Solution,
    trained,
    untrained,
)
from fedprox.precision import real_type
from fedprox.subproblem import Subproblem


def second_pass(algorithm: Algorithm) -> Algorithm:
    """The method that solves the second local problem of another method."""
    personal = algorithm.personal
    assert personal is not None
    keep = personal.keep
    assert personal.subproblem is not None
    assert keep is not None

    def message(
        state: Any, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Any, ClientState]:
        del state, hparams
        return jnp.zeros((), real_type()), keep(context.state, solution.params)

    # made anew, as a copy would keep what a list of fields to be reset forgets
    return Algorithm(
        algorithm.name,
        personal.subproblem,
        hparams=algorithm.hparams,
        stragglers=algorithm.stragglers,
        settings=algorithm.settings,
        client=OnClient(
            solver=algorithm.client.solver,
            state=algorithm.client.state,
            objective=personal.objective,
            message=message,
            size=lambda sent: sent,
        ),
        server=OnServer(params=algorithm.server.params),
    )


def fine_tuning(algorithm: Algorithm, steps: int) -> Algorithm:
    """Local steps on F_k from a client's own model, with another method's hyperparameters."""

    def own_loss(state: Any, hparams: HParams, context: ClientContext) -> Subproblem:
        del state, hparams
        return Subproblem(context.state.model)

    def message(
        state: Any, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Any, Own]:
        del state, hparams, context
        return jnp.zeros((), real_type()), trained(solution.params)

    def unchanged(state: Any, mean: Any, hparams: HParams) -> Any:
        del mean, hparams
        return state

    tuned = Algorithm(
        f"{algorithm.name}, fine-tuned",
        own_loss,
        hparams=algorithm.hparams,
        stragglers="keep",
        settings=algorithm.settings,
        client=OnClient(
            solver=algorithm.client.solver, state=untrained, message=message, size=lambda sent: sent
        ),
        server=OnServer(update=unchanged),
    )
    return tuned.with_solver(steps=steps)
