"""Flower's SuperNode with shorter waits, run as a script by `fedprox.deployment.flower_node`."""

import functools
import os
import time
import traceback
import types
from collections.abc import Callable

# This file must not import the package, which would load JAX into the SuperNode's process.

# Each look is a call to the SuperLink, which serves a few hundred calls a second for all nodes.

SHORTEST = 0.05
"""The shortest sleep in seconds."""

SHARE = 0.2
"""The longest sleep, as a share of the time that the SuperNode has been waiting."""


def main() -> None:
    """Run `flower-supernode` with this process's command line.

    Flower's SuperNode sleeps 3 seconds when there is no request and half a second when there is no
    answer yet. Round trips of small models consist of little else.
    """
    from flwr.supernode import start_client_internal as worker
    from flwr.supernode.cli.flower_supernode import flower_supernode

    worker.time = types.SimpleNamespace(sleep=_short_sleep())
    worker.pull_objects = functools.partial(
        worker.pull_objects, initial_backoff=SHORTEST, backoff_cap=1.0, max_tries_per_object=None
    )
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    os._exit(1)  # it has lost its connection; its HTTP server would keep the process alive


def _short_sleep() -> Callable[[float], None]:
    """A replacement of `time.sleep` whose sleeps grow with the time that has been waited."""
    waited_for, since = 0.0, time.monotonic()

    def sleep(seconds: float) -> None:
        nonlocal waited_for, since
        if seconds != waited_for:  # the wait has another purpose
            waited_for, since = seconds, time.monotonic()
        waited = time.monotonic() - since
        time.sleep(min(seconds, max(SHORTEST, SHARE * waited)))

    return sleep
