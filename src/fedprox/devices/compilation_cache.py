"""The cache of compiled programs on disk."""

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

from fedprox.datasets.sources import cache_folder
from fedprox.jax_internals import forget_cache_folder

UNREADABLE = r"Error reading persistent compilation cache entry for '(\w+)'"
"""JAX's warning about a program in the compilation cache that it cannot read."""


def use_compilation_cache(folder: str | Path) -> None:
    """Cache compiled programs in a folder, so that later processes do not compile them again.

    JAX runs cached programs without a check, so whoever can write to the folder can run code as its
    user. A new folder is therefore accessible only to its owner (mode 0700). A folder that belongs
    to another user, or that others can write to, is not used, and a warning is logged.

    If the folder cannot be written, a warning is logged, and its programs are still used. A program
    that cannot be read is removed and compiled again: its writer was killed, had a full disk or is
    still writing. JAX alone would warn about it in every run.

    Args:
        folder: The folder, which is created if it is missing.

    Example:
        >>> import fedprox as fp
        >>> fp.use_compilation_cache("compiled")  # doctest: +SKIP
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
    # logged once above; JAX would warn for each program, also if the disk is full later
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache entry")
    warnings.filterwarnings("always", UNREADABLE)
    show = warnings.showwarning

    def remove_unreadable(message: Warning | str, *args: Any, **options: Any) -> None:
        unreadable = re.match(UNREADABLE, str(message))
        if unreadable is None:
            show(message, *args, **options)
            return
        for program in folder.glob(f"{unreadable[1]}-*"):
            with suppress(OSError):
                program.unlink()

    warnings.showwarning = remove_unreadable
    # JAX's keys of programs hold the folder's name, and must not change with a link to it
    jax.config.update("jax_compilation_cache_dir", str(folder.resolve()))
    forget_cache_folder()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def use_default_compilation_cache() -> None:
    """Cache compiled programs in the user's cache folder, unless JAX's settings say otherwise.

    These settings are `jax_compilation_cache_dir`, which sets another folder, and
    `jax_enable_compilation_cache`, which turns the cache off. Both can be set as environment
    variables, `JAX_COMPILATION_CACHE_DIR` and `JAX_ENABLE_COMPILATION_CACHE`.
    """
    config: Any = jax.config
    if config.jax_enable_compilation_cache and config.jax_compilation_cache_dir is None:
        use_compilation_cache(cache_folder() / "xla")


def _danger(folder: Path) -> str:
    """Why others may have written code into a folder; empty if they cannot."""
    status = folder.stat()
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return "it belongs to another user, whose code it may hold"
    if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others can write code into it; remove it, or allow its owner alone (chmod 700)"
    return ""
