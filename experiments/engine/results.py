"""Results of items as files: what was measured, where, when and with what.

A file in `experiments/results` is a copy of the `results.json` that a run of an item writes. Its
tables are data: the numbers of each seed for claims, from which verdicts follow, and strings for
the rest. Curves are thinned to what the item's figure shows.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.blocks import Block
from experiments.engine.figure import lines_of
from experiments.engine.item import Item, Scale
from experiments.engine.machine import cpu, today, versions
from experiments.engine.series import Measured

FOLDER = Path(__file__).parents[1] / "results"
"""The published results, a file for each item: `PAPER/ITEM.json`."""

POINTS = 100
"""The most points of a curve."""

NUMBERS = re.compile(r"\[\s+(?:-?(?:[\d.e+-]+|NaN|Infinity),?\s+)+\]")
"""A list of numbers, which takes one line of a file."""


def document(
    name: str,
    item: Item,
    scale: Scale,
    seeds: Sequence[int],
    measured: Measured,
    found: Sequence[Block],
    took: str,
) -> bytes:
    """The file of an item's results."""
    content = {
        "item": name,
        "scale": scale.name,
        "seeds": list(seeds),
        "made": {"took": took, **_made()},
        "blocks": found,
        "curves": _curves(item, measured),
    }
    return encoded(content)


def encoded(content: dict[str, Any]) -> bytes:
    """Results as JSON; numbers that are not finite are NaN, Infinity and -Infinity."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    return (NUMBERS.sub(lambda found: " ".join(found[0].split()), text) + "\n").encode()


def read_results(name: str) -> dict[str, Any]:
    """The published results of an item."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def _made() -> dict[str, Any]:
    """When, on what and with what results are made."""
    return {
        "date": today(),
        "revision": _revision(),
        "versions": versions("fedprox", "jax", "jaxlib", "numpy"),
        "cpu": cpu(),
    }


def _revision() -> str:
    """The commit of the checkout; "" without git."""
    command = ["git", "-C", str(FOLDER.parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _curves(item: Item, measured: Measured) -> list[dict[str, Any]]:
    """The lines of the figure: x and y of each seed, at no more than `POINTS` of its points."""
    found = []
    for panel in [panel for row in item.panels for panel in row]:
        for run, _, group in lines_of(panel, measured):
            for series in group:
                count = len(series.rounds)
                kept = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
                x = np.asarray(series.along(panel.x), float)[kept]
                y = series.values[panel.measure][kept]
                found.append(
                    {
                        "run": run,
                        "label": series.label,
                        "seed": series.seed,
                        panel.x: [float(f"{v:.6g}") for v in x],
                        panel.measure: [float(f"{v:.6g}") for v in y],
                    }
                )
    return found
