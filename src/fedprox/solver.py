"""Local solvers: an optax optimizer on the gradient of h_k, for E epochs or K steps.

Which solver a client uses is free (Li et al. 2020, section 3.2); plain SGD is what the papers
run. The optimizer receives the whole gradient of h_k: a clip or weight decay placed before it with
`optax.chain` acts on F_k's gradient, linear and proximal term together, and a momentum buffer sees
the proximal term once, as part of that gradient.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax

from fedprox.errors import require, require_number, require_whole
from fedprox.model import Params
from fedprox.subproblem import Subproblem

Numbers = float | Sequence[float]
"""A number, or several to sweep over."""


@dataclass(frozen=True)
class Solver:
    """How a client works on its local problem.

    >>> solver = Solver(learning_rate=0.01, batch_size=10, epochs=20)
    >>> solver.steps_for(25)  # batches of 10, 10 and 5, twenty times
    60

    Attributes:
        learning_rate: Step size eta, or several to sweep over.
        batch_size: Examples B of a mini-batch, or "all" for a client's whole data. An epoch's last
            batch holds what is left over and counts as a step.
        epochs: Passes E over the client's data, each in a fresh order; or else
        steps: mini-batches K, however many examples the client has.
        optimizer: `learning_rate=` -> gradient transformation, such as `optax.sgd` or
            `functools.partial(optax.sgd, momentum=0.9)`. Its state starts afresh in every round.

    Raises:
        InputError: A number out of range, or not exactly one of `epochs` and `steps`.
    """

    learning_rate: Numbers
    batch_size: int | Literal["all"]
    epochs: int | None = None
    steps: int | None = None
    optimizer: Callable[..., optax.GradientTransformation] = optax.sgd

    def __post_init__(self) -> None:
        require(
            (self.epochs is None) != (self.steps is None),
            "solver: give either epochs or steps, and not both",
        )
        for name in ("epochs", "steps"):
            if getattr(self, name) is not None:
                require_whole(f"solver.{name}", getattr(self, name))
        if self.batch_size != "all":
            require(
                not isinstance(self.batch_size, str),
                f'solver.batch_size = {self.batch_size!r}; it must be a whole number or "all"',
            )
            require_whole("solver.batch_size", self.batch_size)
        for rate in as_numbers("solver.learning_rate", self.learning_rate):
            require_number("solver.learning_rate", rate)
            require(rate > 0, f"solver.learning_rate = {rate}; it must be above 0")

    def batch_of(self, size: int) -> int:
        """Examples in a full batch of a client with `size` examples."""
        return size if self.batch_size == "all" else min(self.batch_size, size)

    def steps_per_epoch(self, size: int) -> int:
        """Mini-batches in one pass over `size` examples."""
        return math.ceil(size / self.batch_of(size))

    def steps_for(self, size: int) -> int:
        """Mini-batches of a round's whole work on `size` examples."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None  # one of the two is set
        return self.epochs * self.steps_per_epoch(size)

    def init(self, params: Params, learning_rate: jax.Array) -> Any:
        """The optimizer's state at the start of a client's work."""
        return self.optimizer(learning_rate=learning_rate).init(params)

    def step(
        self,
        problem: Subproblem,
        params: Params,
        state: Any,
        gradient_of_f: Params,
        learning_rate: jax.Array,
    ) -> tuple[Params, Any]:
        """One optimizer step on h_k, given (an estimate of) grad F_k(params)."""
        gradient = problem.gradient(params, gradient_of_f)
        optimizer = self.optimizer(learning_rate=learning_rate)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state


def as_numbers(name: str, value: Numbers) -> tuple[float, ...]:
    """One number or several, as a tuple.

    Raises:
        InputError: There are none; `name` says of what.

    >>> as_numbers("mu", 0.1), as_numbers("mu", [0, 1])
    ((0.1,), (0.0, 1.0))
    """
    values = value if isinstance(value, Sequence) else (value,)
    require(len(values) > 0, f"{name}: none given; at least one is needed")
    return tuple(float(v) for v in values)
