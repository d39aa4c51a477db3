"""Audits catch broken mechanisms and leave right ones alone."""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import add_scaled
from fedprox.devices import programs
from fedprox.parts.privacy import examples, setting
from fedprox.parts.privacy.numerics import norm_bound, standard_normals
from fedprox.parts.privacy.setting import Unit, clip_to
from tests.test_cli import status
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


def linear() -> fp.Model:
    """A model whose programs no other has."""
    return fp.Model(lambda _: np.zeros(SIZE), lambda w, x: x @ w, lambda z, y: -z * y, None)


UNBROKEN = linear()
"""The model of audits that replace no function, which share programs."""


def audit(
    unit: Unit = "client",
    z: float = 4.0,
    method: fp.Algorithm | None = None,
    model: fp.Model | None = None,
    **changes: Any,
) -> fp.PrivacyAudit:
    x = np.random.default_rng(0).normal(size=(100, SIZE)).astype(np.float32)
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
    return fp.audit_privacy(federation, model or linear(), method or fp.fedavg(), **given | changes)


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
OF_ROWS: dict[Broken, dict[str, Any]] = {no_rounding_errors: {"z": 6.0, "canaries": 900}}
CASES = [(unit, broken) for unit in get_args(Unit) for broken in BROKEN]
CASES += [("example", broken) for broken in OF_ROWS]


@pytest.mark.parametrize(
    "case",
    mostly_slow(CASES, ("client", little_noise)),
    ids=lambda case: f"{case[0]}, {case[1].__name__}",
)
def test_a_broken_mechanism_is_caught(case: tuple[Unit, Broken], monkeypatch: Patch) -> None:
    unit, broken = case
    broken(monkeypatch)
    found = audit(unit, **(BROKEN | OF_ROWS)[broken])
    assert found.refuted
    assert found.lower_bound > found.epsilon
    assert "does not hold" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("unit", get_args(Unit))
@pytest.mark.parametrize("setting", [{}, MANY, SAMPLED, {"rounds": 4}])
@pytest.mark.parametrize("seed", range(3))
def test_a_right_mechanism_is_not_refuted(unit: Unit, setting: dict[str, Any], seed: int) -> None:
    found = audit(unit, seed=seed, model=UNBROKEN, **setting)
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
        ({"rounds": 0}, "rounds = 0"),
        ({"solver": None}, "solver = None"),
        ({"solver": fp.Solver([0.1, 0.2], 1, steps=1)}, "fedavg: 2 sweep points"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(fp.InputError, match=named):
        audit(**changes)


CORRELATED = fp.Privacy(1.0, noise_multiplier=4.0, mechanism="banded")
OTHERS: dict[str, tuple[fp.Algorithm, dict[str, Any]]] = {
    "a method with server and client state": (fp.scaffold(), {"rounds": 2}),
    "a first exchange": (fp.feddane(mu=0.1), {}),
    "correlated noise": (
        fp.fedavg(),
        {"privacy": CORRELATED, "cohort": fp.Cohort(2, "cyclic", min_separation=2), "rounds": 2},
    ),
    "an adaptive norm": (
        fp.fedavg(),
        {"privacy": fp.Privacy(1.0, noise_multiplier=4.0, adaptive_clip=fp.AdaptiveClip())},
    ),
    "an initial model": (fp.fedavg(), {"initial": np.ones(SIZE, np.float32), "unit": "example"}),
    "a schedule": (
        fp.fedprox(mu=0.1),
        {"solver": fp.Solver(lambda t: 0.1 / (t + 1), 2, epochs=1), "unit": "example", "rounds": 2},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_runs_are_audited(name: str, monkeypatch: Patch) -> None:
    method, changes = OTHERS[name]
    right = audit(method=method, model=UNBROKEN, **changes)
    assert right.lower_bound < right.epsilon < right.most
    no_noise(monkeypatch)
    assert audit(method=method, **changes).refuted


FILE = """
rounds = 1
data = {name = "synthetic", clients = 30}
cohort = {clients_per_round = 30}
solver = {learning_rate = 0.01, batch_size = 10, steps = 1}

[[method]]
name = "fedprox"
mu = [0.1, 1.0]
"""
PRIVATE = "\nprivacy = {clip = 1.0, noise_multiplier = 4.0}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "private.toml"
    path.write_text(PRIVATE + FILE)
    return path


@pytest.mark.slow
def test_the_command_audits_each_sweep_point(
    file: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("audit-privacy", file, "--canaries", "400") == 0
    printed = capsys.readouterr().out
    assert re.findall("^fedprox mu=.*", printed, re.MULTILINE) == [
        "fedprox mu=0.1",
        "fedprox mu=1",
    ]
    assert printed.count("epsilon by canaries (at least)  0.") == 2
    no_noise(monkeypatch)
    monkeypatch.setattr(programs, "PROGRAMS", OrderedDict())
    assert status("audit-privacy", file, "--canaries", "400") == 1
    assert capsys.readouterr().out.count("The guarantee does not hold") == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--canaries", "3"], "canaries = 3"),
        (["--set", "rounds=0"], "rounds = 0"),
        (["--set", "privacy.noise_multiplier=0"], "without noise"),
    ],
)
def test_the_command_names_bad_input(
    file: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("audit-privacy", file, *arguments) == 2
    assert named in last_line(capsys)


def test_the_command_needs_privacy(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(FILE)
    assert status("audit-privacy", file) == 2
    assert "the section [privacy] is missing" in last_line(capsys)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    return str(line)
