"""The measures of an evaluation with noise, from what it has read of each client."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedprox.engine.compiled.evaluation import ByClient, Measures
from fedprox.federation import Rows
from fedprox.parts.privacy.measures import (
    Array,
    Sums,
    noise_by_key,
    sums_of_clients,
    sums_of_rows,
)
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol


def released_by_key(method: Method, exact: Measures, seed: int, done: int) -> Measures:
    """Measures with the noise of a simulation, after some rounds."""
    protocol = method.protocol
    assert protocol.privacy is not None
    planned = protocol.privacy.of_measures(protocol.evaluations)
    assert planned is not None
    sums = sums_of(protocol, exact.by_client)
    noise = planned[0].noise_multiplier
    words = method.values["noise_words"]
    means = sums.means(noise_by_key(sums, noise, seed, done, words))
    public = {name: exact.held_out[name] for name in protocol.measures if name not in means}
    return released(means, public)


def deviations(protocol: Protocol, noise_multiplier: float) -> dict[str, float]:
    """The standard deviation of the noise in each measure that an evaluation releases."""
    read, noised, of_rows = protocol.measured, protocol.noised, protocol.hides_examples
    assert noised is not None
    parts = {name: name.partition("_")[0] for name in protocol.measures}
    parts = {n: part for n, part in parts.items() if isinstance(getattr(read, part), Rows)}
    sources, found = len(protocol.federation), dict[str, float]()
    for name, part in parts.items():
        moved = [*parts.values()].count(part) if of_rows else len(parts)
        number = math.sqrt(moved * sources) / len(getattr(read, part)) if of_rows else 0.0
        number = number or math.sqrt(moved) / sources
        unit = noised.loss_bound if name.endswith("_loss") else 1.0
        found[name] = unit * noise_multiplier * number
    return found


def released(means: Mapping[str, Array], public: Mapping[str, Any]) -> Measures:
    """The measures that records have, of released numbers (points,) and of rows of no client."""
    held_out = {
        name: {"sum": mean, "rows": np.ones_like(mean)}
        for name, mean in means.items()
        if name != "train_loss"
    }
    return Measures(means["train_loss"], None, None, held_out | dict(public), {}, None, None)  # type: ignore[arg-type]


def sums_of(protocol: Protocol, by_client: ByClient | None) -> Sums:
    """The sums of an evaluation that are released, without noise."""
    read, noised = protocol.measured, protocol.noised
    assert by_client is not None
    assert by_client.held_out is not None
    assert noised is not None
    losses = {"train": np.asarray(by_client.loss)}
    correct, rows = dict[str, Array](), {"train": read.train.sizes}
    for part, (loss, met) in by_client.held_out.items():
        losses[part], correct[part] = np.asarray(loss), np.asarray(met)
        rows[part] = getattr(read, part).sizes
    names = [name for name in protocol.measures if name.partition("_")[0] in losses]
    given = names, noised.loss_bound, losses, correct
    if protocol.hides_examples:
        return sums_of_rows(*given, rows)
    labels = {part: getattr(read, part).labels for part in correct}
    return sums_of_clients(*given, labels)
