"""Tuning: how a study chooses each method's hyperparameters, with equal budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedprox.errors import check_fields, require, shown
from fedprox.federation import Federation
from fedprox.measures import lower_is_better
from fedprox.model import Model
from fedprox.protocol.protocol import measures_of
from fedprox.results.run import Run
from fedprox.streams import check_seed


@dataclass(frozen=True)
class Tuning:
    """How a study chooses each method's hyperparameters among those that it tries.

    A method tries every combination of its hyperparameters and learning rates, separately for each
    data set and setting of the study. Chosen is the combination with the best mean over seeds of a
    measure on validation rows; one that diverges with a seed is never chosen if another does not.

    Attributes:
        measure: The measure, on validation rows. None means their accuracy, or their loss for a
            model without accuracy.
        seeds: The seeds of the choice; the chosen combination is then trained with the seeds of
            the study. None means these seeds: every combination is trained with all of them.
        equal: Whether a study is refused whose methods try different numbers of combinations.

    Raises:
        InputError: If the measure is not on validation rows, or a seed is invalid.

    Example:
        >>> Tuning(seeds=[100]).equal
        True
    """

    measure: str | None = None
    seeds: Sequence[int] | None = None
    equal: bool = True

    def __post_init__(self) -> None:
        check_fields("tuning", self)
        require(
            self.measure is None
            or (isinstance(self.measure, str) and self.measure.startswith("validation_")),
            f"tuning.measure = {shown(self.measure)}; it must be a measure on validation rows, "
            "such as validation_accuracy, since test rows choose nothing",
        )
        if self.seeds is not None:
            check_seeds("tuning.seeds", self.seeds)
            object.__setattr__(self, "seeds", tuple(map(int, self.seeds)))

    def check_budgets(self, budgets: Mapping[str, int]) -> None:
        """Raise `InputError` if methods, by name, try different numbers of combinations."""
        require(
            not self.equal or len(set(budgets.values())) < 2,
            "methods: unequal budgets: "
            + ", ".join(f"{name} tries {count}" for name, count in budgets.items())
            + "; give each as many combinations to try, such as more learning rates with "
            "with_solver(learning_rate=[...]), or set tuning.equal to false, and tables say so",
        )

    def sentence(
        self, budgets: Mapping[str, int], measures: Sequence[str], first: Sequence[int] = ()
    ) -> str:
        """How hyperparameters were chosen; empty if no method tries several combinations.

        `first` are the seeds that a study had when they were chosen, if it has more now.
        """
        if set(budgets.values()) == {1}:
            return ""
        least, *more = sorted(set(budgets.values()))
        tried = f"Each method tried {least} combinations of hyperparameters"
        if more:
            each = ", ".join(f"{name} tried {count}" for name, count in budgets.items())
            tried = f"Budgets are unequal: {each} combinations of hyperparameters"
        by = " or ".join(measure.replace("_", " ") for measure in measures)
        seeds = self.seeds or first
        over = f"seed{'s' * (len(seeds) > 1)} {_listed(seeds)}" if seeds else "these seeds"
        return f"{tried}, chosen by the mean {by} over {over}."

    def measure_for(self, where: str, federation: Federation, model: Model) -> tuple[str, bool]:
        """The measure that chooses, and whether smaller values are better.

        Raises:
            InputError: If there are no validation rows, or they do not have the measure.
        """
        known = [m for m in measures_of(model, federation) if m.startswith("validation_")]
        require(
            known,
            f"{where}: no validation rows, on which hyperparameters are chosen; hold some out "
            "(Federation.hold_out, or validation_share in a file), or give each method one value",
        )
        preferred = [m for m in ("validation_accuracy", "validation_loss") if m in known]
        measure = self.measure or preferred[0]
        require(
            measure in known,
            f"tuning.measure = {measure!r}; {where} has {', '.join(known)}",
        )
        return measure, lower_is_better(measure, model.metrics)


def _listed(seeds: Sequence[int]) -> str:
    """Some seeds as text."""
    return ", ".join(map(str, seeds[:5])) + ", ..." * (len(seeds) > 5)


def check_seeds(name: str, seeds: object) -> None:
    """Raise `InputError` unless some seeds are valid and distinct."""
    require(
        isinstance(seeds, Sequence) and not isinstance(seeds, str | bytes) and len(seeds),
        f"{name} = {shown(seeds)}; it must be a list of seeds, such as [0, 1, 2]",
    )
    assert isinstance(seeds, Sequence)
    for seed in seeds:
        check_seed(seed, name)
        require(seeds.count(seed) == 1, f"{name}: {seed} is given more than once")


def best_label(runs: Sequence[Run], measure: str, *, lower: bool) -> str:
    """The label with the best mean of a measure over its runs, on ties the first."""
    values: dict[str, list[float]] = {}
    worst = float("inf") if lower else -float("inf")
    for run in runs:
        value = run.model_record.value(measure)
        sound = run.diverged_at is None and value == value
        values.setdefault(run.label, []).append(value if sound else worst)
    sign = 1 if lower else -1
    return min(values, key=lambda label: sign * fmean(values[label]))
