"""An item runs end to end, with the library's guards, and the command around it."""

import csv
import json
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedprox as fp
from experiments import ITEMS
from experiments.__main__ import app
from experiments.engine import run as engine
from experiments.engine.blocks import blocks
from experiments.engine.figure import arrange, figure, from_results, lines_of
from experiments.engine.item import (
    MORE_RATES,
    MOST_SEEDS,
    SCALES,
    Entry,
    Item,
    Panel,
    Race,
    RaceRow,
    Scale,
    Statistics,
    Table,
)
from experiments.engine.run import Step, read_series, reproduce
from experiments.engine.table import AT_SHORT, markdown, table
from experiments.printed import PRINTED
from fedprox import Target
from fedprox.cli import main
from fedprox.errors import InputError
from fedprox.experiment import parse, resolve, train
from fedprox.files.whole import locked
from tests.experiments.made_up import SCALE, TINY, series, tiny
from tests.test_cli import SMALL


class Ran(NamedTuple):
    """What an item left, and the steps it reported."""

    out: Path
    text: str
    steps: list[Step]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    out = tmp_path_factory.mktemp("reproduced")
    steps: list[Step] = []
    return Ran(out, reproduce("made/up", tiny(), SCALE, out, on_step=steps.append), steps)


def test_an_item_runs_end_to_end(ran: Ran) -> None:
    folder = ran.out / "made" / "up"
    results = json.loads((folder / "results.json").read_text())
    assert (results["item"], results["scale"], results["seeds"]) == ("made/up", "tiny", [0, 1])
    assert ran.text.endswith("\n".join(markdown(results["blocks"])).rstrip() + "\n")
    assert {curve["seed"] for curve in results["curves"]} == {0, 1}
    assert all(curve["round"] == [0, 1, 2] for curve in results["curves"])
    assert results["made"]["versions"]["jax"]
    assert {"figure.png", "figure.svg", "metrics.csv", "table.md", "report.html"} <= {
        path.name for path in folder.iterdir()
    }
    assert (folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "table.md").read_text() == ran.text
    assert "2 of 4 rounds; 2 seeds; made up" in ran.text
    assert "+22 %" in ran.text
    assert AT_SHORT not in ran.text
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert {(row["label"], row["seed"]) for row in rows} == {
        (label, seed) for label in ("fedprox mu=0", "fedprox mu=1") for seed in "01"
    }
    assert {row["round"] for row in rows} == {"0", "1", "2"}
    assert {row["mu"] for row in rows if row["label"] == "fedprox mu=1"} == {"1"}
    assert [step.name for step in ran.steps] == ["a-seed-0", "a-seed-1"]


def test_its_experiments_are_ordinary_run_directories(ran: Ran) -> None:
    for seed in (0, 1):
        run = ran.out / "runs" / f"a-seed-{seed}"
        again = tomllib.loads((run / "experiment.toml").read_text())
        assert (again["seed"], again["data"]["seed"], again["rounds"]) == (seed, seed, 2)
        assert (run / "summary.json").is_file()
    found = read_series(run, 1)
    assert [(one.label, one.seed) for one in found] == [("fedprox mu=0", 1), ("fedprox mu=1", 1)]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for one, mu in zip(found, (0, 1), strict=True):
        assert one.rounds.tolist() == [0, 1, 2]
        assert one.of("mu").tolist() == [mu] * 3
        losses = [line["train_loss"] for line in lines if line["label"] == one.label]
        assert one.of("train_loss").tolist() == losses


def test_what_is_complete_is_not_run_again(ran: Ran) -> None:
    text = reproduce("made/up", tiny(), SCALE, ran.out)
    assert "2 of 2 experiments were there already" in text
    assert text.split("\n\n")[2:] == ran.text.split("\n\n")[2:]
    short = reproduce("made/short", tiny(), SCALE._replace(name="short"), ran.out)
    assert AT_SHORT in short
    with pytest.raises(InputError, match="holds another experiment's results"):
        reproduce("made/up", tiny(), Scale("other", 1, (0, 1)), ran.out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": []}, r"method = \[\]; it must be one section or several"),
        ({"data": {"name": "synthetic", "cliens": 3}}, "data: unknown key 'cliens'"),
        ({"cohort": {"clients_per_round": 9}}, r"cohort\.clients_per_round = 9"),
    ],
)
def test_a_refused_experiment_ends_the_item(changes: Table, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^made/up: a-seed-0: {message}") as error:
        reproduce("made/up", tiny(**changes), SCALE, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_missing_data_are_known_before_anything_runs(tmp_path: Path) -> None:
    item = Item("a", "b", {}, {"a": TINY, "b": TINY | {"data": {"name": "mnist"}}})
    with pytest.raises(InputError, match="made/up: b: mnist: train-images"):
        reproduce("made/up", item, SCALE, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_an_item_is_run_by_one_process(tmp_path: Path) -> None:
    name, item = next(iter(ITEMS.items()))
    with locked(tmp_path / name), pytest.raises(InputError, match="is being written by"):
        reproduce(name, item, SCALES["short"], tmp_path)
    assert list(tmp_path.rglob("*.*")) == []


class Begun(BaseException):
    """The first method's rounds would begin now."""


def stop(_: object) -> None:
    raise Begun


def test_an_item_does_not_warn_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tomllib.loads(SMALL) | {"seed": 0, "method": [{"name": "fedavg"}]}
    # a class that only test rows have
    table |= {"data": {"name": "synthetic", "clients": 2, "seed": 1}}
    table["cohort"]["clients_per_round"] = 2
    experiment = parse("small", table)
    with pytest.warns(UserWarning, match=r"in training \(4\)"), suppress(Begun):
        train(experiment, resolve(experiment), [fp.Callback(on_record=stop)], progress=False)
    monkeypatch.setattr("fedprox.report.directory.RunDirectory.record", lambda *_: stop(None))
    with suppress(Begun):
        engine._train("small", experiment, tmp_path / "out", None)


def test_statistics_stand_below_the_papers(tmp_path: Path) -> None:
    four = (
        Statistics("Drawn", (30, 1000, 33, 9), {"name": "synthetic", "clients": 30}),
        Statistics("Alike", (4, 4, 4, 4), {"name": "synthetic-feddyn", "clients": 4}),
    )
    two = (Statistics("Drawn", (1000, 100), {"name": "synthetic", "clients": 4}, "few"),)
    texts = [
        reproduce("made/up", Item("Table 0", "nowhere", {}, statistics=rows), SCALE, tmp_path)
        for rows in (four, two)
    ]
    assert "| Drawn | paper | 30 | 1,000 | 33 | 9 |" in texts[0]
    assert "|  | ours | 30 | " in texts[0]
    assert texts[0].count("2 draws") == 1
    assert "|  | ours | 4 | 1,600 | 400 | 0 |  |" in texts[0]
    drawn = [fp.datasets.synthetic(clients=4, seed=seed) for seed in (0, 1)]
    assert "| data |  | training examples | test examples | made with |" in texts[1]
    train_rows = np.mean([len(one.train) for one in drawn])
    assert f"|  | ours | {train_rows:,.0f} ± " in texts[1]
    assert texts[1].endswith("2 draws; few |\n")


# ------------------------------------------------------------------------------------- the figure


def test_a_seed_that_stopped_early_does_not_shorten_the_others() -> None:
    lines = [
        series("fedprox mu=0", [2, np.nan], 0, [0.1, 0.1]),
        series("fedprox mu=0", [2, 1.5, 1.2, 1], 1, [0.1, 0.2, 0.3, 0.4]),
        *(series("fedprox mu=1", [2, 1.5, 1.2, 1], s, [0.1, 0.2, 0.3, 0.4], mu=1) for s in (0, 1)),
    ]
    axis = figure(tiny(), {"a": lines}).axes[0]
    zero, one = (np.asarray(line.get_ydata(), float) for line in axis.get_lines())
    assert np.isfinite(zero).tolist() == [True, False, False, False]
    np.testing.assert_allclose(one, [2, 1.5, 1.2, 1])
    ends = [np.asarray(band.get_paths()[0].vertices)[:, 0].max() for band in axis.collections]
    assert ends == [0, 3]


def test_a_figure_is_drawn_again_from_its_results(ran: Ran) -> None:
    found = read_series(ran.out / "runs" / "a-seed-0", None, None)
    curves = json.loads((ran.out / "made" / "up" / "results.json").read_text())["curves"]
    stored = [{**one, "round": [4 * t for t in one["round"]]} for one in curves if not one["seed"]]
    seldom = {"a": [one._replace(rounds=4 * one.rounds) for one in found]}
    for one, again in zip(
        figure(tiny(), seldom).axes, figure(tiny(), from_results(stored)).axes, strict=True
    ):
        for line, drawn in zip(one.get_lines(), again.get_lines(), strict=True):
            np.testing.assert_allclose(
                np.asarray(line.get_data(), float), np.asarray(drawn.get_data(), float), rtol=1e-5
            )


@pytest.mark.parametrize(
    ("rows", "columns", "titles"),
    [
        (["ab", "c"], 2, "abc "),
        (["abcde"], 3, "abcde"),
        (["abcd"], 2, "abcd"),
        (["abcd", "efg"], 2, "aebfcgd "),
    ],
)
def test_panels_fit_a_page(rows: list[str], columns: int, titles: str) -> None:
    found, side_by_side = arrange([[Panel(title, "", ()) for title in row] for row in rows])
    assert side_by_side == columns
    assert "".join(panel.title if panel else " " for panel in found) == titles


def test_a_legend_names_runs_only_where_their_lines_are_named_alike() -> None:
    panel = Panel("MNIST", "train_loss", ("a", "b, MNIST"))
    measured = {"a": [series("fedavg", [2, 1])], "b, MNIST": [series("fedprox mu=1", [2, 1])]}
    assert [shown for _, shown, _ in lines_of(panel, measured)] == ["fedavg", "fedprox mu=1"]
    measured["a"].append(series("fedprox mu=1", [2, 1]))
    shown = ["fedavg, a", "fedprox mu=1, a", "fedprox mu=1, b"]
    assert [name for _, name, _ in lines_of(panel, measured)] == shown


def test_a_diverged_line_does_not_flatten_the_others() -> None:
    item, calm = tiny(), np.linspace(2, 1, 20)
    wild = np.concatenate([calm[:5], np.geomspace(2, 1e6, 10), np.full(5, np.nan)])
    measured = {
        "a": [
            one
            for seed in (0, 1)
            for one in (
                series("fedprox mu=0", wild, seed, calm / 2),
                series("fedprox mu=1", calm, seed, calm / 2, mu=1.0),
            )
        ]
    }
    first, _, second = figure(item, measured).axes[:3]
    assert 2 < first.get_ylim()[1] < 15
    assert (first.get_title(), first.get_ylabel()) == ("A", "training loss (log scale)")
    colours = [[line.get_color() for line in axis.get_lines()] for axis in (first, second)]
    assert colours[0] == colours[1]
    assert len(set(colours[0])) == 2
    text = table("made/up", item, SCALE, blocks(item, SCALE, measured, {}), "1 s")
    assert "| A | fedprox mu=0 | 10 (diverged) | 10 (diverged) |" in text
    assert "| A | fedprox mu=1 | 19 (last round) | 19 (last round) |" in text


# ------------------------------------------------------------------------------ races end to end

RACE: Table = TINY | {
    "rounds": 24,
    "target_loss": 2.0,
    "stop_at_target": "any",
    "evaluation": {"gradients": False},
    MOST_SEEDS: 1,
}
GOAL = Target("train_loss", 2.0)


def test_a_race_runs_end_to_end(tmp_path: Path) -> None:
    run = RACE | {
        "solver": {"learning_rate": [1e-9, 0.03], "batch_size": 10, "epochs": 1},
        "method": [{"name": "fedavg"}, {"name": "feddane", "mu": 1.0}],
    }
    rows = (RaceRow("drawn", GOAL, (Entry("a", "fedavg", 5), Entry("a", "feddane", "40+"))),)
    races = (Race(("FedAvg", "FedDANE"), rows, "models", "first column"),)
    item = Item("Table 0", "nowhere", {"tiny": 1.0}, {"a": run}, races=races)
    text = reproduce("made/up", item, SCALE, tmp_path)
    assert "Models sent, relative to one round of FedAvg, to the target" in text
    assert "| drawn | loss 2 | paper 5; ours " in text
    assert "at most 12 of 24 rounds; 1 seed |" in text
    assert "`python -m experiments made/up --scale tiny`, seed 0, " in text
    summary = json.loads((tmp_path / "runs" / "a-seed-0" / "summary.json").read_text())
    models = {one["label"]: one["models_to_target"] for one in summary}
    reached = models["fedavg learning_rate=0.03"]
    assert f"ours {reached:.1f}; learning_rate=0.03 of 1e-09, 0.03" in text.replace(
        " (at the edge)", ""
    )


def test_a_search_grows_end_to_end(tmp_path: Path) -> None:
    run = RACE | {
        "data": TINY["data"] | {"seed": 0},
        "solver": {"learning_rate": 0.0003, "batch_size": 10, "epochs": 1},
        "method": [{"name": "fedavg"}],
        MORE_RATES: [0.0003, 0.003, 0.03, 0.3, 3.0, 30.0],
    }
    rows = (RaceRow("drawn", GOAL, (Entry("a", "fedavg", 5),)),)
    races = (Race(("FedAvg",), rows, "rounds", "first row"),)
    other = {key: value for key, value in run.items() if key != MORE_RATES}
    item = Item("Table 0", "nowhere", {"tiny": 1.0}, {"a": run, "b": other}, races=races)
    steps: list[Step] = []
    text = reproduce("made/up", item, SCALE, tmp_path, on_step=steps.append)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert [step.of for step in steps] == [2, *range(3, len(steps) + 1), len(steps)]
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert folders[:3] == ["a", "a-rate-0.003", "a-rate-0.03"]
    assert " of 0.0003, 0.003, 0.03" in text
    assert "at the edge" not in text
    again = reproduce("made/up", item, SCALE, tmp_path)
    assert f"({len(folders)} of {len(folders)} experiments were there already)" in again
    assert again.split("\n\n")[2:] == text.split("\n\n")[2:]
    short = reproduce("made/up", item, SCALES["short"], tmp_path / "short")
    assert sorted(path.name for path in (tmp_path / "short" / "runs").iterdir()) == ["a", "b"]
    assert "ours" in short


# ----------------------------------------------------------------------------------- the command


def command(*arguments: str, capsys: Any, monkeypatch: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedprox", *arguments])
    with pytest.raises(SystemExit) as end:
        main(app)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_the_listing_names_every_item_and_a_printed_one_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = command(capsys=capsys, monkeypatch=monkeypatch)
    assert status == 0
    assert all(name in out for name in ITEMS)
    assert all(f"{name}: {printed.title}\n" in out for name, printed in PRINTED.items())
    path = PRINTED["feddyn/figure-4"].path
    found = command("feddyn/figure-4", capsys=capsys, monkeypatch=monkeypatch)
    assert found == (0, f"fedprox run {path}\n\n{path.read_text()}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedprox/figre-1"], "no item 'fedprox/figre-1'; did you mean fedprox/figure-1 or"),
        (["nothing at all"], "no item 'nothing at all'; `python -m experiments` lists them"),
        (["other/"], "no item 'other/'"),
        (["fedprox/figure-1", "--scale", "long"], "--scale long; it must be short or paper"),
    ],
)
def test_bad_names_get_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status, out, err = command(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_command_runs_an_item_and_prints_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Statistics("Drawn", (30, 1000, 33, 9), {"name": "synthetic"})
    item = Item("Table 0", "nowhere", {"short": 1.0, "paper": 200.0}, statistics=(drawn,))
    monkeypatch.setitem(ITEMS, "made/up", item)
    for name in ("use_cpu_devices", "use_compilation_cache"):
        monkeypatch.setattr(f"experiments.__main__.{name}", lambda *_, **__: None)
    arguments = ["made/up", "--out", str(tmp_path), "--scale", "paper"]
    status, out, err = command(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert (status, err) == (0, "")
    assert "made/up: Table 0; about 3 min on two cores" in out
    assert "| Drawn | paper | 30 | 1,000 | 33 | 9 |" in out
    assert (tmp_path / "made" / "up" / "table.md").read_text().strip() in out
