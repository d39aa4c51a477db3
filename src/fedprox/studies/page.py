"""The report of a study: its table and conclusions above the sections of its run directories."""

from collections.abc import Sequence
from pathlib import Path

from fedprox.measures import measure_of
from fedprox.report.charts import chart, styles
from fedprox.report.compare import Groups
from fedprox.report.lines import curves
from fedprox.report.page import Group, Table, write_report
from fedprox.studies.figure import axis_of
from fedprox.studies.table import StudyTable


def write_page(
    table: StudyTable,
    records: str,
    conclusions: Sequence[str],
    groups: Groups,
    measure: str,
    folders: Sequence[Path],
    out: Path,
) -> None:
    """Write `report.html` into a study's folder; `records` are its runs as CSV."""
    looks = styles(name for methods in groups.runs.values() for name in methods)
    runs = [run for methods in groups.runs.values() for group in methods.values() for run in group]
    x, y = axis_of(runs, None), measure_of(measure)
    charts = [
        chart(groups.at(levels) or y.title, y.note, lines, looks, measure_of(x), y)
        for levels, methods in groups.runs.items()
        if (lines := curves(methods, x, measure))
    ]
    rows = table.lines("{} *")
    caption = f"{table.caption} * is the best of its column."
    shown = Table(caption, table.headers, rows, csv=records, tex=table.latex())
    summary = Group("Study", looks, charts, [shown], conclusions=conclusions)
    write_report(folders, out / "report.html", summary=summary)
