"""A deployment and a simulation of the same clients give the same results."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.policy import Policy
from fedprox.federation import Federation
from fedprox.results.run import Run
from tests.catalogue import DEPLOYED
from tests.deployment.federations import (
    FEDPROX,
    apart,
    deployed,
    nodes_of,
    simulated,
    table_of,
)
from tests.variants import mostly_slow

METHODS: dict[str, dict[str, Any]] = {
    **{name: variant.keys for name, variant in DEPLOYED.items()},
    "a sweep": {"name": "fedprox", "mu": [0.0, 1.0]},
    "a sweep of q": {"name": "qffl", "q": [0.0, 0.5]},
}

OF_LAYERS = ("moon", "fedper", "fedrep")
"""Methods that need a model with a body and a head."""

ALL = {"clients_per_round": 4}
"""All clients take part, so that each node compiles fewer programs."""

PLAIN = {"gradients": False}

OWN_MODEL = f"{__name__}:with_metrics"


def hits(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    above = (outputs > jnp.take_along_axis(outputs, y[:, None], axis=1)).sum(axis=1)
    return {"hits": above < 2, "rows": jnp.ones(len(y))}


BEST_TWO = fp.Metric(hits, lambda sums: sums["hits"] / sums["rows"])


def with_metrics(federation: Federation) -> fp.Model:
    """A logistic model with a metric whose name begins with that of a measure."""
    return dataclasses.replace(
        fp.models.logistic(federation), metrics={"accuracy_of_two": BEST_TWO}
    )


def check(theirs: Sequence[Run], ours: Sequence[Run]) -> None:
    """Assert that simulated and deployed runs agree."""
    assert [run.label for run in ours] == [run.label for run in theirs]
    for a, b in zip(theirs, ours, strict=True):
        assert apart(a.params, b.params) < 1e-5
        assert (a.seed, a.evaluated, a.model_round) == (b.seed, b.evaluated, b.model_round)
        assert [r.round for r in a.history] == [r.round for r in b.history]
        for x, y in zip(a.history, b.history, strict=True):
            _check_record(x, y)


def _check_record(x: Any, y: Any) -> None:
    for measure in ("train_loss", "test_accuracy", "test_loss", "gradient_variance"):
        _check_close(measure, getattr(x, measure), getattr(y, measure))
    for measure in ("validation_loss", "validation_accuracy"):
        one, other = getattr(x, measure), getattr(y, measure)
        assert (one is None) == (other is None)
        _check_close(measure, one or 0.0, other or 0.0)
    assert x.metrics.keys() == y.metrics.keys()
    for name in x.metrics:
        _check_close(name, x.metrics[name], y.metrics[name])
    assert (x.clients, x.stragglers, x.dropped) == (y.clients, y.stragglers, y.dropped)
    assert (x.total_steps, x.client_steps) == (y.total_steps, y.client_steps)
    # a deployment always leaves out updates that are not finite
    assert (x.faulty or 0, x.unmeasured or 0) == (y.faulty, y.unmeasured)
    assert x.empty_rounds == y.empty_rounds
    assert x.hparams == pytest.approx(y.hparams)


def _check_close(measure: str, x: float, y: float) -> None:
    assert math.isclose(x, y, rel_tol=1e-4) or (math.isnan(x) and math.isnan(y)), measure


def compared(table: Mapping[str, Any], folder: Path, policy: Policy | None = None) -> list[Run]:
    """The runs of a deployment, which are those of a simulation."""
    nodes = nodes_of(table, folder, policy=policy)
    ours = deployed(table, [node.answer for node in nodes])
    check(simulated(table), ours)
    return ours


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gradients"), [("a sweep", True), ("a sweep of q", False)])
def test_a_sweep_beside_stragglers(name: str, gradients: bool, tmp_path: Path) -> None:
    systems, evaluation = {"stragglers": 0.5}, {"gradients": gradients}
    compared(table_of(METHODS[name], systems=systems, evaluation=evaluation, cohort=ALL), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "name", "stragglers"),
    [
        ("bernoulli", "scaffold", 0.0),
        ("proportional", "fedavg", 0.5),
    ],
)
def test_sampling(sampling: str, name: str, stragglers: float, tmp_path: Path) -> None:
    cohort, systems = {"sampling": sampling}, {"stragglers": stragglers}
    compared(table_of(METHODS[name], cohort=cohort, systems=systems, evaluation=PLAIN), tmp_path)


@pytest.mark.slow
def test_clients_that_stop_when_they_are_accurate(tmp_path: Path) -> None:
    solver = {"gamma": 0.6, "epochs": 5, "batch_size": "all"}
    table = table_of(FEDPROX, solver=solver, systems={"stragglers": 0.4}, cohort=ALL)
    compared(table, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("evaluated", ["cohort", "clients"])
def test_two_seeds_and_other_models_evaluated(evaluated: str, tmp_path: Path) -> None:
    evaluation = {"model": evaluated, "gradients": False}
    runs = compared(table_of(FEDPROX, seed=[3, 5], evaluation=evaluation, cohort=ALL), tmp_path)
    assert [run.seed for run in runs] == [3, 5]


@pytest.fixture(scope="module")
def screened(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Run]]:
    """A deployment that screens, validates and measures with a user's model; and its table."""
    folder = tmp_path_factory.mktemp("screened")
    dense = {"weight": np.full((10, 60), 0.1, np.float32), "bias": np.ones(10, np.float32)}
    fp.save_model(folder / "initial.safetensors", {"dense": dense})
    table = table_of(
        {"name": "fedavg"},
        cohort=ALL,
        evaluation=PLAIN,
        faults={"policy": "drop", "norm": 1000.0},
        validation_share=0.2,
        initial=str(folder / "initial.safetensors"),
        model={"name": OWN_MODEL},
        selection={"keep": "best", "measure": "validation_loss"},
    )
    nodes = nodes_of(table, folder, policy=Policy(models=[OWN_MODEL]))
    return table, deployed(table, [node.answer for node in nodes])


def test_screening_validation_metrics_and_an_initial_model(
    screened: tuple[dict[str, Any], list[Run]],
) -> None:
    table, ours = screened
    check(simulated(table), ours)
    assert np.isfinite(ours[0].final.metrics["validation_accuracy_of_two"])


def labelled(numbers: bool = False) -> Federation:
    """Clients with a class, some of them unknown, or with a number at each of 2 x 3 pixels."""
    rng, clients = np.random.default_rng(0), []
    for n in (6, 4, 6, 4):
        y = rng.normal(size=(n, 2, 3)) if numbers else rng.integers(-1, 3, (n, 2, 3))
        clients.append((rng.normal(size=(n, 5)), y))
    return Federation.from_arrays(clients, clients)


def of_pixels(federation: Federation) -> fp.Model:
    """A linear model with outputs for each class, or one output, at each pixel."""
    shape = (5, 2, 3, *[federation.classes] * (federation.classes > 0))

    def init(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, shape)

    return fp.Model(init, lambda w, x: jnp.tensordot(x, w, 1))


OF_PIXELS = f"{__name__}:of_pixels"


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [False, True])
def test_label_maps_and_weights_of_classes(tmp_path: Path, numbers: bool) -> None:
    """Nodes bound how many labels can be met, and regression by default has no accuracy."""
    weights = {"name": "cross_entropy", "weights": [1.0, 2.0, 0.5]}
    table = table_of(
        {"name": "fedavg"},
        rounds=2,
        cohort=ALL,
        evaluation=PLAIN,
        data={"name": f"{__name__}:labelled", "numbers": numbers},
        model={"name": OF_PIXELS} | ({} if numbers else {"loss": weights}),
    )
    del table["client_rows"], table["data"]["clients"], table["data"]["seed"]
    (run,) = compared(table, tmp_path, Policy(models=[OF_PIXELS]))
    assert math.isnan(run.final.test_accuracy) == numbers


@pytest.mark.parametrize("name", mostly_slow(["a sweep", "scaffold"]))
def test_a_rule_reads_a_message_of_each_node(name: str, tmp_path: Path) -> None:
    # as many rows on each node, whose programs are then the same
    rule = {"rule": "median"}
    table = table_of(METHODS[name], client_rows=30, cohort=ALL, aggregation=rule, evaluation=PLAIN)
    nodes = nodes_of(table, tmp_path, nodes=4)
    check(simulated(table), deployed(table, [node.answer for node in nodes]))


@pytest.mark.slow
def test_evaluations_of_some_rows(tmp_path: Path) -> None:
    # nodes draw other rows than a simulation, which numbers the clients otherwise
    table = table_of(FEDPROX, rounds=2, cohort=ALL, evaluation=PLAIN)
    whole, some = (
        nodes_of(table, tmp_path / str(rows), policy=Policy(measured_rows=rows))
        for rows in (None, 20)
    )
    (a,), (b,) = (deployed(table, [node.answer for node in nodes]) for nodes in (whole, some))
    assert apart(a.params, b.params) == 0
    assert a.final.train_loss != b.final.train_loss
    for measure in ("train_loss", "test_loss"):
        assert getattr(a.final, measure) == pytest.approx(getattr(b.final, measure), rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_clients_with_devices_have_the_same_rounds_and_times(name: str, tmp_path: Path) -> None:
    table = table_of(
        METHODS[name],
        rounds=4,
        cohort={"clients_per_round": 2, "over_selection": 1.5},
        systems={"deadline": 6.0},
        evaluation={"every": 1, "gradients": False},
    )
    table["population"] = {"step_seconds": [0.1, 0.5, 1.0, 0.3], "latency": 0.1, "dropout": 0.2}
    nodes = nodes_of(table, tmp_path)
    (theirs,), (ours,) = simulated(table), deployed(table, [node.answer for node in nodes])
    check([theirs], [ours])
    assert [r.time for r in theirs.history] == [r.time for r in ours.history]
    assert 0 < (theirs.history[1].time or 0.0) <= 6.0
    assert any(record.dropped for record in theirs.history)
