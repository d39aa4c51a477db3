"""The machine and the versions that results come from."""

import datetime
import importlib.metadata
import platform
from pathlib import Path


def today() -> str:
    """The date in UTC, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu() -> str:
    """The number of cores and the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores: {names[0]}" if names else platform.processor()
