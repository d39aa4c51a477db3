"""Correlated noise: matrix, sensitivity and stream, against dense computations and libraries."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.deployment.payload import sent_state_of
from fedprox.deployment.wire import Securing
from fedprox.engine.planning.batch_plan import round_key
from fedprox.parts.compatible import Case, check_case
from fedprox.parts.part import random_key
from fedprox.parts.privacy import setting
from fedprox.parts.privacy.accounting import (
    Mechanism,
    as_one,
    calibrated_mechanism,
    check_mechanism,
    epsilon_of,
    epsilon_together,
    statement,
)
from fedprox.parts.privacy.correlated import (
    Correlation,
    Strategy,
    check_strategy,
    column_norm,
    error,
    last_deviation,
    reach,
    strategy_of,
    streaming,
)
from fedprox.parts.privacy.numerics import MESSAGES, standard_normals
from fedprox.protocol.method import checked_methods
from fedprox.protocol.protocol import Protocol
from tests.quadratics import quadratic_federation, quadratic_model, random_quadratics

T, B = 8, 3
"""Rounds of a run, and of one of a client to its next."""

GIVEN: dict[Correlation, Strategy] = {
    "independent": Strategy("independent", B, T),
    "banded": Strategy("banded", B, T, (0.75, 0.5, 0.25)),
    "blt": Strategy("blt", B, T, (0.5, 0.125), (0.75, 0.25)),
}
"""Strategies that are exact in single precision, none of them optimal."""

CORRELATED: tuple[Correlation, ...] = ("banded", "blt")


def dense(strategy: Strategy) -> np.ndarray:
    """The whole matrix, from the definition of its first column, divided by its norm."""
    rounds = strategy.rounds
    column = np.zeros(rounds)
    if strategy.kind == "blt":
        column[0] = 1.0
        for j in range(1, rounds):
            pairs = zip(strategy.scale, strategy.decay, strict=True)
            column[j] = sum(scale * decay ** (j - 1) for scale, decay in pairs)
    else:
        column[: len(strategy.scale)] = strategy.scale
    matrix = np.zeros((rounds, rounds))
    for t in range(rounds):
        matrix[t:, t] = column[: rounds - t]
    return matrix / np.linalg.norm(column)


def patterns(rounds: int, separation: int) -> Iterator[list[int]]:
    """All sets of rounds in which a client can take part."""
    for count in range(rounds + 1):
        for taken in itertools.combinations(range(rounds), count):
            if all(b - a >= separation for a, b in itertools.pairwise(taken)):
                yield list(taken)


@pytest.mark.parametrize("kind", get_args(Correlation))
def test_the_sensitivity_is_that_of_the_worst_pattern(kind: Correlation) -> None:
    """By brute force over all rounds of a client, and messages in the same or opposite direction.

    The norm is convex in each message, so it is largest where each has the full length.
    """
    matrix = dense(GIVEN[kind])
    for rounds in range(1, T + 1):
        part, worst, most = matrix[:rounds, :rounds], 0.0, 0.0
        for taken in patterns(rounds, B):
            for signs in itertools.product((1.0, -1.0), repeat=len(taken)):
                moved = part[:, taken] @ np.array(signs)
                worst = max(worst, float(np.linalg.norm(moved)))
                most = max(most, float(np.abs(moved).max(initial=0.0)))
        assert reach(GIVEN[kind], rounds) == pytest.approx((worst, most), rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    column=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=6),
    separation=st.integers(1, 4),
    rounds=st.integers(6, 9),
)
def test_the_sensitivity_of_any_falling_column(
    column: list[float], separation: int, rounds: int
) -> None:
    """Also with more diagonals than the separation."""
    strategy = Strategy("banded", separation, rounds, tuple(sorted(column, reverse=True)))
    check_strategy(strategy)
    matrix = dense(strategy)
    worst = max(
        np.linalg.norm(matrix[:, each].sum(axis=1)) for each in patterns(rounds, separation)
    )
    assert reach(strategy, rounds).all == pytest.approx(worst, rel=1e-12)


@pytest.mark.parametrize("kind", CORRELATED)
def test_the_errors_are_those_of_the_dense_matrix(kind: Correlation) -> None:
    strategy = GIVEN[kind]
    inverse = np.linalg.inv(dense(strategy))
    sums = np.tril(np.ones((T, T))) @ inverse
    assert error(strategy) == pytest.approx(math.sqrt((sums**2).sum(axis=1).mean()))
    assert last_deviation(strategy) == pytest.approx(np.linalg.norm(inverse[-1]))
    np.testing.assert_allclose(
        strategy.inverse(T) * column_norm(strategy), inverse[:, 0], atol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", CORRELATED)
def test_sensitivity_and_column_are_those_of_jax_privacy(kind: Correlation) -> None:
    from jax_privacy.matrix_factorization import buffered_toeplitz, sensitivity, toeplitz

    strategy, taken = GIVEN[kind], -(-T // B)
    with jax.enable_x64():
        column = jnp.array(strategy.column(T))
        if kind == "blt":
            theirs = buffered_toeplitz.BufferedToeplitz.build(strategy.decay, strategy.scale)
            np.testing.assert_allclose(theirs.toeplitz_coefs(T), column, rtol=1e-12)
        squared = toeplitz.minsep_sensitivity_squared(column, B, taken)
        general = sensitivity.get_min_sep_sensitivity_upper_bound(
            toeplitz.materialize_lower_triangular(column), B, taken
        )
    ours = reach(strategy, T).all * column_norm(strategy)
    assert ours == pytest.approx(math.sqrt(squared), rel=1e-9)
    assert ours <= general * (1 + 1e-9)


@pytest.mark.parametrize("kind", CORRELATED)
def test_the_stream_is_the_inverse_of_the_matrix(kind: Correlation) -> None:
    strategy, drawn = GIVEN[kind], np.random.default_rng(0).normal(size=(T, 3)).astype(np.float32)
    matrix = streaming(strategy)

    def all_rounds(normals: jax.Array) -> jax.Array:
        def step(state: Any, z: jax.Array) -> Any:
            noise, state = matrix.multiply_next(z, state)
            return state, noise

        return jax.lax.scan(step, matrix.init_multiply(normals[0]), normals)[1]

    streamed = column_norm(strategy) * np.asarray(jax.jit(all_rounds)(drawn))
    expected = np.linalg.inv(dense(strategy)) @ drawn.astype(float)
    np.testing.assert_allclose(streamed, expected, rtol=1e-5, atol=1e-6)


A, CENTRES = random_quadratics(0, 2 * B, 3)
CLIP, Z = 0.5, 2.0


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strategies that take no time."""

    def strategy(kind: Correlation, separation: int, rounds: int) -> Strategy:
        return GIVEN[kind]._replace(separation=separation, rounds=rounds)

    monkeypatch.setattr(setting, "strategy_of", strategy)


def runs(privacy: fp.Privacy | None, methods: Any = None, **others: Any) -> list[fp.Run]:
    """Runs on quadratics, two of six clients in a round and three rounds apart."""
    given: dict[str, Any] = {
        "federation": quadratic_federation(A, CENTRES),
        "model": quadratic_model(np.array([1.0, -1.0, 2.0])),
        "solver": fp.Solver(0.1, "all", steps=2),
        "cohort": fp.Cohort(2, sampling="cyclic", min_separation=B),
        "rounds": T,
        "evaluation": fp.Evaluation(gradients=False),
        "seed": 3,
    }
    whole = given | others
    return fp.simulate(methods=methods or fp.fedavg(), privacy=privacy, progress=False, **whole)


def private(mechanism: Correlation, **others: Any) -> fp.Privacy:
    given: dict[str, Any] = {"noise_multiplier": Z, "delta": 1e-3}
    return fp.Privacy(CLIP, mechanism=mechanism, **(given | others))


def shared(**others: Any) -> Protocol:
    """The protocol of such runs, without privacy."""
    given: dict[str, Any] = {
        "federation": quadratic_federation(A, CENTRES),
        "model": quadratic_model(np.zeros(3)),
        "solver": fp.Solver(0.1, "all", steps=2),
        "cohort": fp.Cohort(2, sampling="cyclic", min_separation=B),
        "rounds": T,
        "seeds": (3,),
    }
    return Protocol(**(given | others))


def frozen() -> Any:
    """Clients whose models do not move: what is released is noise alone."""
    return {"solver": fp.Solver(1e-30, "all", steps=1)}


def normals(purpose: int, words: np.ndarray) -> np.ndarray:
    """The normal numbers of all rounds of seed 3, by the documented keys."""
    drawn = []
    for t in range(T):
        key = random_key(jnp.asarray(round_key(3, t)))
        own = jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])
        drawn.append(standard_normals(jax.random.key_data(own), purpose, np.zeros(3, np.float32)))
    return np.array(drawn)


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("kind", get_args(Correlation))
def test_the_noise_of_a_run_is_the_dense_one(kind: Correlation) -> None:
    """Each method and sweep point has its own."""
    methods = [fp.fedavg(), fp.fedprox(mu=[0.0, 1.0])]
    found = runs(private(kind), methods, **frozen(), evaluation=fp.Evaluation(gradients=False))
    protocol = replace(shared(**frozen()), privacy=private("independent"))
    words = [
        each
        for method in checked_methods(protocol, methods)
        for each in method.values["noise_words"]
    ]
    inverse = np.linalg.inv(dense(GIVEN[kind]))
    for run, own in zip(found, words, strict=True):
        noise = inverse @ normals(MESSAGES, own)
        moved = np.array([1.0, -1.0, 2.0]) + Z * CLIP / 2 * noise.sum(axis=0)
        np.testing.assert_allclose(run.params, moved, rtol=1e-5, atol=1e-5)
    assert len({tuple(np.asarray(run.params).tolist()) for run in found}) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("method", [fp.feddane(mu=0.5), fp.scaffold()])
def test_a_resumed_run_goes_on_with_its_noise(method: fp.Algorithm, tmp_path: Path) -> None:
    """It has the bits of one that was not interrupted."""

    def stop(record: fp.Record) -> None:
        if record.round == 5:
            raise KeyboardInterrupt

    whole = runs(private("banded"), method)
    first = fp.Checkpoints(tmp_path / "c", every=2)
    with pytest.raises(KeyboardInterrupt):
        runs(private("banded"), method, checkpoints=first, callbacks=[fp.Callback(on_record=stop)])
    again = fp.Checkpoints(tmp_path / "c", every=2, resume=True)
    resumed = runs(private("banded"), method, checkpoints=again)
    np.testing.assert_array_equal(resumed[0].params, whole[0].params)
    assert resumed[0].history == whole[0].history


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
def test_another_strategy_or_number_of_rounds_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved(*, resume: bool) -> fp.Checkpoints:
        return fp.Checkpoints(tmp_path / "c", every=2, resume=resume)

    runs(private("banded"), checkpoints=saved(resume=False), rounds=2)
    with pytest.raises(fp.InputError, match=r"the noise of privacy\.mechanism for 2 rounds"):
        runs(private("banded"), checkpoints=saved(resume=True), rounds=3)
    other = GIVEN["banded"]._replace(rounds=2, scale=(0.75, 0.5, 0.125))
    monkeypatch.setattr(setting, "strategy_of", lambda *_: other)
    with pytest.raises(fp.InputError, match=r"another comparison: privacy\.strategy = "):
        runs(private("banded"), checkpoints=saved(resume=True), rounds=2)


def mechanism(kind: Correlation, noise: float = Z, releases: int = 1) -> Mechanism:
    """What the runs above release."""
    return Mechanism(6, 2, "cyclic", None, noise, releases, 1e-3, "pld", GIVEN[kind])


@pytest.mark.parametrize("kind", get_args(Correlation))
@pytest.mark.parametrize("releases", [1, 2])
def test_epsilon_is_that_of_one_gaussian_mechanism(kind: Correlation, releases: int) -> None:
    for rounds in (1, B, B + 1, T):
        sensitivity = reach(GIVEN[kind], rounds).all * math.sqrt(releases)
        exact = dp_accounting.get_epsilon_gaussian(Z / sensitivity, 1e-3)
        found = epsilon_of(mechanism(kind, releases=releases), rounds)
        assert exact <= found <= exact * 1.002


def test_independent_noise_is_a_composition_of_as_many_rounds_as_a_client_has() -> None:
    each = mechanism("independent")
    for rounds in range(1, T + 1):
        everybody = Mechanism(6, 6, "bernoulli", None, Z, 1, 1e-3, "pld")
        assert epsilon_of(each, rounds) == pytest.approx(epsilon_of(everybody, -(-rounds // B)))


@pytest.mark.parametrize("kind", get_args(Correlation))
def test_the_noise_of_an_epsilon_is_the_smallest(kind: Correlation) -> None:
    found = calibrated_mechanism(mechanism(kind, 0.0), 2.0, T)
    assert 1.999 <= epsilon_of(found, T) <= 2.0
    assert epsilon_of(found._replace(noise_multiplier=0.999 * found.noise_multiplier), T) > 2.0


@pytest.mark.parametrize("kind", get_args(Correlation))
@pytest.mark.parametrize("first", [0, 2, 5])
def test_rounds_that_are_repeated_are_paid_with_the_most_that_a_client_moves(
    kind: Correlation, first: int
) -> None:
    """Rounds from `first` to 6 are released, then once more from a checkpoint, up to the end."""
    matrix, worst = dense(GIVEN[kind]), 0.0
    for taken in patterns(T, B):
        moved = matrix[:, taken].sum(axis=1)
        worst = max(worst, float(moved @ moved + moved[first:6] @ moved[first:6]))
    one, count = as_one(mechanism(kind), T + 6 - first)
    assert count == 1
    assert one.noise_multiplier <= Z / math.sqrt(worst)
    assert one.noise_multiplier >= 0.5 * Z / math.sqrt(worst)


def test_several_runs_are_composed_as_gaussian_mechanisms() -> None:
    both = ((mechanism("banded"), T), (mechanism("blt"), T))
    moved = sum((reach(GIVEN[kind], T).all / Z) ** 2 for kind in CORRELATED)
    exact = dp_accounting.get_epsilon_gaussian(moved**-0.5, 1e-3)
    assert exact <= epsilon_together(both, 1e-3) <= 1.005 * exact


def test_no_more_is_released_than_accounted_for() -> None:
    """The privacy loss of the worst client's moves in all rounds, with the noise as it is added."""
    strategy = GIVEN["blt"]
    covariance = np.linalg.inv(dense(strategy)) @ np.linalg.inv(dense(strategy)).T * Z**2
    worst = max(
        math.sqrt(moved @ np.linalg.solve(covariance, moved))
        for moved in (np.isin(np.arange(T), taken).astype(float) for taken in patterns(T, B))
    )
    distribution = privacy_loss_distribution.from_gaussian_mechanism(1 / worst)
    loss = distribution.get_epsilon_for_delta(1e-3)
    assert epsilon_of(mechanism("blt"), T) == pytest.approx(loss, rel=1e-3)


def test_the_statement_names_mechanism_and_separation() -> None:
    text = " ".join(statement(mechanism("banded"), T))
    assert "correlated noise of a banded Toeplitz matrix" in text
    assert "at most 3 rounds, at least 3 apart" in text
    assert "no amplification is counted" in text
    assert "one client's messages are replaced by ones that add nothing" in text
    assert "must stay secret" not in text


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "sampling": ({"cohort": fp.Cohort(2)}, r"cohort.sampling = \"uniform\" does not go with"),
    "norm": (
        {"privacy": private("blt", adaptive_clip=fp.AdaptiveClip())},
        "privacy.adaptive_clip does not go with privacy.mechanism",
    ),
    "unit": (
        {"privacy": private("blt", unit="example")},
        "does not go with privacy.unit.*, since a row may be in any two steps",
    ),
    "groups": (
        {"cohort": fp.Cohort(3, sampling="cyclic", min_separation=B)},
        "clients_per_round = 3; the federation has 6 clients, and cohort.min_separation = 3 makes "
        "groups of 2",
    ),
}


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    given, line = REFUSED[name]
    with pytest.raises(fp.InputError, match=line):
        runs(
            given.get("privacy", private("blt")),
            **{k: v for k, v in given.items() if k != "privacy"},
        )


@pytest.mark.usefixtures("fixed")
def test_nodes_that_add_noise_cannot_correlate_it() -> None:
    line = r"privacy\.mechanism = .blt. does not go with deployment\.secure, since nodes that add"
    quiet = fp.Evaluation(gradients=False)
    secure = Securing(threshold=3, bound=None, bits=32, honest=1, nodes=["a", "b", "c"])
    case = Case(shared(privacy=private("blt"), evaluation=quiet), secure=secure)
    with pytest.raises(fp.InputError, match=line):
        check_case(case)


@pytest.mark.usefixtures("fixed")
def test_a_first_exchange_has_correlated_noise_of_its_own() -> None:
    """Of noise alone: FedDANE's state has the mean gradient of the exchange."""
    given, like = fp.feddane(mu=0.5), np.zeros(3, np.float32)
    correlated = setting.Correlated.of(GIVEN["blt"], given, jax.ShapeDtypeStruct((3,), np.float32))
    method = setting.private(given, private("blt"), Z, 2, 6, correlated)
    assert method.first.exchange is not None
    drawn = np.random.default_rng(1).normal(size=(2, 3, 3)).astype(np.float32)
    state = method.server.init(like)
    hparams: dict[str, Any] = {
        "participation": np.float32(1),
        "learning_rate": np.float32(0.1),
        "mu": 0.5,
    }
    inverse = np.linalg.inv(dense(GIVEN["blt"])[:3, :3])
    for t in range(3):
        state = method.first.exchange(state, like, hparams | {"noise": drawn[0, t]})
        gradient = Z * CLIP / 2 * (inverse @ drawn[0])[t]
        found = jax.tree.leaves(state.state)
        assert any(np.allclose(each, gradient, rtol=1e-5, atol=1e-6) for each in found)
        noise = setting.Clipped(drawn[1, t], None)
        state = method.server.update(state, setting.Clipped(like, None), hparams | {"noise": noise})
    moved = Z * CLIP / 2 * (inverse @ drawn[1]).sum(axis=0)
    np.testing.assert_allclose(method.server.params(state), moved, rtol=1e-5, atol=1e-6)


def test_clients_read_no_noise_of_the_past() -> None:
    """Nodes are sent what clients read of the state."""
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    correlated = setting.Correlated.of(GIVEN["banded"], fp.fedavg(), shape)
    method = setting.private(fp.fedavg(), private("banded"), Z, 2, 6, correlated)
    state = method.server.init(np.zeros(3, np.float32))
    assert jax.tree.map(np.shape, state) == ((3,), (), ((B - 1, 3), None))
    assert sent_state_of(method, shape).read == (True, True, False)


def test_without_the_extra_a_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jax_privacy", None)
    with pytest.raises(fp.InputError, match=r"needs jax-privacy: .*\[jax-privacy\]"):
        strategy_of("banded", 2, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        GIVEN["banded"]._replace(scale=(0.5, 0.75, 0.1, 0.05)),  # four diagonals, which increase
        GIVEN["banded"]._replace(scale=(-0.5, 0.1)),
        GIVEN["banded"]._replace(scale=(math.nan,)),
        GIVEN["banded"]._replace(scale=()),
        GIVEN["banded"]._replace(decay=(0.5,)),
        GIVEN["blt"]._replace(decay=(0.75,)),
        GIVEN["blt"]._replace(decay=(1.5, 0.5)),
        GIVEN["independent"]._replace(scale=(2.0,)),
        GIVEN["independent"]._replace(kind="dense"),  # type: ignore[arg-type]
        GIVEN["independent"]._replace(separation=0),
    ],
)
def test_a_strategy_that_another_host_declares_is_checked(wrong: Strategy) -> None:
    each = mechanism("banded")
    assert check_mechanism(each) == each
    with pytest.raises(fp.InputError):
        check_mechanism(each._replace(strategy=wrong))
    with pytest.raises(fp.InputError, match="alone there is a strategy"):
        check_mechanism(each._replace(sampling="uniform", accountant="rdp"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rounds", "separation", "gain"),
    [("banded", 200, 10, 2.62), ("blt", 200, 10, 2.47), ("banded", 12, 4, 1.2)],
)
def test_the_optimum_has_less_noise_than_independent_noise(
    kind: Correlation, rounds: int, separation: int, gain: float
) -> None:
    strategy = strategy_of(kind, separation, rounds)
    independent = Strategy("independent", separation, rounds)
    noise = [error(each) * reach(each, rounds).all for each in (independent, strategy)]
    assert noise[0] / noise[1] >= gain
    assert strategy == strategy_of(kind, separation, rounds)
    numbers = np.array([*strategy.scale, *strategy.decay])
    np.testing.assert_array_equal(numbers.astype(np.float32), numbers)
