"""The settings in which runs of several comparisons differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedprox.simulation.results.run import Run

LONGEST_SAID = 20
"""The most characters of a setting that is said in a table."""

RATE = "solver.learning_rate"
"""Name of the setting that is the run's own in a sweep."""


def settings_of(run: Run) -> dict[str, Any]:
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
    settings = [settings_of(run) for run in runs]
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
