"""Checks that a method, the library's or the user's, fits what compiled rounds expect.

A compiled round holds parameters, messages and client states in arrays of fixed shapes. The checks
trace a method's functions before a round is compiled, so that a function that returns other shapes
is reported by its name.
"""

import math
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    Adaptation,
    Algorithm,
    Average,
    Batch,
    ClientContext,
    ClientState,
    ExchangeCohort,
    HParams,
    Memory,
    Message,
    Own,
    Personal,
    Solution,
    State,
    Stragglers,
    add,
)
from fedprox.errors import InputError, require, require_one_of, require_whole
from fedprox.federation import Federation
from fedprox.model import Model, Params, classes_of, dotted, rows_like
from fedprox.precision import real_type, require_for_all_threads
from fedprox.subproblem import Reference, Subproblem
from fedprox.user_code import describe, shapes_of

GIVEN = ("learning_rate", "participation")
"""Hyperparameters that the functions of every method receive."""

STEPS: Any = jax.ShapeDtypeStruct((), jnp.int32)


def scalar() -> Any:
    """The shape and type of a real number."""
    return jax.ShapeDtypeStruct((), real_type())


def check_algorithm(algorithm: Algorithm, params: Params) -> None:
    """Raise `InputError` unless a method's functions fit together; nothing is computed.

    Example:
        >>> from fedprox.algorithms.scaffold import scaffold
        >>> check_algorithm(scaffold(), jax.ShapeDtypeStruct((3,), jnp.float32))
    """
    _check_attributes(algorithm)
    _check_precision(params)
    hparams: HParams = dict.fromkeys((*algorithm.hparams, *GIVEN), scalar())
    state = _check_server(algorithm, params, hparams)
    message = _check_client(algorithm, params, state, hparams)
    name = algorithm.name
    after = shapes_of(
        f"{name}: update(state, mean, hparams)",
        *(algorithm.server.update, state, message, hparams),
        given={"state": state, "mean": message},
    )
    _require_like(f"{name}: its update gives", after, "the state before", state)
    if algorithm.adapt is not None:
        _check_adaptation(name, algorithm.adapt, hparams)


class Still(NamedTuple):
    """What a round does in which no client's model changes.

    Attributes:
        moved: How far the server's model moves, relative to its numbers; NaN if it is not finite.
        finite: Whether the new states of the server and of the client are finite.
    """

    moved: jax.Array
    finite: jax.Array


def still_round(algorithm: Algorithm, params: Params, hparams: HParams, one: jax.Array) -> Still:
    """A method's first round with one client, which ends where it starts."""

    def filled(like: Any, number: Any) -> Any:
        return jax.tree.map(lambda a: jnp.full(a.shape, number, a.dtype), like)

    def start(number: int) -> Params:
        """A model whose numbers differ from each other, and from those of other starts."""

        def leaf(like: Any) -> jax.Array:
            place = jnp.arange(math.prod(like.shape), dtype=jnp.int32).reshape(like.shape)
            return (one * (0.5 + (place % 7 + number % 5) / 8)).astype(like.dtype)

        return jax.tree.map(leaf, params)

    state = algorithm.initial(*map(start, range(algorithm.server.starts)))
    sent = algorithm.server.params(state)
    own = None if algorithm.client.state is None else algorithm.client.state(sent)
    like = context_shape(algorithm, params, None)
    # the gradient is zero, as where no client would move
    context = filled(like, one)._replace(gradient=filled(like.gradient, 0), state=own)
    if algorithm.first.exchange is not None:
        state = algorithm.first.exchange(state, algorithm.first.sent(context.gradient), hparams)
    context = algorithm.begun(state, context)
    problem = algorithm.subproblem(state, hparams, context)
    solution = Solution(problem, problem.start, one.astype(jnp.int32))
    message, own = algorithm.client.message(state, hparams, context, solution)
    after = algorithm.server.update(state, message, hparams)

    def distance(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(a - b) / (1 + jnp.abs(b)), initial=0).astype(real_type())

    moved = jax.tree.leaves(jax.tree.map(distance, algorithm.server.params(after), sent))
    numbers = [a for a in jax.tree.leaves((after, own)) if jnp.issubdtype(a.dtype, jnp.floating)]
    finite = [jnp.isfinite(a).all() for a in numbers]
    return Still(jnp.stack(moved).max(), jnp.stack(finite).all())


STILL = 0.02
"""How far a model may move by rounding, of bfloat16 too, in a round in which no client moves."""


def require_still(algorithm: Algorithm, still: Still) -> None:
    """Raise `InputError` if the server's model moves although no client's does."""
    require(
        algorithm.server.moves_alone or still.moved <= STILL,
        f"{algorithm.name}: update(state, mean, hparams): the server's model moves although no "
        "client's has changed; it must return the next state, such as the state plus the mean of "
        "the updates; a method whose server does more has server.moves_alone = True",
    )


def check_objective(algorithm: Algorithm, model: Model, federation: Federation) -> None:
    """Raise `InputError` unless a method's objective fits a model and a federation's rows."""
    personal, params = algorithm.personal, model.shapes
    given_by = [(algorithm.client.objective, algorithm.subproblem)]
    if personal is not None and personal.subproblem is not None:
        given_by += [(personal.objective, personal.subproblem)]
    x, y = rows_like(federation.train.x), rows_like(federation.train.y)
    key = None if model.train is None else jax.eval_shape(lambda: jax.random.key(0))
    weights: Any = jax.ShapeDtypeStruct(x.shape[:1], real_type())
    batch = Batch(x, y, weights, key)
    for objective, subproblem in given_by:
        if objective is None:
            continue
        classes = classes_of(model, federation) if algorithm.first.labels else 0
        state, hparams, context = _known(algorithm, params, classes)
        given = jax.eval_shape(subproblem, state, hparams, context).given
        what = f"{algorithm.name}: objective(model, params, batch, given)"
        traced = partial(objective, model)
        loss = shapes_of(what, traced, params, batch, given, given={"given": given})
        _require_like(f"{algorithm.name}: its objective gives", loss, "a number", scalar())


def _known(algorithm: Algorithm, params: Params, classes: int) -> Any:
    """What a client's local problem is made of, in shape: the state, hparams and its context."""
    hparams: HParams = dict.fromkeys((*algorithm.hparams, *GIVEN), scalar())
    state, own = algorithm.state_like(params), None
    if algorithm.client.state is not None:
        own = jax.eval_shape(algorithm.client.state, params)
    context = context_shape(algorithm, params, own, classes)
    return state, hparams, jax.eval_shape(algorithm.begun, state, context)


def _check_precision(params: Params) -> None:
    """Check that parameters are of double precision if JAX computes in it."""
    require_for_all_threads()
    if real_type() == jnp.float32:
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        require(
            leaf.dtype == real_type() or not jnp.issubdtype(leaf.dtype, jnp.floating),
            f"model: {dotted(path) or 'its parameters'}: {leaf.dtype}, but jax_enable_x64 is set; "
            "all parameters must then be float64",
        )


def message_shape(algorithm: Algorithm, params: Params) -> Message:
    """The message of one client, in shape.

    >>> from fedprox.algorithms.fedavg import fedavg
    >>> message_shape(fedavg(), jax.ShapeDtypeStruct((3,), jnp.float32)).shape
    (3,)
    """
    hparams: HParams = dict.fromkeys((*algorithm.hparams, *GIVEN), scalar())
    state = _check_server(algorithm, params, hparams)
    return _check_client(algorithm, params, state, hparams)


def _check_attributes(algorithm: Algorithm) -> None:
    """Check the attributes that are not functions."""
    name = algorithm.name
    require_one_of(f"{name}: stragglers", algorithm.stragglers, get_args(Stragglers))
    cohorts = get_args(ExchangeCohort)
    require_one_of(f"{name}: first.cohort", algorithm.first.cohort, cohorts)
    require_one_of(f"{name}: average", algorithm.average, get_args(Average))
    for taken in GIVEN:
        require(
            taken not in algorithm.hparams,
            f"{name}: hparams: {taken!r}; every method is given this one; choose another name",
        )
    require(
        algorithm.first.exchange is None or algorithm.first.gradient,
        f"{name}: first.exchange: first.gradient must be True beside it, since both read "
        "gradients at w^t in one pass",
    )
    require(
        algorithm.client.objective is None or not algorithm.first.gradient,
        f"{name}: client.objective: first.gradient must be False beside it, since local steps "
        "do not take the gradient of F_k",
    )
    require(
        algorithm.client.objective is not None or not algorithm.first.labels,
        f"{name}: first.labels needs an objective, which reads them",
    )
    require(
        algorithm.first.probe is None or algorithm.server.received is not None,
        f"{name}: probe: received must say which model a client has",
    )


def _check_server(algorithm: Algorithm, params: Params, hparams: HParams) -> State:
    """The server's state, in shape, after checking the functions that read it alone."""
    name = algorithm.name
    require_whole(f"{name}: starts", algorithm.server.starts)
    starts = [params] * algorithm.server.starts
    state = shapes_of(f"{name}: init(params)", algorithm.initial, *starts)
    sent = shapes_of(f"{name}: params(state)", algorithm.server.params, state)
    _require_like(f"{name}: its params give", sent, "the model", params)
    if algorithm.server.evaluated is not None:
        evaluated = shapes_of(f"{name}: evaluated(state)", algorithm.server.evaluated, state)
        _require_like(f"{name}: its evaluated gives", evaluated, "the model", params)
    if algorithm.first.exchange is not None:
        exchange = f"{name}: exchange(state, mean, hparams)"
        after = shapes_of(exchange, algorithm.first.exchange, state, params, hparams)
        _require_like(f"{name}: its exchange gives", after, "the state before", state)
    if algorithm.first.probe is not None:
        models = shapes_of(f"{name}: probe(state)", algorithm.first.probe, state)
        one = jax.eval_shape(partial(jax.tree.map, lambda a: a[0]), models)
        _require_like(f"{name}: its probe gives, of which each is", one, "the model", params)
    return state


def context_shape(
    algorithm: Algorithm, params: Params, client_state: ClientState, classes: int = 2
) -> ClientContext:
    """What a client knows, in shape, for a number of classes."""
    gradient = params if algorithm.first.gradient else None
    counts: Any = jax.ShapeDtypeStruct((classes,), real_type())
    probed: Any = jax.ShapeDtypeStruct((algorithm.probed(params),), real_type())
    return ClientContext(
        gradient,
        client_state,
        relative_size=scalar(),
        loss=scalar() if algorithm.first.loss else None,
        labels=counts if algorithm.first.labels else None,
        probed=None if algorithm.first.probe is None else probed,
    )


def _check_client(algorithm: Algorithm, params: Params, state: State, hparams: HParams) -> Message:
    """The message, in shape, after checking the functions that run on clients."""
    name, client_state = algorithm.name, None
    if algorithm.client.state is not None:
        client_state = shapes_of(f"{name}: client_state(params)", algorithm.client.state, params)
    context = context_shape(algorithm, params, client_state)
    if algorithm.client.memory is not None:
        context = _with_memory(name, algorithm.client.memory, params, state, hparams, context)
    subproblem = f"{name}: subproblem(state, hparams, context)"
    problem = shapes_of(subproblem, algorithm.subproblem, state, hparams, context)
    _check_subproblem(name, subproblem, problem, params)
    require(
        algorithm.client.objective is None or problem.reference is None,
        f"{name}: objective: its local problem must not have a reference, which has the gradient "
        "of F_k",
    )
    require(
        algorithm.client.objective is not None or problem.given is None,
        f"{name}: its local problem has something given, which only an objective reads",
    )
    send = f"{name}: message(state, hparams, context, solution)"
    solution = Solution(problem, params, STEPS)
    pair = shapes_of(send, algorithm.client.message, state, hparams, context, solution)
    require(
        type(pair) is tuple and len(pair) == 2,
        f"{send} returns {_kind(pair)}; it must return two values, what the client sends and its "
        "new state",
    )
    message, new_state = pair
    _require_like(
        f"{name}: the new state of a client is", new_state, "its state before", client_state
    )
    for leaf in jax.tree.leaves(message):
        if jnp.result_type(leaf.dtype, real_type()) != leaf.dtype:
            raise InputError(
                f"{name}: its message is {describe(message)}, of which no mean can be taken; it "
                f"must be {real_type()}"
            )
    size = shapes_of(f"{name}: size(message)", algorithm.client.size, message)
    _require_like(f"{name}: the size of its message is", size, "a number", scalar())
    if algorithm.server.update is add:
        _require_like(f"{name}: its message is", message, "the model", params)
    if algorithm.personal is not None:
        given = state, hparams, context._replace(gradient=None, loss=None, probed=None, memory=None)
        _check_personal(name, algorithm.personal, params, *given)
    return message


def _with_memory(
    name: str,
    memory: Memory,
    params: Params,
    state: State,
    hparams: HParams,
    context: ClientContext,
) -> ClientContext:
    """The context with a client's memory, in shape, after checking the functions that make it."""
    first = shapes_of(f"{name}: memory.init(state, context)", memory.init, state, context)
    context = context._replace(memory=first)
    update = f"{name}: memory.update(state, hparams, context, params)"
    after = shapes_of(update, memory.update, state, hparams, context, params)
    _require_like(f"{name}: its memory.update gives", after, "the memory before", first)
    return context


def _check_personal(
    name: str,
    personal: Personal,
    params: Params,
    state: State,
    hparams: HParams,
    context: ClientContext,
) -> None:
    """Check the functions that give each client a model of its own."""
    what = f"{name}: personal.own(client state, params)"
    own = shapes_of(what, personal.own, context.state, params)
    yes: Any = jax.ShapeDtypeStruct((), jnp.bool_)
    expected = Own(params, yes)
    _require_like(f"{name}: its personal.own gives", own, "a model and a bool", expected)
    require(
        (personal.subproblem is None) == (personal.keep is None),
        f"{name}: personal has one of subproblem and keep; give both or neither",
    )
    if personal.subproblem is None or personal.keep is None:
        return
    posed = f"{name}: personal.subproblem(state, hparams, context)"
    problem = shapes_of(posed, personal.subproblem, state, hparams, context)
    _check_subproblem(f"{name}: personal", posed, problem, params)
    kept = f"{name}: personal.keep(client state, solution)"
    after = shapes_of(kept, personal.keep, context.state, params)
    _require_like(f"{name}: its personal.keep gives", after, "the state before", context.state)


def _check_adaptation(name: str, adapt: Adaptation, hparams: HParams) -> None:
    """Check the functions that change hyperparameters after a round."""
    adapted = {key: value for key, value in hparams.items() if key != "participation"}
    memory = shapes_of(f"{name}: adapt.init", adapt.init, adapted, scalar())
    pair = shapes_of(f"{name}: adapt.update", adapt.update, adapted, memory, scalar())
    _require_like(f"{name}: its adapt.update gives", pair, "what it is given", (adapted, memory))


def _check_subproblem(name: str, function: str, problem: Any, params: Params) -> None:
    """Check that a function returned a local problem, and the shapes of its terms."""
    require(
        isinstance(problem, Subproblem),
        f"{function} returns {_kind(problem)}; it must return a fedprox.Subproblem",
    )
    _require_like(f"{name}: its local problem starts from", problem.start, "the model", params)
    require(
        (problem.mu is None) == (problem.anchor is None),
        f"{name}: its local problem has one of mu and anchor; give both or neither",
    )
    local = f"{name}: {{}} of its local problem is"
    if problem.mu is not None:
        _check_mu(local.format("mu"), problem.mu, params)
        _require_like(local.format("the anchor"), problem.anchor, "the model", params)
    if problem.linear is not None:
        _require_like(local.format("linear"), problem.linear, "the model", params)
    if problem.trained is not None:
        _check_trained(local.format("trained"), problem.trained, params)
    if problem.reference is not None:
        expected = Reference(params, params)
        _require_like(local.format("the reference"), problem.reference, "two models", expected)


def _check_trained(what: str, trained: Any, params: Params) -> None:
    """Raise `InputError` unless there are truth values for each array of the model."""
    structure: Any = jax.tree.structure(trained)
    pairs = zip(jax.tree.leaves(trained), jax.tree.leaves(params), strict=False)
    require(
        structure == jax.tree.structure(params)
        and all(a.dtype == bool and a.shape in ((), b.shape) for a, b in pairs),
        f"{what} {describe(trained)}; it must have truth values for each array of the model, "
        f"{describe(params)}",
    )


def _check_mu(what: str, mu: Any, params: Params) -> None:
    """Raise `InputError` unless mu is a number, or numbers in a tree above the model's."""
    for leaf in jax.tree.leaves(mu):
        _require_like(what, leaf, "a number", scalar())
    try:
        jax.tree.map(lambda _, below: below, mu, params)
    except ValueError:
        raise InputError(
            f"{what} {describe(mu)}; it must be a number, or a tree of numbers whose branches are "
            f"those of the model, {describe(params)}"
        ) from None


def _kind(value: Any) -> str:
    """The type of a function's result, for a message."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _require_like(what: str, actual: Any, name: str, expected: Any) -> None:
    """Raise `InputError` unless two trees have the same structure, shapes and types."""

    def alike(a: Any, b: Any) -> bool:
        return a.shape == b.shape and a.dtype == b.dtype

    structure: Any = jax.tree.structure(actual)
    same = structure == jax.tree.structure(expected)
    if same and all(map(alike, jax.tree.leaves(actual), jax.tree.leaves(expected))):
        return
    raise InputError(f"{what} {describe(actual)}; it must be like {name}, {describe(expected)}")
