"""An item's tables as data: the paper's numbers and ours, and each seed's numbers for claims."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.item import (
    MEASURES,
    Claim,
    Item,
    Line,
    Race,
    Scale,
    Statistics,
    Values,
    at_scale,
)
from experiments.engine.races import FACTOR, race_rows
from experiments.engine.series import (
    ACCURACY,
    AT_EACH_ROUND,
    LOSS,
    VALIDATED,
    Measured,
    candidates,
    pick,
)
from experiments.engine.summaries import RULE, stop

Block = dict[str, Any]
"""A claim with its comparisons, or a table of strings with the words before it."""

ACCURACIES = (ACCURACY, "slow_accuracy", "fast_accuracy", "personal_accuracy")
"""The measures that tables show in per cent."""

COLUMNS = {
    4: ("clients", "examples", "mean", "standard deviation"),
    2: ("training examples", "test examples"),
}
"""The columns of a paper's table of data sets, by their number."""


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
    found += [_values(table, measured) for table in item.values]
    claims = [(claim, _claim(claim, item, scale, measured)) for claim in item.claims]
    averages = [(claim, block) for claim, block in claims if claim.paper]
    if averages:
        found.append(_averages(averages))
    for claim, block in claims:
        found.append(block)
        if claim.over is RULE:
            found.append(_stops(claim, measured))
    return found


def _statistics(rows: Sequence[Statistics], measured: Mapping[str, NDArray[np.float64]]) -> Block:
    body = []
    for row in rows:
        ours = measured[row.title]
        shown = []
        for values in ours.T:
            spread = f" ± {values.std(ddof=1):,.0f}" if np.ptp(values) else ""
            shown.append(f"{values.mean():,.0f}{spread}")
        made = f"{len(ours)} draws" if np.ptp(ours, axis=0).any() else ""
        body.append([row.title, "paper", *(f"{number:,}" for number in row.paper), ""])
        body.append(["", "ours", *shown, "; ".join(filter(None, [made, row.note]))])
    return {"header": ["data", "", *COLUMNS[len(rows[0].paper)], "made with"], "rows": body}


def _scores(item: Item, scale: Scale, measured: Measured) -> Block:
    body = []
    for score in item.scores:
        curves = [series.of(ACCURACY) for series in measured[score.run]]
        best, last = (
            np.array([f(curve) for curve in curves]) for f in (np.nanmax, lambda c: c[-1])
        )
        ours = [spread(values, percent=True, brackets=False) for values in (best, last)]
        made = _made_with(item, [score.run], scale, len(curves), score.note)
        body.append([score.title, score.paper, *ours, made])
    header = ["model and data", "paper", "ours, best", "at the end", "made with"]
    return {"words": "Test accuracy.", "header": header, "rows": body}


def _race(race: Race, item: Item, scale: Scale, measured: Measured) -> Block:
    what = {
        "rounds": "Rounds",
        "models": "Models sent, relative to one round of FedAvg,",
        "seconds": "Seconds by the clients' devices",
    }[race.unit]
    brackets = f"how many times those of {race.columns[0]}"
    if race.relative == "first row":
        brackets = f"the speed-up over {race.rows[0].title}"
    rows = []
    for row, cells in zip(race.rows, race_rows(race, measured), strict=True):
        runs = list(dict.fromkeys(entry.run for entry in row.entries if entry))
        seeds = min(len({one.seed for one in measured[run]}) for run in runs)
        made = _made_with(item, runs, scale, seeds, row.note)
        if not item.joined:
            made = f"at most {made}"  # rounds
        rows.append([row.title, str(row.target), *cells, made])
    off = [f"more than {FACTOR} times off"]
    if not any(entry.paper for row in race.rows for entry in row.entries if entry):
        off, rows = [], [[*row[:-2], row[-1]] for row in rows]
    return {
        "words": f"{what} to the target; in brackets {brackets}.",
        "header": ["", "target", *race.columns, *off, "made with"],
        "rows": rows,
    }


def _values(table: Values, measured: Measured) -> Block:
    rows = []
    for title, lines in table.rows:
        cells = []
        for line in lines:
            if line is None:
                cells.append("not run")
                continue
            group = pick(measured[line.run], line.label)
            each = [
                spread(
                    np.array([over.of(s, measure) for s in group]),
                    percent=measure in ACCURACIES,
                    brackets=False,
                )
                for measure, over in table.measures
            ]
            cells.append(" / ".join(each))
        rows.append([title, *cells])
    return {"words": table.words, "header": ["", *table.columns], "rows": rows}


def _claim(claim: Claim, item: Item, scale: Scale, measured: Measured) -> Block:
    comparisons = []
    for one in claim.comparisons:
        sides = [pick(measured[side.run], side.label) for side in (one.greater, one.less)]
        greater, less = ([claim.over.of(s, claim.measure) for s in side] for side in sides)
        labels = [side[0].label for side in sides]
        runs = list(dict.fromkeys([one.greater.run, one.less.run]))
        comparisons.append(
            {
                "where": one.where,
                "labels": [
                    _label(label, side, runs, measured)
                    for label, side in zip(labels, (one.greater, one.less), strict=True)
                ],
                "greater": greater,
                "less": less,
                "same_line": len(runs) == 1 and labels[0] == labels[1],
                "made_with": _made_with(item, runs, scale, len(greater), one.note),
            }
        )
    return {
        "claim": claim.text,
        "by": claim.by,
        "what": f"{MEASURES[claim.measure]} {claim.over.text}",
        "percent": claim.measure in ACCURACIES,
        "alike": claim.alike,
        "comparisons": comparisons,
    }


def _label(label: str, side: Line, runs: Sequence[str], measured: Measured) -> str:
    """A side's label: its run if the other side has another, and how many it was chosen from."""
    words = [side.run] if len(runs) > 1 else []
    count = len({one.label for one in candidates(measured[side.run], side.label)})
    if count > 1 and not side.label.startswith(AT_EACH_ROUND):
        by = "validation accuracy" if side.label.startswith(VALIDATED) else "training loss"
        words.append(f"best of {count} by {by}")
    return f"{label} ({', '.join(words)})" if words else label


def _averages(claims: Sequence[tuple[Claim, Block]]) -> Block:
    """A table of the claims about a mean over data sets."""
    found = [
        {one["where"]: differences(one) for one in block["comparisons"]} for _, block in claims
    ]
    places = list(dict.fromkeys(place for by_place in found for place in by_place))
    rows = []
    for (claim, block), by_place in zip(claims, found, strict=True):
        columns = [by_place.get(place) for place in places]
        columns.append(np.mean(list(by_place.values()), axis=0))
        shown = ["" if v is None else spread(v, percent=block["percent"]) for v in columns]
        rows.append([claim.text, *shown, claim.paper])
    return {"header": ["difference", *places, "mean of these", "paper"], "rows": rows}


def _stops(claim: Claim, measured: Measured) -> Block:
    """A table of the rounds at which the paper's rule stopped each run."""
    rows, seeds = [], []
    for one in claim.comparisons:
        for side in (one.greater, one.less):
            group = pick(measured[side.run], side.label)
            ends = [(series, stop(series.of(LOSS))) for series in group]
            shown = [f"{series.rounds[end.place]} ({end.why})" for series, end in ends]
            rows.append([one.where, group[0].label, *shown])
            seeds = [f"seed {series.seed}" for series in group]
    return {
        "words": "The rule stopped at round",
        "header": ["data", "method", *seeds],
        "rows": rows,
    }


def _made_with(item: Item, runs: Sequence[str], scale: Scale, seeds: int, note: str) -> str:
    """The part of the paper's rounds that was run, the seeds, and the note."""
    tables = [item.runs[run] for run in runs if run in item.runs]
    rounds = sorted({table["rounds"] for table in tables})
    done = sorted({at_scale(table, scale)["rounds"] for table in tables})
    shown = ", ".join(map(str, done))
    if done != rounds:
        shown += f" of {', '.join(map(str, rounds))}"
    words = f"{seeds} seed{'s' if seeds > 1 else ''}"
    return "; ".join(filter(None, [f"{shown} rounds" if tables else "", words, note]))


def differences(comparison: Block) -> NDArray[np.float64]:
    """The differences greater - less for each seed; NaN where both sides have diverged."""
    greater, less = (np.array(comparison[key], np.float64) for key in ("greater", "less"))
    if comparison["same_line"]:
        return np.zeros(len(greater))  # a line is like itself, also where it diverged
    with np.errstate(invalid="ignore"):
        return np.asarray(greater - less)


def spread(values: NDArray[np.float64], *, percent: bool, brackets: bool = True) -> str:
    """Mean and deviation over seeds; for differences also least, median and greatest."""
    bad = int((~np.isfinite(values)).sum())
    if bad:
        return "diverged" + (f" ({bad} of {len(values)})" if len(values) > 1 else "")
    scale, form = (100, ".1f") if percent else (1, ".3g")
    unit = (" points" if brackets else " %") if percent else ""
    sign = "+" if brackets else ""
    text = f"{scale * values.mean():{sign}{form}}"
    if len(values) > 1:
        # the deviation of equal numbers may be their rounding
        deviation = values.std(ddof=1) if np.ptp(values) else 0.0
        text += f" ± {scale * deviation:{form}}"
        if brackets:
            three = (values.min(), float(np.median(values)), values.max())
            text += f" [{', '.join(f'{scale * v:{form}}' for v in three)}]"
    return text + unit
