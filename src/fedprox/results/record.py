"""Records: the measures of a run after an evaluated round, over all clients and of each client."""

import hashlib
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from fedprox.errors import InputError, choices
from fedprox.measures import MEASURES


class ClientRecord(NamedTuple):
    """The measures of each client that an evaluation reads, and its work since the last record.

    The records that callbacks receive have it as `Record.by_client`, if
    `Evaluation(client_records=True)` asks for it.

    Attributes:
        clients: The clients' names, in the order of the arrays.
        training_rows: Training rows n_k of each client, int64 (clients,).
        test_rows: Test rows of each client, int64 (clients,).
        train_loss: F_k(w), float64 (clients,); NaN for a client whose loss or gradient is not
            finite, if updates are screened.
        test_accuracy: Accuracy over the client's test rows, float64 (clients,); NaN without test
            rows.
        rounds: Rounds since the previous record in which the client trained, int64 (clients,).
        steps: Mini-batch steps that it took in these rounds, int64 (clients,).

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> seen = []
        >>> runs = fp.simulate(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, steps=3),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=1,
        ...     evaluation=fp.Evaluation(client_records=True),
        ...     callbacks=[fp.Callback(on_record=seen.append)],
        ... )
        >>> sorted(seen[-1].by_client.steps.tolist())
        [0, 0, 3, 3]
    """

    clients: Sequence[str]
    training_rows: NDArray[np.int64]
    test_rows: NDArray[np.int64]
    train_loss: NDArray[np.float64]
    test_accuracy: NDArray[np.float64]
    rounds: NDArray[np.int64]
    steps: NDArray[np.int64]


def client_columns(measures: ClientRecord) -> bytes:
    """The measures of clients as JSON columns; null for numbers that are not finite."""
    columns: dict[str, Any] = {"clients": list(measures.clients)}
    for name in measures._fields[1:]:
        values = getattr(measures, name)
        columns[name] = [_number(value) for value in values.tolist()]
    return json.dumps(columns, allow_nan=False).encode()


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def checksum_of(columns: bytes) -> str:
    """The checksum of `client_columns`, by which a run that resumes knows them again."""
    return hashlib.sha256(columns).hexdigest()


@dataclass(frozen=True, repr=False, eq=False)
class Record:
    """The measures of one run after `round` rounds.

    Each measure is an attribute, under its name in `metrics.jsonl`.

    Attributes:
        label: The method, and the hyperparameters in which the run differs from the others of its
            comparison.
        method: Name of the algorithm.
        hparams: The algorithm's hyperparameters, such as mu. An adaptive mu has its value in the
            last round.
        learning_rate: Learning rate of the local solver. A schedule has its value in the last
            round, or in round 0 for the initial model.
        seed: Seed of the run.
        round: Number of rounds done; 0 is the initial model.
        measures: The measures of this record, by the names below.
        metrics: The model's metrics: `train_NAME` over training rows, `test_NAME` over test rows
            and, if there are any, `validation_NAME` over validation rows. Each client is weighted
            by all of its rows.
        by_client: The measures of each client, in records that callbacks receive while a run
            with `Evaluation(client_records=True)` trains. None in `Run.history`, which would keep
            those of all rounds in memory, and in records that come from a checkpoint.
        by_client_checksum: SHA-256 of `by_client` as `clients.jsonl` has it, by which a run that
            resumes checks the lines that it keeps; None without client records.
    """

    label: str
    method: str
    hparams: dict[str, float]
    learning_rate: float
    seed: int
    round: int
    measures: Mapping[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    by_client: ClientRecord | None = None
    by_client_checksum: str | None = None

    def __getattr__(self, name: str) -> Any:
        if name in MEASURES:
            return self.measures.get(name, MEASURES[name].missing)
        raise AttributeError(f"Record: no attribute {name!r}; {choices(name, RECORD_COLUMNS)}")

    def __eq__(self, other: object) -> bool:
        """Whether all values are the same, also where they are NaN; `by_client` by its checksum."""
        if not isinstance(other, Record):
            return NotImplemented
        ours, theirs = ({**each.as_dict(), "by_client": None} for each in (self, other))
        return repr(ours) == repr(theirs)  # exact, and with repr NaN is NaN

    __hash__ = None  # type: ignore[assignment]

    @property
    def diverged(self) -> bool:
        """Whether the training loss was measured and is not finite."""
        return self.measured is not False and not math.isfinite(self.train_loss)

    def value(self, measure: str) -> float:
        """A measure by its name in `metrics.jsonl`, such as "test_accuracy" or "test_NAME".

        Raises:
            InputError: If the record has no such measure.
        """
        known = {**self.as_dict(), **self.metrics}
        known = {name: value for name, value in known.items() if isinstance(value, int | float)}
        if measure not in known:
            raise InputError(f"record: no measure {measure!r}; {choices(measure, known)}")
        value: float = known[measure]
        return value

    def as_dict(self) -> dict[str, Any]:
        """All attributes and measures by their names, also those that were not measured."""
        return {name: getattr(self, name) for name in RECORD_COLUMNS}

    def __repr__(self) -> str:
        return f"Record({self.label!r}, seed {self.seed}, round {self.round}: {figures(self)})"

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read a record from what `as_dict` returns."""
        return core_schema.no_info_after_validator_function(_record_of, handler(RecordTable))


OWN = [each.name for each in fields(Record) if each.name != "measures"]
"""The attributes of a record that are no measures."""

RECORD_COLUMNS = [*OWN[:6], *MEASURES, *OWN[6:]]
"""The attributes of a record but `measures`, whose keys are here themselves."""

LATER = ("empty_rounds", "test_loss")
"""Measures that all records have, but those of the first versions."""


def _type_of(name: str) -> Any:
    """The type of a measure in tables, and its default; `...` if there is none."""
    kind, missing = MEASURES[name].kind, MEASURES[name].missing
    return (kind | None, None) if missing is None else (kind, missing if name in LATER else ...)


COLUMN_TYPES: dict[str, Any] = {
    **{each.name: (each.type, ...) for each in fields(Record)[:6]},
    **{name: _type_of(name) for name in MEASURES},
    "metrics": (dict[str, float], {}),
    "by_client": (None, None),
    "by_client_checksum": (str | None, None),
}
RecordTable = create_model("RecordTable", __config__=ConfigDict(extra="forbid"), **COLUMN_TYPES)
"""The type of what `Record.as_dict` returns, as files hold it."""


def _record_of(table: Any) -> Record:
    values = dict(table)
    own = {name: values.pop(name) for name in OWN}
    return Record(**own, measures={name: v for name, v in values.items() if v is not None})


def _documented() -> str:
    """The entries of the measures in a docstring."""
    lines = []
    for name, measure in MEASURES.items():
        own = measure.kind.__name__ if isinstance(measure.kind, type) else str(measure.kind)
        kind = own.replace("typing.", "") + " | None" * (measure.missing is None)
        entry = f"{name} ({kind}): {measure.doc}"
        lines += textwrap.wrap(entry, 92, initial_indent=" " * 8, subsequent_indent=" " * 12)
    return "\n".join(lines)


if Record.__doc__ is not None:  # Python's option -OO leaves it out
    Record.__doc__ = f"{Record.__doc__.rstrip()}\n{_documented()}\n    "


def figures(record: Record) -> str:
    """Loss and accuracy of a record as text, without an accuracy that is NaN."""
    loss = f"train loss {record.train_loss:.4g}"
    if record.measured is False:
        loss = "no losses measured"
    if math.isnan(record.test_accuracy):
        return loss
    return f"{loss}, test accuracy {percent(record.test_accuracy)}"


def percent(fraction: float) -> str:
    """A fraction as text, in per cent."""
    return f"{100 * fraction:.2f} %"
