"""Tables, figures and files of runs whose clients have devices."""

from dataclasses import replace

import numpy as np

import fedprox as fp
from fedprox.report.directory import summarise
from fedprox.report.figure import curves
from fedprox.report.records import metrics_line
from fedprox.results.record import Record


def run(seed: int, times: list[float], accuracies: list[float]) -> fp.Run:
    """A run whose records are at some times."""
    known = {"train_loss": 1.0}
    history = [
        Record(
            *("fedavg", "fedavg", {}, 0.1, seed, t),
            known
            | {"test_accuracy": accuracy, "communication": t, "time": time, "staleness": float(t)},
        )
        for t, (time, accuracy) in enumerate(zip(times, accuracies, strict=True))
    ]
    return fp.Run("fedavg", {}, 0.1, seed, "fedavg", history)


RUNS = [run(0, [0.0, 10.0, 20.0], [0.0, 0.5, 0.8]), run(1, [0.0, 20.0, 40.0], [0.0, 0.4, 0.8])]


def test_the_table_has_the_time_to_the_target() -> None:
    target = fp.Target("test_accuracy", 0.6)
    shown = fp.table(RUNS, target)
    (cell,) = next(c for c in shown.columns if c.header == "time to 60 %").cells
    assert cell == "22 ± 12"  # 13.3 and 30 seconds
    (missed,) = next(
        c
        for c in fp.table(RUNS, fp.Target("test_accuracy", 0.9)).columns
        if c.header == "time to 90 %"
    ).cells
    assert missed == "40+"
    first = RUNS[0].history[0]
    untimed = {name: value for name, value in first.measures.items() if name != "time"}
    without = [replace(first, measures=untimed)]
    other = fp.Run("fedavg", {}, 0.1, 0, "fedavg", without)
    assert not any("time" in str(column.header) for column in fp.table([other], target).columns)


def test_lines_of_seeds_are_means_at_the_same_time() -> None:
    (line,) = curves({"fedavg": RUNS}, "time", "test_accuracy")
    assert line.x.tolist() == [0.0, 10.0, 20.0]
    np.testing.assert_allclose(line.values, [[0.0, 0.5, 0.8], [0.0, 0.2, 0.4]])
    axes = fp.figure(RUNS).axes
    assert {axis.get_xlabel() for axis in axes} == {"time in seconds"}


def test_files_tell_the_time() -> None:
    lines = [metrics_line(record) for record in RUNS[0].history]
    assert [line["time"] for line in lines] == [0.0, 10.0, 20.0]
    assert [line["staleness"] for line in lines] == [0.0, 1.0, 2.0]
    assert summarise(RUNS[0], fp.Target("train_loss", 100.0))["time_to_target"] == 0.0
    assert [row["time"] for row in fp.records(RUNS[:1])] == [0.0, 10.0, 20.0]
