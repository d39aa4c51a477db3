"""Local solvers: an optax optimizer on h_k, for E epochs or K steps, or until gamma-inexact.

Which solver a client uses is free (Li et al. 2020, section 3.2); the papers run plain SGD. The
optimizer receives the whole gradient of h_k, so a momentum buffer sees the proximal term once.

Clip and weight decay precede the optimizer, as in the code of Acar et al. 2021. The clip sees the
gradients of F_k, the linear and the proximal term together, and the weight decay is not clipped.
(In that code FedDyn's alpha w is part of the weight decay and is not clipped.) Neither belongs to
h_k: gamma and all losses are measured without them. SCAFFOLD's control variates and FedDyn's
    regularizer learn both from a client's steps: at their fixed points the gradient with its
weight decay vanishes.

The stop rule gamma needs gradients over all of a client's rows. With whole-client batches every
step has them. With mini-batches they are computed before every epoch, in one more pass over the
client's rows.
"""

import functools
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.errors import (
    SINGLE,
    InputError,
    PositiveInt,
    Within,
    check_fields,
    require,
    require_number,
    require_one_of,
    require_whole,
    shown,
)
from fedprox.jax_internals import require_backend
from fedprox.model import Params
from fedprox.same import made_once
from fedprox.user_code import call

Schedule = Callable[[int], Any]
"""(round t) -> its learning rate, a number, such as `optax.cosine_decay_schedule(0.1, 200)`."""

HParam = float | Sequence[float]
"""A number, or several to sweep over."""

Numbers = TypeVar("Numbers", int, NDArray[np.int64])
"""A number of rows or steps, or one for each of several clients."""


@dataclass(frozen=True)
class Solver:
    r"""How clients approximately solve their local problems.

    In round :math:`t` a client takes mini-batch steps of an optimizer with learning rate
    :math:`\eta_t = \eta \cdot \mathrm{decay}^t`, or :math:`\eta(t)` of a schedule, along

    .. math:: d = \mathrm{clip}(\nabla h_k(w)) + \lambda w, \qquad
        \mathrm{clip}(g) = \min(1, c / \|g\|) \, g,

    where the gradient is that of a mini-batch. With `gamma` it stops as soon as

    .. math:: \|\nabla h_k(w)\| \le \gamma \|\nabla h_k(s_k)\|

    over all of its rows, where :math:`s_k` is the start of the local problem.

    Attributes:
        learning_rate: Learning rate :math:`\eta`, above 0. A sequence sweeps over its values. Or a
            function of the round t = 0, 1, ..., such as an optax schedule; it may be 0 in some
            rounds, as at the start of a warm-up.
        batch_size: Examples of a mini-batch, at least 1, or "all" for all of a client's rows. The
            last batch of an epoch holds the remaining rows and counts as a step.
        epochs: Passes over the client's rows, each in a new order. Give either this or `steps`.
        steps: Mini-batch steps, whatever the number of the client's rows.
        gamma: Inexactness :math:`\gamma` at which a client stops, from 0 to 1; or a function (round
            t, clients (m,)) -> the clients' gammas (m,). `epochs` or `steps` are then the limit,
            with which planning and memory grow. None means no such stop.
        learning_rate_decay: Factor of the learning rate after every round, above 0 and at most 1; 1
            with a schedule.
        weight_decay: :math:`\lambda`, at least 0.
        clip: Largest gradient norm :math:`c`, above 0; None for no clip.
        optimizer: A function of `learning_rate` that returns an optax optimizer, such as
            `optax.sgd` or `functools.partial(optax.sgd, momentum=0.9)`; with `batch_size="all"`
            also one with a line search, such as `optax.lbfgs` or `fedprox.line_search_descent`. Its
            state is new in every round.

    Raises:
        InputError: If a number is out of range, or not exactly one of `epochs` and `steps` is
            given. Also if settings do not fit together: mini-batches, a clip or weight decay with a
            line search, or weight decay with `gamma`.

    Example:
        Batches of 10, 10 and 5, twenty times:

        >>> import fedprox as fp
        >>> solver = fp.Solver(learning_rate=0.01, batch_size=10, epochs=20)
        >>> solver.steps_for(25)
        60

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Definitions 1 and 2.
    """

    learning_rate: HParam | Schedule
    batch_size: int | Literal["all"]
    epochs: PositiveInt | None = None
    steps: PositiveInt | None = None
    gamma: float | Callable[[int, NDArray[np.int64]], NDArray[np.float64]] | None = None
    learning_rate_decay: Annotated[float, Within(positive=True, most=1)] = 1.0
    weight_decay: Annotated[float, Within(single=True)] = 0.0
    clip: Annotated[float, Within(positive=True, single=True)] | None = None
    optimizer: Callable[..., optax.GradientTransformation] = optax.sgd

    def __post_init__(self) -> None:
        absent = sum(each is None for each in (self.epochs, self.steps))
        require(absent < 2, "solver: neither epochs nor steps is given; give one of them")
        require(
            absent == 1,
            f"solver: epochs = {shown(self.epochs)} and steps = {shown(self.steps)}; give either "
            "epochs or steps, and not both",
        )
        check_fields("solver", self)
        if not (isinstance(self.batch_size, str) and self.batch_size == "all"):
            require_whole("solver.batch_size", self.batch_size, otherwise='"all"')
        for rate in self.rates:
            require_number("solver.learning_rate", rate, positive=True, single=True)
        if not callable(self.gamma):
            require_number("solver.gamma", self.gamma, most=1, optional=True)
        decay = self.learning_rate_decay
        if self.schedule is not None:
            require(
                decay == 1,
                f"solver.learning_rate_decay = {decay}; with a function of the round as "
                "solver.learning_rate it must be 1: let the function decay",
            )
            self.factor(0)
        require(
            self.weight_decay == 0 or self.gamma is None,
            f"solver.weight_decay = {self.weight_decay}; with solver.gamma it must be 0, since the "
            "problem to be solved gamma-inexactly has none",
        )
        searches = self.searches_line
        require(
            self.batch_size == "all" or not searches,
            f"solver.batch_size = {self.batch_size!r}; this optimizer searches along a line, which "
            'needs "all"',
        )
        for name, off in (("weight_decay", 0.0), ("clip", None)):
            require(
                getattr(self, name) == off or not searches,
                f"solver.{name} = {getattr(self, name)}; this optimizer searches along a line of "
                "the local problem itself, which has none: leave it out",
            )

    def changed(self, **settings: Any) -> "Solver":
        """A solver with other settings; `epochs` and `steps` replace each other.

        Args:
            settings: Arguments of `fedprox.Solver`.

        Returns:
            The solver.

        Raises:
            InputError: If there is no such setting, or settings do not fit together.

        Example:
            >>> Solver(0.1, 10, epochs=5).changed(steps=600).epochs is None
            True
        """
        known = [field.name for field in fields(self)]
        for name in settings:
            require_one_of("solver: setting", name, known)
        if "epochs" in settings or "steps" in settings:
            settings = {"epochs": None, "steps": None, **settings}
        return replace(self, **settings)

    @property
    def schedule(self) -> Schedule | None:
        """The learning rate as a function of the round; None if it is a number or several."""
        given = self.learning_rate
        return given if callable(given) and not inspect.isclass(given) else None

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of each point of a sweep, to be multiplied by the round's factor."""
        return (1.0,) if self.schedule is not None else as_rates(self.learning_rate)

    def factor(self, round_: int) -> float:
        """The factor of `rates` in a round: decay^t, or a schedule's learning rate.

        Raises:
            InputError: If the schedule does not return one finite number of at least 0.

        >>> Solver(optax.linear_schedule(0.1, 0.05, 2), 10, epochs=1).factor(1)
        0.075
        >>> steps = optax.piecewise_constant_schedule(0.1, {50: 0.5, 100: 0.5})
        >>> [Solver(steps, 10, epochs=1).factor(t) for t in (49, 50, 100)]
        [0.1, 0.05, 0.025]
        """
        if self.schedule is None:
            return float(self.learning_rate_decay) ** round_
        return scheduled_rate(self.schedule, round_)

    @functools.cached_property
    def searches_line(self) -> bool:
        """Whether the optimizer needs h_k and its value besides the gradient."""
        return made_once(searches_line, self.optimizer, "solver.optimizer")

    def gammas(self, round_: int, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Each client's gamma in a round, shape (m,); 0 without the stop rule.

        Raises:
            InputError: If the user's function does not return a number from 0 to 1 for each client.
        """
        if not callable(self.gamma):
            return np.full(len(clients), self.gamma or 0.0)
        values = np.asarray(self.gamma(round_, clients))
        require(
            values.dtype.kind in "fiu"
            and values.shape == clients.shape
            and bool(((values >= 0) & (values <= 1)).all()),
            f"solver.gamma: in round {round_} its function gives {values.tolist()}; it must give "
            f"{len(clients)} numbers from 0 to 1",
        )
        return values.astype(np.float64)

    def batch_of(self, size: int) -> int:
        """Examples in a full batch of a client with `size` examples."""
        return size if self.batch_size == "all" else min(self.batch_size, size)

    def steps_per_epoch(self, size: Numbers) -> Numbers:
        """Mini-batches in one pass over `size` examples."""
        batch = size if self.batch_size == "all" else self.batch_size
        return -(-size // batch)

    def steps_for(self, size: Numbers) -> Numbers:
        """Mini-batches of a round's whole work on `size` examples."""
        if self.epochs:
            return self.epochs * self.steps_per_epoch(size)
        return 0 * size + (self.steps or 0)

    def init(self, params: Params, learning_rate: jax.Array) -> Any:
        """The optimizer's state at the start of a client's work."""
        return self.optimizer(learning_rate=learning_rate).init(params)

    def step(
        self,
        params: Params,
        state: Any,
        gradient: Params,
        learning_rate: jax.Array,
        **extra: Any,
    ) -> tuple[Params, Any]:
        """One optimizer step.

        Args:
            params: The client's current parameters.
            state: The optimizer's state.
            gradient: (An estimate of) grad h_k(params).
            learning_rate: Step size of the round.
            extra: value, grad and value_fn, for an optimizer with a line search.

        Returns:
            The next parameters and state.
        """
        if self.clip is not None:
            norm = optax.tree.norm(gradient)
            # a norm that overflows has diverged; c / inf would stop the client silently
            shrink = jnp.where(jnp.isinf(norm), jnp.nan, jnp.minimum(1.0, self.clip / norm))
            gradient = jax.tree.map(lambda g: shrink * g, gradient)
        if self.weight_decay:
            gradient = jax.tree.map(lambda g, w: g + self.weight_decay * w, gradient, params)
        optimizer = self.optimizer(learning_rate=learning_rate)
        updates, state = optimizer.update(gradient, state, params, **extra)
        return optax.apply_updates(params, updates), state


ROUNDS_AT_ONCE = 256
"""Rounds for which an optax schedule is evaluated at once, 100 times faster than one by one."""


def as_rates(given: Any) -> tuple[float, ...]:
    """One learning rate or several, as a tuple; `InputError` if functions are among them."""
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    require(
        not several or not any(map(callable, given)),
        "solver.learning_rate: a list with functions, which cannot be swept; give each to a method "
        "of its own, such as fedavg().with_solver(learning_rate=schedule)",
    )
    return as_values("solver.learning_rate", given)


def scheduled_rate(schedule: Schedule, round_: int) -> float:
    """A schedule's learning rate in a round: the shortest decimal of its single-precision value.

    It depends on the round alone, not on the rounds that are planned together.
    """
    together = None
    if _is_optax(inspect.unwrap(schedule)):
        together = _rates_together(schedule, round_ // ROUNDS_AT_ONCE)
    if together is None:
        with _on_host():
            what = f"solver.learning_rate({round_})"
            value = call(what, lambda: np.asarray(schedule(round_)))
    else:
        value = together[round_ % ROUNDS_AT_ONCE]
    rate = float(value) if value.ndim == 0 and value.dtype.kind in "fiu" else math.nan
    require(
        rate == 0 or SINGLE[0] <= rate <= SINGLE[1],
        f"solver.learning_rate: in round {round_} its function gives {shown(value.tolist())}; it "
        "must give one finite number of at least 0, in single precision",
    )
    return float(str(np.float32(rate)))


@functools.lru_cache(maxsize=32)
def _rates_together(schedule: Schedule, block: int) -> NDArray[Any] | None:
    """An optax schedule's rates in a block of rounds; None if it takes only one round at a time."""
    try:
        with _on_host():
            # not schedule(rounds): piecewise_interpolate_schedule is wrong for an array
            rounds = np.arange(ROUNDS_AT_ONCE) + block * ROUNDS_AT_ONCE
            return np.asarray(jax.vmap(schedule)(rounds))  # type: ignore[arg-type]
    except Exception:  # it may join the user's own functions, which take one round
        return None


def _is_optax(function: Callable[..., Any]) -> bool:
    return str(getattr(function, "__module__", "")).startswith("optax.")


def _on_host() -> AbstractContextManager[Any]:
    """Compute on the CPU: an accelerator would first finish its queue."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX is set to use the accelerator alone
        return nullcontext()


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function such as an optimizer, with its options; the same in every process.

    An optax schedule has the name of the function that made it.

    >>> name_of(optax.cosine_decay_schedule(0.1, 200))
    'cosine_decay_schedule'
    >>> import functools
    >>> name_of(functools.partial(optax.sgd, momentum=0.9))
    'sgd momentum=0.9'
    """
    if _is_optax(function) and "." in (name := getattr(function, "__qualname__", "")):
        return str(name.partition(".")[0])
    if not isinstance(function, functools.partial):
        return getattr(function, "__name__", type(function).__name__)
    options = {k: name_of(v) if callable(v) else v for k, v in function.keywords.items()}
    return " ".join([name_of(function.func), *(f"{k}={v}" for k, v in options.items())])


BY_NAME = (TypeError, ValueError, KeyError, AttributeError)
"""Errors, for an array of numbers, of an optimizer that refers to a model's parameters by name."""


def searches_line(optimizer: Callable[..., Any], where: str) -> bool:
    """Whether an optimizer needs the objective and its value besides the gradient."""
    require_backend()
    built: Any = None
    with suppress(TypeError):
        built = optimizer(learning_rate=jnp.ones(()))
    quoted = name_of(optimizer) if callable(optimizer) else shown(optimizer)
    require(
        callable(getattr(built, "init", None)) and callable(getattr(built, "update", None)),
        f"{where} = {quoted}; it must be a function of learning_rate= that gives an optax "
        "optimizer, such as optax.sgd without parentheses",
    )

    def update(w: jax.Array, **extra: Any) -> Any:
        return built.update(w, built.init(w), w, **extra)

    def search(w: jax.Array) -> Any:
        return update(w, value=jnp.vdot(w, w), grad=w, value_fn=lambda v: jnp.vdot(v, v))

    w = jnp.ones(2)
    try:
        jax.eval_shape(built.init, w)
    except BY_NAME:
        return False
    try:
        jax.eval_shape(update, w)
    except TypeError:
        try:
            jax.eval_shape(search, w)
        except TypeError as error:
            why = str(error).partition("\n")[0]
            raise InputError(f"{where} = {quoted}; its update fails: {why}") from error
        return True
    return False


def line_search_descent(learning_rate: jax.Array) -> optax.GradientTransformationExtraArgs:
    r"""Gradient descent with a backtracking line search, as an optimizer of `fedprox.Solver`.

    The step size starts at :math:`\eta` and is halved until Armijo's condition holds:

    .. math:: h_k(w - \eta g) \le h_k(w) - 10^{-4} \eta \|g\|^2, \qquad g = \nabla h_k(w).

    A step starts from twice the last step size, at most the given one.

    Args:
        learning_rate: Largest step size, above 0.

    Returns:
        An optax optimizer that needs whole-client batches.

    Example:
        >>> import fedprox as fp
        >>> descent = fp.line_search_descent
        >>> fp.Solver(1.0, "all", steps=50, gamma=0.1, optimizer=descent).searches_line
        True

    References:
        Armijo, `Minimization of functions having Lipschitz continuous first partial derivatives
        <https://doi.org/10.2140/pjm.1966.16.1>`_, Pacific Journal of Mathematics, 1966.
    """
    return optax.chain(
        optax.sgd(learning_rate),
        optax.scale_by_backtracking_linesearch(
            max_backtracking_steps=30, decrease_factor=0.5, increase_factor=2.0, rtol=1e-7
        ),
    )


def as_values(name: str, value: HParam) -> tuple[float, ...]:
    """A number or several, as a tuple.

    >>> as_values("mu", 0.1), as_values("mu", [0, 1])
    ((0.1,), (0.0, 1.0))
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    values: Sequence[Any] = value if several else (value,)  # type: ignore[assignment]
    require(len(values) > 0, f"{name}: none given; at least one is needed")
    for each in values:
        number = isinstance(each, Real) and not isinstance(each, bool)
        if not number:
            raise InputError(f"{name} = {shown(each)}; it must be a number or a list of numbers")
    try:
        return tuple(float(v) for v in values)
    except OverflowError:
        raise InputError(
            f"{name}: a number beyond double precision, which holds up to {sys.float_info.max:.3g}"
        ) from None
