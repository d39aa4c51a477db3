r"""The interface of an algorithm: pure functions that a round calls.

Round :math:`t` with the cohort :math:`S_t` computes::

    on each client k in S_t:
        h_k              = subproblem(state, hparams, context_k)
        solution_k       = the local solver's answer to h_k
        m_k, own state_k = message(state, hparams, context_k, solution_k)

    on the server:
        state            = update(state, sum_k weight_k m_k, hparams)

The weights of the clients that took part sum to one. A round in which no client took part leaves
the state unchanged. ``context_k`` is what client k alone knows: see :class:`ClientContext`. The
solver's mini-batch steps take the gradient of F_k, or of the method's ``objective`` in its place.

A method with an exchange begins each round with a second cohort, drawn independently, or with the
round's own::

    state = exchange(state, sum_k weight_k sent(grad F_k(w^t)), hparams)

Every function is traced by JAX, so it must be written in ``jax.numpy`` and depend on its arguments
alone. ``fedavg.py`` is the shortest method, ``scaffold.py`` one with a server state, client states
and messages of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedprox.errors import require, require_number, require_one_of, shown
from fedprox.features import Features
from fedprox.metrics import weighted_sums
from fedprox.model import Model, Params, losses_of, outputs_of
from fedprox.solver import HParam, Solver, as_values
from fedprox.subproblem import Subproblem

State = Any
"""The server's state: a pytree of arrays."""

Message = Any
"""A client's message: a pytree of float32 arrays, or of float64 in double precision."""

ClientState = Any
"""A client's state between the rounds in which it takes part: a pytree of arrays, or None."""

Pair = tuple[Params, Params]
"""Two pytrees like the parameters, which clients of some methods send, or keep."""

Numbered = tuple[Params, jax.Array]
"""An update, and a number that clients of some methods send beside it."""

Stragglers = Literal["keep", "drop"]
"""Whether the server keeps stragglers' partial work or drops stragglers."""

Average = Literal["rows", "clients"]
"""The weights of the server's mean: a client's training rows, or 1 for each client."""

ModelState = Literal["mean", "own", "own layers", "server"]
"""The treatment of a model's state that is not trained; see `Algorithm.with_model_state`."""

ExchangeCohort = Literal["another", "own"]
"""The cohort of a first exchange: one drawn independently, or the round's clients that work."""

HParams = Mapping[str, jax.Array]
"""Scalars by name: the algorithm's hyperparameters; "learning_rate", the local learning rate of the
round; and "participation", the share of all clients' weight that took part in the round."""


class ClientContext(NamedTuple):
    r"""The values that functions of client :math:`k` read besides the server's state.

    Attributes:
        gradient: :math:`\nabla F_k(w^t)` if `First.gradient`; else None.
        state: The client's state after the last round in which it took part, or its first state.
        relative_size: :math:`n_k / \bar n`, the client's training rows over the mean of all
            clients'.
        loss: :math:`F_k(w^t)`, a scalar, if `First.loss`; else None.
        memory: The client's memory within the round, if the method has `OnClient.memory`; else
            None.
        labels: How many labels of each class the client's rows have, shape (classes,), if
            `First.labels`; else None.
        probed: :math:`F_k` of each model of `First.probe`, shape (models,); None without.
        columns: The client's numbers from the parts of a run, by name, such as "rank".
        model_state: The client's current state of the model, if `OnClient.model_state`; else None.
    """

    gradient: Params
    state: ClientState
    relative_size: jax.Array
    loss: Any = None
    memory: Any = None
    labels: Any = None
    probed: Any = None
    columns: Mapping[str, jax.Array] = {}
    model_state: Any = None


class Batch(NamedTuple):
    """A mini-batch of a client, or the part of it that is read together.

    Attributes:
        x: Features (B, ...).
        y: Labels.
        weights: 1 / (the mini-batch's size) for its rows and 0 for padding, shape (B,).
        key: Random key of `Model.train`; None for a model without.
    """

    x: Features
    y: jax.Array
    weights: jax.Array
    key: jax.Array | None

    def outputs(self, model: Model, params: Params) -> jax.Array:
        """The model's outputs for the rows, by `Model.train` if it has one."""
        return outputs_of(model, params, self.x, self.key)

    def mean(self, values: jax.Array) -> jax.Array:
        """The mean of a number of each row, shape (B,)."""
        summed: jax.Array = weighted_sums(values, self.weights)
        return summed

    def loss(self, model: Model, params: Params) -> jax.Array:
        """The mean loss of the rows, of which F_k is the mean over all of the client's rows."""
        return self.mean(losses_of(model, self.outputs(model, params), self.y))


Objective = Callable[[Model, Params, Batch, Any], jax.Array]
"""(model, params, batch, `Subproblem.given`) -> the loss of a mini-batch, in place of F_k."""


class Solution(NamedTuple):
    r"""The local solver's result on client :math:`k`.

    Attributes:
        problem: The local problem :math:`h_k`.
        params: The client's parameters :math:`w_k`.
        steps: Mini-batch steps that the client took, an int32 scalar.
    """

    problem: Subproblem
    params: Params
    steps: jax.Array


def local_update(solution: Solution) -> Params:
    """The client's update w_k - s_k, where s_k is the start of its local problem."""
    return jax.tree.map(jnp.subtract, solution.params, solution.problem.start)


def difference(
    state: State, hparams: HParams, context: ClientContext, solution: Solution
) -> tuple[Message, ClientState]:
    """Send w_k - w^t; leave the client's state as it was."""
    del state, hparams
    return local_update(solution), context.state


def plain_sgd(needs: str) -> Callable[[Solver], Solver]:
    """An `OnClient.solver` of methods that need plain SGD, and say so in a message."""

    def local(solver: Solver) -> Solver:
        require(solver.optimizer is optax.sgd, needs)
        return solver

    return local


def same_params(params: Params) -> Params:
    """The parameters themselves: the state of a server that keeps only the model."""
    return params


def params_of(state: Any) -> Params:
    """The model of a state with other fields beside it."""
    return state.params


def with_params(state: Any, params: Params) -> Any:
    """The state with another model."""
    return state._replace(params=params)


@dataclass(frozen=True)
class Direction:
    """A server that moves along a direction; a rule of :mod:`fedprox.server` may take its steps.

    It is the `OnServer.update` that adds the direction to the model, times the rate if there is
    one.

    Attributes:
        along: (state, weighted mean of the messages, hparams) -> the direction, and the next state
            without the model's step.
        model: (state) -> the parameters that move.
        moved: (next state, parameters after their step) -> the next state with them.
        sent: (message) -> the client's update, of which the direction is the mean; None if it is
            the mean of none, so that rules that compare clients' updates do not fit.
        rate: Name of the hyperparameter that the direction is multiplied by; "" for none. A server
            rule takes its place.
    """

    along: Callable[[State, Message, HParams], tuple[Params, State]]
    model: Callable[[State], Params] = same_params
    moved: Callable[[State, Params], State] = lambda _, params: params
    sent: Callable[[Message], Params] | None = None
    rate: str = ""

    def __call__(self, state: State, mean: Message, hparams: HParams) -> State:
        """The next state, after the plain step."""
        direction, after = self.along(state, mean, hparams)
        params = self.model(state)
        if self.rate:
            return self.moved(after, add_scaled(params, hparams[self.rate], direction))
        return self.moved(after, jax.tree.map(jnp.add, params, direction))


add = Direction(along=lambda state, mean, _: (mean, state), sent=same_params)
"""w^{t+1} = w^t + sum_k weight_k (w_k - w^t) = sum_k weight_k w_k."""


@runtime_checkable
class ServerRule(Protocol):
    """The argument of `Algorithm.with_server`: a :class:`fedprox.server.Rule`."""

    def around(self, method: "Algorithm") -> "Algorithm":
        """The method, whose server steps by the rule."""


def zeros(params: Params) -> Params:
    """Zeros of the shapes and types of the parameters."""
    return jax.tree.map(jnp.zeros_like, params)


ROUNDING = 1e-4
"""By how much, relatively, sums of clients' messages may differ from what they can be."""


def add_scaled(a: Params, scale: jax.Array | float, b: Params) -> Params:
    """The sum a + scale b of two pytrees."""
    return jax.tree.map(lambda x, y: x + scale * y, a, b)


def check_hparam(name: str, given: HParam, *, positive: bool = False) -> tuple[float, ...]:
    """The value or values of a hyperparameter, checked.

    Args:
        name: Its name in messages, such as "fedprox: mu".
        given: A number, or several to sweep over.
        positive: Whether it must be above 0, and not only at least 0.

    Returns:
        The values as a tuple.

    Raises:
        InputError: If a value is negative, not finite, not a number, or 0 although `positive`, in
            single precision.

    Example:
        >>> check_hparam("mine: mu", 0.1), check_hparam("mine: mu", [0.0, 0.1])
        ((0.1,), (0.0, 0.1))
    """
    values = as_values(name, given)
    for value in values:
        require_number(name, value, positive=positive, single=True)
    return values


class Own(NamedTuple):
    """A client's own model.

    Attributes:
        model: Its parameters.
        trained: Whether the client has taken part, a scalar bool.
    """

    model: Params
    trained: jax.Array


def untrained(params: Params) -> Own:
    """The own model of a client that has not taken part yet."""
    return Own(params, jnp.bool_(False))


def trained(params: Params) -> Own:
    """The own model of a client after it took part."""
    return Own(params, jnp.bool_(True))


def own_or(own: Own, params: Params) -> Params:
    """The client's own model, or other parameters if it has not taken part yet."""
    return jax.tree.map(lambda v, w: jnp.where(own.trained, v, w), own.model, params)


class Personal(NamedTuple):
    """How each client gets a model of its own.

    Attributes:
        own: (client state, the server's parameters) -> the client's own model.
        subproblem: A second local problem of each client in a round, as `Algorithm.subproblem`,
            which is solved before the other from its own start. It has the same steps and
            mini-batches. None if there is one problem. In its context `gradient`, `loss`, `labels`,
            `probed` and `memory` are None.
        objective: The objective of that problem in place of F_k, as `OnClient.objective`.
        keep: (client state, the solution of this problem) -> the client's state, which the other
            problem reads.
        parts: Dotted names of parameters, or of layers, that stay on the clients. Local problems
            then start from the server's parameters except for these, and gamma is not measured.
    """

    own: Callable[[ClientState, Params], Own]
    subproblem: Callable[[State, HParams, ClientContext], Subproblem] | None = None
    keep: Callable[[ClientState, Params], ClientState] | None = None
    objective: Objective | None = None
    parts: tuple[str, ...] = ()


class Memory(NamedTuple):
    """A client's memory from step to step within a round, for local problems that move.

    Attributes:
        init: (state, context) -> the memory before the client's first step, any pytree of arrays.
        update: (state, hparams, context, the client's parameters after a step) -> the memory; the
            context has the one before the step.
    """

    init: Callable[[State, ClientContext], Any]
    update: Callable[[State, HParams, ClientContext, Params], Any]


class Adaptation(NamedTuple):
    """How a method's hyperparameters follow the training loss f from round to round.

    Both functions work on arrays of shape (points,): the hyperparameters and losses of all sweep
    points.

    Attributes:
        init: (hparams, f(w^0)) -> the first memory, any pytree of arrays.
        update: (hparams, memory, f after the round) -> hparams and memory for the next round.
    """

    init: Callable[[HParams, jax.Array], Any]
    update: Callable[[HParams, Any, jax.Array], tuple[HParams, Any]]


class OnClient(NamedTuple):
    r"""The functions and settings of clients, beside their local problem.

    Attributes:
        message: (state, hparams, context, solution) -> what the client sends, and its next state.
        state: (params) -> the first state of every client; None for clients without state.
        memory: The clients' memory from step to step within a round; None for none.
        objective: (model, params, batch, `Subproblem.given`) -> the loss of a mini-batch, a
            :class:`fedprox.algorithms.base.Batch`, whose gradient local steps take in place of that
            of :math:`F_k`. None for :math:`F_k`.
        whole_batches: Whether the objective needs each mini-batch in one piece. Otherwise wide ones
            are read in parts, and their losses added.
        solver: (solver) -> the solver that clients use, given the experiment's.
        round_steps: (seed, round) -> the local steps of every client in a round, in place of the
            solver's epochs or steps; None if the solver says.
        size: (message) -> its size, a scalar, by which `fedprox.Faults` recognizes faulty messages.
            It should leave out parts of a message that differ between sound clients, such as those
            that grow with the rounds since a client took part.
        possible: (hparams, weighted mean of some clients' messages, most local steps of one of
            them) -> whether clients can send it, a scalar bool, true up to rounding. A deployment
            refuses other answers of nodes. A mean that is not finite is left to screening. None if
            it may be any.
        keeps_sent: Whether a client's state must follow from its update as the server receives it.
            With `fedprox.Compression`, `message` is then asked for the client's state with the
            parameters that the server receives.
        model_state: (state, context) -> the state of the model from which the client begins; None
            for a model without. Methods usually leave it out: see `Algorithm.with_model_state`.

    Example:
        Clients that send the signs of their updates:

        >>> import fedprox as fp, jax.numpy as jnp
        >>> def signs(state, hparams, context, solution):
        ...     return jnp.sign(solution.params - solution.problem.start), context.state
        >>> method = fp.fedprox(mu=0.1)._replace(client=fp.OnClient(message=signs))
    """

    message: Callable[[State, HParams, ClientContext, Solution], tuple[Message, ClientState]] = (
        difference
    )
    state: Callable[[Params], ClientState] | None = None
    memory: Memory | None = None
    objective: Objective | None = None
    whole_batches: bool = False
    solver: Callable[[Solver], Solver] = lambda solver: solver
    round_steps: Callable[[int, int], int] | None = None
    size: Callable[[Message], jax.Array] = optax.tree.norm
    possible: Callable[[HParams, Message, jax.Array], jax.Array] | None = None
    keeps_sent: bool = False
    model_state: Callable[[State, ClientContext], Any] | None = None


class OnServer(NamedTuple):
    """The server's state, and how its model follows from the clients' messages.

    Attributes:
        update: (state, weighted mean of the messages, hparams) -> the server's next state. With a
            :class:`fedprox.algorithms.base.Direction` server rules fit.
        init: (params) -> the server's first state. With several `starts`, "params" are all of these
            models, leaves (starts, ...).
        params: (state) -> the parameters that the server sends.
        received: (state, context) -> the parameters that a client received; None for those of
            `params`. With a probe, evaluations measure them as the client's own model.
        evaluated: (state) -> the parameters that evaluations read; None for those that are sent.
        starts: Number of initial models: one from the run's seed, and others from further streams
            of the seed.
        moves_alone: Whether the server's model may move in a round in which no client's model
            changes, as by weight decay on the server. Otherwise a method that moves it is refused.

    Example:
        A server that goes half of the way:

        >>> import fedprox as fp
        >>> def half(params, mean, hparams):
        ...     return params + mean / 2
        >>> method = fp.fedprox(mu=0.1)._replace(server=fp.OnServer(update=half))
        >>> method.server.update(1.0, 0.5, {})
        1.25
    """

    update: Callable[[State, Message, HParams], State] = add
    init: Callable[[Params], State] = same_params
    params: Callable[[State], Params] = same_params
    received: Callable[[State, ClientContext], Params] | None = None
    evaluated: Callable[[State], Params] | None = None
    starts: int = 1
    moves_alone: bool = False


def beside_model(
    init: Callable[[Params], State],
    direction: Direction = add,
    moved: Callable[[State, Params], State] = with_params,
) -> OnServer:
    """A server that keeps the model as `params` of a NamedTuple, and more beside it.

    Args:
        init: (params) -> the first state.
        direction: The direction along which the model moves.
        moved: As :class:`Direction` has it.

    Returns:
        The server's functions and settings.

    Example:
        >>> class State(NamedTuple):
        ...     params: Params
        ...     last: Params
        >>> along = lambda state, mean, hparams: (mean, state._replace(last=mean))
        >>> server = beside_model(lambda params: State(params, zeros(params)), Direction(along))
        >>> server.update(server.init(jnp.ones(1)), jnp.ones(1), {}).params.tolist()
        [2.0]
    """
    return OnServer(replace(direction, model=params_of, moved=moved), init, params_of)


class First(NamedTuple):
    r"""A computation at w^t on the clients' rows, before the local work of a round.

    Attributes:
        gradient: Whether it computes :math:`\nabla F_k(w^t)` for each client's context.
        loss: Whether it computes :math:`F_k(w^t)` for each client's context.
        labels: Whether it counts the labels of each client's rows for its context. It needs an
            objective.
        probe: (state) -> some models, leaves (models, ...), of which it computes :math:`F_k` for
            each client's context: `ClientContext.probed`. None for no models. A method that has it
            has `OnServer.received`, which may choose among them.
        exchange: (state, weighted mean of :math:`\nabla F_k(w^t)` over a first cohort, hparams) ->
            state; None for a method without exchange. It needs `gradient`.
        cohort: The first cohort: "another", drawn independently, or "own", the clients of the round
            that work.
        sent: (gradient) -> what a client of the first cohort sends for its
            :math:`\nabla F_k(w^t)`.

    Example:
        >>> import fedprox as fp
        >>> fp.feddane(mu=0.1).first.gradient, fp.fedlc(tau=1.0).first.labels
        (True, True)
    """

    gradient: bool = False
    loss: bool = False
    labels: bool = False
    probe: Callable[[State], Params] | None = None
    exchange: Callable[[State, Params, HParams], State] | None = None
    cohort: ExchangeCohort = "another"
    sent: Callable[[Params], Params] = same_params

    @property
    def measures(self) -> bool:
        """Whether it measures the model."""
        return self.gradient or self.loss

    @property
    def reads(self) -> bool:
        """Whether it reads the rows."""
        return self.measures or self.labels or self.probe is not None


class Algorithm(NamedTuple):
    r"""A federated optimization method: pure functions and how a round uses them.

    The module `fedprox.algorithms.base` shows the round. Only `name`, `subproblem`, `hparams` and
    `stragglers` are required; the defaults of the others make the method FedAvg with a local
    problem of its own. In the types of its parts, "params" is a pytree of the model's parameters.

    Attributes:
        name: Name in tables and labels.
        subproblem: (state, hparams, context) -> :class:`fedprox.Subproblem`, the local problem
            :math:`h_k`. It must start from the parameters that the server sends.
        hparams: The method's hyperparameters by name: a number each, or several to sweep over.
        stragglers: "keep" averages the partial work of clients that cannot finish; "drop" leaves
            these clients out.
        average: Weights of the server's mean: "rows" for :math:`n_k`, "clients" for 1 each. Under
            proportional sampling each draw counts once.
        variant: Which variant of the method this is; shown after the name.
        client: The functions and settings of clients, beside their local problem.
        server: The server's functions and settings.
        first: The computation before the local work of a round.
        personal: How each client gets a model of its own; None if there is one model.
        settings: Settings of the solver that this method overrides; see `with_solver`.
        adapt: How hyperparameters follow the training loss; None if they stay as they are.
        communication: Communication of a round in units of FedAvg's, which sends the parameters to
            every client of the cohort and back.
        everyone: Whether every client must take part in every round, with all of its work.
        pooled: Whether one client holds all rows and takes as many steps as the cohort together
            would: the centralised baseline.
        not_private: Why clipping a whole message and adding noise does not fit the method, for the
            error with `fedprox.Privacy`; empty if they fit.
        fixed: The settings that the method's theory fixes, each with the reason: "server",
            "stragglers", "average" or "model_state", for the messages of `with_server`,
            `with_stragglers` and the others.
        model_state: The treatment of the model's state that is not trained, if there is one; see
            `with_model_state`.
        inside: (a function of methods) -> this method with the function's result in place of the
            method inside it; None if there is none.
        paired: Whether the first values of all hyperparameters that have several are a sweep point,
            the second values the next, and so on, in place of every combination.

    Example:
        FedProx in five lines:

        >>> import fedprox as fp
        >>> def proximal(params, hparams, context):
        ...     return fp.Subproblem(start=params, mu=hparams["mu"], anchor=params)
        >>> method = fp.Algorithm("mine", proximal, hparams={"mu": [0.1, 1.0]}, stragglers="keep")
        >>> method.with_solver(steps=20).settings
        {'steps': 20}
    """

    name: str
    subproblem: Callable[[State, HParams, ClientContext], Subproblem]
    hparams: Mapping[str, HParam]
    stragglers: Stragglers
    average: Average = "rows"
    variant: str = ""
    client: OnClient = OnClient()
    server: OnServer = OnServer()
    first: First = First()
    personal: Personal | None = None
    settings: Mapping[str, Any] = {}
    adapt: Adaptation | None = None
    communication: float = 1
    everyone: bool = False
    pooled: bool = False
    not_private: str = ""
    fixed: Mapping[str, str] = {}
    model_state: ModelState = "mean"
    inside: Callable[[Callable[["Algorithm"], "Algorithm"]], "Algorithm"] | None = None
    paired: bool = False

    @property
    def functions(self) -> "Algorithm":
        """This method without the values of hyperparameters and settings, which change no shape."""
        return self._replace(hparams=dict.fromkeys(self.hparams, 0.0), settings={})

    @property
    def moves_model_state(self) -> bool:
        """Whether local steps move the state of a model that has one."""
        return self.model_state != "server"

    @property
    def own_parts(self) -> tuple[str, ...]:
        """The dotted names of parameters, or of layers, that stay on the clients."""
        return self.personal.parts if self.personal else ()

    @property
    def several_models(self) -> bool:
        """Whether clients have models of their own, or choose among several."""
        return self.personal is not None or self.first.probe is not None

    def initial(self, *starts: Params) -> State:
        """The server's first state.

        Args:
            starts: The initial models.
        """
        if self.server.starts == 1:
            return self.server.init(*starts)
        return self.server.init(jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts))

    def state_like(self, params: Params) -> State:
        """The server's state, in shape, for a model's shapes and types."""
        return jax.eval_shape(self.initial, *[params] * self.server.starts)

    def probed(self, params: Params) -> int:
        """How many models a round's clients measure, for a model's shapes and types."""
        if self.first.probe is None:
            return 0
        models = jax.eval_shape(self.first.probe, self.state_like(params))
        return len(jax.tree.leaves(models)[0])

    def begun(self, state: State, context: ClientContext) -> ClientContext:
        """A client's context before its first step, with its memory and the model's state, if any.

        Args:
            state: The server's state.
            context: The context without these.
        """
        memory, model_state = self.client.memory, self.client.model_state
        return context._replace(
            memory=memory and memory.init(state, context),
            model_state=model_state and model_state(state, context),
        )

    def with_server(self, rule: ServerRule) -> "Algorithm":
        """The same method with another rule for the server's step.

        Args:
            rule: One of :mod:`fedprox.server`, such as `fedprox.server.adam(0.03)`. Its
                hyperparameters join the method's and are swept over like them.

        Returns:
            The method; its variant names the rule.

        Raises:
            InputError: If the method's theory fixes the server's step, or it has such a rule.

        Example:
            >>> import fedprox as fp
            >>> method = fp.fedprox(mu=0.1).with_server(fp.server.adam([0.01, 0.03]))
            >>> method.variant, sorted(method.hparams)
            ('adam', ['mu', 'server_learning_rate'])
        """
        require(
            isinstance(rule, ServerRule) and not isinstance(rule, type),
            f"with_server: {shown(rule)}; it must be a rule such as fedprox.server.adam(0.03)",
        )
        return rule.around(self)

    def with_stragglers(self, stragglers: Stragglers) -> "Algorithm":
        """The same method, which keeps the partial work of stragglers or drops them.

        Args:
            stragglers: "keep" or "drop".

        Returns:
            The method; its variant says what differs.

        Raises:
            InputError: If the method's theory fixes it, or it has another value.

        Example:
            >>> import fedprox as fp
            >>> fp.fedprox(mu=0.1).with_stragglers("drop").variant
            'drop'
        """
        return self._with("stragglers", stragglers, get_args(Stragglers), stragglers)

    def with_average(self, average: Average) -> "Algorithm":
        """The same method with other weights of the server's mean.

        Args:
            average: "rows" for the training rows n_k, or "clients" for 1 each, which minimizes the
                plain mean of the F_k.

        Returns:
            The method; its variant says what differs.

        Raises:
            InputError: If the method's theory fixes it, or it has another value.

        Example:
            >>> import fedprox as fp
            >>> fp.fedprox(mu=0.1).with_average("clients").variant
            'plain mean'
        """
        words = {"rows": "mean by rows", "clients": "plain mean"}
        return self._with("average", average, get_args(Average), words.get(average, ""))

    def with_model_state(self, model_state: ModelState) -> "Algorithm":
        """The same method with another treatment of a model's state that is not trained.

        Such a state, like the running means and variances of batch normalization, moves with each
        mini-batch of a client that trains.

        Args:
            model_state: "mean": clients begin with the server's state, which becomes the mean of
                theirs, weighted as their messages are. "own": each client begins with its own, and
                the server's evaluation uses the mean; with FedAvg this is SiloBN. "own layers": the
                same, and the parameters of the layers that have a state stay on the clients too;
                with FedAvg this is FedBN. "server": clients compute with the initial state, such as
                that of a pre-trained model, as evaluations do, and without dropout.

        Returns:
            The method; its variant says what differs.

        Raises:
            InputError: If the method's theory fixes it, or it has another value. Later, if the
                model has no state.

        Example:
            >>> import fedprox as fp
            >>> fp.fedprox(mu=0.1).with_model_state("own").variant
            'own model state'
        """
        words = {"mean": "mean model state", "own": "own model state"}
        words |= {"own layers": "own layers with state", "server": "the server's model state"}
        allowed, word = get_args(ModelState), words.get(model_state, "")
        return self._with("model_state", model_state, allowed, word)

    def _with(self, field: str, value: str, allowed: Any, word: str) -> "Algorithm":
        """The method with another value of a field that its variant then names."""
        require_one_of(f"{self.name}: {field}", value, allowed)
        if value == getattr(self, field):
            return self
        why = self.fixed.get(field, "")
        require(not why, f"{self.name}: {field} = {value}; it is fixed: {why}")
        changed: dict[str, Any] = {field: value, "variant": f"{self.variant} {word}".lstrip()}
        return self._replace(**changed)

    def with_solver(self, **settings: Any) -> "Algorithm":
        """The same method with its own settings of the solver.

        Args:
            settings: Arguments of `fedprox.Solver`. `epochs` and `steps` replace each other.

        Returns:
            The method; its settings override those of the solver of a comparison.

        Example:
            >>> import fedprox as fp
            >>> fp.scaffold().with_solver(steps=600, learning_rate=0.1).settings
            {'steps': 600, 'learning_rate': 0.1}
        """
        lengths = {"epochs", "steps"}
        before = {
            name: value
            for name, value in self.settings.items()
            if name not in lengths or not lengths & settings.keys()
        }
        return self._replace(settings={**before, **settings})

    def solver(self, solver: Solver) -> Solver:
        """The solver that the method's clients use.

        Args:
            solver: The solver of the comparison.

        Returns:
            The solver with the method's settings.

        Raises:
            InputError: If the method cannot use a setting.
        """
        used = self.client.solver(solver.changed(**self.settings))
        for name, value in self.settings.items():
            actual = getattr(used, name)
            same = np.array_equal(actual, value)  # one or several
            require(same, f"{self.name}: its {name} is always {actual}, not {value}")
        return used
