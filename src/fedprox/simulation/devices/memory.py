"""Free memory of devices and of the host."""

from pathlib import Path

import jax
from jax.sharding import Mesh

FITS = 0.5
"""Share of a device's or the host's free memory that one use, such as training rows, may take."""


def free_on_devices(mesh: Mesh) -> int:
    """Free bytes on each accelerator; 0 if unknown, and on a CPU, which uses the host's memory."""
    if jax.default_backend() == "cpu":
        return 0
    device = next(d for d in mesh.devices.flat if d.process_index == jax.process_index())
    memory = device.memory_stats() or {}
    return int(memory.get("bytes_limit", 0) - memory.get("bytes_in_use", 0))


def free_on_host() -> int:
    """Free bytes of the host, or of this process's container; 0 if unknown."""
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
