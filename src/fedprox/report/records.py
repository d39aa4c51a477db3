"""Records as flat tables: one row for each, with the keys of `metrics.jsonl`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedprox.measures import OPTIONAL
from fedprox.report.settings import different, is_simple, settings_of
from fedprox.simulation.results.record import COLUMNS, Record
from fedprox.simulation.results.run import Run

HPARAM = "hparam_"
"""What precedes the name of a hyperparameter that a record's own key has too."""


def value_of(record: Record, name: str) -> float:
    """A measure, a metric or a hyperparameter of a record; NaN if it has none.

    >>> hparams = {"epsilon": 0.1, "mu": 1.0}
    >>> record = Record("fedexp", "fedexp", hparams, 0.1, 0, 1, {"train_loss": 2.3})
    >>> value_of(record, "train_loss"), value_of(record, "mu"), value_of(record, "epsilon")
    (2.3, 1.0, nan)
    """
    others = {**record.hparams, **record.metrics}
    value = getattr(record, name) if name in COLUMNS else others.get(name)
    return math.nan if value is None else float(value)


def highest(history: Iterable[Record], name: str) -> float:
    """The highest finite value of a measure in some records; NaN if there is none."""
    values = (value_of(record, name) for record in history)
    return max(filter(math.isfinite, values), default=math.nan)


def hparam_keys(hparams: Mapping[str, float]) -> dict[str, float]:
    """Hyperparameters by their keys in the files; FedExp's epsilon is not that of privacy.

    >>> hparam_keys({"mu": 1.0, "epsilon": 0.001})
    {'mu': 1.0, 'hparam_epsilon': 0.001}
    """
    return {HPARAM * (name in COLUMNS) + name: value for name, value in hparams.items()}


def flat(record: Record) -> dict[str, Any]:
    """A record as a dict with the keys of `metrics.jsonl`; None for missing values."""
    line = record.as_dict()
    hparams, metrics = line.pop("hparams"), line.pop("metrics")
    del line["by_client"], line["by_client_checksum"]  # no measures
    named = {"label": line.pop("label"), "method": line.pop("method")}
    return {**named, "mu": None, **hparam_keys(hparams), **line, **metrics}


def records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """All records of some runs as flat rows, for a data frame.

    Keys and their order are those of `metrics.jsonl`. All rows have the same keys: a number that a
    method does not have, such as mu, is NaN. Keys that exist only with screening (`faulty`,
    `faulty_clients`, `unmeasured`), only if evaluations read a sample of clients
    (`train_loss_se`, `test_accuracy_se`), only with validation rows (`validation_loss`,
    `validation_accuracy`), only if clients have devices (`time`) or rounds are asynchronous
    (`staleness`), only in a deployment (`seconds`, `bytes_down`, `bytes_up`, `nodes`,
    `network`), only with compression (`bits_up`), only with privacy (`epsilon`, `delta`), only if
    clients have models of their own (`personal_clients`, `personal_loss`, `personal_accuracy`,
    `personal_accuracy_worst`, `newcomer_loss`, `newcomer_accuracy`) or only with
    `Evaluation(by_client=True)` (`client_accuracy_mean`, `client_accuracy_std`,
    `client_accuracy_worst`, `client_accuracy_best`) are omitted if no record has them.

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
    lines = [flat(record) for run in runs for record in run.history]
    known = {key for line in lines for key, value in line.items() if value is not None}
    hparams = [key for run in runs for record in run.history for key in hparam_keys(record.hparams)]
    order = dict.fromkeys(["label", "method", "mu", *hparams])
    order |= dict.fromkeys(key for line in lines for key in line)
    columns = [key for key in order if key in known or key not in OPTIONAL]
    settings = [settings_of(run) for run in runs]
    apart = [
        name
        for name in different(runs, settings)
        if name not in order and all(is_simple(each.get(name)) for each in settings)
    ]
    told = [
        {name: _value(name, each.get(name)) for name in apart}
        for run, each in zip(runs, settings, strict=True)
        for _ in run.history
    ]
    return [
        {key: _value(key, line.get(key)) for key in columns} | of_run
        for line, of_run in zip(lines, told, strict=True)
    ]


def _value(key: str, value: Any) -> Any:
    return math.nan if value is None and key not in ("faulty_clients", "network") else value
