"""Several processes that run one comparison together, through `jax.distributed`.

Every process runs the same program on the same experiment. Each has its own clients (`homes.py`)
and its own devices; they meet in one sum a round.
"""

import os

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from fedprox.errors import InputError, require, require_whole

HEARTBEAT = 30
"""Seconds without a sign of life after which a process counts as lost."""

CLUSTERS = (
    ("processes", ("SLURM_NTASKS",)),
    ("process", ("SLURM_PROCID", "JOB_COMPLETION_INDEX")),
)
"""Variables in which SLURM and a Kubernetes indexed job say what was not given."""


def join_processes(
    coordinator: str, processes: int | None = None, process: int | None = None
) -> None:
    """Join the other processes of a run, before JAX starts.

    Args:
        coordinator: HOST:PORT at which process 0 can be reached; or "slurm", where the first host
            of the job step is found from SLURM's variables.
        processes: Number of processes; SLURM_NTASKS where left out.
        process: This one's number, from 0; SLURM_PROCID or JOB_COMPLETION_INDEX where left out.

    Raises:
        InputError: Something is missing or out of range, or the others cannot be reached.
    """
    given = {"processes": processes, "process": process}
    for name, variables in CLUSTERS:
        for variable in variables:
            if given[name] is None and variable in os.environ:
                given[name] = _number(variable, os.environ[variable])
        require(
            given[name] is not None,
            f"--{name}: not given, and neither {' nor '.join(variables)} is set",
        )
    count, number = given["processes"], given["process"]
    require_whole("--processes", count)
    require_whole("--process", number, least=0)
    assert count is not None
    assert number is not None
    require(number < count, f"--process {number}: it must be below --processes, {count}")
    address: str | None = coordinator
    if coordinator == "slurm":
        require("SLURM_JOB_ID" in os.environ, "--coordinator slurm: SLURM_JOB_ID is not set")
        address = None  # JAX finds it
    else:
        host, _, port = coordinator.rpartition(":")
        right = bool(host) and port.isdecimal() and 0 < int(port) < 2**16
        require(right, f"--coordinator {coordinator}: it must be HOST:PORT or slurm")
    # one program at a time: sums of two that overlap would be taken for each other's
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        jax.distributed.initialize(
            address, count, number, heartbeat_timeout_seconds=HEARTBEAT, initialization_timeout=120
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"--coordinator {coordinator}: the processes do not meet: {reason}"
        ) from None


def _number(name: str, text: str) -> int:
    require(text.isdecimal(), f"{name} = {text!r}; it must be a whole number")
    return int(text)


def everyone(value: int) -> NDArray[np.int64]:
    """What each process has for a value, shape (processes,)."""
    if jax.process_count() == 1:
        return np.array([value], np.int64)
    return np.asarray(multihost_utils.process_allgather(np.int64(value))).reshape(-1)
