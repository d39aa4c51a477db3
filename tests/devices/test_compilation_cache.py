"""Compiled programs are kept for the next call, where the user has not set JAX's cache."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import fedprox as fp
from fedprox.devices.compilation_cache import use_compilation_cache, use_default_compilation_cache


@pytest.fixture
def unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """JAX without a folder for compiled programs; the folder that fedprox would use."""
    config: Any = jax.config
    before = config.jax_compilation_cache_dir
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield tmp_path / "xla"
    jax.config.update("jax_compilation_cache_dir", before)
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def train() -> None:
    federation = fp.Federation.from_arrays([(np.ones((2, 1)), [0, 1])] * 2)
    model = fp.Model(lambda _: np.zeros((1, 2), np.float32), lambda w, x: x @ w)
    evaluation = fp.Evaluation(gradients=False)
    options: dict[str, Any] = {"cohort": fp.Cohort(2), "rounds": 1, "evaluation": evaluation}
    fp.simulate(federation, model, fp.fedavg(), solver=fp.Solver(0.1, "all", steps=1), **options)


def test_the_same_call_twice_compiles_once(unset: Path) -> None:
    found: Counter[str] = Counter()

    def listen(event: str, **_: object) -> None:
        found[event.rpartition("/")[2]] += 1

    jax.numpy.ones(3) * 2  # a program compiled before the folder is known
    train()
    assert any(unset.iterdir())
    jax.monitoring.register_event_listener(listen)
    try:
        train()
    finally:
        jax.monitoring.unregister_event_listener(listen)
    assert found["cache_hits"] >= 2  # rounds and evaluation
    assert found["cache_misses"] == 0


def test_a_folder_behind_two_links_is_one(unset: Path, tmp_path: Path) -> None:
    """JAX's keys of programs hold the folder's name, so that programs would be compiled again."""
    config: Any = jax.config
    folders = []
    for name in ("one", "other"):
        link = tmp_path / name
        link.symlink_to(unset.parent, target_is_directory=True)
        use_compilation_cache(link / unset.name)
        folders.append(config.jax_compilation_cache_dir)
    assert folders[0] == folders[1]


def test_jax_settings_are_left_as_they_are(unset: Path, tmp_path: Path) -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    use_default_compilation_cache()
    assert not unset.exists()
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    use_default_compilation_cache()
    config: Any = jax.config
    assert config.jax_compilation_cache_dir == str(tmp_path / "own")
    assert not unset.exists()
