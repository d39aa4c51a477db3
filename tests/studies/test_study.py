"""Studies that are trained: tuning, budgets, resuming, files, and what is refused."""

import json
import re
import shutil
import signal
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.experiment import read_study
from fedprox.report import live
from fedprox.report import status as statuses
from fedprox.report.directory import RunDirectory
from fedprox.terminal import Stopped
from tests import commands
from tests.test_cli import fedprox as command
from tests.test_cli import status

FEDERATION = fp.datasets.synthetic(clients=4).hold_out(0.2)

BASE: dict[str, Any] = {
    "model": fp.models.logistic,
    "solver": fp.Solver(learning_rate=[0.01, 0.1], batch_size=10, steps=3),
    "cohort": fp.Cohort(2),
    "evaluation": fp.Evaluation(gradients=False),
    "rounds": 2,
    "seeds": [0, 1],
    "progress": False,
}

METHODS = {"FedAvg": fp.fedavg(), "FedProx": fp.fedprox(mu=1.0)}
FIGURE = fp.Study.figure
ONE = {"stragglers": {"50 %": fp.Systems(0.5)}}
VARY = {"stragglers": {"0 %": fp.Systems(0.0), "50 %": {"systems": fp.Systems(0.5)}}}


@pytest.fixture(scope="module", autouse=True)
def _empty_figures() -> Iterator[None]:
    """Folders hold an empty figure: drawing takes half of the time of these studies."""
    from matplotlib.figure import Figure

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp.Study, "figure", lambda _: Figure(figsize=(1, 1)))
        yield


def study(**changes: Any) -> fp.Study:
    arguments: dict[str, Any] = {"methods": METHODS, "data": FEDERATION, "vary": VARY}
    return fp.study(**arguments | BASE | changes)


def files(folder: Path) -> dict[str, bytes]:
    """What a study leaves that does not depend on how long it took."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in ("summary.json", "report.html")
        and path.parent.name != "checkpoint"
    }


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"vary": {"clients": {"2": fp.Cohort(2), "9": fp.Cohort(9)}}},
            "9, FedAvg: cohort.clients_per_round = 9; the federation has 4 clients",
        ),
        ({"methods": METHODS | {"Scaffnew": fp.scaffnew(p=0.5)}}, "0 %, Scaffnew: scaffnew: it"),
    ],
    ids=["setting", "both"],
)
def test_all_cells_are_checked_before_the_first_is_trained(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(fp.InputError, match=re.escape(line)):
        study(**changes, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[fp.Study, Path]:
    """A study, and its folder."""
    folder = tmp_path_factory.mktemp("study") / "out"
    return study(out=folder), folder


def test_each_run_is_that_of_a_simulation(finished: tuple[fp.Study, Path]) -> None:
    runs = {(*o.levels.values(), run.seed): run for o in finished[0].outcomes for run in o.runs}
    assert len(runs) == 8
    for level, systems in (("0 %", fp.Systems(0.0)), ("50 %", fp.Systems(0.5))):
        others = {k: v for k, v in BASE.items() if k not in ("model", "seeds")}
        known = fp.simulate(
            FEDERATION,
            fp.models.logistic(FEDERATION),
            fp.fedprox(mu=1.0),
            **others,
            systems=systems,
            seed=BASE["seeds"],
        )
        means = {
            label: sum(r.final.validation_accuracy or 0 for r in known if r.label == label)
            for label in dict.fromkeys(run.label for run in known)
        }
        best = max(means, key=means.__getitem__)
        for run in (run for run in known if run.label == best):
            ours = runs[level, "FedProx", run.seed]
            assert ours.label == best
            assert repr(ours.history) == repr(run.history)


def test_what_is_written_says_what_the_study_says(finished: tuple[fp.Study, Path]) -> None:
    trained, folder = finished
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("0-FedAvg", "0-FedProx", "50-FedAvg", "50-FedProx"),
        *("figure.pdf", "figure.png", "figure.svg", "records.csv", "report.html", statuses.STUDY),
        *("table.html", "table.md", "table.tex", "table.txt"),
    }
    read = fp.Study.read(folder)
    assert str(read) == str(trained) == (folder / "table.txt").read_text().rstrip("\n")
    assert repr(read.records()) == repr(trained.records())
    assert read.factors == ["stragglers", "method"]
    page = (folder / "report.html").read_text()
    for sentence in trained.conclusions():
        assert sentence.replace("&", "&amp;") in page
    assert len((folder / "records.csv").read_text().splitlines()) == 9
    caption = "Each method tried 2 combinations of hyperparameters, chosen by the mean validation "
    assert caption + "accuracy over these seeds." in trained.table().caption


def test_a_figure_has_a_panel_for_each_setting(finished: tuple[fp.Study, Path]) -> None:
    drawn: Any = FIGURE(finished[0], "train_loss")
    assert [axis.get_title() for axis in drawn.axes] == ["0 % stragglers", "50 % stragglers"]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == list(METHODS)
    assert drawn.axes[0].get_xlabel() == "round"
    with pytest.raises(fp.InputError, match="along = 'seed'; it must be one of round, time"):
        FIGURE(finished[0], along="seed")


def test_a_study_goes_on_where_it_was_stopped_with_the_same_bytes(
    finished: tuple[fp.Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))
    written = RunDirectory.record

    def stop(self: RunDirectory, record: fp.Record) -> None:
        if next(calls) == 20:  # in the second cell, in its second seed
            raise KeyboardInterrupt
        written(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            study(out=tmp_path / "out")
    complete = [path.parent.name for path in (tmp_path / "out").glob("*/summary.json")]
    assert complete == ["0-FedAvg"]
    untouched = (tmp_path / "out" / "0-FedAvg" / "metrics.jsonl").stat().st_mtime_ns
    study(out=tmp_path / "out")
    assert files(tmp_path / "out") == files(finished[1])
    assert (tmp_path / "out" / "0-FedAvg" / "metrics.jsonl").stat().st_mtime_ns == untouched


@pytest.mark.slow
def test_a_study_is_watched_and_stopped_from_outside(
    finished: tuple[fp.Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "out"
    calls = iter(range(100))
    written = RunDirectory.record

    def stop(self: RunDirectory, record: fp.Record) -> None:
        written(self, record)
        if next(calls) == 20:  # in the second cell
            assert status("status", out) == 0
            assert status("stop", out) == 0

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "record", stop)
        patch.setattr(live, "STATUS_MOST", 1e9)
        patch.setattr(live, "WAIT_FACTOR", 1e12)  # only the first status is written at once
        with pytest.raises(Stopped):
            study(out=out)
    last = {}
    for file in out.glob("*/metrics.jsonl"):
        for record in map(json.loads, file.read_text().splitlines()):
            last[file, record["seed"]] = record["round"]
    left = json.loads((out / "status.json").read_text())
    assert left["rounds_done"] == sum(last.values())
    assert "loss" not in left  # it would be that of one run
    watched = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{re.escape(str(out))}: running, process .*; \d+ s ago:", watched[0])
    assert re.match(r"study, cell \d of 4, seed \d: round \d+ of 16", watched[1])
    assert watched[2].endswith("stops after its current rounds")
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        "metrics.prom",
        "status.json",
    }
    study(out=out)
    assert files(out) == files(finished[1])
    assert status("status", out) == 0
    assert capsys.readouterr().out == f"{out}: complete\n"
    assert status("stop", out) == 2


def test_a_method_is_added_and_only_it_is_trained(
    finished: tuple[fp.Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished[1], tmp_path / "out")
    begun = list[str]()
    written = RunDirectory.record

    def note(self: RunDirectory, record: fp.Record) -> None:
        begun.append(self.path.name)
        written(self, record)

    monkeypatch.setattr(RunDirectory, "record", note)
    more = study(methods=METHODS | {"Half": fp.fedprox(mu=0.5)}, vary=ONE, out=tmp_path / "out")
    assert set(begun) == {"50-Half"}
    assert len(more.outcomes) == 3


@pytest.mark.slow
@pytest.mark.parametrize("tuning", [fp.Tuning(), fp.Tuning(seeds=[100])])
def test_further_seeds_train_only_what_was_chosen(
    tuning: fp.Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"out": tmp_path / "out", "tuning": tuning, "vary": None}
    begun = study(**settings)
    trained = set()
    write = RunDirectory.record

    def note(self: RunDirectory, record: fp.Record) -> None:
        trained.add((self.path.name, record.seed, record.label))
        write(self, record)

    monkeypatch.setattr(RunDirectory, "record", note)
    more = study(**settings, seeds=[0, 1, 7])
    assert {(name, seed) for name, seed, _ in trained} == {
        (f"{method}@seed-7", 7) for method in METHODS
    }
    assert len(trained) == 2  # one combination of each
    for before, after in zip(begun.outcomes, more.outcomes, strict=True):
        assert [run.seed for run in after.runs] == [0, 1, 7]
        assert {run.label for run in after.runs} == {before.runs[0].label}
        assert len({run.learning_rate for run in after.runs}) == 1
        assert after.tried == 2
    over = " 100" if tuning.seeds else "s 0, 1"
    assert f"chosen by the mean validation accuracy over seed{over}." in more.chosen
    assert str(fp.Study.read(tmp_path / "out")) == str(more)
    trained.clear()
    assert str(study(**settings)) == str(begun)
    assert not trained
    table = tomllib.loads((tmp_path / "out" / "FedProx@seed-7" / "experiment.toml").read_text())
    rate = more.outcomes[1].runs[0].learning_rate
    assert table["method"] == [
        {"name": "fedprox", "mu": 1.0, "solver": {"learning_rate": rate}},
    ]
    (other,) = (run for run in more.outcomes[1].runs if run.seed == 7)
    (alone,) = fp.simulate(
        FEDERATION,
        fp.models.logistic(FEDERATION),
        fp.fedprox(mu=1.0),
        **{k: v for k, v in BASE.items() if k not in ("model", "seeds", "solver")},
        solver=fp.Solver(other.learning_rate, batch_size=10, steps=3),
        seed=7,
    )
    assert alone.final.train_loss == other.final.train_loss


@pytest.mark.slow
def test_a_study_is_extended_by_more_rounds(
    finished: tuple[fp.Study, Path], tmp_path: Path
) -> None:
    shutil.copytree(finished[1], tmp_path / "out")
    longer = study(rounds=3, vary=ONE, out=tmp_path / "out")
    assert {run.final.round for run in longer.runs} == {3}
    assert str(study(rounds=3, vary=ONE)) == str(longer)


@pytest.mark.slow
def test_a_metric_of_the_model_is_a_measure(tmp_path: Path) -> None:
    error = fp.Metric(
        lambda outputs, y: (outputs.argmax(-1) != y, jnp.ones(len(y))),
        lambda sums: sums[0] / sums[1],
        lower_is_better=True,
    )
    model = replace(fp.models.logistic(FEDERATION), metrics={"error": error})
    solver = fp.Solver(learning_rate=1.0, batch_size=10, steps=3)
    found = study(model=model, vary=None, measure="test_error", solver=solver, out=tmp_path / "out")
    errors = {o.method: [run.final.metrics["test_error"] for run in o.runs] for o in found.outcomes}
    best = min(errors, key=lambda method: sum(errors[method]))
    assert found.table().best == {(list(errors).index(best), 0)}
    assert ": test error 0." in found.conclusions()[0]
    assert found.conclusions()[0].startswith(best)
    assert str(fp.Study.read(tmp_path / "out")) == str(found)
    neither = fp.Study(found.outcomes, "dissimilarity")
    assert neither.table().best == frozenset()
    assert str(neither).endswith("over 2 seeds.\n")
    with pytest.raises(fp.InputError, match="which values are better is not known"):
        neither.conclusions()


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "table.tex").write_text("mine")
    with pytest.raises(fp.InputError, match="holds other files; name a new or empty folder"):
        study(out=tmp_path)
    with pytest.raises(fp.InputError, match=r"table\.tex is not a folder"):
        study(out=tmp_path / "table.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["table.tex"]
    assert (tmp_path / "table.tex").read_text() == "mine"


def test_another_study_in_the_folder_is_refused(finished: tuple[fp.Study, Path]) -> None:
    with pytest.raises(fp.InputError, match="0-FedAvg holds another experiment's results"):
        study(out=finished[1], cohort=fp.Cohort(3))


@pytest.mark.slow
def test_a_killed_study_continues_with_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    outs = [tmp_path / "whole", tmp_path / "killed"]
    arguments = [["run", str(tmp_path / "study.toml"), "--out", str(out)] for out in outs]
    assert commands.status(commands.start(tmp_path / "log", arguments[0])) == 0
    for by, ends in (
        (signal.SIGKILL, -signal.SIGKILL),
        (signal.SIGTERM, 128 + signal.SIGTERM),
    ):
        process = commands.start(tmp_path / "log", arguments[1], commands.end_after, 7, by)
        assert commands.status(process) == ends
    assert not (outs[1] / statuses.STUDY).exists()
    assert commands.status(commands.start(tmp_path / "log", arguments[1])) == 0
    assert files(outs[0]) == files(outs[1])


@pytest.mark.slow
def test_tuning_has_seeds_of_its_own(tmp_path: Path) -> None:
    tuned = study(
        methods={"FedProx": fp.fedprox(mu=[0.0, 1.0])},
        solver=fp.Solver(0.1, batch_size=10, steps=3),
        vary=None,
        tuning=fp.Tuning(seeds=[7, 8], measure="validation_loss"),
        out=tmp_path / "out",
    )
    assert tuned.table().caption.endswith(
        "Each method tried 2 combinations of hyperparameters, chosen by the mean validation loss "
        "over seeds 7, 8."
    )
    (cell,) = tuned.outcomes
    assert [run.seed for run in cell.runs] == [0, 1]
    experiment = tomllib.loads(
        (tmp_path / "out" / "FedProx@tuning" / "experiment.toml").read_text()
    )
    assert experiment["seed"] == [7, 8]
    chosen = tomllib.loads((tmp_path / "out" / "FedProx" / "experiment.toml").read_text())
    assert chosen["method"] == [{"name": "fedprox", "mu": cell.runs[0].hparams["mu"]}]


@pytest.mark.slow
def test_data_may_depend_on_the_seed_and_settings_on_the_method() -> None:
    made = list[int]()

    def data(seed: int) -> fp.Federation:
        made.append(seed)
        train, test = (
            replace(rows, y=(rows.y + seed) % 10) for rows in (FEDERATION.train, FEDERATION.test)
        )
        return replace(FEDERATION, train=train, test=test, validation=None)

    found = study(
        methods={"short": fp.fedavg(), "long": {"method": fp.fedavg(), "rounds": 2}},
        data={"synthetic": {"federation": data, "rounds": 1}},
        vary=None,
        solver=fp.Solver(learning_rate=0.1, batch_size=10, steps=3),
    )
    assert made == [0, 1]  # once for each seed
    assert {row["data"] for row in found.records()} == {"synthetic"}
    assert [run.final.round for run in found.runs] == [1, 1, 2, 2]
    assert found.chosen == ""
    losses = [run.history[0].train_loss for run in found.runs]
    assert len(set(losses)) == 2
    assert losses[:2] == losses[2:]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"methods": {"FedAvg": fp.fedavg(), "FedProx": fp.fedprox(mu=[0.1, 1.0])}},
            "methods: unequal budgets: FedAvg tries 2, FedProx tries 4; give each as many",
        ),
        ({"data": fp.datasets.synthetic(clients=4)}, "0 %, FedAvg: no validation rows"),
        ({"tuning": fp.Tuning("validation_f1")}, "tuning.measure = 'validation_f1'; 0 %, FedAvg h"),
        ({"tuning": 3}, "tuning = 3; it must be a fedprox.Tuning"),
        ({"measure": "test_f1"}, "measure = 'test_f1'; 0 %, FedAvg has train_loss, test_loss, "),
        ({"measure": "gamma"}, "measure = 'gamma'; 0 %, FedAvg has train_loss, test_loss, "),
        ({"seeds": []}, "seeds = []; it must be a list of seeds"),
        ({"seeds": [0, 0]}, "seeds: 0 is given more than once"),
        ({"epochs": 3}, "study: unknown argument 'epochs'; allowed beside its own: model, solver"),
        ({"methods": 3}, "methods = 3; it must be a dict from names to settings"),
        ({"methods": {}}, "methods = {}; it must be a dict from names to settings"),
        ({"methods": {"a": {}}}, "methods['a']: None is no method; it must be an algorithm"),
        ({"methods": {"a\nb": fp.fedavg()}}, "methods: 'a\\nb' is no name; it must be a text on"),
        ({"methods": [fp.fedavg(), fp.fedavg()]}, "methods: several are called 'fedavg'; name"),
        ({"vary": {"method": {}}}, "vary: 'method' is a column of every study"),
        ({"vary": {"x": {"a": 0.5}}}, "vary['x']['a'] = 0.5; it must be a dict of settings"),
        ({"vary": {"x": {"a": {"stragglers": 1}}}}, "vary['x']['a']: unknown setting 'stragglers'"),
        ({"vary": [1]}, "vary = [1]; it must be a dict of factors"),
        ({"data": {"a": 3}}, "data['a'] = 3; it must be a dict of settings"),
        ({"data": lambda _: 3}, "0 %, FedAvg: data = 3; it must be a fedprox.Federation"),
        ({"solver": None}, "0 %, FedAvg: solver = None; it must be a fedprox.Solver"),
        ({"against": "FedDyn"}, "against = 'FedDyn'; the methods are FedAvg, FedProx"),
        ({"model": 3}, "0 %, FedAvg: model = 3; it must be a fedprox.Model, or a function of the"),
    ],
)
def test_bad_arguments_are_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        study(**changes)
    assert str(refused.value).startswith(line)


def test_unequal_budgets_are_stated_where_they_are_allowed() -> None:
    methods = METHODS | {"FedProx": fp.fedprox(mu=1.0).with_solver(learning_rate=0.1)}
    found = study(methods=methods, vary=None, seeds=[0], tuning=fp.Tuning(equal=False))
    assert "Budgets are unequal: FedAvg tried 2, FedProx tried 1 combinations" in found.chosen


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"measure": "test_accuracy"}, "tuning.measure = 'test_accuracy'; it must be a measure on"),
        ({"seeds": 3}, "tuning.seeds = 3; it must be a list of seeds"),
        ({"equal": "no"}, "tuning.equal = 'no'; it must be True or False"),
    ],
)
def test_bad_tunings_are_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        fp.Tuning(**arguments)
    assert str(refused.value).startswith(line)


STUDY = """
rounds = 2
seed = [0, 1]
validation_share = 0.2
target_accuracy = 0.5
evaluation.gradients = false

[data]
name = "synthetic"
clients = 4

[cohort]
clients_per_round = 2

[solver]
learning_rate = [0.01, 0.1]
batch_size = 10
steps = 3

[[method]]
name = "fedavg"

[[method]]
name = "fedprox"
mu = 1.0

[study]
against = "fedavg"

[study.vary.stragglers]
"0 %" = {systems.stragglers = 0.0}
"50 %" = {systems.stragglers = 0.5}
"""


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with STUDY as `study.toml`, which is the current one."""
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_file_is_the_study_of_its_objects(
    in_folder: Path, finished: tuple[fp.Study, Path], capsys: Any
) -> None:
    command_status = status("run", "study.toml")
    assert command_status == 0
    printed = capsys.readouterr().out
    read = fp.Study.read(in_folder / "runs" / "study")
    assert str(read.table()) in printed
    assert "validation accuracy 50 %" in printed  # the target's table
    assert "runs/study: study.json, records.csv, tables, figure, report.html" in printed
    for ours, known in zip(read.outcomes, finished[0].outcomes, strict=True):
        assert ours.others == known.others
        assert [run.final.train_loss for run in ours.runs] == [
            run.final.train_loss for run in known.runs
        ]
    # from Python the study goes on in the same folder, and gives the runs
    runs = fp.run("study.toml", out="runs/study", progress=False)
    assert [run.label for run in runs] == [run.label for run in read.runs]


def test_levels_change_sections_and_methods_may_be_rules() -> None:
    table = tomllib.loads(
        STUDY
        + """
[study.vary.data]
few = {data.clients = 3}
other = {data = {name = "synthetic-feddyn"}, solver.learning_rate = 0.1}

[study.vary.method."waits, for all"]
method = {name = "fedavg"}
cohort.clients_per_round = 3
"""
    )
    file = read_study("study.toml", table)
    names = [list(levels.values()) for levels, _ in file.experiments]
    assert names == [
        [data, stragglers, "waits, for all"]
        for data in ("few", "other")
        for stragglers in ("0 %", "50 %")
    ]
    few, _, _, other = (experiment for _, experiment in file.experiments)
    assert few.data == {"name": "synthetic", "clients": 3}
    assert other.data == {"name": "synthetic-feddyn"}
    assert (other.solver.learning_rate, other.solver.steps) == (0.1, 3)
    assert other.systems.stragglers == 0.5
    assert few.method == [{"name": "fedavg"}]
    assert file.clients_per_round == 3


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("study.vary.stragglers=1", "study.toml: study.vary.stragglers = 1; it must be a table"),
        ("study.vary.x={a=1}", "study.toml: study.vary.x.a = 1; it must be a table of changes"),
        ("study.vary.seed={a={}}", "study.toml: study.vary.seed: 'seed' is a column of"),
        ("study.vary.x={a={rounds=0}}", "0 %, a, fedavg: rounds = 0; it must be a whole"),
        ("study.vary.x={a={rouns=1}}", "study.toml: 0 %, a, fedavg: the file: unknown key 'rouns'"),
        ("study.vary.x={a={seed=3}, b={seed=4}}", "study.toml: 0 %, b, fedavg: seed: all levels"),
        ("study.meassure='x'", "study.toml: study: unknown key 'meassure'; did you mean 'measure"),
        ("study.tuning={equl=true}", "study.toml: study.tuning: unknown key 'equl'; did you mean"),
        ("study.tuning={measure='test_loss'}", "study.toml: tuning.measure = 'test_loss'; it must"),
        ("study.against=feddyn", "against = 'feddyn'; the methods are fedavg, fedprox"),
        ("study=3", "study.toml: study = 3; write a section [study]"),
        ("method.0.name=fedprox", "study.toml: method: 'fedprox' is given twice; name the methods"),
        ("method=[]", "study.toml: the section [[method]] is missing"),
        ("method.1.mu=[0.0, 1.0]", "methods: unequal budgets: fedavg tries 2, fedprox tries 4; "),
        ("study.data_per_seed=1", "study.toml: study.data_per_seed = 1; it must be true or false"),
    ],
)
@pytest.mark.usefixtures("in_folder")
def test_a_bad_file_is_one_line(setting: str, line: str, capsys: Any) -> None:
    assert status("run", "study.toml", "--set", setting) == 2
    assert commands.line_of(capsys.readouterr().err).startswith(f"fedprox: {line}")
    assert not Path("runs").exists()


SECTION = st.recursive(
    st.sampled_from(["", "a", True, 0, -1, 2**70, 1.5, float("inf"), "test_loss", "seed"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["method", "data", "name", "x", "a b", ""]), inner)
    ),
    max_leaves=6,
)
"""Values that a key of `[study]` may have in a file."""


@given(
    key=st.sampled_from(["vary", "measure", "against", "tuning", "data_per_seed", "x"]),
    value=SECTION,
)
@settings(max_examples=60)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(key: str, value: Any) -> None:
    table = tomllib.loads(STUDY)
    table["study"] = {key: value}
    said = "study.toml: "
    try:
        assert read_study("study.toml", table).experiments
    except fp.InputError as error:
        said = str(error)
    assert said.startswith("study.toml: ")
    assert "Input should" not in said


@pytest.mark.usefixtures("in_folder")
def test_other_commands_and_options_refuse_a_study(capsys: Any) -> None:
    assert status("run", "study.toml", "--coordinator", "a:1") == 2
    assert capsys.readouterr().err == "fedprox: --coordinator: not with a section [study]\n"
    for name in ("diagnose", "privacy"):
        with pytest.raises(SystemExit):
            command(name, "study.toml")
        assert "study.toml: has a section [study]; fedprox run" in capsys.readouterr().err
    with pytest.raises(fp.InputError, match="callbacks: a study has none"):
        fp.run("study.toml", callbacks=[fp.Callback()])
