"""Audits catch broken mechanisms and leave right ones alone."""

from collections.abc import Callable
from typing import Any, get_args

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

SIZE, CANARIES = 1024, 400
Patch = pytest.MonkeyPatch


def scaled_noise(patch: Patch, factor: Callable[[jax.Array], Any]) -> None:
    def changed(words: jax.Array, purpose: int, tree: Any) -> Any:
        by = factor(words)
        return jax.tree.map(lambda a: by * a, standard_normals(words, purpose, tree))

    for module in (setting, examples):
        patch.setattr(module, "standard_normals", changed)


def no_noise(patch: Patch) -> None:
    scaled_noise(patch, lambda _: 0.0)


def little_noise(patch: Patch) -> None:
    scaled_noise(patch, lambda _: 0.1)


def noise_in_half_of_the_rounds(patch: Patch) -> None:
    scaled_noise(patch, lambda words: words[0] % 2)


def noise_over_all(patch: Patch) -> None:
    """Noise is divided by the number of clients or rows, ten times as large as a sample's."""
    private, completed = setting.private, examples.NoisedGradient.completed

    def of_clients(method: Any, privacy: Any, z: float, cohort: int, clients: int, _: Any) -> Any:
        return private(method, privacy, z * cohort / clients, cohort, clients)

    def of_rows(self: Any, gradient: Any, hparams: Any, size: Any, key: Any) -> Any:
        del size
        return completed(self, gradient, hparams, CANARIES, key)

    patch.setattr(setting, "private", of_clients)
    patch.setattr(examples.NoisedGradient, "completed", of_rows)


def no_clipping(patch: Patch) -> None:
    patch.setattr(setting, "clip_to", lambda _, tree: (tree, norm_bound(tree)))
    whole = examples.clipped_sum
    patch.setattr(examples, "clipped_sum", lambda loss, _, *more: whole(loss, 1e6, *more))


def clipped_mean(patch: Patch) -> None:
    """The mean of all clients or of groups of 50 rows is clipped, and noised as if each were."""
    patch.setattr(setting, "clip_to", lambda _, tree: (tree, norm_bound(tree)))
    patch.setattr(setting, "add_scaled", lambda a, *more: add_scaled(clip_to(1.0, a)[0], *more))
    patch.setattr(examples, "clipped_sum", sum_of_clipped_means)


def sum_of_clipped_means(loss: Any, clip: float, params: Any, *given: Any) -> Any:
    gradients = jax.vmap(lambda *each: jax.grad(loss)(params, *each))(*given)

    def total(real: jax.Array) -> Any:
        def of_groups(a: jax.Array) -> jax.Array:
            kept = jnp.where(real.reshape(-1, *[1] * (a.ndim - 1)) & (jnp.abs(a) < 1e9), a, 0.0)
            kept = jnp.pad(kept, [(0, -len(a) % 50)] + [(0, 0)] * (a.ndim - 1))
            return kept.reshape(-1, 50, *a.shape[1:]).mean(axis=1)

        clipped = jax.vmap(lambda tree: clip_to(clip, tree)[0])(jax.tree.map(of_groups, gradients))
        return jax.tree.map(lambda a: 50 * a.sum(axis=0), clipped)

    return total


def no_clipping_beyond_overflow(patch: Patch) -> None:
    def norm(tree: Any) -> jax.Array:
        bound = norm_bound(tree)
        return jnp.where(jnp.isfinite(bound), bound, 0.0)

    for module in (setting, examples):
        patch.setattr(module, "norm_bound", norm)
    # a client is screened, too
    patch.setattr(fp.Privacy, "reduce", lambda self, each: each._replace(fixed=self.of_clients))


def no_rounding_errors(patch: Patch) -> None:
    """The norm of a sum of products as in a textbook, without bounds of what rounding does."""

    def norm(a: jax.Array, b: jax.Array) -> jax.Array:
        grams = [jnp.einsum("bpm,bqm->bpq", each, each) for each in (a, b)]
        square = (grams[0] * grams[1]).sum(axis=(1, 2))
        return jnp.sqrt(jnp.maximum(square, 0.0))

    patch.setattr(examples, "product_bound", norm)


def audit(unit: Unit = "client", z: float = 4.0, **changes: Any) -> fp.PrivacyAudit:
    x = np.random.default_rng(0).normal(size=(100, SIZE)).astype(np.float32)
    model = fp.Model(  # whose programs no other run has
        lambda _: jnp.zeros(SIZE), lambda w, x: x @ w, lambda z, y: -z * y, None
    )
    given: dict[str, Any] = {
        "solver": fp.Solver(0.1, "all", steps=1),
        "cohort": fp.Cohort(10),
        "rounds": 1,
        "privacy": fp.Privacy(1.0, noise_multiplier=z, unit=unit),
        "canaries": CANARIES,
        "progress": False,
    }
    clients = [(rows, np.ones(len(rows), np.float32)) for rows in np.split(x, 10)]
    federation = fp.Federation.from_arrays(clients)
    return fp.audit_privacy(federation, model, fp.fedavg(), **given | changes)


MANY: dict[str, Any] = {"z": 16.0, "canaries": 900}
"""Errors that one canary of eight shows."""

SAMPLED: dict[str, Any] = {
    "cohort": fp.Cohort(1, "bernoulli"),
    "solver": fp.Solver(0.1, 1, steps=1),
    "rounds": 10,
    "z": 2.0,
}
"""One client or row of ten takes part in a round."""

Broken = Callable[[Patch], None]
BROKEN: dict[Broken, dict[str, Any]] = {
    no_noise: {},
    little_noise: {},
    noise_in_half_of_the_rounds: {"rounds": 6},
    noise_over_all: SAMPLED,
    no_clipping: SAMPLED,
    clipped_mean: {},
    no_clipping_beyond_overflow: MANY,
}
CASES = [(unit, broken) for unit in get_args(Unit) for broken in BROKEN]
OF_ROWS = ("example", no_rounding_errors)


@pytest.mark.parametrize(
    "case",
    mostly_slow([*CASES, OF_ROWS], ("client", little_noise), ("example", little_noise)),
    ids=lambda case: f"{case[0]}, {case[1].__name__}",
)
def test_a_broken_mechanism_is_caught(case: tuple[Unit, Broken], monkeypatch: Patch) -> None:
    unit, broken = case
    broken(monkeypatch)
    found = audit(unit, **BROKEN.get(broken, MANY))
    assert found.refuted
    assert found.lower_bound > found.epsilon
    assert "does not hold" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("unit", get_args(Unit))
@pytest.mark.parametrize("setting", [{}, MANY, SAMPLED, {"rounds": 4}])
@pytest.mark.parametrize("seed", range(3))
def test_a_right_mechanism_is_not_refuted(unit: Unit, setting: dict[str, Any], seed: int) -> None:
    found = audit(unit, seed=seed, **setting)
    assert not found.refuted
    assert found.lower_bound <= min(found.epsilon, found.most)


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
