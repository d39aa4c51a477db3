"""Compressed messages of deployments: those of simulations, and as large as their bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.network import Parcel
from fedprox.deployment.policy import Policy
from fedprox.errors import InputError
from fedprox.parts.codecs import Codec, code_bytes, code_of_bytes, code_shapes
from tests.deployment.federations import apart, changed, deployed, nodes_of, simulated, table_of
from tests.deployment.test_same_results import check
from tests.variants import mostly_slow

CODECS: dict[str, dict[str, Any]] = {
    "top-k": {"codec": "top-k", "share": 0.05},
    "random-k": {"codec": "random-k", "share": 0.1},
    "quantize": {"codec": "quantize", "bits": 5},
    "quantize rotated": {"codec": "quantize", "bits": 3, "rotate": True},
    "sign": {"codec": "sign"},
    "sign rotated": {"codec": "sign", "rotate": True},
    "full": {"codec": "full"},
}


METHODS: dict[str, dict[str, Any]] = {
    "sign": {"name": "fedprox", "mu": [0.0, 0.5]},
    "top-k": {"name": "feddyn", "alpha": 0.1},  # whose clients keep what arrives
    "random-k": {"name": "fedprox", "mu": 0.5, "server": {"name": "adam", "learning_rate": 0.1}},
}
"""The method beside a codec; FedAvg for the others."""


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize(
    "name", mostly_slow(CODECS, "top-k", "random-k", "quantize rotated", "sign")
)
def test_a_deployment_is_the_simulation(name: str, feedback: bool, tmp_path: Path) -> None:
    if name == "full" and feedback:
        return
    compression = CODECS[name] | {"error_feedback": feedback}
    method = METHODS.get(name, {"name": "fedavg"})
    evaluation = {"gradients": False}
    table = table_of(method, compression=compression, rounds=4, evaluation=evaluation)
    theirs = simulated(table)
    ours = deployed(table, [node.answer for node in nodes_of(table, tmp_path)])
    check(theirs, ours)
    assert theirs[0].final.bits_up
    for a, b in zip(theirs, ours, strict=True):
        assert [r.bits_up for r in a.history] == [r.bits_up for r in b.history]
        full = simulated({k: v for k, v in table.items() if k != "compression"})
        assert name == "full" or apart(full[0].params, b.params) > 1e-3


def listening(
    answer: Callable[[Parcel], Parcel], sizes: list[tuple[int, int]]
) -> Callable[[Parcel], Parcel]:
    """A node whose answers to "train" are noted: their clients, and the bytes of their arrays."""

    def noting(parcel: Parcel) -> Parcel:
        answered, head = answer(parcel), json.loads(parcel.head)
        if head["kind"] == "train":
            sizes.append((len(head["work"]["names"]), len(answered.body)))
        return answered

    return noting


@pytest.mark.parametrize("name", mostly_slow(CODECS, "quantize", "sign"))
def test_what_travels_is_as_large_as_its_bits(name: str, tmp_path: Path) -> None:
    table = table_of(
        {"name": "fedavg"},
        compression=CODECS[name],
        model={"name": "mlp", "hidden": [2000]},
        cohort={"clients_per_round": 4},
        solver={"epochs": 1},
        rounds=1,
        evaluation={"gradients": False, "every": 1},
    )
    sizes: list[tuple[int, int]] = []
    nodes = [listening(node.answer, sizes) for node in nodes_of(table, tmp_path)]
    (run,) = deployed(table, nodes)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(run.params))
    bits = fp.Compression(**CODECS[name]).message_bits(numbers)
    assert sum(clients for clients, _ in sizes) == 4
    for clients, size in sizes:
        assert clients * bits / 8 <= size <= 1.02 * clients * bits / 8
    assert run.final.bits_up == 4 * bits
    assert run.final.bytes_up is not None
    assert run.final.bytes_up >= run.final.bits_up / 8


def test_the_model_travels_in_as_many_bits(tmp_path: Path) -> None:
    compression: dict[str, Any] = {"codec": "quantize", "download": 8}
    table = table_of(
        {"name": "fedprox", "mu": [0.0, 0.5]},
        compression=compression,
        model={"name": "mlp", "hidden": [2000]},
        solver={"epochs": 1},
        rounds=2,
        evaluation={"gradients": False, "every": 2},
    )
    sizes: list[int] = []

    def noted(answer: Callable[[Parcel], Parcel]) -> Callable[[Parcel], Parcel]:
        def noting(parcel: Parcel) -> Parcel:
            if json.loads(parcel.head)["kind"] == "train":
                sizes.append(len(parcel.body))
            return answer(parcel)

        return noting

    ours = deployed(table, [noted(node.answer) for node in nodes_of(table, tmp_path)])
    check(simulated(table), ours)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), ours[0].params)
    bits = 2 * fp.Compression(**compression).download_bits(shapes)  # of two sweep points
    assert sizes
    for size in sizes:
        assert bits / 8 <= size <= 1.02 * bits / 8


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
@pytest.mark.parametrize("name", CODECS)
def test_codes_are_packed_without_loss(name: str, size: int) -> None:
    codec: Codec = fp.Compression(**CODECS[name]).codec_of(size)
    keys = jax.random.split(jax.random.key(0), 6).reshape(3, 2)
    x = jax.random.normal(jax.random.key(1), (3, 2, size))
    code = jax.vmap(jax.vmap(codec.encode))(x, keys)
    like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[2:], a.dtype), code)
    sent = code_bytes(code, codec.widths)
    shapes = code_shapes(like, codec.widths, 3, 2)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), sent) == jax.tree.map(
        lambda a: (a.shape, a.dtype), shapes
    )
    again = code_of_bytes(sent, like, codec.widths)
    jax.tree.map(np.testing.assert_array_equal, again, code)
    each = sum(np.asarray(a)[0, 0].nbytes for a in jax.tree.leaves(sent))
    assert 0 <= each - codec.bits / 8 < len(jax.tree.leaves(sent))


def test_a_node_that_sends_strange_codes_moves_the_model_by_what_they_can_mean(
    tmp_path: Path,
) -> None:
    table = table_of(
        {"name": "fedavg"},
        compression=CODECS["top-k"],
        evaluation={"gradients": False},
        cohort={"clients_per_round": 4},
        rounds=1,
    )
    nodes = nodes_of(table, tmp_path)

    def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del head
        for name, array in arrays.items():
            if array.dtype == np.uint8:  # places beyond the message
                arrays[name] = np.full_like(array, 255)

    (run,) = deployed(table, [changed(node.answer, "train", change) for node in nodes])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params))


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"asynchronous": {"buffer": 2}, "compression": CODECS["sign"]},
            "asynchronous does not go with a deployment with compression, since messages then",
        ),
        (
            {"evaluation": {"model": "cohort"}, "compression": CODECS["sign"]},
            'evaluation.model = "cohort" does not go with a deployment with compression',
        ),
    ],
)
def test_what_does_not_fit_is_refused(sections: dict[str, Any], line: str, tmp_path: Path) -> None:
    table = table_of({"name": "fedavg"}, **sections)
    plain = table_of({"name": "fedavg"})
    with pytest.raises(InputError, match=line):
        deployed(table, [node.answer for node in nodes_of(plain, tmp_path)])


def test_a_node_may_ask_that_updates_are_summed(tmp_path: Path) -> None:
    table = table_of({"name": "fedavg"}, compression=CODECS["sign"])
    policy = Policy(fewest_clients=2)
    with pytest.raises(InputError, match="compression: each client's message travels by itself"):
        deployed(table, [node.answer for node in nodes_of(table, tmp_path, policy=policy)])
