"""A part of a run: a feature that the engine knows only by the questions that `Part` answers.

The engine plans, compiles and runs rounds without a feature's name. A part says which numbers each
client of a round has (`columns`) and which of them the client knows (`known`). It says how a method
changes (`wrap`) and how a round's messages become one (`reduce`). It can replace the gradient of a
mini-batch in local steps (`local_gradient`). A part changes only the questions that it answers. So
a new part is a dataclass of settings with some of these methods, in one file, a parameter of
`fedprox.simulate`, and a field of `fedprox.protocol.protocol.Protocol`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, Batch, HParams, Message
from fedprox.federation import Federation
from fedprox.model import Params
from fedprox.parts.clock import Devices, Step
from fedprox.precision import real_type


class Screened(NamedTuple):
    """Which updates of a round count, and how much.

    Attributes:
        scale: Factor of each update, 0 if it is left out, float32 (jobs, points).
        flagged: Whether something is wrong with each update, bool (jobs, points).
        counted: Weight of the updates that are not left out, float32 (points,); exactly 1 if no
            update is left out, or those left out count as zero.
    """

    scale: jax.Array
    flagged: jax.Array
    counted: jax.Array


class Screen(Protocol):
    """A setting by which messages are left out of a round, such as `Faults`."""

    @property
    def compares(self) -> bool:
        """Whether the sizes of a round's messages are compared."""

    def measures_of(
        self, flagged: NDArray[np.int64], runs: Sequence[str], names: Sequence[str]
    ) -> dict[str, list[Any]]:
        """The measures of messages that were left out, for each run, unless one ends it."""

    def screened(
        self, sound: jax.Array, size: jax.Array | None, weight: jax.Array, *, fixed: bool = False
    ) -> Screened:
        """Which messages count."""


def sound(*trees: Any) -> jax.Array:
    """1.0 if the sum of the squares of all numbers is finite, else 0.0.

    >>> float(sound(jnp.ones(3), None)), float(sound(jnp.array([0.0, jnp.nan])))
    (1.0, 0.0)
    """
    floats = [a for a in jax.tree.leaves(trees) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.isfinite(optax.tree.norm(floats, squared=True)).astype(real_type())


def beside(numbers: Any, leaf: Any) -> Any:
    """Numbers, whose axes are the first ones of a leaf, in a shape that goes with the leaf's.

    >>> beside(jnp.ones((2, 3)), jnp.ones((2, 3, 4, 5))).shape
    (2, 3, 1, 1)
    """
    return numbers.reshape(numbers.shape + (1,) * (leaf.ndim - numbers.ndim))


def scaled(scale: jax.Array, tree: Any) -> Any:
    """Scale times a tree; 0 where the scale is 0, even if the tree is NaN or infinite."""

    def one(a: jax.Array) -> jax.Array:
        s = beside(scale, a)
        return jnp.where(s > 0, s * a, 0)

    return jax.tree.map(one, tree)


def times(factor: jax.Array, tree: Any) -> Any:
    """A tree, leaves (points, ...), times a factor (points,)."""
    return jax.tree.map(lambda a: a * beside(factor, a), tree)


def mean_of(sums: Any, counted: jax.Array) -> Any:
    """Sums over the counted updates, leaves (points, ...), divided by their weight (points,)."""
    divisor = jnp.where(counted > 0, counted, 1.0)
    return jax.tree.map(lambda a: a / beside(divisor, a), sums)


def mean_if_screened(sums: Any, screened: Screened | None) -> Any:
    """As `mean_of`; without screening all count, and their weights sum to 1."""
    return sums if screened is None else mean_of(sums, screened.counted)


def screened_sum(
    setting: Screen, vectors: Any, weight: jax.Array, *, fixed: bool = False
) -> tuple[Any, Screened]:
    """The weighted sum of stacked vectors that count, and which of them do."""

    def every(f: Any) -> jax.Array:
        return jax.vmap(jax.vmap(f))(vectors)

    finite = every(sound)
    size = jnp.where(finite > 0, every(optax.tree.norm), 0) if setting.compares else None
    screened = setting.screened(finite, size, weight, fixed=fixed)
    parts = scaled(weight[:, None] * screened.scale, vectors)
    return jax.tree.map(lambda a: a.sum(axis=0), parts), screened


Columns = Mapping[str, NDArray[Any]]
"""Numbers of jobs by name, arrays of shape (jobs,)."""


StepsTaken = Callable[[], Sequence[tuple[int, int, int]]]
"""Counts the local steps of clients in a whole run: rows of the client, of a mini-batch, steps."""


class Setting(NamedTuple):
    """The settings of a run that parts read beside their own.

    Attributes:
        params: The model's parameters, in shape.
        clients: Number of clients N.
        per_round: Clients of a round K.
        sampling: How they are drawn, see `Cohort.sampling`.
        rounds: Number of rounds T.
        min_separation: Rounds from one of a client to its next, at least; None if that may be any.
        evaluations: How often a run is evaluated.
        sent: The form of clients' messages: in a simulation as it "arrives", on nodes the
            "message", or the "code" in which it travels.
    """

    params: Params
    clients: int
    per_round: int
    sampling: Any
    rounds: int
    min_separation: int | None = None
    evaluations: int = 0
    sent: Literal["arrives", "message", "code"] = "arrives"


class Change(Protocol):
    """A setting by which clients send something else than their messages, such as `Attack`."""

    def changed(
        self, messages: Any, counts: jax.Array, numbers: Mapping[str, Any], key: jax.Array | None
    ) -> Any:
        """The messages that are sent, from leaves (n, ...), those that count, and their columns."""


class MessageRule(Protocol):
    """A setting by which a round's messages become one, such as `Aggregation`."""

    def of(self, messages: Any, counts: Any, weights: Any = None) -> Any:
        """A message, from messages with leaves (n, ...), those that count, and their weights."""


class Reduction(NamedTuple):
    """How the messages of a round become one; by default each is added to a sum as it arrives.

    Attributes:
        change: The messages that clients send in place of their own; None for their own.
        screen: Which messages are left out; None if all count.
        rule: The rule that makes one of all messages; None for their weighted sum.
        fixed: Whether a message that is left out counts as zero, so that others keep their weights.
    """

    change: Change | None = None
    screen: Screen | None = None
    rule: MessageRule | None = None
    fixed: bool = False

    @property
    def ordered(self) -> bool:
        """Whether all messages are read together, in the order of the draw."""
        return self.change is not None or self.rule is not None

    @property
    def stores(self) -> bool:
        """Whether messages are stored until the last one has arrived."""
        return self.ordered or (self.screen is not None and self.screen.compares)

    def screened(self, sound: jax.Array, size: jax.Array | None, weight: jax.Array) -> Screened:
        """Which messages count, as `Screen.screened`."""
        assert self.screen is not None
        return self.screen.screened(sound, size, weight, fixed=self.fixed)


class Coding(NamedTuple):
    """How the message of each client travels from a node.

    Attributes:
        shapes: (jobs, points) -> the arrays that travel, in shape.
        packed: (codes, leaves (jobs, points, ...)) -> these arrays.
        codes: The inverse of `packed`.
        message: (a code, the round's random key, a client) -> the message that arrives.
    """

    shapes: Callable[[int, int], Any]
    packed: Callable[[Any], Any]
    codes: Callable[[Any], Any]
    message: Callable[[Any, jax.Array, Any], Message]


@dataclass(frozen=True)
class LocalGradient:
    """The vector along which a local step descends; here its mini-batch's gradient."""

    @property
    def completes(self) -> bool:
        """Whether `completed` changes something."""
        return False

    def gradient(
        self, loss: Callable[..., jax.Array], params: Params, batch: Batch, given: Any
    ) -> Params:
        """The sum over a tick's rows: the gradient of loss(params, batch, given), or another."""
        gradient: Params = jax.grad(loss)(params, batch, given)
        return gradient

    def completed(self, gradient: Params, hparams: HParams, size: Any, key: jax.Array) -> Params:
        """The gradient of a whole mini-batch, given its size and the key of its last tick."""
        del hparams, size, key
        return gradient


class Part:
    """The questions that the engine asks of a part. The answers here change nothing."""

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise `InputError` if it does not fit the run, whose clients have so many rows."""

    def data(self, federation: Federation) -> Federation:
        """The data that clients have in a simulation."""
        return federation

    @property
    def of_rounds(self) -> str:
        """The part of a run that depends on its number of rounds, which then stays; else ""."""
        return ""

    @property
    def keyed(self) -> bool:
        """Whether a round needs a random key beside those of mini-batches."""
        return False

    @property
    def program_key(self) -> Any:
        """The settings on which programs depend beside the method and their inputs."""
        return self

    own_noise: ClassVar[bool] = False
    """Whether each sweep point of each method has noise of its own."""

    @property
    def independent(self) -> bool:
        """Whether nothing may depend on which other clients take part in a round."""
        return False

    @property
    def samples_rows(self) -> bool:
        """Whether each row of a client is drawn on its own in each local step."""
        return False

    several_starts: ClassVar[bool] = False
    """Whether the clients of a round start from different models of the server."""

    @property
    def always_updates(self) -> bool:
        """Whether the server also steps in a round without messages."""
        return False

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """Numbers of some clients of a federation, by name, each of shape (clients,).

        "age" is the number of rounds since a client started: its mini-batches are those of the
        round in which it did.
        """
        del clients, federation
        return {}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """The client's columns as `ClientContext.columns`, from all columns and the round's key."""
        del numbers, key
        return {}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method with this part."""
        del setting
        return method

    def reduce(self, reduction: Reduction) -> Reduction:
        """How messages become one with this part."""
        return reduction

    def hparams(self, hparams: HParams, key: Any) -> HParams:
        """The hyperparameters of a round at one sweep point, given the round's random key."""
        del key
        return hparams

    def most_clients(self, method: Algorithm, setting: Setting) -> int | None:
        """Most clients of a round; None for any number."""
        del method, setting
        return None

    def steps(self, devices: Callable[[], Devices], most: int) -> Iterator[Step] | None:
        """The steps of a server with `most` clients at work; None if it waits for a cohort."""
        del devices, most
        return None

    def recorded(self, columns: Columns) -> Mapping[str, float]:
        """This part's measures of a round, from the columns of its jobs."""
        del columns
        return {}

    def update_bits(self, params: Params) -> int:
        """Bits of a client's message like some parameters; 0 if they are not counted."""
        del params
        return 0

    def download_bits(self, params: Params) -> int:
        """Bits of the model that a client receives; 0 if it is sent in full."""
        del params
        return 0

    def coding(self, params: Params) -> Coding | None:
        """How messages like some parameters travel from a node; None for their sum in full."""
        del params
        return None

    def models_a_round(self, per_round: int) -> float:
        """Messages of a round, relative to the clients of a round with a barrier."""
        del per_round
        return 1

    def local_gradient(self, taken: StepsTaken, evaluations: int) -> LocalGradient | None:
        """The replacement of the gradient, given a run's steps and evaluations; None for none."""
        del taken, evaluations
        return None


def known_columns(
    parts: tuple[Part, ...], numbers: Mapping[str, Any], key: Any
) -> dict[str, jax.Array]:
    """The columns that clients know from all parts."""
    return {name: a for part in parts for name, a in part.known(numbers, key).items()}


def random_key(words: jax.Array | None) -> Any:
    """The random key of two words; None without."""
    return None if words is None else jax.random.wrap_key_data(words, impl="threefry2x32")
