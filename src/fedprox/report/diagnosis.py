"""A diagnosis as a page in the terminal."""

import math

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedprox.diagnose import Diagnosis, Tried


def diagnosis_page(diagnosis: Diagnosis) -> Group:
    """Facts, then the short sweep, then what to do."""
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(no_wrap=True, justify="right")
    facts.add_column()
    *found, suggestion = diagnosis.facts()
    for fact in found:
        facts.add_row(*fact)
    last = diagnosis.rounds[-1]
    sweep = Table(box=None, pad_edge=False, header_style="bold")
    sweep.add_column("mu")
    sweep.add_column(f"loss near round {last}", justify="right")
    sweep.add_column(
        f"expected above the best at round {diagnosis.planned_rounds}", justify="right"
    )
    for tried in diagnosis.sweep:
        style = "bold" if tried.mu == diagnosis.suggested_mu else ""
        sweep.add_row(f"{tried.mu:g}", *_row(tried), style=style)
    what, value, note = suggestion
    return Group(
        facts, Text(), sweep, Text(), Text.assemble((f"{what}: {value}", "bold"), f", {note}")
    )


def _row(tried: Tried) -> tuple[str, str]:
    if not math.isfinite(tried.expected_gap):
        return "diverged", ""
    return f"{tried.late_loss:.4f} ± {tried.spread:.4f}", f"{tried.expected_gap:.4f}"
