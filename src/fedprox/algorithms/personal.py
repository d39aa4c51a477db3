"""Second local problems of methods whose clients have models of their own, and fine-tuning.

Both are methods whose message says nothing: the round that runs them changes client state alone.
They are made anew, as a copy would keep what a list of fields to be reset forgets.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.model import Params, beside, trainable
from fedprox.precision import real_type
from fedprox.subproblem import Subproblem


def second_pass(algorithm: base.Algorithm) -> base.Algorithm:
    """The method that solves the second local problem of another method."""
    personal: Any = algorithm.personal

    def own_state(state: Any, context: base.ClientContext) -> Any:
        received = algorithm.server.params(state)
        return base.own_or(personal.own(context.state, received), received).state

    return base.Algorithm(
        algorithm.name,
        personal.subproblem,
        hparams=algorithm.hparams,
        stragglers=algorithm.stragglers,
        settings=algorithm.settings,
        model_state=algorithm.model_state,
        client=base.OnClient(
            _silent(personal.keep),
            algorithm.client.state,
            objective=personal.objective,
            solver=algorithm.client.solver,
            size=lambda sent: sent,
            whole_batches=algorithm.client.whole_batches,
            model_state=own_state if algorithm.client.model_state else None,
        ),
        server=base.OnServer(params=algorithm.server.params),
    )


def fine_tuning(algorithm: base.Algorithm, steps: int) -> base.Algorithm:
    """Local steps on F_k from a client's own model, with another method's hyperparameters."""

    def own_loss(state: Any, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
        del state, hparams
        return Subproblem(trainable(context.state.model))

    return base.Algorithm(
        f"{algorithm.name}, fine-tuned",
        own_loss,
        hparams=algorithm.hparams,
        stragglers="keep",
        settings=algorithm.settings,
        model_state=algorithm.model_state,
        client=base.OnClient(
            _silent(lambda _, solved: base.trained(solved)),
            base.untrained,
            solver=algorithm.client.solver,
            size=lambda sent: sent,
            whole_batches=algorithm.client.whole_batches,
            model_state=(lambda _, context: context.state.model.state)
            if algorithm.client.model_state
            else None,
        ),
        server=base.OnServer(update=lambda state, *_: state),
    ).with_solver(steps=steps)


def _silent(keep: Callable[[base.ClientState, Params], base.ClientState]) -> Any:
    """A message that says nothing, of clients that keep something of their state and solution."""

    def message(
        state: Any, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Any, base.ClientState]:
        del state, hparams
        solved = beside(solution.params, context.model_state)
        return jnp.zeros((), real_type()), keep(context.state, solved)

    return message
