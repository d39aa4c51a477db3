"""The tables of any item as Markdown, with the verdicts on its claims."""

from collections.abc import Sequence

import numpy as np

from experiments.engine.blocks import Block, differences, spread
from experiments.engine.item import SHORT, Item, Scale
from experiments.engine.verdicts import LEVEL, Verdict, verdicts
from fedprox.report.compare import Evidence, evidence_of, evidence_of_summary

HOW = (
    "Ours are means over seeds, ± their standard deviation; in brackets the least, the median and "
    "the greatest over seeds. p is of Student's t-test on the paired differences (of the sign test "
    "where a side diverged). A claim holds, or does not hold, by Holm's correction for all "
    f"comparisons of the item at the level {LEVEL:g}, so about {LEVEL:g} verdicts of an item are "
    "expected by chance. One seed has no verdict."
)

HOW_RACES = (
    "Each cell has the paper's number, then ours: the mean over seeds ± their standard deviation, "
    "on the curve of the best value so far, interpolated between evaluated rounds. Of a sweep, one "
    "setting counts for all seeds: the first at the target, on average over seeds, on the reported "
    "curve, as both papers with such tables choose (McMahan et al. 2017, section 3; Acar et al. "
    "2021, appendix A.1); the cell says of how many. T+: a seed had not reached the target after "
    "T; its T enters the ratio, which is then a bound."
)

HOW_TIMES = (
    "Times are those of the clients' devices: mean over seeds ± their standard deviation, on the "
    "curve of the best value so far, interpolated between evaluations. Of a method's settings, one "
    "counts for all seeds: that with the highest validation accuracy, mean over the time. T+: a "
    "seed had not reached the target at the end, T; its T enters the ratio, which is then a bound."
)

AT_SHORT = (
    "The short scale has fewer rounds and seeds than the paper, and may have fewer rows, clients, "
    "steps or learning rates: see `experiment.toml` of each run."
)


def evidence_in(claim: Block, comparison: Block) -> Evidence | None:
    """What a comparison's differences say, from each seed's or from what a table printed."""
    alike = claim["alike"]
    if comparison.get("same_line") and alike is None:
        return None
    if "greater" in comparison:
        return evidence_of(differences(comparison), alike)
    unit = 0.01 if claim["percent"] else 1.0
    mean, deviation = (unit * number for number in comparison["mean and deviation"])
    return evidence_of_summary(mean, deviation, comparison["seeds"], alike)


def judged_in(found: Sequence[Block]) -> list[list[Verdict]]:
    """The verdicts of an item's claims, in the order of its blocks."""
    claims = [block for block in found if "claim" in block]
    evidence = [[evidence_in(block, one) for one in block["comparisons"]] for block in claims]
    each = iter(verdicts([one for group in evidence for one in group]))
    return [[next(each) for _ in group] for group in evidence]


def tally(judged: Sequence[Verdict]) -> str:
    """How often there is each verdict, in words."""
    return ", ".join(f"{judged.count(verdict)} {verdict}" for verdict in dict.fromkeys(judged))


def markdown(found: Sequence[Block]) -> list[str]:
    """The blocks of an item as Markdown, with their verdicts."""
    judged = iter(judged_in(found))
    return [
        "\n".join(_claim_lines(block, next(judged)) if "claim" in block else _table_lines(block))
        for block in found
    ]


def _table_lines(block: Block) -> list[str]:
    words = [block["words"], ""] if block.get("words") else []
    return [*words, *_grid(block["header"], block["rows"])]


def _claim_lines(claim: Block, judged: Sequence[Verdict]) -> list[str]:
    percent, alike = claim["percent"], claim["alike"]
    rows = []
    for one, verdict in zip(claim["comparisons"], judged, strict=True):
        evidence = evidence_in(claim, one)
        p = f"{evidence.p:.2g}" if evidence and evidence.p >= 0 else ""
        if "greater" in one:
            sides = [
                f"{label} {spread(np.array(one[key], float), percent=percent, brackets=False)}"
                for label, key in zip(one["labels"], ("greater", "less"), strict=True)
            ]
            difference = spread(differences(one), percent=percent)
        else:
            sides, difference = one["sides"], one["difference"]
        rows.append([one["where"], *sides, difference, p, f"**{verdict}**", one["made_with"]])
    by = claim.get("by", "says the paper")
    headings = [f"larger, {by}", f"smaller, {by}"]
    if alike:
        bound = f"{100 * alike:g} %" if percent else f"{alike:.3g}"
        headings = [f"within {bound}, by our reading", "of this"]
    header = ["data", *headings, "difference", "p", "verdict", "made with"]
    return [f"**{claim['claim']}** ({claim['what']}; {tally(judged)})", "", *_grid(header, rows)]


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]


def table(name: str, item: Item, scale: Scale, found: Sequence[Block], took: str) -> str:
    """An item's table as Markdown.

    Args:
        name: The item's name in the catalogue.
        item: The item.
        scale: The scale at which it was run.
        found: The item's blocks.
        took: The seeds, and how long it took, in words.
    """
    source = f"{item.source}. `python -m experiments {name} --scale {scale.name}`, {took}."
    parts = [f"# {item.title}", source, *item.notes]
    if scale.name == SHORT:
        parts.append(AT_SHORT)
    if item.races:
        parts.append(HOW_TIMES if item.joined else HOW_RACES)
    if item.claims:
        each = [one for group in judged_in(found) for one in group]
        parts += [HOW, f"All comparisons: {tally(each)}."]
    return "\n\n".join([*parts, "\n".join(markdown(found))]).rstrip() + "\n"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(95), duration(4000), duration(90000)
    ('95 s', '67 min', '25 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 4 * 3600 else f"{seconds / 3600:.0f} h"
