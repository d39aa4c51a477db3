"""How many CPU devices JAX is given."""

import os

import jax

from fedprox.errors import require_whole

PATIENCE = 10**6
"""Seconds that a CPU device waits for the others at the end of a round. By default XLA ends the
process after 40, and a client with a large model may take longer than the rest of its cohort."""

MOST_DEVICES = 256
"""CPU devices of a process at most: each has threads of its own, and a round waits for all."""


def use_cpu_devices(clients_per_round: int, devices: int | None = None) -> None:
    """Let JAX see some CPU devices: one for each core, and no more than a cohort has clients.

    Lanes are spread over all devices. It must come before the first JAX computation of the
    process, and leaves what `XLA_FLAGS` sets as it is. It also lets devices wait for each other as
    long as a round takes, by `XLA_FLAGS`.

    Args:
        clients_per_round: K, the clients of a round.
        devices: How many, whatever the cores and the clients.

    Raises:
        InputError: `devices` is not a whole number from 1 to 256.
        RuntimeError: JAX has already started.
    """
    if devices is not None:
        require_whole("devices", devices, most=MOST_DEVICES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = devices or max(1, min(cores or 1, clients_per_round))
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_collective_call" not in flags:
        patience = [
            f"--xla_cpu_collective_call_{what}_timeout_seconds={PATIENCE}"
            for what in ("warn_stuck", "terminate")
        ]
        os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *patience])
    if "xla_force_host_platform_device_count" not in flags:
        jax.config.update("jax_num_cpu_devices", count)
