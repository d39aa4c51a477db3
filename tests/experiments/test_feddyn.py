"""The tables of Acar et al. 2021: what the paper prints, and the settings of its appendices."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import ITEMS
from experiments.engine.item import MOST_SEEDS, SCALES, SHORT, Table, expand
from experiments.feddyn.cifar import NOT_RUN
from experiments.feddyn.settings import COLUMNS
from experiments.feddyn.synthetic import DRAW, SYNTHETIC
from experiments.quirks import WITHOUT_QUADRATIC
from fedprox.algorithms.base import Algorithm
from fedprox.datasets.partition import with_test_set
from fedprox.datasets.synthetic import synthetic_feddyn
from fedprox.experiment import parse, resolve
from fedprox.solver import Solver
from tests.datasets.test_cifar import archive, batch, old
from tests.variants import mostly_slow

PRINTED = {
    "table-1": """
        100 clients, IID: 84.5 637 1852(2.9) 1000+(>1.6) 1000+(>1.6)
        100 clients, IID: 82.3 240 512(2.1) 994(4.1) 825(3.4)
        100 clients, Dirichlet (.3): 82.5 444 1880(4.2) 1000+(>2.3) 1000+(>2.3)
        100 clients, Dirichlet (.3): 80.7 232 594(2.6) 863(3.7) 930(4.0)
        1,000 clients, IID: 80.0 840 4000+(>4.8) 2000+(>2.4) 2000+(>2.4)
        1,000 clients, IID: 62.3 305 928(3.0) 1277(4.2) 1274(4.2)
        1,000 clients, Dirichlet (.3): 80.0 831 4000+(>4.8) 2000+(>2.4) 2000+(>2.4)
        1,000 clients, Dirichlet (.3): 70.6 350 2138(6.1) 1962(5.6) 1517(4.3)
    """,
    "table-2-cifar-10": """
        100 %, IID: 85.0 198 1860(9.4) 1000+(>5.1) 1000+(>5.1)
        100 %, IID: 81.4 67 320(4.8) 754(11.3) 655(9.8)
        100 %, Dirichlet (.6): 84.0 148 1890(12.8) 1000+(>6.8) 1000+(>6.8)
        100 %, Dirichlet (.6): 80.3 64 392(6.1) 869(13.6) 724(11.3)
        100 %, Dirichlet (.3): 83.5 223 1762(7.9) 1000+(>4.5) 1000+(>4.5)
        100 %, Dirichlet (.3): 80.2 70 504(7.2) 705(10.1) 1000+(>14.3)
        10 %, Dirichlet (.6): 83.5 403 1618(4.0) 1000+(>2.5) 1000+(>2.5)
        10 %, Dirichlet (.6): 81.3 189 486(2.6) 977(5.2) 943(5.0)
    """,
    "table-1-cifar-100": """
        100 clients, IID: 51.0 522 1854(3.6) 1000+(>1.9) 1000+(>1.9)
        100 clients, IID: 40.9 159 286(1.8) 822(5.2) 873(5.5)
        100 clients, Dirichlet (.3): 51.0 561 1884(3.4) 1000+(>1.8) 1000+(>1.8)
        100 clients, Dirichlet (.3): 42.3 170 330(1.9) 959(5.6) 882(5.2)
        500 clients, IID: 50.1 1445 3982(2.8) 2000+(>1.4) 2000+(>1.4)
        500 clients, IID: 38.3 477 1408(3.0) 1997(4.2) 1974(4.1)
        500 clients, Dirichlet (.3): 47.0 969 4000(4.1) 2000+(>2.1) 2000+(>2.1)
        500 clients, Dirichlet (.3): 39.9 467 2266(4.9) 1913(4.1) 1794(3.8)
    """,
    "table-2-cifar-100": """
        100 %, IID: 51.0 259 1744(6.7) 1000+(>3.9) 1000+(>3.9)
        100 %, IID: 39.4 55 172(3.1) 1000+(>18.2) 741(13.5)
        100 %, Dirichlet (.6): 51.0 468 1838(3.9) 1000+(>2.1) 1000+(>2.1)
        100 %, Dirichlet (.6): 40.6 73 206(2.8) 998(13.7) 592(8.1)
        100 %, Dirichlet (.3): 50.5 405 1940(4.8) 1000+(>2.5) 1000+(>2.5)
        100 %, Dirichlet (.3): 41.0 80 224(2.8) 911(11.4) 1000+(>12.5)
        10 %, Dirichlet (.6): 51.0 521 1910(3.7) 1000+(>1.9) 1000+(>1.9)
        10 %, Dirichlet (.6): 41.6 170 302(1.8) 931(5.5) 748(4.4)
    """,
    "table-2-mnist-full": """
        100 %, IID: 98.2 38 72(1.9) 194(5.1) 445(11.7)
        100 %, IID: 97.2 9 18(2.0) 31(3.4) 28(3.1)
        100 %, Dirichlet (.6): 98.1 39 108(2.8) 157(4.0) 416(10.7)
        100 %, Dirichlet (.6): 97.1 11 24(2.2) 38(3.5) 34(3.1)
        100 %, Dirichlet (.3): 98.1 35 76(2.2) 313(8.9) 458(13.1)
        100 %, Dirichlet (.3): 97.1 10 24(2.4) 49(4.9) 44(4.4)
    """,
    "table-2-mnist": """
        10 %, IID: 98.2 100 142(1.4) 588(5.9) 362(3.6)
        10 %, IID: 97.2 31 52(1.7) 49(1.6) 43(1.4)
        10 %, Dirichlet (.6): 98.1 129 194(1.5) 581(4.5) 361(2.8)
        10 %, Dirichlet (.6): 97.1 37 60(1.6) 57(1.5) 57(1.5)
        10 %, Dirichlet (.3): 98.2 90 208(2.3) 428(4.8) 858(9.5)
        10 %, Dirichlet (.3): 97.2 37 68(1.8) 76(2.1) 61(1.6)
    """,
    "table-2-emnist-l-full": """
        100 %, IID: 94.6 65 414(6.4) 307(4.7) 1000+(>15)
        100 %, IID: 93.6 16 36(2.2) 66(4.1) 62(3.9)
        100 %, Dirichlet (.6): 94.9 207 552(2.7) 410(2.0) 1000+(>4.8)
        100 %, Dirichlet (.6): 93.9 20 42(2.1) 73(3.6) 61(3.0)
        100 %, Dirichlet (.3): 94.5 65 210(3.2) 492(7.6) 1000+(>15)
        100 %, Dirichlet (.3): 93.5 23 46(2.0) 78(3.4) 69(3.0)
    """,
    "table-2-emnist-l": """
        10 %, IID: 94.6 104 160(1.5) 330(3.2) 210(2.0)
        10 %, IID: 93.6 58 84(1.4) 69(1.2) 65(1.1)
        10 %, Dirichlet (.6): 94.9 192 296(1.5) 306(1.6) 1000+(>5.2)
        10 %, Dirichlet (.6): 93.9 55 102(1.9) 95(1.7) 86(1.6)
        10 %, Dirichlet (.3): 94.4 107 178(1.7) 804(7.5) 1000+(>9.3)
        10 %, Dirichlet (.3): 93.4 58 100(1.7) 81(1.4) 86(1.5)
    """,
    "table-2-shakespeare": """
        100 %, IID: 46.4 33 74(2.2) 96(2.9) 113(3.4)
        100 %, IID: 45.4 28 64(2.3) 59(2.1) 56(2.0)
        100 %, Non-IID: 47.3 33 70(2.1) 134(4.1) 150+(>4.5)
        100 %, Non-IID: 46.3 28 62(2.2) 53(1.9) 64(2.3)
        10 %, IID: 46.9 63 94(1.5) 138(2.2) 190(3.0)
        10 %, IID: 45.9 56 76(1.4) 96(1.7) 75(1.3)
        10 %, Non-IID: 47.6 63 102(1.6) 169(2.7) 133(2.1)
        10 %, Non-IID: 46.6 56 82(1.5) 80(1.4) 66(1.2)
    """,
    "table-4": """
        balanced, IID: 84.5 637 1852(2.9) 1000+(>1.6) 1000+(>1.6)
        balanced, IID: 82.3 240 512(2.1) 994(4.1) 825(3.4)
        balanced, Dirichlet (.3): 82.5 444 1880(4.2) 1000+(>2.3) 1000+(>2.3)
        balanced, Dirichlet (.3): 80.7 232 594(2.6) 863(3.7) 930(4.0)
        unbalanced, IID: 84.0 335 1152(3.4) 1000+(>3.0) 1000+(>3.0)
        unbalanced, IID: 82.3 213 548(2.6) 834(3.9) 834(3.9)
        unbalanced, Dirichlet (.3): 82.5 524 1998(3.8) 1000+(>1.9) 1000+(>1.9)
        unbalanced, Dirichlet (.3): 80.1 274 652(2.4) 893(3.3) 1000+(>3.6)
    """,
    "table-4-cifar-100": """
        balanced, IID: 51.0 522 1854(3.6) 1000+(>1.9) 1000+(>1.9)
        balanced, IID: 40.9 159 286(1.8) 822(5.2) 873(5.5)
        balanced, Dirichlet (.3): 51.0 561 1884(3.4) 1000+(>1.8) 1000+(>1.8)
        balanced, Dirichlet (.3): 42.3 170 330(1.9) 959(5.6) 882(5.2)
        unbalanced, IID: 53.0 386 1656(4.3) 1000+(>2.6) 1000+(>2.6)
        unbalanced, IID: 48.2 209 800(3.8) 968(4.6) 945(4.5)
        unbalanced, Dirichlet (.3): 52.0 503 1928(3.8) 1000+(>2.0) 1000+(>2.0)
        unbalanced, Dirichlet (.3): 47.3 234 942(4.0) 871(3.7) 1000+(>4.3)
    """,
    "table-5-cifar-100": """
        1 %, IID: 39.8 409 1982(4.8) 428(1.0) 512(1.3)
        1 %, IID: 38.8 396 1862(4.7) 392(1.0) 454(1.1)
        1 %, Dirichlet (.6): 36.6 355 1996(5.6) 341(1.0) 352(1.0)
        1 %, Dirichlet (.6): 35.6 342 1876(5.5) 317(0.9) 342(1.0)
        1 %, Dirichlet (.3): 36.1 343 1990(5.8) 317(0.9) 342(1.0)
        1 %, Dirichlet (.3): 35.1 321 1866(5.8) 294(0.9) 314(1.0)
    """,
    "table-5-cifar-10": """
        1 %, IID: 82.6 660 1544(2.3) 892(1.4) 1000+(>1.5)
        1 %, IID: 81.6 543 1150(2.1) 603(1.1) 707(1.3)
        1 %, Dirichlet (.6): 81.0 561 1510(2.7) 977(1.7) 841(1.5)
        1 %, Dirichlet (.6): 80.0 436 1100(2.5) 673(1.5) 623(1.4)
        1 %, Dirichlet (.3): 79.0 590 1580(2.7) 955(1.6) 738(1.3)
        1 %, Dirichlet (.3): 78.0 452 1272(2.8) 653(1.4) 497(1.1)
    """,
    "table-5-mnist": """
        1 %, IID: 98.3 529 956(1.8) 644(1.2) 451(0.9)
        1 %, IID: 97.3 145 290(2.0) 151(1.0) 143(1.0)
        1 %, Dirichlet (.6): 98.2 486 1502(3.1) 863(1.8) 754(1.6)
        1 %, Dirichlet (.6): 97.2 180 332(1.8) 199(1.1) 166(0.9)
        1 %, Dirichlet (.3): 98.2 521 954(1.8) 951(1.8) 974(1.9)
        1 %, Dirichlet (.3): 97.2 157 318(2.0) 169(1.1) 177(1.1)
    """,
    "table-5-emnist-l": """
        1 %, IID: 94.9 483 1136(2.4) 826(1.7) 1000+(>2.1)
        1 %, IID: 93.9 210 554(2.6) 216(1.0) 238(1.1)
        1 %, Dirichlet (.6): 94.8 405 1230(3.0) 504(1.2) 1000+(>2.5)
        1 %, Dirichlet (.6): 93.8 195 576(3.0) 256(1.3) 294(1.5)
        1 %, Dirichlet (.3): 94.4 442 1860(4.2) 481(1.1) 1000+(>2.3)
        1 %, Dirichlet (.3): 93.4 241 694(2.9) 286(1.2) 279(1.2)
    """,
    "table-5-shakespeare": """
        1 %, IID: 43.0 170 460(2.7) 188(1.1) 151(0.9)
        1 %, IID: 42.0 148 342(2.3) 149(1.0) 142(1.0)
        1 %, Non-IID: 43.8 158 388(2.5) 159(1.0) 153(1.0)
        1 %, Non-IID: 42.8 143 318(2.2) 146(1.0) 145(1.0)
    """,
    "table-6": """
        Homogeneous: 0.0603 32 70(2.2) 136(4.2) 49(1.5)
        Type 1: 1.5717 17 88(5.2) 20(1.2) 18(1.1)
        Type 2: 0.1205 150 164(1.1) 274(1.8) 275(1.8)
        Type 3: 0.0854 34 260(7.6) 79(2.3) 106(3.1)
    """,
}
"""As the tables print them: the row; the accuracy, or the loss; the models sent by FedDyn,
SCAFFOLD, FedAvg and FedProx, with the savings of FedDyn."""

CELL = re.compile(r"(\d+)(\+?)\((>?)([\d.]+)\)")


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_numbers_are_those_it_prints(name: str) -> None:
    race, *_ = ITEMS[f"feddyn/{name}"].races
    assert race.columns == ("FedDyn", "SCAFFOLD", "FedAvg", "FedProx")
    assert (race.unit, race.relative) == ("models", "first column")
    for row, line in zip(race.rows, PRINTED[name].strip().splitlines(), strict=True):
        title, _, numbers = line.strip().partition(": ")
        assert row.title.startswith(title)
        target, feddyn, *others = numbers.split()
        per_cent = row.target.measure == "test_accuracy"
        assert row.target.value == pytest.approx(float(target) / (100 if per_cent else 1))
        first, *rest = (entry for entry in row.entries if entry)
        assert str(first.paper) == feddyn
        for entry, cell in zip(rest, others, strict=True):
            found = CELL.fullmatch(cell)
            assert found
            count, more, above, saving = found.groups()
            assert str(entry.paper) == count + more
            assert bool(more) == bool(above)
            # the printed saving follows from the printed numbers: a slip would show
            digits = len(saving.partition(".")[2])
            assert abs(int(count) / int(feddyn) - float(saving)) <= 0.5 * 10**-digits + 1e-9


def methods(run: Table) -> list[tuple[Algorithm, Solver]]:
    """The methods of a run and the solver of each, found with data that need no file."""
    easy: Table = {"data": {"name": "synthetic"}, "model": {"name": "logistic"}}
    known = {k: v for k, v in (run | easy).items() if k not in (MOST_SEEDS, SHORT)}
    resolved = resolve(parse("easy", known))
    return [(method, method.solver(resolved.solver)) for method in resolved.methods]


def rows_of(run: str) -> int:
    """Examples of a client of mean size."""
    by_name = {"mnist": 600, "emnist-l": 480, "cifar-": 500, "shakespeare": 2000}
    size = next(size for name, size in by_name.items() if run.startswith(f"feddyn-{name}"))
    return size * 100 // clients_of(run)


def clients_of(run: str) -> int:
    """Clients of a run."""
    return next((n for n in (500, 1000) if f"-{n}-clients" in run), 100)


TABLES = {
    run: table
    for name in PRINTED
    if name != "table-6"
    for run, table in ITEMS[f"feddyn/{name}"].runs.items()
    if not run.endswith("-half")
}


@pytest.mark.parametrize("run", TABLES)
def test_every_row_has_what_appendix_a2_says_of_all(run: str) -> None:
    table = TABLES[run]
    found = methods(table)
    assert [method.name for method, _ in found] == ["feddyn", "scaffold", "fedavg", "fedprox"]
    (feddyn, own), (_, scaffold), (_, fedavg), (fedprox, proximal) = found
    text = "shakespeare" in run
    for _, solver in found:
        assert solver.learning_rate == (1.0 if text else 0.1)
        assert solver.batch_size == (100 if text else 50)
        assert solver.weight_decay == (1e-3 if "cifar" in run else 1e-4)
        assert solver.clip == 10
    # "we searched K values to have the same amount of local computation"
    assert scaffold.steps == own.steps_for(rows_of(run))
    assert proximal == fedavg
    assert feddyn.variant == ("balanced" if "unbalanced" in run else "")
    assert 1e-4 in np.atleast_1d(fedprox.hparams["mu"])
    assert table["evaluation"]["model"] == "clients"
    assert table["stop_at_target"] == "any"
    clients = clients_of(run)
    percent = int(run.partition("-percent")[0].rpartition("-")[2])
    assert table["cohort"]["clients_per_round"] == clients * percent // 100


@pytest.mark.parametrize(
    ("run", "rounds", "decay", "alpha", "epochs", "steps"),
    [
        ("mnist-100-percent-iid", 500, 1.0, 0.01, (50, 20), 600),
        ("mnist-10-percent-iid", 1000, 0.998, 0.03, (50, 10), 600),
        ("mnist-10-percent-dirichlet-0.3", 1000, 0.998, 0.01, (50, 10), 600),
        ("mnist-1-percent-iid", 1000, 0.998, 0.01, (50, 10), 600),
        ("emnist-l-100-percent-dirichlet-0.6", 1000, 0.998, 0.005, (50, 20), 500),
        ("emnist-l-10-percent-iid", 1000, 0.998, 0.003, (50, 10), 500),
        ("emnist-l-10-percent-dirichlet-0.6", 1000, 0.998, 0.005, (50, 10), 500),
        ("emnist-l-10-percent-dirichlet-0.3", 1000, 0.998, 0.01, (50, 10), 500),
        ("emnist-l-1-percent-iid", 1000, 0.998, 0.003, (50, 10), 500),
        ("emnist-l-1-percent-dirichlet-0.6", 1000, 0.998, 0.001, (50, 10), 500),
        ("emnist-l-1-percent-dirichlet-0.3", 1000, 0.998, 0.005, (50, 10), 500),
        ("cifar-10-10-percent-iid", 1000, 0.998, (0.001, 0.01, 0.1), (5, 5), 50),
        ("cifar-10-10-percent-iid-1000-clients", 2000, 0.998, (0.001, 0.01, 0.1), (5, 5), 5),
        ("cifar-100-1-percent-iid", 1000, 0.998, (0.001, 0.01, 0.1), (5, 5), 50),
        ("cifar-100-10-percent-iid-500-clients", 2000, 0.998, 0.01, (2, 2), 4),
        ("cifar-100-10-percent-dirichlet-0.3-unbalanced", 1000, 0.998, 0.1, (2, 2), 20),
        ("shakespeare-100-percent-roles-2000", 150, 1.0, 0.009, (5, 5), 100),
        ("shakespeare-10-percent-iid-2000", 250, 1.0, 0.015, (5, 5), 100),
        ("shakespeare-1-percent-roles-2000", 250, 0.998, 0.001, (5, 5), 100),
    ],
)
def test_rows_have_the_settings_of_appendix_a2(
    run: str,
    rounds: int,
    decay: float,
    alpha: float | tuple[float, ...],
    epochs: tuple[int, int],
    steps: int,
) -> None:
    table = TABLES[f"feddyn-{run}"]
    (feddyn, own), (_, scaffold), (_, fedavg), _ = methods(table)
    assert table["rounds"] == rounds
    assert own.learning_rate_decay == fedavg.learning_rate_decay == decay
    np.testing.assert_array_equal(np.ravel(feddyn.hparams["alpha"]), np.ravel(alpha))
    assert (own.epochs, fedavg.epochs) == epochs
    assert scaffold.steps == steps


LARGE = [run for run in TABLES if "cifar" in run or "shakespeare" in run]
"""The runs of the large models."""


def rows_read(table: Table) -> tuple[int, int, int]:
    """Rows that training draws from, test rows, and the most test rows of a client."""
    data = table["data"]
    if data["name"] == "shakespeare":
        return 200_000, 40_000, 400
    classes = int(data["name"].removeprefix("cifar-"))
    _, test = with_test_set(
        data["partition"],
        np.repeat(np.arange(classes), 50_000 // classes),
        np.repeat(np.arange(classes), 10_000 // classes),
        clients=data["clients"],
        concentration=data.get("concentration"),
        size_spread=data.get("size_spread", 0.0),
        seed=0,
    )
    return 50_000, 10_000, max(map(len, test))


@pytest.mark.parametrize("run", LARGE)
def test_evaluations_read_all_test_rows_for_a_tenth_of_the_training(run: str) -> None:
    table = TABLES[run]
    trained, tested, most = rows_read(table)
    every, rows = table["evaluation"]["every"], table["evaluation"]["rows"]
    # accuracy has no sampling error
    assert rows >= most
    clients, cohort = table["data"]["clients"], table["cohort"]
    present = float(cohort["clients_per_round"])
    if cohort["sampling"] == "bernoulli":
        present /= 1 - (1 - present / clients) ** clients
    read = tested + clients * rows
    cost = 3 * table["solver"]["epochs"] * present * trained / clients
    assert read <= 0.1 * cost * every
    # and no more seldom than that asks for, up to a round number
    assert every == 1 or read > 0.1 * cost * every / 2
    notes = {
        row.note
        for name in PRINTED
        for race in ITEMS[f"feddyn/{name}"].races
        for row in race.rows
        for entry in row.entries
        if entry and entry.run == run
    }
    assert any(f"every {every} rounds" in note for note in notes) == (every > 1)


def test_targets_are_the_printed_accuracies_to_the_last_bit() -> None:
    # 94.9 / 100 lies above 0.949, where 7,592 of 8,000 images lie
    targets = {
        row.target.value
        for name, item in ITEMS.items()
        if name.startswith("feddyn/")
        for race in item.races
        for row in race.rows
        if row.target.measure == "test_accuracy"
    }
    assert 0.949 in targets
    assert all(value == float(f"{value:.4f}") for value in targets)


AXES = {
    # the last rounds on the axes of a figure's rows
    "figure-4": (2000, 1000),
    "figure-5": (2000, 1000),
    "figure-6": (1000, 1000, 1000),
    "figure-7": (1000, 1000, 1000),
    "figure-8": (1000, 1000),
    "figure-8-full": (500,),
    "figure-9": (1000, 1000),
    "figure-9-full": (500,),
    "figure-10": (150, 250, 250),
    "figure-12": (1000, 1000),
    "figure-13": (1000, 1000),
}


@pytest.mark.parametrize("name", AXES)
def test_curves_are_the_rows_of_the_tables_to_the_end_of_the_papers_axes(name: str) -> None:
    item = ITEMS[f"feddyn/{name}"]
    for row, rounds in zip(item.rows, AXES[name], strict=True):
        for panel in row.panels:
            (key,) = {curve.run for curve in panel.curves}
            assert [curve.shown for curve in panel.curves] == list(COLUMNS)
            run, of_table = item.runs[key], TABLES[key.removesuffix("-curves")]
            assert run["rounds"] == rounds
            assert "target_accuracy" not in run
            alike = ("data", "model", "cohort", "solver", MOST_SEEDS)
            assert {part: run[part] for part in alike} == {part: of_table[part] for part in alike}
            for ours, searched in zip(methods(run), methods(of_table), strict=True):
                assert ours[1] == searched[1]
                assert ours[0].name == searched[0].name
                for hparam, values in ours[0].hparams.items():
                    assert np.isin(values, searched[0].hparams[hparam]).all()
            # no more work than the tables' evaluations, a tenth of the training
            assert run["evaluation"]["every"] >= of_table["evaluation"].get("every", 1)
            for seeds in expand(run, SCALES["short"]).values():
                assert seeds["rounds"] <= 2
                assert seeds["data"]["clients"] == 10
    assert sum(len(row.panels) for row in item.rows) == len(item.runs)


def test_cifar_100s_items_read_its_official_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path / "cache"))
    files = {"train": old(batch(1000, 100)), "test": old(batch(500, 100, 1))}
    archive(tmp_path / "cifar-100" / "cifar-100-python.tar.gz", "cifar-100-python", files)
    ours = {name: item for name, item in ITEMS.items() if name.startswith("feddyn/")}
    items = {name: item for name, item in ours.items() if "cifar-100" in item.data}
    assert {name.removeprefix("feddyn/") for name in items} == {
        *(f"table-{i}-cifar-100" for i in range(1, 6)),
        *(f"figure-{i}" for i in (5, 7, 13)),
    }
    read = set()
    for item in items.values():
        assert NOT_RUN in item.notes
        for key, run in item.runs.items():
            (one,) = expand(run, SCALES["paper"]).values()
            data = repr(one["data"])
            if data in read:
                continue
            read.add(data)
            resolved = resolve(parse(key, one), tmp_path)
            assert len(resolved.federation) == run["data"]["clients"] == clients_of(key)
            assert resolved.federation.classes == 100
            assert len(resolved.federation.test) == 500
            size = resolved.federation.train.sizes
            assert (np.ptp(size) > 1) == ("unbalanced" in key)
    assert len(read) == 7  # three splits, two with 500 clients and two unbalanced


def test_fedprox_without_the_quadratic_runs_as_fedprox_does() -> None:
    first, second = ITEMS["feddyn/table-2-mnist"].races
    runs = ITEMS["feddyn/table-2-mnist"].runs
    for row, both in zip(first.rows, second.rows, strict=True):
        whole, half = both.entries
        assert whole == row.entries[3]
        assert half is not None
        assert whole is not None
        assert (half.paper, both.target) == (whole.paper, row.target)
        table = runs[half.run]
        assert table | {"method": None} == runs[whole.run] | {"method": None}
        assert table["method"] == [runs[whole.run]["method"][3] | {"name": WITHOUT_QUADRATIC}]


def test_splits_are_the_papers() -> None:
    def data(run: str) -> Table:
        return TABLES[f"feddyn-{run}"]["data"]

    assert data("mnist-10-percent-iid") == {
        "name": "mnist",
        "pixels": "standardised",
        "partition": "iid",
    }
    third = {"partition": "dirichlet", "concentration": 0.3}
    assert data("emnist-l-1-percent-dirichlet-0.3") == {"name": "emnist-l", **third}
    unbalanced = data("cifar-10-10-percent-dirichlet-0.3-unbalanced")
    assert data("cifar-100-1-percent-iid")["name"] == "cifar-100"
    assert data("cifar-100-10-percent-iid-500-clients")["clients"] == 500
    assert unbalanced.items() >= (third | {"size_spread": 0.3, "augmentation": "feddyn"}).items()
    assert data("cifar-10-10-percent-iid-1000-clients")["clients"] == 1000
    assert data("shakespeare-10-percent-roles-2000")["partition"] == "roles-2000"


def test_table_6_searches_what_appendix_a1_lists() -> None:
    runs = ITEMS["feddyn/table-6"].runs
    for run, table in runs.items():
        if "-half-" in run:
            ((half, _),) = methods(table)
            assert (half.name, half.variant) == ("fedprox", "without the quadratic")
            continue
        grid: dict[str, set[tuple[int | None, int | None]]] = {}
        for method, solver in methods(table):
            grid.setdefault(method.name, set()).add((solver.epochs, solver.steps))
            assert solver.learning_rate == [1.0, 0.1]
            assert (solver.batch_size, solver.weight_decay) == (10, 1e-5)
            if method.name == "feddyn":
                assert method.hparams["alpha"] == (0.1, 0.01, 0.001)
                assert method.variant == ("balanced" if run.endswith("type3") else "")
            if method.name == "fedprox":
                assert method.hparams["mu"] == (0.01, 0.0001)
        epochs = {(1, None), (10, None), (50, None)}
        steps = {(None, 20), (None, 200), (None, 1000)}
        assert grid == {"feddyn": epochs, "fedavg": epochs, "fedprox": epochs, "scaffold": steps}
        assert table["cohort"]["clients_per_round"] == 2


def optimum(heterogeneity: str, draw: int) -> float:
    """f where f + (1e-5 / 2) ||w||^2 is least, by Newton's method."""
    train = synthetic_feddyn(heterogeneity, seed=draw).train  # type: ignore[arg-type]
    x = np.c_[train.x, np.ones(len(train.y))].astype(float)
    y, (n, d) = np.eye(5)[train.y], x.shape

    def log_shares(w: Any) -> Any:
        scores = x @ w.reshape(5, d).T
        return (
            scores
            - scores.max(1, keepdims=True)
            - np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1, keepdims=True))
        )

    def loss(w: Any) -> float:
        return float(-(y * log_shares(w)).sum() / n)

    w = np.zeros(5 * d)
    while True:
        shares = np.exp(log_shares(w))
        gradient = ((shares - y).T @ x / n).ravel() + 1e-5 * w
        if np.linalg.norm(gradient) < 1e-7:
            return loss(w)
        hessian = 1e-5 * np.eye(5 * d)
        for a, b in np.ndindex(5, 5):
            weights = shares[:, a] * ((a == b) - shares[:, b]) / n
            hessian[a * d : (a + 1) * d, b * d : (b + 1) * d] += (x * weights[:, None]).T @ x
        step, length, now = np.linalg.solve(hessian, gradient), 1.0, loss(w) + 0.5e-5 * w @ w
        while loss(w - length * step) + 0.5e-5 * ((w - length * step) ** 2).sum() > now:
            length /= 2
        w = w - length * step


@pytest.mark.parametrize("heterogeneity", mostly_slow(SYNTHETIC, "type1"))
def test_the_draw_of_table_6_is_the_first_that_can_reach_the_papers_losses(
    heterogeneity: str,
) -> None:
    _, said, (loss, *_) = SYNTHETIC[heterogeneity]
    assert optimum(heterogeneity, DRAW) == pytest.approx(said, abs=5e-4)
    assert said < loss
    if heterogeneity == "none":
        assert all(optimum(heterogeneity, draw) > loss for draw in range(DRAW))


def test_generated_data_with_a_seed_are_one_draw_for_all_seeds() -> None:
    table = {"rounds": 10, "data": {"name": "synthetic-feddyn", "seed": 7}, SHORT: {}}
    (one,) = expand(table, SCALES["short"]).values()
    assert one == {"rounds": 10, "data": table["data"], "seed": [0, 1]}
