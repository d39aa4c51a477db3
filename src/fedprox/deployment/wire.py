"""The messages between the coordinator and the nodes: what they hold, and how they are packed.

A request has a head, JSON that pydantic checks, and a body with arrays. An answer likewise. Heads
name a version; a node refuses those of another version. The arrays of a request are named by their
digests. A node keeps the arrays of its last requests, so the coordinator sends an array to a node
once, and again if the node says that it lacks it.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from fedprox.algorithms.reporting import Evaluated
from fedprox.columns import Columns
from fedprox.deployment.network import Parcel
from fedprox.errors import LARGEST, LONGEST, SINGLE, InputError, foreign, reason, require
from fedprox.experiment.schema import Table
from fedprox.features import Features, named_leaves, tree_from
from fedprox.parts.privacy import AdaptiveClip, Privacy
from fedprox.parts.privacy.accounting import (
    NOISES,
    Accountant,
    Mechanism,
    Releases,
    as_one,
    check_mechanism,
)
from fedprox.parts.privacy.measures import Noised, NoisedMeasures, gaussian
from fedprox.parts.privacy.setting import CLIPS

VERSION = 14
"""Version of the messages. Coordinator and nodes must have the same."""

Array = NDArray[Any]
NamedArrays = Mapping[str, Array]

NotNegative = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(ge=0, le=LARGEST)]
AnyNumber = Annotated[float, Field(allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, le=LARGEST)]
RoundNumber = Annotated[int, Field(ge=-1, le=LARGEST)]
"""A round; -1 for none."""

Hex = Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=500)]
"""Bytes in hexadecimal."""

Sealed = Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=5000)]
"""Shares for all sums of some keys, or their digests, in hexadecimal."""

Hex32 = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
"""32 bytes in hexadecimal, or none."""

SUMS = 16
"""Sums of messages for which nodes agree on keys at once."""

SumStage = Literal["advertise", "share", "accept", "confirm", "reveal"]
"""Requests of secure sums, beside those whose answers are summed."""

RequestKind = Literal["describe", "prepare", "moments", "gradients", "train", "evaluate", SumStage]
"""The kind of a request."""

Summed = Literal["moments", "gradients", "train", "evaluate"]
"""The requests whose answers can be summed in secret."""

OF_ALL: tuple[Summed, ...] = "moments", "evaluate"
"""Those that are summed over all nodes or not at all."""

WeightsBy = Literal["clients", "rows"]
"""Whether the clients of a round weigh the same, or as their training rows."""


def _named(name: str) -> str:
    """A name that can be shown."""
    given = foreign(repr(name))
    require(0 < len(name) <= 200 and name.isprintable(), f"{given}; 1 to 200 printable characters")
    return name


def _held(shape: list[int]) -> list[int]:
    """The shape of an array that fits into memory."""
    numbers = foreign(math.prod(shape))
    require(math.prod(shape) <= 10**7, f"{numbers} numbers; at most 10,000,000 are allowed")
    return shape


Name = Annotated[str, AfterValidator(_named)]
Shape = Annotated[list[NotNegative], Field(max_length=8), AfterValidator(_held)]
Symbols = Annotated[int, Field(ge=0, le=10**5)]
NumberType = Annotated[str, Field(pattern="^(bool|float(16|32|64)|u?int(8|16|32|64))$")]
"""The types that features and labels may have."""


def _columns(given: Table) -> Table:
    """The columns of a table in words that can be shown, if they are some."""
    columns = Columns.of_json(given)
    for column in (*columns.features, columns.label):
        require(len(column.values) <= MOST_VALUES, f"{len(column.values):,} values of a column")
        for word in (column.name, *map(str, column.values), *[column.unit] * bool(column.unit)):
            _named(word)
    return columns.as_json()


MOST_VALUES = 10**5
"""Most values of a column."""


class Head(BaseModel):
    """A part of a head, with exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


M = TypeVar("M", bound=Head)
T = TypeVar("T")


def required(value: T | None, line: str) -> T:
    """A value of a message that must be there; `InputError` with a line if it is not."""
    if value is None:
        raise InputError(line)
    return value


def require_columns(lists: Sequence[Sequence[Any]]) -> None:
    """Raise `InputError` unless lists, of clients' names and of more about each, are columns."""
    require(len(set(map(len, lists))) == 1, "its lists have different lengths")
    require(len(set(lists[0])) == len(lists[0]), "a client appears twice")


class ArrayKind(Head):
    """The kind of all clients' features, or of one of several arrays of them.

    Attributes:
        name: Its name among the features, such as "image" or "views.0"; "" for one array.
        shape: Shape of one example.
        type: NumPy's name of its type.
        greatest: Greatest number if they are whole, such as symbols; else 0.
    """

    name: Annotated[str, Field(max_length=200)]
    shape: Shape
    type: NumberType
    greatest: Symbols


class DataKind(Head):
    """The kind of all clients' data. A node's description determines the model of all nodes.

    Attributes:
        classes: Number of classes; 0 if labels are not classes.
        features: The features' arrays.
        label: Shape of one example's label.
        augmented: Whether mini-batches are augmented.
        columns: The columns of a table, as `Columns.as_json` has them; None for other data.
    """

    classes: Symbols
    features: Annotated[list[ArrayKind], Field(min_length=1, max_length=100)]
    label: Shape
    label_type: NumberType
    augmented: bool
    columns: Annotated[Table, AfterValidator(_columns)] | None = None

    def tree(self, make: Callable[[ArrayKind], Any]) -> Features:
        """The features, with make(array) in place of each array."""
        return tree_from({each.name: make(each) for each in self.features}, "features")

    @property
    def arrays(self) -> dict[str, str]:
        """The type and shape of each array of the features, in words, by its name in messages.

        >>> image = ArrayKind(name="image", shape=[8, 8], type="uint8", greatest=0)
        >>> kind = DataKind(
        ...     classes=2, features=[image], label=[], label_type="int32", augmented=False
        ... )
        >>> kind.arrays
        {'features.image': 'uint8[8,8]'}
        """
        return {
            ".".join(filter(None, ("features", each.name))): (
                f"{each.type}[{','.join(map(str, each.shape))}]"
            )
            for each in self.features
        }

    @model_validator(mode="after")
    def _check(self) -> "DataKind":
        names = [each.name for each in self.features]
        formed = [*named_leaves(self.tree(lambda each: each.name))]
        require(formed == names, f"features: arrays named {foreign(names)}, not in their order")
        (numbers,) = _held([sum(math.prod(each.shape) for each in self.features)])
        classes = self.classes
        require(
            numbers * classes <= 10**9,
            f"{numbers:,} numbers of an example and {classes:,} classes; their product may be at "
            "most 1,000,000,000",
        )
        return self


class Clients(Head):
    """The clients of a node and their rows of each part, lists of equal length.

    Attributes:
        labels: Test labels of each, at most.
        validation: Empty without validation rows of clients.
    """

    names: Annotated[list[Name], Field(min_length=1, max_length=10**6)]
    train: list[Positive]
    test: list[NotNegative]
    labels: list[NotNegative]
    validation: list[NotNegative]

    @model_validator(mode="after")
    def _check(self) -> "Clients":
        lists: list[Sequence[Any]]
        lists = [self.names, self.train, self.test, self.labels, self.validation or self.names]
        require_columns(lists)
        return self


class SiteNoise(Head):
    """The noise that a node adds to the messages of its clients itself, whatever a run asks.

    Attributes:
        clip: Largest norm of a client's message, before it is weighted and summed.
        noise_multiplier: Standard deviation of the noise over this norm, if a single sum were to
            use up the node's epsilon.
        rounds: Rounds, over all runs, over which it is spent; None for the rounds of one run.
    """

    clip: Annotated[float, Field(ge=CLIPS[0], le=CLIPS[1])]
    noise_multiplier: Annotated[float, Field(ge=NOISES[0], le=NOISES[1])]
    rounds: Positive | None = None

    def multiplier(self, rounds: int, points: int, releases: int) -> float:
        """The noise multiplier of each sum of a run.

        >>> SiteNoise(clip=1.0, noise_multiplier=2.0).multiplier(rounds=25, points=1, releases=1)
        10.0
        """
        return self.noise_multiplier * math.sqrt((self.rounds or rounds * points) * releases)


class Description(Head):
    """A node's description of itself.

    Attributes:
        version: Version of fedprox on the node.
        kind: The kind of its clients' data.
        central_validation: Number of validation rows that belong to no client.
        reports: The measures that the node reports.
        silent: Why it reports no losses, in a few words; empty if it does.
        keys: For secure sums, digests of the public keys that it knows by the nodes' names, with
            its own.
        own: The noise that the node adds itself; None if it adds none.
    """

    name: Name
    version: str
    kind: DataKind
    clients: Clients
    central_validation: NotNegative
    reports: list[str]
    silent: Annotated[str, Field(max_length=200)] = ""
    keys: Annotated[dict[Name, Hex32], Field(max_length=1000)] = {}
    own: SiteNoise | None = None


class PrivateRounds(Head):
    """The privacy of a run's clients.

    Attributes:
        clip: Largest norm of what a client sends; with `adaptive_clip` the first one.
        epsilon: Epsilon of all rounds to which the noise is calibrated; None if the experiment
            gives the noise.
        adaptive_clip: How the norm follows the clients' norms; None leaves it as it is.
        mechanism: The mechanism by which a round releases its sum.
        rounds: Rounds that are released in all, those repeated after an interruption included.
    """

    clip: Annotated[float, Field(ge=CLIPS[0], le=CLIPS[1])]
    epsilon: Epsilon | None
    adaptive_clip: AdaptiveClip | None
    mechanism: Annotated[Mechanism, AfterValidator(check_mechanism)]
    rounds: Positive

    @property
    def clipping(self) -> Privacy:
        """The part of it that nodes do; the server adds the noise."""
        return Privacy(self.clip, noise_multiplier=0.0, adaptive_clip=self.adaptive_clip)

    @property
    def whole(self) -> Mechanism | None:
        """All rounds as one release, if those of a client are a number of rounds apart."""
        return as_one(self.mechanism, self.rounds)[0] if self.mechanism.strategy else None


class PrivateSteps(Head):
    """How the local steps of a run hide rows: see `fedprox.Privacy` with the unit "example".

    `epsilon` is that to which the noise is calibrated; None if the experiment gives the noise.
    """

    clip: Annotated[float, Field(ge=CLIPS[0], le=CLIPS[1])]
    epsilon: Epsilon | None
    noise_multiplier: Annotated[float, Field(ge=0, le=NOISES[1])]
    delta: Annotated[float, Field(gt=0, lt=1)]
    accountant: Accountant

    @property
    def setting(self) -> Privacy:
        """The same as a setting."""
        return Privacy(**self.model_dump(exclude={"epsilon"}), unit="example")


class PrivateMeasures(Head):
    """How the measures of a run get noise: see `fedprox.NoisedMeasures`.

    Attributes:
        loss_bound: The largest loss that counts as it is.
        share: Part of the run's epsilon to which the noise is calibrated; None if the experiment
            gives the noise.
        only: The measures that are released; None for all.
        noise_multiplier: The noise of an evaluation over the most that a client, or a row, moves.
        delta: Delta of the run's guarantee.
        evaluations: Evaluations of the run.
        again: Evaluations that are repeated after an interruption.
    """

    loss_bound: Annotated[float, Field(gt=0, le=SINGLE[1])]
    share: Annotated[float, Field(gt=0, lt=1)] | None
    only: list[Noised] | None
    noise_multiplier: Annotated[float, Field(ge=0, le=NOISES[1])]
    delta: Annotated[float, Field(gt=0, lt=1)]
    evaluations: Positive
    again: NotNegative = 0

    @property
    def setting(self) -> NoisedMeasures:
        """The same as a setting."""
        return NoisedMeasures(
            self.loss_bound, noise_multiplier=self.noise_multiplier, only=self.only
        )

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of an evaluation, for a client or a row."""
        return gaussian(self.noise_multiplier, self.delta)

    @property
    def planned(self) -> Releases:
        """The mechanism of all evaluations of the run, without those that are repeated."""
        return self.mechanism, self.evaluations


class Securing(Head):
    """How the messages of a run are summed in secret.

    Attributes:
        threshold: Nodes that a sum needs.
        bound: Largest absolute value of a number in a node's mean message; None with a norm, and
            with privacy of clients, where it follows from the clipping norm.
        norm: Largest norm of a node's mean message; None if each number is bounded instead.
        bits: Bits of a number on its way.
        honest: Nodes of a sum whose noise hides a client, with privacy.
        nodes: The names of all nodes of the run.
    """

    threshold: Annotated[int, Field(ge=3, le=LARGEST)]
    bound: Annotated[float, Field(gt=0, le=SINGLE[1])] | None
    norm: Annotated[float, Field(gt=0, le=SINGLE[1])] | None = None
    bits: Literal[32, 64]
    honest: Positive
    nodes: list[str]


class Advert(Head):
    """A node's advertisement for the sums of some keys.

    Attributes:
        keys: Identifier of the keys.
        context: Digest of the run's setup.
        measures: The measures that it reports.
        pairing: Public key for shares that are sent to it, and for masks of sums over all nodes.
        masking: Public keys for pairwise masks, one for each sum of messages.
        seeds: Digests of the seeds of its self masks, one for each sum of messages.
        signature: Its signature of all the others.
    """

    node: str
    keys: str
    context: str
    measures: list[str]
    pairing: Hex32 = ""
    masking: list[Hex32] = []
    seeds: list[Hex32] = []
    signature: Hex = ""

    @property
    def signed(self) -> bytes:
        """The bytes that are signed."""
        return b"advertisement " + self.model_dump_json(exclude={"signature"}).encode()


class Secret(Head):
    """A request's part of secure sums; each kind of request has some of its fields.

    Attributes:
        keys: Identifier of the keys.
        of: The kind of what is summed; for keys, of what is summed first.
        number: Number of the sum among those of the keys, of messages or over all nodes.
        by: Whether the clients of the sum weigh the same, or as their training rows.
        rate: The weight of each client, or of each row.
        asked: The nodes whose messages are asked for.
        roster: The advertisements, for "share".
        shares: The sealed shares for the node by sender, for "accept".
        commitments: The digests of these shares, as their senders have answered them.
        included: The nodes whose messages are in the sum, for "confirm" and "reveal".
        signatures: The nodes' answers to "confirm", for "reveal".
    """

    keys: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    of: Summed
    number: NotNegative = 0
    by: WeightsBy = "rows"
    rate: Share = 0.0
    asked: list[str] = []
    roster: list[Advert] = []
    shares: dict[str, Sealed] = {}
    commitments: dict[str, Sealed] = {}
    included: list[str] = []
    signatures: dict[str, Hex] = {}


class Setup(Head):
    """A method as a node must know it to compute. It names functions, and holds no code.

    Attributes:
        run: Identifier of the experiment's run, under which client state is stored.
        number: Number of the method in the experiment, whose sections are `model`, `solver`,
            `method` and `compression`.
        rounds: Number of rounds T.
        clients: Number of clients of all nodes.
        clients_per_round: Clients K of a round.
        data: The kind of all nodes' data.
        mean: Means that are subtracted from the numeric columns of a table, if all nodes
            standardize by the numbers of all; empty before they are known, and if they do not.
        scale: Likewise, by what it is divided then.
        parameters: The model's parameters in words, to compare.
        base: Digest of the values that the model freezes, which each node has; None for none.
        evaluated: The model that is evaluated.
        gradients: Whether gradients are measured.
        deadline: Seconds that a node works on a round, which the round's requests share; None for
            no limit.
        privacy: How clients are hidden; None if they are not.
        private_steps: How local steps hide rows; None if they do not.
        measures: How measures get noise; None if they have none.
        secure: How messages are summed in secret; None if the coordinator sees each node's.
        compression: How each client's message travels by itself; None for sums in full.
        products: Whether the mean of adapters is that of their products.
    """

    run: Annotated[str, Field(pattern="^[A-Za-z0-9]{1,64}$")]
    number: NotNegative
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    rounds: Positive
    clients: Positive
    clients_per_round: Positive
    data: DataKind
    mean: list[AnyNumber] = []
    scale: list[AboveZero] = []
    parameters: str
    model: Table
    base: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None
    solver: Table
    method: Table
    evaluated: Evaluated
    gradients: bool
    deadline: Annotated[float, Field(gt=0, le=LARGEST)] | None
    privacy: PrivateRounds | None
    private_steps: PrivateSteps | None
    measures: PrivateMeasures | None = None
    secure: Securing | None
    compression: Table | None
    products: bool

    @property
    def name(self) -> str:
        """The name of a seed of a method in a run, as its folder of client state has it."""
        return f"{self.run}/{self.number}-{self.seed}"


class NodeWork(Head):
    """The jobs of a node in a round, lists of equal length; see `Jobs`.

    Attributes:
        names: Names of the clients.
        client: Their numbers among all clients.
        rows: Their training rows when the run began.
        state: The round in which each client's last used update was made, for each sweep point; -1
            for none.
        kept: Earlier rounds after which a run may resume, so that each client's state after them
            is kept.
    """

    names: list[str]
    client: list[NotNegative]
    rows: list[Positive]
    steps: list[NotNegative]
    weight: list[Share]
    gamma: list[Share]
    relative_size: list[Finite]
    state: list[list[RoundNumber]]
    kept: list[list[RoundNumber]]

    @model_validator(mode="after")
    def _check(self) -> "NodeWork":
        columns: list[list[Any]] = [values for _, values in self]
        require_columns(columns)
        return self


class Request(Head):
    """The head of a request.

    Attributes:
        id: Identifier. A request that is sent again has the same, and the same answer.
        round: Round t.
        participation: Share of the weight of all clients that the cohort has.
        work: The jobs, for "train" and "gradients".
        planned: Local steps of each of the node's clients in the whole run, for "prepare" of a run
            whose steps hide rows; clients without steps are left out.
        initial: Whether w^0 is among the arrays, from which clients make their first state.
        seconds: Seconds that the node may work on it, for "train" and "gradients" with a deadline.
        arrays: Digests of the arrays that the request needs, in order.
        secret: Its part of a secure sum; None for requests without one.
        left_out: Why the run goes on without the node unless it is mended, for "describe"; empty if
            it does not.
    """

    version: int
    id: Annotated[str, Field(max_length=200)]
    kind: RequestKind
    setup: Setup | None = None
    round: NotNegative = 0
    participation: Finite = 0.0
    work: NodeWork | None = None
    planned: dict[str, NotNegative] = {}
    initial: bool = False
    seconds: Finite | None = None
    arrays: list[str] = []
    secret: Secret | None = None
    left_out: Annotated[str, Field(max_length=2 * LONGEST)] = ""


STAGES: Mapping[RequestKind, tuple[str, ...]] = {
    "advertise": (),
    "share": ("roster",),
    "accept": ("shares", "commitments"),
    "confirm": ("number", "included"),
    "reveal": ("number", "included", "signatures"),
}
"""The stages of secure sums, and the fields of `secret` that each reads beside what all read."""

_SUMMED = frozenset({"setup", "round", "secret", "arrays"}) | {
    f"secret.{name}" for name in ("number", "by", "rate", "asked")
}
_WORK = _SUMMED | {"participation", "work", "seconds"}
_STAGE = frozenset({"setup", "secret"})

READS: Mapping[RequestKind, frozenset[str]] = {
    "describe": frozenset({"left_out"}),
    "prepare": frozenset({"setup", "planned"}),
    "moments": _SUMMED,
    "gradients": _WORK,
    "train": _WORK | {"initial"},
    "evaluate": _SUMMED,
    **{kind: _STAGE | {f"secret.{name}" for name in names} for kind, names in STAGES.items()},
}
"""The fields that each kind of request reads beside those that all have.

A request has no other fields, so two that differ ask for different things. Those of `secret` are
listed one by one.
"""


class Answer(Head):
    """The head of an answer.

    Attributes:
        id: That of the request.
        refused: Why the node refuses the request, in one line; empty if it does not.
        lost: Whether it refuses since client state that the request names is lost.
        lacks: Whether the node lacks an array that the request names.
        seconds: Seconds in which the node computed the answer.
        withheld: Measures that the node does not report.
        shares: The sealed shares by receiver, for "share"; for "reveal" those of secrets, by the
            node whose secret is shared.
        commitments: Digests of the node's shares by receiver, for "share".
        unusable: The nodes whose shares this one cannot use, for "accept".
    """

    id: str
    refused: str = ""
    lost: bool = False
    lacks: bool = False
    description: Description | None = None
    seconds: float = 0.0
    withheld: list[str] = []
    advert: Advert | None = None
    shares: dict[str, Sealed] = {}
    commitments: dict[str, Sealed] = {}
    unusable: list[str] = []
    signature: Hex = ""


def digest_of(array: Array) -> str:
    """A digest of an array's type, shape and bytes.

    >>> digest = digest_of(np.zeros(2))
    >>> digest == digest_of(np.zeros(2)), digest == digest_of(np.zeros(3))
    (True, False)
    """
    content = np.asarray(array, order="C")
    head = f"{content.dtype.name}{content.shape}".encode()
    hashed = hashlib.blake2b(head, digest_size=16)
    hashed.update(content.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def parcel_of(head: Head, arrays: NamedArrays | None = None) -> Parcel:
    """A head and named arrays as a parcel."""
    return Parcel(head.model_dump_json().encode(), pack_arrays(arrays or {}))


def pack_arrays(arrays: NamedArrays) -> bytes:
    """Named arrays as bytes; empty without arrays."""
    if not arrays:
        return b""
    packed: bytes = safetensors.numpy.save(
        {name: np.asarray(array, order="C") for name, array in arrays.items()}
    )
    return packed


Allowed = Mapping[str, jax.ShapeDtypeStruct]
"""The arrays that a message may hold, in shape, by name."""

TYPE_NAMES = {"F": "float", "I": "int", "U": "uint"}
"""The kinds of numbers in safetensors' names of types, such as F32."""


def most_bytes(allowed: Allowed) -> int:
    """Most bytes of a body that holds some of the arrays.

    >>> most_bytes({}), most_bytes({"a": jax.ShapeDtypeStruct((1000,), np.float32)}) < 4300
    (0, True)
    """
    return _most_header(allowed) + _array_bytes(allowed.values())


def _array_bytes(arrays: Iterable[jax.ShapeDtypeStruct]) -> int:
    """Bytes of some arrays."""
    return sum(math.prod(each.shape) * each.dtype.itemsize for each in arrays)


def _most_header(allowed: Allowed) -> int:
    """Most bytes of safetensors' header, with its length and the padding."""
    sizes = (150 + 6 * len(name) + 20 * len(each.shape) for name, each in allowed.items())
    return sum(sizes) + 16 * bool(allowed)


def check_body(body: bytes, allowed: Allowed) -> None:
    """Raise `InputError` unless a body holds only allowed arrays, before any array is made."""
    if not body:
        return
    length = int.from_bytes(body[:8], "little")
    require(len(body) > 8 and 8 + length <= len(body), "arrays that cannot be read: no header")
    require(
        8 + length <= _most_header(allowed),
        f"a header of {length:,} bytes, too long for the arrays that were asked for",
    )
    try:
        tensors: Any = json.loads(body[8 : 8 + length])
        given = {
            str(name): (_type_name(str(each["dtype"])), [int(n) for n in each["shape"]])
            for name, each in tensors.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"arrays that cannot be read: {reason(error)}") from None
    for name, (kind, shape) in given.items():
        require(name in allowed, f"an array {foreign(repr(name))} that was not asked for")
        like = allowed[name]
        needed = f"{like.dtype}{list(like.shape)}"
        require(
            f"{kind}{shape}" == needed,
            f"the array {name!r} is {foreign(f'{kind}{shape}')}; it must be {needed}",
        )
    have, needs = len(body) - 8 - length, _array_bytes(allowed[name] for name in given)
    require(have == needs, f"{have:,} bytes of arrays; those that it names have {needs:,}")


def _type_name(code: str) -> str:
    """NumPy's name of a type of safetensors.

    >>> _type_name("F32"), _type_name("BOOL"), _type_name("U8")
    ('float32', 'bool', 'uint8')
    """
    return "bool" if code == "BOOL" else TYPE_NAMES.get(code[:1], code[:1]) + code[1:]


def unpack_arrays(body: bytes, allowed: Allowed | None = None) -> dict[str, Array]:
    """The inverse of `pack_arrays`."""
    if allowed is not None:
        check_body(body, allowed)
    if not body:
        return {}
    try:
        arrays: dict[str, Array] = safetensors.numpy.load(body)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"arrays that cannot be read: {reason(error)}") from None
    return arrays


def unpack_request(parcel: Parcel) -> Request:
    """The head of a request."""
    try:
        head = json.loads(parcel.head)
        version = head.get("version") if isinstance(head, dict) else None
    except (ValueError, RecursionError):
        raise InputError("a request that is not JSON") from None
    require(
        version == VERSION,
        f"a request of version {version}; this node takes version {VERSION}: install the same "
        "version of fedprox on both sides",
    )
    request = _checked(Request, parcel)
    reads = READS[request.kind]
    for prefix, part in (("", request), ("secret.", request.secret)):
        for name, field in type(part).model_fields.items() if part else ():
            read = field.is_required() or prefix + name in reads
            require(
                read or getattr(part, name) == field.default,
                f"request: {request.kind} does not read {prefix}{name}: leave it out",
            )
    return request


def unpack_answer(parcel: Parcel) -> Answer:
    """The head of an answer."""
    return _checked(Answer, parcel)


def _checked(kind: type[M], parcel: Parcel) -> M:
    with in_one_line(kind.__name__.lower()):
        return kind.model_validate_json(parcel.head)


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Raise `InputError` for the first constraint of a head that fails."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        line = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{what}: {where}: {line}") from None


def prefixed(prefix: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree as arrays, by a prefix and their paths.

    >>> prefixed("x", {"a": (np.zeros(1), np.ones(2))})
    {"x['a'][0]": array([0.]), "x['a'][1]": array([1., 1.])}
    """
    return dict(zip(prefixed_names(prefix, tree), jax.tree.leaves(tree), strict=True))


def prefixed_names(prefix: str, tree: Any) -> list[str]:
    """The names that `prefixed` gives the leaves of a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [f"{prefix}{jax.tree_util.keystr(path)}" for path, _ in leaves]


def tree_of(like: Any, arrays: NamedArrays, prefix: str) -> Any:
    """The tree of the same structure as `like` whose leaves are among some arrays."""
    leaves, structure = jax.tree.flatten(like)
    names = prefixed_names(prefix, like)
    for name, leaf in zip(names, leaves, strict=True):
        require(name in arrays, f"the array {name!r} is missing")
        require_like(name, arrays[name], leaf)
    return jax.tree.unflatten(structure, [arrays[name] for name in names])


def require_like(name: str, array: Array, like: Any) -> None:
    """Raise `InputError` unless an array has the shape and type of another."""
    have, needed = (f"{a.dtype}{list(a.shape)}" for a in (array, like))
    require(have == needed, f"the array {name!r} is {have}; it must be {needed}")
