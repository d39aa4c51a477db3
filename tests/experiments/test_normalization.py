"""The study of normalization: what its methods differ in, own accuracies, and a tiny run of it."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import fedprox as fp
from experiments.engine.blocks import spread
from experiments.engine.item import SCALES, Scale, at_scale
from experiments.engine.run import read_series, reproduce
from experiments.engine.series import ACCURACY, Series
from experiments.studies.normalization import (
    AVG,
    AVG_GROUP,
    BN,
    GROUP,
    IID,
    ITEMS,
    LABELS,
    METHODS,
    NORMS,
    OF_NORM,
    SHARES,
    SILO,
    TASKS,
    experiment,
    own,
    place,
    small_cnn,
)
from fedprox.experiment import parse
from fedprox.experiment.resolved import method_of, solver_of
from fedprox.protocol.method import sweep_points

DIGITS, WRITERS = TASKS
PAPER = SCALES["paper"]


def images() -> fp.Federation:
    """Four images of each of ten clients to train on, which are also those to test on."""
    x = np.random.default_rng(0).normal(size=(10, 4, 28, 28)).astype(np.float32)
    rows = [(each, np.arange(4)) for each in x]
    return fp.Federation.from_arrays(rows, test=rows, classes=10)


def test_methods_have_equal_budgets_and_differ_in_normalization_and_what_clients_keep() -> None:
    found = {}
    for norm in NORMS:
        table = experiment(DIGITS, IID, 0.5, norm)
        parsed = parse(norm, at_scale(table, PAPER) | {"seed": [0]})
        solver, _ = solver_of(parsed.solver)
        for name, given in zip(OF_NORM[norm], parsed.method, strict=True):
            method, _ = method_of(given, parsed.solver, solver, "method")
            assert len(sweep_points(method, method.solver(solver))) == 3
            assert method.average == "rows"
            found[name] = (norm, method.hparams.get("mu", 0), method.stragglers, method.model_state)
        others = {key: value for key, value in table.items() if key not in ("method", "model")}
        assert others == {
            key: experiment(DIGITS, IID, 0.5, GROUP)[key] for key in table.keys() & others.keys()
        }
    assert found == {
        "FedAvg, batch": ("batch", 0, "drop", "mean"),
        "FedProx, batch": ("batch", (0.01,), "keep", "mean"),
        "FedBN": ("batch", 0, "drop", "own layers"),
        "SiloBN": ("batch", 0, "drop", "own"),
        "FedAvg, group": ("group", 0, "drop", "mean"),
        "FedProx, group": ("group", (0.01,), "keep", "mean"),
    }
    assert tuple(found) == METHODS


def test_both_normalizations_begin_with_the_same_parameters() -> None:
    wholes = []
    for norm in NORMS:
        model = small_cnn(images(), norm=norm)
        wholes.append(jax.jit(model.init)(jax.random.key(3)))
    batch, group = wholes
    jax.tree.map(np.testing.assert_array_equal, batch.params, group)
    assert sum(a.size for a in jax.tree.leaves(group)) == 54_362
    assert sum(a.size for a in jax.tree.leaves(batch.state)) == 2 * (8 + 16)


def test_skews_and_stragglers_are_all_that_differs_between_cells() -> None:
    for task in TASKS:
        assert set(task.features) | set(task.labels) == task.skews.keys() - {IID}
        for skew in task.skews:
            for share in SHARES:
                table = experiment(task, skew, share, GROUP)
                first = experiment(task, next(iter(task.skews)), 0.0, GROUP)
                assert table["systems"] == {"stragglers": share}
                assert {key for key in table if table[key] != first[key]} <= {"data", "systems"}
                assert ("skew" in table["data"]) == (skew in task.features)


def ended(accuracy: float, personal: float, newcomer: float, count: float) -> Series:
    """A run that has these measures at its end."""
    last = {
        "train_loss": 0.1,
        ACCURACY: accuracy,
        "personal_accuracy": personal,
        "newcomer_accuracy": newcomer,
        "personal_clients": count,
    }
    values = {name: np.array([0.5, value]) for name, value in last.items()}
    return Series("fedbn", 0, np.arange(2), values)


NAN = float("nan")


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (ended(0.5, NAN, NAN, NAN), 0.5),  # a method with one model
        (ended(0.5, 0.8, NAN, 10), 0.8),
        (ended(0.5, NAN, 0.4, 0), 0.4),
        (ended(0.5, 0.8, 0.4, 3), (3 * 0.8 + 7 * 0.4) / 10),
    ],
)
def test_clients_without_an_own_model_use_the_servers(series: Series, expected: float) -> None:
    assert own(10).of(series, ACCURACY) == pytest.approx(expected)


def test_a_run_that_diverged_has_no_own_accuracy() -> None:
    series = ended(0.1, 0.1, 0.1, 10)
    series.values["train_loss"][-1] = np.nan
    assert own(10).of(series, ACCURACY) == -np.inf


@pytest.mark.slow
def test_a_tiny_study_runs_end_to_end(tmp_path: Path) -> None:
    """One place of the item itself, on few images, with one rate and two rounds."""
    item, where = ITEMS["normalization-mnist"], place(DIGITS, LABELS, 0.0)

    def tiny(run: str) -> dict[str, object]:
        table = item.runs[run]
        solver = table["solver"] | {"learning_rate": 0.1, "epochs": 1, "batch_size": 2}
        changed = {
            "rounds": 2,
            "data": {"name": f"{__name__}:images"},
            "solver": solver,
            "evaluation": {"gradients": False, "every": 1},
        }
        return {**table, **changed}

    def here(comparison: object) -> bool:
        return {side.run for side in comparison[1:3]} == {where}  # type: ignore[index]

    claims = [
        claim._replace(comparisons=tuple(filter(here, claim.comparisons))) for claim in item.claims
    ]
    small = dataclasses.replace(
        item,
        runs={run: tiny(run) for run in item.joined[where]},
        joined={where: item.joined[where]},
        panels=((item.panels[-1][0],),),
        claims=tuple(claim for claim in claims if claim.comparisons),
        values=tuple(
            table._replace(rows=tuple(row for row in table.rows if row[1][0].run == where))  # type: ignore[union-attr]
            for table in item.values
        ),
    )
    text = reproduce("studies/tiny", small, Scale("tiny", 1, (0, 1)), tmp_path)
    assert "group normalization is more accurate" in text
    server, clients = json.loads((tmp_path / "studies/tiny/results.json").read_text())["blocks"][:2]
    assert server["header"][1:] == list(METHODS)
    assert clients["header"][1:] == [AVG, BN, SILO, AVG_GROUP]
    lines = read_series(tmp_path / "runs" / f"normalization-mnist-{LABELS}-0%-batch")
    for column, label, measure in (
        (1, "fedavg", ACCURACY),
        (2, "fedbn", "personal_accuracy"),
        (3, "silobn", "personal_accuracy"),
    ):
        last = [one.values[measure][-1] for one in lines if one.label == label]
        expected = spread(np.array(last), percent=True, brackets=False)
        assert clients["rows"][0][column] == expected
        assert len(last) == 2
    # in training a mini-batch is normalized by its own statistics, whoever keeps running ones
    of_avg, of_silo = (
        [one.values["train_loss"][-1] for one in lines if one.label == label]
        for label in ("fedavg", "silobn")
    )
    np.testing.assert_allclose(of_silo, of_avg, rtol=1e-5)
