"""Which tests reach which lines, and running some of them on a mutant in a child."""

import importlib
import inspect
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.mutants.changes import Mutant

NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)
"""Exit code without tests to run."""

OPTIONS = [
    *("-q", "-n0", "-pno:cacheprovider", "-mnot slow and not network"),
    "-Wignore::pytest.PytestAssertRewriteWarning",
]

STARTING = 60.0
"""Processor seconds for imports and compilation; a mutant that takes more is taken to hang."""


class Session:
    """What a child tells pytest: one cache of compiled programs for all, and the tests to run.

    Args:
        programs: The folder of compiled programs.
        chosen: Tests, or files of which all tests are run; None for all tests of all files.
    """

    def __init__(self, programs: Path, chosen: list[str] | None = None) -> None:
        self.programs, self.chosen = programs, chosen

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        result = yield
        if fixturedef.argname == "_own_cache":
            from fedprox import use_compilation_cache

            use_compilation_cache(self.programs)
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.chosen is not None:
            of: dict[str, list[pytest.Item]] = {}
            for item in items:
                of.setdefault(item.nodeid, []).append(item)
                of.setdefault(item.nodeid.partition("::")[0], []).append(item)
            # a mutant may change the names of tests, which hold those of methods
            items[:] = [item for name in self.chosen for item in of.get(name, ())]


Lines = dict[str, set[int]]
"""The numbers of the lines that are reached, by file."""


class Reach:
    """Records the library's lines that each test reaches, and the test's processor seconds.

    What a fixture of several tests reaches counts for each of them.
    """

    def __init__(self, package: str, file: Path) -> None:
        self.package, self.file = f"/{package}/", file
        self.tests: dict[str, Any] = {}
        self.failed: set[str] = set()
        self.lines: Lines = {}
        self.fixtures: dict[tuple[str, str], Lines] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before, self.lines = self.lines, {}
        result = yield
        if fixturedef.scope != "function":
            self.fixtures[fixturedef.baseid, fixturedef.argname] = self.lines
        add_lines(before, self.lines)
        self.lines = before
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.lines = {}
        from tests.costs import let_go  # after the fork

        let_go()  # a program that is kept is not traced, so that its lines would not be reached

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            del event, arg
            file = frame.f_code.co_filename.partition(self.package)[2]
            if not file:
                return None

            def line(frame: FrameType, event: str, arg: Any) -> Any:
                del event, arg
                self.lines.setdefault(file, set()).add(frame.f_lineno)
                return line

            return line

        start = time.process_time()
        threading.settrace(trace)
        sys.settrace(trace)
        result = yield
        sys.settrace(None)
        threading.settrace(None)
        for (node, name), lines in self.fixtures.items():
            if item.nodeid.startswith(node) and name in getattr(item, "fixturenames", ()):
                add_lines(self.lines, lines)
        reached = {file: sorted(numbers) for file, numbers in self.lines.items()}
        self.tests[item.nodeid] = {"seconds": time.process_time() - start, "lines": reached}
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = {name: test for name, test in self.tests.items() if name not in self.failed}
        self.file.write_text(json.dumps(passed))


def add_lines(lines: Lines, others: Lines) -> None:
    """Add other lines to some."""
    for file, numbers in others.items():
        lines.setdefault(file, set()).update(numbers)


class Exchange:
    """Tries many mutants in one process: the code of a function is exchanged, and put back.

    This is much faster than a child for each, but right only for functions that are not compiled,
    and whose results are not kept.

    Args:
        module: The module.
        tried: Its mutants; those of what is outside functions are not tried.
        found: File for a line of JSON for each mutant that was tried: [change, test that failed].
    """

    def __init__(self, module: str, tried: list[Mutant], found: Path) -> None:
        self.module, self.tried, self.found = module, tried, found
        self.failed = ""

    @pytest.hookimpl
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items, module = list(session.items), importlib.import_module(self.module)
        assert not self.first_failure(session, items), f"without a mutant: {self.failed}"
        signal.signal(signal.SIGVTALRM, _hangs)
        with self.found.open("w") as out:
            for mutant in self.tried:
                where = mutant.change.partition(":")[0]
                function, code = _function(module, where), _code(mutant.source, where)
                if function is None or code is None:
                    continue
                before, function.__code__ = function.__code__, code
                try:
                    test = self.first_failure(session, items)
                finally:
                    function.__code__ = before
                # the next mutant is probably in the same function
                items.sort(key=lambda item: item.nodeid != test)
                print(json.dumps([mutant.change, test]), file=out, flush=True)
        assert not self.first_failure(session, items), f"a mutant is still there: {self.failed}"
        return True

    def first_failure(self, session: Any, items: list[pytest.Item]) -> str:
        """The first of some tests that fails; empty if all pass."""
        self.failed = ""
        for item in items:
            signal.setitimer(signal.ITIMER_VIRTUAL, STARTING)
            # the fixtures of the session are kept
            item.ihook.pytest_runtest_protocol(item=item, nextitem=session)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if self.failed:
                break
        return self.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def _hangs(*_: object) -> None:
    raise TimeoutError


def _function(module: ModuleType, where: str) -> FunctionType | None:
    """The outermost function of a place such as `Class.method.inner`."""
    found: Any = module
    for name in where.split("."):
        found = getattr(found, name, None)
        function = inspect.unwrap(getattr(found, "fget", found))
        if isinstance(function, FunctionType):
            return function
    return None


def _code(source: str, where: str) -> CodeType | None:
    """The code of the outermost function of a place, compiled from a module's source."""
    code = compile(source, "mutant", "exec")
    for name in where.split("."):
        inner = (c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
        code = next(inner, code)
        if code.co_flags & inspect.CO_OPTIMIZED:  # a function, and no class
            return code
    return None


def run_tests(
    paths: list[str], plugins: list[object], seconds: float, log: Path, *options: str
) -> int:
    """Run tests in a child; pytest's exit code, or a signal's negative number.

    Args:
        paths: Files and folders of tests.
        plugins: Plugins of pytest.
        seconds: Processor seconds of the tests without a mutant.
        log: What the child prints.
        options: More options of pytest.
    """
    child = os.fork()
    if not child:
        _child(paths, plugins, int(3 * seconds + STARTING), log, options)
    deadline = time.monotonic() + 20 * (seconds + STARTING)
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return -signal.SIGALRM
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _child(
    paths: list[str], plugins: list[object], seconds: int, log: Path, options: tuple[str, ...]
) -> None:
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        with log.open("wb") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        base = f"--basetemp={Path.cwd()}/tmp"
        code = int(pytest.main([*OPTIONS, *options, base, *paths], plugins=plugins))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
