"""Devices: how many a CPU has, their mesh, arrays spread over it, and free memory."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled, Wrapped

from fedprox.errors import InputError, require, require_whole, users_level
from fedprox.jax_internals import require_backend

T = TypeVar("T")

AXIS = "lanes"


REPLICATED = PartitionSpec()


PER_DEVICE = PartitionSpec(AXIS)


PER_ROUND_AND_DEVICE = PartitionSpec(None, AXIS)


def lane_mesh(count: int | None = None) -> Mesh:
    """A mesh with one axis, over which lanes are spread.

    With several processes, each has the same number of devices, in the order of the processes.
    """
    require_backend()
    devices = jax.local_devices()
    if count is not None:
        require_whole("devices", count)
        require(count <= len(devices), f"devices = {count}; JAX sees {len(devices)} here")
        devices = devices[:count]
    if jax.process_count() > 1:
        each = {p: jax.local_devices(p)[: len(devices)] for p in range(jax.process_count())}
        counts = {len(theirs) for theirs in each.values()}
        require(len(counts) == 1, f"devices: processes have {sorted(counts)}; give --devices")
        devices = [device for p in sorted(each) for device in each[p]]
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def replicate(mesh: Mesh, tree: T) -> T:
    """Copy each array of `tree` to each device of `mesh`."""
    return put_on(NamedSharding(mesh, REPLICATED), tree)


def shard(mesh: Mesh, tree: T) -> T:
    """Split the first axis of each array of `tree` over the devices of `mesh`."""
    return put_on(NamedSharding(mesh, PER_DEVICE), tree)


def put_on(sharding: NamedSharding, tree: T) -> T:
    """Put each array of `tree` on devices.

    With several processes, each process puts its own part of a host array on its devices.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def one(array: Any) -> jax.Array:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.jit(lambda a: a, out_shardings=sharding)(array)
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])

    return jax.tree.map(one, tree)


def accept_host_arrays(compiled: Compiled | Wrapped) -> Callable[..., Any]:
    """A compiled program that accepts host arrays, also with devices of several processes."""

    def is_none(part: Any) -> bool:
        return part is None

    if not isinstance(compiled, Compiled):
        return compiled
    # None marks inputs that the program does not use
    shardings = jax.tree.leaves(compiled.input_shardings[0], is_leaf=is_none)
    if all(s is None or s.is_fully_addressable for s in shardings):
        return compiled

    def call(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments, is_leaf=is_none)
        on_devices = [
            put_on(sharding, leaf)
            if isinstance(leaf, np.ndarray | np.generic) and sharding
            else leaf
            for leaf, sharding in zip(leaves, shardings, strict=True)
        ]
        return compiled(*jax.tree.unflatten(structure, on_devices))

    return call


def zeros_on(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An array of zeros whose first axis is split over the devices."""
    return jnp.zeros(shape, dtype, device=NamedSharding(mesh, PER_DEVICE))


def spread(
    mesh: Mesh,
    body: Callable[..., Any],
    in_specs: tuple[Any, ...],
    *,
    out_specs: Any = REPLICATED,
    donated: tuple[int, ...] = (),
) -> Wrapped:
    """Compile-once program that runs `body` on each device with its part of the inputs.

    Replicated results must be equal on all devices. The results reuse the memory of the `donated`
    arguments, which the caller can no longer use.
    """
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(mapped, donate_argnums=donated)


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


COLLECTIVE_SECONDS = 10**6
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
            f"--xla_cpu_collective_call_{what}_timeout_seconds={COLLECTIVE_SECONDS}"
            for what in ("warn_stuck", "terminate")
        ]
        os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *patience])
