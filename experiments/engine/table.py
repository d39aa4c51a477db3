"""The tables of any item, as data and as Markdown: the paper's claims and numbers, and ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.item import (
    AT_SHORT,
    MEASURES,
    SHORT,
    Claim,
    Item,
    Line,
    Race,
    Scale,
    Statistics,
    at_scale,
)
from experiments.engine.races import (
    FACTOR,
    Count,
    Counts,
    MeasuredCell,
    measure,
    off,
    printed,
    ratio,
)
from experiments.engine.summaries import RULE, Series, stop
from experiments.engine.verdicts import (
    LEVEL,
    Evidence,
    JudgedComparison,
    Measured,
    Verdict,
    candidates,
    evidence_of,
    evidence_of_summary,
    judge,
    pick,
    verdicts,
)

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
    "curve, as in the papers; the cell says of how many. T+: a seed had not reached the target "
    "after T; its T enters the ratio, which is then a bound."
)


Block = dict[str, Any]
"""A claim with its comparisons, or a table of strings with the words before it."""


def blocks(
    item: Item,
    scale: Scale,
    measured: Measured,
    statistics: Mapping[str, NDArray[np.float64]],
) -> list[Block]:
    """An item's tables as data.

    Args:
        item: The item.
        scale: The scale at which it was run.
        measured: The item's series by run.
        statistics: By title, our number for each column, shape (seeds, columns).
    """
    found = []
    if item.statistics:
        found.append(_statistics(item.statistics, statistics))
    if item.scores:
        found.append(_scores(item, scale, measured))
    found += [_race(race, item, scale, measured) for race in item.races]
    judged = list(zip(item.claims, judge(item.claims, measured), strict=True))
    averages = [(claim, comparisons) for claim, comparisons in judged if claim.paper]
    if averages:
        found.append(_averages(averages))
    for claim, comparisons in judged:
        found.append(_claim(claim, comparisons, item, scale, measured))
        if claim.over is RULE:
            found.append(_stops(claim, measured))
    return found


def evidence_in(claim: Block, comparison: Block) -> Evidence | None:
    """What a comparison's differences say, from each seed's or from what a table printed."""
    alike, tolerance = claim.get("alike"), claim.get("tolerance", 0.0)
    if comparison.get("same_line") and alike is None:
        return None
    if "greater" in comparison:
        return evidence_of(_differences(comparison) + tolerance, alike)
    unit = 0.01 if claim.get("percent") else 1.0
    mean, deviation = (unit * number for number in comparison["mean and deviation"])
    return evidence_of_summary(mean + tolerance, deviation, comparison["seeds"], alike)


def judged_in(found: Sequence[Block]) -> list[list[Verdict]]:
    """The verdicts of an item's claims, in the order of its blocks."""
    claims = [block for block in found if "claim" in block]
    evidence = [[evidence_in(block, one) for one in block["comparisons"]] for block in claims]
    each = iter(verdicts([one for group in evidence for one in group]))
    return [[next(each) for _ in group] for group in evidence]


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
    percent = claim.get("percent", False)
    rows = []
    for one, verdict in zip(claim["comparisons"], judged, strict=True):
        evidence = evidence_in(claim, one)
        p = f"{evidence.p:.2g}" if evidence and evidence.p >= 0 else ""
        if "greater" in one:
            sides = [
                f"{label} {_spread(np.array(one[key], float), percent=percent, brackets=False)}"
                for label, key in zip(one["labels"], ("greater", "less"), strict=True)
            ]
            difference = _spread(_differences(one), percent=percent)
        else:
            sides, difference = one["sides"], one["difference"]
        rows.append([one["where"], *sides, difference, p, f"**{verdict}**", one["made_with"]])
    tally = ", ".join(f"{judged.count(v)} {v}" for v in dict.fromkeys(judged))
    header = ["data", *_headings(claim), "difference", "p", "verdict", "made with"]
    return [f"**{claim['claim']}** ({claim['what']}; {tally})", "", *_grid(header, rows)]


def _headings(claim: Block) -> list[str]:
    def bound(number: float) -> str:
        return f"{100 * number:g} %" if claim.get("percent") else f"{number:.3g}"

    if claim.get("alike"):
        return [f"within {bound(claim['alike'])}, by our reading", "of this"]
    if claim.get("tolerance"):
        most = f"larger, or smaller by at most {bound(claim['tolerance'])} by our reading"
        return [most, "smaller, says the paper"]
    return ["larger, says the paper", "smaller, says the paper"]


def _differences(comparison: Block) -> NDArray[np.float64]:
    greater, less = (np.array(comparison[key], np.float64) for key in ("greater", "less"))
    if comparison["same_line"]:
        return np.zeros(len(greater))  # a line is like itself, also where it diverged
    with np.errstate(invalid="ignore"):
        return np.asarray(greater - less)


def table(name: str, item: Item, scale: Scale, found: Sequence[Block], took: str) -> str:
    """An item's table as Markdown.

    Args:
        name: The item's name in the catalogue.
        item: The item.
        scale: The scale at which it was run.
        found: The item's `blocks`.
        took: The seeds, and how long it took, in words.
    """
    lines = [
        f"# {item.title}",
        "",
        f"{item.source}. `python -m experiments {name} --scale {scale.name}`, {took}.",
        "",
    ]
    left_out = [f"{title} is left out: {why}." for title, why in item.missing.items()]
    for note in (*item.notes, *left_out):
        lines += [note, ""]
    if item.races:
        lines += [HOW_RACES, ""]
    if item.claims:
        each = [one for group in judged_in(found) for one in group]
        tally = ", ".join(f"{each.count(v)} {v}" for v in dict.fromkeys(each))
        lines += [HOW, "", f"All comparisons: {tally}.", ""]
    return "\n".join([*lines, *markdown(found)]).rstrip() + "\n"


def seeds_of(measured: Measured, scale: Scale) -> list[int]:
    """The seeds that were run."""
    return sorted({series.seed for group in measured.values() for series in group}) or list(
        scale.seeds
    )


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(95), duration(4000), duration(90000)
    ('95 s', '67 min', '25 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 4 * 3600 else f"{seconds / 3600:.0f} h"


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]


def _statistics(rows: Sequence[Statistics], measured: Mapping[str, NDArray[np.float64]]) -> Block:
    header = ["data", "", *rows[0].columns, "made with"]
    body = []
    for row in rows:
        body.append([row.title, "paper", *(f"{number:,}" for number in row.paper), ""])
        ours = measured[row.title]
        shown = []
        for values in ours.T:
            same = np.ptp(values) == 0
            spread = "" if same else f" ± {values.std(ddof=1):,.0f}"
            shown.append(f"{values.mean():,.0f}{spread}")
        made = f"{len(ours)} draws" if np.ptp(ours, axis=0).any() else ""
        body.append(["", "ours", *shown, "; ".join(filter(None, [made, row.note]))])
    return {"header": header, "rows": body}


def _scores(item: Item, scale: Scale, measured: Measured) -> Block:
    header = ["model and data", "paper", "ours, best", "at the end", "made with"]
    body = []
    for score in item.scores:
        group = pick(measured[score.side.run], score.side.label)
        curves = [series.of("test_accuracy") for series in group]
        best, last = (
            np.array([f(curve) for curve in curves]) for f in (np.nanmax, lambda c: c[-1])
        )
        body.append(
            [
                score.title,
                score.paper,
                *(_spread(values, percent=True, brackets=False) for values in (best, last)),
                _scaled(item, [score.side.run], scale, len(group), score.note),
            ]
        )
    return {"words": "Test accuracy.", "header": header, "rows": body}


def _race(race: Race, item: Item, scale: Scale, measured: Measured) -> Block:
    what = "Rounds" if race.unit == "rounds" else "Models sent, relative to one round of FedAvg,"
    brackets = f"how many times those of {race.columns[0]}"
    if race.relative == "first row":
        brackets = f"the speed-up over {race.rows[0].title}"
    header = ["", "target", *race.columns, f"more than {FACTOR} times off", "made with"]
    cells = measure(race, measured)
    ours = [[cell and cell.mean for cell in row] for row in cells]
    papers = [[entry and printed(entry.paper) for entry in row.entries] for row in race.rows]
    rows = []
    for i, row in enumerate(race.rows):
        shown, far = [], []
        for j, (cell, paper) in enumerate(zip(cells[i], papers[i], strict=True)):
            shown.append(_race_cell(cell, papers, ours, (i, j), race.relative))
            difference = off(paper, cell.mean) if cell else ""
            if difference:
                far.append(f"**{race.columns[j]}: {difference}**")
        runs = list(dict.fromkeys(entry.run for entry in row.entries if entry))
        seeds = min((len(cell.counts) for cell in cells[i] if cell), default=0)
        made = f"at most {_scaled(item, runs, scale, seeds, row.note)}" if runs else row.note
        rows.append([row.title, str(row.target), *shown, "; ".join(far), made])
    words = f"{what} to the target; in brackets {brackets}."
    return {"words": words, "header": header, "rows": rows}


def _race_cell(
    cell: MeasuredCell | None, papers: Counts, ours: Counts, place: tuple[int, int], relative: str
) -> str:
    """The paper's number and ours, each with its ratio, and the settings of ours."""
    if cell is None:
        return ""

    def with_ratio(number: str, counts: Counts) -> str:
        shown = ratio(counts, *place, relative)
        return f"{number} ({shown})" if shown else number

    paper = papers[place[0]][place[1]]
    parts = [with_ratio(f"paper {_count(paper)}", papers)] if paper else []
    if cell.diverged.any():
        bad, seeds = int(cell.diverged.sum()), len(cell.diverged)
        who = "" if bad == seeds else f" ({bad} of {seeds} seeds)"
        return "; ".join([*parts, f"ours diverged{who}"])
    parts.append(with_ratio(f"ours {_cell_text(cell)}", ours))
    if cell.setting:
        of = f" of {cell.settings} settings" if cell.settings > 1 else ""
        if len(cell.rates) == cell.settings > 1:
            of = f" of {', '.join(f'{rate:g}' for rate in cell.rates)}"
        shown = cell.setting + " (at the edge)" * cell.at_edge
        parts.append("closest " * (not cell.reached.any()) + shown + of)
    elif cell.settings > 1:
        parts.append(f"{cell.settings} settings")
    return "; ".join(parts)


def _count(count: Count) -> str:
    return f"{count.value:g}" + ("+" if count.more else "")


def _cell_text(cell: MeasuredCell) -> str:
    """Our mean and deviation over seeds; T+ if a seed had not reached the target after T."""
    counts = cell.counts
    if not cell.reached.all():
        most, some = counts[~cell.reached].max(), int(cell.reached.sum())
        return f"{most:g}+" + (f" ({some} of {len(counts)} seeds got there)" if some else "")
    form = ".1f" if counts.mean() < 10 else ".0f"
    text = f"{counts.mean():{form}}"
    return text + (f" ± {counts.std(ddof=1):{form}}" if len(counts) > 1 else "")


def _averages(claims: Sequence[tuple[Claim, Sequence[JudgedComparison]]]) -> Block:
    """A table of the claims about a mean over data sets."""
    places = list(
        dict.fromkeys(one.comparison.where for _, comparisons in claims for one in comparisons)
    )
    rows = []
    for claim, comparisons in claims:
        by_place = {one.comparison.where: one.differences for one in comparisons}
        mean = np.mean(list(by_place.values()), axis=0)
        shown = [
            _spread(by_place[place], percent=claim.measure == "test_accuracy")
            if place in by_place
            else ""
            for place in places
        ]
        average = _spread(mean, percent=claim.measure == "test_accuracy")
        rows.append([claim.text, *shown, average, claim.paper])
    return {"header": ["difference", *places, "mean of these", "paper"], "rows": rows}


def _claim(
    claim: Claim,
    comparisons: Sequence[JudgedComparison],
    item: Item,
    scale: Scale,
    measured: Measured,
) -> Block:
    block: Block = {
        "claim": claim.text,
        "what": f"{MEASURES[claim.measure]} {claim.over.text}",
        "percent": claim.measure == "test_accuracy",
        "alike": claim.alike,
        "tolerance": claim.tolerance,
        "comparisons": [],
    }
    for one in comparisons:
        both = (one.comparison.greater, one.comparison.less)
        labels = [
            _side(label, side, one, measured) for label, side in zip(one.labels, both, strict=True)
        ]
        block["comparisons"].append(
            {
                "where": one.comparison.where,
                "labels": labels,
                "greater": one.greater.tolist(),
                "less": one.less.tolist(),
                "same_line": both[0].run == both[1].run and one.labels[0] == one.labels[1],
                "made_with": _made_with(one, item, scale),
            }
        )
    return block


def _side(label: str, side: Line, one: JudgedComparison, measured: Measured) -> str:
    """A side's label: its run where the other side has another, and how many it was chosen from."""
    other = one.comparison.less if side is one.comparison.greater else one.comparison.greater
    words = [side.run] if other.run != side.run else []
    count = candidates(measured[side.run], side.label)
    words += [f"best of {count} by training loss"] if count > 1 else []
    return f"{label} ({', '.join(words)})" if words else label


def _made_with(one: JudgedComparison, item: Item, scale: Scale) -> str:
    runs = {side.run: None for side in (one.comparison.greater, one.comparison.less)}
    return _scaled(item, list(runs), scale, len(one.greater), one.comparison.note)


def _scaled(item: Item, runs: Sequence[str], scale: Scale, seeds: int, note: str) -> str:
    """The part of the paper's rounds that was run, the seeds, and the note."""
    tables = [item.runs[run] for run in runs if run in item.runs]
    rounds = sorted({table["rounds"] for table in tables})
    done = sorted({at_scale(table, scale)["rounds"] for table in tables})
    shown = _numbers(done) if done == rounds else f"{_numbers(done)} of {_numbers(rounds)}"
    always, _, at_short = note.partition(AT_SHORT)
    text = always.removesuffix("; ")
    less = at_short if scale.name == SHORT else ""
    words = f"{seeds} seed{'s' if seeds > 1 else ''}"
    parts = [f"{shown} rounds" if tables else "", words, text, less]
    return "; ".join(filter(None, parts))


def _stops(claim: Claim, measured: Measured) -> Block:
    """A table of the rounds at which the paper's rule stopped each run."""
    rows = []
    for one in claim.comparisons:
        for side in (one.greater, one.less):
            group = pick(measured[side.run], side.label)
            ends = [(series, stop(series.of("train_loss"))) for series in group]
            shown = [f"{series.rounds[end.place]} ({end.why})" for series, end in ends]
            rows.append([one.where, group[0].label, *shown])
    series: list[Series] = pick(
        measured[claim.comparisons[0].less.run], claim.comparisons[0].less.label
    )
    header = ["data", "method", *(f"seed {one.seed}" for one in series)]
    return {"words": "The rule stopped at round", "header": header, "rows": rows}


def _spread(values: NDArray[np.float64], *, percent: bool, brackets: bool = True) -> str:
    """Mean and deviation over seeds; for differences also least, median and greatest."""
    bad = int((~np.isfinite(values)).sum())
    if bad:
        return "diverged" + (f" ({bad} of {len(values)})" if len(values) > 1 else "")
    scale, form = (100, ".1f") if percent else (1, ".3g")
    unit = (" points" if brackets else " %") if percent else ""
    sign = "+" if brackets else ""
    text = f"{scale * values.mean():{sign}{form}}"
    if len(values) > 1:
        text += f" ± {scale * values.std(ddof=1):{form}}"
        if brackets:
            three = (values.min(), float(np.median(values)), values.max())
            text += f" [{', '.join(f'{scale * v:{form}}' for v in three)}]"
    return text + unit


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
