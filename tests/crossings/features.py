"""The features of the table of crossings: what each sets, and what must hold of a method beside it.

All share one federation, model, solver and cohort, so that a method's programs are compiled once.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.model_state import with_own_layers
from fedprox.deployment.policy import REPORTS, Policy
from fedprox.errors import InputError
from fedprox.experiment import parse, resolve
from fedprox.parts.compatible import Case, check_case
from fedprox.protocol.cohort import Cohort, Drawn
from fedprox.protocol.protocol import Protocol
from tests.catalogue import Variant
from tests.crossings.checks import (
    DEVICES,
    LOST,
    require_empty_round,
    require_resumed,
    with_empty_round,
)
from tests.deployment.federations import WITH_STATE, deployed, nodes_of, simulated, table_of
from tests.deployment.test_same_results import check
from tests.parts.privacy.releases import per_round, released, require_bounded

FEATURES, CLASSES, HIDDEN = 60, 10, 6


def init(key: jax.Array) -> Any:
    body, head = jax.random.split(key)
    return {
        "body": 0.1 * jax.random.normal(body, (FEATURES, HIDDEN)),
        "head": 0.1 * jax.random.normal(head, (HIDDEN, CLASSES)),
    }


def represent(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["body"])


def apply(params: Any, x: jax.Array) -> jax.Array:
    outputs: jax.Array = represent(params, x) @ params["head"]
    return outputs


MODEL = fp.Model(init, apply, representation=represent)


def model(federation: fp.Federation) -> fp.Model:
    """A body and a head, for methods that tell them apart."""
    del federation
    return MODEL


def normalized(federation: fp.Federation) -> fp.Model:
    """The same with batch normalization between them, whose statistics are a state."""
    del federation
    return NORMALIZED


def init_normalized(key: jax.Array) -> Any:
    return init(key) | {"norm": {"scale": jnp.ones(HIDDEN)}}


def statistics(key: jax.Array) -> Any:
    del key
    return {"norm": {"mean": jnp.zeros(HIDDEN), "var": jnp.ones(HIDDEN)}, "steps": jnp.int32(0)}


def apply_normalized(params: Any, state: Any, x: jax.Array) -> jax.Array:
    norm = state["norm"]
    unit = (x @ params["body"] - norm["mean"]) / jnp.sqrt(norm["var"] + 0.01)
    outputs: jax.Array = jnp.tanh(params["norm"]["scale"] * unit) @ params["head"]
    return outputs


def train_normalized(params: Any, state: Any, x: jax.Array, key: Any, mask: Any) -> Any:
    del key
    h = x @ params["body"]
    mean, var = (f(h, axis=0, where=mask[:, None]) for f in (jnp.mean, jnp.var))
    now = {"norm": {"mean": mean, "var": var}}
    moved = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, {"norm": state["norm"]}, now)
    return apply_normalized(params, now, x), moved | {"steps": state["steps"] + 1}


NORMALIZED = fp.Model(init_normalized, apply_normalized, train=train_normalized, state=statistics)
MODEL_NAME, METHOD_NAME = f"{__name__}:model", "tests.crossings.method:everything"
TABLE = table_of(
    cohort={"clients_per_round": 4},
    model={"name": MODEL_NAME},
    faults={"policy": "drop", "norm": math.inf},
    evaluation={"every": 1, "gradients": False},
)
"""All clients take part, two on each node, so that nodes share a program."""

POLICY = Policy(
    methods=[*Policy().methods, METHOD_NAME], models=[MODEL_NAME, WITH_STATE], report=list(REPORTS)
)
ROUNDS, CLIENTS = TABLE["rounds"], 4
EMPTY = 1
"""The round without clients, and how many rounds are done when a run is cut off."""

OTHER = 2
"""The client that is faulty, or hidden, in some rounds."""


def settings_of(method: fp.Algorithm) -> dict[str, Any]:
    """The arguments of `simulate` that the table describes, but for methods."""
    settings = base() | {"progress": False}
    # the screening of updates does not fit methods that need everyone
    return settings | {"faults": None} if method.everyone else settings


def base() -> dict[str, Any]:
    return _of_model(TABLE["model"]["name"])


@functools.cache
def _of_model(name: str) -> dict[str, Any]:
    table = TABLE | {"model": {"name": name}, "method": [{"name": "fedavg"}]}
    return resolve(parse("test", table)).settings


@contextmanager
def with_state() -> Iterator[None]:
    """The table's model has a state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLE, "model", {"name": WITH_STATE})
        yield


def runs(method: fp.Algorithm, **options: Any) -> list[fp.Run]:
    """The runs of a method."""
    return fp.simulate(methods=method, **settings_of(method) | options)


@contextmanager
def undrawn(client: int) -> Iterator[None]:
    """No cohort but the first, which decides on shapes, has a client; the order is another."""
    draw = Cohort.draw

    def without(cohort: Cohort, seed: int, t: int, *others: Any, **options: Any) -> Drawn:
        drawn = draw(cohort, seed, t, *others, **options)
        kept = np.flatnonzero((drawn.clients != client) | (t == 0))[::-1]
        return Drawn(drawn.clients[kept], drawn.mass[kept])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cohort, "draw", without)
        yield


def require_close(ours: list[fp.Run], theirs: list[fp.Run]) -> None:
    """Assert that runs end with the same models, and have the same losses."""
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(*map(jax.tree.leaves, (a.params, b.params)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
            assert np.isfinite(x).all()
        for one, other in zip(a.history, b.history, strict=True):
            for name in ("train_loss", "personal_loss"):
                x, y = (getattr(each, name) or 0.0 for each in (one, other))
                np.testing.assert_allclose(x, y, rtol=1e-4, err_msg=name)


def deployment(variant: Variant, folder: Path) -> None:
    """A deployment has the results of the simulation."""
    table = TABLE | {"method": [variant.keys]}
    nodes = nodes_of(table, folder, policy=POLICY)
    ours = deployed(table, [node.answer for node in nodes])
    check(simulated(table), ours)


LOSSLESS = {"compression": fp.Compression("top-k", share=1.0, error_feedback=True)}


def codec(variant: Variant, folder: Path) -> None:
    """A codec by which all numbers arrive changes nothing."""
    del folder
    require_close(runs(variant.method, **LOSSLESS), runs(variant.method))


SCREENED = {"faults": fp.Faults("drop", norm=math.inf)}


def fault(variant: Variant, folder: Path) -> None:
    """A client whose rows are no numbers is as one that is not drawn."""
    del folder
    federation: fp.Federation = base()["federation"]
    offsets, x = federation.train.offsets, federation.train.x.copy()
    x[offsets[OTHER] : offsets[OTHER + 1]] = np.nan
    train = fp.Rows(x, federation.train.y, offsets)
    spoiled = SCREENED | {"federation": replace(federation, train=train)}
    found = runs(variant.method, **spoiled)
    with undrawn(OTHER):
        absent = runs(variant.method, **spoiled)
    require_close(found, absent)
    for a, b in zip(found, absent, strict=True):
        assert a.faulty == ROUNDS * (b.faulty or 0) > 0
        assert [r.faulty_clients for r in a.history] == [[], *[[str(OTHER)]] * ROUNDS]
        assert {r.unmeasured for r in a.history} == {1}


DROPOUT = {"population": replace(DEVICES, dropout=LOST)}


def empty_round(variant: Variant, folder: Path) -> None:
    """A round without clients changes nothing, and the run goes on."""
    del folder
    options = settings_of(variant.method) | DROPOUT | {"methods": variant.method}
    require_empty_round(EMPTY, with_empty_round(EMPTY, **options))


def checkpoint(variant: Variant, folder: Path) -> None:
    """A run that is killed and goes on has the bits, and the times, of a whole one."""
    options = settings_of(variant.method) | {"methods": variant.method, "population": DEVICES}
    once = fp.simulate(**options)
    for found in once:
        times = [record.time or 0.0 for record in found.history]
        # training in one place takes none of the clients' time
        assert variant.method.pooled or all(a < b for a, b in itertools.pairwise(times))
    require_resumed(once, EMPTY, options, folder)


CLIP = 0.01
"""A clipping norm that is below the norms of all messages."""

HIDDEN_CLIENTS: dict[str, Any] = {
    "privacy": fp.Privacy(CLIP, noise_multiplier=0.0, accountant="rdp"),
    "cohort": fp.Cohort(CLIENTS, "bernoulli"),
}


def privacy(variant: Variant, folder: Path) -> None:
    """A client moves a noiseless release by at most the clipping norm, beside any others."""
    del folder
    method = variant.method
    options = settings_of(method) | HIDDEN_CLIENTS | {"seed": [0, 1]}
    more = released(method, CLIENTS, **options)
    with undrawn(OTHER):
        less = released(method, CLIENTS, **options)
    require_bounded(less, more, CLIP, 2 * ROUNDS * per_round(method))


class Feature(NamedTuple):
    """A column of the table.

    Attributes:
        check: (variant of a method, an empty folder) -> nothing, if what must hold does.
        settings: What it sets.
        place: Where rounds are computed.
    """

    check: Callable[[Variant, Path], None]
    settings: Mapping[str, Any] = MappingProxyType({})
    place: Literal["simulation", "deployment"] = "simulation"

    def refusal(self, method: fp.Algorithm) -> str:
        """The line by which the library's own table refuses a method beside it; "" if it fits."""
        defaults = {each.name: each.default for each in fields(Protocol)}
        settings = SimpleNamespace(**defaults | settings_of(method) | dict(self.settings))
        method = with_own_layers(method, settings.model.shapes)
        try:
            check_case(Case(settings, method, method.solver(settings.solver), self.place))
        except InputError as error:
            return str(error)
        return ""


TABLE_OF_FEATURES = {
    "checkpoint": Feature(checkpoint),
    "fault": Feature(fault, SCREENED),
    "empty round": Feature(empty_round, DROPOUT),
    "deployment": Feature(deployment, place="deployment"),
    "codec": Feature(codec, LOSSLESS),
    "privacy": Feature(privacy, HIDDEN_CLIENTS),
}
"""The features by name. A new one is entered here, and is tried with every method."""
