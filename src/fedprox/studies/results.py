"""The results of a study: a data frame, tables, a figure, paired differences, sentences."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field
from rich.text import Text

from fedprox.errors import InputError, require, shown
from fedprox.files.whole import LOCK, write_whole
from fedprox.measures import measure_of
from fedprox.report.archive import read_archive, read_json
from fedprox.report.compare import (
    Difference,
    FactorLevels,
    Groups,
    RunReading,
    conclusions_of,
    differences_of,
    in_words,
    p_text,
    reading_of,
    winners_of,
)
from fedprox.report.directory import write_figure
from fedprox.report.figure import Group, axis_of, chart, curves, study_figure, styles
from fedprox.report.page import write_report
from fedprox.report.records import records
from fedprox.report.status import FILES, STUDY
from fedprox.report.table import ReportTable, csv_of, grid, latex, latex_table
from fedprox.results.run import Run
from fedprox.results.target import Target
from fedprox.studies.grid import METHOD
from fedprox.studies.run import Outcome, relabelled
from fedprox.studies.search import JOURNAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StudyTable:
    """The table of a study.

    `print` shows it as text, where the best of a column has a star, and notebooks show it as HTML.

    Attributes:
        caption: A sentence that says what the table shows, and how.
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
        shown = grid([*map(Text, self.headers)], left=len(self.row_factors))
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


def cell_text(runs: Sequence[Run], reading: RunReading, difference: Difference | None) -> str:
    """Mean ± standard deviation over seeds, or a paired difference, its interval and p-value."""
    if difference and math.isfinite(difference.difference):
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


def caption_of(reading: RunReading, seeds: int, against: str | None, comparisons: int) -> str:
    """The contents of a table, in a sentence."""
    over = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"{reading.title[0].upper()}{reading.title[1:]}, {over}."
    if against is None:
        return caption
    test = (
        ", its confidence interval, and p by Student's t-test, both with Holm's correction for "
        f"{comparisons} comparisons" * (seeds > 1)
    )
    return f"{caption} Of other methods than {against} the paired difference to it{test}."


class _Cell(BaseModel):
    """A cell in `study.json`."""

    levels: dict[str, str]
    label: str
    tried: int
    folders: list[Annotated[str, Field(pattern=r"^[^/\\\x00]+$")]]


class _File(BaseModel):
    """The content of `study.json`."""

    measure: str
    against: str | None
    chosen: str
    lower_is_better: bool | None
    first_seeds: list[int]
    cells: list[_Cell]


LEFTOVERS = (LOCK, JOURNAL, *FILES)
"""Files that an incomplete study leaves in its folder."""


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """The results of `fedprox.study`.

    `print` shows the table and, in sentences, who won, by how much and how surely.

    Attributes:
        outcomes: The results of each method at each combination of the other factors' levels.
        measure: Name of the measure that tables and figures show unless they are given another.
        against: The method to which the others are compared; None for the best with the second.
        chosen: How hyperparameters were chosen, in a sentence; empty if no method had several.
        lower_is_better: Whether smaller values of a metric of the model as the measure are better.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> study = fp.study(
        ...     [fp.fedavg(), fp.fedprox(mu=0.1)],
        ...     data=federation,
        ...     model=fp.models.logistic,
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=1),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=2,
        ...     seeds=[0, 1],
        ...     progress=False,
        ... )
        >>> [row["method"] for row in study.records()]
        ['fedavg', 'fedavg', 'fedprox', 'fedprox']
    """

    outcomes: Sequence[Outcome]
    measure: str = "test_accuracy"
    against: str | None = None
    chosen: str = ""
    lower_is_better: bool | None = None

    @property
    def factors(self) -> list[str]:
        """The names of the factors, the methods' last."""
        return list(self.outcomes[0].levels)

    @property
    def runs(self) -> list[Run]:
        """All runs with the chosen hyperparameters, one for each cell and seed."""
        return [run for outcome in self.outcomes for run in outcome.runs]

    def records(self) -> list[dict[str, Any]]:
        """A row for each run: levels, seed, hyperparameters and every measure of its model.

        `pandas.DataFrame(study.records())` is a data frame of them. A factor takes the place of a
        measure of its name.
        """
        rows = records([replace(run, history=[run.model_record]) for run in self.runs])
        levels = [outcome.levels for outcome in self.outcomes for _ in outcome.runs]
        return [
            {**at, "seed": row["seed"], **{k: v for k, v in row.items() if k not in at}}
            for at, row in zip(levels, rows, strict=True)
        ]

    def differences(
        self,
        measure: str | Target | None = None,
        *,
        against: str | None = None,
        lower_is_better: bool | None = None,
    ) -> list[Difference]:
        """Paired differences of methods, with confidence intervals and tests.

        Methods see the same data, cohorts, stragglers and initial model with the same seed, so the
        differences of a seed are not blurred by what all methods share.

        Args:
            measure: Name of a measure of records, or a target, whose rounds or time are compared.
            against: The method to which the others are compared; None for all pairs of methods.
            lower_is_better: Whether smaller values are better, for a metric of the model.

        Returns:
            A :class:`fedprox.Difference` for each pair, at each combination of the
            other factors' levels.
        """
        return differences_of(self._groups(), self._reading(measure, lower_is_better), against)

    def conclusions(
        self,
        measure: str | Target | None = None,
        *,
        against: str | None = None,
        lower_is_better: bool | None = None,
    ) -> list[str]:
        """Who won, by how much and how surely: a sentence for each combination of other levels.

        The best method is compared to `against` (that of the study if omitted), or without one to
        the second best. Holm's correction is for all comparisons that might have been made.
        """
        reading = self._reading(measure, lower_is_better)
        return conclusions_of(self._groups(), reading, against or self.against)

    def table(
        self,
        rows: str | Sequence[str] = METHOD,
        columns: str | Sequence[str] | None = None,
        measure: str | Target | None = None,
        *,
        best: Literal["bold"] | None = "bold",
        against: str | None = None,
        lower_is_better: bool | None = None,
    ) -> StudyTable:
        """A table of means over seeds, ± their standard deviation.

        Args:
            rows: The factor, or factors, whose levels are the rows.
            columns: The factors whose levels are the columns; all others if omitted.
            measure: Name of a measure of records, or a target, whose rounds or time are shown.
            best: "bold" marks the best method at each combination of the other levels, None none.
            against: A method to which the others are compared: their cells then show the paired
                difference, its confidence interval and its p-value, with Holm's correction.
            lower_is_better: Whether smaller values are better, for a metric of the model.

        Returns:
            A :class:`fedprox.StudyTable`: as text, Markdown, HTML and LaTeX.

        Raises:
            InputError: If there is no such factor, method or measure, or a factor with several
                levels is in neither rows nor columns.
        """
        require(best in ("bold", None), f'best = {shown(best)}; it must be "bold" or None')
        reading = self._reading(measure, lower_is_better)
        row_factors = self._factors("rows", rows)
        others = [factor for factor in self.factors if factor not in row_factors]
        column_factors = others if columns is None else self._factors("columns", columns)
        for factor in self.factors:
            count = [*row_factors, *column_factors].count(factor)
            require(count, f"table: {factor!r} is in neither rows nor columns; add it to one")
            require(count == 1, f"table: {factor!r} is given twice, in rows or columns")
        found = [] if against is None else differences_of(self._groups(), reading, against)
        places = {((*each.levels.items(),), each.method): each for each in found}
        winners = winners_of(self._groups(), reading) if best else set()
        at = [
            [tuple(outcome.levels[f] for f in factors) for factors in (row_factors, column_factors)]
            for outcome in self.outcomes
        ]
        row_names, column_names = (list(dict.fromkeys(names)) for names in zip(*at, strict=True))
        cells, bold = [[""] * len(column_names) for _ in row_names], set()
        for outcome, (row, column) in zip(self.outcomes, at, strict=True):
            i, j = row_names.index(row), column_names.index(column)
            place = outcome.others, outcome.method
            cells[i][j] = cell_text(outcome.runs, reading, places.get(place))
            if place in winners:
                bold.add((i, j))
        caption = caption_of(reading, len(self.outcomes[0].runs), against, len(found))
        said = f"Columns: {' · '.join(column_factors)}." if column_factors else ""
        names = row_factors, column_factors, row_names, column_names
        words = " ".join(filter(None, (caption, said, self.chosen)))
        return StudyTable(words, *names, cells, frozenset(bold))

    def figure(self, measure: str | None = None, *, along: str | None = None) -> "Figure":
        """A figure with a panel for each combination of the other levels and a line a method.

        Args:
            measure: Name of a measure of records.
            along: Name of the measure on the horizontal axis: "round", "time", "communication",
                "bits_up" or "total_steps". None means the time if clients have devices, else
                rounds.

        Returns:
            A Matplotlib figure; `figure.savefig("figure.pdf")` writes it, as PNG and SVG too.
        """
        measure = measure or self.measure
        self._reading(measure, None)
        return study_figure(self._groups(), measure, along)

    def __str__(self) -> str:
        return "\n".join([self.table().text(), "", *self._sentences()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{sentence}</p>" for sentence in self._sentences())
        return self.table().html() + sentences

    def _sentences(self) -> list[str]:
        """The conclusions of the study's measure; none if it is not known what is better."""
        known = self._reading(None, None).lower is not None
        return self.conclusions() if known else []

    def _groups(self) -> Groups:
        groups: dict[FactorLevels, dict[str, Sequence[Run]]] = {}
        for outcome in self.outcomes:
            groups.setdefault(outcome.others, {})[outcome.method] = outcome.runs
        return groups

    def _reading(self, measure: str | Target | None, lower: bool | None) -> RunReading:
        if measure in (None, self.measure) and lower is None:
            lower = self.lower_is_better
        return reading_of(self.measure if measure is None else measure, self.runs, lower)

    def _factors(self, name: str, given: str | Sequence[str]) -> list[str]:
        """Factors that the user named."""
        factors = [given] if isinstance(given, str) else list(given)
        for factor in factors:
            require(
                factor in self.factors,
                f"{name} = {shown(given)}; the factors are {', '.join(self.factors)}",
            )
        return factors

    @staticmethod
    def read(folder: str | Path) -> "Study":
        """Read the results of a study from its folder.

        Args:
            folder: The study's `out`. Its runs have no parameters; `fedprox.load_model` reads
                those.

        Raises:
            InputError: If the folder holds no complete study.
        """
        folder = Path(folder)
        path, content = folder / STUDY, _content(folder)
        outcomes = []
        for cell in content.cells:
            runs = []
            for name in cell.folders:
                found = _archived(folder / name)
                alone = len({run.label for run in found}) == 1
                chosen = [run for run in found if alone or run.label == cell.label]
                runs += [relabelled(run, cell.label) for run in chosen]
            require(runs, f"{path}: damaged: no run {cell.label!r} in {cell.folders}")
            outcomes.append(Outcome(cell.levels, runs, cell.tried, cell.folders))
        require(
            len({(*o.levels, *(run.seed for run in o.runs)) for o in outcomes}) == 1
            and len({tuple(o.levels.values()) for o in outcomes}) == len(outcomes)
            and METHOD in outcomes[0].levels,
            f"{path}: damaged: the cells are not those of one study",
        )
        return Study(
            outcomes, content.measure, content.against, content.chosen, content.lower_is_better
        )


def _content(folder: Path) -> _File:
    """The content of a study's file."""
    content = read_json(folder / STUDY, _File)
    if content is None:
        raise InputError(f"{folder}: no {STUDY}; not the folder of a complete study")
    return content


def first_seeds(out: Path, seeds: list[int]) -> list[int]:
    """The seeds that a folder's complete study began with, if `seeds` have them; else `seeds`."""
    begun = _content(out).first_seeds if (out / STUDY).is_file() else seeds
    return begun if set(begun) <= set(seeds) else seeds


def write_study(study: Study, out: Path, first: list[int]) -> None:
    """Write `study.json`, the data frame, tables, figure and report beside the cells.

    `first` are the seeds that the study began with.
    """
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    cells = [
        _Cell(levels=dict(o.levels), label=o.runs[0].label, tried=o.tried, folders=o.folders)
        for o in study.outcomes
    ]
    content = _File(
        measure=study.measure,
        against=study.against,
        chosen=study.chosen,
        lower_is_better=study.lower_is_better,
        first_seeds=first,
        cells=cells,
    )
    # first, since it marks the folder as that of a study
    write_whole(out / STUDY, content.model_dump_json(indent=2).encode() + b"\n")
    table, records_csv = study.table(), csv_of(study.records())
    for name, text in {
        "records.csv": records_csv,
        "table.txt": f"{study}\n",
        "table.md": table.markdown(),
        "table.html": table.html(),
        "table.tex": table.latex(),
    }.items():
        write_whole(out / name, text.encode())
    write_figure(out, study.figure(), kinds=("png", "svg", "pdf"))
    folders = [out / folder for o in study.outcomes for folder in o.folders]
    shown = ReportTable(
        f"{table.caption} * is the best of its column.",
        table.headers,
        table.lines("{} *"),
        csv=records_csv,
        tex=table.latex(),
    )
    groups, y = study._groups(), measure_of(study.measure)
    looks, x = styles(outcome.method for outcome in study.outcomes), axis_of(study.runs)
    charts = [
        chart(in_words(levels) or y.title, y.note, lines, looks, measure_of(x), y)
        for levels, methods in groups.items()
        if (lines := curves(methods, x, study.measure))
    ]
    summary = Group("Study", looks, charts, [shown], conclusions=study._sentences())
    write_report(folders, out / "report.html", summary=summary)


def check_folder(out: Path) -> None:
    """Raise `InputError` if a study's files would replace others in a folder.

    An incomplete study has folders, of its cells, and its status.
    """
    require(not out.exists() or out.is_dir(), f"{out} is not a folder")
    if out.is_dir() and not (out / STUDY).is_file():
        others = [
            path.name for path in out.iterdir() if path.is_file() and path.name not in LEFTOVERS
        ]
        require(not others, f"{out} holds other files; name a new or empty folder")


def _archived(folder: Path) -> list[Run]:
    """The runs of a run directory, with their experiment."""
    archive = read_archive(folder)
    for run in archive.runs:
        run.experiment = {k: v for k, v in archive.experiment.items() if k != "versions"}
    return archive.runs
