"""The seconds of a seed run, in which what computes is counted apart from callbacks.

While callbacks run, the devices compute the rounds that were begun before. So only the time from
the end of these rounds to the end of the callbacks is that of callbacks alone.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import jax


class Stopwatch:
    """Counts the seconds of rounds and evaluations, and those of callbacks.

    Args:
        run: Seconds of rounds and evaluations before.
        callbacks: Seconds of callbacks before.
    """

    def __init__(self, run: float, callbacks: float) -> None:
        self._began = time.perf_counter() - run
        self.callbacks, self._elsewhere = callbacks, 0.0
        self._waiting = ThreadPoolExecutor(1, "stopwatch")

    @property
    def run(self) -> float:
        """Seconds of rounds and evaluations so far."""
        return time.perf_counter() - self._began - self._elsewhere

    @contextmanager
    def calling_back(self, computing: Any) -> Iterator[None]:
        """Count the time in this context as callbacks', once the devices have computed some arrays.

        Args:
            computing: The arrays, whose memory no later call reuses.
        """
        began = time.perf_counter()
        ready = self._waiting.submit(_ready_at, computing)
        try:
            yield
        finally:
            over = time.perf_counter()
            idle = over - max(began, ready.result()) if ready.done() else 0.0
            self.leave_out(idle)
            self.callbacks += idle

    def leave_out(self, seconds: float) -> None:
        """Do not count some seconds that have passed, such as those of writing a checkpoint."""
        self._elsewhere += seconds

    def close(self) -> None:
        """End the thread that waits for the devices."""
        self._waiting.shutdown(wait=False, cancel_futures=True)


def _ready_at(arrays: Any) -> float:
    """Wait for some arrays, and return the time."""
    with suppress(Exception):  # the loop raises it, where it needs the arrays
        jax.block_until_ready(arrays)
    return time.perf_counter()
