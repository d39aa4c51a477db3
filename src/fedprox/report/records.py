"""Records by the names of their measures: values, lines of `metrics.jsonl`, and rows of tables.

A row or a line of a figure has the runs of one label and one experiment, one for each seed. No
other file of the report knows how a record holds what some experiments alone have.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pydantic import TypeAdapter

from fedprox.errors import require
from fedprox.measures import MEASURES, ON_ROWS, OPTIONAL
from fedprox.results.record import RECORD_COLUMNS, Record
from fedprox.results.run import Run

LONGEST_SAID = 20
"""The most characters of a setting that is said in a table."""

MOST_SAID = 3
"""The most settings that the name of a row says."""

RATE = "solver.learning_rate"
"""Name of the setting that is the run's own in a sweep."""


def _settings_of(run: Run) -> dict[str, Any]:
    """The settings that the seeds of one row share, by name; empty without an experiment."""
    if not run.experiment:
        return {}
    # methods are in the label; where client state is stored changes no result
    others = ("seed", "method", "versions", "client_store")
    settings: dict[str, Any] = {}
    for key, value in run.experiment.items():
        if isinstance(value, Mapping):
            settings |= {f"{key}.{name}": each for name, each in value.items()}
        elif key not in others:
            settings[key] = value
    if not isinstance(settings.get(RATE), str):  # the name of a schedule
        settings[RATE] = run.learning_rate
    return settings | run.hparams


def apart(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """The settings of each run, and the names of those in which runs differ beside their labels."""
    settings = [_settings_of(run) for run in runs]
    # the runs of any comparison differ in these, which labels say
    own = {RATE, *(name for run in runs for name in run.hparams)}
    firsts: dict[str, Mapping[str, Any]] = {}
    for run, each in zip(runs, settings, strict=True):
        firsts.setdefault(run.label, each)
    return settings, [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if any(
            each.get(name) != (firsts[run.label] if name in own else settings[0]).get(name)
            for run, each in zip(runs, settings, strict=True)
        )
    ]


def is_simple(value: object) -> bool:
    """Whether a setting fits into a cell of a table."""
    if isinstance(value, str):
        return len(value) <= LONGEST_SAID
    return isinstance(value, int | float | None)


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each row or line: of one label and one experiment, one run for each seed.

    If the runs are of several experiments that differ in few and simple settings, the names of the
    rows say these settings.

    >>> known = dict(method="fedavg", hparams={}, learning_rate=0.1, seed=0, label="fedavg")
    >>> few, many = ({"systems": {"stragglers": share}} for share in (0.0, 0.5))
    >>> list(by_label([Run(**known, experiment=few), Run(**known, experiment=many)]))
    ['fedavg · stragglers 0', 'fedavg · stragglers 0.5']
    """
    settings, names = apart(runs)
    said = len(names) <= MOST_SAID and all(
        is_simple(each.get(name)) for each in settings for name in names
    )
    grouped: dict[str, list[Run]] = {}
    experiments: dict[str, dict[str, Any]] = {}
    for run, each in zip(runs, settings, strict=True):
        row = run.label
        if said:
            row = " · ".join([row, *(_said(name, each.get(name)) for name in names)])
        known = experiments.setdefault(row, each)
        require(
            each == known,
            f"runs: those of {run.label!r} are of experiments that differ in "
            f"{', '.join(n for n in names if each.get(n) != known.get(n))}, which are no seeds "
            "to average over; give the runs of one experiment at a time",
        )
        require(
            run.seed not in [other.seed for other in grouped.setdefault(row, [])],
            f"runs: {row!r} with seed {run.seed} is given more than once, which are no seeds to "
            "average over; give each run once, and the runs of one experiment at a time",
        )
        grouped[row].append(run)
    return grouped


def _said(name: str, value: object) -> str:
    """A setting in the name of a row."""
    section, _, key = name.rpartition(".")
    name = key if section in ("systems", "cohort", "solver") else name
    if isinstance(value, bool | None):
        text = {None: "none", True: "yes", False: "no"}[value]
    else:
        text = value if isinstance(value, str) else f"{value:g}"
    return f"{name.replace('_', ' ')} {text}"


AT_THE_END = [
    name
    for name in MEASURES
    if name.startswith(
        ("train_", "test_", "validation_", "client_accuracy", "personal_", "newcomer_")
    )
    or name in ("gradient_variance", "dissimilarity", "gamma_mean", "gamma_max")
]
"""The measures of the last record in `summary.json`, as `final_NAME`."""

HPARAM = "hparam_"
"""The prefix of a hyperparameter whose name is a record's own key too."""


METRICS = tuple(f"{kind}_" for kind in ON_ROWS)
RECORD = TypeAdapter(Record)


def has(record: Record, name: str) -> bool:
    """Whether a record has a number that not all experiments have; it may be NaN."""
    return getattr(record, name) is not None


def number_of(record: Record, name: str) -> float:
    """A measure, a metric or a hyperparameter of a record; NaN if it has none.

    >>> hparams = {"epsilon": 0.1, "mu": 1.0}
    >>> record = Record("fedexp", "fedexp", hparams, 0.1, 0, 1, {"train_loss": 2.3})
    >>> number_of(record, "train_loss"), number_of(record, "mu"), number_of(record, "epsilon")
    (2.3, 1.0, nan)
    """
    others = {**record.hparams, **record.metrics}
    value = getattr(record, name) if name in RECORD_COLUMNS else others.get(name)
    return math.nan if value is None else float(value)


def without_diverged(runs: Iterable[Run]) -> list[Run]:
    """The runs that have not diverged."""
    return [run for run in runs if run.diverged_at is None]


def highest(history: Iterable[Record], name: str) -> float:
    """The highest finite value of a measure in some records; NaN if there is none."""
    values = (number_of(record, name) for record in history)
    return max(filter(math.isfinite, values), default=math.nan)


def comparable(record: Record) -> list[str]:
    """The names of a record's measures and metrics that are numbers."""
    numbers = {**record.as_dict(), **record.metrics}
    others = ("seed", "round", "learning_rate")
    return [n for n, v in numbers.items() if isinstance(v, int | float) and n not in others]


def hparam_keys(hparams: Mapping[str, float]) -> dict[str, float]:
    """Hyperparameters by their keys in the files; FedExp's epsilon is not that of privacy.

    >>> hparam_keys({"mu": 1.0, "epsilon": 0.001})
    {'mu': 1.0, 'hparam_epsilon': 0.001}
    """
    return {HPARAM * (name in RECORD_COLUMNS) + name: value for name, value in hparams.items()}


def json_number(value: Any) -> Any:
    """A value as JSON holds it: numbers that are not finite become None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(record: Record) -> dict[str, Any]:
    """A record as a dict with the keys of `metrics.jsonl`; None for missing values."""
    line = record.as_dict()
    hparams, metrics = line.pop("hparams"), line.pop("metrics")
    del line["by_client"], line["by_client_checksum"]  # no measures
    named = {"label": line.pop("label"), "method": line.pop("method")}
    return {**named, "mu": None, **hparam_keys(hparams), **line, **metrics}


def metrics_line(record: Record) -> dict[str, Any]:
    """A record as a JSON object; numbers that are not finite become null.

    It has standard errors if evaluations read a sample of clients, validation measures if there are
    validation rows, and so on (see `OPTIONAL`). Each of the model's metrics has a key of its own.

    >>> line = metrics_line(Record("fedprox mu=1", "fedprox", {"mu": 1.0}, 0.1, 0, 5))
    >>> line["mu"], line["gamma_mean"]
    (1.0, None)
    """
    return {
        key: json_number(value)
        for key, value in _flat(record).items()
        if value is not None or key not in OPTIONAL
    }


def read_record(line: bytes) -> Record:
    """A line of `metrics.jsonl` as the record it was written from; null becomes NaN."""
    try:
        table = json.loads(line, parse_constant=_refuse, parse_int=_whole)
    except RecursionError:
        raise ValueError("arrays or objects within others, too deep") from None
    if not isinstance(table, dict):
        raise ValueError("not a JSON object")
    fields: dict[str, Any] = {"hparams": {}, "metrics": {}}
    for key, value in table.items():
        number = math.nan if value is None else value
        if key in RECORD_COLUMNS and key not in fields:
            real = key == "learning_rate" or (key in MEASURES and MEASURES[key].kind is float)
            fields[key] = number if real else value
        elif key.startswith(METRICS):
            fields["metrics"][key] = number
        elif value is not None:
            name = key.removeprefix(HPARAM)
            fields["hparams"][name if name in RECORD_COLUMNS else key] = value
    return RECORD.validate_python(fields, strict=True)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError(f"{text}: a whole number beyond 64 bits")
    return number


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """All records of some runs as flat rows, for a data frame.

    Keys and their order are those of `metrics.jsonl`. All rows have the same keys: a number that a
    method does not have, such as mu, is NaN. Keys that exist only with some setting, such as `time`
    with a population (see :class:`fedprox.Record`), are omitted if no record has them.

    If the runs are of several experiments, each simple setting in which these differ, such as
    `systems.stragglers`, is a further key at the end.

    Args:
        runs: The runs of one or more comparisons, such as `simulate` returns.

    Returns:
        One dict for each record, run after run.

    Example:
        >>> import fedprox as fp
        >>> record = fp.Record("fedavg", "fedavg", {}, 0.1, 0, 1, {"train_loss": 2.3})
        >>> row, = fp.records([fp.Run("fedavg", {}, 0.1, 0, "fedavg", [record])])
        >>> row["label"], row["mu"], row["train_loss"]
        ('fedavg', nan, 2.3)

        `pandas.DataFrame(fp.records(runs))` is a data frame of them.
    """
    lines = [_flat(record) for run in runs for record in run.history]
    known = {key for line in lines for key, value in line.items() if value is not None}
    hparams = [key for run in runs for record in run.history for key in hparam_keys(record.hparams)]
    order = dict.fromkeys(["label", "method", "mu", *hparams])
    order |= dict.fromkeys(key for line in lines for key in line)
    columns = [key for key in order if key in known or key not in OPTIONAL]
    settings, different = apart(runs)
    names = [
        name
        for name in different
        if name not in order and all(is_simple(each.get(name)) for each in settings)
    ]
    told = [
        {name: _value(name, each.get(name)) for name in names}
        for run, each in zip(runs, settings, strict=True)
        for _ in run.history
    ]
    return [
        {key: _value(key, line.get(key)) for key in columns} | of_run
        for line, of_run in zip(lines, told, strict=True)
    ]


def _value(key: str, value: Any) -> Any:
    return math.nan if value is None and key not in ("faulty_clients", "network") else value
