"""Reading a run directory back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedprox.algorithms.reporting import Evaluated
from fedprox.errors import InputError, require
from fedprox.files.toml import parse_toml
from fedprox.report.records import read_record
from fedprox.results.run import Run
from fedprox.results.target import KEYS, Target, target_of

T = TypeVar("T")

Whole = Annotated[int, Field(ge=0, lt=2**63)]
"""A count: an integer from 0 that fits in 64 bits."""


class EvaluatedModel(BaseModel):
    """The key of `[evaluation]` that the report interprets."""

    model: Evaluated = "server"


class KnownSettings(BaseModel):
    """The keys of `experiment.toml` that the report interprets; it shows all of them."""

    rounds: Whole
    seed: Whole | list[Whole] = 0
    target_accuracy: float | None = None
    target_loss: float | None = None
    target_metric: dict[str, Any] | None = None
    evaluation: EvaluatedModel = EvaluatedModel()
    data: dict[str, Any]
    cohort: dict[str, Any]
    systems: dict[str, Any] = {}
    method: list[dict[str, Any]]


class _File(BaseModel):
    # pydantic before 2.10 warns of fields that begin with model_
    model_config = ConfigDict(allow_inf_nan=False, protected_namespaces=())


class RunTimes(_File):
    """The fields of a run in `summary.json` that `metrics.jsonl` lacks."""

    label: str
    seed: Whole
    run_seconds: float
    callback_seconds: float = 0.0
    sweep_points: Whole
    model_round: Whole | None = None


class RunClients(_File):
    """One run in `clients.json`: accuracy on each client's test rows, None for one without any."""

    label: str
    seed: Whole
    test_accuracy: list[float | None]


class Fact(_File):
    """One line of a diagnosis."""

    what: str
    value: str
    note: str


class Heterogeneity(_File):
    """Heterogeneity of the federation during a run: one value for each evaluated round."""

    round: list[Whole]
    dissimilarity: list[float | None]
    gradient_variance: list[float | None]


class SweepPoint(_File):
    """One value of mu in the sweep of a diagnosis, see `fedprox.diagnose`."""

    mu: float
    round: list[Whole]
    train_loss: list[float | None]
    late_loss: float | None
    spread: float | None
    expected_gap: float | None


class DiagnosisFile(_File):
    """The contents of `diagnosis.json`, see `fedprox.Diagnosis`."""

    facts: list[Fact]
    sizes: list[Whole]
    classes: list[float]
    path: Heterogeneity
    sweep: list[SweepPoint]
    suggested_mu: float | None
    theory_mu: float | None


@dataclass(frozen=True)
class Archive:
    """A run directory's contents, with the experiment as in `experiment.toml`.

    Runs have their histories, but no parameters, and no seconds before the comparison has finished.
    """

    path: Path
    experiment: dict[str, Any]
    runs: list[Run]
    finished: bool
    clients: list[RunClients]
    diagnosis: DiagnosisFile | None

    @property
    def shown(self) -> list[Run]:
        """The runs in figures and tables.

        Seeds run one after another. If the comparison was interrupted, the seed that was running
        is left out if other seeds of its label were finished. A mean would mix their last rounds
        with its earlier ones.
        """
        if self.finished or not self.runs:
            return self.runs
        last = self.runs[-1]
        done = {run.label for run in self.runs if run.seed != last.seed}
        return [
            run
            for run in self.runs
            if run.label not in done
            or (run.method, run.seed) != (last.method, last.seed)
            or run.diverged_at is not None
            or run.final.round >= self.experiment["rounds"]
        ]

    @property
    def target(self) -> Target | None:
        """The experiment's target; None without one."""
        return target_of_runs(self.experiment, self.runs)


def target_of_runs(experiment: Mapping[str, Any], runs: Sequence[Run]) -> Target | None:
    """The target of an experiment, given its runs: they know whether there are validation rows."""
    accuracy, loss, metric = map(experiment.get, KEYS)
    return target_of(accuracy, loss, metric, validated=any(run.validated for run in runs))


def read_archive(path: Path) -> Archive:
    """Read a run directory."""
    require(path.is_dir(), f"{path}: no such folder; name a run directory")
    require(
        (path / "experiment.toml").is_file(), f"{path}: no experiment.toml; not a run directory"
    )
    experiment = _experiment(path / "experiment.toml")
    diagnosis = read_json(path / "diagnosis.json", DiagnosisFile)
    times = read_summary(path)
    evaluated = experiment.get("evaluation", {}).get("model", "server")
    runs = _runs(path / "metrics.jsonl", times or [], evaluated)
    require(runs or diagnosis, f"{path}: no evaluated rounds yet")
    clients = read_json(path / "clients.json", list[RunClients])
    return Archive(path, experiment, runs, times is not None, clients or [], diagnosis)


def read_summary(path: Path) -> list[RunTimes] | None:
    """The runs in a run directory's `summary.json`; None if that is not written yet."""
    return read_json(path / "summary.json", list[RunTimes])


def _experiment(path: Path) -> dict[str, Any]:
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
        known = KnownSettings.model_validate(table)
        metric = known.target_metric
        require(metric is None or {"name", "value"} <= metric.keys(), "target_metric: not a target")
        target_of(known.target_accuracy, known.target_loss, metric)
    except ValueError as error:
        raise InputError(f"{path}: damaged: {_explain(error)}") from None
    return table


def _runs(path: Path, times: Sequence[RunTimes], evaluated: str) -> list[Run]:
    """The runs of `metrics.jsonl`, in the order of their first lines."""
    runs: dict[tuple[str, int], Run] = {}
    # an incomplete last line was being written when the run was killed
    *whole, _ = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    for number, line in enumerate(whole, start=1):
        try:
            record = read_record(line)
            label, seed = key = record.label, record.seed
            if key not in runs:
                hparams, rate = record.hparams, record.learning_rate
                runs[key] = Run(record.method, hparams, rate, seed, label)
                if record.method != "centralised":
                    runs[key].evaluated = evaluated
            elif record.round <= (last := runs[key].final.round):
                raise ValueError(
                    f"{label!r}, seed {seed}, has round {record.round} after round {last}"
                )
        except ValueError as error:
            raise InputError(f"{path}: line {number} is damaged: {_explain(error)}") from None
        runs[key].history.append(record)
    for time in times:
        if run := runs.get((time.label, time.seed)):
            run.run_seconds, run.callback_seconds = time.run_seconds, time.callback_seconds
            run.sweep_points, run.model_round = time.sweep_points, time.model_round
    return list(runs.values())


def read_json(path: Path, kind: type[T]) -> T | None:
    """A JSON file's checked content; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(f"{path}: damaged: {_explain(error)}") from None


def _explain(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
