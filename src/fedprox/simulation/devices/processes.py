"""Several processes that run one comparison together, through `jax.distributed`.

Every process runs the same program on the same experiment. Each has its own clients
(`ownership.py`) and its own devices; they meet in one sum a round.
"""

import logging
import os
import re
import threading

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from fedprox.errors import InputError, require, require_whole
from fedprox.simulation.devices.rendezvous import BIND, Address, meet

PATIENCE = 120
"""Seconds that a process waits for the others at the start."""


NOTICE = 10
"""Seconds after which a process says that it waits."""


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
    if coordinator == "slurm":
        coordinator = slurm_coordinator()
    address = _address(f"--coordinator {coordinator}: it must be HOST:PORT or slurm", coordinator)
    bind = os.environ.get(BIND)
    listen = _address(f"{BIND} = {bind!r}; it must be HOST:PORT", bind) if bind else None
    waits = f"process {number}: waiting for the others at {coordinator}, up to {PATIENCE:g} s"
    notice = threading.Timer(NOTICE, logging.getLogger(__name__).warning, [waits])
    notice.start()
    try:
        met = meet(address, count, number, seconds=PATIENCE, listen=listen)
        # one program at a time: sums of two that overlap would be taken for each other's
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.distributed.initialize(
            met,
            count,
            number,
            heartbeat_timeout_seconds=HEARTBEAT,
            initialization_timeout=PATIENCE,
            coordinator_bind_address=met,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"--coordinator {coordinator}: the processes do not meet: {reason}"
        ) from None
    finally:
        notice.cancel()


def _address(message: str, text: str) -> Address:
    """The host and the port of HOST:PORT, where an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    right = bool(host) and port.isdecimal() and 0 < int(port) < 2**16
    require(right, message)
    return host.removeprefix("[").removesuffix("]"), int(port)


def slurm_coordinator() -> str:
    """The first host of the job step, and a port that depends on the job, as JAX chooses them."""
    given = []
    for name in ("SLURM_JOB_ID", "SLURM_STEP_NODELIST"):
        require(name in os.environ, f"--coordinator slurm: {name} is not set")
        given.append(os.environ[name])
    job, nodes = given
    first = re.match(r"([^,\[]+)(?:\[(\w+)[^]]*\])?([^,\[]*)", nodes)  # node[01-04,07],other
    require(first, f"SLURM_STEP_NODELIST = {nodes!r}; it must be a list of hosts")
    assert first is not None
    port = 61440 + _number("SLURM_JOB_ID", job) % 4096
    return f"{''.join(part or '' for part in first.groups())}:{port}"


def _number(name: str, text: str) -> int:
    require(text.isdecimal(), f"{name} = {text!r}; it must be a whole number")
    return int(text)


def everyone(value: int) -> NDArray[np.int64]:
    """What each process has for a value, shape (processes,)."""
    if jax.process_count() == 1:
        return np.array([value], np.int64)
    return np.asarray(multihost_utils.process_allgather(np.int64(value))).reshape(-1)
