"""What a program may set once, before JAX starts: CPU devices and the compilation cache.

Nothing here runs on import; the command line calls it, and so may a user's own program.
"""

import logging
import os
import re
import stat
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from fedprox.datasets.sources import cache_folder
from fedprox.errors import require_whole

PATIENCE = 10**6
"""Seconds that a CPU device waits for the others at the end of a round. By default XLA ends the
process after 40, and a client with a large model may take longer than the rest of its cohort."""

MOST_DEVICES = 256
"""CPU devices of a process at most: each has threads of its own, and a round waits for all."""

UNREADABLE = r"Error reading persistent compilation cache entry for '(\w+)'"
"""What JAX warns of a program in the compilation cache that it cannot read."""


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


def use_compilation_cache(folder: str | Path) -> None:
    """Keep compiled programs in a folder, so that the next process need not compile them.

    Compiled programs are code, which JAX runs without a check: whoever can write the folder can run
    code as its user. So a new folder is accessible to its owner alone (mode 0700), and a folder
    that belongs to somebody else, or that others can write, is not used; a warning is logged.

    Where it cannot be written, a warning is logged, and what is in it already is used. A program
    that cannot be read, since whoever wrote it was killed, had a full disk or is still at it, is
    removed and compiled anew: JAX would warn of it and leave it there, run after run.

    Args:
        folder: The folder; it is made if it is missing.
    """
    folder = Path(folder).absolute()
    log = logging.getLogger(__name__)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if danger := _danger(folder):
            log.warning("compiled programs: %s is not used, since %s", folder, danger)
            return
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        log.warning(
            "compiled programs: not kept for the next time, since %s cannot be written: %s",
            folder,
            error.strerror or error,
        )
        if not folder.is_dir():
            return
    # said once, above; and JAX says it of every program, also when the disk is full later
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache entry")
    warnings.filterwarnings("always", UNREADABLE)
    show = warnings.showwarning

    def remove_unreadable(message: Warning | str, *args: Any, **options: Any) -> None:
        found = re.match(UNREADABLE, str(message))
        if found is None:
            show(message, *args, **options)
            return
        for program in folder.glob(f"{found[1]}-*"):
            with suppress(OSError):
                program.unlink()

    warnings.showwarning = remove_unreadable
    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # JAX looks for a folder once, at its first compilation
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def use_default_compilation_cache() -> None:
    """Keep compiled programs in the user's cache, unless JAX's own settings say otherwise.

    They do where `jax_compilation_cache_dir` names a folder, or `jax_enable_compilation_cache` is
    false. Both can be given as environment variables, `JAX_COMPILATION_CACHE_DIR` and
    `JAX_ENABLE_COMPILATION_CACHE`.
    """
    config: Any = jax.config
    if config.jax_enable_compilation_cache and config.jax_compilation_cache_dir is None:
        use_compilation_cache(cache_folder() / "xla")


def _danger(folder: Path) -> str:
    """Why others may have put code into a folder; empty if they cannot."""
    found = folder.stat()
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return "it belongs to another user, whose code it may hold"
    if os.name == "posix" and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write code into it; remove it, or allow its owner alone (chmod 700)"
    return ""
