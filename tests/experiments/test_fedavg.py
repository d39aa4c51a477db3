"""FedAvg's items: the paper's numbers, what is run for them, and models on the line between two."""

import csv
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import ITEMS
from experiments.engine.item import Claim, Comparison, Item, Line, Other, Panel, Scale, Table
from experiments.engine.races import printed, ratio
from experiments.engine.run import reproduce
from experiments.fedavg.averages import (
    FIGURE_1,
    HALFWAY,
    LINE,
    PARENT,
    PARENTS,
    THETAS,
    alone,
    between,
    losses,
)
from experiments.fedavg.tables import CNN, GRID, PERCEPTRON, key
from fedprox import Cohort, Evaluation, Federation, Model, Solver, fedavg, simulate
from fedprox.datasets import synthetic
from fedprox.experiment import load_data
from fedprox.models import mlp

RATIOS = {
    # the speed-ups as printed, row by row without the first
    "table-1": "1.0 3.6 2.4 4.9; 0.9 4.1 2.8 5.3; - 4.2 - 7.4; - 4.5 - 8.6",
    "table-1-cnn": "- 2.8 - -; - 2.8 - -; - 2.8 - -; - 3.1 - -",
    "table-2": "9.6 -; 18.4 1.4; 21.6 -; 31.3 -",
    "table-4": "9.4 1.7; 10.2 1.5; 16.0 1.9; 16.0 2.2; 32.6 2.1; 37.6 2.2; 43.2 3.7; 45.9 2.5",
}


@pytest.mark.parametrize("name", RATIOS)
def test_the_papers_speed_ups_follow_from_its_rounds(name: str) -> None:
    (race,) = ITEMS[f"fedavg/{name}"].races
    counts = [[entry and printed(entry.paper) for entry in row.entries] for row in race.rows]
    if name == "table-2":  # its first row has no run for two shards
        counts[0][1] = printed(483)
    for i, row in enumerate(RATIOS[name].split("; "), 1):
        found = [ratio(counts, i, j, race.relative) or "-" for j in range(len(race.columns))]
        assert [one.removesuffix("x") for one in found] == row.split(" ")


@pytest.mark.parametrize("name", RATIOS)
def test_cells_run_with_what_their_row_and_column_say(name: str) -> None:
    item = ITEMS[f"fedavg/{name}"]
    (race,) = item.races
    for row in race.rows:
        for column, entry in zip(race.columns, row.entries, strict=True):
            if entry is None:
                continue
            run, clients = item.runs[entry.run], 10
            words = f"{row.title}, {column}".split(", ")
            said = dict(word.split(" = ") for word in words if " = " in word)
            if "E" not in said:  # Table 1
                clients = max(round(100 * float(said["C"])), 1)
                said["E"] = "1" if name == "table-1" else "5"
            assert run["cohort"]["clients_per_round"] == clients
            assert str(run["solver"]["batch_size"]) == said["B"]
            assert str(run["solver"]["epochs"]) == said["E"]
            # with all clients and one step each, the partition is all one
            if (clients, said["B"], said["E"]) != (100, "all", "1"):
                assert column.startswith("IID") == (run["data"]["partition"] == "iid")
            assert not entry.paper or float(entry.paper) < run["rounds"]


def test_grids_have_the_papers_resolution_and_nothing_is_planned_in_vain() -> None:
    np.testing.assert_allclose(np.diff(np.log10(GRID)), 1 / 3, atol=2e-3)
    names = {run for name, item in ITEMS.items() if "fedavg/table" in name for run in item.runs}
    planned = {key("2nn", cell) for cell in PERCEPTRON} | {key("cnn", cell) for cell in CNN}
    assert names == planned


# ------------------------------------------------------------------------ the line between two


def test_the_loss_on_a_line_of_linear_models_is_the_parabola_by_hand() -> None:
    model = Model(
        lambda _: {"slope": jnp.zeros(2)},
        lambda params, x: x @ params["slope"],
        lambda outputs, y: (outputs - y) ** 2,
        correct=None,
    )
    federation = Federation.from_arrays(
        [(np.array([[1.0, 0.0]]), [1.0]), (np.array([[0.0, 2.0], [1.0, 1.0]]), [0.0, 3.0])]
    )
    first, second = {"slope": jnp.array([1.0, 2.0])}, {"slope": jnp.array([3.0, -2.0])}
    thetas = np.array([-0.2, 0.0, 0.5, 1.0, 1.2])
    # slope (3 - 2 theta, 4 theta - 2): residuals 2 - 2 theta, 8 theta - 4, 2 theta - 2
    by_hand = ((2 - 2 * thetas) ** 2 + (8 * thetas - 4) ** 2 + (2 * thetas - 2) ** 2) / 3
    found = losses(model, federation.train, first, second, thetas)
    np.testing.assert_allclose(found, by_hand, rtol=1e-5)


def pair(learning_rate: float) -> Table:
    return {
        "rounds": 1,
        "data": {"name": "synthetic", "clients": 3},
        "model": {"name": "mlp", "hidden": [8]},
        "cohort": {"clients_per_round": 1},
        "solver": {"learning_rate": learning_rate, "batch_size": 5, "epochs": 2},
        "method": [{"name": "fedavg"}],
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:all training labels that evaluations read are of class")
def test_the_ends_of_the_line_are_the_clients_own_models() -> None:
    line, parent = between(pair(0.05), seed=3, shared=True)
    federation, _ = load_data({"name": "synthetic", "clients": 3, "seed": 3})
    model = mlp(federation, hidden=[8])
    whole = []
    for client in (0, 1):
        x, y = federation.train.client(client)
        (run,) = simulate(
            Federation.from_arrays([(x, y)], classes=10),
            model,
            fedavg(),
            solver=Solver(0.05, batch_size=5, epochs=2),
            cohort=Cohort(1),
            rounds=1,
            seed=6,
            evaluation=Evaluation(gradients=False),
        )
        outputs = model.apply(run.params, jnp.asarray(federation.train.x))
        whole.append(float(model.loss(outputs, jnp.asarray(federation.train.y)).mean()))
    assert (line.label, parent.label, line.seed) == (LINE, PARENT, 3)
    np.testing.assert_allclose(THETAS[[7, 42]], [0, 1], atol=1e-12)
    np.testing.assert_allclose(line.values["train_loss"][[42, 7]], whole, rtol=1e-5)
    np.testing.assert_allclose(parent.values["train_loss"], min(whole), rtol=1e-5)


def test_a_client_alone_has_its_rows() -> None:
    federation = synthetic(clients=4)
    one = alone(federation, 2)
    for ours, theirs in ((one.train, federation.train), (one.test, federation.test)):
        for a, b in zip(ours.client(0), theirs.client(2), strict=True):
            np.testing.assert_array_equal(a, b)
    assert (len(one), one.names) == (1, federation.names[2:3])


@pytest.mark.slow
def test_models_begin_alike_only_where_they_are_to(tmp_path: Path) -> None:
    pairs = {
        name: Other(pair(1e-9), partial(between, shared=name == "shared"))
        for name in ("shared", "separate")
    }
    compared = Comparison("A", Line("separate", LINE), Line("shared", LINE))
    item = Item(
        "Figure 0",
        "nowhere",
        {"tiny": 1.0},
        panels=(tuple(Panel(name, "train_loss", (name,), x="theta") for name in pairs),),
        claims=(Claim("They differ.", "train_loss", HALFWAY, (compared,)),),
        others=pairs,
    )
    text = reproduce("made/up", item, Scale("tiny", 1, (1,)), tmp_path)
    assert "(training loss at theta = 1/2; 1 " in text
    assert "| 1 seed |" in text
    assert (tmp_path / "made/up/figure.png").is_file()
    rows = list(csv.DictReader((tmp_path / "made/up/metrics.csv").read_text().splitlines()))
    found = {
        name: [row for row in rows if (row["run"], row["label"]) == (name, LINE)] for name in pairs
    }
    for lines in found.values():
        np.testing.assert_allclose([float(row["theta"]) for row in lines], THETAS, atol=1e-5)
    same, other = ([float(row["train_loss"]) for row in lines] for lines in found.values())
    assert np.ptp(same) < 1e-5
    assert np.ptp(other) > 1e-2


def test_figure_1_takes_the_papers_240_steps() -> None:
    assert FIGURE_1.others.keys() == {"separate", "shared"}
    solver = PARENTS["solver"]
    assert solver["epochs"] * 600 // solver["batch_size"] == 240
    assert solver["learning_rate"] == 0.1
