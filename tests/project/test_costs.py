"""The bounds of what tests cost, and of how long one takes, on a small suite."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# far above the bounds, which are wider on a slow or busy machine
SUITE = """
import time
import pytest

def rounds(x):
    return x + 1

def busy(seconds=0.6):
    begun = time.process_time()
    while time.process_time() < begun + seconds:
        pass

@pytest.fixture(scope="module")
def inner():
    busy(1.2)

@pytest.fixture(scope="module")
def outer(request):
    busy(0.1)
    request.getfixturevalue("inner")

def test_busy():
    busy()

@pytest.mark.slow
def test_slow():
    busy()

def test_fixtures(outer):
    pass

def test_rounds():
    import jax
    for x in (1, 1.0):
        jax.jit(rounds)(x)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "test_suite.py"
    path.write_text(SUITE)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "lines", "passed"),
    [
        (
            "-n0 --most-seconds=0.15 --most-rounds=2",
            ["::test_busy took 0.6 s of", "::inner, a fixture took 1.2 s of"],
            2,
        ),
        (
            "-n1 --most-seconds=2 --most-rounds=1",
            ["2 programs of rounds were compiled; at most 1", "0.10 ::outer, a fixture"],
            4,
        ),
    ],
)
def test_a_suite_fails_that_costs_more(
    options: str, lines: list[str], passed: int, suite: Path
) -> None:
    printed = failed(suite, *options.split())
    for line in lines:
        assert line in printed
    assert f"{passed} passed" in printed
    for name in ("test_slow", "outer, a fixture"):
        assert f"::{name} took" not in printed


def failed(suite: Path, *options: str) -> str:
    """What pytest prints of a suite with a failure."""
    of_tests = ["-c", str(ROOT / "pyproject.toml"), str(ROOT / "tests/conftest.py"), str(suite)]
    command = [sys.executable, "-m", "pytest", "-pno:cacheprovider", *options, *of_tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    return done.stdout


@pytest.mark.slow
def test_a_test_that_never_ends_is_named_and_the_others_run(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(
        "def test_endless():\n    while True:\n        pass\n\ndef test_other(): pass\n"
    )
    printed = failed(suite, "-n1", "-o", "faulthandler_timeout=1")
    assert re.search("crashed while running .*::test_endless", printed)
    assert "1 failed, 1 passed" in printed
