"""What an answer may hold follows from the request and from what the node declared."""

import json
import tracemalloc
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import ROUNDING, Algorithm, Memory
from fedprox.deployment.combine import (
    Declared,
    NodeMeasures,
    arrays_of,
    declared_by,
    declared_together,
    sums_of,
)
from fedprox.deployment.conversation import MOST_HEAD, Answered, Conversation, Failed
from fedprox.deployment.network import Parcel
from fedprox.deployment.payload import (
    RoundPart,
    checked_part,
    part_shapes,
    require_clipped,
    sent_state_of,
)
from fedprox.deployment.wire import VERSION, Array, Clients, Description, Request, pack_arrays
from fedprox.engine.planning.jobs import Jobs, no_jobs
from fedprox.errors import InputError
from fedprox.losses import CrossEntropy, by_labels, met_by_labels
from fedprox.parts.privacy import AdaptiveClip, Privacy
from fedprox.parts.privacy.setting import Clipped, private
from tests.deployment.federations import described, in_memory

FLOAT = jax.ShapeDtypeStruct((2,), np.float32)
ALLOWED = {"a": jax.ShapeDtypeStruct((3, 2), np.float32), "b": FLOAT}
GOOD: dict[str, Array] = {"a": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}


def asked(answer: Callable[[Parcel], Parcel]) -> Answered | Failed:
    """What comes of asking a node for arrays."""
    conversation = Conversation(in_memory([answer]), patience=30.0)
    request = Request(version=VERSION, id="x", kind="train")
    return conversation.answers(conversation.begin_all({0: request}, allowed={0: ALLOWED}))[0]


def failed(answer: Callable[[Parcel], Parcel]) -> Failed:
    """Why a node's answer cannot be used."""
    ended = asked(answer)
    assert isinstance(ended, Failed)
    return ended


def headed(body: bytes, **values: Any) -> Callable[[Parcel], Parcel]:
    """A node that answers with a body, and values in the head."""
    return lambda _: Parcel(json.dumps({"id": "x", **values}).encode(), body)


def forged(head: Any, data: bytes = b"") -> bytes:
    """A body with a header of one's own."""
    packed = json.dumps(head).encode()
    return len(packed).to_bytes(8, "little") + packed + data


def entry(kind: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [0, size]}


@pytest.mark.parametrize(
    ("node", "line"),
    [
        (headed(pack_arrays(GOOD | {"c": np.zeros(1)})), "an array 'c' that was not asked for"),
        (headed(pack_arrays({"a\n" * 20: GOOD["a"]})), "an array 'a\\na\\na\\n"),
        (headed(pack_arrays({"a" * 9999: GOOD["a"]})), "a header of 10,"),
        (headed(pack_arrays({"c": np.zeros(10**6)})), "8,000,0"),
        (headed(pack_arrays({"a": np.ones((3, 2))})), "the array 'a' is float64[3, 2]; it must"),
        (headed(forged({"a": entry("F32", [3, 2], 24)}, b"0" * 23)), "23 bytes of arrays; those"),
        (headed(forged({"a": entry("F32", [10**15], 24)}, b"0" * 24)), "the array 'a' is float32"),
        (headed(forged({"a": entry("F32", [3, 2], 23)}, b"0" * 24)), "arrays that cannot be read"),
        (headed(forged({"__metadata__": {"a": "b"}})), "arrays that cannot be read: 'dtype'"),
        (headed(forged([1])), "arrays that cannot be read: "),
        (headed(forged({"a": 1})), "arrays that cannot be read: "),
        (headed(b"\xff" * 20), "arrays that cannot be read: no header"),
        (headed(b"1"), "arrays that cannot be read: no header"),
        (headed(b"", seconds=-1.0), "it took -1 s, and was asked 0.0 s ago"),
        (headed(b"", seconds=1e300), "it took 1e+300 s, and was asked 0.0 s ago"),
        (headed(b"", seconds=float("nan")), "it took nan s, and was asked 0.0 s ago"),
        (headed(b"", lacks=True), "it lacks arrays that it was just sent"),
        (headed(b"", withheld=["x" * 2 * MOST_HEAD]), "2,000,"),
    ],
)
def test_an_answer_that_was_not_asked_for_is_refused_at_once(
    node: Callable[[Parcel], Parcel], line: str
) -> None:
    why, refused, _ = failed(node)
    assert why.startswith(f"its answer is refused: {line}")
    assert why.isprintable()
    assert not refused


def test_a_header_is_checked_before_arrays_are_made() -> None:
    body = pack_arrays({"c": np.zeros(10**7, np.uint8)})
    tracemalloc.start()
    failed(headed(body))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**6


def test_a_refusal_is_one_short_line() -> None:
    why, refused, _ = failed(headed(b"", refused="a\x1b[2J\n" * 10**3))
    assert why.startswith("it refuses: a\\x1b[2J\\na")
    assert why.isprintable()
    assert len(why) < 400
    assert refused
    answered = asked(headed(pack_arrays(GOOD)))
    assert isinstance(answered, Answered)
    assert answered.arrays.keys() == GOOD.keys()


MEAN = {"sum": FLOAT, "rows": FLOAT}
PARAMS = {"w": jax.ShapeDtypeStruct((2, 4), np.float32)}
HELD_OUT = "test/loss", "test/accuracy", "validation/loss", "validation/accuracy"
SHAPES: dict[str, Any] = {
    **{"loss": FLOAT, "weight": FLOAT, "unmeasured": jax.ShapeDtypeStruct((2,), np.int32)},
    **dict.fromkeys(HELD_OUT, MEAN),
    "scatter": (FLOAT, PARAMS, FLOAT),
}


def declared(share: float, clients: int, *rows: int, central: bool = False) -> Declared:
    """What a node holds: rows of the losses and accuracies."""
    return Declared(share, clients, dict(zip(HELD_OUT, rows, strict=True)), central, 0.0, True)


NODE = declared(0.5, 3, 10, 8, 5, 5)


def numbers(value: float, kind: Any = np.float32) -> Array:
    return np.full(2, value, kind)


MEASURED: dict[str, Array] = {
    "loss": numbers(2.0),
    "weight": numbers(1.0),
    "unmeasured": numbers(0, np.int32),
    "test/loss['sum']": numbers(7.0),
    "test/loss['rows']": numbers(10),
    "test/accuracy['sum']": numbers(8),
    "test/accuracy['rows']": numbers(8),
    "validation/loss['sum']": numbers(7.0),
    "validation/loss['rows']": numbers(5),
    "validation/accuracy['sum']": numbers(5),
    "validation/accuracy['rows']": numbers(5),
    "scatter[0]": numbers(1.0),
    "scatter[1]['w']": np.ones((2, 4), np.float32),
    "scatter[2]": numbers(3.0),
}
"""What an honest node with the largest numbers answers."""


def measured(
    changes: Mapping[str, float], node: Declared = NODE, *, last: bool = False
) -> NodeMeasures:
    """Read an evaluation in which some arrays, or their last numbers, have another value."""
    arrays = {name: array.copy() for name, array in MEASURED.items()}
    for name, value in changes.items():
        arrays[name].reshape(-1)[-1 if last else 0 :] = value
    return read_sums(arrays, node)


def read_sums(
    arrays: dict[str, Array], node: Declared = NODE, shapes: NodeMeasures = SHAPES
) -> NodeMeasures:
    assert arrays.keys() <= arrays_of(shapes).keys()
    return sums_of(arrays, shapes, node)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("loss", -1e38, "its training losses are ["),
        ("loss", np.inf, "its losses are not finite"),
        ("weight", 1.1, "it measures weights ["),
        ("unmeasured", 4, "it did not measure [4, 4] clients; it has 3"),
        ("unmeasured", -1, "it did not measure [-1, -1] clients; it has 3"),
        ("test/loss['sum']", -1.0, "its test losses are [-1.0, -1.0]; this model's are at least 0"),
        ("test/loss['sum']", np.inf, "its test loss is not finite"),
        ("test/loss['rows']", 11, "it measures [11.0, 11.0] test rows; it has 10"),
        ("test/loss['rows']", np.nan, "it measures [nan, nan] test rows; it has 10"),
        ("test/loss['rows']", -1, "it measures [-1.0, -1.0] test rows; it has 10"),
        ("test/accuracy['rows']", 2**40, "it measures [1099511627776.0, 1099511627776.0] test"),
        ("test/accuracy['rows']", np.inf, "it measures [inf, inf] test labels; it has 8"),
        ("test/accuracy['rows']", 7, "it counts [8.0, 8.0] correct test labels of [7.0, 7.0]"),
        ("test/accuracy['sum']", 9, "it counts [9.0, 9.0] correct test labels of [8.0, 8.0]"),
        ("test/accuracy['sum']", -1, "it counts [-1.0, -1.0] correct test labels of [8.0, 8.0]"),
        ("test/accuracy['sum']", np.nan, "its test accuracy is not finite"),
        ("validation/loss['sum']", -1, "its validation losses are ["),
        ("validation/loss['rows']", 6, "it measures [6.0, 6.0] validation rows; it has 5"),
        ("validation/accuracy['rows']", 6, "it measures [6.0, 6.0] validation labels; it has 5"),
        ("validation/accuracy['sum']", 6, "it counts [6.0, 6.0] correct validation labels"),
        ("validation/accuracy['sum']", np.nan, "its validation accuracy is not finite"),
        ("scatter[0]", 1.1, "its gradients have a weight or scatter that cannot be"),
        ("scatter[0]", np.nan, "its gradients have a weight or scatter that cannot be"),
        ("scatter[1]['w']", np.nan, "its gradients have a weight or scatter that cannot be"),
        ("scatter[2]", -1.0, "its gradients have a weight or scatter that cannot be"),
    ],
)
def test_measures_are_bounded_by_the_declared_rows(name: str, value: float, line: str) -> None:
    measured({})
    with pytest.raises(InputError) as raised:
        measured({name: value})
    assert str(raised.value).startswith(line)
    with pytest.raises(InputError, match=line.partition("[")[0]):
        measured({name: value}, last=True)


UP, OVER = 1 + 0.99 * ROUNDING, 1 + 1.1 * ROUNDING
LOSS, ROWS = "test/loss['sum']", "test/loss['rows']"
CORRECT, LABELS = "test/accuracy['sum']", "test/accuracy['rows']"
GRADIENT = "scatter[1]['w']"


@pytest.mark.parametrize(
    ("largest", "beyond"),
    [
        ({"loss": 0.0}, {"loss": -1e-30}),
        ({"weight": 0.0}, {"weight": -1e-30}),
        ({"weight": 1 + ROUNDING}, {"weight": OVER}),
        ({"unmeasured": 3}, {"unmeasured": 4}),
        ({LOSS: 0.0, ROWS: 0}, {LOSS: -1e-30}),
        ({ROWS: 10 * (1 + ROUNDING)}, {ROWS: 10 * OVER}),
        ({CORRECT: 0.0, LABELS: 0.0}, {LABELS: 0.0}),
        ({LABELS: 8 * UP}, {LABELS: 8 * OVER}),
        ({CORRECT: 8 * UP}, {CORRECT: 8 * OVER}),
        ({CORRECT: 4 * UP, LABELS: 4}, {CORRECT: 4 * OVER, LABELS: 4}),
        ({"scatter[0]": 1 + ROUNDING}, {"scatter[0]": OVER}),
        ({"scatter[0]": 0.0}, {"scatter[0]": -1e-30}),
        ({"scatter[2]": 0.0}, {"scatter[2]": -1e-30}),
        ({"scatter[0]": 0.0, GRADIENT: np.inf}, {GRADIENT: np.inf}),
    ],
)
def test_the_largest_measures_are_read(largest: dict[str, float], beyond: dict[str, float]) -> None:
    measured(largest)
    measured(largest, last=True)
    for last in (False, True):
        with pytest.raises(InputError):
            measured(beyond, last=last)


@pytest.mark.parametrize(
    "missing",
    ["loss", "weight", "unmeasured", ROWS, LOSS, LABELS, "scatter[0]", "scatter[2]"],
)
def test_what_belongs_together_is_not_left_out(missing: str) -> None:
    rest = {name: array for name, array in MEASURED.items() if name != missing}
    with pytest.raises(InputError) as raised:
        read_sums(rest)
    assert str(raised.value) == f"the array {missing!r} is missing"
    twice = MEASURED | {missing: np.zeros(3, np.float16)}
    with pytest.raises(InputError, match="is float16\\[3\\]; it must be "):
        read_sums(twice)


def test_what_a_node_measured_is_read() -> None:
    """A node answers what its policy reports."""
    values = {name: float(i + 1) / 10 for i, name in enumerate(MEASURED)} | {"unmeasured": 2}
    values |= {"test/accuracy['rows']": 1.0, "scatter[0]": 0.95, "validation/accuracy['rows']": 2.0}
    sums = measured(values)
    given = {name: np.full_like(MEASURED[name], value) for name, value in values.items()}
    expected: dict[str, Any] = {name: given[name] for name in ("loss", "weight", "unmeasured")}
    for name in HELD_OUT:
        expected[name] = {term: given[f"{name}['{term}']"] for term in ("sum", "rows")}
    scatter = given["scatter[0]"], {"w": given["scatter[1]['w']"]}, given["scatter[2]"]
    expected["scatter"] = scatter
    assert jax.tree.all(jax.tree.map(np.array_equal, sums, expected))
    only = read_sums({name: a for name, a in MEASURED.items() if name.startswith("validation")})
    assert only.keys() == {"validation/loss", "validation/accuracy"}
    with_metric = SHAPES | {"train/m": MEAN, "train/n": FLOAT}
    arrays = {"train/m['sum']": numbers(2.0), "train/m['rows']": numbers(3.0)}
    assert list(read_sums(arrays, shapes=with_metric)) == ["train/m"]


def test_what_a_model_that_diverged_measures_is_no_fault() -> None:
    measured({"validation/loss['sum']": np.nan}, NODE._replace(central=True))
    negative = NODE._replace(least_loss=-np.inf)
    measured({"loss": -3.0, "test/loss['sum']": -1.0}, negative)
    unknown = NODE._replace(has_accuracy=False)
    measured({"validation/accuracy['sum']": np.nan}, unknown)
    measured({"scatter[0]": 0, "scatter[1]['w']": np.nan, "scatter[2]": np.nan})
    with pytest.raises(InputError, match="its validation loss is not finite"):
        measured({"validation/loss['sum']": np.nan})
    with pytest.raises(InputError, match="its test loss is not finite"):
        measured({"test/loss['sum']": np.nan}, NODE._replace(central=True))
    with pytest.raises(InputError, match="its validation loss is not finite"):
        measured({"validation/loss['sum']": np.nan}, unknown)


def test_a_node_declares_its_rows() -> None:
    values = {"version": "1", "label": [4], "test": [10], "labels": [7], "validation": [5]}
    description = Description.model_validate(described(**values))
    model: Any = SimpleNamespace(loss=CrossEntropy(), correct=lambda outputs, y: outputs == y)
    exact = declared_by(description, 0.5, model)
    assert exact == declared(0.5, 1, 10, 7, 5, 20)
    clients = Clients(
        names=["a", "b"], train=[3, 4], test=[10, 20], labels=[7, 9], validation=[5, 6]
    )
    both = description.model_copy(update={"clients": clients, "central_validation": 100})
    of_both = declared(0.25, 2, 30, 16, 111, 444, central=True)
    assert declared_by(both, 0.25, model) == of_both
    together = declared(1.0, 3, 40, 23, 116, 464, central=True)._replace(weight=0.75)
    assert declared_together([exact, of_both]) == together
    own: Any = SimpleNamespace(loss=lambda outputs, y: outputs - y, correct=None)
    assert declared_by(both, 0.25, own)[4:6] == (-np.inf, False)
    default: Any = SimpleNamespace(loss=by_labels, correct=met_by_labels)
    assert declared_by(both, 0.25, default)[4:6] == (0, True)
    regression = description.kind.model_copy(update={"label_type": "float32"})
    numbers = both.model_copy(update={"kind": regression})
    assert declared_by(numbers, 0.25, default)[4:6] == (0, False)


def jobs_of(steps: list[int], weight: list[float]) -> Jobs:
    """Jobs of some clients."""
    jobs = Jobs(*(np.zeros(len(steps)) for _ in no_jobs()))  # type: ignore[arg-type]
    return jobs._replace(
        client=np.arange(len(steps)), steps=np.array(steps), weight=np.array(weight), columns={}
    )


JOBS = jobs_of([4, 2], [0.25, 0.5])


def part_of(message: Any, **changes: Any) -> RoundPart:
    """A part of two jobs at one point, all of whose updates count."""
    alike = np.ones((2, 1), bool)
    part = RoundPart(
        jax.tree.map(lambda a: np.asarray(a, np.float32)[None], message),
        np.array([0.75], np.float32),
        np.array([[4], [2]]),
        alike,
        ~alike,
    )
    return part._replace(**changes)


def read(algorithm: Algorithm, message: Any, **hparams: float) -> None:
    """Read a part of a round of a method whose messages sum to this one."""
    part = part_of(message)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), part.message)
    assert part_shapes(2, shapes, 1).keys() == part.arrays().keys()
    given = {name: jnp.array([value], jnp.float32) for name, value in hparams.items()}

    def possible(mean: Any, steps: Any) -> Any:
        assert algorithm.client.possible is not None
        return jax.vmap(algorithm.client.possible)(given, mean, steps)

    checked_part(part.arrays(), JOBS, shapes, 1, possible)


W = np.array([3.0, 4.0])
"""A sum of updates; with weight 0.75 the squared norm of the mean is 44.4."""


def bits(within: float) -> Clipped:
    return Clipped(W, jnp.float32(within))


ADAPTIVE = private(
    fp.fedavg(), Privacy(1.0, noise_multiplier=1.0, adaptive_clip=AdaptiveClip()), 1.0, 4, 4
)


@pytest.mark.parametrize(
    ("algorithm", "good", "bad", "hparams"),
    [
        (ADAPTIVE, [bits(0.375 * UP), bits(-0.375)], [bits(0.375 * OVER), bits(-0.38)], {}),
        (ADAPTIVE, [bits(0.0)], [bits(1e6), bits(-1e6)], {}),
        (
            private(fp.fedavg(), Privacy(1.0, noise_multiplier=1.0), 1.0, 4, 4),
            [Clipped(W, None)],
            [],
            {},
        ),
        # the mean of the squares is at least the square of the mean, 25 / 0.75^2
        (fp.fedexp(), [(W, 25 / 0.75 / UP), (W, 1e9)], [(W, 25 / 0.75 / OVER), (W, -1.0)], {}),
        (fp.qffl(1.0), [(W, 0.0), (W, 1e9)], [(W, -1e-30)], {}),
        # at most 4 steps of a client
        (fp.fednova(), [(W, 0.0), (W, 3.0 * UP)], [(W, -1e-30), (W, 3.0 * OVER)], {}),
        (fp.fednova(momentum=0.5), [(W, 4.59375 * UP)], [(W, 4.59375 * OVER)], {}),
        (
            *(fp.fednova(mu=0.5), [(W, 1.40625 * UP)], [(W, 1.40625 * OVER)]),
            {"learning_rate": 1.0, "mu": 0.5},
        ),
    ],
)
def test_a_message_is_one_that_its_clients_can_send(
    algorithm: Algorithm, good: list[Any], bad: list[Any], hparams: dict[str, float]
) -> None:
    for message in good:
        read(algorithm, message, **hparams)
        read(algorithm, jax.tree.map(lambda a: a * np.nan, message), **hparams)  # to screen
    for message in bad:
        with pytest.raises(InputError, match="its message is none that its clients can send"):
            read(algorithm, message, **hparams)


TREE = {"u": np.array([[3.0], [0.0]]), "v": np.array([[[0.0, 4.0]], [[6.0, 8.0]]])}
"""A message at two points, of norms 5 and 10."""

TWO = RoundPart(
    jax.tree.map(lambda a: a.astype(np.float32), TREE),
    np.array([0.75, 0.5], np.float32),
    np.array([[4, 0], [0, 2]]),
    np.array([[True, False], [True, True]]),
    np.array([[False, True], [False, False]]),
)
"""A part of two jobs at two points, of which one is faulty at the second point."""

LIKE = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), TWO.message)


def test_the_arrays_of_a_part_are_its_own() -> None:
    arrays, shapes = TWO.arrays(), part_shapes(2, LIKE, 2)
    assert (
        arrays.keys()
        == shapes.keys()
        == {*("message['u']", "message['v']", "counted", "steps", "counts", "faulty")}
    )
    for name, array in arrays.items():
        assert (shapes[name].shape, shapes[name].dtype) == (array.shape, array.dtype), name
    back = checked_part(arrays, JOBS, LIKE, 2)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, TWO))
    three = part_shapes(3, LIKE, 2)
    assert (three["steps"].shape, three["counted"].shape) == ((3, 2), (2,))
    empty = jobs_of([], [])
    none = RoundPart(TWO.message, numbers(0), TWO.steps[:0], TWO.counts[:0], TWO.faulty[:0])
    seen: list[Any] = []

    def possible(mean: Any, steps: Any) -> Any:
        seen.append((jax.tree.map(np.asarray, mean), steps.tolist()))
        return np.array([True, True])

    assert checked_part(none.arrays(), empty, LIKE, 2, possible).steps.shape == (0, 2)
    assert seen[-1][1] == [0, 0]
    checked_part(TWO.arrays(), JOBS, LIKE, 2, possible)
    mean, steps = seen[-1]
    # the step count of a faulty update does not bound what the others send
    assert steps == [4, 2]
    assert mean["v"] == pytest.approx(TREE["v"] / np.array([0.75, 0.5])[:, None, None])
    changed = TWO._replace(steps=np.array([[1, 2], [3, 1]]))
    checked_part(changed.arrays(), JOBS._replace(steps=np.array([3, 3])), LIKE, 2, possible)
    assert seen[-1][1] == [3, 1]
    still = TWO._replace(steps=np.array([[0, 4], [0, 0]]))
    checked_part(still.arrays(), JOBS, LIKE, 2, possible)
    assert seen[-1][1] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"counted": np.array([0.75, 0.5 * OVER], np.float32)}, "it counts weights [0.75, 0.5"),
        ({"counted": np.array([0.75 / OVER, 0.5], np.float32)}, "it counts weights [0.74"),
        ({"counted": np.array([0.75, np.nan], np.float32)}, "it counts weights [0.75, nan]"),
        ({"counts": TWO.counts | TWO.faulty, "counted": numbers(0.75)}, "it counts faulty updates"),
        ({"steps": np.array([[4, 0], [0, 3]])}, "it says that clients took more steps"),
        ({"steps": np.array([[4, -1], [0, 2]])}, "it says that clients took more steps"),
        ({"steps": np.array([[4, 0], [0, 2]], np.int32)}, "the array 'steps' is int32[2, 2]"),
        ({"faulty": None}, "the array 'faulty' is missing"),
    ],
)
def test_a_part_is_one_that_its_jobs_can_give(changes: dict[str, Any], line: str) -> None:
    arrays = {n: a for n, a in (TWO.arrays() | changes).items() if a is not None}
    with pytest.raises(InputError) as raised:
        checked_part(arrays, JOBS, LIKE, 2)
    assert str(raised.value).startswith(line)


def test_a_part_is_one_that_its_clients_can_send_at_each_point() -> None:
    def only_first(*_: Any) -> Any:
        return jnp.array([True, False])

    with pytest.raises(InputError, match="its message is none that its clients can send"):
        checked_part(TWO.arrays(), JOBS, LIKE, 2, only_first)
    within = TWO._replace(counted=np.array([0.75 * UP, 0.5 / UP], np.float32))
    checked_part(within.arrays(), JOBS, LIKE, 2)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e25])
def test_a_clipped_sum_is_as_small_as_its_clients_make_it(scale: float) -> None:
    sums = jax.tree.map(lambda a: (a * scale).astype(np.float32), TREE)
    clip = (np.array([5 / 0.75, 10 / 0.5]) * scale).astype(np.float32)
    for factor in (1 / UP, 1.0, 2.0):
        require_clipped(TWO, sums, np.float32(factor) * clip)
    nothing = TWO._replace(counted=numbers(0.0))
    require_clipped(nothing, jax.tree.map(np.zeros_like, sums), clip)
    for factors in ([1 / OVER, 1.0], [1.0, 1 / OVER], [0.5, 0.5]):
        with pytest.raises(InputError, match=r"^its sum has the norms "):
            require_clipped(TWO, sums, np.array(factors, np.float32) * clip)


def test_nodes_receive_what_a_clients_memory_alone_reads() -> None:
    method, params = fp.feddyn(alpha=0.1), jax.ShapeDtypeStruct((2,), np.float32)
    assert sent_state_of(method, params).read == (True, False)  # not h
    for memory in (
        Memory(lambda state, _: state.h, lambda *given: given[2].memory),
        Memory(lambda *_: jnp.zeros(2), lambda state, *_: state.h),
    ):
        client = method.client._replace(memory=memory)
        assert sent_state_of(method._replace(client=client), params).read == (True, True)
