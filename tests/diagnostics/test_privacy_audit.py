"""Audits catch broken mechanisms and leave right ones alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import add_scaled
from fedprox.parts.privacy import examples, setting
from fedprox.parts.privacy.numerics import norm_bound, standard_normals
from fedprox.parts.privacy.setting import Unit, clip_to
from tests.variants import mostly_slow

SIZE = 128
Patch = pytest.MonkeyPatch


def little_noise(patch: Patch) -> None:
    def tenth(words: jax.Array, purpose: int, tree: Any) -> Any:
        return jax.tree.map(lambda a: a / 10, standard_normals(words, purpose, tree))

    for module in (setting, examples):
        patch.setattr(module, "standard_normals", tenth)


def no_clipping(patch: Patch) -> None:
    patch.setattr(setting, "clip_to", lambda _, tree: (tree, norm_bound(tree)))
    whole = examples.clipped_sum
    patch.setattr(examples, "clipped_sum", lambda loss, _, *more: whole(loss, 1e6, *more))


def clipped_mean(patch: Patch) -> None:
    patch.setattr(setting, "clip_to", lambda _, tree: (tree, norm_bound(tree)))
    patch.setattr(setting, "add_scaled", lambda a, *more: add_scaled(clip_to(1.0, a)[0], *more))


def right(patch: Patch) -> None:
    del patch


def audit(unit: Unit = "client", **changes: Any) -> fp.PrivacyAudit:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, SIZE)).astype(np.float32)
    model = fp.Model(  # whose programs no other run has
        lambda _: jnp.zeros(SIZE), lambda w, x: x @ w, lambda z, y: -z * y, None
    )
    given: dict[str, Any] = {
        "solver": fp.Solver(0.1, 20 if unit == "example" else "all", steps=1),
        "cohort": fp.Cohort(4),
        "rounds": 1 if unit == "client" else 10,
        "privacy": fp.Privacy(1.0, noise_multiplier=4.0, delta=1e-5, unit=unit),
        "canaries": 100,
        "progress": False,
    }
    clients = [(x[k : k + 2], np.ones(2, np.float32)) for k in range(0, 8, 2)]
    federation = fp.Federation.from_arrays(clients)
    return fp.audit_privacy(federation, model, fp.fedavg(), **given | changes)


BROKEN = little_noise, no_clipping, clipped_mean


@pytest.mark.parametrize("broken", mostly_slow({each: each for each in BROKEN}, little_noise))
def test_a_broken_mechanism_of_clients_is_caught(
    broken: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    found = audit()
    assert found.refuted
    assert found.lower_bound > found.epsilon
    assert "does not hold" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [little_noise, no_clipping])
def test_a_broken_mechanism_of_rows_is_caught(
    broken: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    broken(monkeypatch)
    found = audit("example")
    assert found.lower_bound > found.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_right_mechanism_is_not_refuted(unit: Unit, seed: int) -> None:
    found = audit(unit, seed=seed)
    assert found.lower_bound <= found.epsilon
    assert found.lower_bound <= found.most
    assert not found.refuted


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"privacy": fp.Privacy(1.0, noise_multiplier=0.0)}, "without noise"),
        ({"privacy": None}, "privacy = None"),
        ({"canaries": 3}, "canaries = 3"),
        ({"confidence": 1.5}, "confidence = 1.5"),
        ({"stop_at_target": "any"}, "stop_at_target"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(fp.InputError, match=named):
        audit(**changes)
