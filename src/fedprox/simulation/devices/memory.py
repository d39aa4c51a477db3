"""How much memory is free, and how much of it one thing may take."""

from pathlib import Path

import jax
from jax.sharding import Mesh

FITS = 0.5
"""Share of the memory that is free, of a device or of the host, that one thing may take."""


def free_on_devices(mesh: Mesh) -> int:
    """Bytes that are free on each accelerator; 0 if unknown, and on a CPU, which has the host's."""
    if jax.default_backend() == "cpu":
        return 0
    here = next(d for d in mesh.devices.flat if d.process_index == jax.process_index())
    memory = here.memory_stats() or {}
    return int(memory.get("bytes_limit", 0) - memory.get("bytes_in_use", 0))


def free_on_host() -> int:
    """Bytes that this process can still have, in its container if it is in one; 0 if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (available,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return 0
    try:
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        return min(1024 * available, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no container, or none that limits memory
        return 1024 * available
