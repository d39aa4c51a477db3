"""What is said of values of a wrong type: one line with the key, the value and what is allowed."""

import inspect
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox import InputError
from fedprox.algorithms import ALGORITHMS
from fedprox.datasets import DATASETS
from fedprox.experiment import (
    OPTIMIZERS,
    SCHEDULES,
    Experiment,
    apply_setting,
    keys,
    keys_of,
    parse,
    read_experiment,
    resolve,
)
from fedprox.experiment.resolved import solver_of
from fedprox.experiment.schema import named
from fedprox.experiment.sections import HEADERS, NAMED
from fedprox.loop import local
from fedprox.models import MODELS
from tests.test_cli import SMALL

KEYS: list[tuple[str, ...]] = [(key,) for key in Experiment.model_fields] + [
    (row.section, row.key) for row in keys() if row.section in HEADERS and row.section not in NAMED
]

TOML = st.recursive(
    st.sampled_from(["many", "", True, False, 0, -1, 3, 2**70, 1.5, np.inf, -np.inf, np.nan, 1e39])
    | st.dates()
    | st.integers()
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
"""Values that a TOML file can hold."""

NEEDED: dict[str, dict[str, Any]] = {
    "asynchronous": {"buffer": 1},
    "attack": {"kind": "noise", "share": 0.5},
    "compression": {"codec": "quantize"},
    "privacy": {"clip": 1.0, "noise_multiplier": 1.0},
    "selection": {"measure": "train_loss"},
}
"""What a section needs beside the key that is tried."""

LEAKS = ("Input should", "input_type", "Only integer", "unsupported operand")
"""What other libraries say."""


def said(error: InputError, key: str) -> str:
    """The text, which must be one line that names the key and is our own."""
    line = str(error)
    assert key in line
    assert line.isprintable()
    assert not [leak for leak in LEAKS if leak in line], line
    return line


@given(key=st.sampled_from(KEYS), value=TOML)
@settings(max_examples=120)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(
    key: tuple[str, ...], value: Any
) -> None:
    table = tomllib.loads(SMALL)
    if key[0] in NEEDED:
        table[key[0]] = dict(NEEDED[key[0]])
    *sections, last = key
    place = table
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    try:
        experiment = parse("a.toml", table)
        if key[0] not in ("data", "model", "method"):  # whose values are larger data and models
            resolve(experiment)
    except InputError as error:
        said(error, last)


@pytest.mark.parametrize(
    ("catalogue", "where"), [(DATASETS, "data"), (MODELS, "model"), (ALGORITHMS, "method.0")]
)
@given(data=st.data(), value=TOML)
@settings(max_examples=40)
def test_any_option_of_a_name_is_taken_or_refused_in_one_line(
    catalogue: dict[str, Callable[..., Any]], where: str, data: st.DataObject, value: Any
) -> None:
    name = data.draw(st.sampled_from([name for name in catalogue if keys_of(catalogue[name])]))
    own = keys_of(catalogue[name])
    key = data.draw(st.sampled_from(list(own)))
    needed = {k: v.get_default(call_default_factory=True) for k, v in own.items()}
    try:
        named({"name": name, **needed, key: value}, catalogue, where, object)
    except InputError as error:
        said(error, where)


@given(data=st.data(), value=TOML)
@settings(max_examples=40)
def test_any_option_of_an_optimizer_is_taken_or_refused_in_one_line(
    data: st.DataObject, value: Any
) -> None:
    name = data.draw(st.sampled_from(sorted(OPTIMIZERS)))
    keys = [*inspect.signature(OPTIMIZERS[name]).parameters, "other"]
    key = data.draw(st.sampled_from(keys))
    table = tomllib.loads(SMALL)
    batch = "all" if name in ("lbfgs", "line-search-descent") else 10
    table["solver"] |= {"optimizer": name, "batch_size": batch, "optimizer_options": {key: value}}
    try:
        solver_of(parse("a.toml", table).solver)
    except InputError as error:
        said(error, key)


@given(data=st.data(), value=TOML)
@settings(max_examples=40)
def test_any_option_of_a_schedule_is_taken_or_refused_in_one_line(
    data: st.DataObject, value: Any
) -> None:
    name = data.draw(st.sampled_from(sorted(SCHEDULES)))
    parameters = inspect.signature(SCHEDULES[name]).parameters
    key = data.draw(st.sampled_from([*parameters, "schedule", "other"]))
    table = tomllib.loads(SMALL)
    rate = {"schedule": name, **dict.fromkeys(parameters, 1), key: value}
    table["solver"]["learning_rate"] = rate
    try:
        solver_of(parse("a.toml", table).solver)
    except InputError as error:
        said(error, "")


class Junk:
    """What no setting can be."""


JUNK: list[Any] = [
    None, "x", "", b"ab", True, -1, 0, 3, 1.5, np.inf, np.nan, 10**400, 10**5000, 1j, [], ["x"],
    [None], [[1.0], [1.0, 2.0]], {}, {"a": 1}, {1.0}, object, Junk(), complex, sorted,
    np.array(3), np.array([0.5, 1.0]), np.ones((2, 2)), np.array(["a"]), iter(()),
]  # fmt: skip

PARTS: list[tuple[Any, dict[str, Any]]] = [
    (fp.Solver, {"learning_rate": 0.1, "batch_size": 10, "epochs": 1}),
    (fp.Solver, {"learning_rate": 0.1, "batch_size": "all", "steps": 1}),
    (fp.Cohort, {"clients_per_round": 2}),
    (fp.Systems, {"stragglers": 0.5}),
    (fp.Systems, {"deadline": 1.0}),
    (fp.Population, {"step_seconds": 0.1, "dropout": 0.5}),
    (fp.LogNormal, {"median": 1.0, "spread": 1.0}),
    (fp.DayNight, {"hours": 8.0}),
    (fp.Intervals, {"device": [0], "on": [0.0], "off": [1.0], "period": 2.0}),
    (fp.Faults, {"policy": "clip"}),
    (fp.Tuning, {"seeds": [0]}),
    (fp.Target, {"measure": "train_loss", "value": 0.5}),
]


@pytest.mark.parametrize(("part", "settings_"), PARTS)
def test_any_object_is_taken_or_refused_in_one_line(part: Any, settings_: dict[str, Any]) -> None:
    for name in inspect.signature(part).parameters:
        for value in JUNK:
            try:
                part(**settings_ | {name: value})
            except InputError as error:
                # a target is named by its key in experiment files
                said(error, {"value": "target_loss"}.get(name, name))


class Begun(Exception):
    """All arguments have been taken."""


def begun(*_: object) -> None:
    raise Begun


SIMULATE: dict[str, Any] = {
    "methods": fp.fedprox(mu=0.1),
    "solver": fp.Solver(0.1, 10, epochs=1),
    "cohort": fp.Cohort(2),
    "systems": fp.Systems(),
    "rounds": 3,
}


@pytest.mark.parametrize(
    "name", sorted(inspect.signature(fp.simulate).parameters.keys() - {"on_progress"})
)
def test_any_argument_is_taken_or_refused_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "copy_to_devices", begun)
    federation = fp.datasets.synthetic(clients=3)
    arguments = {"federation": federation, "model": fp.models.logistic(federation), **SIMULATE}
    for value in JUNK:
        with pytest.raises((InputError, Begun)) as raised:
            fp.simulate(**arguments | {name: value})
        if isinstance(raised.value, InputError):
            said(raised.value, name)


QUANTIZED = partial(fp.Compression, "quantize")
PRIVATE = partial(fp.Privacy, 1.0, noise_multiplier=1.0)


def simulate(**wrong: Any) -> None:
    federation = fp.datasets.synthetic(clients=3)
    model = fp.models.logistic(federation)
    fp.simulate(**{"federation": federation, "model": model, **SIMULATE} | wrong)


def solver(**wrong: Any) -> None:
    fp.Solver(**{"learning_rate": 0.1, "batch_size": 10, "epochs": 2} | wrong)


@pytest.mark.parametrize(
    ("make", "wrong", "line"),
    [
        (simulate, {"methods": "fedavg"}, "methods = 'fedavg'; it must be an algorithm, such as "),
        (simulate, {"methods": fp.fedavg}, "methods = fedavg, a function that was not called; it "),
        (simulate, {"methods": [fp.fedavg(), fp.fedprox]}, "methods[1] = fedprox, a function that"),
        (simulate, {"methods": []}, "methods: none given; it must be an algorithm, such as fedpro"),
        (simulate, {"cohort": fp.Cohort}, "cohort = Cohort, a class that was not called; it must "),
        (simulate, {"faults": "drop"}, "faults = 'drop'; it must be a fedprox.Faults or None"),
        (simulate, {"model": fp.models.logistic}, "model = logistic, a function that was not call"),
        (simulate, {"evaluation": 5}, "evaluation = 5; it must be a fedprox.Evaluation"),
        (simulate, {"checkpoints": "run"}, "checkpoints = 'run'; it must be a fedprox.Checkpoints"),
        (simulate, {"seed": "12"}, "seed = '12'; it must be a whole number of at least 0"),
        (solver, {"epochs": None}, "solver: neither epochs nor steps is given; give one of them"),
        (solver, {"steps": 5}, "solver: epochs = 2 and steps = 5; give either epochs or steps, an"),
        (solver, {"learning_rate": np.inf}, "solver.learning_rate = inf; it must be finite and ab"),
        (solver, {"learning_rate": [0.1, np.nan]}, "solver.learning_rate = nan; it must be finite"),
        (solver, {"learning_rate": "0.1"}, "solver.learning_rate = '0.1'; it must be a number or "),
        (solver, {"learning_rate": 1e-40}, "solver.learning_rate = 1e-40; it is beyond single pre"),
        (solver, {"clip": "10"}, "solver.clip = '10'; it must be a number above 0"),
        (solver, {"weight_decay": True}, "solver.weight_decay = True; it must be a number of at l"),
        (solver, {"gamma": "0.1"}, "solver.gamma = '0.1'; it must be a number from 0 to 1"),
        (solver, {"batch_size": 2.5}, "solver.batch_size = 2.5; it must be a whole number of at l"),
        (fp.Cohort, {"clients_per_round": True}, "cohort.clients_per_round = True; it must be a w"),
        (partial(fp.Cohort, 2), {"over_selection": 11}, "cohort.over_selection = 11; it must be f"),
        (QUANTIZED, {"bits": 17}, "compression.bits = 17; it must be a whole number from 2 to 16"),
        (QUANTIZED, {"rotate": 1}, "compression.rotate = 1; it must be True or False"),
        (partial(fp.Attack, "noise"), {"share": 0.0}, "attack.share = 0.0; it must be above 0 and"),
        (fp.Systems, {"deadline": "soon"}, "systems.deadline = 'soon'; it must be a number above "),
        (
            fp.Systems,
            {"stragglers": 0.5, "deadline": 1.0},
            "systems: stragglers = 0.5 and deadline",
        ),
        (
            fp.Systems,
            {"straggler_epochs": max, "deadline": 1.0},
            "systems.straggler_epochs: leave ",
        ),
        (PRIVATE, {"adaptive_clip": True}, "privacy.adaptive_clip = True; it must be a fedprox.Ad"),
    ],
)
def test_a_setting_is_what_its_type_allows(
    make: Callable[..., Any], wrong: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError) as raised:
        make(**wrong)
    assert str(raised.value).startswith(line)


def test_settings_hold_pythons_numbers() -> None:
    three: Any = np.int64(3)
    true: Any = np.True_
    assert type(fp.Cohort(three).clients_per_round) is int
    assert type(fp.Compression("sign", rotate=true).rotate) is bool


def test_an_optimizer_that_fails_is_named() -> None:
    big = partial(optax.sgd, momentum="big")
    with pytest.raises(
        InputError, match=r"^solver.optimizer = sgd momentum=big; its update fails: "
    ):
        fp.Solver(0.1, 10, epochs=1, optimizer=big)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("rounds = 4", "rouds = 4"), "the file: unknown key 'rouds'; did you mean 'rounds'?"),
        (('[[method]]\nname = "fedavg"\n\n[[method]]', "[method]"), "method: write [[method]], wi"),
        (("[cohort]", "[[cohort]]"), "cohort = [{'clients_per_round': 3}]; it must be a section, "),
        (("[cohort]", "[cohorts]"), "the file: unknown key 'cohorts'; did you mean 'cohort'?"),
        (("[cohort]\nclients_per_round = 3", ""), "the file: the section [cohort] is missing"),
        (("[[method]]\nname", "[[methods]]\nname"), "the file: unknown key 'methods'; did you "),
        (('name = "synthetic"', 'nmae = "synthetic"'), "data: the key 'name' is missing (is 'nmae"),
        (
            ("epochs = 2", 'epochs = 2\noptimizer_options = {momentum = "big"}'),
            "solver.optimizer_options.momentum = 'big'; it must be a number",
        ),
        (("seed = [0, 1]", "seed = [0, 1.5]"), "seed = [0, 1.5]; it must be a whole number or a "),
        (("rounds = 4", "rounds = true"), "rounds = True; it must be a whole number"),
    ],
)
def test_a_file(change: tuple[str, str], line: str, tmp_path: Path) -> None:
    text = SMALL.replace(*change)
    assert text != SMALL
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InputError) as raised:
        resolve(read_experiment(tmp_path / "a.toml"))
    assert str(raised.value).removeprefix(f"{tmp_path / 'a.toml'}: ").startswith(line)


@pytest.mark.parametrize("index", ["2", "-1", "x", "9" * 5000])
def test_a_setting_outside_a_list(index: str) -> None:
    with pytest.raises(InputError, match=r"is not in the list; it must be a number from 0 to 1$"):
        apply_setting(tomllib.loads(SMALL), f"method.{index}.mu=1")
    with pytest.raises(InputError, match="is not in the list; the list is empty"):
        apply_setting({"seed": []}, f"seed.{index}=1")
