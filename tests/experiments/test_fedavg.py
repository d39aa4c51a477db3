"""FedAvg's items: the paper's numbers, what is run for them, and models on the line between two."""

import csv
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import ITEMS
from experiments.engine.between import LINE, PARENT, THETAS, alone, between, losses
from experiments.engine.item import (
    MOST_SEEDS,
    SCALES,
    Between,
    Claim,
    Comparison,
    Item,
    Line,
    Panel,
    Row,
    Scale,
    Table,
    expand,
)
from experiments.engine.races import printed, ratio
from experiments.engine.run import reproduce
from experiments.engine.summaries import HALFWAY, Series
from experiments.engine.verdicts import judge
from experiments.fedavg.averages import FIGURE_1
from experiments.fedavg.networks import CNN, GRID, LSTM, PERCEPTRON
from fedprox import Cohort, Evaluation, Federation, Model, Solver, fedavg, simulate
from fedprox.datasets import synthetic
from fedprox.experiment import load_data
from fedprox.models import mlp

# --------------------------------------------------------------------------- the paper's tables

NONE = ""
RATIOS: dict[str, list[list[list[str]]]] = {
    # as printed, row by row without the first
    "table-1": [
        [
            ["1.0", "3.6", "2.4", "4.9"],
            ["0.9", "4.1", "2.8", "5.3"],
            [NONE, "4.2", NONE, "7.4"],
            [NONE, "4.5", NONE, "8.6"],
        ]
    ],
    "table-1-cnn-whole": [
        [
            ["1.1", "2.8", "1.1", "4.6"],
            ["1.1", "2.8", "1.2", "4.8"],
            ["2.4", "2.8", "1.1", "3.7"],
            ["1.6", "3.1", NONE, "9.9"],
        ]
    ],
    "table-2-whole": [
        [
            ["3.5", "0.5"],
            ["9.6", "0.8"],
            ["2.7", "0.7"],
            ["18.4", "1.4"],
            ["21.6", "1.4"],
            ["19.6", "1.1"],
            ["31.3", "2.1"],
            ["34.8", "2.8"],
        ],
        [["1.5", "7.1"], ["4.1", "6.5"], ["5.4", "23.8"], ["6.2", "25.7"], ["13.0", "95.3"]],
    ],
    "table-3": [[["4.8"], ["64.3"]], [["4.7"], ["49.2"]], [[NONE], ["49.5"]]],
    "table-4": [
        [
            ["9.4", "1.7"],
            ["10.2", "1.5"],
            ["16.0", "1.9"],
            ["16.0", "2.2"],
            ["32.6", "2.1"],
            ["37.6", "2.2"],
            ["43.2", "3.7"],
            ["45.9", "2.5"],
        ]
    ],
    "figure-5": [[["23.4"]]],  # "23x fewer"
}


@pytest.mark.parametrize("name", RATIOS)
def test_the_papers_speed_ups_follow_from_its_rounds(name: str) -> None:
    for race, expected in zip(ITEMS[f"fedavg/{name}"].races, RATIOS[name], strict=True):
        counts = [[entry and printed(entry.paper) for entry in row.entries] for row in race.rows]
        found = [
            [ratio(counts, i, j, race.relative) for j in range(len(race.columns))]
            for i in range(1, len(race.rows))
        ]
        assert found == [[r and f"{r}x" for r in row] for row in expected]


@pytest.mark.parametrize("name", ["table-1", "table-1-cnn-whole", "table-2-whole", "table-4"])
def test_cells_run_with_what_their_row_and_column_say(name: str) -> None:
    item = ITEMS[f"fedavg/{name}"]
    for race in item.races:
        for row in race.rows:
            for column, entry in zip(race.columns, row.entries, strict=True):
                assert entry is not None
                run = item.runs[entry.run]
                said = dict(
                    word.split(" = ")
                    for word in f"{row.title}, {column}".split(", ")[1:]
                    if " = " in word
                )
                if "E" in said:
                    clients = 115 if run["data"]["name"] == "shakespeare" else 10
                else:  # Table 1
                    clients = max(round(100 * float(row.title.removeprefix("C = "))), 1)
                    said["E"] = "1" if name == "table-1" else "5"
                assert run["cohort"]["clients_per_round"] == clients
                assert str(run["solver"]["batch_size"]) == said["B"]
                assert str(run["solver"]["epochs"]) == said["E"]
                # with all clients and one step each, the partition is all one
                if (clients, said["B"], said["E"]) != (100, "all", "1"):
                    assert column.startswith("IID") == ("iid" in run["data"]["partition"])
                assert not entry.paper or float(entry.paper) < run["rounds"]


def test_rows_that_fit_two_cores_are_those_of_the_whole_table() -> None:
    fitting, whole = ITEMS["fedavg/table-2"], ITEMS["fedavg/table-2-whole"]
    assert len(fitting.runs) == 6
    rows = {row.title: row for row in whole.races[0].rows}
    for row in fitting.races[0].rows:
        for ours, same in zip(row.entries, rows[row.title].entries, strict=True):
            assert ours in (None, same)


def test_grids_have_the_papers_resolution_and_nothing_is_planned_in_vain() -> None:
    np.testing.assert_allclose(np.diff(np.log10(GRID)), 1 / 3, atol=2e-3)
    names = {run for name, item in ITEMS.items() if "fedavg/table" in name for run in item.runs}
    for prefix, plans in (("2nn", PERCEPTRON), ("cnn", CNN), ("lstm", LSTM)):
        assert {f"{prefix}-{cell.key}" for cell in plans} == {
            run for run in names if run.startswith(prefix)
        }


def test_lines_of_figure_9_take_equally_many_steps() -> None:
    for scale, rows in (("paper", 500), ("short", 100)):
        for run in ITEMS["fedavg/figure-9"].runs.values():
            (one,) = expand(run, SCALES[scale]).values()
            epochs, clients = one["solver"]["epochs"], one["cohort"]["clients_per_round"]
            steps = one["rounds"] * clients * epochs * (rows // 50)
            assert steps == {"paper": 200_000, "short": 2_000}[scale]
            assert one.get("client_rows", rows) == rows


def judged(name: str, claim: int, curves: dict[tuple[str, str], list[float]]) -> list[str]:
    """The verdicts on a claim if both seeds of its runs had these values of the claim's measure."""
    stated = ITEMS[f"fedavg/{name}"].claims[claim]
    measured: dict[str, list[Series]] = {}
    for (run, label), values in curves.items():
        found = {"train_loss": np.ones(len(values)), stated.measure: np.array(values)}
        lines = [Series(label, seed, np.arange(len(values)), found) for seed in (0, 1)]
        measured.setdefault(run, []).extend(lines)
    (comparisons,) = judge([stated], measured)
    return [one.verdict for one in comparisons]


@pytest.mark.parametrize(
    ("plateau", "expected"), [(0.0, "holds"), (0.002, "holds"), (0.1, "does not hold")]
)
def test_figure_8_fails_where_many_epochs_end_on_a_plateau(plateau: float, expected: str) -> None:
    """As in Figure 3: E = 100 is ahead at first, and of E = 1 all the time."""
    curves = {}
    for partition in ("iid", "shards"):
        for epochs, first, factor in ((1, 2.0, 0.97), (10, 1.0, 0.9), (100, 0.5, 0.9)):
            floor = plateau if epochs == 100 else 0
            values = [2.3, *(first * factor**t + floor for t in range(50))]
            curves[f"cnn-large-e-{partition}", f"fedavg epochs={epochs}"] = values
        slow, large = (curves[f"cnn-large-e-{partition}", f"fedavg epochs={e}"] for e in (1, 100))
        assert np.mean(large) < np.mean(slow)
    assert judged("figure-8", 0, curves) == [expected] * 2


def test_figure_9_is_about_the_accuracy_of_runs_evaluated_after_as_many_gradients() -> None:
    item = ITEMS["fedavg/figure-9"]
    _, claim = item.claims
    assert claim.measure == "test_accuracy"
    for scale in SCALES.values():
        for comparison in claim.comparisons:
            steps = set()
            for side in (comparison.greater, comparison.less):
                (one,) = expand(item.runs[side.run], scale).values()
                a_round = one["cohort"]["clients_per_round"] * one["solver"]["epochs"]
                steps.add(one["evaluation"]["every"] * a_round)
            assert len(steps) == 1, comparison
    assert {side.run for c in claim.comparisons for side in (c.greater, c.less)} == {
        "cifar-steps-sgd",
        *(f"cifar-c{share}-e{epochs}" for share in ("0", "0.1") for epochs in (1, 5)),
    }


def test_figure_9_fails_where_averaging_smooths_nothing() -> None:
    steady = np.linspace(0.1, 0.8, 101)
    jagged = steady + 0.03 * (-1.0) ** np.arange(101)
    alone = [
        ("cifar-steps-sgd", "centralised"),
        ("cifar-c0-e1", "fedavg"),
        ("cifar-c0-e5", "fedavg"),
    ]
    averaged = [("cifar-c0.1-e1", "fedavg"), ("cifar-c0.1-e5", "fedavg")]
    for oscillating, smooth, expected in (
        (alone, averaged, "holds"),
        (averaged, alone, "does not hold"),
    ):
        curves = {one: jagged.tolist() for one in oscillating} | {
            one: steady.tolist() for one in smooth
        }
        assert judged("figure-9", 1, curves) == [expected] * 3


def test_figure_10_fails_where_fedavg_varies_more() -> None:
    steady = 0.1 + 0.01 * np.sqrt(np.arange(51))
    jagged = steady + 0.005 * (-1.0) ** np.arange(51)
    sgd = ("posts", "fedsgd learning_rate=18")
    one, five = (("posts", f"fedavg epochs={epochs}") for epochs in (1, 5))
    for jumps, expected in (
        ((sgd,), ["holds"] * 2),
        ((five,), ["within noise", "does not hold"]),
        ((one, five), ["does not hold"] * 2),
    ):
        curves = {x: (jagged if x in jumps else steady).tolist() for x in (sgd, one, five)}
        assert judged("figure-10", 1, curves) == expected


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


def pair(learning_rate: float, *, shared: bool) -> Between:
    experiment: Table = {
        "rounds": 1,
        "data": {"name": "synthetic", "clients": 3},
        "model": {"name": "mlp", "hidden": [8]},
        "cohort": {"clients_per_round": 1},
        "solver": {"learning_rate": learning_rate, "batch_size": 5, "epochs": 2},
        "method": [{"name": "fedavg"}],
    }
    return Between(experiment, shared)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:all training labels that evaluations read are of class")
def test_the_ends_of_the_line_are_the_clients_own_models() -> None:
    line, parent = between(pair(0.05, shared=True), seed=3)
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
    pairs = {"shared": pair(1e-9, shared=True), "separate": pair(1e-9, shared=False)}
    panels = tuple(
        Panel(
            key,
            "train_loss",
            tuple(Line(key, label, label) for label in (LINE, PARENT)),
            x="theta",
        )
        for key in pairs
    )
    compared = Comparison("A", Line("separate", LINE), Line("shared", LINE))
    item = Item(
        "Figure 0",
        "nowhere",
        {"tiny": 1.0},
        between=pairs,
        rows=(Row("", panels),),
        claims=(Claim("They differ.", "train_loss", HALFWAY, (compared,)),),
    )
    text = reproduce("made/up", item, Scale("tiny", 1, (1,)), tmp_path)
    assert "(training loss at theta = 1/2; 1 " in text
    assert "| 1 seed |" in text
    assert (tmp_path / "made/up/figure.png").is_file()
    rows = list(csv.DictReader((tmp_path / "made/up/metrics.csv").read_text().splitlines()))
    found = {
        key: [row for row in rows if (row["run"], row["label"]) == (key, LINE)] for key in pairs
    }
    for lines in found.values():
        np.testing.assert_allclose([float(row["theta"]) for row in lines], THETAS, atol=1e-5)
    same, other = ([float(row["train_loss"]) for row in lines] for lines in found.values())
    assert np.ptp(same) < 1e-5
    assert np.ptp(other) > 1e-2


def test_figure_1_takes_the_papers_240_steps() -> None:
    assert {key: models.shared for key, models in FIGURE_1.between.items()} == {
        "separate": False,
        "shared": True,
    }
    for models in FIGURE_1.between.values():
        solver = models.experiment["solver"]
        assert solver["epochs"] * 600 // solver["batch_size"] == 240
        assert solver["learning_rate"] == 0.1
        assert MOST_SEEDS not in models.experiment
