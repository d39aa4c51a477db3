"""The HTML report: one page that opens offline, with figures to hover, zoom and switch."""

import math
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require
from fedprox.files.whole import write_whole
from fedprox.report.archive import Archive, DiagnosisFile, SweepPoint, read_archive
from fedprox.report.charts import (
    Axis,
    Chart,
    Line,
    Style,
    chart,
    curves,
    histogram,
    ranked,
    styles,
)
from fedprox.report.diagnosis import sweep_cells
from fedprox.report.figure import explained
from fedprox.report.table import (
    by_label,
    empty_rounds,
    faulty,
    kept,
    other_models,
    sampled,
    spread,
    table,
    uneven,
    unsolved,
    validated,
)
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run

WORST = 0.1
"""Share of the clients that count as left behind."""

MANY = 20
"""Values of a setting that are not shown one by one, such as each client's speed."""

ROUND = Axis("round")
ACCURACY = Axis("test accuracy", percent=True)
VARIANCE = Axis("E‖∇F<sub>k</sub> - ∇f‖²")
DISSIMILARITY = Axis("B(w)")

AGAINST_ROUNDS = (
    ("train_loss", "Training loss", "f(w) over {}training rows.", Axis("f(w)")),
    (
        "validation_accuracy",
        "Validation accuracy",
        "Over the validation rows, which targets and the best round are read on.",
        Axis("validation accuracy", percent=True),
    ),
    ("test_accuracy", "Test accuracy", "Over {}test rows.", ACCURACY),
    (
        "gradient_variance",
        "Gradient variance",
        "How far the clients' gradients lie from their mean.",
        VARIANCE,
    ),
    (
        "dissimilarity",
        "Dissimilarity B(w)",
        "1 where all clients' gradients agree (Li et al. 2020, Definition 3).",
        DISSIMILARITY,
    ),
    (
        "gamma_mean",
        "Inexactness gamma",
        "Mean over the cohort: 0 is an exact local solve, 1 no progress (Definition 2).",
        Axis("mean gamma"),
    ),
)


class Table(NamedTuple):
    """A table of the page; the first cell of a row is its heading, and what the others hold."""

    caption: str
    headers: list[str]
    rows: list[list[str]]
    holds: Literal["numbers", "words"] = "numbers"


class Group(NamedTuple):
    """Figures under one heading.

    Attributes:
        title: The heading.
        keys: Labels whose lines can be switched, with their styles.
        charts: The figures.
        tables: Tables beside them.
        note: A sentence below the heading.
    """

    title: str
    keys: dict[str, Style]
    charts: list[Chart]
    tables: list[Table]
    note: str = ""


class Section(NamedTuple):
    """A run directory on the page.

    Attributes:
        title: Name of the folder.
        path: Where it was read from.
        lead: The experiment in a line.
        settings: Each part of the experiment with its keys and values.
        warnings: What the reader must know of the results.
        results: The table, where there are runs.
        groups: The figures.
    """

    title: str
    path: str
    lead: str
    settings: dict[str, list[tuple[str, str]]]
    warnings: list[str]
    results: Table | None
    groups: list[Group]


def write_report(directories: Sequence[Path], out: Path, *, together: bool = True) -> None:
    """Write the report of some run directories as one self-contained HTML page.

    Args:
        directories: The run directories, a section each.
        out: The page; an earlier one is replaced.
        together: Whether runs of several directories are also drawn in one figure for each measure.

    Raises:
        InputError: A folder is no run directory, has no evaluated rounds or is damaged, or `out`
            cannot be a file or has not the name of one of HTML.
    """
    require(len(directories) > 0, "report: no run directories; at least one is needed")
    require(not out.exists() or out.is_file(), f"--out: {out} is not a file")
    require(out.parent.is_dir(), f"--out: {out.parent} is not a folder")
    require(out.suffix in (".html", ".htm"), f"--out: {out} is not the name of an HTML file")
    archives = [read_archive(path) for path in directories]
    looks = styles(run.label for archive in archives for run in archive.runs)
    shared = overlay(archives) if together else None
    page = render([section(a, looks) for a in archives], shared)
    write_whole(out, page.encode(errors="replace"))


def overlay(archives: Sequence[Archive]) -> Group | None:
    """Figures with the runs of all directories, one for each measure that several of them have.

    None where there is no such measure.
    """
    directories = [
        {f"{name}: {label}": runs for label, runs in by_label(archive.shown).items()}
        for name, archive in zip(_names(archives), archives, strict=True)
    ]
    lines = {key: runs for directory in directories for key, runs in directory.items()}
    looks = styles(lines)
    charts = []
    for measure, title, note, axis in AGAINST_ROUNDS:
        known = {
            key
            for key, runs in lines.items()
            if any(math.isfinite(_known(measure)(r)) for run in runs for r in run.history)
        }
        if sum(not known.isdisjoint(directory) for directory in directories) > 1:
            drawn = {key: runs for key, runs in lines.items() if key in known}
            along = curves(drawn, _rounds, _known(measure))
            charts.append(chart(title, note.format(""), along, looks, ROUND, axis))
    words = ["Each line is named by its directory and its label.", explained(lines.values())]
    return Group("All runs", looks, charts, [], " ".join(words)) if charts else None


def _names(archives: Sequence[Archive]) -> list[str]:
    """The directories by name; by path where names are the same."""
    names = [archive.path.resolve().name for archive in archives]
    return [
        name if names.count(name) == 1 else str(archive.path)
        for name, archive in zip(names, archives, strict=True)
    ]


def section(archive: Archive, looks: dict[str, Style]) -> Section:
    """What the page says of a run directory.

    Args:
        archive: Its contents.
        looks: Style of each label.
    """
    runs = archive.shown
    return Section(
        title=archive.path.resolve().name,
        path=str(archive.path),
        lead=_lead(archive),
        settings=_settings(archive.experiment),
        warnings=list(_warnings(archive)),
        results=_results(archive) if runs else None,
        groups=[
            *([_against_rounds(archive, looks), _against_cost(runs, looks)] if runs else []),
            *_left_behind(archive, looks),
            *(_diagnosis(archive.diagnosis) if archive.diagnosis else []),
        ],
    )


def render(sections: Sequence[Section], shared: Group | None = None) -> str:
    """The page as HTML.

    Args:
        sections: A section for each run directory.
        shared: Figures of all of them together, above the sections.
    """
    import jinja2  # both here, since only a report needs them
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    source = resources.files(__package__).joinpath("page.html.jinja").read_text(encoding="utf-8")
    title = sections[0].title if len(sections) == 1 else f"{len(sections)} experiments"
    template = environment.from_string(source)
    return template.render(title=title, sections=sections, shared=shared, plotly=get_plotlyjs())


def _lead(archive: Archive) -> str:
    """The experiment in a line, from those keys that it has."""
    e = archive.experiment
    data, systems, seeds = e["data"], e.get("systems", {}), e.get("seed", 0)
    stragglers = systems.get("stragglers")
    known = isinstance(stragglers, int | float) and stragglers > 0
    parts = [
        _plain(data.get("name", "")),
        f"{_plain(data['clients'])} clients" if "clients" in data else "",
        f"{_plain(e['cohort'].get('clients_per_round', '?'))} a round",
        f"{e['rounds']} rounds",
        f"{100 * stragglers:g} % stragglers" if known else "",
        f"deadline {_plain(systems['deadline'])} s" if "deadline" in systems else "",
        f"{len(seeds)} seeds" if isinstance(seeds, list) and len(seeds) > 1 else "",
    ]
    return " · ".join(part for part in parts if part)


def _settings(experiment: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Each part of the experiment, in the order of its file; plain keys make the first part."""
    whole = {k: v for k, v in experiment.items() if not isinstance(v, dict) and k != "method"}
    found = {"run": _pairs(whole)}
    found |= {k: _pairs(v) for k, v in experiment.items() if isinstance(v, dict)}
    versions = found.pop("versions", None)
    found["methods"] = [
        (
            str(method.get("name", "")),
            ", ".join(f"{k} = {_plain(v)}" for k, v in method.items() if k != "name"),
        )
        for method in experiment.get("method", [])
    ]
    return found | ({"versions": versions} if versions else {})


def _pairs(part: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key.replace("_", " "), _plain(value)) for key, value in part.items() if value != {}]


def _plain(value: object) -> str:
    """A setting for reading.

    >>> _plain([0.0, 1.0]), _plain(True), _plain({"momentum": 0.9})
    ('0, 1', 'yes', 'momentum = 0.9')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list) and len(value) > MANY:
        return f"{_plain(value[:3])}, ... ({len(value):,} values)"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{k} = {_plain(v)}" for k, v in value.items())
    return str(value)


def _warnings(archive: Archive) -> Iterator[str]:
    if archive.runs and not archive.finished:
        rounds = archive.experiment["rounds"]
        reached = "; ".join(f"{r.label}, seed {r.seed}: {r.final.round}" for r in archive.runs)
        yield (
            "This run did not finish. Shown is what was evaluated before it stopped. Rounds done, "
            f"of {rounds}: {reached}."
        )
        if len(archive.shown) < len(archive.runs):
            yield "The seed that was running is left out of lines and tables."
    for run in archive.runs:
        if run.diverged_at is not None:
            yield (
                f"{run.label}, seed {run.seed}, diverged: its training loss was no longer finite "
                f"at round {run.diverged_at}."
            )
    if archive.finished:
        yield from (f"{line}." for line in uneven(archive.runs))
    for lines in (empty_rounds, unsolved, faulty):
        yield from (f"{line}." for line in lines(archive.runs))


def _results(archive: Archive) -> Table:
    """The table that the command prints."""
    runs = archive.shown
    printed = table(runs, archive.target)
    # an unfinished run's seconds are not known
    columns = [c for c in printed.columns if archive.finished or c.header != "seconds"]
    rows = [list(row) for row in zip(*(map(str, c.cells) for c in columns), strict=True)]
    seeds = len({run.seed for run in runs})
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    lines = ["Models sent are relative to one round of FedAvg", *other_models(runs)]
    lines += [*validated(runs), *kept(runs), *sampled(runs)]
    caption = f"Results{over}. {'; '.join(lines)}."
    return Table(caption, [str(c.header) for c in columns], rows)


def _known(measure: str) -> Callable[[Record], float]:
    """Record -> a measure of it; NaN where it has none."""

    def read(record: Record) -> float:
        found: float | None = getattr(record, measure)
        return math.nan if found is None else found

    return read


def _rounds(run: Run) -> list[float]:
    return [record.round for record in run.history]


def _against_rounds(archive: Archive, looks: dict[str, Style]) -> Group:
    groups = by_label(archive.shown)
    some = {"clients", "rows"} & archive.experiment.get("evaluation", {}).keys()
    whose = "a sample of the clients' " if some else "all clients' "
    charts = [
        chart(
            title,
            note.format(whose),
            curves(groups, _rounds, _known(name)),
            looks,
            ROUND,
            axis,
        )
        for name, title, note, axis in AGAINST_ROUNDS
    ]
    mus = curves(groups, _rounds, lambda record: record.hparams.get("mu", np.nan))
    adaptive = [line for line in mus if np.ptp(line.values) > 0]
    if adaptive:
        charts.append(
            chart(
                "Adaptive mu", "The mu in force in each round.", adaptive, looks, ROUND, Axis("mu")
            )
        )
    charts = [c for c in charts if _any_known(c)]
    keys = {k: looks[k] for k in groups}
    return Group("Against rounds", keys, charts, [], explained(groups.values()))


def _any_known(drawn: Chart) -> bool:
    return any(y is not None for trace in drawn.traces for y in trace["y"])


def _against_cost(runs: Sequence[Run], looks: dict[str, Style]) -> Group:
    groups = by_label(runs)

    def accuracy(title: str, note: str, x: Any, axis: Axis) -> Chart:
        lines = curves(groups, x, lambda record: record.test_accuracy)
        return chart(title, note, lines, looks, axis, ACCURACY, compare_at_x=False)

    charts = [
        accuracy(
            "Accuracy against communication",
            "Models sent and returned, in units of a FedAvg round.",
            lambda run: [record.communication for record in run.history],
            Axis("communication (FedAvg rounds)"),
        ),
        accuracy(
            "Accuracy against client work",
            "Mini-batch steps of all clients so far.",
            lambda run: [record.total_steps for record in run.history],
            Axis("mini-batch steps"),
        ),
    ]
    charts = [c for c in charts if _any_known(c)]
    keys = {k: looks[k] for k in groups}
    return Group("Against cost", keys, charts, [], explained(groups.values()))


def _left_behind(archive: Archive, looks: dict[str, Style]) -> list[Group]:
    """The clients' own test accuracies under the final models."""
    diverged = {(r.label, r.seed) for r in archive.runs if r.diverged_at is not None}
    found: dict[str, list[NDArray[np.float64]]] = {}
    without = 0
    for run in archive.clients:
        every = np.array(run.test_accuracy, float)
        known = every[np.isfinite(every)]
        if run.label in looks and (run.label, run.seed) not in diverged and len(known):
            found.setdefault(run.label, []).append(known)
            without = len(every) - len(known)
    if not found:
        return []
    lines = [ranked(label, accuracies) for label, accuracies in found.items()]
    drawn = chart(
        "Clients from worst to best",
        "Each client's accuracy on its own test rows; the left end is who is left behind.",
        lines,
        looks,
        Axis("share of the clients", percent=True),
        ACCURACY,
    )
    edge = {"type": "line", "x0": WORST, "x1": WORST, "y0": 0, "y1": 1, "yref": "paper"}
    edge["line"] = {"color": "#888888", "width": 1, "dash": "dot"}
    drawn.layout["shapes"] = [edge]
    rows = [
        [
            label,
            *(spread([100 * f(a) for a in found[label]], "{:.2f}", " %") for f in SPREAD.values()),
        ]
        for label in found
    ]
    caption = "Test accuracy by client, every client counting alike"
    notes = [
        "These are the clients that evaluations read."
        if "clients" in archive.experiment.get("evaluation", {})
        else "",
        f"{without:,} clients have no test rows and are left out." if without else "",
        explained(found.values()),
    ]
    note = " ".join(filter(None, notes))
    keys = {label: looks[label] for label in found}
    figures = Table(caption, ["method", *SPREAD], rows)
    return [Group("Who is left behind", keys, [drawn], [figures], note)]


def worst_mean(accuracies: NDArray[np.float64]) -> float:
    """Mean accuracy of the worst tenth of the clients, at least one client.

    >>> worst_mean(np.arange(20.0))
    0.5
    """
    count = int(np.ceil(WORST * len(accuracies) - 1e-9))
    return float(np.sort(accuracies)[:count].mean())


SPREAD: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": np.mean,
    "median": np.median,
    "worst 10 %": worst_mean,
    "worst client": np.min,
    "standard deviation": np.std,
}
"""Columns of the table of clients."""


def _diagnosis(found: DiagnosisFile) -> list[Group]:
    """What `fedprox diagnose` found out about the federation."""
    rows = [[fact.what, fact.value, fact.note] for fact in found.facts]
    facts = Table("The federation", ["what", "value", "note"], rows, "words")
    one = styles([""])
    rounds = np.array(found.path.round, float)

    def along(title: str, note: str, values: Sequence[float | None], axis: Axis) -> Chart:
        return chart(title, note, [Line("", rounds, np.array([values], float))], one, ROUND, axis)

    drawn = [
        histogram("Client sizes", "Clients by training rows.", found.sizes, "training rows"),
        histogram(
            "Classes of a client",
            "Effective number of classes: exp of the entropy of a client's labels.",
            found.classes,
            "classes",
        ),
        along(
            "B(w) along the path",
            "How dissimilar the clients are as training goes on.",
            found.path.dissimilarity,
            DISSIMILARITY,
        ),
        along(
            "Gradient variance along the path",
            "How far the clients' gradients lie from their mean.",
            found.path.gradient_variance,
            VARIANCE,
        ),
    ]
    charts = [c for c in drawn if _any_known(c)]
    federation = Group("Diagnosis: the federation", {}, charts, [facts])
    return [federation, *([_sweep(found)] if found.sweep else [])]


def _sweep(found: DiagnosisFile) -> Group:
    """The values of mu that were tried, and which to begin with."""

    def label(point: SweepPoint) -> str:
        return f"mu = {point.mu:g}" + (" (suggested)" if point.mu == found.suggested_mu else "")

    looks = styles(map(label, found.sweep))
    lines = [
        Line(label(p), np.array(p.round, float), np.array([p.train_loss], float))
        for p in found.sweep
    ]
    drawn = chart(
        "Training loss for each mu", "Mean over seeds.", lines, looks, ROUND, Axis("f(w)")
    )
    rows = [[label(p), *sweep_cells(p.late_loss, p.spread, p.expected_gap)] for p in found.sweep]
    header = ["mu", "loss, last quarter", "expected above the best at the end"]
    tried = Table("The values of mu tried", header, rows)
    note = "No value of mu is suggested."
    if found.suggested_mu is not None:
        note = f"Suggested: mu = {found.suggested_mu:g}."
    if found.theory_mu is not None:
        note += f" Theory asks for a mu above {found.theory_mu:.3g}."
    return Group("Diagnosis: which mu", looks, [drawn], [tried], note)
