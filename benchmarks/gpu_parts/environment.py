"""What the benchmark needs from its environment, checked before anything is imported."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

INSTALL = "docs/howto/gpu.md says how to install them, without a network too"


def missing() -> list[str]:
    """Dependencies of the library that are not installed, as pyproject.toml writes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [need for need in project["dependencies"] if not _installed(need)]


def _installed(requirement: str) -> bool:
    """Whether there is any version of a requirement such as "jax>=0.10"."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def problem(data_dir: Path | None, *, tiny: bool) -> str | None:
    """Why the benchmark cannot run here, on one line; None if it can."""
    if data_dir and not data_dir.is_dir():
        return f"{data_dir} is not a folder; --data-dir and FEDPROX_DATA name the one with data"
    needed = missing()
    if needed:
        listed = " ".join(f"'{need}'" for need in needed)
        return f"{sys.executable} lacks {listed}; {INSTALL}"
    found = _start()
    if found.error:
        return f"{sys.executable} cannot import the library: {found.error}; {INSTALL}"
    if found.backend == "cpu" and not tiny:
        return (
            f"JAX of {sys.executable} sees no GPU; install its CUDA wheels with {sys.executable} "
            f"-m pip install 'jax[cuda13]=={importlib.metadata.version('jax')}' (or cuda12, for "
            "older drivers), or rehearse with --tiny"
        )
    return None


class Started(NamedTuple):
    """JAX's backend, or the last line of the error if the library cannot be imported."""

    backend: str
    error: str


IMPORTS = "fedprox.cli, dp_accounting.pld, pooch"
"""What shows whether all packages are there that the library's dependencies need themselves."""


def _start() -> Started:
    """Import the library in another process, so that this one holds no GPU memory."""
    code = f"import jax, {IMPORTS}; print(jax.default_backend())"
    command, env = [sys.executable, "-c", code], variables(Path("runs"), tiny=False)
    found = subprocess.run(command, capture_output=True, text=True, env=env)
    if found.returncode == 0:
        return Started(found.stdout.strip().splitlines()[-1], "")
    return Started("", (found.stderr.strip().splitlines() or ["it ended"])[-1])


def data_folder(given: Path | None) -> Path | None:
    """The folder with data: as given, or else that of FEDPROX_DATA. Nothing is downloaded."""
    named = given or (Path(os.environ["FEDPROX_DATA"]) if os.environ.get("FEDPROX_DATA") else None)
    return named.resolve() if named else None


def variables(out: Path, *, tiny: bool) -> dict[str, str]:
    """Environment variables of a part's process: this tree's library, and a cache of programs.

    A rehearsal compiles without most optimizations, which takes half the time.
    """
    path = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and "cpu" not in platforms.split(","):  # the checks compare with a CPU
        platforms += ",cpu"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        **({"JAX_PLATFORMS": platforms} if platforms else {}),
        "FEDPROX_CACHE": os.environ.get("FEDPROX_CACHE", str(out / "cache")),
        **({"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} if tiny else {}),
    }


def machine() -> dict[str, Any]:
    """Versions, and the GPU as the driver names it."""
    versions = {}
    for name in ("jax", "jaxlib", "numpy", "flax", "torch"):
        if _installed(name):
            versions[name] = importlib.metadata.version(name)
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        gpu = "; ".join(found.stdout.strip().splitlines())
    except (OSError, subprocess.SubprocessError):
        gpu = "none that nvidia-smi finds"
    python = ".".join(map(str, sys.version_info[:3]))
    return {"GPU": gpu, "cores": os.cpu_count() or 0, "python": python, **versions}
