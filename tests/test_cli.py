"""The command line: experiment files, the run directory, and bad input."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy

from fedprox import InputError, __version__, cli
from fedprox.commands import training
from fedprox.experiment import parse, read_experiment, read_study, read_table, resolve
from fedprox.files.whole import write_whole
from fedprox.protocol.protocol import initial_params
from fedprox.report.archive import read_archive
from fedprox.report.directory import RunDirectory
from fedprox.results.record import Record
from tests.commands import line_of

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.toml"))

SMALL = """
rounds = 4
evaluation.every = 2
seed = [0, 1]

[data]
name = "synthetic"
clients = 6

[cohort]
clients_per_round = 3

[systems]
stragglers = 0.5

[solver]
learning_rate = 0.01
batch_size = 10
epochs = 2

[[method]]
name = "fedavg"

[[method]]
name = "fedprox"
mu = [0.0, 1.0]
"""

LOSSES = SMALL.replace("evaluation.every = 2", "evaluation = {every = 2, gradients = false}")
"""The same without gradient variance, B(w) and gamma."""


def fedprox(*arguments: object) -> None:
    """The command in this process, with its exit status as SystemExit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedprox", *map(str, arguments)])
        patch.setattr(training, "use_cpu_devices", lambda *_: None)
        patch.setattr(training, "use_compilation_cache", lambda _: None)
        cli.main()


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        fedprox(*arguments)
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of SMALL."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.toml").write_text(SMALL)
    assert status("run", folder / "small.toml", "--out", folder / "out") == 0
    return folder / "out"


def test_the_run_directory_is_complete(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    models = {
        f"model-{label}-{seed}.safetensors"
        for label in ("fedavg", "fedprox-mu=0", "fedprox-mu=1")
        for seed in (0, 1)
    }
    others = {"experiment.toml", "metrics.jsonl", "summary.json", "clients.json", "checkpoint"}
    assert names == models | others | {"figure.png", "figure.svg", "report.html"}


def test_the_report_and_the_clients_know_every_run(finished: Path) -> None:
    archive = read_archive(finished)
    assert archive.finished
    runs = [(run.label, run.seed) for run in archive.runs]
    assert len(runs) == 6
    assert sorted((c.label, c.seed) for c in archive.clients) == sorted(runs)
    assert {len(c.test_accuracy) for c in archive.clients} == {6}
    text = (finished / "report.html").read_text()
    titles = re.findall("<h3>(.*?)</h3>", text)
    assert titles == ["Against rounds", "Against cost", "Who is left behind", "Settings"]


def test_metrics_have_a_line_for_each_method_seed_and_evaluated_round(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    keys = {(x["method"], x["mu"], x["seed"], x["round"]) for x in lines}
    assert len(keys) == len(lines) == 3 * 2 * 3
    assert {x["round"] for x in lines} == {0, 2, 4}
    assert list(lines[0]) == [
        "label",
        "method",
        "mu",
        "learning_rate",
        "seed",
        "round",
        "train_loss",
        "test_accuracy",
        "gradient_variance",
        "dissimilarity",
        "gamma_mean",
        "gamma_max",
        "solves",
        "unsolved",
        "clients",
        "stragglers",
        "dropped",
        "client_steps",
        "total_steps",
        "communication",
        "empty_rounds",
        "test_loss",
    ]
    last = [x for x in lines if x["round"] == 4]
    assert {(x["method"], x["clients"], x["stragglers"], x["dropped"]) for x in last} == {
        ("fedavg", 3, 2, 2),
        ("fedprox", 3, 2, 0),
    }


def test_the_summary_has_one_object_for_each_run(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert [(x["label"], x["seed"]) for x in summary] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("fedprox mu=0", 0),
        ("fedprox mu=1", 0),
        ("fedprox mu=0", 1),
        ("fedprox mu=1", 1),
    ]
    for run in summary:
        assert run["compile_seconds"] > 0
        assert run["run_seconds"] > 0
        assert 0 <= run["lane_idle"] < 1
        assert run["best_test_accuracy"] >= run["final_test_accuracy"]


def test_the_saved_model_is_the_one_that_was_measured(finished: Path) -> None:
    resolved = resolve(read_experiment(finished / "experiment.toml"))
    saved = safetensors.numpy.load_file(finished / "model-fedprox-mu=1-0.safetensors")
    assert {name: a.shape for name, a in saved.items()} == {
        "dense.weight": (10, 60),
        "dense.bias": (10,),
    }
    like = initial_params(resolved.model, 0)
    params = {"dense": {name: saved[f"dense.{name}"] for name in like["dense"]}}
    outputs = resolved.model.apply(params, jax.numpy.asarray(resolved.federation.test.x))
    accuracy = np.mean(np.argmax(outputs, axis=1) == resolved.federation.test.y)
    (run,) = [
        run
        for run in json.loads((finished / "summary.json").read_text())
        if run["label"] == "fedprox mu=1" and run["seed"] == 0
    ]
    assert run["final_test_accuracy"] == pytest.approx(accuracy)


def test_a_resolved_experiment_repeats_itself_and_prints_a_table(
    finished: Path, tmp_path: Path, capsys: Any
) -> None:
    table = tomllib.loads((finished / "experiment.toml").read_text())
    assert {"jax", "python", "devices", "fedprox"} <= set(table["versions"])
    assert table["data"]["alpha"] == 1.0
    again = tmp_path / "again"
    shutil.copytree(finished, again)  # the same experiment's results are replaced
    (again / "metrics.jsonl").write_bytes(b"")
    assert status("run", finished / "experiment.toml", "--out", again) == 0
    assert (finished / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()
    printed = capsys.readouterr().out
    assert "fedprox mu=1" in printed
    assert "rounds to" in printed
    assert "±" in printed


def test_examples_are_listed_printed_and_copied(tmp_path: Path, capsys: Any) -> None:
    assert status("examples") == 0
    listed = capsys.readouterr().out
    for path in EXAMPLES:
        assert f"\n{path.stem} " in f"\n{listed}"
    assert "#" not in listed
    assert "a study of rules. The slowest" in " ".join(listed.split("\n" + " " * 14))
    assert status("examples", "demo") == 0
    demo = (Path(__file__).parents[1] / "examples" / "demo.toml").read_text()
    assert capsys.readouterr().out == demo
    copy = tmp_path / "mine.toml"
    assert status("examples", "demo", "--out", copy) == 0
    assert copy.read_text() == demo
    copy.write_text("mine")
    for arguments, message in [
        (("demo", "--out", copy), f"--out: {copy} exists already"),
        (("dem",), "'dem' is not an example; did you mean 'demo'?"),
        (("--out", copy), "--out: name an example"),
    ]:
        capsys.readouterr()
        assert status("examples", *arguments) == 2
        assert capsys.readouterr().err.startswith(f"fedprox: {message}")
    assert copy.read_text() == "mine"


def test_the_keys_of_a_section_are_listed(capsys: Any) -> None:
    assert status("keys", "selection") == 0
    shown = capsys.readouterr().out
    assert shown.startswith('[selection]\n  keep: one of "last", "best", default "last". ')
    assert "[solver]" not in shown
    assert status("keys", "slover") == 2
    assert "'slover' is not a section; did you mean 'solver'? allowed:" in capsys.readouterr().err


def test_the_version_is_printed_also_by_python_m() -> None:
    command = [sys.executable, "-m", "fedprox", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"fedprox {__version__}\n"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_valid_experiment(path: Path) -> None:
    table = read_table(path)
    experiments = [parse(str(path), table)] if "study" not in table else []
    if not experiments:
        experiments = [each for _, each in read_study(str(path), table).experiments]
    for experiment in experiments:
        if experiment.data["name"] in ("synthetic", "synthetic-feddyn"):
            assert resolve(experiment).methods


BAD = [
    ("rounds=1\nevaluation.every=7", "evaluation.every=7: it must be one KEY=VALUE"),
    ('model={name="mlp",hidden=[2000000000]}', "out of memory"),
    ("rouns=1", "the file: unknown key 'rouns'; did you mean 'rounds'? allowed: rounds, "),
    ("lr=0.1", "the file: unknown key 'lr'; did you mean 'solver.learning_rate'? allowed: "),
    ("solver.lr=0.1", "solver: unknown key 'lr'; did you mean 'learning_rate'? allowed: "),
    ("solver.epoch=1", "solver: unknown key 'epoch'; did you mean 'epochs'? allowed: "),
    ("data.alhpa=1", "data: unknown key 'alhpa'; did you mean 'alpha'? allowed: alpha, beta, iid"),
    ("method.1.nu=1", "method.1: unknown key 'nu'; did you mean 'mu'? allowed: mu"),
    ("method.0.mu=1", "method.0: unknown key 'mu'; allowed: stragglers, average"),
    ("data.name=sythetic", "data.name = 'sythetic'; did you mean 'synthetic'? allowed: synthetic"),
    ("model.name=cnn", "model.name = 'cnn'; did you mean"),
    ("method.0.name=fedavgg", "method.0.name = 'fedavgg'; did you mean 'fedavg'?"),
    ("solver.optimizer=sdg", "solver.optimizer = 'sdg'; did you mean 'sgd'?"),
    ("solver.optimizer_options={momentun=0.9}", "unknown key 'momentun'; did you mean 'momentum'?"),
    ("method.1.mu=-1", "fedprox: mu = -1.0; it must be at least 0"),
    ("method.1.mu=[0.0, -0.5]", "fedprox: mu = -0.5; it must be at least 0"),
    ("solver.epochs=0", "solver.epochs = 0; it must be a whole number of at least 1"),
    ("solver.steps=5", "epochs = 2 and steps = 5; give either epochs or steps, and not both"),
    ("solver.batch_size=0", "solver.batch_size = 0; it must be a whole number of at least 1"),
    ("solver.learning_rate=0", "solver.learning_rate = 0.0; it must be above 0"),
    ("cohort.clients_per_round=7", "cohort.clients_per_round = 7; the federation has 6 clients"),
    ("cohort.clients_per_round=0", "_per_round = 0; it must be a whole number of at least 1"),
    ("cohort.sampling=weighted", "sampling = 'weighted'; it must be one of \"uniform\""),
    ("systems.stragglers=1.5", "systems.stragglers = 1.5; it must be from 0 to 1"),
    ("data.train_share=2.0", "data.train_share = 2.0; it must be between 0 and 1"),
    ("target_accuracy=80.0", "target_accuracy = 80.0; it must be above 0 and at most 1"),
    ("target_loss=-1", "target_loss = -1.0; it must be above 0"),
    ("faults.policy=skip", 'faults.policy = \'skip\'; it must be one of "drop", "fail", "clip"'),
    ("faults.norm=0.5", "faults.norm = 0.5; it must be a number of at least 1, or inf"),
    ("faults.nrom=5.0", "faults: unknown key 'nrom'; did you mean 'norm'? allowed: policy, norm"),
    ("stop_at_target=all", 'stop_at_target = "all"; it needs a target: a fedprox.Target, in'),
    ("stop_at_target=often", 'stop_at_target = \'often\'; it must be one of "never", "all", "any"'),
    ("rounds=0", "rounds = 0; it must be a whole number from 1 to 10,000,000"),
    ("rounds=many", "rounds = 'many'; it must be a whole number"),
    ("evaluation.every=0", "evaluation.every = 0; it must be a whole number of at least 1"),
    ("seed=-1", "seed = -1; it must be a whole number of at least 0"),
    ("seed=9223372036854775808", "seed = 9223372036854775808; it must be below 2^63"),
    ("seed=[1, 1]", "seed: 1 is given more than once"),
    ("data.name=[1]", "data.name = [1]; allowed: synthetic"),
    ("data.alpha=inf", "data.alpha = inf; it must be finite and at least 0"),
    ("data.alpha=one", "data.alpha = 'one'; it must be a number"),
    ("data.seed=-1", "data.seed = -1; it must be a whole number of at least 0"),
    ("data.intensity=1", "data: unknown key 'intensity'"),
    ("interval=5", "the file: unknown key 'interval'"),
    ("solver.batch_size=some", "solver.batch_size = 'some'; it must be a whole number or \"all\""),
    ('solver.optimizer_options={momentum="x"}', "momentum = 'x'; it must be a number"),
    ("solver.optimizer_options={momentum=nan}", "momentum = nan; it must be finite"),
    (
        'solver={learning_rate=0.1,batch_size=1,steps=1,optimizer="adam",optimizer_options={b1=1099511627776}}',
        "; adam refuses them: ",
    ),
    (
        'solver={learning_rate=0.1,batch_size=1,steps=1,optimizer="adam",optimizer_options={b1=-2147483647}}',
        "; adam refuses them: ",
    ),
    ("method.1.mu=[0.5, 0.5]", "methods: 'fedprox mu=0.5' is given 2 times; once is enough"),
    ('method.1={name="fedavg"}', "methods: 'fedavg' is given 2 times; once is enough"),
    ("seed=[]", "seed: none given; at least one is needed"),
    ("method.1.mu=[]", "fedprox: mu: none given; at least one is needed"),
    ("method=[]", "method = []; it must be one section or several, each written [[method]]"),
    ("method.5.mu=1", "method.5.mu=1: '5' is not in the list; it must be a number from 0 to 1"),
    ("nothing", "--set nothing: it must be KEY=VALUE"),
    ("evaluation.model=mean", 'model = \'mean\'; it must be one of "server", "cohort", '),
    ("client_store=ram", 'client_store = \'ram\'; it must be one of "auto", "device", '),
    ("solver.weight_decay=-1", "solver.weight_decay = -1.0; it must be at least 0"),
    ("solver.learning_rate_decay=1.5", "it must be above 0 and at most 1"),
    ("solver.clip=0", "solver.clip = 0.0; it must be above 0"),
    ("method.0.solver=5", "method.0.solver = 5; it must be a table"),
    ("method.0.solver.epoch=5", "unknown key 'epoch'; did you mean 'epochs'?"),
    ("method.0.solver.epochs=many", "method.0.solver.epochs = 'many'; it must be a whole number"),
    ("method.0.solver.optimizer=sdg", "method.0.solver.optimizer = 'sdg'; did you mean 'sgd'?"),
    ("method.0.solver.optimizer_options={momentum=0.9}", "optimizer_options: give optimizer"),
    ("method.0.solver.epochs=0", "method.0.solver: solver.epochs = 0; it must be a whole number"),
    ("method.0.solver=false", "method.0.solver = False; it must be a table"),
    ('method.0={name="fedsgd", solver={epochs=5}}', "fedsgd: its epochs is always 1, not 5"),
    ('method.1={name="feddyn", alpha=0.0}', "feddyn: alpha = 0.0; it must be above 0"),
    ('method.1={name="scaffold", option=3}', "scaffold: option = 3; it must be one of 1, 2"),
    ('method.1={name="fedsplit"}', "method.1: the key 'step_size' is missing"),
    ('method.1={name="fedopt"}', "method.1: the key 'optimizer' is missing; allowed: adagrad"),
    ('method.1={name="fedopt", optimizer="line-search-descent"}', "searches along a line"),
    ('method.1={name="scaffold", solver={optimizer="adam"}}', "option 2 needs solver.optimizer"),
    ("rounds.more=1", "--set rounds.more=1: 'rounds' is not a section"),
    ("solver.epochs=2147483648", "it must be a whole number from 1 to 2,147,483,647"),
    ("solver.batch_size=9223372036854775808", "it must be a whole number from 1 to 2,147,483,647"),
    (f"data.clients={10**30}", "it must be a whole number from 1 to 2,147,483,647"),
    (f'model={{name="mlp",hidden=[{10**30}]}}', "a whole number from 1 to 2,147,483,647"),
    ("method.1.mu=1e39", "fedprox: mu = 1e+39; it is beyond single precision"),
    ("solver.learning_rate=1e-39", "learning_rate = 1e-39; it is beyond single precision"),
    ("rounds=10000001", "; it must be a whole number from 1 to 10,000,000"),
]


@pytest.mark.parametrize(("setting", "message"), BAD, ids=[setting for setting, _ in BAD])
def test_bad_input_is_one_line_and_leaves_nothing(
    setting: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    out = tmp_path / "out"
    assert status("run", tmp_path / "small.toml", "--set", setting, "--out", out) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rounds = ", "not a TOML file"),
        (SMALL.replace("rounds = 4\n", ""), "the file: the key 'rounds' is missing"),
        (SMALL.replace("[solver]", "[solve]"), "solve"),
        (SMALL.replace('name = "fedavg"', ""), "method.0: the key 'name' is missing"),
        (SMALL.replace("mu = [0.0, 1.0]", ""), "method.1: the key 'mu' is missing"),
    ],
)
def test_bad_files_are_one_line(content: str, message: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "bad.toml").write_text(content)
    assert status("run", tmp_path / "bad.toml") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rnu", "No such command 'rnu'. Did you mean 'run'?"),
        ("run .", ".: a folder; name a TOML file"),
        ("run none.toml", "none.toml: no such file"),
        ("run x.toml --foo", "No such option '--foo'"),
        ("run small.toml --out small.toml/out", "small.toml/out: Not a directory"),
        ("run small.toml --out .", ". holds other files; name a new or empty folder"),
        ("run small.toml --data-dir no", "--data-dir: no is not a folder"),
        ("run mnist.toml --data-dir no", "--data-dir: no is not a folder"),
        ("run mnist.toml --data-dir .", "mnist: train-images-idx3-ubyte.gz is missing; put it"),
        ("audit-privacy deployed.toml", "deployed.toml: no section [data], as for a deployment"),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)  # which needs no files
    (tmp_path / "mnist.toml").write_text(SMALL.replace('"synthetic"\nclients = 6', '"mnist"'))
    deployed = SMALL.replace('[data]\nname = "synthetic"\nclients = 6', "[deployment]\nnodes = 3")
    (tmp_path / "deployed.toml").write_text(deployed)
    assert status(*arguments.split()) == 2
    assert line_of(capsys.readouterr().err).startswith(f"fedprox: {message}")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "b.toml").write_text(SMALL, encoding="utf-8-sig")
    assert read_experiment(tmp_path / "b.toml") == read_experiment(tmp_path / "a.toml")


def test_another_experiments_results_are_not_overwritten(
    finished: Path, tmp_path: Path, capsys: Any
) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    (tmp_path / "small.toml").write_text(SMALL)
    setting = ("--set", "rounds=5", "--out", finished)
    assert status("run", tmp_path / "small.toml", *setting) == 2
    assert "holds another experiment's results; name another folder" in capsys.readouterr().err
    assert (finished / "metrics.jsonl").read_bytes() == before


def record(round_: int) -> Record:
    return Record("m", "m", {}, 0.1, 0, round_, {"train_loss": 0.5, "test_accuracy": 0.5})


def test_a_full_disk_leaves_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "summary.json", b"{}")
    assert not list(tmp_path.iterdir())


def test_a_method_that_diverges_and_the_folder_are_named_as_they_are(
    tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    settings = ["seed=0", "solver.learning_rate=[0.01, 1e38]", 'method=[{name="fedavg"}]']
    settings.append("evaluation.gradients=false")
    flags = [flag for setting in settings for flag in ("--set", setting)]
    # the folder's name is neither a pattern nor markup, of which a tag is opened, another closed
    out = tmp_path / "a[b]q[/i]"
    assert status("run", tmp_path / "small.toml", *flags, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "diverged at round 2" in printed
    assert f"{out.name}: metrics, summary" in printed.replace("\n", "")
    summary = json.loads((out / "summary.json").read_text())
    assert [run["diverged_at"] for run in summary] == [None, 2]
    assert summary[1]["final_train_loss"] is None


METHODS = """
[[method]]
name = "feddyn"
alpha = 0.1
solver = {epochs = 1}

[[method]]
name = "scaffold"
solver = {steps = 3}

[[method]]
name = "fedopt"
optimizer = "sgd"
optimizer_options = {momentum = 0.9}

[[method]]
name = "centralised"
"""


@pytest.mark.slow
def test_settings_of_a_methods_own_and_another_model_evaluated(tmp_path: Path, capsys: Any) -> None:
    """They are told in labels, in the summary and below the table, and can be run again."""
    head = 'evaluation.model = "clients"\nevaluation.gradients = false\n'
    text = head + SMALL.partition("[[method]]")[0] + METHODS
    (tmp_path / "methods.toml").write_text(text.replace("seed = [0, 1]", ""))
    first, again = tmp_path / "first", tmp_path / "again"
    assert status("run", tmp_path / "methods.toml", "--out", first) == 0
    printed = capsys.readouterr().out
    assert 'evaluated, as "clients": the mean of every client\'s last model' in printed
    assert "last model" in (first / "report.html").read_text()
    summary = json.loads((first / "summary.json").read_text())
    models = {
        "feddyn alpha=0.1 epochs=1": "clients",
        "scaffold steps=3": "clients",
        "fedopt sgd momentum=0.9": "clients",
        "centralised": "server",
    }
    assert {run["label"]: run["evaluated"] for run in summary} == models
    assert {run.label: run.evaluated for run in read_archive(first).runs} == models
    assert status("run", first / "experiment.toml", "--out", again) == 0
    assert (again / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()


SCREENED = (
    "evaluation.gradients = false"
    + SMALL.partition("[[method]]")[0]
    + """
[faults]
policy = "clip"
norm = 1.0

[[method]]
name = "fedprox"
mu = 0.0
"""
)


@pytest.mark.slow
def test_faulty_updates_are_counted_and_named(finished: Path, tmp_path: Path, capsys: Any) -> None:
    """With norm = 1 the updates beyond the median are faulty."""
    (tmp_path / "screened.toml").write_text(SCREENED)
    out = tmp_path / "out"
    assert status("run", tmp_path / "screened.toml", "--set", "seed=0", "--out", out) == 0
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    # one of three in each round, two rounds between evaluations
    assert [line["faulty"] for line in lines] == [0, 2, 2]
    clients = {name for line in lines for name in line["faulty_clients"]}
    assert clients <= set(map(str, range(6)))
    assert f"fedprox mu=0: 4 faulty updates, of {len(clients)} clients" in printed
    assert "fedprox mu=0: 4 faulty updates, of" in (out / "report.html").read_text()
    (summary,) = json.loads((out / "summary.json").read_text())
    assert summary["faulty"] == 4
    (run,) = read_archive(out).runs
    assert [record.faulty for record in run.history] == [0, 2, 2]
    table = tomllib.loads((out / "experiment.toml").read_text())
    assert table["faults"] == {"policy": "clip", "norm": 1.0}
    assert "faults" not in tomllib.loads((finished / "experiment.toml").read_text())
    assert "faulty" not in json.loads((finished / "summary.json").read_text())[0]


@pytest.mark.slow
def test_a_faulty_update_may_end_the_run(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "screened.toml").write_text(SCREENED.replace("clip", "fail"))
    out = tmp_path / "out"
    assert status("run", tmp_path / "screened.toml", "--set", "seed=0", "--out", out) == 2
    error = capsys.readouterr().err
    assert re.match(r"fedprox: fedprox mu=0, seed 0: round 1: faulty update of client \d, ", error)
    assert error.count("\n") == 1
    (line,) = (out / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["round"] == 0


def test_an_unreadable_earlier_experiment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not a TOML file"):
        RunDirectory(tmp_path, {})


def test_a_second_run_leaves_nothing_of_the_first(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    table = tomllib.loads((out / "experiment.toml").read_text())
    table.pop("versions")
    with RunDirectory(out, table) as directory:
        directory.record(record(0))
    # the last state stays, since this may be a run that goes on from it
    assert {path.name for path in out.iterdir()} == {
        "experiment.toml",
        "metrics.jsonl",
        "checkpoint",
    }


@pytest.mark.parametrize("command", ["report", "diagnose", "data fetch"])
def test_the_help_of_a_command_has_no_escapes(command: str, capsys: Any) -> None:
    assert status(*command.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert "[required]" in shown or "[default: " in shown
    assert "\\" not in shown


def test_without_arguments_help_is_shown(capsys: Any) -> None:
    assert status() == 0
    assert "Train the methods of an experiment file" in capsys.readouterr().out
