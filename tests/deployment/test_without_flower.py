"""What is said where Flower is missing or of another version."""

import importlib.metadata

import pytest

from fedprox import InputError
from fedprox.deployment.flower import require_flower
from fedprox.errors import installing


@pytest.mark.parametrize("version", ["1.40.1", "1.43.0", "2.0"])
def test_another_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    line = f"flwr {version} is installed; deployment needs 1.41 or 1.42: {installing('flower')}"
    with pytest.raises(InputError) as caught:
        require_flower()
    assert str(caught.value) == line


def test_no_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(InputError) as caught:
        require_flower()
    assert str(caught.value) == f"deployment needs Flower: {installing('flower')}"
