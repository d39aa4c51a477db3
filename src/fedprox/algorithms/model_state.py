r"""A model's state that is not trained, around any method, which knows of the parameters alone.

Client :math:`k` begins a round with a state :math:`s`, such as running means and variances, which
each mini-batch step moves. At the end it sends :math:`s_k - s^t` beside the method's message, and
the server adds the weighted mean to :math:`s^t`:

.. math:: s^{t+1} = s^t + \sum_{k \in S_t} p_k (s_k - s^t) = \sum_{k \in S_t} p_k s_k.

No gradient, decay, optimizer, proximal term or server rule touches it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.algorithms.capabilities import OWN_STATE
from fedprox.algorithms.lift import lift
from fedprox.algorithms.parts import personal_parts
from fedprox.errors import require
from fedprox.model import Params, Variables, dotted, trainable
from fedprox.precision import real_type


class Running(NamedTuple):
    """The server's state with that of the model beside it, or a client's with its own.

    Attributes:
        state: The method's state.
        model_state: The model's state; of a client, its own and whether it has taken part.
    """

    state: Any
    model_state: Any


def with_model_state(method: base.Algorithm, whole: Variables) -> base.Algorithm:
    """The method with a model whose variables are, in shape, `whole`.

    Whole models of the clients' own, as Ditto's, have states of their own. The method must allow
    its `model_state`.
    """
    if method.inside is not None:

        def with_state(inner: base.Algorithm) -> base.Algorithm:
            return with_model_state(inner._replace(model_state=method.model_state), whole)

        return method.inside(with_state)._replace(name=method.name, settings=method.settings)
    kind, personal = method.model_state, method.personal
    require(
        method.first.probe is None,
        f"{method.name}: its clients choose among several models, and a model with state has one",
    )
    several = personal is not None and not personal.parts
    require(
        not several or kind not in OWN_STATE,
        f'{method.name}: model_state = "{kind}"; its clients have whole models of their own, with '
        'states of their own: it must be "mean" or "server"',
    )
    own = several or kind in OWN_STATE
    init, first = method.server.init, method.client.state

    def client_state(state: Any, whole: Variables) -> Running:
        return Running(state, base.untrained(whole.state))

    inner = lift(
        method._replace(
            server=method.server._replace(init=lambda whole: init(trainable(whole))),
            client=method.client._replace(
                state=first and (lambda whole: first(trainable(whole))),
            ),
        ),
        server=lambda state, whole: Running(state, whole.state),
        client=client_state if own else None,
    )

    def begins(state: Running, context: base.ClientContext) -> Any:
        if several or not own:  # what a round trains is the server's model
            return state.model_state
        return base.own_or(context.state.model_state, state.model_state)

    def around(function: Any) -> Any:
        """A function of the server's state that gives parameters, and then variables."""
        return function and (lambda state: Variables(function(state), state.model_state))

    moved = inner
    if method.moves_model_state:
        moved = _moving(inner, method.client, own=own and not several)
    return moved._replace(
        client=moved.client._replace(model_state=begins),
        server=moved.server._replace(
            params=around(inner.server.params), evaluated=around(inner.server.evaluated)
        ),
        personal=_personal(inner, own=own, whole=several) if personal or own else None,
    )


def _moving(lifted: base.Algorithm, client: base.OnClient, *, own: bool) -> base.Algorithm:
    """The lifted method whose clients send how the state moved, and keep it if it is their own."""
    size, possible = client.size, client.possible

    def message(
        state: Running, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Variables, Any]:
        sent, after = lifted.client.message(state, hparams, context, solution)
        if own:
            after = after._replace(model_state=base.trained(context.model_state))
        change = jax.tree.map(_change, context.model_state, state.model_state)
        return Variables(sent, change), after

    def update(state: Running, mean: Variables, hparams: base.HParams) -> Running:
        after: Running = lifted.server.update(state, mean.params, hparams)
        return after._replace(model_state=jax.tree.map(_moved, state.model_state, mean.state))

    return lifted._replace(
        client=lifted.client._replace(
            message=message,
            whole_batches=True,
            size=lambda message: size(message.params),
            possible=possible
            and (lambda hparams, mean, most: possible(hparams, mean.params, most)),
        ),
        server=lifted.server._replace(update=update),
    )


def _personal(lifted: base.Algorithm, *, own: bool, whole: bool) -> base.Personal:
    """The clients' own models, with states of their own or the server's.

    These may belong to `whole` models, which clients train apart from the server's.
    """
    given = lifted.personal

    def own_model(state: Any, received: Variables) -> base.Own:
        yes = state.model_state.trained if own else jnp.bool_(False)
        mine = base.Own(received.params, yes)
        if given is not None:
            mine = given.own(state, received.params)
        states = base.own_or(state.model_state, received.state) if own else received.state
        return base.Own(Variables(mine.model, states), mine.trained)

    if given is None:
        return base.Personal(own_model)
    kept: Any = given.keep

    def keep(state: Any, solved: Variables) -> Any:
        after = kept(state, solved.params)
        return after._replace(model_state=base.trained(solved.state)) if whole else after

    return given._replace(own=own_model, keep=kept and keep)


def with_own_layers(method: base.Algorithm, whole: Params) -> base.Algorithm:
    """The method whose clients keep the layers that have a state, if that is what it says."""
    if method.model_state != "own layers":
        return method
    shared = method._replace(model_state="mean")
    parts = personal_parts(shared, layers_with_state(whole))
    return parts._replace(variant=method.variant, model_state="own")


def layers_with_state(whole: Variables) -> tuple[str, ...]:
    """The dotted names of the layers that have both parameters and a state.

    >>> whole = Variables({"norm": {"scale": 1.0}, "head": 0.0}, {"norm": {"mean": 0.0}})
    >>> layers_with_state(whole)
    ('norm',)
    """

    def layers(tree: Any) -> dict[str, None]:
        # of parts of a model with a base, the dotted names are the keys
        names = [dotted(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        return dict.fromkeys(filter(None, (name.rpartition(".")[0] for name in names)))

    # flax.linen's states are divided into collections first, such as "batch_stats"
    known = {part for layer in layers(whole.state) for part in (layer, layer.partition(".")[2])}
    own = tuple(layer for layer in layers(whole.params) if layer in known)
    require(
        own,
        'model_state = "own layers": no layer of the model has both parameters and a state; name '
        "the parameters that clients keep with fedprox.personal_parts",
    )
    return own


def _change(after: jax.Array, before: jax.Array) -> jax.Array:
    return jnp.subtract(after.astype(real_type()), before.astype(real_type()))


def _moved(before: jax.Array, change: jax.Array) -> jax.Array:
    """The next state; whole numbers, as counters are, are rounded."""
    after = before.astype(real_type()) + change
    whole = jnp.issubdtype(before.dtype, jnp.integer)
    return (jnp.round(after) if whole else after).astype(before.dtype)
