"""The criteria of a run: the target that it is to reach, and which of its models is kept."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

from fedprox.errors import (
    PositiveInt,
    as_float,
    check_fields,
    require,
    require_number,
    require_one_of,
    shown,
)
from fedprox.measures import ACCURACIES, LOSSES, ON_ROWS, choosable, lower_is_better
from fedprox.metrics import Metric
from fedprox.results.record import Record

StopAtTarget = Literal["never", "all", "any"]
"""When a method ends early: once all, or any, of its sweep points have reached the target."""


KEYS = ("target_accuracy", "target_loss", "target_metric")
"""The keys of targets in experiment files."""


@dataclass(frozen=True)
class Target:
    """A value that a measure is to reach, such as a test accuracy or a training loss.

    Attributes:
        measure: Name of the measure in `metrics.jsonl`: `train_loss`, `test_loss`, `test_accuracy`,
            `validation_loss`, `validation_accuracy`, or `train_NAME`, `test_NAME` or
            `validation_NAME` for a metric NAME of the model. With validation rows, measures on test
            rows are not allowed.
        value: The value to reach: an accuracy above 0 and at most 1, a loss above 0, or any finite
            value of a metric.
        lower_is_better: Whether smaller values of a metric are better. None means that `simulate`
            takes it from the model's metric. Losses and accuracies do not need it.

    Raises:
        InputError: If the measure is unknown, the value is out of range, or `lower_is_better` is
            invalid or contradicts the measure.

    Example:
        >>> print(Target("test_accuracy", 0.97), "and", Target("train_loss", 0.0603))
        97 % and loss 0.0603
        >>> print(Target("validation_f1", 0.8), "and", Target("validation_accuracy", 0.97))
        validation f1 0.8 and validation accuracy 97 %
    """

    measure: str
    value: float
    lower_is_better: bool | None = None

    def __post_init__(self) -> None:
        named = isinstance(self.measure, str)
        require(
            named and (_is_known(self.measure) or _is_of_metric(self.measure)),
            f"target.measure = {shown(self.measure)}; it must be one of "
            f"{', '.join((*ACCURACIES, *LOSSES))}, or of "
            "train_NAME, test_NAME and validation_NAME for a metric NAME of the model",
        )
        lower = self.lower_is_better
        require(
            lower is None or isinstance(lower, bool),
            f"target.lower_is_better = {shown(lower)}; it must be True, False or None",
        )
        if _is_known(self.measure):
            require(
                lower in (None, self.measure in LOSSES),
                f"target.lower_is_better = {lower}; it is known of {self.measure}: leave it out",
            )
            most = 1 if self.measure in ACCURACIES else math.inf
            require_number(self.key, self.value, most=most, positive=True)
        else:
            number = isinstance(self.value, Real) and not isinstance(self.value, bool)
            require(
                number and math.isfinite(as_float(self.value)),
                f"{self.key}.value = {shown(self.value)}; it must be a finite number",
            )

    def __str__(self) -> str:
        what = {"test_accuracy": "", "train_loss": "loss"}.get(self.measure)
        what = self.measure.replace("_", " ", 1) if what is None else what
        value = f"{100 * self.value:g} %" if self.measure in ACCURACIES else f"{self.value:g}"
        return f"{what} {value}".strip()

    @property
    def key(self) -> str:
        """The target's key in experiment files and in `summary.json`."""
        if self.measure in ACCURACIES:
            return "target_accuracy"
        return "target_loss" if self.measure == "train_loss" else "target_metric"

    @property
    def setting(self) -> float | dict[str, Any]:
        """The value of this key."""
        if self.key != "target_metric":
            return self.value
        setting: dict[str, Any] = {"name": self.measure, "value": self.value}
        if self.lower_is_better is not None:
            setting["lower_is_better"] = self.lower_is_better
        return setting

    def _score(self, value: float) -> float:
        """The value with its sign changed if smaller values are better, so that more is better."""
        lower = self.measure in LOSSES if _is_known(self.measure) else self.lower_is_better
        require(
            lower is not None,
            f"target: whether smaller values of {self.measure} are better is not known here; give "
            "lower_is_better",
        )
        return -value if lower else value

    def met(self, value: float) -> bool:
        """Whether a value of the measure reaches the target; NaN does not."""
        return self._score(value) >= self._score(self.value)

    def among(self, known: Collection[str], metrics: Mapping[str, Metric]) -> "Target":
        """The same target, checked against the measures of records, with `lower_is_better` set.

        Raises:
            InputError: If records do not have the measure, or it is on test rows although there are
                validation rows.
        """
        allowed, why = choosable(known), "records do not have it"
        if self.measure in known:
            why = "with validation rows, test rows are read for the report alone"
        require(
            self.measure in allowed,
            f"target: {self.measure}: {why}; it must be one of {', '.join(allowed)}",
        )
        if _is_known(self.measure) or self.lower_is_better is not None:
            return self
        return replace(self, lower_is_better=lower_is_better(self.measure, metrics))

    def rounds(self, evaluated: Sequence[float], values: Sequence[float]) -> float | None:
        """Rounds until a curve reaches the target; None if it never does.

        As in McMahan et al. 2017, section 3, the curve is the best value so far, interpolated
        linearly between evaluated rounds.

        Args:
            evaluated: Evaluated rounds in ascending order, shape (n,).
            values: The measure after each of these rounds, shape (n,); NaN if unknown.

        >>> Target("test_accuracy", 0.7).rounds([0, 10, 20, 30], [0.1, 0.5, 0.2, 0.9])
        25.0
        """
        before, best = 0.0, -math.inf
        for round_, value in zip(evaluated, values, strict=True):
            if self.met(value):
                if best == -math.inf:
                    return float(round_)
                share = (self._score(self.value) - best) / (self._score(value) - best)
                return float(before + share * (round_ - before))
            before = float(round_)
            if self._score(value) > best:
                best = self._score(value)
        return None


def _is_known(measure: str) -> bool:
    """Whether a measure is a loss or an accuracy."""
    return measure in (*ACCURACIES, *LOSSES)


def _is_of_metric(measure: str) -> bool:
    """Whether a measure may be that of a metric."""
    kind, _, name = measure.partition("_")
    return kind in ON_ROWS and name.isidentifier() and name not in ("loss", "accuracy")


def target_of(
    accuracy: float | None,
    loss: float | None,
    metric: Mapping[str, Any] | None = None,
    *,
    validated: bool = False,
) -> Target | None:
    """The target that an experiment's keys define; None without such a key."""
    targets = {
        key: value
        for key, value in zip(KEYS, (accuracy, loss, metric), strict=True)
        if value is not None
    }
    require(
        len(targets) < 2,
        f"{' and '.join(f'{key} = {value}' for key, value in targets.items())}; give one of them, "
        "and not both",
    )
    if metric is not None:
        return Target(metric["name"], metric["value"], metric.get("lower_is_better"))
    if accuracy is not None:
        return Target("validation_accuracy" if validated else "test_accuracy", accuracy)
    return None if loss is None else Target("train_loss", loss)


Keep = Literal["last", "best"]


VALIDATION_LOSS = "validation_loss"


@dataclass(frozen=True)
class Selection:
    """The model that a run keeps, and when a run without progress ends.

    A run is judged by one measure at each evaluation. If there are validation rows, measures on
    test rows are not allowed: a model chosen by its test rows would look better than it is.

    Attributes:
        keep: "last" keeps the model after the last round, "best" the evaluated model with the best
            value of the measure (on ties the first).
        measure: Name of the measure in `metrics.jsonl`, such as "validation_accuracy" or "test_f1".
            None means the validation loss.
        patience: Number of consecutive evaluations without a better value after which a run ends.
            None means never. The points of a sweep run together until this holds for each of them.

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
