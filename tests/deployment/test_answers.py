"""What an answer may hold follows from the request and from what the node declared."""

import json
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.fednova import Message as OfFedNova
from fedprox.algorithms.private import Clipped, private
from fedprox.algorithms.qffl import Message as OfQFFL
from fedprox.deployment.combine import Declared, Shapes, declared_by, sums_of
from fedprox.deployment.conversation import Answered, Conversation
from fedprox.deployment.memory import in_memory
from fedprox.deployment.messages import VERSION, Answer, Array, Description, Request, pack_arrays
from fedprox.deployment.network import Parcel
from fedprox.deployment.round_part import RoundPart, part_shapes, read_part
from fedprox.errors import InputError
from fedprox.privacy import AdaptiveClip, Privacy
from fedprox.simulation.planning.batch_plan import Jobs, no_jobs
from tests.deployment.federations import described

FLOAT = jax.ShapeDtypeStruct((2,), np.float32)
ALLOWED = {"a": jax.ShapeDtypeStruct((3, 2), np.float32), "b": FLOAT}
GOOD: dict[str, Array] = {"a": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}


def asked(answer: Callable[[Parcel], Parcel]) -> tuple[Conversation, dict[int, Answered]]:
    """A conversation in which one node was asked for arrays."""
    conversation = Conversation(in_memory([answer]), patience=30.0)
    request = Request(version=VERSION, id="x", kind="train")
    return conversation, conversation.ask({0: request}, allowed={0: ALLOWED})


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
        (headed(b"", withheld=["x" * 200_000]), "200,0"),
    ],
)
def test_an_answer_that_was_not_asked_for_is_refused_at_once(
    node: Callable[[Parcel], Parcel], line: str
) -> None:
    conversation, answers = asked(node)
    assert not answers
    assert conversation.failed[0].startswith(f"its answer is refused: {line}")
    assert conversation.failed[0].isprintable()
    assert not conversation.refused


def test_a_header_is_checked_before_arrays_are_made() -> None:
    body = pack_arrays({"c": np.zeros(10**7, np.uint8)})
    tracemalloc.start()
    _, answers = asked(headed(body))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not answers
    assert most < 10**6


def test_a_refusal_is_one_short_line() -> None:
    conversation, _ = asked(headed(b"", refused="a\x1b[2J\n" * 10**3))
    assert conversation.failed[0].startswith("it refuses: a\\x1b[2J\\na")
    assert conversation.failed[0].isprintable()
    assert len(conversation.failed[0]) < 400
    assert conversation.refused == {0}
    assert asked(headed(pack_arrays(GOOD)))[1][0].arrays.keys() == GOOD.keys()


MEAN = {"sum": FLOAT, "rows": FLOAT}
PARAMS = {"w": jax.ShapeDtypeStruct((2, 4), np.float32)}
SHAPES = Shapes(2, {}, {"loss": MEAN, "accuracy": MEAN}, (FLOAT, PARAMS, FLOAT), 0.0, True)
NODE = Declared(
    share=0.5, clients=3, test=10, labels=8, validation=5, validation_labels=5, central=False
)


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
    changes: Mapping[str, float], declared: Declared = NODE, shapes: Shapes = SHAPES
) -> None:
    """Read an evaluation in which some arrays have another value."""
    arrays = dict(MEASURED)
    for name, value in changes.items():
        arrays[name] = np.full_like(arrays[name], value)
    assert arrays.keys() <= shapes.arrays().keys()
    sums_of(Answered(Answer(id=""), arrays, 0, 0), shapes, declared)


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


def test_what_a_model_that_diverged_measures_is_no_fault() -> None:
    measured({"validation/loss['sum']": np.nan}, NODE._replace(central=True))
    negative = SHAPES._replace(least_loss=-np.inf)
    measured({"loss": -3.0, "test/loss['sum']": -1.0}, shapes=negative)
    unknown = SHAPES._replace(has_accuracy=False)
    measured({"validation/accuracy['sum']": np.nan}, shapes=unknown)
    measured({"scatter[0]": 0, "scatter[1]['w']": np.nan, "scatter[2]": np.nan})


def test_a_node_declares_its_rows() -> None:
    values = {"version": "1", "label": [4], "test": [10], "labels": [7], "validation": [5]}
    description = Description.model_validate(described(**values))
    exact = declared_by(description, 0.5, sampled=False)
    assert exact == Declared(0.5, 1, 10, 7, 5, 20, central=False)
    assert declared_by(description, 0.5, sampled=True).labels == 40


def jobs_of(steps: list[int], weight: list[float]) -> Jobs:
    """Jobs of some clients."""
    jobs = Jobs(*(np.zeros(len(steps)) for _ in no_jobs()))  # type: ignore[arg-type]
    return jobs._replace(
        client=np.arange(len(steps)), steps=np.array(steps), weight=np.array(weight)
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
        assert algorithm.possible is not None
        return jax.vmap(algorithm.possible)(given, mean, steps)

    read_part(part.arrays(), JOBS, shapes, 1, possible)


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
        (ADAPTIVE, [bits(0.375), bits(-0.375)], [bits(0.38), bits(-0.38)], {}),
        (ADAPTIVE, [bits(0.0)], [bits(1e6), bits(-1e6)], {}),
        (fp.fedexp(), [(W, 33.34), (W, 1e9)], [(W, 33.2), (W, -1.0)], {}),
        (fp.qffl(1.0), [(W, 0.0), (W, 1e9)], [(W, -1e-3)], {}),
        (fp.fednova(), [(W, 0.0), (W, 2.0)], [(W, -0.1), (W, 3.1)], {}),
        (fp.fednova(momentum=0.5), [(W, 4.5)], [(W, 4.7)], {}),
        (fp.fednova(mu=0.5), [(W, 1.4)], [(W, 1.5)], {"learning_rate": 1.0, "mu": 0.5}),
    ],
)
def test_a_message_is_one_that_its_clients_can_send(
    algorithm: Algorithm, good: list[Any], bad: list[Any], hparams: dict[str, float]
) -> None:
    kind: dict[str, Any] = {"qffl": OfQFFL, "fednova": OfFedNova}

    def sent(message: Any) -> Any:
        return kind[algorithm.name](*message) if algorithm.name in kind else message

    for message in good:
        read(algorithm, sent(message), **hparams)
        read(algorithm, sent(jax.tree.map(lambda a: a * np.nan, message)), **hparams)  # to screen
    for message in bad:
        with pytest.raises(InputError, match="its message is none that its clients can send"):
            read(algorithm, sent(message), **hparams)
