"""Parametrized tests of which `make test` runs some variants and `make test-slow` the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """The cases of a test, each marked slow unless it is one of `fast`."""
    cases = list(cases)
    assert set(fast) <= set(cases)
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]
