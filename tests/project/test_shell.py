"""The files around the package agree with it."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedprox import __version__
from tests import methods
from tests.byhand import CLIENTS, START, beside_the_oracle

ROOT = Path(__file__).parents[2]

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()

NEW = {"src/fedprox/algorithms/momentum.py", "tests/algorithms/test_momentum.py"}
"""Files that the contributor of its example would write."""


def test_the_citation_and_the_changelog_name_the_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert re.fullmatch(rf"{re.escape(__version__)} \((\d{{4}}-\d\d-\d\d|unreleased)\)", newest[1])


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-docs.lock"])
def test_the_lock_has_versions_with_hashes_and_nothing_else(name: str) -> None:
    text = (ROOT / name).read_text()
    pins = re.sub(r"\A(#.*\n)+", "", text)
    pin = r"[\w.-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"({pin})+", pins)
    assert "://" not in text


def test_make_installs_locks_by_their_hashes() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    installs = [line for line in lines if re.search(r" -r requirements\S*\.lock", line)]
    assert len(installs) == 2
    assert all("--require-hashes" in line for line in installs)


def test_the_paths_in_contributing_exist() -> None:
    named = set(re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]*)`", CONTRIBUTING))
    assert named > NEW
    assert not [path for path in named - NEW if not (ROOT / path).exists()]


def test_the_method_in_contributing_is_the_oracles(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)
    module = ModuleType("momentum")
    monkeypatch.setitem(sys.modules, "momentum", module)
    assert max(map(len, source.splitlines())) <= 100  # as in the project's own files
    exec(source, module.__dict__)
    beside_the_oracle(
        module.momentum(beta=[0.5, 0.9]),
        lambda hparams, _: methods.Ruled(
            methods.FedProx(START, CLIENTS, drop=True), methods.Momentum(1.0, hparams["beta"])
        ),
    )
