"""Measures with noise in a deployment: what a node sends of them, and the noise of the operator.

With hidden rows, and under masks, a node adds noise before anything leaves it, enough by itself for
its own clients, whatever others add. Without masks the operator, who is trusted with hidden
clients, adds noise once to the sum over nodes. All noise is of the system's entropy.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from fedprox.deployment.combine import Declared, NodeMeasures
from fedprox.deployment.entropy import normals
from fedprox.deployment.wire import PrivateMeasures, Setup
from fedprox.engine.compiled.evaluation import EvaluationSums
from fedprox.federation import Rows
from fedprox.protocol.protocol import Protocol
from fedprox.released import sums_of


def names_of(protocol: Protocol) -> list[str]:
    """The measures of a node's clients that have noise, as arrays are named."""
    parts = {name: name.split("_", 1) for name in protocol.measures}
    of_clients = [
        [part, kind]
        for part, kind in parts.values()
        if isinstance(getattr(protocol.measured, part), Rows)
    ]
    names = [f"{part}/{kind}" for part, kind in of_clients if part != "train"]
    return ["loss", "weight", "unmeasured", *names]


def shown(
    protocol: Protocol, setup: Setup, sums: EvaluationSums, asked: Collection[str]
) -> dict[str, Any]:
    """A node's answer with the measures that it reports: sums, with noise if it adds some."""
    measures, by_rows = setup.measures, setup.private_steps is not None
    assert measures is not None
    found = sums_of(protocol, sums.by_client)
    names = [name for name in found.values if _array_of(name) in asked]
    points, clients = len(np.asarray(sums.loss)), len(protocol.federation)
    answer: dict[str, Any] = {}
    for name in names:
        total = found.values[name].sum(axis=0) * found.scale[name]
        if by_rows or setup.secure is not None:
            moved = [name.partition("_")[0] for name in names]
            count = moved.count(name.partition("_")[0]) if by_rows else len(names)
            sources = clients if by_rows else 1
            scale = measures.noise_multiplier * math.sqrt(count)
            total = total + scale * normals(sources * points).reshape(sources, points).sum(axis=0)
        total = total * (found.bound if name.endswith("_loss") else 1.0)
        rows = np.full(points, found.rows[name])
        if name == "train_loss":
            answer |= {"loss": _single(total / rows), "weight": _single(np.ones(points))}
            answer["unmeasured"] = np.zeros(points, np.int32)
        else:
            answer[_array_of(name)] = {"sum": _single(total), "rows": _single(rows)}
    return answer


def _array_of(name: str) -> str:
    """A measure as arrays are named.

    >>> _array_of("train_loss"), _array_of("test_accuracy")
    ('loss', 'test/accuracy')
    """
    return "loss" if name == "train_loss" else name.replace("_", "/", 1)


def _single(numbers: Any) -> Any:
    return np.asarray(numbers, np.float32)


def noise_of_operator(
    measures: PrivateMeasures, clients: int, reported: Mapping[str, Any]
) -> Iterator[tuple[float, NodeMeasures]]:
    """Noise for the sum over nodes of the measures that they report, as one more node's."""
    names = [name for name in reported if name not in ("weight", "unmeasured")]
    scale = measures.noise_multiplier * math.sqrt(len(names))
    noise: dict[str, Any] = {}
    for name in names:
        like = reported[name]
        points = len(like if name == "loss" else like["sum"])
        drawn = scale * normals(points)
        drawn = drawn * (measures.loss_bound if name.endswith("loss") else 1.0)
        nothing = np.zeros(points, np.float32)
        if name == "loss":
            noise |= {"loss": _single(drawn / clients), "weight": nothing}
            noise["unmeasured"] = np.zeros(points, np.int32)
        else:
            noise[name] = {"sum": _single(drawn), "rows": nothing}
    if noise:
        yield 1.0, noise


def declared_with_noise(declared: Declared, setup: Setup) -> Declared:
    """The bounds of a node's measures that are clipped, and may have noise."""
    if setup.measures is None:
        return declared
    if setup.private_steps is None:  # each client counts once
        rows = dict.fromkeys(declared.rows, declared.clients)
        share = declared.clients / setup.clients
        declared = declared._replace(rows=rows, share=share)
    if setup.private_steps is None and setup.secure is None:
        return declared
    return declared._replace(least_loss=-math.inf, noise=True)
