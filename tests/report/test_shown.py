"""How tables, federations, runs and records show themselves."""

import io
import math
from pathlib import Path

import numpy as np
from rich.console import Console

import fedprox as fp
from fedprox.report.table import notes_on
from tests.report.test_report import make_run, record


def test_a_table_prints_as_its_text() -> None:
    long = "a method with a name longer than most terminals are wide " * 3
    table = fp.table([make_run("fedavg"), make_run(long.strip())])
    text = str(table)
    header, first, second = text.splitlines()
    assert header.split()[:3] == ["method", "train", "loss"]
    assert first.split()[:2] == ["fedavg", "1.0000"]
    assert second.startswith(long.strip())
    assert repr(table) == text  # what a Python prompt shows
    assert "\x1b" not in text


def test_a_console_shows_a_table_as_before() -> None:
    shown = io.StringIO()
    Console(file=shown, width=60).print(fp.table([make_run("word " * 12)]))
    assert max(map(len, shown.getvalue().splitlines())) <= 60  # folded to its width


def test_a_line_says_what_epsilon_protects() -> None:
    run = make_run()
    run.history[-1] = record(epsilon=2.0, delta=1e-5)
    assert notes_on([run, run]) == [
        "epsilon: a run's models are (epsilon, 1e-05)-differentially private for each client; "
        "losses, accuracies and the choice among runs are outside the guarantee"
    ]
    run.experiment = {"privacy": {"unit": "example", "measures": {"epsilon": 1.0}}}
    assert notes_on([run]) == [
        "epsilon: a run's models, losses and accuracies are (epsilon, 1e-05)-differentially "
        "private for each row; counts of clients and the choice of a run are outside the guarantee"
    ]


def test_a_federation_is_a_line() -> None:
    clients = [(np.zeros((n, 28, 28), np.float32), [0] * n) for n in (1500, 3)]
    federation = fp.Federation.from_arrays(clients, classes=10)
    assert repr(federation) == (
        "Federation: 2 clients, 1,503 training rows (3 to 1,500 a client), 0 test rows, "
        "10 classes, features float32[28,28]"
    )
    regression = fp.Federation.from_arrays([([[1.0]], [0.5])] * 2)
    assert repr(regression) == (
        "Federation: 2 clients, 2 training rows (1 a client), 0 test rows, features float32[1]"
    )


def test_a_run_and_a_record_are_a_line() -> None:
    run = make_run("fedprox mu=1", losses=(2.0, 0.25, 1.0))
    accuracy = "test accuracy 50.00 %"
    assert repr(run) == (
        f"Run('fedprox mu=1', seed 0: 2 rounds, train loss 1, {accuracy}, best 80.00 %)"
    )
    assert repr(run.final) == f"Record('fedprox mu=1', seed 0, round 2: train loss 1, {accuracy})"
    blind = record(test_accuracy=math.nan, train_loss=math.inf)
    assert repr(blind) == "Record('fedavg', seed 0, round 0: train loss inf)"
    run.history = [blind]
    assert repr(run) == "Run('fedprox mu=1', seed 0: 0 rounds, train loss inf)"
    run.history = []
    assert repr(run) == "Run('fedprox mu=1', seed 0: no records)"


def test_what_epsilon_is_of_is_said_in_plain_words() -> None:
    line = (
        "epsilon: a run's {} are (epsilon, 1e-05)-differentially private for each {}; {} are "
        "outside the guarantee"
    )
    cases = {
        ("client", False): ("models", "losses, accuracies and the choice among runs"),
        ("example", False): ("models", "losses, accuracies and the choice among runs"),
        ("example", True): (
            "models, losses and accuracies",
            "counts of clients and the choice of a run",
        ),
    }
    for (unit, measures), (inside, outside) in cases.items():
        run = make_run()
        run.history = [record(delta=1e-5, epsilon=1.0)]
        run.experiment = {
            "privacy": {"unit": unit, "measures": {"share": 0.5} if measures else None}
        }
        whom = "row" if unit == "example" else unit
        assert notes_on([run, run]) == [line.format(inside, whom, outside)]


def test_one_of_a_kind_is_no_plural() -> None:
    one = fp.Federation.from_arrays([([[1.0]], [0])], [([[1.0]], [0])])
    assert repr(one) == (
        "Federation: 1 client, 1 training row (1 a client), 1 test row, 1 class, "
        "features float32[1]"
    )
    assert "1 round, train loss" in repr(make_run(losses=(2.0, 1.0)))


def test_a_small_checkpoint_has_its_size_in_bytes(tmp_path: Path) -> None:
    checkpoints = fp.Checkpoints(tmp_path)
    for size, shown in ((812, "812 bytes"), (7400, "7.4 kB"), (2_000_000, "2.0 MB")):
        checkpoints.made, checkpoints.size = 1, size
        assert str(checkpoints) == f"1 checkpoint, 0.0 s in all, the last of {shown}"
