r"""Server rules: how a method's server turns the clients' mean update into its next model.

A method is a local problem times a server rule. With the direction :math:`d^t` of a method, for
most the mean update :math:`\sum_k p_k (w_k - w^t)`, a rule computes :math:`w^{t+1}` from
:math:`w^t`, :math:`d^t` and what it remembers. So FedProx with Adam on the server is
``fp.fedprox(mu=0.1).with_server(fp.server.adam(0.03))``, and FedOpt and FedExP are FedAvg with a
rule.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedprox.algorithms import base
from fedprox.algorithms.lift import lift
from fedprox.errors import InputError, require, require_number
from fedprox.model import Params
from fedprox.same import made_once
from fedprox.solver import BY_NAME, HParam, as_values, name_of, searches_line


class Rule(NamedTuple):
    """A server rule: pure functions, traced by JAX like those of a method.

    Attributes:
        name: Name in labels, after that of the method.
        step: (the rule's state, w^t, direction, mean of what clients measured or None, hparams) ->
            w^{t+1} and the rule's next state.
        hparams: The rule's hyperparameters by name: a number each, or several to sweep over.
        init: (w^0) -> the rule's first state, any pytree of arrays.
        measure: (a client's update) -> numbers that the client sends beside it, any pytree; None
            for nothing. The method's direction must be the mean of the clients' updates.
        possible: (mean update, mean of what clients measured) -> whether clients can send both, a
            scalar bool, as `OnClient.possible`.
        moves_alone: Whether the model may move although the direction is zero, as by weight decay.
        not_private: Why privacy does not fit what clients measure; empty if it does.

    Example:
        A step that is never longer than 1:

        >>> import fedprox as fp
        >>> import optax
        >>> def short(state, params, direction, measured, hparams):
        ...     scale = 1 / jnp.maximum(1.0, optax.tree.norm(direction))
        ...     return jax.tree.map(lambda w, d: w + scale * d, params, direction), state
        >>> fp.fedprox(mu=0.1).with_server(fp.server.Rule("short", short)).variant
        'short'
    """

    name: str
    step: Callable[[Any, Params, Params, Any, base.HParams], tuple[Params, Any]]
    hparams: Mapping[str, HParam] = {}
    init: Callable[[Params], Any] = lambda _: ()
    measure: Callable[[Params], Any] | None = None
    possible: Callable[[Params, Any], jax.Array] = lambda *_: jnp.bool_(True)
    moves_alone: bool = False
    not_private: str = ""

    def around(self, method: base.Algorithm) -> base.Algorithm:
        """The method, whose server steps by the rule; see `Algorithm.with_server`."""
        if self is MEAN:
            return method
        name, way = method.name, method.server.update
        why = method.fixed.get("server", "")
        require(not why, f"{name}: no server rule fits: {why}")
        if not isinstance(way, base.Direction):
            raise InputError(f"{name}: no server rule fits: its update has no direction")
        require(
            self.measure is None or way.sent is not None,
            f"{name}: {self.name} compares the clients' updates with their mean, and this server "
            "moves along another direction",
        )
        own = {key: value for key, value in method.hparams.items() if key != way.rate}
        require(
            not way.rate or as_values(way.rate, method.hparams[way.rate]) == (1.0,),
            f"{name}: {way.rate} is the step of its own server, whose place {self.name} takes; "
            "leave it out",
        )
        for key in self.hparams:
            require(key not in own, f"{name}: it has a hyperparameter {key!r}, as {self.name} has")
        return _ruled(method, way, self)._replace(
            hparams={**own, **self.hparams},
            variant=f"{method.variant} {self.name}".lstrip(),
            not_private=method.not_private or self.not_private,
            fixed={**method.fixed, "server": f"it steps by {self.name} already"},
        )


class Ruled(NamedTuple):
    """A method's state, and that of its server rule."""

    state: base.State
    rule: Any


def _ruled(method: base.Algorithm, way: base.Direction, rule: Rule) -> base.Algorithm:
    """The functions of a method whose server steps by a rule."""
    inner = lift(method, server=lambda state, _: Ruled(state, rule.init(way.model(state))))

    def update(outer: Ruled, mean: Any, hparams: base.HParams, measured: Any = None) -> Ruled:
        direction, after = way.along(outer.state, mean, hparams)
        params, kept = rule.step(outer.rule, way.model(outer.state), direction, measured, hparams)
        return Ruled(way.moved(after, params), kept)

    moves_alone = method.server.moves_alone or rule.moves_alone
    server = inner.server._replace(update=update, moves_alone=moves_alone)
    measure, sent, own_possible = rule.measure, way.sent, method.client.possible
    if measure is None or sent is None:
        return inner._replace(server=server)

    def message(
        outer: Ruled, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[tuple[base.Message, Any], base.ClientState]:
        """Send the method's message, and what the rule measures of the update in it."""
        own, state = inner.client.message(outer, hparams, context, solution)
        return (own, measure(sent(own))), state

    def possible(
        hparams: base.HParams, mean: tuple[base.Message, Any], steps: jax.Array
    ) -> jax.Array:
        own, measured = mean
        fits = rule.possible(sent(own), measured)
        return fits & own_possible(hparams, own, steps) if own_possible else fits

    return inner._replace(
        client=inner.client._replace(
            message=message, size=lambda both: method.client.size(both[0]), possible=possible
        ),
        server=server._replace(
            update=lambda outer, both, hparams: update(outer, both[0], hparams, both[1])
        ),
    )


MEAN = Rule("mean", lambda state, w, d, *_: (jax.tree.map(jnp.add, w, d), state))
"""The rule of FedAvg, which every method has without another."""


def mean() -> Rule:
    r"""The plain step :math:`w^{t+1} = w^t + d^t`, which a method has by itself.

    Returns:
        A rule for `Algorithm.with_server`, which leaves the method as it is.

    Example:
        >>> import fedprox as fp
        >>> method = fp.fedprox(mu=0.1)
        >>> method.with_server(fp.server.mean()) is method
        True
    """
    return MEAN


def optimizer(
    optimizer: Callable[..., optax.GradientTransformation], *, learning_rate: HParam = 1.0
) -> Rule:
    r"""A step of an optimizer from :math:`w^t`, with :math:`-d^t` in place of a gradient.

    On FedAvg this is FedOpt. SGD of rate 1 is the plain step.

    Args:
        optimizer: A function of `learning_rate` that returns an optax optimizer, such as
            `optax.lion` or `functools.partial(optax.sgd, momentum=0.9)`.
        learning_rate: Learning rate of the server's optimizer, above 0, the hyperparameter
            `server_learning_rate`. A sequence sweeps over its values.

    Returns:
        A rule for `Algorithm.with_server`.

    Raises:
        InputError: If a rate is not above 0. Also if the optimizer needs values of f (a line
            search), or keeps its learning rate in its state, which sweep points share.

    Example:
        >>> import fedprox as fp
        >>> fp.server.optimizer(optax.lion, learning_rate=0.001).name
        'lion'

    References:
        Reddi et al., `Adaptive Federated Optimization <https://arxiv.org/abs/2003.00295>`_, ICLR
        2021, Algorithm 1.
    """
    rates = base.check_hparam("server.optimizer: learning_rate", learning_rate, positive=True)
    return stepping("server.optimizer", optimizer, rates)


def adam(learning_rate: HParam, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Rule:
    r"""Adam on the server: with FedAvg, FedAdam.

    optax's Adam corrects its biases. The paper's has no correction, and an eps of 0.001.

    Args:
        learning_rate: Learning rate, above 0. A sequence sweeps over its values.
        b1: Decay of the mean of directions, from 0 to below 1.
        b2: Decay of the mean of their squares, from 0 to below 1.
        eps: Number above 0 that is added to the root of the squares.

    Returns:
        A rule for `Algorithm.with_server`.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> import fedprox as fp
        >>> fp.server.adam(0.03, eps=0.001).name
        'adam eps=0.001'

    References:
        Reddi et al., `Adaptive Federated Optimization <https://arxiv.org/abs/2003.00295>`_, ICLR
        2021, Algorithm 2.
    """
    return _of_optax(optax.adam, learning_rate, b1=b1, b2=b2, eps=eps)


def yogi(learning_rate: HParam, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-3) -> Rule:
    r"""Yogi on the server: with FedAvg, FedYogi.

    Args:
        learning_rate: Learning rate, above 0. A sequence sweeps over its values.
        b1: Decay of the mean of directions, from 0 to below 1.
        b2: How slowly the squares follow those of the direction, from 0 to below 1.
        eps: Number above 0 that is added to the root of the squares.

    Returns:
        A rule for `Algorithm.with_server`.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> import fedprox as fp
        >>> fp.server.yogi([0.01, 0.1]).hparams
        {'server_learning_rate': (0.01, 0.1)}

    References:
        Reddi et al., `Adaptive Federated Optimization <https://arxiv.org/abs/2003.00295>`_, ICLR
        2021, Algorithm 2.
    """
    return _of_optax(optax.yogi, learning_rate, b1=b1, b2=b2, eps=eps)


def adagrad(
    learning_rate: HParam, *, initial_accumulator_value: float = 0.1, eps: float = 1e-7
) -> Rule:
    r"""Adagrad on the server: with FedAvg, FedAdagrad.

    Args:
        learning_rate: Learning rate, above 0. A sequence sweeps over its values.
        initial_accumulator_value: First value of the sums of squares, at least 0.
        eps: Number above 0 that is added to the sums.

    Returns:
        A rule for `Algorithm.with_server`.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> import fedprox as fp
        >>> fp.server.adagrad(0.1).name
        'adagrad'

    References:
        Reddi et al., `Adaptive Federated Optimization <https://arxiv.org/abs/2003.00295>`_, ICLR
        2021, Algorithm 2.
    """
    first = initial_accumulator_value
    require_number("server.adagrad: initial_accumulator_value", first, single=True)
    return _of_optax(optax.adagrad, learning_rate, initial_accumulator_value=first, eps=eps)


def momentum(learning_rate: HParam = 1.0, *, momentum: float = 0.9, nesterov: bool = False) -> Rule:
    r"""Momentum on the server: with FedAvg, FedAvgM.

    .. math:: v^{t+1} = \beta v^t + d^t, \qquad w^{t+1} = w^t + \eta_g v^{t+1}

    Args:
        learning_rate: :math:`\eta_g`, above 0. A sequence sweeps over its values.
        momentum: :math:`\beta`, from 0 to below 1.
        nesterov: Whether the step is along :math:`\beta v^{t+1} + d^t`.

    Returns:
        A rule for `Algorithm.with_server`.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> import fedprox as fp
        >>> fp.server.momentum(0.5).name
        'sgd momentum=0.9'

    References:
        Hsu et al., `Measuring the Effects of Non-Identical Data Distribution for Federated Visual
        Classification <https://arxiv.org/abs/1909.06335>`_, 2019.
    """
    return _of_optax(optax.sgd, learning_rate, "momentum", momentum=momentum, nesterov=nesterov)


def extrapolate(epsilon: HParam = 1e-3) -> Rule:
    r"""Extrapolation: a step along the mean update that grows as clients' updates differ.

    With the updates :math:`d_k = w_k - w^t` and their weights :math:`p_k` the step is

    .. math:: w^{t+1} = w^t + \max\Big(1, \frac{\sum_k p_k \|d_k\|^2}
        {2 (\|d^t\|^2 + \varepsilon)}\Big) d^t, \qquad d^t = \sum_k p_k d_k.

    For identical updates the quotient is below 1/2, so this is the plain step. On FedAvg the rule
    is FedExP. On FedProx it is FedExProx with FedExP's step, which is half of the one that its
    authors call GraDS. Clients send :math:`\|d_k\|^2` beside :math:`d_k`. A clip of faulty updates
    (`fedprox.Faults`) scales both by one factor, so the squared norm of a clipped update counts as
    too large.

    Args:
        epsilon: :math:`\varepsilon`, above 0, which bounds the step where updates cancel. It is
            compared with squared norms of updates. A sequence sweeps over its values.

    Returns:
        A rule for `Algorithm.with_server`.

    Raises:
        InputError: If epsilon is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.fedprox(mu=0.1).with_server(fp.server.extrapolate()).variant
        'extrapolated'

    References:
        Jhunjhunwala et al., `FedExP: Speeding Up Federated Averaging via Extrapolation
        <https://arxiv.org/abs/2301.09604>`_, ICLR 2023; and Li et al., `The Power of Extrapolation
        in Federated Learning <https://arxiv.org/abs/2405.13766>`_, NeurIPS 2024.
    """
    epsilons = base.check_hparam("server.extrapolate: epsilon", epsilon, positive=True)

    def step(
        state: Any, params: Params, direction: Params, squares: jax.Array, hparams: base.HParams
    ) -> tuple[Params, Any]:
        """w^t + max(1, mean ||d_k||^2 / (2 (||d||^2 + epsilon))) d."""
        divisor = 2 * (optax.tree.norm(direction, squared=True) + hparams["epsilon"])
        return base.add_scaled(params, jnp.maximum(1.0, squares / divisor), direction), state

    def possible(update: Params, squares: jax.Array) -> jax.Array:
        """The mean of squared norms is at least the squared norm of the mean."""
        return ~(squares < (1 - base.ROUNDING) * optax.tree.norm(update, squared=True))

    return Rule(
        "extrapolated",
        step,
        hparams={"epsilon": epsilons},
        measure=lambda update: optax.tree.norm(update, squared=True),
        possible=possible,
        not_private="a message holds the squared norm of an update beside the update",
    )


RULES: dict[str, Callable[..., Rule]] = {
    "mean": mean,
    "optimizer": optimizer,
    "adam": adam,
    "yogi": yogi,
    "adagrad": adagrad,
    "momentum": momentum,
    "extrapolate": extrapolate,
}
"""The rules that an experiment file can name."""

__all__ = ["Rule", *RULES]


def stepping(
    where: str,
    optimizer: Callable[..., optax.GradientTransformation],
    rates: tuple[float, ...],
) -> Rule:
    """The rule of `optimizer`, for messages that name where it is set."""
    require(
        not made_once(searches_line, optimizer, f"{where}: optimizer"),
        f"{where}: this optimizer searches along a line, for which the server has no objective",
    )
    require(
        not made_once(_keeps_rate, optimizer),
        f"{where}: this optimizer keeps its learning rate in its state, where no other can be set; "
        "use it without optax.inject_hyperparams or the like",
    )

    def step(
        state: Any, params: Params, direction: Params, _: Any, hparams: base.HParams
    ) -> tuple[Params, Any]:
        """One step of the server's optimizer."""
        server = optimizer(learning_rate=hparams["server_learning_rate"])
        gradient = jax.tree.map(lambda d: -d, direction)
        moved, after = server.update(gradient, state, params)
        return optax.apply_updates(params, moved), after

    return Rule(
        name_of(optimizer),
        step,
        hparams={"server_learning_rate": rates},
        init=lambda params: optimizer(learning_rate=1.0).init(params),
        moves_alone=made_once(_moves_alone, optimizer),
    )


def _of_optax(
    function: Callable[..., optax.GradientTransformation],
    learning_rate: HParam,
    name: str = "",
    **options: Any,
) -> Rule:
    """The rule of one of optax's optimizers; its name has the options that differ from optax's."""
    where = f"server.{name or function.__name__}"
    rates = base.check_hparam(f"{where}: learning_rate", learning_rate, positive=True)
    for key in ("b1", "b2", "momentum"):
        if key in options:
            require_number(f"{where}: {key}", options[key])
            require(options[key] < 1, f"{where}: {key} = {options[key]}; it must be below 1")
    if "eps" in options:
        require_number(f"{where}: eps", options["eps"], positive=True, single=True)
    usual = inspect.signature(function).parameters
    changed = {key: value for key, value in options.items() if value != usual[key].default}
    return stepping(where, functools.partial(function, **changed) if changed else function, rates)


def _keeps_rate(optimizer: Callable[..., optax.GradientTransformation]) -> bool:
    """Whether an optimizer's first state depends on its learning rate."""
    try:
        slow, fast = (
            jax.tree.leaves(optimizer(learning_rate=rate).init(jnp.zeros(2))) for rate in (1.0, 2.0)
        )
    except BY_NAME:
        return False
    return not all(map(np.array_equal, slow, fast))


def _moves_alone(optimizer: Callable[..., optax.GradientTransformation]) -> bool:
    """Whether an optimizer moves parameters whose gradient is zero, as by weight decay."""
    server = optimizer(learning_rate=1.0)
    first = jax.jit(lambda g, w: server.update(g, server.init(w), w)[0])
    try:
        step = first(np.zeros(2, np.float32), np.ones(2, np.float32))
    except BY_NAME:
        return True
    return bool(np.any(step))
