"""What tests cost: processor seconds, memory, and compiled programs of rounds.

A test's seconds are those of its process from its setup to its end, without child processes. A
fixture of a module, package or session counts apart, under its own name: otherwise its cost would
be that of whichever test asks first. It may take twice what a test may. What a test compiles or
imports first in a process still counts to it. On a slower machine, or beside other work, a test may
take as much longer as Python does.
"""

import ctypes
import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import pytest

from fedprox import same
from fedprox.devices import programs

COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event after each program, whether it was compiled or found in the cache."""

MOST_MEMORY, MOST_WITHIN = 1.3e9, 1.4e9
"""Memory above which a process lets all programs go, of which each takes two to three megabytes:
between two files, and within one."""

USUAL = 0.005
"""Processor seconds of `count_words` where bounds were set: two cores of an AMD EPYC, idle."""

SLOWEST = 10
"""Tests that are named at the end."""

SHOWN = 0.1
"""Processor seconds of a test that is worth naming."""

SECONDS = "processor seconds"


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory() -> int:
    """The memory that this process has in bytes; its peak where the system does not say it."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return peak()
    return int(pages.read_text().split()[1]) * resource.getpagesize()


def count_words() -> None:
    """What Python does in traces: calls, and looking up what is kept by name."""
    found: dict[str, int] = {}
    for i in range(40_000):
        word = f"word {i % 97}"
        found[word] = found.get(word, 0) + len(word)


def slower() -> float:
    """How many times as long Python takes here and now as where bounds were set, at least 1."""

    def seconds() -> float:
        begun = time.process_time()
        count_words()
        return time.process_time() - begun

    return max(1.0, min(seconds() for _ in range(5)) / USUAL)


def let_go() -> None:
    """Let all compiled programs go, and what is made once."""
    jax.clear_caches()
    programs.PROGRAMS.clear()
    same.MADE.clear()


class Costs:
    """A plugin that measures the tests of its process, and tells where a bound is passed.

    Args:
        config: Of pytest; options `--most-seconds` and `--most-rounds`, 0 without a bound.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.begun, self.shared, self.rounds = 0.0, 0.0, 0
        self.fixtures: dict[str, float] = {}
        """Seconds of the fixtures of more than one test that the present test asked for first."""
        self.spent: Any = Counter()
        """Seconds of each test, and of each fixture of more than one."""
        self.workers: list[dict[str, int]] = []
        """Of each process that ran tests: its peak of memory in bytes, and programs of rounds."""

    def heard(self, event: str, duration_secs: float, **known: str | int) -> None:
        """Count a program of rounds."""
        del duration_secs
        self.rounds += event == COMPILED and known.get("fun_name") == "jit(rounds)"

    def pytest_sessionstart(self) -> None:
        jax.monitoring.register_event_duration_secs_listener(self.heard)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        self.begun, self.shared = time.process_time(), 0.0
        self.fixtures.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Measure the fixtures of more than one test, each without those that it asks for."""
        begun, others = time.process_time(), self.shared
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                seconds = time.process_time() - begun - (self.shared - others)
                self.shared += seconds
                self.fixtures[f"{fixturedef.baseid}::{fixturedef.argname}, a fixture"] = seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """A test that is not slow fails above `--most-seconds`, or if a fixture took twice that."""
        report: Any = yield
        own = time.process_time() - self.begun - self.shared
        most = self.config.getoption("most_seconds")
        bounds = [(item.nodeid, own, most)]
        bounds += [(name, seconds, 2 * most) for name, seconds in self.fixtures.items()]
        fast = report.when == "call" and report.passed and not item.get_closest_marker("slow")
        dear = [each for each in bounds if most and each[1] > each[2]] if fast else []
        factor = slower() if dear else 1.0
        lines = [
            f"{name} took {seconds:.1f} s of processor time, at most {factor * bound:.3g} s "
            "without a mark as slow (CONTRIBUTING.md says how to save)"
            for name, seconds, bound in dear
            if seconds > factor * bound
        ]
        if lines:
            report.outcome, report.longrepr = "failed", "\n".join(lines)
        if report.when == "teardown":
            report.user_properties.append((SECONDS, {item.nodeid: own, **self.fixtures}))
        return report

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Let programs go, best between two files, which seldom need the same."""
        ends = nextitem is None or nextitem.path != item.path
        if memory() > (MOST_MEMORY if ends else MOST_WITHIN):
            let_go()
            gc.collect()
            with suppress(OSError, AttributeError):  # glibc keeps freed memory to itself
                ctypes.CDLL(None).malloc_trim(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == SECONDS and isinstance(value, dict):
                self.spent.update(value)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run fails that compiled more programs of rounds than `--most-rounds`."""
        own = {"peak": peak(), "rounds": self.rounds}
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["costs"] = own
        elif not self.workers:
            self.workers.append(own)
        if 0 < self.config.getoption("most_rounds") < sum(w["rounds"] for w in self.workers):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if "costs" in getattr(node, "workeroutput", ()):  # a worker that was killed has none
            self.workers.append(node.workeroutput["costs"])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.spent or not self.workers:
            return
        terminalreporter.section("slowest tests, in processor seconds")
        for name, seconds in self.spent.most_common(SLOWEST):
            if seconds > SHOWN:
                terminalreporter.line(f"{seconds:6.2f} {name}")
        gigabytes = max(w["peak"] for w in self.workers) / 1e9
        count, most = sum(w["rounds"] for w in self.workers), self.config.getoption("most_rounds")
        bound = f"; at most {most} may be" if most else ""
        terminalreporter.line(
            f"{sum(self.spent.values()):.0f} processor seconds of tests; a process took at most "
            f"{gigabytes:.2f} GB; {count} programs of rounds were compiled{bound}"
        )
