"""The table of a study as text, Markdown, HTML and LaTeX."""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev

from rich.text import Text

from fedprox.report.compare import Difference, Reading, p_text
from fedprox.report.exports import latex, latex_table
from fedprox.report.table import TextTable
from fedprox.results.run import Run


@dataclass(frozen=True)
class StudyTable:
    """The table of a study.

    `print` shows it as text, where the best of a column has a star, and notebooks show it as HTML.

    Attributes:
        caption: What it shows, and how.
        row_factors: The factors whose levels name the rows.
        column_factors: The factors whose levels name the columns.
        rows: The names of the rows, a level of each row factor.
        columns: The names of the columns, a level of each column factor.
        cells: The cells, row after row, as text.
        best: The (row, column) of each cell that is the best of its column.
    """

    caption: str
    row_factors: Sequence[str]
    column_factors: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    columns: Sequence[tuple[str, ...]]
    cells: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()

    @staticmethod
    def of(
        caption: str,
        row_factors: Sequence[str],
        column_factors: Sequence[str],
        cells: Mapping[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, bool]],
    ) -> "StudyTable":
        """A table of cells by their row and column, each with its text and whether it is best."""
        rows = list(dict.fromkeys(row for row, _ in cells))
        columns = list(dict.fromkeys(column for _, column in cells))
        grid = [[cells.get((row, column), ("", False)) for column in columns] for row in rows]
        best = {
            (i, j) for i, line in enumerate(grid) for j, (_, is_best) in enumerate(line) if is_best
        }
        texts = [[text for text, _ in line] for line in grid]
        return StudyTable(
            caption.strip(), row_factors, column_factors, rows, columns, texts, frozenset(best)
        )

    @property
    def headers(self) -> list[str]:
        """The header of each column, in one line, those of the names of rows first."""
        return [*self.row_factors, *(" · ".join(names) or "mean" for names in self.columns)]

    def lines(self, best: str = "{}", escape: Callable[[str], str] = str) -> list[list[str]]:
        """The rows with their names, in which the best cells have a form of their own."""
        lines = []
        for i, (names, cells) in enumerate(zip(self.rows, self.cells, strict=True)):
            forms = [best if (i, j) in self.best else "{}" for j in range(len(cells))]
            texts = [form.format(escape(cell)) for form, cell in zip(forms, cells, strict=True)]
            lines.append([*map(escape, names), *texts])
        return lines

    def text(self) -> str:
        """The table as text."""
        shown = TextTable(box=None, pad_edge=False)
        for number, header in enumerate(self.headers):
            left = number < len(self.row_factors)
            shown.add_column(Text(header), justify="left" if left else "right")
        for line in self.lines("{} *" if self.best else "{}"):
            shown.add_row(*map(Text, line))
        star = " * is the best of its column." * bool(self.best)
        return f"{shown}\n\n{self.caption}{star}"

    __str__ = __repr__ = text

    def markdown(self) -> str:
        """The table as Markdown."""

        def escaped(text: str) -> str:
            return text.replace("|", "\\|")

        rules = [*("---" for _ in self.row_factors), *("---:" for _ in self.columns)]
        lines = [[*map(escaped, self.headers)], rules, *self.lines("**{}**", escaped)]
        return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", self.caption]) + "\n"

    def html(self) -> str:
        """The table as HTML."""
        head = "".join(f"<th>{html.escape(header)}</th>" for header in self.headers)
        names = len(self.row_factors)
        body = "\n".join(
            "<tr>"
            + "".join(f"<th>{cell}</th>" for cell in line[:names])
            + "".join(f"<td>{cell}</td>" for cell in line[names:])
            + "</tr>"
            for line in self.lines("<strong>{}</strong>", html.escape)
        )
        caption = f"<caption>{html.escape(self.caption)}</caption>"
        return (
            f"<table>\n{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
            "</table>\n"
        )

    _repr_html_ = html

    def latex(self) -> str:
        """The table as LaTeX, a `table` environment with the rules of the package booktabs."""
        names = len(self.row_factors)
        columns = "l" * names + "r" * len(self.columns)
        rows = (" & ".join(line) for line in self.lines(r"\textbf{{{}}}", latex))
        return latex_table(self.caption, columns, self._latex_header(), rows)

    def _latex_header(self) -> list[str]:
        """A line for each column factor, in which equal levels side by side share a header."""
        corner, depth = " & ".join(map(latex, self.row_factors)), len(self.column_factors)
        if not depth:
            return [rf"{corner} & {latex(self.headers[-1])} \\"]
        lines = []
        for level in range(depth):
            last = level == depth - 1
            cells, rules, at = [], [], len(self.row_factors) + 1
            for upper, group in groupby(self.columns, key=lambda names: names[: level + 1]):
                width = len(list(group))
                cells.append(
                    latex(upper[-1])
                    if last
                    else rf"\multicolumn{{{width}}}{{c}}{{{latex(upper[-1])}}}"
                )
                rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
                at += width
            empty = " & ".join("" for _ in self.row_factors)
            lines.append(rf"{corner if last else empty} & {' & '.join(cells)} \\")
            if not last:
                lines.append(" ".join(rules))
        return lines


def cell_text(runs: Sequence[Run], reading: Reading, difference: Difference | None) -> str:
    """Mean ± standard deviation over seeds, or a paired difference, its interval and p-value."""
    if difference is not None and math.isfinite(difference.difference):
        size, low, high = (
            reading.text(value, signed=True)
            for value in (difference.difference, difference.low, difference.high)
        )
        return size if len(runs) == 1 else f"{size} [{low}, {high}], {p_text(difference.p)}"
    values = [reading.of(run) for run in runs]
    if missed := sum(not math.isfinite(value) for value in values):
        return f"{missed} of {len(runs)} {reading.missing}"
    spread = f" ± {reading.text(stdev(values))}" if len(values) > 1 else ""
    return reading.text(fmean(values)) + spread


def caption_of(reading: Reading, seeds: int, against: str | None, comparisons: int) -> str:
    """What a table shows."""
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"{reading.title[0].upper()}{reading.title[1:]}, {over}."
    if against is None:
        return caption
    test = (
        ", its 95 % confidence interval, and p by Student's t-test with Holm's correction for "
        f"{comparisons} comparisons" * (seeds > 1)
    )
    return f"{caption} Of other methods than {against} the paired difference to it{test}."
