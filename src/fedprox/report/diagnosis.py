"""A diagnosis: its page in the terminal, and its part of the report."""

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group as Page
from rich.text import Text

from fedprox.diagnostics.diagnosis import Diagnosis
from fedprox.measures import MEASURES, Measure, measure_of
from fedprox.report.archive import DiagnosisFile, SweepPoint
from fedprox.report.charts import SHARE, Group, chart, ranked, styles
from fedprox.report.exports import ReportTable
from fedprox.report.lines import Line
from fedprox.report.table import facts, grid


def diagnosis_page(diagnosis: Diagnosis) -> Page:
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
    return Page(facts(findings, "bold"), Text(), sweep, Text(), suggestion)


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


def diagnosis_groups(diagnosis: DiagnosisFile) -> list[Group]:
    """The findings as figures and tables of the report."""
    rows = [[fact.what, fact.value, fact.note] for fact in diagnosis.facts]
    found = ReportTable("The federation", ["what", "value", "note"], rows, "words")
    looks, charts = styles([""]), []
    classes = "Effective number of classes: exp of the entropy of a client's labels."
    for title, note, values, what in (
        ("Client sizes", "Training rows of each client.", diagnosis.sizes, "training rows"),
        ("Classes of a client", classes, diagnosis.classes, "classes"),
    ):
        if values:
            line = ranked("", [values])
            charts.append(chart(title, note, [line], looks, SHARE, Measure("", what)))
    for name in ("dissimilarity", "gradient_variance"):
        line = _line("", diagnosis.path.round, getattr(diagnosis.path, name))
        if np.isfinite(line.values).any():
            y = MEASURES[name]
            title = f"{y.title} along the path"
            charts.append(chart(title, y.note, [line], looks, measure_of("round"), y))
    federation = Group("Diagnosis: the federation", {}, charts, [found])
    return [federation, *([_sweep(diagnosis)] if diagnosis.sweep else [])]


def _line(label: str, rounds: Sequence[int], values: Sequence[float | None]) -> Line:
    return Line(label, np.array(rounds, float), np.array([values], float))


def _sweep(diagnosis: DiagnosisFile) -> Group:
    """The values of mu that were tried, and the suggested one."""

    def label(point: SweepPoint) -> str:
        suggested = point.mu == diagnosis.suggested_mu
        return f"mu = {point.mu:g}" + (" (suggested)" if suggested else "")

    sweep = diagnosis.sweep
    looks = styles(map(label, sweep))
    lines = [_line(label(p), p.round, p.train_loss) for p in sweep]
    x, y = measure_of("round"), MEASURES["train_loss"]
    drawn = chart("Training loss for each mu", "Mean over seeds.", lines, looks, x, y)
    rows = [[label(p), *sweep_cells(p.late_loss, p.spread, p.expected_gap)] for p in sweep]
    header = ["mu", "loss, last quarter", "expected above the best at the end"]
    tried = ReportTable("The values of mu tried", header, rows)
    note = "No value of mu is suggested."
    if diagnosis.suggested_mu is not None:
        note = f"Suggested: mu = {diagnosis.suggested_mu:g}."
    if diagnosis.theory_mu is not None:
        note += f" Theory requires a mu above {diagnosis.theory_mu:.3g}."
    return Group("Diagnosis: which mu", looks, [drawn], [tried], note)
