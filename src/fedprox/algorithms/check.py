"""Checks that a method, the library's or the user's, fits what compiled rounds expect.

A compiled round holds parameters, messages and client states in arrays of fixed shapes. The checks
trace a method's functions before a round is compiled, so that a function that returns other shapes
is reported by its name.
"""

import math
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.errors import InputError, require, require_one_of, require_whole
from fedprox.features import rows_like
from fedprox.federation import Federation
from fedprox.model import Model, Params, classes_of, dotted, opened_at, trainable
from fedprox.precision import real_type, require_for_all_threads
from fedprox.same import made_once
from fedprox.subproblem import Reference, Subproblem
from fedprox.user_code import describe, shapes_of

GIVEN = ("learning_rate", "participation")
"""Hyperparameters that the functions of every method receive."""

STEPS: Any = jax.ShapeDtypeStruct((), jnp.int32)


def scalar() -> Any:
    """The shape and type of a real number."""
    return jax.ShapeDtypeStruct((), real_type())


def check_algorithm(algorithm: base.Algorithm, params: Params) -> None:
    """Raise `InputError` unless a method's functions fit together; nothing is computed.

    Example:
        >>> from fedprox.algorithms.scaffold import scaffold
        >>> check_algorithm(scaffold(), jax.ShapeDtypeStruct((3,), jnp.float32))
    """
    _check_attributes(algorithm)
    _check_precision(params)
    name, adapt, hparams = algorithm.name, algorithm.adapt, _hparams(algorithm)
    state, message = made_once(_check_functions, algorithm.functions, params)
    known, before = {"state": state, "mean": message}, ("the state before", state)
    step = f"{name}: update(state, mean, hparams)"
    _gives(step, before, algorithm.server.update, state, message, hparams, given=known)
    if adapt:
        del hparams["participation"]
        memory = shapes_of(f"{name}: adapt.init", adapt.init, hparams, scalar())
        expected = "what it is given", (hparams, memory)
        _gives(f"{name}: adapt.update", expected, adapt.update, hparams, memory, scalar())


class Still(NamedTuple):
    """The effect of a round in which no client's model changes.

    Attributes:
        moved: How far the server's model moves, relative to its numbers; NaN if it is not finite.
        finite: Whether the new states of the server and of the client are finite.
    """

    moved: jax.Array
    finite: jax.Array


def still_round(
    algorithm: base.Algorithm, params: Params, hparams: base.HParams, one: jax.Array
) -> Still:
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
    own = algorithm.client.state and algorithm.client.state(sent)
    like = context_shape(algorithm, params, None)
    # the gradient is zero, as where no client would move
    context = filled(like, one)._replace(gradient=filled(like.gradient, 0), state=own)
    if algorithm.first.exchange:
        state = algorithm.first.exchange(state, algorithm.first.sent(context.gradient), hparams)
    context = algorithm.begun(state, context)
    problem = algorithm.subproblem(state, hparams, context)
    solution = base.Solution(problem, problem.start, one.astype(jnp.int32))
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


def require_still(algorithm: base.Algorithm, still: Still) -> None:
    """Raise `InputError` if the server's model moves although no client's does."""
    require(
        algorithm.server.moves_alone or still.moved <= STILL,
        f"{algorithm.name}: update(state, mean, hparams): the server's model moves although no "
        "client's has changed; it must return the next state, such as the state plus the mean of "
        "the updates; a method whose server does more has server.moves_alone = True",
    )


def check_objective(algorithm: base.Algorithm, model: Model, federation: Federation) -> None:
    """Raise `InputError` unless a method's objective fits a model and a federation's rows."""
    pairs = [(algorithm.client.objective, algorithm.subproblem)]
    if algorithm.personal and algorithm.personal.subproblem:
        pairs.append((algorithm.personal.objective, algorithm.personal.subproblem))
    x, y = rows_like(federation.train.x), rows_like(federation.train.y)
    key = None if model.train is None else jax.eval_shape(lambda: jax.random.key(0))
    weights: Any = jax.ShapeDtypeStruct(y.shape[:1], real_type())
    batch, whole = base.Batch(x, y, weights, key), model.shapes
    params, moves = trainable(whole), algorithm.moves_model_state
    what = f"{algorithm.name}: objective(model, params, batch, given)"
    for objective, subproblem in pairs:
        if objective:
            classes = classes_of(model, federation) if algorithm.first.labels else 0
            state, own = algorithm.state_like(params), None
            if algorithm.client.state:
                own = jax.eval_shape(algorithm.client.state, params)
            context = context_shape(algorithm, params, own, classes)
            context = jax.eval_shape(algorithm.begun, state, context)
            given = jax.eval_shape(subproblem, state, _hparams(algorithm), context).given

            def of_model(whole: Params, batch: base.Batch, given: Any, f: Any = objective) -> Any:
                """The objective of a model without state, which one with state is at a state."""
                return f(*opened_at(model, whole, batch.weights > 0, moves=moves), batch, given)

            number = "a number", scalar()
            _gives(what, number, of_model, whole, batch, given, given={"given": given})


def message_shape(algorithm: base.Algorithm, params: Params) -> base.Message:
    """The message of one client, in shape.

    >>> from fedprox.algorithms.fedavg import fedavg
    >>> message_shape(fedavg(), jax.ShapeDtypeStruct((3,), jnp.float32)).shape
    (3,)
    """
    return made_once(_check_functions, algorithm.functions, params)[1]


def context_shape(
    algorithm: base.Algorithm, params: Params, client_state: base.ClientState, classes: int = 2
) -> base.ClientContext:
    """A client's context, in shape, for a number of classes."""
    first = algorithm.first
    counts, probed = (
        jax.ShapeDtypeStruct((count,), real_type()) for count in (classes, algorithm.probed(params))
    )
    return base.ClientContext(
        trainable(params) if first.gradient else None,
        client_state,
        relative_size=scalar(),
        loss=scalar() if first.loss else None,
        labels=counts if first.labels else None,
        probed=probed if first.probe else None,
    )


def _hparams(algorithm: base.Algorithm) -> dict[str, Any]:
    """The hyperparameters that a method's functions receive, in shape."""
    return dict.fromkeys((*algorithm.hparams, *GIVEN), scalar())


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


def _check_attributes(algorithm: base.Algorithm) -> None:
    """Check the attributes that are not functions."""
    name, first = algorithm.name, algorithm.first
    require_one_of(f"{name}: stragglers", algorithm.stragglers, get_args(base.Stragglers))
    require_one_of(f"{name}: first.cohort", first.cohort, get_args(base.ExchangeCohort))
    require_one_of(f"{name}: average", algorithm.average, get_args(base.Average))
    for taken in GIVEN:
        require(
            taken not in algorithm.hparams,
            f"{name}: hparams: {taken!r}; every method is given this one; choose another name",
        )
    require(
        not first.exchange or first.gradient,
        f"{name}: first.exchange: first.gradient must be True beside it, since both read "
        "gradients at w^t in one pass",
    )
    require(
        not algorithm.client.objective or not first.gradient,
        f"{name}: client.objective: first.gradient must be False beside it, since local steps "
        "do not take the gradient of F_k",
    )
    require(
        algorithm.client.objective or not first.labels,
        f"{name}: first.labels needs an objective, which reads them",
    )
    require(
        not first.probe or algorithm.server.received,
        f"{name}: probe: received must say which model a client has",
    )


def _check_functions(algorithm: base.Algorithm, params: Params) -> tuple[base.State, base.Message]:
    """The server's state and a client's message, in shape, after checking what makes them."""
    name, server, client, first = (
        algorithm.name,
        algorithm.server,
        algorithm.client,
        algorithm.first,
    )
    hparams, whole, params = _hparams(algorithm), params, trainable(params)
    model = "the model", whole
    require_whole(f"{name}: starts", server.starts)
    state = shapes_of(f"{name}: init(params)", algorithm.initial, *[whole] * server.starts)
    before = "the state before", state
    _gives(f"{name}: params(state)", model, server.params, state)
    _gives(f"{name}: evaluated(state)", model, server.evaluated, state)
    exchange = f"{name}: exchange(state, mean, hparams)"
    _gives(exchange, before, first.exchange, state, params, hparams)
    probe = first.probe
    each = probe and (lambda state: jax.tree.map(lambda a: a[0], probe(state)))
    _gives(f"{name}: each model of probe(state)", model, each, state)

    own = client.state and shapes_of(f"{name}: client_state(params)", client.state, whole)
    context = context_shape(algorithm, whole, own)
    if client.model_state:
        what = f"{name}: model_state(state, context)"
        context = context._replace(model_state=shapes_of(what, client.model_state, state, context))
    if client.memory:
        init, update = client.memory
        memory = shapes_of(f"{name}: memory.init(state, context)", init, state, context)
        context = context._replace(memory=memory)
        what = f"{name}: memory.update(state, hparams, context, params)"
        _gives(what, ("the memory before", memory), update, state, hparams, context, params)
    problem = _posed(f"{name}: ", params, algorithm.subproblem, state, hparams, context)
    require(
        not client.objective or problem.reference is None,
        f"{name}: objective: its local problem must not have a reference, which has the gradient "
        "of F_k",
    )
    require(
        client.objective or problem.given is None,
        f"{name}: its local problem has something given, which only an objective reads",
    )
    what = f"{name}: message(state, hparams, context, solution)"
    solution = base.Solution(problem, params, STEPS)
    pair = shapes_of(what, client.message, state, hparams, context, solution)
    require(
        type(pair) is tuple and len(pair) == 2,
        f"{what} returns {_kind(pair)}; it must return two values, what the client sends and its "
        "new state",
    )
    message, after = pair
    _require_like(f"{name}: the new state of a client is", after, "its state before", own)
    for leaf in jax.tree.leaves(message):
        require(
            jnp.result_type(leaf.dtype, real_type()) == leaf.dtype,
            f"{name}: its message is {describe(message)}, of which no mean can be taken; it must "
            f"be {real_type()}",
        )
    _gives(f"{name}: size(message)", ("a number", scalar()), client.size, message)
    if server.update is base.add:
        _require_like(f"{name}: its message is", message, *model)
    if algorithm.personal:
        known = context._replace(gradient=None, loss=None, probed=None, memory=None)
        _check_personal(name, algorithm.personal, whole, state, hparams, known)
    return state, message


def _check_personal(
    name: str,
    personal: base.Personal,
    params: Params,
    state: base.State,
    hparams: base.HParams,
    context: base.ClientContext,
) -> None:
    """Check the functions that give each client a model of its own."""
    own, yes = context.state, jax.ShapeDtypeStruct((), jnp.bool_)
    model: Any = "a model and a bool", base.Own(params, yes)  # type: ignore[arg-type]
    _gives(f"{name}: personal.own(client state, params)", model, personal.own, own, params)
    require(
        bool(personal.subproblem) == bool(personal.keep),
        f"{name}: personal has one of subproblem and keep; give both or neither",
    )
    if personal.subproblem:
        where, of_params = f"{name}: personal.", trainable(params)
        _posed(where, of_params, personal.subproblem, state, hparams, context)
    what = f"{name}: personal.keep(client state, solution)"
    _gives(what, ("the state before", own), personal.keep, own, params)


def _posed(where: str, params: Params, function: Any, *given: Any) -> Subproblem:
    """The local problem that a function gives, in shape, after checking its terms."""
    what, name = f"{where}subproblem(state, hparams, context)", where.rstrip(".: ")
    problem = shapes_of(what, function, *given)
    require(
        isinstance(problem, Subproblem),
        f"{what} returns {_kind(problem)}; it must return a fedprox.Subproblem",
    )
    words = f"{name}: {{}} of its local problem is"
    require(
        (problem.mu is None) == (problem.anchor is None),
        f"{name}: its local problem has one of mu and anchor; give both or neither",
    )
    _require_like(f"{name}: its local problem starts from", problem.start, "the model", params)
    models = {"the anchor": problem.anchor, "linear": problem.linear}
    for term, value in models.items():
        if value is not None:
            _require_like(words.format(term), value, "the model", params)
    if problem.reference is not None:
        expected = Reference(params, params)
        _require_like(words.format("the reference"), problem.reference, "two models", expected)
    if problem.mu is not None:
        _check_mu(words.format("mu"), problem.mu, params)
    if problem.trained is not None:
        _check_trained(words.format("trained"), problem.trained, params)
    return problem


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


def _gives(what: str, like: tuple[str, Any], function: Any, *args: Any, given: Any = None) -> None:
    """Raise `InputError` unless a function, if there is one, gives what is like something."""
    if function:
        _require_like(f"{what} gives", shapes_of(what, function, *args, given=given), *like)


def _require_like(what: str, actual: Any, name: str, expected: Any) -> None:
    """Raise `InputError` unless two trees have the same structure, shapes and types."""

    def alike(a: Any, b: Any) -> bool:
        return a.shape == b.shape and a.dtype == b.dtype

    structure: Any = jax.tree.structure(actual)
    same = structure == jax.tree.structure(expected)
    if same and all(map(alike, jax.tree.leaves(actual), jax.tree.leaves(expected))):
        return
    raise InputError(f"{what} {describe(actual)}; it must be like {name}, {describe(expected)}")
