"""The HTML report: one page that opens offline, with figures to hover, zoom and switch."""

import math
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.diagnostics.fairness import fairness
from fedprox.errors import require
from fedprox.files.whole import write_whole
from fedprox.report.archive import Archive, DiagnosisFile, SweepPoint, read_archive
from fedprox.report.charts import (
    Axis,
    Chart,
    Line,
    Style,
    binned,
    chart,
    curves,
    histogram,
    in_steps,
    ranked,
    styles,
)
from fedprox.report.diagnosis import sweep_cells
from fedprox.report.figure import explained
from fedprox.report.table import (
    best_model_notes,
    by_label,
    early_stop_notes,
    empty_round_notes,
    evaluated_model_notes,
    fault_notes,
    privacy_notes,
    sampling_notes,
    spread,
    table,
    unsolved_notes,
    validation_notes,
)
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run

WORST = 0.1
"""Fraction of the clients that counts as left behind."""

MANY = 20
"""Length above which a list, such as each client's speed, is shortened."""

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
        "client_accuracy_mean",
        "Client accuracy, mean",
        "Mean test accuracy of the clients, each of which counts once.",
        ACCURACY,
    ),
    (
        "client_accuracy_worst",
        "Client accuracy, worst 10 %",
        "Mean test accuracy of the worst tenth of the clients in each round.",
        ACCURACY,
    ),
    (
        "client_accuracy_best",
        "Client accuracy, best 10 %",
        "Mean test accuracy of the best tenth of the clients in each round.",
        ACCURACY,
    ),
    (
        "personal_accuracy",
        "Accuracy of own models",
        "Over the test rows of the clients that have a model of their own.",
        ACCURACY,
    ),
    (
        "personal_accuracy_worst",
        "Own models, worst 10 %",
        "Mean test accuracy over the worst tenth of these clients in each round.",
        ACCURACY,
    ),
    (
        "newcomer_accuracy",
        "Accuracy for newcomers",
        "Over the test rows of the clients that have no model of their own yet.",
        ACCURACY,
    ),
    (
        "gradient_variance",
        "Gradient variance",
        "How far the clients' gradients are from their mean.",
        VARIANCE,
    ),
    (
        "dissimilarity",
        "Dissimilarity B(w)",
        "1 if all clients' gradients agree (Li et al. 2020, Definition 3).",
        DISSIMILARITY,
    ),
    (
        "gamma_mean",
        "Inexactness gamma",
        "Mean over the cohort: 0 is an exact local solve, 1 no progress (Definition 2).",
        Axis("mean gamma"),
    ),
    (
        "epsilon",
        "Privacy spent",
        "Epsilon of the clients' (epsilon, delta)-differential privacy.",
        Axis("epsilon"),
    ),
)


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        caption: The caption.
        headers: The heading of each column.
        rows: The cells of each row, the row's heading first.
        holds: Whether the other cells hold numbers or words.
    """

    caption: str
    headers: list[str]
    rows: list[list[str]]
    holds: Literal["numbers", "words"] = "numbers"


class Group(NamedTuple):
    """Figures under one heading.

    Attributes:
        title: The heading.
        keys: Labels whose lines can be switched on and off, with their styles.
        charts: The figures.
        tables: Tables of the same group.
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
        path: Path of the folder.
        lead: Summary of the experiment in one line.
        settings: Each section of the experiment with its keys and values.
        warnings: Restrictions of the results.
        results: The table of results; None without runs.
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
            cannot be written or its name does not end in .html or .htm.
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
            if any(math.isfinite(_reader(measure)(r)) for run in runs for r in run.history)
        }
        if sum(not known.isdisjoint(directory) for directory in directories) > 1:
            drawn = {key: runs for key, runs in lines.items() if key in known}
            measured = curves(drawn, _rounds, _reader(measure))
            charts.append(chart(title, note.format(""), measured, looks, ROUND, axis))
    words = ["Each line is named by its directory and its label.", explained(lines.values())]
    return Group("All runs", looks, charts, [], " ".join(words)) if charts else None


def _names(archives: Sequence[Archive]) -> list[str]:
    """The directories' names, or paths where names are the same."""
    names = [archive.path.resolve().name for archive in archives]
    return [
        name if names.count(name) == 1 else str(archive.path)
        for name, archive in zip(names, archives, strict=True)
    ]


def section(archive: Archive, looks: dict[str, Style]) -> Section:
    """The page's section for a run directory.

    Args:
        archive: The directory's contents.
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
    """A summary of the experiment in one line, from the keys that it has."""
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
    """Each section of the experiment in the order of its file, after the keys of no section."""
    plain = {k: v for k, v in experiment.items() if not isinstance(v, dict) and k != "method"}
    sections = {"run": _pairs(plain)}
    sections |= {k: _pairs(v) for k, v in experiment.items() if isinstance(v, dict)}
    versions = sections.pop("versions", None)
    sections["methods"] = [
        (
            str(method.get("name", "")),
            ", ".join(f"{k} = {_plain(v)}" for k, v in method.items() if k != "name"),
        )
        for method in experiment.get("method", [])
    ]
    return sections | ({"versions": versions} if versions else {})


def _pairs(part: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key.replace("_", " "), _plain(value)) for key, value in part.items() if value != {}]


def _plain(value: object) -> str:
    """A setting's value as text for people.

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
        yield from (f"{line}." for line in early_stop_notes(archive.runs))
    for notes in (empty_round_notes, unsolved_notes, fault_notes):
        yield from (f"{line}." for line in notes(archive.runs))


def _results(archive: Archive) -> Table:
    """The table of results, as `fedprox run` prints it."""
    runs = archive.shown
    printed = table(runs, archive.target)
    # the seconds of an unfinished run are unknown
    columns = [c for c in printed.columns if archive.finished or c.header != "seconds"]
    rows = [list(row) for row in zip(*(map(str, c.cells) for c in columns), strict=True)]
    seeds = len({run.seed for run in runs})
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    lines = ["Models sent are relative to one round of FedAvg", *evaluated_model_notes(runs)]
    lines += [*validation_notes(runs), *best_model_notes(runs), *sampling_notes(runs)]
    lines += privacy_notes(runs)
    caption = f"Results{over}. {'; '.join(lines)}."
    return Table(caption, [str(c.header) for c in columns], rows)


def _reader(measure: str) -> Callable[[Record], float]:
    """A function that returns a record's value of a measure, NaN if it has none."""

    def read(record: Record) -> float:
        value: float | None = getattr(record, measure)
        return math.nan if value is None else value

    return read


def _rounds(run: Run) -> list[float]:
    return [record.round for record in run.history]


def _against_rounds(archive: Archive, looks: dict[str, Style]) -> Group:
    groups = by_label(archive.shown)
    is_sampled = {"clients", "rows"} & archive.experiment.get("evaluation", {}).keys()
    whose = "a sample of the clients' " if is_sampled else "all clients' "
    charts = [
        chart(
            title,
            note.format(whose),
            curves(groups, _rounds, _reader(name)),
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
    if any(run.final.epsilon is not None for run in runs):
        charts.append(
            accuracy(
                "Accuracy against privacy",
                "Epsilon of the clients' differential privacy so far.",
                lambda run: [_reader("epsilon")(record) for record in run.history],
                Axis("epsilon"),
            )
        )
    charts = [c for c in charts if _any_known(c)]
    keys = {k: looks[k] for k in groups}
    return Group("Against cost", keys, charts, [], explained(groups.values()))


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
    lines = [ranked(label, by_seed) for label, by_seed in accuracies.items()]
    drawn = chart(
        "Clients from worst to best",
        "Each client's accuracy on its own test rows; the clients left behind are at the left end.",
        lines,
        looks,
        Axis("share of the clients", percent=True),
        ACCURACY,
    )
    edge = {"type": "line", "x0": WORST, "x1": WORST, "y0": 0, "y1": 1, "yref": "paper"}
    edge["line"] = {"color": "#888888", "width": 1, "dash": "dot"}
    drawn.layout["shapes"] = [edge]
    counted = chart(
        "Clients by accuracy",
        "Histogram of these accuracies: the share of the clients in each step of 5 %.",
        [binned(label, by_seed) for label, by_seed in accuracies.items()],
        looks,
        ACCURACY,
        Axis("share of the clients", percent=True),
    )
    rows = [
        [
            label,
            *(spread([100 * f(a) for a in by_seed], "{:.2f}", " %") for f in SPREAD.values()),
        ]
        for label, by_seed in accuracies.items()
    ]
    caption = "Test accuracy by client, all clients weighted equally"
    notes = [
        "These are the clients that evaluations read."
        if "clients" in archive.experiment.get("evaluation", {})
        else "",
        f"{without_rows:,} clients have no test rows and are left out." if without_rows else "",
        explained(accuracies.values()),
    ]
    note = " ".join(filter(None, notes))
    keys = {label: looks[label] for label in accuracies}
    figures = Table(caption, ["method", *SPREAD], rows)
    return [Group("Who is left behind", keys, [drawn, in_steps(counted)], [figures], note)]


SPREAD: dict[str, Callable[[NDArray[np.float64]], float]] = {
    "mean": np.mean,
    "median": np.median,
    "worst 10 %": lambda accuracies: fairness(accuracies).worst,
    "best 10 %": lambda accuracies: fairness(accuracies).best,
    "worst client": np.min,
    "standard deviation": np.std,
}
"""Columns of the table of clients."""


def _diagnosis(diagnosis: DiagnosisFile) -> list[Group]:
    """The findings of `fedprox diagnose`."""
    rows = [[fact.what, fact.value, fact.note] for fact in diagnosis.facts]
    facts = Table("The federation", ["what", "value", "note"], rows, "words")
    looks = styles([""])
    rounds = np.array(diagnosis.path.round, float)

    def along(title: str, note: str, values: Sequence[float | None], axis: Axis) -> Chart:
        return chart(title, note, [Line("", rounds, np.array([values], float))], looks, ROUND, axis)

    drawn = [
        histogram("Client sizes", "Clients by training rows.", diagnosis.sizes, "training rows"),
        histogram(
            "Classes of a client",
            "Effective number of classes: exp of the entropy of a client's labels.",
            diagnosis.classes,
            "classes",
        ),
        along(
            "B(w) along the path",
            "How dissimilar the clients are during training.",
            diagnosis.path.dissimilarity,
            DISSIMILARITY,
        ),
        along(
            "Gradient variance along the path",
            "How far the clients' gradients are from their mean.",
            diagnosis.path.gradient_variance,
            VARIANCE,
        ),
    ]
    charts = [c for c in drawn if _any_known(c)]
    federation = Group("Diagnosis: the federation", {}, charts, [facts])
    return [federation, *([_sweep(diagnosis)] if diagnosis.sweep else [])]


def _sweep(diagnosis: DiagnosisFile) -> Group:
    """The values of mu that were tried, and the suggested one."""

    def label(point: SweepPoint) -> str:
        suggested = point.mu == diagnosis.suggested_mu
        return f"mu = {point.mu:g}" + (" (suggested)" if suggested else "")

    looks = styles(map(label, diagnosis.sweep))
    lines = [
        Line(label(p), np.array(p.round, float), np.array([p.train_loss], float))
        for p in diagnosis.sweep
    ]
    drawn = chart(
        "Training loss for each mu", "Mean over seeds.", lines, looks, ROUND, Axis("f(w)")
    )
    rows = [
        [label(p), *sweep_cells(p.late_loss, p.spread, p.expected_gap)] for p in diagnosis.sweep
    ]
    header = ["mu", "loss, last quarter", "expected above the best at the end"]
    tried = Table("The values of mu tried", header, rows)
    note = "No value of mu is suggested."
    if diagnosis.suggested_mu is not None:
        note = f"Suggested: mu = {diagnosis.suggested_mu:g}."
    if diagnosis.theory_mu is not None:
        note += f" Theory requires a mu above {diagnosis.theory_mu:.3g}."
    return Group("Diagnosis: which mu", looks, [drawn], [tried], note)
