"""Compressed messages of deployments: those of simulations, and as large as their bits."""

import json
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
from tests.deployment.federations import (
    changed,
    deployed,
    nodes_of,
    overheard,
    simulated,
    table_of,
)
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


FEEDBACK = {"error_feedback": True}
MESSAGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "top-k": ({"name": "fedopt", "optimizer": "adam", "server_learning_rate": 0.1}, {}),
    # clients of FedDyn keep what arrives
    "random-k": ({"name": "feddyn", "alpha": 0.1}, FEEDBACK),
    "quantize": ({"name": "fedprox", "mu": [0.0, 0.5]}, {"download": 8}),
    "quantize rotated": ({"name": "fedavg"}, FEEDBACK),
    "sign": ({"name": "fedavg"}, {}),
    "sign rotated": ({"name": "fedavg"}, FEEDBACK),
    "full": ({"name": "fedavg"}, {}),
}
"""A method beside each codec, and what else is set of the compression."""

AROUND = 700
"""Most bytes of a message beside its codes."""


@pytest.mark.parametrize("name", mostly_slow(CODECS))
def test_a_deployment_is_the_simulation_in_as_few_bytes(name: str, tmp_path: Path) -> None:
    method, more = MESSAGES[name]
    compression = CODECS[name] | more
    cohort, evaluation = {"clients_per_round": 4}, {"every": 1, "gradients": False}
    table = table_of(method, compression=compression, cohort=cohort, evaluation=evaluation)
    sizes: list[tuple[int, int, int]] = []

    def hear(request: Parcel, answer: Parcel) -> None:
        """Note the clients of "train", and the bytes of arrays in both directions."""
        head = json.loads(request.head)
        if head["kind"] == "train":
            sizes.append((len(head["work"]["names"]), len(answer.body), len(request.body)))

    nodes = [overheard(node.answer, hear) for node in nodes_of(table, tmp_path)]
    theirs, ours = simulated(table), deployed(table, nodes)
    check(theirs, ours)
    setting, params = fp.Compression(**compression), ours[0].params
    bits = setting.message_bits(sum(leaf.size for leaf in jax.tree.leaves(params)))
    for a, b in zip(theirs, ours, strict=True):
        assert [r.bits_up for r in a.history] == [r.bits_up for r in b.history]
        assert b.history[1].bits_up == 4 * bits
        assert (b.history[1].bytes_up or 0) >= 4 * bits / 8
    assert len(sizes) == 2 * table["rounds"]
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    for clients, up, down in sizes:
        assert clients == 2
        assert 0 <= up - len(ours) * clients * bits / 8 <= AROUND
        if setting.download:
            assert 0 <= down - len(ours) * setting.download_bits(shapes) / 8 <= AROUND


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("name", CODECS)
def test_codes_are_packed_without_loss(name: str, size: int) -> None:
    codec: Codec = fp.Compression(**CODECS[name]).codec_of(size)
    keys = jax.random.split(jax.random.key(0), 6).reshape(3, 2)
    x = jax.random.normal(jax.random.key(1), (3, 2, size))
    code = jax.jit(jax.vmap(jax.vmap(codec.encode)))(x, keys)
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
