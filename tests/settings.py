"""Every setting of `simulate` with values other than its default, for tests that try all of them.

A new parameter, or a new field of a part, must be entered here: `uncovered` names what is missing.
"""

import dataclasses
import inspect
from functools import partial
from typing import Any, get_type_hints

import jax
import numpy as np
import optax

import fedprox as fp
from fedprox.parts import robust
from fedprox.protocol.protocol import OBJECTS
from tests.objectives import MODEL, federation

FEDERATION = federation()
CLIENTS = len(FEDERATION)

BASE: dict[str, Any] = {
    "federation": FEDERATION,
    "model": MODEL,
    "methods": fp.fedavg(),
    "solver": fp.Solver(0.1, 3, epochs=2),
    "cohort": fp.Cohort(4),
    "rounds": 5,
    "evaluation": fp.Evaluation(gradients=False),
    "progress": False,
}
"""The settings that a case does not change: the federation, model, cohort, mini-batches, steps and
measures of every test that needs no others, so that tests share compiled programs."""


SELDOM: dict[str, Any] = {"evaluation": fp.Evaluation(every=2, gradients=False)}
"""Measures after every second round."""


def runs(**changes: Any) -> list[fp.Run]:
    """The runs of `BASE` with changes."""
    return fp.simulate(**BASE | changes)


ADAPTERS = fp.lora(MODEL, MODEL.init(jax.random.key(1)), rank=2)
NOISED: dict[str, Any] = {"cohort": fp.Cohort(3, "bernoulli")}


def half(straggler: Any) -> int:
    """Half of a straggler's epochs."""
    return max(1, straggler.epochs // 2)


def halves(t: int, clients: Any) -> Any:
    """The gammas of a round's clients."""
    del t
    return np.full(len(clients), 0.5)


def never(record: fp.Record) -> bool:
    """No record ends a run."""
    del record
    return False


def privacy(clip: float = 1.0, delta: float = 0.01, **settings: Any) -> fp.Privacy:
    """Privacy with few releases, whose accounting is fast."""
    return fp.Privacy(clip, delta=delta, **{"noise_multiplier": 1.0} | settings)


ROBUST: Any = list(robust.ROBUST)

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a sweep": {"methods": fp.fedprox(mu=[0.0, 1.0]), "solver": fp.Solver([0.1, 0.2], 3, epochs=2)},
    "a schedule": {"solver": fp.Solver(optax.cosine_decay_schedule(0.1, 5), "all", steps=2)},
    "a decay": {"solver": fp.Solver(0.1, 3, epochs=2, learning_rate_decay=0.9)},
    "weight decay and a clip": {"solver": fp.Solver(0.1, 3, epochs=2, weight_decay=0.01, clip=0.5)},
    "momentum": {"solver": fp.Solver(0.1, 3, epochs=2, optimizer=partial(optax.sgd, momentum=0.9))},
    "a line search": {"solver": fp.Solver(0.1, "all", steps=2, optimizer=fp.line_search_descent)},
    "a stop rule": {
        "solver": fp.Solver(0.1, 3, epochs=2, gamma=halves),
        "evaluation": fp.Evaluation(client_records=True),
    },
    "draws with replacement": {"cohort": fp.Cohort(4, "proportional")},
    "draws of any number": {"cohort": fp.Cohort(2, "bernoulli")},
    "over-selection": {
        "cohort": fp.Cohort(2, over_selection=2.0),
        "population": fp.Population(step_seconds=fp.LogNormal(1.0, 0.5)),
    },
    "stragglers": {"systems": fp.Systems(stragglers=0.5, straggler_epochs=half)},
    "a deadline": {
        "systems": fp.Systems(deadline=4.0),
        "methods": fp.fedprox(mu=0.5),
        "population": fp.Population(step_seconds=1.0),
    },
    "faults that are clipped": {"faults": fp.Faults("clip", norm=1.0)},
    "faults that are dropped": {"faults": fp.Faults(), "methods": fp.scaffold()},
    "records of clients": {
        "evaluation": fp.Evaluation(gradients=False, by_client=True, client_records=True)
    },
    "some rows of some clients": {"evaluation": fp.Evaluation(rows=2, clients=3)},
    "the cohort's model": {"evaluation": fp.Evaluation(model="cohort", gradients=False)},
    "all clients' model": {"evaluation": fp.Evaluation(model="clients", gradients=False)},
    "fine-tuning": {"evaluation": fp.Evaluation(fine_tune=2, gradients=False)},
    "client state on disk": {"methods": fp.feddyn(alpha=0.1), "client_store": "disk"},
    "several seeds": {"seed": [3, 4]},
    "a target": {
        "target": fp.Target("train_loss", 1e-3, lower_is_better=True),
        "stop_at_target": "any",
    },
    "the best model": {
        "selection": fp.Selection(keep="best", measure="train_loss", patience=4),
        "stop": never,
    },
    "given parameters": {"initial": MODEL.init(jax.random.key(2))},
    "private clients": NOISED
    | {
        "privacy": privacy(0.5, 0.01, adaptive_clip=fp.AdaptiveClip(), capacity=4),
    },
    "correlated noise": {
        "cohort": fp.Cohort(3, "cyclic", min_separation=2),
        "privacy": privacy(mechanism="banded"),
    },
    "private measures": {
        "cohort": fp.Cohort(CLIENTS),
        "privacy": privacy(measures=fp.NoisedMeasures(4.0, noise_multiplier=9.0)),
    },
    "two noised sums": NOISED | {"privacy": privacy(), "methods": fp.feddane(mu=0.1)},
    "private examples": {
        "privacy": privacy(unit="example", epsilon=8.0, noise_multiplier=None, accountant="rdp")
    },
    "private clients that trust nobody": NOISED | {"privacy": privacy(trust="none")},
    "slow devices": {
        "population": fp.Population(
            *([1.0, 2.0] * (CLIENTS // 2), 100.0, 50.0, 0.1),
            available=fp.DayNight(),
            dropout=0.2,
            draw=True,
        )
    },
    "no barrier": {
        "asynchronous": fp.Asynchronous(2, "hinge", a=1.0, b=1, most_staleness=9, adds="models"),
        "population": fp.Population(step_seconds=fp.LogNormal(1.0, 0.5)),
    },
    "an attack": {"attack": fp.Attack("noise", share=0.3, scale=0.5, seed=1)},
    "quantized": {"compression": fp.Compression("quantize", bits=4, bucket=8, rotate=True)},
    "top-k, seldom evaluated": {
        "compression": fp.Compression("top-k", share=0.5, error_feedback=True, download=8),
        "evaluation": fp.Evaluation(every=4, gradients=False),
    },
    "a model of each client": {"methods": fp.ditto(lam=0.5)},
    "layers of each client": {"methods": fp.fedper(parts=["head"])},
    "a model of each cluster": {"methods": fp.ifca(k=2)},
    "a first exchange": {"methods": fp.mime(beta=0.5)},
    "adapters": {
        "model": ADAPTERS,
        "aggregation": fp.Aggregation("product", ranks=[1, 2] * (CLIENTS // 2)),
    },
    "mixing": {"aggregation": fp.Aggregation("median", faulty=0.3, before="mixing")},
    "krum": {"aggregation": fp.Aggregation("krum", faulty=0.4)},
    **{
        f"{rule} of buckets": {
            "aggregation": fp.Aggregation(
                rule, faulty=0.3, before="bucketing", bucket=3, radius=0.3
            )
        }
        for rule in ROBUST
    },
    "attackers that agree": {
        "aggregation": fp.Aggregation("multi-krum", faulty=0.3),
        "attack": fp.Attack("a-little-is-enough", share=0.3),
    },
}
"""Cases by name: what differs from `BASE`."""

TOGETHER = [
    ("plain",),
    (
        *("stragglers", "several seeds", "given parameters", "krum of buckets"),
        "some rows of some clients",
    ),
    ("a sweep", "draws with replacement", "an attack"),
    ("a schedule", "draws of any number", "quantized", "faults that are clipped"),
    ("a decay", "over-selection", "records of clients", "multi-krum of buckets"),
    (
        *("weight decay and a clip", "a deadline", "the cohort's model"),
        "centred-clipping of buckets",
    ),
    ("momentum", "all clients' model", "median of buckets"),
    ("faults that are dropped", "trimmed-mean of buckets", "a stop rule"),
    ("a line search", "slow devices", "mixing", "layers of each client"),
    ("no barrier",),
    ("private clients",),
    ("correlated noise",),
    ("private measures",),
    ("two noised sums",),
    ("private examples", "geometric-median of buckets"),
    ("private clients that trust nobody",),
    ("a model of each client", "krum", "the best model"),
    ("a model of each cluster", "a target"),
    ("a first exchange", "fine-tuning"),
    ("client state on disk", "attackers that agree"),
    ("top-k, seldom evaluated",),
    ("adapters",),
]
"""Each case once, beside others that fit it. Those whose rounds are never empty, that hide clients
or that are seldom evaluated stand alone, since less can be said of them."""


def together(names: tuple[str, ...]) -> dict[str, Any]:
    """What differs from `BASE` in a group of cases."""
    changes = [item for name in names for item in CASES[name].items()]
    assert len(dict(changes)) == len(changes), f"two of {names} have the same argument"
    return dict(changes)


GROUPS = {", ".join(names): together(names) for names in TOGETHER}
"""What differs from `BASE` in each group. A run compiles its programs, so a test of what holds in
every setting has a run of each group."""


NO_SETTINGS = ("methods", "progress")
"""Arguments of `simulate` that are no settings: the methods, and whether stderr shows progress."""

GIVEN = ("federation", "model", "rounds", "devices", "checkpoints", "callbacks", "on_progress")
"""Settings that no case changes, or that results do not depend on."""


def all_settings() -> dict[str, Any]:
    """The type of every setting of `simulate`, where parts have a setting for each field."""
    hints, kinds = get_type_hints(fp.simulate), dict[str, Any]()
    for name in inspect.signature(fp.simulate).parameters:
        if name in ("federation", "model") or name not in OBJECTS:
            kinds[name] = hints[name]
            continue
        of_part = get_type_hints(OBJECTS[name])
        kinds |= {f"{name}.{f.name}": of_part[f.name] for f in dataclasses.fields(OBJECTS[name])}
    return {name: kind for name, kind in kinds.items() if name not in NO_SETTINGS}


def tried(setting: str) -> list[Any]:
    """The values other than its default that cases give a setting."""
    name, _, field = setting.partition(".")
    given = [case[name] for case in CASES.values() if name in case]
    if not field:
        return given
    (default,) = (f.default for f in dataclasses.fields(OBJECTS[name]) if f.name == field)
    found = list[Any]()
    for each in given:
        if (value := getattr(each, field)) not in (default, *found):
            found.append(value)
    return found


def uncovered() -> list[str]:
    """The settings that no case changes."""
    return [name for name in all_settings() if name not in GIVEN and not tried(name)]
