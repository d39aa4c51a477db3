"""The HTML report: one page that opens offline, with figures to hover, zoom and switch.

A diagnosis is part of it, and has a page in the terminal.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group as Page
from rich.text import Text

from fedprox.diagnostics.diagnosis import Diagnosis
from fedprox.errors import plural, require
from fedprox.files.whole import holder, write_whole
from fedprox.measures import COSTS, DRAWN, MEASURES, Measure, fairness, measure_of
from fedprox.report.archive import Archive, DiagnosisFile, SweepPoint, read_archive
from fedprox.report.compare import differences_of, ranked_methods, reading_of, sentence_of
from fedprox.report.figure import (
    SHARE,
    Group,
    Line,
    Style,
    chart,
    curves,
    explained,
    ranked,
    styles,
)
from fedprox.report.records import by_label, highest, number_of, records
from fedprox.report.table import (
    ReportTable,
    csv_of,
    facts,
    grid,
    mean_and_spread,
    note_on_costs,
    notes_on,
    table,
    warnings_on,
)
from fedprox.results.run import Run


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
    late, around, gap = (
        math.nan if number is None else number for number in (late_loss, spread, expected_gap)
    )
    if not math.isfinite(late):
        return "diverged", ""
    if not math.isfinite(gap):
        return f"{late:.3g}", "above the initial model"
    return f"{late:.4f}" + f" ± {around:.4f}" * (not math.isnan(around)), f"{gap:.4f}"


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


WORST = 0.1
"""Fraction of the clients that counts as left behind."""

LONG_LIST = 20
"""Length above which a list, such as each client's speed, is shortened."""


PageSection = dict[str, Any]
"""A run directory on the page, by the names that the template reads."""


def write_report(
    directories: Sequence[Path], out: Path, *, together: bool = True, summary: Group | None = None
) -> None:
    """Write the report of some run directories as one self-contained HTML page.

    Each has a section. Above them is `summary`; without one, `together` draws all runs in one
    figure for each measure. An earlier page is replaced.
    """
    require(len(directories) > 0, "report: no run directories; at least one is needed")
    require(not out.exists() or out.is_file(), f"--out: {out} is not a file")
    require(out.parent.is_dir(), f"--out: {out.parent} is not a folder")
    require(out.suffix in (".html", ".htm"), f"--out: {out} is not the name of an HTML file")
    archives = [read_archive(path) for path in directories]
    looks = styles(run.label for archive in archives for run in archive.runs)
    shared = summary or (overlay(archives) if together and len(archives) > 1 else None)
    live = any(not archive.finished and holder(archive.path) for archive in archives)
    sections = [section(archive, looks) for archive in archives]
    title = sections[0]["title"] if len(sections) == 1 else f"{len(sections)} experiments"
    if summary:  # it says who won
        title = out.resolve().parent.name
        sections = [{**each, "conclusions": []} for each in sections]
    page = render(title, sections, shared, live=live)
    write_whole(out, page.encode(errors="replace"))


def overlay(archives: Sequence[Archive]) -> Group:
    """Figures with the runs of all directories, each line named by its directory and its label."""
    names = [archive.path.resolve().name for archive in archives]
    lines = {
        f"{name if names.count(name) == 1 else archive.path}: {label}": runs
        for name, archive in zip(names, archives, strict=True)
        for label, runs in by_label(archive.shown).items()
    }
    told = "Each line is named by its directory and its label. "
    return _figures("All runs", lines, styles(lines), _against_rounds(lines), told)


def section(archive: Archive, looks: dict[str, Style]) -> PageSection:
    """The page's section for a run directory."""
    lines, groups = by_label(archive.shown), []
    if lines:
        sampled = {"clients", "rows"} & archive.experiment.get("evaluation", {}).keys()
        told = "Evaluations read a sample of the clients' rows. " * bool(sampled)
        costs = [(cost, "test_accuracy") for cost in (*COSTS, "epsilon") if cost != "round"]
        groups = [
            _figures("Against rounds", lines, looks, _against_rounds(lines), told),
            _figures("Against cost", lines, looks, costs),
        ]
    return {
        "title": archive.path.resolve().name,
        "path": str(archive.path),
        "lead": _lead(archive),
        "settings": _settings(archive.experiment),
        "warnings": list(_warnings(archive)),
        "conclusions": _conclusions(archive) if lines else [],
        "results": _results(archive) if lines else None,
        "groups": groups
        + _left_behind(archive, looks)
        + (diagnosis_groups(archive.diagnosis) if archive.diagnosis else []),
    }


def render(
    title: str, sections: Sequence[PageSection], shared: Group | None = None, *, live: bool = False
) -> str:
    """The page as HTML; browsers load a live one again every minute."""
    import jinja2  # here, since only a report needs it

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    source, drawing = (
        resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html.jinja", "figures.js")
    )
    template = environment.from_string(source)
    return template.render(
        title=title, sections=sections, shared=shared, live=live, drawing=drawing
    )


def _lead(archive: Archive) -> str:
    """A summary of the experiment in one line, from the keys that it has."""
    e = archive.experiment
    data, systems, seeds = e["data"], e.get("systems", {}), e.get("seed", 0)
    stragglers = systems.get("stragglers")
    known = isinstance(stragglers, int | float) and stragglers > 0
    parts = [
        _plain(data.get("name", "")),
        plural(data["clients"], "client") if type(data.get("clients")) is int else "",
        f"{_plain(e['cohort'].get('clients_per_round', '?'))} a round",
        plural(e["rounds"], "round"),
        f"{100 * stragglers:g} % stragglers" if known else "",
        f"deadline {_plain(systems['deadline'])} s" if "deadline" in systems else "",
        f"{len(seeds)} seeds" if isinstance(seeds, list) and len(seeds) > 1 else "",
    ]
    return " · ".join(part for part in parts if part)


def _settings(experiment: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Each section of the experiment with its keys, those of no section first, versions last."""
    sections: dict[str, list[tuple[str, str]]] = {"run": []}
    for key, value in sorted(experiment.items(), key=lambda item: item[0] == "versions"):
        if key == "method":
            sections["methods"] = [
                (str(m.get("name", "")), _plain({k: v for k, v in m.items() if k != "name"}))
                for m in value
            ]
        elif isinstance(value, dict):
            sections[key] = [(k.replace("_", " "), _plain(v)) for k, v in value.items() if v != {}]
        else:
            sections["run"].append((key.replace("_", " "), _plain(value)))
    return sections


def _plain(value: object) -> str:
    """A setting's value as text for people.

    >>> _plain([0.0, 1.0]), _plain(True), _plain({"momentum": 0.9})
    ('0, 1', 'yes', 'momentum = 0.9')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list) and len(value) > LONG_LIST:
        return f"{_plain(value[:3])}, ... ({len(value):,} values)"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{k} = {_plain(v)}" for k, v in value.items() if v != {})
    return str(value)


def _warnings(archive: Archive) -> Iterator[str]:
    if archive.runs and not archive.finished:
        rounds = archive.experiment["rounds"]
        reached = "; ".join(f"{r.label}, seed {r.seed}: {r.final.round}" for r in archive.runs)
        lead = "This run did not finish. Shown is what was evaluated before it stopped."
        if holder(archive.path):
            lead = "This run is under way; its process writes the page anew every minute."
        yield f"{lead} Rounds done, of {rounds}: {reached}."
        if len(archive.shown) < len(archive.runs):
            yield "The seed that was running is left out of lines and tables."
    yield from (f"{line}." for line in warnings_on(archive.runs, finished=archive.finished))


def _results(archive: Archive) -> ReportTable:
    """The table of results, as `fedprox run` prints it."""
    runs = archive.shown
    printed = table(runs, archive.target)
    # the seconds of an unfinished run are unknown
    columns = [c for c in printed.columns if archive.finished or c.header != "seconds"]
    rows = [list(row) for row in zip(*(map(str, c.cells) for c in columns), strict=True)]
    seeds = len({run.seed for run in runs})
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    lines = [*note_on_costs(runs, archive.target), *notes_on(runs)]
    caption = " ".join(f"{line}." for line in [f"Results{over}", *lines])
    finals = records([replace(run, history=[run.model_record]) for run in runs])
    return ReportTable(caption, [str(c.header) for c in columns], rows, csv=csv_of(finals))


def _conclusions(archive: Archive) -> list[str]:
    """Who won, by how much and how surely, in a sentence; none before a comparison is complete.

    The best line is compared to the best of another method, or without one to the second. The
    measure is the target's, else test accuracy, else the loss.
    """
    runs, lines = archive.shown, by_label(archive.shown)
    seeds = {tuple(sorted(run.seed for run in group)) for group in lines.values()}
    if not archive.finished or len(lines) < 2 or len(seeds) > 1:
        return []
    target = archive.target
    if target:
        # validation rows have chosen rounds and perhaps hyperparameters
        measure, lower = target.measure.replace("validation_", "test_"), target.lower_is_better
    else:
        finals = [run.final for run in runs]
        names = ("test_accuracy", "test_loss", "train_loss")
        measure = next((n for n in names if math.isfinite(highest(finals, n))), "train_loss")
        lower = None
    if math.isnan(number_of(runs[0].history[0], measure)):
        return []
    reading = reading_of(measure, runs, lower)
    differences = differences_of({(): lines}, reading, None)
    best, *others = ranked_methods(lines, reading)
    method = lines[best][0].method
    other = next((each for each in others if lines[each][0].method != method), others[0])
    return [sentence_of(differences, best, other, reading)]


def _against_rounds(lines: dict[str, list[Run]]) -> list[tuple[str, str]]:
    runs = [run for group in lines.values() for run in group]
    metrics = dict.fromkeys(name for run in runs for name in run.final.metrics)
    held_out = [name for name in metrics if not name.startswith("train_")]
    return [("round", name) for name in (*DRAWN, *held_out)]


def _figures(
    title: str,
    groups: dict[str, list[Run]],
    looks: dict[str, Style],
    axes: Iterable[tuple[str, str]],
    told: str = "",
) -> Group:
    """A figure for each pair of measures that records have."""
    charts = []
    for along, name in axes:
        x, y = measure_of(along), measure_of(name)
        lines = [line for line in curves(groups, along, name) if np.isfinite(line.x).any()]
        if name == "mu":  # only an adaptive one has a line
            lines = [line for line in lines if np.ptp(line.values) > 0]
        if lines:
            against = along != "round"
            heading = f"{y.title} against {x.title}" if against else y.title
            charts.append(chart(heading, x.note if against else y.note, lines, looks, x, y))
    keys = {label: looks[label] for label in groups}
    return Group(title, keys, charts, note=(told + explained(groups.values())).strip())


SPREAD: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": np.mean,
    "median": np.median,
    "worst 10 %": lambda accuracies: fairness(accuracies).worst,
    "best 10 %": lambda accuracies: fairness(accuracies).best,
    "worst client": np.min,
    "standard deviation": np.std,
}
"""Columns of the table of clients."""


def _left_behind(archive: Archive, looks: dict[str, Style]) -> list[Group]:
    """The final models' accuracies on each client's test rows."""
    diverged = {(r.label, r.seed) for r in archive.runs if r.diverged_at is not None}
    accuracies: dict[str, list[NDArray[np.float64]]] = {}
    without_rows = 0
    for run in archive.clients:
        of_clients = np.array(run.test_accuracy, float)
        known = of_clients[np.isfinite(of_clients)]
        if run.label in looks and (run.label, run.seed) not in diverged and len(known):
            accuracies.setdefault(run.label, []).append(known)
            without_rows = len(of_clients) - len(known)
    if not accuracies:
        return []
    drawn = chart(
        "Clients from worst to best",
        "Each client's accuracy on its own test rows; the clients left behind are at the left end.",
        [ranked(label, by_seed) for label, by_seed in accuracies.items()],
        looks,
        SHARE,
        MEASURES["test_accuracy"],
        WORST,
    )
    rows = [
        [
            label,
            *(
                mean_and_spread([100 * f(a) for a in by_seed], "{:.2f}", " %")
                for f in SPREAD.values()
            ),
        ]
        for label, by_seed in accuracies.items()
    ]
    caption = "Test accuracy by client, all clients weighted equally"
    notes = [
        "These are the clients that evaluations read."
        if "clients" in archive.experiment.get("evaluation", {})
        else "",
        f"Without test rows, and left out: {plural(without_rows, 'client')}."
        if without_rows
        else "",
        explained(accuracies.values()),
    ]
    keys = {label: looks[label] for label in accuracies}
    figures = ReportTable(caption, ["method", *SPREAD], rows)
    return [Group("Who is left behind", keys, [drawn], [figures], " ".join(filter(None, notes)))]
