"""Second local problems of methods whose clients have models of their own, and fine-tuning.

Both are methods whose message says nothing: the round that runs them changes client state alone.
They are made anew, as a copy would keep what a list of fields to be reset forgets.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.model import Params
from fedprox.precision import real_type
from fedprox.subproblem import Subproblem


def second_pass(algorithm: base.Algorithm) -> base.Algorithm:
    """The method that solves the second local problem of another method."""
    personal: Any = algorithm.personal
    return base.Algorithm(
        algorithm.name,
        personal.subproblem,
        hparams=algorithm.hparams,
        stragglers=algorithm.stragglers,
        settings=algorithm.settings,
        client=base.OnClient(
            _silent(personal.keep),
            algorithm.client.state,
            objective=personal.objective,
            solver=algorithm.client.solver,
            size=lambda sent: sent,
        ),
        server=base.OnServer(params=algorithm.server.params),
    )


def fine_tuning(algorithm: base.Algorithm, steps: int) -> base.Algorithm:
    """Local steps on F_k from a client's own model, with another method's hyperparameters."""

    def own_loss(state: Any, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
        del state, hparams
        return Subproblem(context.state.model)

    return base.Algorithm(
        f"{algorithm.name}, fine-tuned",
        own_loss,
        hparams=algorithm.hparams,
        stragglers="keep",
        settings=algorithm.settings,
        client=base.OnClient(
            _silent(lambda _, solved: base.trained(solved)),
            base.untrained,
            solver=algorithm.client.solver,
            size=lambda sent: sent,
        ),
        server=base.OnServer(update=lambda state, *_: state),
    ).with_solver(steps=steps)


def _silent(keep: Callable[[base.ClientState, Params], base.ClientState]) -> Any:
    """A message that says nothing, of clients that keep something of their state and solution."""

    def message(
        state: Any, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Any, base.ClientState]:
        del state, hparams
        return jnp.zeros((), real_type()), keep(context.state, solution.params)

    return message
