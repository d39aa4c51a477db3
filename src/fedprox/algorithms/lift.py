"""`lift`: a method inside other states, with which every transformation of methods begins.

A transformation puts something around the server's state, around the clients' states, or both, and
changes some functions. In a lifted method each function finds the method's own state inside. The
functions that a transformation changes call the lifted ones; nobody lists those that stay.
"""

from collections.abc import Callable
from typing import Any

from fedprox.algorithms import base
from fedprox.model import Params

Lens = tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]
"""How to read what is inside a state, and how to replace it."""

WHOLE: Lens = lambda outer: outer, lambda _, inner: inner
FIELD: Lens = lambda outer: outer.state, lambda outer, inner: outer._replace(state=inner)


def lift(
    method: base.Algorithm,
    *,
    server: Callable[[base.State, Params], Any] | None = None,
    client: Callable[[base.ClientState, Params], Any] | None = None,
    seen: Callable[[Any, base.ClientContext], base.State] | None = None,
    hparams: Callable[[base.HParams, base.ClientContext | None], base.HParams] | None = None,
) -> base.Algorithm:
    """The method inside other states.

    An outer state is a NamedTuple whose field `state` is the method's own. Messages are the
    method's, and so is what looks at a message alone: `size`, `possible` and `First.sent`.

    Args:
        method: The method inside.
        server: (the method's first state, params) -> the server's first outer state; None if the
            server's state stays as it is.
        client: (the method's first client state or None, params) -> a client's first outer state;
            None if client states stay as they are.
        seen: (the server's outer state, context) -> the method's state as a client reads it; None
            for the one inside.
        hparams: (hyperparameters, context) -> what the method receives; the context is None on the
            server. None for the hyperparameters themselves.

    Returns:
        The method. Its `update` and `exchange` keep the other fields of the server's outer state,
        its `message` and `personal` those of a client's.

    Example:
        >>> from typing import NamedTuple
        >>> from fedprox.algorithms.fedavg import fedavg
        >>> class Counted(NamedTuple):
        ...     state: Any
        ...     rounds: int
        >>> counted = lift(fedavg(), server=lambda state, params: Counted(state, 0))
        >>> after = counted.server.update(counted.server.init(1.0), 0.5, {})
        >>> float(after.state), after.rounds
        (1.5, 0)
    """
    inside, around = FIELD if server else WHOLE
    own, kept = FIELD if client else WHOLE
    read = seen or (lambda outer, _: inside(outer))
    given = hparams or (lambda hparams, _: hparams)

    def first(outer: Any, function: Any) -> Any:
        """A function of params whose state gets another around it."""

        def lifted(params: Params) -> Any:
            return outer(function and function(params), params)

        return lifted if outer else function

    def known(context: base.ClientContext) -> base.ClientContext:
        return context._replace(state=own(context.state))

    def on_client(function: Any) -> Any:
        """A function of (state, hparams, context, ...)."""

        def lifted(
            outer: Any, hparams: base.HParams, context: base.ClientContext, *more: Any
        ) -> Any:
            return function(read(outer, context), given(hparams, context), known(context), *more)

        lifted.__doc__ = function.__doc__  # the formula of a local problem
        return function and lifted

    def on_server(function: Any) -> Any:
        """A function of (state, mean, hparams) -> state."""

        def lifted(outer: Any, mean: Any, hparams: base.HParams) -> Any:
            return around(outer, function(inside(outer), mean, given(hparams, None)))

        return function and lifted

    def at_start(function: Any) -> Any:
        """A function of (state, context)."""
        return function and (lambda outer, context: function(read(outer, context), known(context)))

    def of_state(function: Any) -> Any:
        return function and (lambda outer: function(inside(outer)))

    def of_own(function: Any, put: Any) -> Any:
        """A function of (client state, params), and what becomes of its result."""
        return function and (lambda outer, params: put(outer, function(own(outer), params)))

    def message(
        outer: Any, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[base.Message, Any]:
        sent, state = on_client(method.client.message)(outer, hparams, context, solution)
        return sent, kept(context.state, state)

    memory, personal = method.client.memory, method.personal
    return method._replace(
        subproblem=on_client(method.subproblem),
        personal=personal
        and personal._replace(
            own=of_own(personal.own, lambda _, model: model),
            subproblem=on_client(personal.subproblem),
            keep=of_own(personal.keep, kept),
        ),
        server=method.server._replace(
            init=first(server, method.server.init),
            received=at_start(method.server.received),
            update=on_server(method.server.update),
            params=of_state(method.server.params),
            evaluated=of_state(method.server.evaluated),
        ),
        client=method.client._replace(
            state=first(client, method.client.state),
            # which reads no state, and by which other parts know that clients send w_k - w^t
            message=base.difference if method.client.message is base.difference else message,
            memory=memory and base.Memory(at_start(memory.init), on_client(memory.update)),
            model_state=at_start(method.client.model_state),
        ),
        first=method.first._replace(
            exchange=on_server(method.first.exchange), probe=of_state(method.first.probe)
        ),
    )
