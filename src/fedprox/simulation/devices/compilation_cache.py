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
from jax.experimental.compilation_cache import compilation_cache

from fedprox.datasets.sources import cache_folder

UNREADABLE = r"Error reading persistent compilation cache entry for '(\w+)'"
"""What JAX warns of a program in the compilation cache that it cannot read."""


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
