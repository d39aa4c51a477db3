"""The status that other processes read of a run, and how they ask it to stop: without JAX.

`live.py` writes it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from fedprox.errors import InputError, foreign, plural, require
from fedprox.files.whole import holder, write_whole

STATUS, PROMETHEUS, STOP = "status.json", "metrics.prom", "stop"
FILES: tuple[str, ...] = (STATUS, PROMETHEUS, STOP)
"""Names of the files in a run directory."""

STUDY = "study.json"
"""Name of the file that a complete study has in its folder."""


def status_lines(folder: Path, now: float) -> list[str]:
    """The output of `fedprox status` for a run or a study, at a time in seconds since 1970."""
    complete = any((folder / name).is_file() for name in ("summary.json", STUDY))
    begun = complete or any((folder / name).is_file() for name in ("experiment.toml", STATUS))
    require(begun, f"{folder}: no run directory or study, or not begun yet")
    writer = holder(folder)
    if complete and not writer:
        return [f"{folder}: complete"]
    state = f"running, {writer}" if writer else "not running, and not complete"
    try:
        known = json.loads((folder / STATUS).read_bytes())
        lines = [f"{folder}: {state}; {_ago(now - known['updated'])} ago:", _of_run(known)]
        for name, node in sorted(known["nodes"].items()):
            lines.append(
                f"node {foreign(name)}: seen {_ago(now - node['seen'])} ago, {node['rounds']:.0f} "
                f"rounds of its clients, {node['seconds']:.1f} s, "
                f"{decimal(int(node['bytes_down']))} down, {decimal(int(node['bytes_up']))} up"
            )
    except FileNotFoundError:
        return [f"{folder}: {state}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{folder / STATUS}: damaged") from None
    return lines


def _of_run(known: Mapping[str, Any]) -> str:
    done = known["rounds_done"]
    round_ = known.get("round", done)
    run = f"{foreign(known['label'])}, seed {known['seed']}"
    parts = [f"{run}: round {round_} of {known['rounds']}", *filter(None, [known["state"]])]
    if known.get("loss") is not None:
        parts.append(f"loss {known['loss']:.4g}")
    if known.get("test_accuracy") is not None:
        parts.append(f"test accuracy {100 * known['test_accuracy']:.2f} %")
    if "bytes_up" in known:
        parts.append(f"{known['seconds']:.1f} s")
        parts.append(f"{decimal(known['bytes_down'])} down, {decimal(known['bytes_up'])} up")
    return ", ".join(parts) + (f"; {plural(done, 'round')} done" if done != round_ else "")


def _ago(seconds: float) -> str:
    """A time in words.

    >>> _ago(2.3), _ago(150), _ago(9000)
    ('2 s', '2 min', '2.5 h')
    """
    seconds = max(seconds, 0.0)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def ask_to_stop(folder: Path) -> str:
    """Ask the process that trains in a run directory to stop, and return who it is."""
    writer = holder(folder) if (folder / STATUS).is_file() else None
    if not writer:
        raise InputError(f"{folder}: no run is under way here")
    write_whole(folder / STOP, b"")
    return writer
