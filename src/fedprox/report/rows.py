"""The runs of a row or a line: those of one label and one experiment, one for each seed."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedprox.errors import require
from fedprox.results.run import Run

LONGEST_SAID = 20
"""The most characters of a setting that is said in a table."""

MOST_SAID = 3
"""The most settings that the name of a row says."""

RATE = "solver.learning_rate"
"""Name of the setting that is the run's own in a sweep."""


def _settings_of(run: Run) -> dict[str, Any]:
    """What seeds of one row share, by name; empty for a run that does not know its experiment."""
    if not run.experiment:
        return {}
    # methods are in the label; where client state is stored changes no result
    others = ("seed", "method", "versions", "client_store")
    settings: dict[str, Any] = {}
    for key, value in run.experiment.items():
        if isinstance(value, Mapping):
            settings |= {f"{key}.{name}": each for name, each in value.items()}
        elif key not in others:
            settings[key] = value
    if not isinstance(settings.get(RATE), str):  # the name of a schedule
        settings[RATE] = run.learning_rate
    return settings | run.hparams


def apart(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """The settings of each run, and the names of those in which runs differ beside their labels."""
    settings = [_settings_of(run) for run in runs]
    # the runs of any comparison differ in these, which labels say
    own = {RATE, *(name for run in runs for name in run.hparams)}
    firsts: dict[str, Mapping[str, Any]] = {}
    for run, each in zip(runs, settings, strict=True):
        firsts.setdefault(run.label, each)
    return settings, [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if any(
            each.get(name) != (firsts[run.label] if name in own else settings[0]).get(name)
            for run, each in zip(runs, settings, strict=True)
        )
    ]


def is_simple(value: object) -> bool:
    """Whether a setting fits into a cell of a table."""
    if isinstance(value, str):
        return len(value) <= LONGEST_SAID
    return value is None or isinstance(value, int | float)


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each row or line: of one label and one experiment, one run for each seed.

    If the runs are of several experiments that differ in few and simple settings, the names of the
    rows say these settings.

    >>> known = dict(method="fedavg", hparams={}, learning_rate=0.1, seed=0, label="fedavg")
    >>> few, many = ({"systems": {"stragglers": share}} for share in (0.0, 0.5))
    >>> list(by_label([Run(**known, experiment=few), Run(**known, experiment=many)]))
    ['fedavg · stragglers 0', 'fedavg · stragglers 0.5']
    """
    settings, names = apart(runs)
    said = len(names) <= MOST_SAID and all(
        is_simple(each.get(name)) for each in settings for name in names
    )
    grouped: dict[str, list[Run]] = {}
    experiments: dict[str, dict[str, Any]] = {}
    for run, each in zip(runs, settings, strict=True):
        row = run.label
        if said:
            row = " · ".join([row, *(_said(name, each.get(name)) for name in names)])
        known = experiments.setdefault(row, each)
        require(
            each == known,
            f"runs: those of {run.label!r} are of experiments that differ in "
            f"{', '.join(n for n in names if each.get(n) != known.get(n))}, which are no seeds "
            "to average over; give the runs of one experiment at a time",
        )
        require(
            run.seed not in [other.seed for other in grouped.setdefault(row, [])],
            f"runs: {row!r} with seed {run.seed} is given more than once, which are no seeds to "
            "average over; give each run once, and the runs of one experiment at a time",
        )
        grouped[row].append(run)
    return grouped


def _said(name: str, value: object) -> str:
    """A setting in the name of a row."""
    section, _, key = name.rpartition(".")
    name = key if section in ("systems", "cohort", "solver") else name
    if value is None or isinstance(value, bool):
        text = {None: "none", True: "yes", False: "no"}[value]
    else:
        text = value if isinstance(value, str) else f"{value:g}"
    return f"{name.replace('_', ' ')} {text}"
