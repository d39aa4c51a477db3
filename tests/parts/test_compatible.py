"""What goes with what: each row of the table refuses its example, of which no half is refused."""

import dataclasses
import inspect
import itertools
from types import SimpleNamespace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.algorithms import capabilities
from fedprox.algorithms.base import Memory
from fedprox.algorithms.capabilities import Capability
from fedprox.parts import compatible
from fedprox.parts.compatible import ROWS, Case, Chosen, Row, check_case
from fedprox.protocol.protocol import Protocol
from tests.changes import changed
from tests.model import batch_norm
from tests.objectives import MODEL
from tests.settings import ADAPTERS, BASE, FEDERATION, half, halves, privacy

STEPS = {"solver": fp.Solver(0.1, "all", steps=2, gamma=0.5), "evaluation": fp.Evaluation()}
CLOCK = fp.Population(step_seconds=1.0)
BUFFER = {"asynchronous": fp.Asynchronous(1), "population": CLOCK}
CYCLIC = {"cohort": fp.Cohort(3, sampling="cyclic", min_separation=2)}
TOP_K = fp.Compression("top-k", share=0.5)
MEASURES = fp.NoisedMeasures(8.0, noise_multiplier=1.0)
PIXELS = fp.Federation.from_arrays([(np.ones((2, 3)), np.zeros((2, 3), int))] * 6)
OF_PIXELS = fp.Model(lambda _: {"w": jnp.ones(2)}, lambda params, x: x[..., None] * params["w"])


def augmented(key: Any, rows: Any) -> Any:
    del key
    return rows


def random(params: Any, x: Any, key: Any) -> Any:
    del key
    return MODEL.apply(params, x)


def doubled(params: Any) -> Any:
    return jax.tree.map(lambda w: 2 * w, params)


def counted(state: Any, hparams: Any, context: Any, params: Any) -> Any:
    del state, hparams, params
    return context.memory + 1


COUNT = Memory(init=lambda state, context: jnp.int32(0), update=counted)  # noqa: ARG005


OF_METHODS: dict[str, fp.Algorithm] = {
    "POOLED": fp.centralised(),
    "EVERYONE": fp.scaffnew(p=0.5),
    "DROPS": fp.fedavg(),
    "SEVERAL_STARTS": fp.ifca(2),
    "EXCHANGES": fp.feddane(0.1),
    "GRADIENT": fp.scaffold(option=1),
    "LOSS": fp.qffl(1.0),
    "LABELS": fp.fedlc(1.0),
    "PROBES": fp.ifca(2),
    "OBJECTIVE": fp.moon(1.0),
    "WHOLE_BATCHES": fp.fedsam(0.1),
    "REMEMBERS": fp.fedprox(0.1)._replace(client=fp.fedprox(0.1).client._replace(memory=COUNT)),
    "ADAPTS": fp.fedprox(0.1, adapt=True),
    "KEEPS_STATE": fp.scaffold(),
    "MESSAGE_STATE": fp.moon(1.0),
    "OWN_MODELS": fp.ditto(0.5),
    "SECOND_PROBLEM": fp.ditto(0.5),
    "OWN_PARTS": fp.fedper(["head"]),
    "OTHER_MESSAGE": fp.fednova(0.1),
    "OTHER_UPDATE": fp.fedopt(optax.adam, server_learning_rate=0.1),
    "NOT_PRIVATE": fp.fednova(0.1),
}
"""A method with each capability."""


def standardized(by: Literal["federation", "client"]) -> fp.Federation:
    """Clients whose rows are those of a table that is standardized."""
    columns = fp.Columns((fp.Column("age", "number"),), fp.Column("ill", "boolean"), by)
    return dataclasses.replace(FEDERATION, columns=columns)


OF_SETTINGS: dict[str, dict[str, Any]] = {
    "solver.gamma": STEPS,
    "GAMMAS": {"solver": fp.Solver(0.1, 3, epochs=2, gamma=halves)},
    "LINE_SEARCH": {
        "solver": fp.Solver(0.1, "all", steps=2, optimizer=fp.line_search_descent),
    },
    "initial": {"initial": MODEL.init(jax.random.key(2))},
    "AUGMENTATION": {"federation": dataclasses.replace(FEDERATION, augment=augmented)},
    "ALL_STANDARDIZE": {"federation": standardized("federation")},
    "OWN_STANDARDIZE": {"federation": standardized("client")},
    "RANDOM_OUTPUTS": {"model": dataclasses.replace(MODEL, train=random)},
    "MOVING_STATE": {"model": batch_norm.MODEL},
    "NO_ADAPTERS": {"model": MODEL},
    "OTHER_MESSAGES": {"method": fp.fednova(0.1)},
    "COMPUTED_MODEL": {"changes": {"server.params": doubled}},
    "OTHER_EVALUATED": {"changes": {"server.evaluated": doubled}},
    "NOT_UNIFORM": {"cohort": fp.Cohort(6, "bernoulli")},
    "CYCLIC": CYCLIC,
    "NOT_CYCLIC": {"cohort": fp.Cohort(3)},
    "REPLACED": {"cohort": fp.Cohort(4, "proportional")},
    "SOME_CLIENTS": {"cohort": fp.Cohort(4)},
    "OVER_SELECTION": {"cohort": fp.Cohort(4, over_selection=1.5), "population": CLOCK},
    "STRAGGLERS": {"systems": fp.Systems(0.5)},
    "systems.straggler_epochs": {"systems": fp.Systems(0.5, straggler_epochs=half)},
    "systems.deadline": {"systems": fp.Systems(deadline=9.0), "population": CLOCK},
    "population": {"population": CLOCK},
    "NO_POPULATION": {"population": None},
    "population.available": {"population": fp.Population(1.0, available=fp.DayNight())},
    "DROPOUT": {"population": fp.Population(1.0, dropout=0.1)},
    "asynchronous": BUFFER,
    "ADDS_MODELS": BUFFER | {"asynchronous": fp.Asynchronous(1, adds="models")},
    "COMPARES": {"faults": fp.Faults()},
    "CLIPPED": {"faults": fp.Faults("clip")},
    "LEFT_OUT": {"faults": fp.Faults()},
    "compression": {"compression": TOP_K},
    "compression.error_feedback": {"compression": dataclasses.replace(TOP_K, error_feedback=True)},
    "compression.download": {"compression": dataclasses.replace(TOP_K, download=8)},
    "RULE": {"aggregation": fp.Aggregation("median")},
    "PRODUCT": {"aggregation": fp.Aggregation("product"), "model": ADAPTERS},
    "BUCKETS": {"aggregation": fp.Aggregation("median", before="bucketing")},
    "aggregation.ranks": {
        "aggregation": fp.Aggregation("product", ranks=[1, 2] * 3),
        "model": ADAPTERS,
    },
    "attack": {"attack": fp.Attack("label-flip", share=0.3)},
    "LIES": {"attack": fp.Attack("sign-flip", share=0.3)},
    "privacy": {"privacy": {"unit": "example"}},
    "EXACT": {"privacy": {"unit": "example"}},
    "privacy.measures": {
        "privacy": {"measures": MEASURES},
        "cohort": fp.Cohort(len(FEDERATION)),
    },
    "REPLACES": {"privacy": {"accountant": "rdp"}, "cohort": fp.Cohort(4)},
    "SEVERAL_LABELS": {"privacy": {"unit": "example"}, "federation": PIXELS, "model": OF_PIXELS},
    "GRADIENTS": {"evaluation": fp.Evaluation()},
    "METRICS": {"model": dataclasses.replace(MODEL, metrics={"f1": fp.metrics.f1()})},
    "CLIENTS": {"privacy": {"noise_multiplier": 0.0}},
    "OF_ROWS": {"privacy": {"unit": "example"}},
    "privacy.adaptive_clip": {
        "privacy": {"noise_multiplier": 0.0, "adaptive_clip": fp.AdaptiveClip()},
    },
    "CORRELATED": {"privacy": {"mechanism": "banded"}} | CYCLIC,
    "OWN_NOISE": {"privacy": {"trust": "none"}},
    "OTHER_MODEL": {"evaluation": fp.Evaluation(model="cohort")},
    "LAST_MODELS": {"evaluation": fp.Evaluation(model="clients")},
    "evaluation.gradients": {"evaluation": fp.Evaluation()},
    "NO_GRADIENTS": {"evaluation": fp.Evaluation(gradients=False)},
    "evaluation.rows": {"evaluation": fp.Evaluation(rows=2)},
    "evaluation.clients": {"evaluation": fp.Evaluation(clients=3)},
    "evaluation.fine_tune": {"evaluation": fp.Evaluation(fine_tune=2)},
    "evaluation.by_client": {"evaluation": fp.Evaluation(by_client=True)},
    "evaluation.client_records": {"evaluation": fp.Evaluation(client_records=True)},
    "CHOICE": {"selection": fp.Selection(keep="best", measure="train_loss")},
    "PROCESSES": {"processes": 2},
    "ON_NODES": {"place": "deployment"},
    "IN_SIMULATION": {"place": "simulation"},
    "SECURE": {"place": "deployment", "secure": SimpleNamespace(norm=None)},
    "SECURE_NORM": {"place": "deployment", "secure": SimpleNamespace(norm=1.0)},
    "NUMBERED": {"method": fp.fednova(0.1)},
}
"""Arguments of `simulate`, or fields of a case, with each setting."""

PAIRS = {
    "GAMMA_BY_TIME": ("solver.gamma", "systems.deadline"),
    "CLIPPED_ON_NODES": ("CLIPPED", "ON_NODES"),
    "CLIENTS_ON_NODES": ("ON_NODES", "CLIENTS"),
    "EXAMPLES_ON_NODES": ("ON_NODES", "OF_ROWS"),
    "CODED_BY_NODES": ("ON_NODES", "compression"),
    "NO_CLOCK": ("NO_POPULATION", "IN_SIMULATION"),
}
"""Settings that are two together."""

OF_SETTINGS |= {name: OF_SETTINGS[a] | OF_SETTINGS[b] for name, (a, b) in PAIRS.items()}

NAMES: dict[Any, str] = {
    each: name
    for module in (capabilities, compatible)
    for name, each in vars(module).items()
    if isinstance(each, Capability | Chosen)
}


def named(each: Capability | Chosen) -> str:
    """The name of a constant, or the key of a setting that is given."""
    return NAMES[each] if isinstance(each, Capability) else NAMES.get(each, each.key)


def name_of(row: Row) -> str:
    return f"{named(row.first)} {named(row.second)}"


def example(*names: str) -> dict[str, Any]:
    """The arguments of a run with some capabilities and settings, the last ones first."""
    plain: dict[str, Any] = {
        "method": fp.fedprox(0.1),
        "evaluation": fp.Evaluation(gradients=False),
    }
    if "EVERYONE" in names:
        plain["cohort"] = fp.Cohort(len(FEDERATION))
    found = {key: value for key, value in BASE.items() if key != "methods"} | plain
    for name in names:
        given = {"method": OF_METHODS[name]} if name in OF_METHODS else OF_SETTINGS[name]
        hidden = found.get("privacy", {}) | given.get("privacy", {})
        found |= given | ({"privacy": hidden} if hidden else {})
    if "privacy" in found:
        found["privacy"] = privacy(**found["privacy"])
    found["method"] = changed(found["method"], found.pop("changes", {}))
    return found


def case_of(whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Case:
    """The case of a run's arguments, before a protocol is made of them."""
    monkeypatch.setattr(jax, "process_count", lambda: whole.get("processes", 1))
    defaults = {f.name: f.default for f in dataclasses.fields(Protocol)}
    method: fp.Algorithm = whole["method"]
    solver, place = method.solver(whole["solver"]), whole.get("place", "simulation")
    settings = SimpleNamespace(**defaults | whole)
    return Case(settings, method, solver, place, whole.get("secure"))


def test_all_that_is_named_is_in_a_row_and_has_an_example() -> None:
    used = {named(each) for row in ROWS for each in (row.first, row.second)}
    used |= {name for pair in PAIRS.values() for name in pair}
    assert used == OF_METHODS.keys() | OF_SETTINGS.keys()
    assert {name for each, name in NAMES.items() if isinstance(each, Chosen)} <= used
    assert len(set(map(name_of, ROWS))) == len(ROWS)


SETTINGS = inspect.signature(fp.simulate).parameters.keys()
ORDERS = "choose", "cohort.sampling must", "give", "it must", "leave", "run", "use"


def test_what_to_do_instead_is_an_order_and_a_setting_is_none() -> None:
    settings = {each for row in ROWS for each in (row.first, row.second)}
    for each in settings:
        if isinstance(each, Chosen):
            assert each.instead.startswith(ORDERS), each
            assert not each.name.startswith(ORDERS), each
            # what nobody can set by its key is named in words
            assert each.words or each.key.partition(".")[0] in SETTINGS, each


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_refuses_both_together_and_neither_alone(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (named(each) for each in (row.first, row.second))
    case = case_of(whole := example(first, second), monkeypatch)
    line = row.refusal(case)
    assert isinstance(row.first, Capability | Chosen)
    assert row.second.says(case) in line
    assert row.first.says(case.method if isinstance(row.first, Capability) else case) in line  # type: ignore[arg-type]
    assert row.why in line
    assert line.endswith(f"; {row.second.instead}")
    with pytest.raises(fp.InputError):
        check_case(case)
    for alone in (first, second):
        assert not row.refusal(case_of(example(alone), monkeypatch)), alone
    if whole.pop("place", None) == "deployment" or "processes" in whole:
        return
    method = whole.pop("method")
    with pytest.raises(fp.InputError) as refused:
        fp.simulate(methods=method, **whole)
    lines = [each.refusal(case) for each in ROWS]
    without = [line.removeprefix(f"{method.name}: ") for line in lines]
    assert str(refused.value) in {*lines, *without} - {""}


def test_a_protocol_of_settings_without_a_row_is_made() -> None:
    """And what a case asks of a method, of a deployment and of the values on the way."""
    whole = example("compression", "COMPARES", "population", "STRAGGLERS", "initial")
    method = whole.pop("method")
    del whole["progress"]
    protocol = Protocol(**whole, seeds=(0,))
    for place, solver in itertools.product(("simulation", "deployment"), (None, protocol.solver)):
        check_case(Case(protocol, method, solver, place))  # type: ignore[arg-type]
    assert Case(protocol).read("asynchronous.buffer") is None
    assert Case(protocol).read("solver.gamma") is None


def test_messages_name_the_value() -> None:
    cases = {
        "scaffnew: it needs every client in every round, so cohort.clients_per_round = 4 of 6 "
        "clients does not fit; it must be the number of clients": example("EVERYONE")
        | {"cohort": fp.Cohort(4)},
        'evaluation.model = "cohort" does not go with privacy.unit = "client", since no other '
        'model has noise; it must be "server"': example("CLIENTS", "OTHER_MODEL"),
        f'fednova: {fp.fednova(0.1).not_private}, so privacy.unit = "client" does not fit; run it '
        "without privacy": example("NOT_PRIVATE", "CLIENTS"),
    }
    for line, whole in cases.items():
        method = whole.pop("method")
        with pytest.raises(fp.InputError) as refused:
            fp.simulate(methods=method, **whole)
        assert str(refused.value) == line


def test_a_switch_of_numpy_that_is_off_is_not_given() -> None:
    switches: Any = dict.fromkeys(("by_client", "client_records", "gradients"), np.bool_(False))
    case = Case(SimpleNamespace(evaluation=fp.Evaluation(**switches)))
    assert not any(Chosen(f"evaluation.{name}").holds(case) for name in switches)
