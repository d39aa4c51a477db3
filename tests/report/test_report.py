"""The HTML report: what it reads, what it draws, and that a real browser shows it."""

import dataclasses
import html
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console

import fedprox as fp
from fedprox.devices import programs
from fedprox.diagnostics.clients import client_measures
from fedprox.engine.compiled import evaluation
from fedprox.errors import InputError
from fedprox.files.whole import write_whole
from fedprox.losses import CrossEntropy, top_1
from fedprox.measures import Measure, measure_of
from fedprox.report.archive import read_archive
from fedprox.report.directory import summarise, write_clients, write_figure
from fedprox.report.figure import DASHES, Chart, Line, chart, figure, ranked, styles
from fedprox.report.page import overlay, section, write_report
from fedprox.report.records import metrics_line, read_record
from fedprox.report.saved import model_file
from fedprox.results.record import Record
from fedprox.results.run import Run
from tests import browser as driving
from tests.browser import Browser, browser
from tests.test_cli import status

NASTY = "</script><script>document.title='taken'</script><b>&"

GOAL = fp.Target("test_accuracy", 0.3)

EXPERIMENT = {
    "rounds": 4,
    "seed": [0, 1],
    "data": {"name": "synthetic", "clients": 4},
    "cohort": {"clients_per_round": 2},
    "systems": {"stragglers": 0.5},
    "solver": {"learning_rate": 0.01, "optimizer_options": {}},
    "method": [{"name": "fedavg"}, {"name": NASTY, "mu": [0.0, 1.0]}],
}


def record(**changes: Any) -> Record:
    usual: dict[str, Any] = {
        "train_loss": 1.0,
        "test_accuracy": 0.5,
        "gradient_variance": 2.0,
        "dissimilarity": 1.5,
        "gamma_mean": math.nan,
        "gamma_max": math.nan,
        "solves": 2,
        "unsolved": 0,
        "clients": 2,
        "stragglers": 1,
        "dropped": 0,
        "client_steps": 7,
        "total_steps": 0,
        "communication": 0,
    }
    own: dict[str, Any] = {"label": "fedavg", "method": "fedavg", "hparams": {}, "seed": 0}
    own |= {"learning_rate": 0.01, "round": 0, "metrics": {}, "by_client": None}
    own |= {name: changes.pop(name) for name in own if name in changes}
    measures = {name: value for name, value in (usual | changes).items() if value is not None}
    return Record(**own, measures=measures)


def make_run(label: str = "fedavg", seed: int = 0, losses: Sequence[float] = (2.0, 1.0)) -> Run:
    """A run whose accuracy falls as its loss grows."""
    history = [
        record(
            label=label,
            method=label,
            seed=seed,
            round=t,
            train_loss=loss,
            test_accuracy=1 / (1 + loss) if math.isfinite(loss) else math.nan,
            gamma_mean=0.25 if t else math.nan,
            client_steps=10 * (seed + 1) if t else 0,
            total_steps=10 * (seed + 1) * t,
            communication=t,
        )
        for t, loss in enumerate(losses)
    ]
    return Run(label, {}, 0.01, seed, label, history, run_seconds=1.5)


def write_run(folder: Path, runs: Sequence[Run], *, finished: bool = True) -> Path:
    """A run directory as `fedprox run` leaves it, without models and figures."""
    folder.mkdir()
    (folder / "experiment.toml").write_text(tomli_w.dumps(EXPERIMENT))
    lines = [json.dumps(metrics_line(r)) + "\n" for run in runs for r in run.history]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if finished:
        (folder / "summary.json").write_text(json.dumps([summarise(run, GOAL) for run in runs]))
    return folder


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


DIAGNOSIS = {
    "facts": [{"what": "clients", "value": "4", "note": "<i>few</i>"}],
    "sizes": [10, 100, 1000, 30],
    "classes": [1.0, 2.5, 3.0, 1.5],
    "path": {"round": [0, 2], "dissimilarity": [3.0, 4.0], "gradient_variance": [9.0, None]},
    "sweep": [
        {"mu": 0.0, "round": [0, 2], "train_loss": [2.0, None]}
        | dict.fromkeys(("late_loss", "spread", "expected_gap")),
        {"mu": 0.1, "round": [0, 2], "train_loss": [2.0, 1.0]}
        | {"late_loss": 1.0, "spread": 0.25, "expected_gap": 0.125},
    ],
    "suggested_mu": 0.1,
    "theory_mu": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with two seeds, a label that must be escaped, clients and a diagnosis."""
    labels, seeds = ("fedavg", "fedprox mu=1", NASTY), (0, 1)
    runs = [
        make_run(label, seed, np.linspace(3, 1 + i + seed / 2, 5).tolist())
        for i, label in enumerate(labels)
        for seed in seeds
    ]
    made = write_run(tmp_path_factory.mktemp("report") / "a <run>", runs)
    accuracies = [0.0, 0.5, None, 1.0]
    found = [{"label": r.label, "seed": r.seed, "test_accuracy": accuracies} for r in runs]
    write_json(made / "clients.json", found)
    write_json(made / "diagnosis.json", DIAGNOSIS)
    return made


# What the clients get


DRAW = """
import sys
from pathlib import Path
from fedprox.report.directory import write_figure
from fedprox.report.figure import figure
from tests.report.test_report import make_run
write_figure(Path(sys.argv[1]), figure([make_run("a"), make_run("b", losses=(3.0, 0.5))]))
"""


@pytest.mark.slow
def test_a_figure_of_the_same_run_has_the_same_bytes(tmp_path: Path) -> None:
    """Also in another process and at another time, which matplotlib would write into it."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1000000000")
        write_figure(tmp_path / "first", figure([make_run("a"), make_run("b", losses=(3.0, 0.5))]))
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-c", DRAW, str(tmp_path / "second")]
    subprocess.run(command, check=True, env=environment)
    drawn = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("first", "second")
    ]
    assert drawn[0].keys() == {"figure.png", "figure.svg"}
    assert drawn[0] == drawn[1]


def test_client_accuracy_is_that_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "ROWS", 64)
    federation = fp.datasets.synthetic(alpha=1.0, beta=1.0, clients=8)
    model = fp.models.logistic(federation)
    assert len(federation.test) % 64  # the last slice overlaps the one before
    programs.PROGRAMS.clear()
    rng = np.random.default_rng(0)
    for _ in range(2):
        weight, bias = rng.normal(size=(10, 60)), rng.normal(size=10)
        params = {"dense": {"weight": np.float32(weight), "bias": np.float32(bias)}}
        found = client_measures(federation, model, params)["test_accuracy"]
        for k in range(len(federation)):
            x, y = federation.test.client(k)
            assert found[k] == pytest.approx(np.mean((x @ weight.T + bias).argmax(axis=1) == y))
    assert len(programs.PROGRAMS) == 1  # one program for all runs


def test_client_accuracy_keeps_the_rows_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[list[Any]] = []

    def device_put(x: Any) -> Any:
        moved.append(jax.tree.leaves(x))
        return x

    monkeypatch.setattr(jax, "device_put", device_put)
    x, text = np.zeros((9, 2), np.float32), np.arange(30, dtype=np.int32) % 3
    labels = np.zeros(9, np.int64)
    for features in (x, fp.Windows(text, np.arange(9, dtype=np.int32), 2)):
        rows = fp.Rows(features, labels, np.array([0, 4, 9]))
        federation = fp.Federation(rows, rows, 3, ("a", "b"))
        model = fp.Model(
            lambda _: jnp.ones(3), lambda w, x: w + 0 * x[:, :1], CrossEntropy(), top_1
        )
        client_measures(federation, model, jnp.ones(3))["test_accuracy"]
    plain, windows = moved
    assert [a.shape for a in plain] == [(0, 2)]
    assert [a.shape for a in windows] == [(30,), (0,)]  # the text alone


def test_clients_without_test_rows_have_no_accuracy(tmp_path: Path) -> None:
    train = [(np.ones((2, 1)), [0, 1])] * 2
    model = fp.Model(lambda _: np.float32(0), lambda w, x: jnp.hstack([x + w, x]))
    blind = dataclasses.replace(model, correct=None)
    for without, test in ((model, None), (blind, train)):
        federation = fp.Federation.from_arrays(train, test)
        assert np.isnan(client_measures(federation, without, np.float32(1))["test_accuracy"]).all()
    federation = fp.Federation.from_arrays(train, [([], []), ([[1.0], [2.0]], [0, 1])])
    run = make_run()
    run.params = np.float32(1)
    write_clients(tmp_path, federation, model, [run])
    (found,) = json.loads((tmp_path / "clients.json").read_text())
    nothing, loss = found.pop("test_loss")
    assert found == {
        "label": "fedavg",
        "seed": 0,
        "clients": ["0", "1"],
        "training_rows": [2, 2],
        "test_rows": [0, 2],
        "test_accuracy": [None, 0.5],
    }
    assert nothing is None
    assert loss == pytest.approx((math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 2)


# Records as flat rows


def test_records_are_rectangular_with_the_keys_of_metrics() -> None:
    plain, swept = make_run(), make_run()
    swept.history = [
        record(hparams={"mu": 1.0, "other": 2.0}, test_accuracy=math.nan, faulty=3) for _ in "ab"
    ]
    rows = fp.records([plain, swept])
    assert len(rows) == len(plain.history) + 2
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert list(rows[0])[:4] == ["label", "method", "mu", "other"]
    assert set(metrics_line(swept.history[0])) | set(metrics_line(plain.history[0])) == set(rows[0])
    for row in rows[: len(plain.history)]:
        assert all(math.isnan(row[key]) for key in ("mu", "other", "faulty"))
    last = rows[-1]
    assert (last["mu"], last["other"], last["faulty"]) == (1.0, 2.0, 3)
    assert math.isnan(last["test_accuracy"])  # and not None, which would make a column of objects
    for row in rows:
        assert all(value is not None for value in row.values())
    assert not {"train_loss_se", "faulty_clients"} & row.keys()
    assert fp.records([]) == []


# Reading a run directory back


def test_a_record_is_read_as_it_was_written() -> None:
    written = record(hparams={"mu": 0.1, "other": 2.0}, gamma_mean=0.1 + 0.2, train_loss=1e-300)
    line = metrics_line(written)
    again = read_record(json.dumps(line).encode())
    assert metrics_line(again) == line
    assert (again.hparams, again.gamma_mean) == (written.hparams, 0.1 + 0.2)
    for bad in (math.nan, math.inf):
        diverged = json.dumps(metrics_line(record(train_loss=bad))).encode()
        assert math.isnan(read_record(diverged).train_loss)


def test_a_hyperparameter_named_as_a_measure_has_a_key_of_its_own() -> None:
    written = record(hparams={"epsilon": 0.25})  # FedExp's; a record's own is that of privacy
    line = metrics_line(written)
    assert line["hparam_epsilon"] == 0.25
    assert "epsilon" not in line
    again = read_record(json.dumps(line).encode())
    assert (again.hparams, again.epsilon) == ({"epsilon": 0.25}, None)
    private = metrics_line(
        dataclasses.replace(written, measures={**written.measures, "epsilon": 2.0, "delta": 1e-5})
    )
    assert (private["hparam_epsilon"], private["epsilon"]) == (0.25, 2.0)
    run = fp.Run("fedexp", written.hparams, 0.1, 0, "fedexp", [written])
    (row,) = fp.records([run])
    assert row["hparam_epsilon"] == 0.25
    shown = summarise(run, None)
    assert shown["hparam_epsilon"] == 0.25
    assert "epsilon" not in shown


def test_runs_come_back_with_their_seconds(folder: Path) -> None:
    archive = read_archive(folder)
    assert [(r.label, r.seed) for r in archive.runs[:3]] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("fedprox mu=1", 0),
    ]
    assert {len(r.history) for r in archive.runs} == {5}
    assert {r.run_seconds for r in archive.runs} == {1.5}
    assert archive.finished


LINE = json.dumps(metrics_line(record()))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.jsonl", '{"round": 0', "line 3 is damaged"),
        ("metrics.jsonl", '{"round": 0}', "line 3 is damaged: label: "),
        ("metrics.jsonl", "[1]", "line 3 is damaged: not a JSON object"),
        ("metrics.jsonl", "", "line 3 is damaged"),
        ("metrics.jsonl", "\udcff", "line 3 is damaged"),
        (
            "metrics.jsonl",
            LINE.replace('"round": 0', '"round": "x"'),
            "line 3 is damaged: round: Input should be a valid integer",
        ),
        ("metrics.jsonl", LINE.replace("1.0", "NaN"), "line 3 is damaged: NaN is not JSON"),
        ("metrics.jsonl", LINE, "line 3 is damaged: 'fedavg', seed 0, has round 0 after round 1"),
        ("metrics.jsonl", LINE.replace("0", "1" * 400), "a whole number beyond 64 bits"),
        ("metrics.jsonl", "[" * 100_000, "line 3 is damaged: arrays or objects within others"),
        (
            "summary.json",
            '[{"label": "a", "seed": 99999999999999999999, "run_seconds": 1, "sweep_points": 1}]',
            "damaged: 0.seed: Input should be less than 9223372036854775808",
        ),
        ("summary.json", "{}", "damaged: Input should be a valid array"),
        ("summary.json", '[{"label": 3}]', "damaged: 0.label: Input should be a valid string"),
        ("clients.json", "nonsense", "damaged: Invalid JSON"),
        ("clients.json", '[{"label": "a", "seed": 0, "test_accuracy": [NaN]}]', "finite number"),
        ("diagnosis.json", "{}", "damaged: facts: Field required"),
        ("experiment.toml", "rounds =", "damaged: Invalid value"),
        ("experiment.toml", "rounds = 3", "damaged: data: Field required"),
    ],
)
def test_damage_is_one_line_that_names_the_place(
    file: str, content: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    made = write_run(tmp_path / "run", [make_run()])
    before = (made / file).read_bytes() if file == "metrics.jsonl" else b""
    (made / file).write_bytes(before + content.encode(errors="surrogateescape") + b"\n")
    assert status("report", made, "--out", tmp_path / "page.html") == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(made / file) in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_models_with_long_labels_have_files_of_their_own(tmp_path: Path) -> None:
    label = "fedopt " + "\u03b5=1e-8 " * 60
    files = {model_file(label + end, 2**63 - 1) for end in "ab"}
    assert len(files) == 2
    for file in files:
        write_whole(tmp_path / file, b"")  # by way of another name, which is longer


def test_what_is_no_run_directory_is_refused(tmp_path: Path, capsys: Any) -> None:
    def refused(*arguments: object) -> str:
        assert status("report", *arguments) == 2
        error = str(capsys.readouterr().err)
        assert error.count("\n") == 1
        return error

    page = tmp_path / "page.html"
    assert "none: no such folder" in refused(tmp_path / "none", "--out", page)
    assert "no experiment.toml; not a run directory" in refused(tmp_path, "--out", page)
    made = write_run(tmp_path / "run", [])
    assert "run: no evaluated rounds yet" in refused(made, "--out", page)
    (made / "metrics.jsonl").unlink()
    assert "run: no evaluated rounds yet" in refused(made, "--out", page)
    good = write_run(tmp_path / "good", [make_run()])
    assert "no evaluated rounds yet" in refused(good, made, "--out", page)
    assert "good is not a file" in refused(good, "--out", good)
    assert "no is not a folder" in refused(good, "--out", tmp_path / "no" / "page.html")
    assert "not the name of an HTML file" in refused(good, "--out", good / "metrics.jsonl")
    assert "RUN_DIR" in refused("--out", page)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "good"}
    with pytest.raises(InputError, match="no run directories"):
        write_report([], page)


def test_an_interrupted_run_gives_a_page_that_says_so(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", [make_run(), make_run(seed=1)], finished=False)
    write_report([made], tmp_path / "page.html")
    page = html.unescape((tmp_path / "page.html").read_text())
    assert "did not finish" in page
    assert "Rounds done, of 4: fedavg, seed 0: 1; fedavg, seed 1: 1." in page
    assert '<th scope="col">seconds</th>' not in page


def test_the_seed_that_was_running_is_left_out_of_the_lines(tmp_path: Path) -> None:
    whole, diverged = (5.0, 4.0, 3.0, 2.0, 1.0), (5.0, math.inf)
    done = [make_run(losses=whole), make_run(seed=1, losses=diverged), make_run(seed=2)]
    archive = read_archive(write_run(tmp_path / "run", done, finished=False))
    assert [run.seed for run in archive.shown] == [0, 1]
    shown = section(archive, styles(["fedavg"]))
    assert any("seed that was running is left out" in line for line in shown["warnings"])
    whole_table = read_archive(write_run(tmp_path / "whole", done))
    assert [run.seed for run in whole_table.shown] == [0, 1, 2]
    # of a method of which it is the only one it is all that there is
    first = [*done[:2], make_run("fedprox mu=1")]
    archive = read_archive(write_run(tmp_path / "first", first, finished=False))
    assert len(archive.shown) == 3


def test_a_note_says_whether_evaluations_read_a_sample(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", [make_run()])
    for extra in ("", "evaluation.rows = 5\n"):
        (made / "experiment.toml").write_text(extra + tomli_w.dumps(EXPERIMENT))
        note = section(read_archive(made), styles(["fedavg"]))["groups"][0].note
        assert note == ("Evaluations read a sample of the clients' rows." if extra else "")


def test_notebooks_show_a_figure() -> None:
    shown: Any = fp.figure([make_run("fedavg")])
    assert shown._repr_png_().startswith(b"\x89PNG")


def test_labels_of_ones_own_are_shown_as_they_are() -> None:
    labels = ["_mine", "a$x^$b $y_{$", "a [b] c", "q[/b]"]
    runs = [make_run(label) for label in labels]
    drawn = fp.figure(runs)
    drawn.draw_without_rendering()
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == labels
    console = Console(width=200)
    with console.capture() as printed:
        console.print(fp.table(runs))
    assert all(label in printed.get() for label in labels)


# What is drawn


def drawn(lines: Sequence[Line], y: Measure = Measure(axis="y")) -> Chart:  # noqa: B008
    return chart("t", "n", lines, styles(line.label for line in lines), measure_of("round"), y)


def shown_of(folder: Path, runs: Sequence[Run], **changes: Any) -> dict[str, Any]:
    """The section of a report of some runs, which are written to a folder."""
    archive = read_archive(write_run(folder, runs, **changes))
    return dict(section(archive, styles(run.label for run in archive.runs)))


def lines_of(shown: Chart) -> list[dict[str, Any]]:
    return list(shown.data["lines"])


def test_a_line_is_the_mean_and_its_band_one_deviation() -> None:
    x = np.arange(3.0)
    values = np.array([[1.0, 2.0, 6.0], [3.0, 2.0, 2.0], [2.0, 2.0, 4.0]])
    (line,) = lines_of(drawn([Line("a", x, values)]))
    assert line["label"] == "a"
    assert [line[key] for key in ("x", "y")] == [[0, 1, 2], [2, 2, 4]]
    assert [line[key] for key in ("low", "high")] == [[1, 2, 2], [3, 2, 6]]


def test_bands_are_those_of_the_table(folder: Path) -> None:
    archive = read_archive(folder)
    shown = section(archive, styles(run.label for run in archive.runs))
    assert shown["results"] is not None
    assert "mean ± standard deviation over 2 seeds" in shown["results"].caption
    (accuracy,) = (c for c in shown["groups"][0].charts if c.title == "Test accuracy")
    mean, low, high = (lines_of(accuracy)[0][key][-1] for key in ("y", "low", "high"))
    deviation = (high - low) / 2
    assert deviation > 0
    assert shown["results"].rows[0][2] == f"{100 * mean:.2f} ± {100 * deviation:.2f} %"
    told = "Lines are means over 2 seeds, bands ± one standard deviation, as in the table."
    assert [group.note for group in shown["groups"][:2]] == [told, told]
    assert told in shown["groups"][2].note


def test_a_band_on_a_logarithmic_axis_is_cut_off_at_the_least_value() -> None:
    shown = drawn([Line("a", np.arange(2.0), np.array([[100.0, 1.0], [100.0, 30.0]]))])
    (line,) = lines_of(shown)
    assert shown.data["y"]["log"]
    assert line["y"] == [100.0, 15.5]
    assert (line["low"], line["high"]) == ([100, 1], [100, 36.006])


def test_what_is_not_finite_is_a_gap() -> None:
    values = np.array([[1.0, np.inf, 2.0, 3.0], [1.0, 1.0, 2.0, 5.0]])
    (line,) = lines_of(drawn([Line("a", np.arange(4.0), values)]))
    assert line["y"] == [1.0, None, 2.0, 4.0]
    assert line["low"] == [1, None, 2, 2.5858]
    assert line["high"] == [1, None, 2, 5.4142]
    (line,) = lines_of(drawn([Line("a", np.arange(4.0), values[:1])]))
    assert (line["y"], line["low"]) == ([1.0, None, 2.0, 3.0], [])


@pytest.mark.parametrize(
    ("values", "percent", "log"),
    [
        ([1.0, 19.0], False, False),
        ([1.0, 21.0], False, True),
        ([0.0, 21.0], False, False),
        ([-1.0, 21.0], False, False),
        ([0.01, 1.0], True, False),
        ([np.nan, np.nan], False, False),
    ],
)
def test_an_axis_is_logarithmic_beyond_twentyfold(
    values: list[float], percent: bool, log: bool
) -> None:
    line = Line("a", np.arange(2.0), np.array([values]))
    axis = drawn([line], Measure(axis="y", percent=percent)).data["y"]
    assert axis["log"] is log
    assert axis["title"] == ("y (log scale)" if log else "y")


@pytest.mark.parametrize(("low", "high"), [(0.3, 7.0), (0.5, 1e9)])
def test_logarithmic_axes_of_the_figure_have_numbers_and_say_so(low: float, high: float) -> None:
    shown = figure([make_run(losses=[high, low])])
    shown.draw_without_rendering()
    axis = shown.axes[0]
    assert axis.get_ylabel() == "f(w) (log scale)"
    lowest, highest = axis.get_ylim()
    ticks = [t for t in axis.yaxis.get_major_ticks() if lowest <= t.get_loc() <= highest]
    labels = [tick.label1.get_text() for tick in ticks]
    assert [float(label) for label in labels] == [tick.get_loc() for tick in ticks]
    assert len(labels) >= 3
    assert {label.get_text() for label in axis.yaxis.get_minorticklabels()} <= {""}
    linear = figure([make_run(losses=[2.0, 1.0])]).axes[0]
    assert (linear.get_yscale(), linear.get_ylabel()) == ("linear", "f(w)")


def test_bands_of_the_figure_are_those_of_the_report() -> None:
    seeds = [make_run(seed=seed, losses=losses) for seed, losses in enumerate([[3, 1], [5, 3]])]
    shown = figure(seeds)
    assert shown.get_suptitle() == (
        "Lines are means over 2 seeds, bands ± one standard deviation, as in the table."
    )
    (path,) = shown.axes[0].collections[0].get_paths()
    vertices = np.asarray(path.vertices)
    edges = vertices[vertices[:, 0] == 1, 1]
    assert [edges.min(), edges.max()] == pytest.approx([2 - math.sqrt(2), 2 + math.sqrt(2)])


def test_a_long_label_leaves_the_panels_their_width() -> None:
    short, long = (figure([make_run(label)]) for label in ("a", "a very long label " * 8))
    widths = []
    for shown in (short, long):
        shown.draw_without_rendering()
        widths.append(shown.axes[0].get_position().width)
    assert widths[1] > 0.9 * widths[0]


def test_clients_are_ranked() -> None:
    line = ranked("a", [np.array([0.3, 0.1, 0.2]), np.array([0.5, 0.7, 0.6])])
    np.testing.assert_allclose(line.values, [[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]])
    many = ranked("a", [np.linspace(0, 1, 5001)[::-1]])
    np.testing.assert_allclose(many.values[0], np.linspace(0, 1, 201))


def test_more_labels_than_colours_still_look_different() -> None:
    looks = styles(str(i) for i in range(32))
    assert len({(look["colour"], look["dash"]) for look in looks.values()}) == 32


# Linear RGB as seen without one kind of cone (Machado et al. 2009, severity 1), and in grey
SEEN = {
    "by all": np.eye(3),
    "without long waves": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
    "without middle waves": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
    "without short waves": np.array(
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]
    ),
    "in grey": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    """CIELAB of a colour (D65): unlike one another from a distance of about 10."""
    coded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", SEEN)
def test_lines_are_told_apart_in_grey_and_by_colour_blind_readers(seen: str) -> None:
    looks = list(styles(map(str, range(8))).values())
    for one, other in combinations(looks, 2):
        apart = np.linalg.norm(lab(one["colour"], SEEN[seen]) - lab(other["colour"], SEEN[seen]))
        assert one["dash"] != other["dash"] or apart > 10, (one, other)
    # 3 : 1 on white, as the guidelines of the web ask of lines
    assert all(lab(look["colour"], SEEN[seen])[0] < 61 for look in looks)


def test_a_line_looks_the_same_in_the_report_and_in_the_figure() -> None:
    runs = [make_run(f"m{i}") for i in range(6)]
    axis = figure(runs).axes[0]
    for run, line in zip(runs, axis.get_lines(), strict=True):
        look = styles(each.label for each in runs)[run.label]
        (expected,) = Figure().subplots().plot([0, 1], linestyle=DASHES[look["dash"]])
        assert line.get_color() == look["colour"]
        assert vars(line)["_unscaled_dash_pattern"] == vars(expected)["_unscaled_dash_pattern"]


def test_text_of_figures_has_eight_points_on_a_page() -> None:
    many = [make_run(f"method {i}", losses=[3.0, 1.0 + i]) for i in range(5)]
    shown = figure(many)
    shown.draw_without_rendering()
    assert shown.get_size_inches()[0] <= 7.5
    written = [each for each in shown.findobj() if isinstance(each, Text) and each.get_text()]
    assert len(written) > 20
    assert min(float(text.get_fontsize()) for text in written) >= 8


def test_a_line_that_diverges_does_not_flatten_the_others() -> None:
    losses = {"a": [2.0, 1.0], "b": [2.0, 1.2], "c": [2.0, 15.0]}
    axis = figure([make_run(name, losses=values) for name, values in losses.items()]).axes[0]
    assert axis.get_yscale() == "linear"
    assert 4 <= axis.get_ylim()[1] < 4.5
    lines = [Line(name, np.arange(2.0), np.array([values])) for name, values in losses.items()]
    assert drawn(lines, measure_of("train_loss")).data["y"]["most"] == 4
    # nor does one without bounds, on a logarithmic axis
    lines[2] = Line("c", np.arange(2.0), np.array([[2.0, 1e9]]))
    assert drawn(lines, measure_of("train_loss")).data["y"]["most"] == 8
    # but a line that is above all others is seen
    lines[2] = Line("c", np.arange(2.0), np.array([[19.0, 18.0]]))
    assert drawn(lines, measure_of("train_loss")).data["y"]["most"] == 18


def test_a_line_that_does_not_move_hides_no_other() -> None:
    still, moving = make_run("still", losses=[1, 1]), make_run("moving", losses=[1, 2])
    (panel, *_) = figure([still, moving]).axes
    assert panel.get_ylim()[0] < 1
    assert panel.get_ylim()[1] > 2


def test_accuracies_are_in_per_cent() -> None:
    shown = figure([make_run()])
    shown.draw_without_rendering()
    axis = next(each for each in shown.axes if each.get_title() == "test accuracy")
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels
    assert all(label.endswith(" %") for label in labels)


def test_a_diverged_run_is_named_and_left_out_of_the_clients(tmp_path: Path) -> None:
    runs = [make_run(), make_run("bad", losses=[1.0, math.inf])]
    made = write_run(tmp_path / "run", runs)
    found = [{"label": r.label, "seed": 0, "test_accuracy": [0.25, 0.75]} for r in runs]
    write_json(made / "clients.json", found)
    archive = read_archive(made)
    shown = section(archive, styles(r.label for r in archive.runs))
    assert any(
        "bad: training loss rose from 1 to a number that" in warning
        for warning in shown["warnings"]
    )
    (behind,) = (group for group in shown["groups"] if group.title == "Who is left behind")
    assert behind.tables[0].rows == [
        ["fedavg", "50.00 %", "50.00 %", "25.00 %", "75.00 %", "25.00 %", "25.00 %"]
    ]


def test_the_distribution_over_clients_has_curves_if_records_have_it(tmp_path: Path) -> None:
    names = ["mean", "worst", "best"]
    titles = ["Client accuracy, mean", "Client accuracy, worst 10 %", "Client accuracy, best 10 %"]
    run = make_run()
    run.history = [
        record(**{f"client_accuracy_{name}": 0.1 * i + t for i, name in enumerate(names)}, round=t)
        for t in range(2)
    ]
    for name, runs in (("plain", [make_run()]), ("fair", [run])):
        (against, _) = shown_of(tmp_path / name, runs)["groups"]
        drawn = {chart.title: lines_of(chart) for chart in against.charts}
        assert set(titles) & drawn.keys() == (set(titles) if name == "fair" else set())
    for i, title in enumerate(titles):
        (line,) = drawn[title]
        assert line["y"] == [0.1 * i, pytest.approx(0.1 * i + 1)]


def test_losses_and_metrics_on_held_out_rows_have_figures(tmp_path: Path) -> None:
    values = {"test_loss": 2.0, "validation_loss": 3.0}
    metrics = {"train_f1": 0.5, "test_f1": 0.4, "validation_f1": 0.3}
    run = make_run()
    run.history = [record(round=t, **values, metrics=metrics) for t in range(2)]
    against, _ = shown_of(tmp_path / "run", [run])["groups"]
    drawn = {chart.title: lines_of(chart)[0]["y"] for chart in against.charts}
    assert {"Test loss", "Validation loss", "Test f1", "Validation f1"} <= drawn.keys()
    assert drawn["Validation f1"] == [0.3, 0.3]
    assert "Train f1" not in drawn


def test_adaptive_mu_has_a_figure_of_its_own(tmp_path: Path) -> None:
    history = [record(round=t, hparams={"mu": mu}) for t, mu in enumerate((0.0, 0.1, 0.0))]
    shown = shown_of(tmp_path / "run", [Run("fedavg", {}, 0.01, 0, "fedavg", history)])
    (mu,) = (c for c in shown["groups"][0].charts if c.title == "Mu in force")
    assert lines_of(mu)[0]["y"] == [0.0, 0.1, 0.0]


def test_local_solves_that_missed_their_gamma_are_named(tmp_path: Path) -> None:
    history = [record(), record(round=1, unsolved=1)]
    shown = shown_of(tmp_path / "run", [Run("fedavg", {}, 0.01, 0, "fedavg", history)])
    (warning,) = shown["warnings"]
    assert warning.startswith("fedavg: 1 of 2 measured local solves")


def test_runs_of_several_directories_are_overlaid(tmp_path: Path) -> None:
    """Each by its own name and colour."""
    names = ("a", "b", "c")
    made = [write_run(tmp_path / name, [make_run("fedavg"), make_run("x")]) for name in names]
    shown = overlay([read_archive(path) for path in made])
    lines = [f"{name}: {label}" for name in names for label in ("fedavg", "x")]
    assert list(shown.keys) == lines
    assert len({tuple(look.values()) for look in shown.keys.values()}) == len(lines)
    titles = [c.title for c in shown.charts]
    assert titles == [
        "Training loss",
        "Test accuracy",
        "Gradient variance",
        "Dissimilarity B(w)",
        "Inexactness gamma",
    ]
    for each in shown.charts:
        assert [line["label"] for line in lines_of(each)] == lines


def test_directories_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name / "run", [make_run("fedavg")])
    shown = overlay([read_archive(tmp_path / name / "run") for name in ("a", "b")])
    assert list(shown.keys) == [f"{tmp_path / name / 'run'}: fedavg" for name in ("a", "b")]


def test_the_lead_says_who_trains_and_how_long(folder: Path) -> None:
    lead = section(read_archive(folder), styles(["fedavg", "fedprox mu=1", NASTY]))["lead"]
    assert lead == "synthetic · 4 clients · 2 a round · 4 rounds · 50 % stragglers · 2 seeds"


def test_a_diagnosis_alone_makes_a_page(tmp_path: Path) -> None:
    made = write_run(tmp_path / "run", [], finished=False)
    write_json(made / "diagnosis.json", DIAGNOSIS)
    shown = section(read_archive(made), {})
    assert [group.title for group in shown["groups"]] == [
        "Diagnosis: the federation",
        "Diagnosis: which mu",
    ]
    assert shown["groups"][1].tables[0].rows == [
        ["mu = 0", "diverged", ""],
        ["mu = 0.1 (suggested)", "1.0000 ± 0.2500", "0.1250"],
    ]
    assert shown["groups"][1].note == "Suggested: mu = 0.1."
    assert not shown["warnings"]


# The page


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    """A page of two run directories, the second an interrupted one."""
    other = write_run(folder.parent / "other", [make_run("fedprox mu=1")], finished=False)
    out = folder.parent / "page.html"
    assert status("report", folder, other, "--out", out) == 0
    return out


def test_the_page_asks_for_nothing_and_everything_is_escaped(page: Path) -> None:
    own = page.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?:|//\w+\.", own)
    assert not re.search(r"\b(src|@import|url)\b\s*[=(]", own)
    assert "document.title" in own  # the label is there, but never as markup
    assert "<script>document" not in own
    assert "<b>&" not in own
    assert "<i>few" not in own
    assert own.count("</script>") == own.count("<script")
    assert '<html lang="en">' in own


def test_the_page_is_the_same_for_the_same_runs(page: Path, folder: Path, tmp_path: Path) -> None:
    write_report([folder, folder.parent / "other"], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_the_page_is_small(page: Path) -> None:
    """Whoever makes a study has dozens of them."""
    assert len(page.read_bytes()) < 100_000


def test_a_report_says_who_won_by_paired_differences(tmp_path: Path) -> None:
    def won(name: str, *runs: Run, finished: bool = True) -> list[str]:
        return list(shown_of(tmp_path / name, runs, finished=finished)["conclusions"])

    def seeds(label: str, method: str, better: float) -> list[Run]:
        made = [make_run(label, s, (3, 2 + s / 4 - better + s * s / 50)) for s in range(3)]
        for run in made:
            run.history = [dataclasses.replace(each, method=method) for each in run.history]
        return made

    first, worse, best = seeds("a", "a", 0), seeds("b x=1", "b", 0.9), seeds("b x=2", "b", 1)
    (sentence,) = won("three", *first, *worse, *best)
    # the best of another method, not the second best value of its own
    assert re.match(r"b x=2 is best: test accuracy \d+\.\d\d points .* above a over 3 ", sentence)
    (sentence,) = won("two", *worse, *best)
    assert "above b x=1" in sentence
    assert won("one", *first) == []
    assert won("cut", *first, *best, finished=False) == []
    assert won("unequal", *first, *best[1:]) == []


def test_without_test_rows_the_training_loss_says_who_won(tmp_path: Path) -> None:
    runs = [
        make_run(label, s, (3, last + s / 9))
        for label, last in (("a", 2), ("b", 1))
        for s in (0, 1)
    ]
    unknown = {"test_accuracy": math.nan}
    for run in runs:
        run.history = [
            dataclasses.replace(each, measures={**each.measures, **unknown}) for each in run.history
        ]
    shown = shown_of(tmp_path / "run", runs)
    assert shown["conclusions"] == [
        "b leads: training loss 1.0000 [1.0000, 1.0000] below a; 2 seeds are too few to say how "
        "surely."
    ]


def test_tables_are_saved_as_csv_and_latex(folder: Path) -> None:
    archive = read_archive(folder)
    shown = section(archive, styles(run.label for run in archive.runs))
    assert shown["results"] is not None
    header, *rows = shown["results"].files["csv"].splitlines()
    assert header.startswith("label,method,mu,learning_rate,seed,round,train_loss,")
    assert len(rows) == len(archive.runs)
    tex = shown["results"].files["tex"]
    assert r"\begin{tabular}{lrrrrrr}" in tex
    assert r"fedavg & " in tex
    assert r"$\pm$" in tex
    facts = shown["groups"][-2].tables[0].files["csv"]
    assert facts == "what,value,note\r\nclients,4,<i>few</i>\r\n"


# In a browser


@pytest.fixture(scope="module")
def opened(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if driving.CHROMIUM is None or driving.DRIVER is None:
        pytest.skip("no chromium and chromedriver on the PATH: apt-get install chromium-driver")
    with browser(tmp_path_factory.mktemp("profile")) as session:
        session.post("/url", url="about:blank")
        session.requests()  # those of the browser's first tab
        session.open(page)
        session.wait("'ready' in document.documentElement.dataset")
        yield session


VISIBLE = """
return [...document.querySelectorAll('#run-1 .plot')].map(plot =>
  plot.querySelectorAll('path.line').length)
"""
"""Lines drawn in each figure of the first section."""

OF_RUNS = 8
"""Figures of runs: five against rounds, two against cost, one of clients."""

LINES = [*[3] * OF_RUNS, 1, 1, 1, 1, 2]
"""Lines of these, of two distributions over clients, two on the path, and the sweep."""


@pytest.mark.slow
def test_all_figures_are_drawn_without_a_word_from_the_console(opened: Browser, page: Path) -> None:
    assert opened.console() == []
    asked = [url for url in opened.requests() if not url.startswith(("data:", "blob:"))]
    assert asked == [page.resolve().as_uri()]
    assert opened.run(VISIBLE) == LINES
    bands = opened.run(
        "return [...document.querySelectorAll('#run-1 .plot')]"
        ".map(p => p.querySelectorAll('path.band').length)"
    )
    assert bands == [3] * OF_RUNS + [0] * 5
    assert opened.run("return document.title") == "2 experiments \N{EN DASH} fedprox"


@pytest.mark.slow
def test_a_label_has_the_same_colour_everywhere(opened: Browser) -> None:
    found = opened.run(
        "return [...document.querySelectorAll('[data-label=\"fedprox mu=1\"].line')]"
        ".map(line => line.getAttribute('stroke'))"
    )
    assert len(found) == OF_RUNS + 7
    assert len(set(found)) == 1


PLOT_AREA = """
const plot = document.querySelectorAll('#run-1 .plot')[arguments[0]];
plot.scrollIntoView({block: 'center', behavior: 'instant'});
const box = plot.querySelector('svg svg').getBoundingClientRect();
return [box.left, box.top, box.width, box.height].map(Math.round);
"""


@pytest.mark.slow
def test_hovering_shows_values(opened: Browser) -> None:
    left, top, width, height = opened.run(PLOT_AREA, 0)
    opened.mouse((left + 5, top + 5), (left + width // 2, top + height // 2))
    opened.wait("document.querySelector('#run-1 .plot .values')")
    shown = opened.run("return document.querySelector('#run-1 .plot .values').innerText")
    # half-way, at round 2: seed 0 falls from 3 to 1, seed 1 from 3 to 1.5
    assert shown.startswith("round 2\n")
    assert "fedavg: 2.125 ± 0.1768" in shown
    assert f"{NASTY}: " in shown


def button(opened: Browser, label: str) -> tuple[int, int]:
    """Where a name of the first section's legend is, in the window."""
    find = f"//section[@id='run-1']//button[@data-label='{label}']"
    element = opened.post("/element", using="xpath", value=find)
    x, y = opened.run(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'});"
        "const b = arguments[0].getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2].map(Math.round)",
        element,
    )
    return x, y


def click(opened: Browser, label: str) -> None:
    opened.mouse(button(opened, label), "down", "up")


def double_click(opened: Browser, at: tuple[int, int], script: str, wanted: Any) -> None:
    """Double-click until a script finds what is wanted.

    On a busy machine the two clicks may come too far apart to count as one double click; they
    then leave things as they were.
    """
    for _ in range(20):
        opened.mouse(at, "down", "up", "down", "up")
        if opened.run(script) == wanted:
            break
    assert opened.run(script) == wanted


@pytest.mark.slow
def test_a_click_on_a_name_hides_its_line_and_band_in_all_figures(opened: Browser) -> None:
    click(opened, "fedavg")
    assert opened.run(VISIBLE) == [2] * OF_RUNS + LINES[OF_RUNS:]
    pressed = "return document.querySelector('#run-1 [data-label=fedavg]').ariaPressed"
    assert opened.run(pressed) == "false"
    bands = "return document.querySelector('#run-1 .plot').querySelectorAll('.band').length"
    assert opened.run(bands) == 2
    click(opened, "fedavg")
    assert opened.run(VISIBLE) == LINES
    assert opened.run(pressed) == "true"


@pytest.mark.slow
def test_a_double_click_on_a_name_leaves_it_alone_and_brings_all_back(opened: Browser) -> None:
    at = button(opened, "fedavg")
    double_click(opened, at, VISIBLE, [1] * OF_RUNS + LINES[OF_RUNS:])
    double_click(opened, at, VISIBLE, LINES)
    click(opened, "mu = 0.1 (suggested)")
    assert opened.run(VISIBLE) == [*LINES[:-1], 1]
    click(opened, "mu = 0.1 (suggested)")
    assert opened.run(VISIBLE) == LINES


SAVED = """
const saved = [], make = URL.createObjectURL;
HTMLAnchorElement.prototype.click = () => {};  // no file is written
URL.createObjectURL = (blob) => { saved.push(blob); return make(blob); };
for (const button of ['div [data-save=tex]', 'figure [data-save=csv]', 'figure [data-save=svg]'])
  document.querySelector(`#run-1 ${button}`).dispatchEvent(
    new MouseEvent('click', {bubbles: true}));
URL.createObjectURL = make;
return Promise.all(saved.map((blob) => blob.text()));
"""


@pytest.mark.slow
def test_tables_and_figures_are_saved(opened: Browser) -> None:
    table, values, drawing = opened.run(SAVED)
    assert table.startswith("\\begin{table}")
    header, first, *_ = values.splitlines()
    assert header == '"label","round","f(w)","mean - std","mean + std"'
    assert first == '"fedavg",0,3,3,3'
    root = ElementTree.fromstring(drawing)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"fedavg", "fedprox mu=1", NASTY} <= {each.text for each in root.iter()}
    assert opened.run(VISIBLE) == LINES


@pytest.mark.slow
def test_dragging_zooms_and_a_double_click_zooms_out(opened: Browser) -> None:
    span = (
        "return [...document.querySelectorAll('#run-1 .plot')[1].querySelectorAll('.xtick')]"
        ".map(tick => Number(tick.textContent))"
    )
    whole = opened.run(span)
    assert whole == [0, 1, 2, 3, 4]
    left, top, width, height = opened.run(PLOT_AREA, 1)
    x, y = (left + width // 4, top + height // 4), (left + width // 2, top + height * 3 // 4)
    opened.mouse(x, "down", y, "up")
    opened.wait(f"({span.removeprefix('return ')})[0] > 0.5")
    low, *_, high = opened.run(span)
    assert 1 <= low < high <= 2.1
    double_click(opened, x, span, whole)


TICKS = """
return [...document.querySelectorAll('#all-runs .plot')].map(plot =>
  [plot.textContent.includes('(log scale)'),
   [...plot.querySelectorAll('.ytick')].map(t => t.textContent)])
"""


@pytest.mark.slow
def test_every_label_of_a_logarithmic_axis_is_a_number(opened: Browser, page: Path) -> None:
    values = np.geomspace(0.03, 8, 9).tolist()
    paths = [page.parent / name for name in ("steep", "steeper")]
    for factor, path in enumerate(paths, start=1):
        write_run(path, [make_run(losses=[factor * v for v in values])])
    write_report(paths, page.parent / "steep.html")
    opened.open(page.parent / "steep.html")
    opened.wait("'ready' in document.documentElement.dataset")
    log, labels = opened.run(TICKS)[0]
    opened.requests()
    opened.open(page)
    opened.wait("'ready' in document.documentElement.dataset")
    assert log
    assert [float(label) for label in labels] == [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20]


SCROLLED = """
return [...document.querySelectorAll('.scroll, figure, dl, .keys')]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)
"""
"""What can be scrolled sideways."""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_fits_the_window(opened: Browser, page: Path, width: int) -> None:
    opened.resize(width)
    opened.wait(f"innerWidth === {width}")
    opened.wait(
        "[...document.querySelectorAll('.plot')]"
        ".every(plot => plot.querySelector('svg').viewBox.baseVal.width === plot.clientWidth)"
    )
    assert opened.run("return document.documentElement.scrollWidth") <= width
    assert opened.run("return document.querySelectorAll('.scroll td').length") > 20
    assert opened.run(SCROLLED) == []
    # nor was there anything in all tests before
    assert opened.console() == []
    assert set(opened.requests()) <= {page.as_uri()}
