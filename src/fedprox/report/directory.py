"""The run directory: experiment, metrics, summary, models and figure of a comparison."""

import importlib.metadata
import io
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import jax
import tomli_w

from fedprox import __version__
from fedprox.diagnostics.clients import client_measures
from fedprox.errors import plural, require, shown
from fedprox.federation import Federation
from fedprox.files.toml import read_toml
from fedprox.files.whole import (
    LOCK,
    append,
    flush_folder,
    locked,
    naming,
    open_no_link,
    refuse_link,
    write_whole,
)
from fedprox.loop.checkpoint import FIRST
from fedprox.model import Model, check_params
from fedprox.model.check import check_model
from fedprox.report.archive import target_of_runs
from fedprox.report.client_lines import LINES, ClientLines, remove_lines
from fedprox.report.figure import figure
from fedprox.report.page import write_report
from fedprox.report.records import AT_THE_END, hparam_keys, json_number, metrics_line
from fedprox.report.saved import encode_params, model_file
from fedprox.report.table import common_target
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.results.target import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHECKPOINTS = "checkpoint"
"""Name of the folder for checkpoints in a run directory."""

DEPLOYMENT_FILE, NODES = "deployment.json", "nodes"
"""Names of the file with a deployment's identifier, and of the folder of a trial's nodes."""

LOGS = ("tensorboard", "mlflow", "wandb")
"""Names of the folders that loggers write in a run directory, see `fedprox.logs`."""

LOG_ID = "fedprox-id"
"""Name of the file that marks such a folder as written by a logger."""

PACKAGES = ("flax", "jax", "jaxlib", "numpy", "optax")


class RunDirectory:
    """A run directory, written while a comparison runs.

    Within `with`, no other process can write to it. No file is written before the first record, so
    an experiment that cannot run leaves nothing. `metrics.jsonl` grows by whole lines; every other
    file is written whole or not at all, `summary.json` last.

    `replace` says whether another experiment's results may be replaced (None: the caller has no
    option for it). `extend` says whether the run resumes, perhaps with more rounds, and `lock`
    whether the folder is to be locked.

    Attributes:
        resumes: Whether the run resumes.
        replaced: Description of the results that are replaced; empty if there are none.
        extended: Rounds of the results that are extended; 0 if none are.
        begun: Whether this process has written records.
    """

    def __init__(
        self,
        path: Path,
        experiment: dict[str, Any],
        *,
        replace: bool | None = None,
        extend: bool = False,
        client_records: bool = False,
        lock: bool = True,
    ) -> None:
        self.path, self.experiment = path, experiment
        self.replaced, self.extended, self.begun = "", 0, False
        self._replace, self.resumes = replace, extend
        self._client_records, self._lock = client_records, lock
        self._metrics: BinaryIO
        self._clients: list[ClientLines] = []
        self._open = ExitStack()
        self._check()

    def _check(self) -> None:
        if not self.path.exists():
            return
        require(self.path.is_dir(), f"{self.path} is not a folder")
        for name in ("metrics.jsonl", LINES):
            refuse_link(self.path / name)
        known = self.path / "experiment.toml"
        if all(_is_leftover(path) for path in self.path.iterdir()):
            return
        require(known.is_file(), f"{self.path} holds other files; name a new or empty folder")
        before = read_toml(known)
        ours = isinstance(before.pop("versions", None), dict)
        now = tomllib.loads(tomli_w.dumps(self.experiment))
        different = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
        if different == ["rounds"] and self.resumes:
            self.extended = before["rounds"]
            self._require_extension(f"--set rounds={now['rounds']}: {self.path}", now["rounds"])
        elif different and self._replace:
            require(ours, f"--force: {known} was not written by fedprox; name another folder")
            self.replaced = f"of an experiment that differs in {', '.join(different)}"
        else:
            require(
                not different,
                f"{self.path} holds another experiment's results; name another folder, or "
                + ("remove it" if self._replace is None else "replace them with --force"),
            )

    def _require_extension(self, where: str, rounds: int) -> None:
        """Raise `InputError` unless the results can be extended to `rounds`."""
        require(
            rounds > self.extended,
            f"{where} is a run of {plural(self.extended, 'round')}; with --resume there can only "
            "be more",
        )
        require(
            self.complete,
            f"{where} is not finished; finish it first, with fedprox run --resume {self.path}",
        )
        require(
            self.checkpoints.is_dir(),
            f"{where} has no folder {CHECKPOINTS} to continue from; run it anew",
        )

    @property
    def checkpoints(self) -> Path:
        """The folder for checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def complete(self) -> bool:
        """Whether the folder's experiment ran to its end and everything is written."""
        return (self.path / "summary.json").is_file()

    @property
    def done(self) -> bool:
        """Whether there is nothing to resume: the run is complete, with all of its rounds."""
        return self.resumes and self.complete and not self.extended

    def changed_versions(self) -> list[str]:
        """Versions that differ from those with which the existing results were made."""
        known = self.path / "experiment.toml"
        if not known.is_file():
            return []
        recorded = read_toml(known).get("versions")
        before, now = recorded if isinstance(recorded, dict) else {}, versions()
        return [
            f"{name} {before.get(name)}, now {now.get(name)}"
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        ]

    def __enter__(self) -> "RunDirectory":
        with self._open:
            if self._lock:
                self._open.enter_context(locked(self.path))
            self._check()  # again: another process may have written to it meanwhile
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def record(self, record: Record) -> None:
        """Append one record to `metrics.jsonl`, and its clients to `clients.jsonl` if asked for."""
        if not self.begun:
            self._begin()
        line = json.dumps(metrics_line(record), allow_nan=False).encode() + b"\n"
        for lines in self._clients:
            lines.add(record)
        append(self._metrics, self.path / "metrics.jsonl", line)

    def diagnosis(self, document: dict[str, Any]) -> None:
        """Write `diagnosis.json`, next to the experiment's results if there are any."""
        if not (self.path / "experiment.toml").exists():
            self._write_experiment()
        _write_json(self.path / "diagnosis.json", document, indent=2)

    def _write_experiment(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        table = {**self.experiment, "versions": versions()}
        write_whole(self.path / "experiment.toml", tomli_w.dumps(table).encode())

    def _begin(self) -> None:
        # an earlier run's results must not mix with this run's; the summary, which marks them as
        # complete, is removed first
        for pattern in (*RESULTS, *["diagnosis.json"] * bool(self.replaced)):
            for path in self.path.glob(pattern):
                path.unlink()
        self.path.mkdir(parents=True, exist_ok=True)
        if self._client_records:
            lines = ClientLines(self.path, resumed=self.resumes)
            self._clients = [self._open.enter_context(closing(lines))]
        else:
            remove_lines(self.path)
        if self.replaced:  # loggers continue their runs of the same experiment by themselves
            for path in filter(_is_log, self.path.iterdir()):
                shutil.rmtree(path)
        self._write_experiment()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = open_no_link(self.path / "metrics.jsonl", flags)
        flush_folder(self.path)
        self._metrics = self._open.enter_context(os.fdopen(opened, "wb", buffering=0))
        self.begun = True

    def finish(self, runs: Sequence[Run], target: Target | None, *, draw: bool = True) -> None:
        """Write models and, with `draw`, the figure, then the summary.

        See `fedprox.table` for the target.
        """
        target = target or common_target(runs)
        if self.begun:
            with naming(self.path / "metrics.jsonl"):
                os.fsync(self._metrics.fileno())
        for lines in self._clients:
            lines.finish()
        for run in runs:
            content = encode_params(run.params, run.columns)
            write_whole(self.path / model_file(run.label, run.seed), content)
        if draw:
            write_figure(self.path, figure(runs))
        _write_json(self.path / "summary.json", [summarise(run, target) for run in runs], indent=2)


def _write_json(path: Path, content: Any, indent: int | None = None) -> None:
    write_whole(path, json.dumps(content, indent=indent, allow_nan=False).encode() + b"\n")


def _is_log(path: Path) -> bool:
    """Whether a path is a folder that a logger wrote."""
    return path.name in LOGS and not path.is_symlink() and (path / LOG_ID).is_file()


def _is_leftover(path: Path) -> bool:
    """Whether a process of ours that has ended may have left a path without `experiment.toml`.

    Loggers in Python write before `fedprox.save`, other processes before their first record.
    """
    if path.name in (NODES, DEPLOYMENT_FILE) or _is_log(path):
        return True
    if path.name == CHECKPOINTS and path.is_dir():
        return all(_is_leftover(inside) or inside.name == FIRST for inside in path.iterdir())
    return path.name in (LOCK, f".{CHECKPOINTS}.removed") or bool(
        re.fullmatch(r"\..+\.partial", path.name)
    )


RESULTS = (
    "summary.json",
    "model-*.safetensors",
    "figure.png",
    "figure.svg",
    "clients.json",
    "report.html",
)
"""Files that a finished run writes, other than its metrics."""


def write_figure(
    folder: Path, drawn: "Figure", name: str = "figure", kinds: Sequence[str] = ("png", "svg")
) -> None:
    """Write a figure as `NAME.png`, `NAME.svg` and so on; the same one gives the same bytes."""
    import matplotlib  # here, since it is slow to import

    dated: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    for kind in kinds:
        picture, metadata = io.BytesIO(), dated.get(kind, {})
        with matplotlib.rc_context({"svg.hashsalt": "fedprox"}):  # else random identifiers
            drawn.savefig(picture, format=kind, dpi=150, metadata=metadata)
        write_whole(folder / f"{name}.{kind}", picture.getvalue())


def write_clients(path: Path, federation: Federation, model: Model, runs: Sequence[Run]) -> None:
    """Write `clients.json`: each client's name, rows, and measures of each run's model on it."""
    table = []
    for run in runs:
        columns: dict[str, Any] = {
            "label": run.label,
            "seed": run.seed,
            "clients": list(federation.names),
            "training_rows": federation.train.sizes.tolist(),
            "test_rows": federation.test.sizes.tolist(),
        }
        for name, values in client_measures(federation, model, run.params).items():
            columns[name] = [json_number(value) for value in values.tolist()]
        table.append(columns)
    _write_json(path / "clients.json", table)


UNTIL_TARGET = {"rounds": Run.rounds_to, "models": Run.models_to, "time": Run.time_to}
"""The cost of reaching the target, by the first word of a key in `summary.json`."""


def summarise(run: Run, target: Target | None) -> dict[str, Any]:
    """A run as one JSON object of `summary.json`."""
    final = metrics_line(run.final)
    shown: dict[str, Any] = {
        "label": run.label,
        "method": run.method,
        **hparam_keys(run.hparams),
        **{key: final[key] for key in ("learning_rate", "seed")},
        "evaluated": run.evaluated,
        "rounds": run.final.round,
        "model_round": run.model_round,
        "diverged_at": run.diverged_at,
        **{f"final_{key}": final[key] for key in (*AT_THE_END, *run.final.metrics) if key in final},
        **{key: final[key] for key in ("bits_up", "epsilon", "delta") if key in final},
        **_known(run, "noise_multiplier"),
        "best_test_accuracy": run.best_accuracy,
        "best_train_loss": min(
            (r.train_loss for r in run.history if r.measured is not False), default=math.nan
        ),
        "target_accuracy": None,
        "target_loss": None,
        **({target.key: target.setting} if target else {}),
        **{
            f"{name}_to_target": target and reach(run, target)
            for name, reach in UNTIL_TARGET.items()
        },
        "client_steps": run.client_steps,
        "communication": final["communication"],
        "empty_rounds": run.empty_rounds,
        "unsolved": sum(record.unsolved for record in run.history),
        **_known(run, "faulty", "lane_idle", "memory", "sweep_points"),
        **_known(run, "compile_seconds", "run_seconds", "callback_seconds"),
    }
    return {key: json_number(value) for key, value in shown.items()}


def _known(run: Run, *names: str) -> dict[str, Any]:
    """The attributes of a run with some names, but for those that are None."""
    return {name: value for name in names if (value := getattr(run, name)) is not None}


def versions() -> dict[str, str]:
    """Versions of what the results depend on, the devices, and the git revision if there is one."""
    known = {"fedprox": __version__}
    known |= {name: importlib.metadata.version(name) for name in PACKAGES}
    devices = jax.devices()
    known |= {
        "python": platform.python_version(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
    }
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
        known["git"] = done.stdout.strip()
    return {name: version for name, version in known.items() if version}


def write_results(
    directory: RunDirectory,
    runs: Sequence[Run],
    target: Target | None,
    clients: tuple[Federation, Model] | None = None,
) -> None:
    """Write all files of a run directory but `experiment.toml` and `metrics.jsonl`.

    With the clients' data and the model, what the models measure on each client is among them.
    """
    if clients:
        federation, model = clients
        if most := directory.experiment.get("evaluation", {}).get("clients"):
            federation = federation.sample_clients(most)
        write_clients(directory.path, federation, model, runs)
    directory.finish(runs, target)
    write_report([directory.path], directory.path / "report.html")


def save(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
) -> None:
    """Write the runs of a comparison into a run directory, as `fedprox run` does.

    Its `experiment.toml` describes the arguments of `simulate`: the settings, the methods with
    their hyperparameters, the name of the model's class or function, and the numbers of clients and
    rows. The file of such a comparison cannot be run; that of a comparison from `fedprox.run` can.

    Args:
        runs: The runs that `simulate` or `run` returned, or some of these.
        folder: The folder. It must be new, empty, or hold results of the same experiment, which
            are replaced.
        federation: The clients and their data. With `federation` and `model`, the run directory
            gets `clients.json`, the final models' test accuracy on each client, and the report
            shows it. Runs do not hold the federation, so that its memory can be freed.
        model: The model; needed together with `federation`.

    Raises:
        InputError: If there are no runs, or they are of several comparisons. Also if only one of
            `federation` and `model` is given, or they do not fit the runs. Also if the folder holds
            other files, or another process is writing to it.

    Example:
        >>> import tempfile
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> model = fp.models.logistic(federation)
        >>> solver = fp.Solver(learning_rate=0.1, batch_size=10, epochs=1)
        >>> runs = fp.simulate(
        ...     federation, model, fp.fedavg(), solver=solver, cohort=fp.Cohort(2), rounds=2
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fp.save(runs, folder, federation=federation, model=model)
        ...     fp.load_model(folder)["dense"]["weight"].shape
        (10, 60)
    """
    are_runs = isinstance(runs, Sequence) and all(isinstance(run, Run) for run in runs)
    require(are_runs and len(runs), f"runs = {shown(runs)}; it must be a list of fedprox.Run")
    experiment = runs[0].experiment
    require(experiment, "runs: made by neither fedprox.simulate nor fedprox.run, so not known how")
    names = [(run.label, run.seed) for run in runs]
    require(
        all(run.experiment == experiment for run in runs) and len(set(names)) == len(names),
        "runs: of several calls of fedprox.simulate; save each call's in a folder of its own",
    )
    clients = None if federation is None or model is None else (federation, model)
    require(
        clients or (federation, model) == (None, None),
        "federation and model: one of them is missing; give both, or neither",
    )
    if clients:
        check_model(clients[1], clients[0])
        for run in runs:
            check_params(f"model: not that of {run.label!r}", run.params, clients[1].shapes)
    target = target_of_runs(experiment, runs)
    with RunDirectory(Path(folder), dict(experiment)) as directory:
        # in the order of training, in which the points of a sweep run together
        for _, sweep in groupby(runs, key=lambda run: (run.method, run.seed)):
            records = [record for run in sweep for record in run.history]
            for record in sorted(records, key=lambda record: record.round):
                directory.record(record)
        write_results(directory, runs, target, clients)
