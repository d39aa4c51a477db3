"""The number of CPU devices that JAX uses."""

import os
import warnings

import jax

from fedprox.errors import InputError, require_whole, users_level

PATIENCE = 10**6
"""Seconds that a CPU device waits for the others at the end of a round. By default XLA ends the
process after 40 seconds, but a client with a large model may take longer than the rest of its
cohort."""

MOST_DEVICES = 256
"""Most CPU devices of a process: each has its own threads, and a round waits for all of them."""


def use_cpu_devices(clients_per_round: int, devices: int | None = None) -> None:
    """Set the number of CPU devices of JAX: one per core, but at most one per client of a cohort.

    Lanes are spread over all devices. Call this function before the first JAX computation of the
    process. Settings in `XLA_FLAGS` take precedence. The function also adds flags to `XLA_FLAGS`
    that let devices wait for each other as long as a round takes.

    Args:
        clients_per_round: Number of clients per round, K.
        devices: Number of devices. None means one per core, as above.

    Raises:
        InputError: If `devices` is not a whole number from 1 to 256, or JAX has already started.

    Warns:
        UserWarning: If `devices` is above the number of cores.

    Example:
        >>> import fedprox as fp
        >>> fp.use_cpu_devices(clients_per_round=10)  # doctest: +SKIP
    """
    if devices is not None:
        require_whole("devices", devices, most=MOST_DEVICES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    count = devices or max(1, min(cores, clients_per_round))
    if count > cores:
        warnings.warn(
            f"devices = {devices}: more than the CPU cores here ({cores}); rounds will be slower",
            stacklevel=users_level(),
        )
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:
            raise InputError(
                "use_cpu_devices: JAX has started; call it before the first computation of the "
                "process, in a notebook after a restart of its kernel"
            ) from None
    if "xla_cpu_collective_call" not in flags:
        patience = [
            f"--xla_cpu_collective_call_{what}_timeout_seconds={PATIENCE}"
            for what in ("warn_stuck", "terminate")
        ]
        os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *patience])
