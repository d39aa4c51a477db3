"""Comparing methods: a measure of each run, paired differences, and who won in a sentence.

Student's test, its intervals and Holm's correction are of differences, one for each seed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, plural, require, shown
from fedprox.measures import measure_of
from fedprox.report.records import comparable, has, number_of, without_diverged
from fedprox.results.run import Run
from fedprox.results.target import Target


class Evidence(NamedTuple):
    """The verdicts of a comparison, in words.

    Attributes:
        sign: Positive for the comparison, negative against it, 0 for neither.
        p: Two-sided p-value of that sign; NaN with one seed, which has none.
    """

    sign: float
    p: float


def evidence_of(differences: NDArray[np.float64], alike: float | None = None) -> Evidence:
    """Student's t-test of paired differences, one for each seed.

    If a difference is not finite, since a side diverged, the exact sign test takes its place. With
    `alike`, what is tested is whether the absolute mean is below it.

    >>> evidence_of(np.array([1.0, 1.1, 0.9]))
    Evidence(sign=1.0, p=0.003...)
    """
    count = len(differences)
    if np.isfinite(differences).all():
        deviation = float(differences.std(ddof=1)) if count > 1 else 0.0
        return evidence_of_summary(float(differences.mean()), deviation, count, alike)
    signs = np.sign(differences if alike is None else alike - np.abs(differences))
    signs = np.where(np.isnan(signs), 0.0 if alike is None else -1.0, signs)
    if (signs == signs[0]).all() and signs[0] != 0:
        return Evidence(float(signs[0]), 0.5 ** (count - 1) if count > 1 else math.nan)
    return Evidence(0.0, 1.0 if count > 1 else math.nan)


def evidence_of_summary(
    mean: float, deviation: float, count: int, alike: float | None = None
) -> Evidence:
    """Student's t-test of so many paired differences, from their mean and standard deviation."""
    from scipy.special import stdtr  # here, since it is slow to import

    margin = mean if alike is None else alike - abs(mean)
    error = deviation / math.sqrt(count)
    if count == 1:
        p = math.nan
    elif error == 0:
        p = 0.0 if margin else 1.0
    else:
        p = 2 * float(stdtr(count - 1, -abs(margin) / error))
    return Evidence(float(np.sign(margin)), p)


def interval(differences: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Student's confidence interval of the mean difference.

    NaN with one seed, and where a difference is not finite.

    >>> low, high = interval(np.array([1.0, 2.0, 3.0]))
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    from scipy.special import stdtrit

    count = len(differences)
    if count == 1 or not np.isfinite(differences).all():
        return math.nan, math.nan
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * error
    mean = float(differences.mean())
    return mean - half, mean + half


def holm(p: Sequence[float]) -> list[float]:
    """P-values with Holm's correction for all that are given; NaN is no test and stays.

    If those of at most `level` are called significant, the chance of a false one is at most
    `level`.

    >>> holm([0.03, 0.01, 0.02]), holm([0.04, math.nan])
    ([0.04, 0.03, 0.04], [0.04, nan])
    """
    corrected = list(p)
    tests = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    largest = 0.0
    for rank, (value, place) in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - rank) * value))
        corrected[place] = largest
    return corrected


LEVEL = 0.05
"""The chance that comparisons without any effect have a significant difference by Holm's method."""

FEWEST_SEEDS = 3
"""Seeds below which nothing is said to be significant."""


class RunReading(NamedTuple):
    """A number of each run, NaN if it has none, and how it is shown.

    Attributes:
        lower: Whether smaller numbers are better; None if that is not known.
        scale: Factor before it is shown.
        unit: Unit of a difference.
        missing: A verb for a run without a number, such as "diverged".
    """

    name: str
    of: Callable[[Run], float]
    lower: bool | None
    scale: float = 1.0
    digits: int = 4
    unit: str = ""
    missing: str = "diverged"

    @property
    def title(self) -> str:
        """The name of the number, with its unit."""
        return self.name + " (%)" * (self.unit == "points")

    def text(self, value: float, *, signed: bool = False) -> str:
        """A number as text."""
        form = f"{{:{'+' if signed else ''}.{self.digits}f}}"
        return form.format(self.scale * value) if math.isfinite(value) else "-"

    def finite(self, run: Run) -> float:
        """The number of a run, infinitely bad if it has none, for comparisons."""
        value = self.of(run)
        return value if math.isfinite(value) else math.inf if self.lower else -math.inf


def reading_of(measure: str | Target, runs: Sequence[Run], lower: bool | None = None) -> RunReading:
    """How a measure of runs is read: by its name, or the time or rounds until a target."""
    if isinstance(measure, Target):
        if all(has(run.final, "time") for run in runs):
            name, reach = f"seconds to {measure}", Run.time_to
        else:
            name, reach = f"rounds to {measure}", Run.rounds_to

        def reached(run: Run) -> float:
            value = reach(run, measure)
            return math.nan if value is None else value

        return RunReading(name, reached, lower=True, digits=1, missing="did not reach it")
    known = comparable(runs[0].final)
    require(
        measure in known,
        f"measure = {shown(measure)}; records have {', '.join(known)}",
    )
    known_of = measure_of(measure)
    lower = known_of.lower_is_better if lower is None else lower

    def measured(run: Run) -> float:
        return number_of(run.model_record, measure) if without_diverged([run]) else math.nan

    if known_of.percent:
        return RunReading(known_of.title, measured, lower, 100, 2, "points")
    return RunReading(known_of.title, measured, lower)


class Difference(NamedTuple):
    """The paired difference of two methods at a combination of the other factors' levels.

    Attributes:
        levels: The levels of the other factors.
        method: The method that is compared.
        other: The method to which it is compared.
        difference: Mean over seeds of its measure less the other's; infinite if a run diverged.
        low: Lower end of Student's confidence interval, with the correction of p: it has 0 inside
            if and only if p is above 0.05. NaN if it has none.
        high: Upper end of this interval.
        p: P-value of Student's t-test (of the sign test if a run diverged), with Holm's correction
            for all differences of the call; NaN with one seed.
        seeds: Number of seeds.
    """

    levels: Mapping[str, str]
    method: str
    other: str
    difference: float
    low: float
    high: float
    p: float
    seeds: int

    @property
    def significant(self) -> bool:
        """Whether the corrected p-value is at most 0.05, with three seeds or more."""
        return self.seeds >= FEWEST_SEEDS and self.p <= LEVEL

    def swapped(self) -> "Difference":
        """The same comparison, of the other method to this one."""
        return self._replace(
            method=self.other,
            other=self.method,
            difference=-self.difference,
            low=-self.high,
            high=-self.low,
        )


FactorLevels = tuple[tuple[str, str], ...]
"""The level of each factor other than the method, by the factor's name; none for a comparison."""

Groups = Mapping[FactorLevels, Mapping[str, Sequence[Run]]]
"""The runs of each method by its name, at each combination of the other factors' levels."""


def in_words(levels: FactorLevels) -> str:
    """The levels of factors in words: a share is one of its factor.

    >>> in_words((("data", "mnist"), ("stragglers", "90 %")))
    'data mnist, 90 % stragglers'
    """
    return ", ".join(
        f"{level} {factor}" if level.endswith("%") else f"{factor} {level}"
        for factor, level in levels
    )


def differences_of(groups: Groups, reading: RunReading, against: str | None) -> list[Difference]:
    """The differences of each method to `against`, or of all pairs of methods."""
    found: list[tuple[FactorLevels, str, str, NDArray[np.float64]]] = []
    for levels, methods in groups.items():
        if against is None:
            pairs = [(second, first) for first, second in combinations(methods, 2)]
        elif against in methods:
            pairs = [(method, against) for method in methods if method != against]
        else:
            raise InputError(f"against = {shown(against)}; the methods are {', '.join(methods)}")
        values = {method: _values(runs, reading) for method, runs in methods.items()}
        for method, other in pairs:
            with np.errstate(invalid="ignore"):  # both diverged
                found.append((levels, method, other, values[method] - values[other]))
    tested = [evidence_of(of_seeds).p for *_, of_seeds in found]
    return [
        _difference(*each, p, corrected)
        for each, p, corrected in zip(found, tested, holm(tested), strict=True)
    ]


def _difference(
    levels: FactorLevels,
    method: str,
    other: str,
    of_seeds: NDArray[np.float64],
    p: float,
    corrected: float,
) -> Difference:
    """A difference whose interval has 0 inside if and only if its corrected p is above `LEVEL`."""
    with np.errstate(invalid="ignore"):
        mean = float(of_seeds.mean())
    low, high = interval(of_seeds, 1 - LEVEL * (p / corrected if corrected > 0 else 1.0))
    return Difference(dict(levels), method, other, mean, low, high, corrected, len(of_seeds))


def _values(runs: Sequence[Run], reading: RunReading) -> NDArray[np.float64]:
    """The number of each seed, in the order of seeds, which all methods share."""
    return np.array([reading.finite(run) for run in sorted(runs, key=lambda run: run.seed)])


def ranked_methods(methods: Mapping[str, Sequence[Run]], reading: RunReading) -> list[str]:
    """The methods from the best mean to the worst; those with a run that diverged are last."""
    sign = 1 if reading.lower else -1
    means = {method: sign * _values(runs, reading).mean() for method, runs in methods.items()}
    return sorted(means, key=means.__getitem__)


def winners_of(groups: Groups, reading: RunReading) -> set[tuple[FactorLevels, str]]:
    """The best method at each combination of the other factors' levels.

    There is none where the best one has a run without a number, or it is not known what is better.
    """
    winners = set()
    for levels, methods in groups.items():
        best, *_ = ranked_methods(methods, reading)
        if reading.lower is not None and np.isfinite(_values(methods[best], reading)).all():
            winners.add((levels, best))
    return winners


def conclusions_of(groups: Groups, reading: RunReading, against: str | None) -> list[str]:
    """Who won, by how much and how surely: a sentence for each level of the other factors.

    The best method is compared to `against`, or to the second best.
    """
    require(
        reading.lower is not None,
        f"{reading.name}: which values are better is not known; give lower_is_better",
    )
    differences = differences_of(groups, reading, against)
    sentences = []
    for levels, methods in groups.items():
        best, *others = ranked_methods(methods, reading)
        if not others:
            continue
        other = against if against is not None and best != against else others[0]
        sentences.append(sentence_of(differences, best, other, reading, levels))
    return sentences


def sentence_of(
    differences: Sequence[Difference],
    best: str,
    other: str,
    reading: RunReading,
    levels: FactorLevels = (),
) -> str:
    """Who won at some levels, by how much and how surely."""
    (found,) = (
        each if each.method == best else each.swapped()
        for each in differences
        if each.levels == dict(levels) and {each.method, each.other} == {best, other}
    )
    where = f" at {in_words(levels)}" * bool(levels)
    seeds = plural(found.seeds, "seed")
    if not math.isfinite(found.difference):
        both = math.isnan(found.difference)
        who = f"{best} and {other} have" if both else f"{other} has"
        sure = f" over {seeds} ({p_text(found.p)})"
        lead = f"No method leads{where}" if both else f"{best} leads{where}"
        return f"{lead}: {who} runs that {reading.missing}{sure}."
    if found.difference == 0:
        same = f"the same mean {reading.name} over {seeds}"
        return f"No method leads{where}: {best} and {other} have {same}."
    lower = found.difference < 0
    size = f"{reading.text(abs(found.difference))} {reading.unit}".strip()
    if math.isfinite(found.low):
        ends = (-found.high, -found.low) if lower else (found.low, found.high)
        size += f" [{', '.join(map(reading.text, ends))}]"
    how = f"{reading.name} {size} {'below' if lower else 'above'} {other}"
    if found.seeds == 1:
        return f"{best} leads{where}: {how} with one seed, which says nothing of other seeds."
    if found.seeds < FEWEST_SEEDS:
        return f"{best} leads{where}: {how}; {seeds} are too few to say how surely."
    if found.significant:
        return f"{best} is best{where}: {how} over {seeds} ({p_text(found.p)})."
    return f"{best} leads{where}, but {seeds} do not settle it: {how} ({p_text(found.p)})."


def p_text(p: float) -> str:
    """A p-value as text.

    >>> p_text(0.0412), p_text(1e-9), p_text(math.nan)
    ('p = 0.041', 'p < 0.001', 'no test')
    """
    if math.isnan(p):
        return "no test"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
