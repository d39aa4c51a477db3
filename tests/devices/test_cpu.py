"""CPU devices: what a program sets before JAX starts, and more of them than there are."""

import os
import subprocess
import sys
from typing import Any

import jax
import pytest

from fedprox import InputError, use_cpu_devices
from tests.settings import runs

PROGRAM = """
import jax, fedprox as fp
from jax.sharding import PartitionSpec
fp.use_cpu_devices(clients_per_round=3)
mesh = jax.make_mesh((jax.device_count(),), ("lanes",))
total = jax.shard_map(lambda x: jax.lax.psum(x, "lanes"), mesh=mesh, in_specs=PartitionSpec(),
                      out_specs=PartitionSpec())
print(jax.device_count(), int(total(1)))
"""


@pytest.mark.parametrize("devices", [0, 257, 2.0])
def test_a_number_of_devices_that_none_would_want_is_refused(devices: Any) -> None:
    with pytest.raises(InputError, match=f"devices = {devices}; it must be .* from 1 to 256"):
        use_cpu_devices(10, devices)


def test_it_is_too_late_once_jax_has_started() -> None:
    jax.devices()
    with pytest.raises(InputError, match="use_cpu_devices: JAX has started; call it before"):
        use_cpu_devices(10, 1)


def test_more_devices_than_cores_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="devices = 256: more than"), pytest.raises(InputError):
        use_cpu_devices(10, 256)


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["", "--xla_force_host_platform_device_count=1"])
def test_devices_are_as_many_as_cores_and_wait_for_each_other(flags: str) -> None:
    """XLA ends a process whose flags it does not know, so they are tried in a fresh one."""
    code = f"{PROGRAM}import os; print(os.environ['XLA_FLAGS'])"
    environment = {**os.environ, "XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    counts, set_flags = done.stdout.splitlines()
    devices = 1 if flags else min(3, len(os.sched_getaffinity(0)))
    assert counts == f"{devices} {devices}"
    # a round may keep a device waiting for hours, where XLA gives up after 40 seconds by itself
    patience = dict(flag.split("=") for flag in set_flags.split() if "collective_call" in flag)
    assert len(patience) == 2
    assert min(map(int, patience.values())) > 24 * 3600


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(InputError, match="devices = 3; JAX sees 2 here"):
        runs(devices=3)
