"""A model's parameters beside its state that is not trained."""

from collections.abc import Callable
from typing import Any, NamedTuple

Params = Any  # a pytree of arrays
"""A pytree of floating-point arrays; of a model with state, as a whole, `Variables`."""


class Variables(NamedTuple):
    """The parameters of a model with state, and its state.

    Attributes:
        params: The parameters, a pytree of floating-point arrays.
        state: Arrays that no gradient moves, a pytree, such as running means and variances.

    Example:
        >>> import fedprox as fp
        >>> whole = fp.Variables(params={"scale": 1.0}, state={"mean": 0.0})
        >>> whole.state
        {'mean': 0.0}
    """

    params: Params
    state: Any


def opened(whole: Params) -> tuple[Params, Callable[[Params], Params]]:
    """The parameters that are trained, and a function that puts others in their place.

    >>> params, around = opened(Variables(1.0, "state"))
    >>> params, around(2.0)
    (1.0, Variables(params=2.0, state='state'))
    """
    if isinstance(whole, Variables):
        return whole.params, lambda params: whole._replace(params=params)
    return whole, lambda params: params


def trainable(whole: Params) -> Params:
    """The parameters that are trained, without the model's state."""
    return opened(whole)[0]


def beside(params: Params, state: Any) -> Params:
    """The parameters beside a model's state, or alone if that is None."""
    return params if state is None else Variables(params, state)
