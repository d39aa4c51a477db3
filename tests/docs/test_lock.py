"""The documentation's environment is the package's, with more packages."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_the_locks_agree_on_what_they_share() -> None:
    package, docs = pins("requirements.lock"), pins("requirements-docs.lock")
    shared = package.keys() & docs.keys()
    assert {"jax", "numpy", "matplotlib", "pandas"} <= shared
    assert {name: docs[name] for name in shared} == {name: package[name] for name in shared}


def test_the_lock_has_what_the_extra_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    section = re.search(r"^docs = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    assert section
    names = re.findall(r'"([\w-]+)>=', section[1])
    assert len(names) >= 5
    assert set(names) <= pins("requirements-docs.lock").keys()
