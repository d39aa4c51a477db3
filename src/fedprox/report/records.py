"""Records by the names of their measures: values, lines of `metrics.jsonl`, and rows of tables.

No other file of the report knows how a record holds what some experiments alone have.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pydantic import TypeAdapter

from fedprox.measures import KINDS, MEASURES, OPTIONAL
from fedprox.report.rows import apart, is_simple
from fedprox.results.record import RECORD_COLUMNS, Record
from fedprox.results.run import Run

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
"""What precedes the name of a hyperparameter that a record's own key has too."""


METRICS = tuple(f"{kind}_" for kind in KINDS)
RECORD = TypeAdapter(Record)


def has(record: Record, name: str) -> bool:
    """Whether a record has a number that not all experiments have; it may be NaN."""
    return getattr(record, name) is not None


def value_of(record: Record, name: str) -> float:
    """A measure, a metric or a hyperparameter of a record; NaN if it has none.

    >>> hparams = {"epsilon": 0.1, "mu": 1.0}
    >>> record = Record("fedexp", "fedexp", hparams, 0.1, 0, 1, {"train_loss": 2.3})
    >>> value_of(record, "train_loss"), value_of(record, "mu"), value_of(record, "epsilon")
    (2.3, 1.0, nan)
    """
    others = {**record.hparams, **record.metrics}
    value = getattr(record, name) if name in RECORD_COLUMNS else others.get(name)
    return math.nan if value is None else float(value)


def highest(history: Iterable[Record], name: str) -> float:
    """The highest finite value of a measure in some records; NaN if there is none."""
    values = (value_of(record, name) for record in history)
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
