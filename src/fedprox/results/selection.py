"""Selection: which of a run's models is kept, and when a run without progress ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedprox.errors import PositiveInt, check_fields, require, require_one_of
from fedprox.measures import choosable
from fedprox.results.record import Record

Keep = Literal["last", "best"]


VALIDATION_LOSS = "validation_loss"


@dataclass(frozen=True)
class Selection:
    """Which of a run's models is kept, and when a run without progress ends.

    A run is judged by one measure at each evaluation. If there are validation rows, measures on
    test rows are not allowed: a model chosen by its test rows would look better than it is.

    Attributes:
        keep: "last" keeps the model after the last round, "best" the evaluated model with the best
            value of the measure (on ties the first).
        measure: Name of the measure in `metrics.jsonl`, such as "validation_accuracy" or "test_f1".
            None means the validation loss.
        patience: Number of consecutive evaluations without a better value after which a run ends.
            None means never. Sweep points run together until each of them has come to this point.

    Raises:
        InputError: If `keep` or `measure` is invalid, or `patience` is not a whole number of at
            least 1.

    Example:
        >>> Selection(keep="best", patience=5)
        Selection(keep='best', measure=None, patience=5)
    """

    keep: Keep = "last"
    measure: str | None = None
    patience: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields("selection", self)
        require(
            self.measure is None or isinstance(self.measure, str),
            f"selection.measure = {self.measure!r}; it must be the name of a measure",
        )

    @property
    def selects(self) -> bool:
        """Whether anything depends on the measure."""
        return self.keep == "best" or self.patience is not None

    def among(self, known: Sequence[str]) -> "Selection":
        """The same selection with its measure, checked against the measures of records.

        Raises:
            InputError: If the measure is unknown, is on test rows although there are validation
                rows, or is omitted although there are no validation rows.
        """
        if not self.selects:
            return self
        measure, allowed = self.measure or VALIDATION_LOSS, choosable(known)
        require(
            self.measure is not None or measure in known,
            f"selection.measure: none given, and there are no validation rows; hold some out "
            f"(validation_share), or give one of {', '.join(known)}",
        )
        require(
            measure in allowed or measure not in known,
            f'selection.measure = "{measure}"; there are validation rows, so test rows are read '
            "for the report alone: choose a validation measure",
        )
        require_one_of("selection.measure", measure, allowed)
        return replace(self, measure=measure)


class Best:
    """The best value of a measure in a run so far.

    Attributes:
        round: The round of the first record with this value.
        since: Number of records after that one.
    """

    def __init__(
        self, measure: str, *, lower_is_better: bool, history: Sequence[Record] = ()
    ) -> None:
        self._measure, self._sign = measure, -1 if lower_is_better else 1
        self._value = -math.inf
        self.round = self.since = 0
        for record in history:
            self.see(record)

    def see(self, record: Record) -> bool:
        """Add the next record, and return whether it is the best so far; NaN never is."""
        value = self._sign * record.value(self._measure)
        if value > self._value:
            self._value, self.round, self.since = value, record.round, 0
            return True
        self.since += 1
        return False
