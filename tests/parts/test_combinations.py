"""All settings in pairs and triples with all methods: each trains and measures, or is refused."""

import dataclasses
import functools
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.protocol.protocol import OBJECTS
from tests.catalogue import VARIANTS
from tests.settings import all_settings, half, halves, never, tried

CLIENTS, CLASSES, FEATURES = 4, 3, 2


def federation(*, validation: bool = False, tested: int = CLIENTS - 1) -> fp.Federation:
    """Four clients with one to six rows, of which `tested` have test rows."""
    rng = np.random.default_rng(0)

    def client(rows: int) -> tuple[Any, Any]:
        return rng.normal(size=(rows, FEATURES)), rng.integers(CLASSES, size=rows)

    train = [client(rows) for rows in (6, 1, 3, 4)]
    test = [client(2 * (k < tested)) for k in range(CLIENTS)]
    made = fp.Federation.from_arrays(train, test, classes=CLASSES)
    own = fp.Federation.from_arrays([client(2) for _ in range(CLIENTS)], classes=CLASSES).train
    return dataclasses.replace(made, validation=own) if validation else made


def init(key: jax.Array) -> Any:
    body, head = jax.random.split(key)
    return {
        "body": jax.random.normal(body, (FEATURES, 2)),
        "head": {"kernel": jax.random.normal(head, (2, CLASSES)), "bias": jnp.zeros(CLASSES)},
    }


def hidden(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["body"])


def apply(params: Any, x: jax.Array) -> jax.Array:
    return hidden(params, x) @ params["head"]["kernel"] + params["head"]["bias"]


def dropped(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    kept = jax.random.bernoulli(key, 0.8, (len(x), 2))
    outputs: jax.Array = (hidden(params, x) * kept) @ params["head"]["kernel"]
    return outputs + params["head"]["bias"]


def errors(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((outputs - y[:, None]) ** 2, axis=1)


def margins(outputs: jax.Array, y: jax.Array) -> Any:
    return {
        "margin": outputs.max(axis=1) - outputs[jnp.arange(len(y)), y],
        "rows": jnp.ones(len(y)),
    }


PLAIN = fp.Model(init, apply, representation=hidden)
START = init(jax.random.key(1))
LORA = fp.lora(PLAIN, START, 2, targets=["body", "head.kernel"])
MARGIN = fp.Metric(margins, lambda sums: sums["margin"] / sums["rows"], lower_is_better=True)
METRICS = dataclasses.replace(PLAIN, metrics={"margin": MARGIN})
FEDERATION, VALIDATED = federation(), federation(validation=True)


def augment(key: jax.Array, rows: jax.Array) -> jax.Array:
    return rows + 0.1 * jax.random.normal(key, rows.shape)


def ignored(progress: fp.Progress) -> None:
    del progress


BASE: dict[str, Any] = {
    "federation": FEDERATION,
    "model": PLAIN,
    "solver.learning_rate": 0.05,
    "solver.batch_size": 2,
    "solver.epochs": 2,
    "cohort.clients_per_round": 2,
    "rounds": 2,
    "evaluation.gradients": False,
}
"""The settings of the comparison that each case changes."""

OF_PARTS: dict[str, dict[str, Any]] = {
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0, "delta": 0.01},
    "target": {"measure": "train_loss", "value": 0.01},
    "attack": {"kind": "sign-flip", "share": 0.3},
    "compression": {"codec": "top-k", "share": 0.5, "bucket": 4},
    "asynchronous": {"buffer": 1},
    "population": {"step_seconds": 0.1},
}
"""The fields of an optional part of which a case changes another one."""

VALUES: dict[str, list[Any]] = {
    "federation": [
        VALIDATED,
        dataclasses.replace(FEDERATION, augment=augment),
        dataclasses.replace(FEDERATION, validation=fp.Examples(*FEDERATION.test.client(0))),
        federation(tested=0),
    ],
    "model": [
        LORA,
        METRICS,
        dataclasses.replace(PLAIN, train=dropped),
        fp.freeze(PLAIN, START, ["body"]),
        fp.mixed_precision(PLAIN),
        fp.Model(init, apply, errors),
    ],
    "rounds": [1, 3],
    "seed": [(0, 1)],
    "stop": [never],
    "initial": [START],
    "devices": [1, 2],
    "checkpoints": [True],
    "callbacks": [[fp.Callback()]],
    "on_progress": [ignored],
    "solver.learning_rate": [
        (0.02, 0.05),
        optax.linear_schedule(0.05, 0.01, 2),
        optax.linear_schedule(0.0, 0.05, 2),
    ],
    "solver.batch_size": ["all", 3],
    "solver.epochs": [1],
    "solver.steps": [1, 4],
    "solver.gamma": [0.0, 0.5, halves],
    "solver.optimizer": [optax.adam, functools.partial(optax.sgd, momentum=0.9), optax.lbfgs],
    "cohort.clients_per_round": [1, 4],
    "cohort.over_selection": [1.5],
    "cohort.min_separation": [2],
    "systems.stragglers": [0.5, 1.0],
    "systems.deadline": [0.25, 10.0],
    "systems.straggler_epochs": [half],
    "faults.norm": [1.0, math.inf],
    "target.measure": ["train_loss", "test_accuracy", "validation_loss", "test_margin"],
    "target.value": [0.9, 100.0],
    "target.lower_is_better": [True],
    "selection.measure": ["validation_accuracy", "test_accuracy", "train_loss", "test_margin"],
    "selection.patience": [1],
    "privacy.noise_multiplier": [0.0, 2.0],
    "privacy.delta": [0.001],
    "population.step_seconds": [(0.1, 0.2, 0.3, 5.0), fp.LogNormal(0.1, 1.0)],
    "population.download": [1000.0],
    "population.upload": [fp.LogNormal(1000.0, 1.0)],
    "population.available": [fp.DayNight(), fp.Intervals([0, 1], [0.0, 3.0], [6.0, 9.0], 12.0)],
    "asynchronous.most_staleness": [1],
    "aggregation.ranks": [(1, 2, 1, 2)],
    "attack.share": [0.6],
    "attack.scale": [0.1],
    "compression.share": [1.0],
    "compression.bucket": [3],
    "compression.download": [8, 16],
}
"""Values to try in place of those of `tests.settings`; those of choices are found by type."""

NEEDED: dict[str, dict[str, Any]] = {
    "asynchronous": {"population.step_seconds": 0.1},
    "cohort.over_selection": {"population.step_seconds": 0.1},
    "systems.deadline": {"population.step_seconds": 0.1},
    "systems.straggler_epochs": {"systems.stragglers": 0.5},
    "stop_at_target": {"target.measure": "train_loss"},
    "target.lower_is_better": {"target.measure": "test_margin", "model": METRICS},
    "selection": {"federation": VALIDATED},
    "privacy.epsilon": {"privacy.noise_multiplier": None},
    "privacy.capacity": {"cohort.sampling": "bernoulli"},
    "privacy.mechanism": {"cohort.sampling": "cyclic", "cohort.min_separation": 2},
    "cohort.min_separation": {"cohort.sampling": "cyclic"},
    "population.draw": {"population.step_seconds": (0.1, 0.2)},
    "aggregation.before": {"aggregation.rule": "median"},
    "aggregation.faulty": {"aggregation.rule": "trimmed-mean"},
    "aggregation.bucket": {"aggregation.rule": "median", "aggregation.before": "bucketing"},
    "aggregation.radius": {"aggregation.rule": "centred-clipping"},
    "aggregation.ranks": {"aggregation.rule": "product", "model": LORA},
    "compression.bits": {"compression.codec": "quantize"},
    "compression.rotate": {"compression.codec": "quantize"},
    "solver.steps": {"solver.epochs": None},
}
"""What a setting, or each of a part, is for, unless the case says otherwise."""


def choices(kind: Any) -> list[Any]:
    """All values of a type that has few: a choice or a switch."""
    if kind is bool:
        return [True, False]
    inner = [value for each in get_args(kind) for value in choices(each)]
    return list(get_args(kind)) if get_origin(kind) is Literal else inner


SETTINGS = {
    name: VALUES.get(name) or choices(kind) or tried(name) for name, kind in all_settings().items()
}
"""Every setting, and the values to try."""

Case = tuple[str, tuple[tuple[str, Any], ...]]
"""A method's name in the catalogue, and the settings to be changed."""


def test_every_setting_is_tried() -> None:
    assert VALUES.keys() <= SETTINGS.keys()
    assert [name for name, values in SETTINGS.items() if not values] == []
    assert {name.partition(".")[0] for name in (*NEEDED, *OF_PARTS)} <= {*OBJECTS, "stop_at_target"}


def arguments(case: Case, folder: str) -> dict[str, Any]:
    """The arguments of `simulate` of a case."""
    method, changes = case
    chosen = dict(changes)
    for name in (*chosen, *(name.partition(".")[0] for name in chosen)):
        chosen = NEEDED.get(name, {}) | chosen
    chosen = BASE | chosen
    if VARIANTS[method].method.everyone and "cohort.clients_per_round" not in dict(changes):
        chosen["cohort.clients_per_round"] = CLIENTS
    found: dict[str, Any] = {"progress": False}
    for name, value in chosen.items():
        part, _, field = name.partition(".")
        if field:
            found[part] = {**found.get(part, OF_PARTS.get(part, {})), field: value}
        else:
            found[part] = value
    for part, kind in OBJECTS.items():
        if isinstance(found.get(part), dict):
            found[part] = kind(**found[part])
    if found.pop("checkpoints", False):
        found["checkpoints"] = fp.Checkpoints(Path(folder), every=1)
    return found


def check(case: Case) -> str:
    """What a case was refused for; empty if all that it trained and measured is finite."""
    refusal = ""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the small data and the odd settings
        try:
            whole = arguments(case, folder)
            for run in fp.simulate(methods=VARIANTS[case[0]].method, **whole):
                check_run(run, whole)
        except fp.InputError as error:
            refusal = str(error)
    assert "\n" not in refusal
    return refusal


OF_OWN_MODELS = {"personal_loss", "personal_accuracy", "personal_accuracy_worst"}


def check_run(run: fp.Run, whole: dict[str, Any]) -> None:
    """All that a run measured, and its model, are finite numbers."""
    for leaf in jax.tree.leaves(run.params):
        assert np.isfinite(leaf).all(), "the model is not finite"
    data, model = whole["federation"], whole["model"]
    evaluation = whole.get("evaluation", fp.Evaluation())
    allowed = {"gamma_mean", "gamma_max", "newcomer_loss", "newcomer_accuracy"}
    if not evaluation.gradients:
        allowed |= {"gradient_variance", "dissimilarity"}
    if "privacy" in whole and whole["privacy"].noise_multiplier == 0:
        allowed |= {"epsilon"}
    if not len(data.test):
        allowed |= {"test_loss", "test_accuracy", "test_margin", "test_accuracy_se"}
    if model.correct is None:
        allowed |= {"test_accuracy", "validation_accuracy", "test_accuracy_se"}
        allowed |= {"personal_accuracy", "personal_accuracy_worst", "newcomer_accuracy"}
    for record in run.history:
        values = {**record.as_dict(), **record.metrics}
        none_yet = OF_OWN_MODELS if record.personal_clients == 0 else set()
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                assert name in allowed | none_yet, f"{name} = {value} in round {record.round}"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A method with two or three settings changed."""
    count = draw(st.integers(2, 3))
    names = st.lists(st.sampled_from(list(SETTINGS)), min_size=count, max_size=count, unique=True)
    changes = [(name, draw(st.sampled_from(SETTINGS[name]))) for name in draw(names)]
    return draw(st.sampled_from(list(VARIANTS))), tuple(changes)


FAST: list[Case] = [
    ("scaffold", (("compression.codec", "quantize"), ("faults.policy", "clip"))),
    ("ditto", (("systems.deadline", 0.25), ("population.dropout", 0.5), ("model", METRICS))),
]


@pytest.mark.parametrize("case", FAST, ids=["refused", "trained"])
def test_settings_together_train_or_are_refused(case: Case) -> None:
    assert bool(check(case)) == (case[0] == "scaffold")


# without shrinking, for which a fault would be tried a hundred times
@pytest.mark.slow
@settings(max_examples=30, phases=(Phase.generate,))
@seed(1)
@given(cases())
def test_more_settings_together_train_or_are_refused(case: Case) -> None:
    check(case)


HOW_ROUNDS_GO: dict[str, dict[str, Any]] = {
    "codec": {"compression.codec": "quantize"},
    "products": {"aggregation.rule": "product", "model": LORA},
    "clients hidden": {"privacy.unit": "client"},
    "rows hidden": {"privacy.unit": "example"},
    "clock": {"population.step_seconds": 1.0, "systems.deadline": 2.0},
    "buffer": {"asynchronous.buffer": 1},
    "given start": {"initial": START},
}
"""Settings that say how rounds go, and nothing about the steps from a model."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOW_ROUNDS_GO)
def test_fine_tuning_takes_the_same_steps_however_rounds_go(name: str) -> None:
    """From the first model, which is the same."""
    changes = {"rounds": 1, "evaluation.fine_tune": 3, "evaluation.gradients": False}
    whole = arguments(("fedavg", tuple((HOW_ROUNDS_GO[name] | changes).items())), "")
    alone = {key: whole[key] for key in ("federation", "model", "solver", "rounds", "evaluation")}
    if name == "given start":
        alone["initial"] = START
    first, expected = (
        fp.simulate(methods=fp.fedavg(), **each)[0]
        for each in (whole, alone | {"cohort": fp.Cohort(2), "progress": False})
    )
    assert expected.history[0].personal_clients == CLIENTS - 1
    assert first.history[0].personal_loss == expected.history[0].personal_loss
