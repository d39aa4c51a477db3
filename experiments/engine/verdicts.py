"""Verdicts on the papers' claims, from our measurements.

Each comparison is a Student's t-test on the paired differences, one for each seed. The comparisons
of an item are one family: Holm's correction keeps the chance that an item without any effect has a
verdict at `LEVEL`.
"""

import math
from collections.abc import Sequence
from typing import Literal

from fedprox.report.compare import Evidence, holm

LEVEL = 0.05
"""The chance that an item whose comparisons all have no effect has a verdict, and so about the
number of verdicts that it has by chance."""

Verdict = Literal["holds", "does not hold", "within noise", "one seed", "one line"]


def verdicts(evidence: Sequence[Evidence | None]) -> list[Verdict]:
    """The verdicts of a family of comparisons, by Holm's method; None stands for one line.

    >>> verdicts([Evidence(1.0, 0.02), Evidence(-1.0, 0.03), Evidence(1.0, 0.01)])
    ['holds', 'does not hold', 'holds']
    >>> verdicts([Evidence(1.0, 0.03), Evidence(1.0, 0.04)])
    ['within noise', 'within noise']
    """
    corrected = iter(holm([one.p for one in evidence if one is not None]))
    return ["one line" if one is None else _verdict(one, next(corrected)) for one in evidence]


def _verdict(evidence: Evidence, p: float) -> Verdict:
    """The verdict of a comparison, given its corrected p-value."""
    if math.isnan(p):
        return "one seed"
    if p > LEVEL:
        return "within noise"
    return "holds" if evidence.sign > 0 else "does not hold"
