"""A diagnosis as a page in the terminal."""

import math

from rich.console import Group
from rich.text import Text

from fedprox.diagnosis import Diagnosis
from fedprox.report.table import facts, grid


def diagnosis_page(diagnosis: Diagnosis) -> Group:
    """The findings, the short sweep and the suggestion."""
    *findings, (what, value, note) = diagnosis.facts()
    last, planned = diagnosis.rounds[-1], diagnosis.planned_rounds
    headers = ["mu", f"loss near round {last}", f"expected above the best at round {planned}"]
    sweep = grid(headers, left=1)
    for tried in diagnosis.sweep:
        style = "bold" if tried.mu == diagnosis.suggested_mu else ""
        cells = sweep_cells(tried.late_loss, tried.spread, tried.expected_gap)
        sweep.add_row(f"{tried.mu:g}", *cells, style=style)
    suggestion = Text.assemble((f"{what}: {value}", "bold"), f", {note}")
    return Group(facts(findings, "bold"), Text(), sweep, Text(), suggestion)


def sweep_cells(
    late_loss: float | None, spread: float | None, expected_gap: float | None
) -> tuple[str, str]:
    """The cells of a table for one mu of the sweep; None is a number that is not finite.

    >>> sweep_cells(0.5, 0.01, 0.02), sweep_cells(0.5, None, 0.02)
    (('0.5000 ± 0.0100', '0.0200'), ('0.5000', '0.0200'))
    >>> sweep_cells(1e9, 0.0, None), sweep_cells(None, None, None)
    (('1e+09', 'above the initial model'), ('diverged', ''))
    """
    if late_loss is None or not math.isfinite(late_loss):
        return "diverged", ""
    if expected_gap is None or not math.isfinite(expected_gap):
        return f"{late_loss:.3g}", "above the initial model"
    around = "" if spread is None else f" ± {spread:.4f}"
    return f"{late_loss:.4f}{around}", f"{expected_gap:.4f}"
