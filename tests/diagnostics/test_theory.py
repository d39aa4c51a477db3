"""FedProx's theorems: their numbers, and that their promises are kept."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, Evaluation, InputError, Solver, fedprox, simulate
from fedprox.diagnostics import (
    Constants,
    convex_case,
    convex_rate,
    dissimilarity_bound,
    mu_needed,
    rho,
    rounds_needed,
)
from tests.quadratics import Vector, quadratic_federation, quadratic_model

some_constants = st.builds(
    lambda smoothness, dissimilarity, clients, below, gamma: Constants(
        smoothness, dissimilarity, clients, below * smoothness, gamma
    ),
    st.floats(1e-3, 1e3),
    st.floats(1.0, 5.0),
    st.integers(1, 10**6),
    st.floats(0.0, 1.0),
    st.one_of(st.just(0.0), st.floats(0.0, 0.5)),
)


def draft(c: Constants) -> Constants:
    """The constants with which Theorem 4 is Lemma 3 of the paper's first draft."""
    return replace(c, clients_per_round=2 * c.clients_per_round)


# Theorem 4, and Lemma 3 of the draft.


@given(some_constants, st.floats(1.001, 1e4))
def test_rho_is_the_sum_on_the_slide_and_in_the_draft(c: Constants, factor: float) -> None:
    """Term by term as printed: slide "Complete theorem"; draft, equation 3."""
    mu = c.negative_curvature + factor * c.smoothness
    lipschitz, b, k, g = c.smoothness, c.dissimilarity, c.clients_per_round, c.gamma
    bar = mu - c.negative_curvature
    common = [1 / mu, -g * b / mu, -lipschitz * b * (1 + g) / (bar * mu)]
    common += [-lipschitz * (1 + g) ** 2 * b**2 / (2 * bar**2)]
    last = -lipschitz * b**2 * (1 + g) ** 2 / (bar**2 * k)
    noise = -b * (1 + g) / (bar * math.sqrt(k))
    theorem = [*common, noise * math.sqrt(2), last * (2 * math.sqrt(2 * k) + 2)]
    lemma = [*common, noise, last * (2 * math.sqrt(k) + 1)]
    for terms, constants in ((theorem, c), (lemma, draft(c))):
        scale = sum(map(abs, terms))
        assert rho(mu, constants) == pytest.approx(sum(terms), abs=1e-12 * scale)


@settings(max_examples=30)
@given(some_constants)
def test_mu_needed_is_where_rho_turns_positive(c: Constants) -> None:
    below, needed = c.negative_curvature, mu_needed(c)
    values = [rho(mu, c) for mu in below + c.smoothness * np.geomspace(1e-3, 1e9, 60)]
    if needed is None:
        assert max(values) <= 0
        return
    assert rho(below + (needed - below) * 0.999, c) < 0
    assert rho(below + (needed - below) * 1.001, c) > 0
    if below == 0:
        assert rho(2 * needed, c) >= max(values) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("constants", "enough"),
    [
        (Constants(1.0, 5.0, 10**3, 0.5), True),
        (Constants(1.0, 1.0, 2), False),  # sqrt(2 / K) = 1
        (draft(Constants(1.0, 1.0, 2)), True),
        (Constants(1.0, 3.0, 10), False),  # B < sqrt(K), but not B sqrt(2) < sqrt(K)
        (draft(Constants(1.0, 3.0, 10)), True),
        (Constants(1.0, 2.0, 10**9, 0.0, 0.49), True),
        (Constants(1.0, 2.0, 10**9, 0.0, 0.5), False),  # gamma B = 1
    ],
)
def test_whether_some_mu_is_enough_is_decided_by_b_gamma_and_k(
    constants: Constants, enough: bool
) -> None:
    assert (mu_needed(constants) is not None) == enough


@given(some_constants, st.floats(0.0, 1.0), st.floats(0.0, 1e6))
def test_nothing_is_promised_where_remark_5_is_violated(
    c: Constants, gamma: float, mu: float
) -> None:
    """gamma B >= 1 or B >= sqrt(K), in the draft and in the theorem."""
    b = c.dissimilarity
    few = replace(c, clients_per_round=max(1, math.floor(b**2)))
    inexact = replace(c, gamma=min(1.0, 1 / b + gamma * (1 - 1 / b)), dissimilarity=b * (1 + 1e-12))
    for violated in (few, inexact, draft(few), draft(inexact)):
        assert rho(mu, violated) <= 0
        assert mu_needed(violated) is None


# Where rho > 0 on quadratics, the expected decrease is at least promised.


class Quadratics:
    """F_k(w) = 1/2 (w - b_k)' A_k (w - b_k), three clients with shares p_k, seen from a point w.

    The A_k are positive definite, with eigenvalues of at least 0.3, less `lowered`.
    """

    def __init__(
        self, seed: int, spread: float, *, d: int = 3, clients: int = 3, lowered: float = 0.0
    ) -> None:
        rng = np.random.default_rng(seed)
        common = rng.normal(size=(d, d)) / np.sqrt(d)
        factors = common + spread * rng.normal(size=(clients, d, d)) / np.sqrt(d)
        self.a = factors @ factors.transpose(0, 2, 1) + (0.3 - lowered) * np.eye(d)
        self.b = spread * rng.normal(size=(clients, d))
        self.p = rng.dirichlet(np.full(clients, 2.0))
        self.w = rng.normal(size=d)
        self.w *= 3 / np.linalg.norm(self.w)
        self.rng = rng
        self.gradients = np.einsum("kij,kj->ki", self.a, self.w - self.b)
        self.gradient = self.p @ self.gradients
        eigenvalues = np.linalg.eigvalsh(self.a)
        self.smoothness = float(np.abs(eigenvalues).max())
        self.negative_curvature = max(0.0, -float(eigenvalues.min()))
        squares = self.p @ (self.gradients**2).sum(axis=1)
        self.dissimilarity = max(1.0, float(np.sqrt(squares / (self.gradient @ self.gradient))))

    def f(self, w: Vector) -> Vector:
        """f at points (..., d)."""
        apart = w[..., None, :] - self.b
        return 0.5 * np.einsum("...ki,kij,...kj->...k", apart, self.a, apart) @ self.p

    def answers(self, mu: float, gamma: float, *, along: bool) -> Vector:
        """w_k with ||grad h_k(w_k)|| = gamma ||grad F_k(w)||, against the gradient or anywhere."""
        residual = self.gradients if along else self.rng.normal(size=self.gradients.shape)
        lengths = np.linalg.norm(self.gradients, axis=1, keepdims=True)
        residual = gamma * lengths * residual / np.linalg.norm(residual, axis=1, keepdims=True)
        problem = self.a + mu * np.eye(len(self.w))
        # grad h_k(w + step) = grad F_k(w) + (A_k + mu I) step
        return self.w + np.linalg.solve(problem, (residual - self.gradients)[..., None])[..., 0]

    def expected_decrease(self, answers: Vector, cohort: int) -> float:
        """f(w) - E f(mean of the cohort's answers), over every cohort of K drawn with p_k."""
        i, j = np.divmod(np.arange((cohort + 1) ** 2), cohort + 1)
        i, j = i[i + j <= cohort], j[i + j <= cohort]
        counts = np.stack([i, j, cohort - i - j], axis=1)
        log_factorials = np.array([math.lgamma(n + 1) for n in range(cohort + 1)])
        log_chance = log_factorials[cohort] - log_factorials[counts].sum(axis=1)
        chance = np.exp(log_chance + counts @ np.log(self.p))
        assert chance.sum() == pytest.approx(1, abs=1e-9)
        return float(self.f(self.w) - chance @ self.f(counts @ answers / cohort))


def promised_and_kept(
    q: Quadratics, b: float, gamma: float, *, factor: float, along: bool, draft: bool
) -> tuple[float, float] | None:
    """rho ||grad f||^2 for mu = factor * mu_needed, and the expected decrease.

    With the fewest clients that leave a fifth of the gain: rho > 0 for some mu in every example.
    None if there are too many cohorts to enumerate.
    """
    moved = b * (1 + gamma) / (0.8 * (1 - gamma * b))
    cohort = math.ceil((1 if draft else 2) * moved**2)
    if cohort > 150:
        return None
    clients = 2 * cohort if draft else cohort
    c = Constants(q.smoothness, b, clients, q.negative_curvature, gamma)
    needed = mu_needed(c)
    assert needed is not None
    mu = factor * needed
    promised = rho(mu, c) * float(q.gradient @ q.gradient)
    assert promised > 0
    return promised, q.expected_decrease(q.answers(mu, gamma, along=along), cohort)


@given(
    seed=st.integers(0, 10**6),
    spread=st.floats(0.0, 0.3),
    gamma=st.one_of(st.just(0.0), st.floats(0.0, 0.3)),
    factor=st.floats(1.05, 20.0),
    along=st.booleans(),
    draft=st.booleans(),
    lowered=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)
def test_the_expected_decrease_is_what_the_theorem_promises(
    seed: int, spread: float, gamma: float, factor: float, along: bool, draft: bool, lowered: float
) -> None:
    """Of convex and of nonconvex quadratics."""
    q = Quadratics(seed, spread, lowered=lowered)
    gamma = min(gamma, 0.6 / q.dissimilarity)
    both = promised_and_kept(q, q.dissimilarity, gamma, factor=factor, along=along, draft=draft)
    if both is not None:
        promised, kept = both
        assert kept >= promised


@given(
    seed=st.integers(0, 10**6),
    spread=st.floats(0.0, 0.2),
    gamma=st.sampled_from([0.0, 0.1]),
    factor=st.floats(1.05, 20.0),
    share=st.floats(0.7, 1.0),
    draft=st.booleans(),
)
def test_a_bound_of_the_variance_promises_no_more_than_is_kept(
    seed: int, spread: float, gamma: float, factor: float, share: float, draft: bool
) -> None:
    """Lemma 5 of the draft and Theorem 11, with epsilon up to the squared norm of the gradient."""
    q = Quadratics(seed, spread)
    variance = float(q.p @ ((q.gradients - q.gradient) ** 2).sum(axis=1))
    b = dissimilarity_bound(variance, share * float(q.gradient @ q.gradient))
    assert b >= q.dissimilarity * (1 - 1e-12)
    if gamma * b > 0.6:
        return
    both = promised_and_kept(q, b, gamma, factor=factor, along=True, draft=draft)
    if both is not None:
        promised, kept = both
        assert kept >= promised


def test_few_of_those_examples_are_left_out() -> None:
    """B = 1.5 with gamma = 0.3 takes 40 clients a round, and B = 2 takes 133."""
    many = [Quadratics(seed, 0.3).dissimilarity for seed in range(200)]
    assert np.mean(np.array(many) < 1.5) > 0.9


@pytest.mark.parametrize("gamma", [0.0, 0.2])
def test_the_promise_is_tight_for_equal_clients(gamma: float) -> None:
    """Equal clients, mu much above L, K large: all that is lost is gamma."""
    q = Quadratics(0, 0.0)
    q.b[:] = 0
    square, mu = float(q.gradient @ q.gradient), 1e4 * q.smoothness
    promised = rho(mu, Constants(q.smoothness, 1.0, 10**9, 0.0, gamma)) * square
    decrease = q.expected_decrease(q.answers(mu, gamma, along=True), 10)
    assert decrease >= promised
    assert promised == pytest.approx((1 - gamma) / mu * square, rel=1e-3)
    assert promised == pytest.approx(decrease, rel=1e-3)


def test_one_client_a_round_breaks_what_rho_would_promise_without_its_noise_terms() -> None:
    """The terms in K are needed: with few clients of unlike kind f may even rise."""
    q = Quadratics(1, 0.0)
    q.a[:] = np.eye(3)
    q.p[:] = 1 / 3
    q.b[:] = q.w + 10 * np.array([[1.0, 0, 0], [-1.0, 0, 0], [0.1, 0, 0]])
    q.gradients = np.einsum("kij,kj->ki", q.a, q.w - q.b)
    answers = q.answers(1.0, 0.0, along=True)
    assert q.expected_decrease(answers, 1) < 0 < q.expected_decrease(answers, 1000)


# Theorem 11, and Lemma 5 of the draft.


@given(some_constants, st.floats(0.0, 1e3), st.floats(1e-3, 1e3), st.floats(1.001, 1e4))
def test_with_a_bound_of_the_variance_rho_is_as_printed(
    c: Constants, variance: float, epsilon: float, factor: float
) -> None:
    """Appendix A.2, and section 4.2 of the draft, with Corollaries 10 and 4 for B."""
    c = replace(c, dissimilarity=dissimilarity_bound(variance, epsilon))
    mu = c.negative_curvature + factor * c.smoothness
    lipschitz, k, g = c.smoothness, c.clients_per_round, c.gamma
    bar, ratio = mu - c.negative_curvature, 1 + variance / epsilon
    noise, last = math.sqrt(2 / k), (2 * math.sqrt(2 * k) + 2) / k
    lemma_noise, lemma_last = math.sqrt(1 / k), (2 * math.sqrt(k) + 1) / k
    for constants, a, b in ((c, noise, last), (draft(c), lemma_noise, lemma_last)):
        linear = g / mu + (1 + g) * a / bar + lipschitz * (1 + g) / (bar * mu)
        square = lipschitz * (1 + g) ** 2 / bar**2 * (0.5 + b)
        terms = 1 / mu, linear * math.sqrt(ratio), square * ratio
        expected = terms[0] - terms[1] - terms[2]
        assert rho(mu, constants) == pytest.approx(expected, abs=1e-12 * sum(terms))


# Corollary 7.


@given(st.floats(3.0, 1e3), st.floats(1e-2, 1e2))
def test_corollary_7_holds_for_the_draft_and_for_the_theorem_with_twice_the_clients(
    b: float, lipschitz: float
) -> None:
    """B <= sqrt(K) / 2 as stated fits Lemma 3; for Theorem 4, with 2/K, B <= sqrt(K / 8) does."""
    mu, decrease = convex_case(lipschitz, b)
    assert mu == pytest.approx(6 * lipschitz * b**2)
    clients = math.ceil(4 * b**2)
    assert rho(mu, Constants(lipschitz, b, 2 * clients)) >= decrease
    share = rho(mu, Constants(lipschitz, b, clients)) / decrease
    assert 0.26 < share < 0.85  # the cohort as stated is not enough for Theorem 4


# Theorem 6.


@given(st.floats(1e-6, 1e6), st.floats(0.0, 1e6), st.floats(1e-6, 1e6))
def test_theorem_6_is_the_least_number_of_rounds(rho: float, gap: float, epsilon: float) -> None:
    rounds = rounds_needed(rho, gap, epsilon)
    assert gap / (rho * rounds) <= epsilon * (1 + 1e-9)
    assert rounds == 1 or gap / (rho * (rounds - 1)) >= epsilon * (1 - 1e-9)


class Shrinking:
    """F_k(w) = a_k / 2 ||w||^2: B(w) is the same everywhere, so one rho holds in all rounds."""

    def __init__(self, a: Vector, clients: int) -> None:
        self.a, self.clients = a, clients
        self.b = float(np.sqrt(np.mean(a**2)) / np.mean(a))
        self.gap = 0.5 * float(np.mean(a))  # of a start of length 1
        self.constants = Constants(float(a.max()), max(1.0, self.b), clients)

    def gradients(self, mu: float, rounds: int) -> Vector:
        """E ||grad f(w^t)||^2 of exact FedProx: w^{t+1} is the mean of K factors times w^t."""
        factors = mu / (mu + self.a)
        shrinks = float(np.mean(factors) ** 2 + np.var(factors) / self.clients)
        first = np.mean(self.a) ** 2
        return np.asarray(first * shrinks ** np.arange(rounds), float)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6),
    st.integers(5, 1000),
    st.floats(1e-3, 1.0),
)
def test_theorem_6_keeps_its_promise(a: list[float], clients: int, epsilon: float) -> None:
    one = Shrinking(np.array(a), clients)
    needed = mu_needed(one.constants)
    if needed is None:
        return
    mu = 2 * needed
    rounds = rounds_needed(rho(mu, one.constants), one.gap, epsilon)
    assert one.gradients(mu, rounds).mean() <= epsilon


def test_theorem_6_is_tight_for_equal_clients_and_a_large_mu() -> None:
    """All but f's own decrease in a round, 1 / mu, is lost in the limit; a tenth fewer rounds fail.

    The sum of all squared gradients of w^{t+1} = w^t mu / (mu + a) is Delta / rho then.
    """
    one = Shrinking(np.ones(3), 10**9)
    mu, epsilon = 1000.0, 1e-4
    rounds = rounds_needed(rho(mu, one.constants), one.gap, epsilon)
    path = one.gradients(mu, rounds)
    assert path.mean() <= epsilon
    assert path[: int(0.9 * rounds)].mean() > epsilon


# Remark 8.


@given(st.floats(1e-3, 1e3), st.floats(0.0, 1e3), st.floats(1e-3, 1e3))
def test_remark_8_is_theorem_6_with_corollaries_7_and_10(
    smoothness: float, variance: float, epsilon: float
) -> None:
    found = convex_rate(smoothness, 2.0, variance, epsilon)
    b = dissimilarity_bound(variance, epsilon)
    mu, decrease = convex_case(smoothness, b)
    assert found.mu == mu
    sgd = smoothness * 2 / epsilon + smoothness * 2 * variance / epsilon**2
    assert abs(found.rounds - max(1.0, 24 * sgd)) <= 1 + 1e-9 * found.rounds
    assert abs(found.rounds - rounds_needed(decrease, 2.0, epsilon)) <= 1 + 1e-9 * found.rounds
    # the fewest clients for which Theorem 4 has this rho
    clients = found.clients_per_round
    assert rho(mu, Constants(smoothness, b, clients)) >= decrease * (1 - 1e-9)
    assert rho(mu, Constants(smoothness, b, clients - 1)) < decrease


def test_remark_8_needs_more_clients_than_corollary_7_says() -> None:
    found = convex_rate(1.0, 4.5, 4.0, 1.0)
    assert (round(found.mu, 9), found.clients_per_round, found.rounds) == (30.0, 39, 540)
    b2 = 10.0**6
    found = convex_rate(1.0, 1.0, b2 - 1, 1.0)
    assert found.clients_per_round == pytest.approx(4.5 * b2, rel=0.01)
    mu, decrease = convex_case(1.0, 1000.0)
    assert rho(mu, Constants(1.0, 1000.0, 4 * 10**6)) < decrease
    assert rho(mu, draft(Constants(1.0, 1000.0, 4 * 10**6))) > decrease


# Corollary 9.


@pytest.mark.slow
def test_runs_with_partial_work_keep_the_promise_of_corollary_9() -> None:
    """Sum of the recorded rounds' promises, from gammas that shrink by the round.

    F_k = 1/2 ||w - b_k||^2, and a step of rate eta leaves gamma = 1 - eta (1 + mu) of each client's
    gradient. Every round's gamma is that of all clients, drawn or not.
    """
    rng = np.random.default_rng(0)
    b = 0.1 * rng.normal(size=(5, 2))
    b -= b.mean(axis=0)
    spread = float((b**2).sum(axis=1).mean())
    start, clients, rounds, mu = np.array([2.0, 1.0]), 200, 6, 8.0
    runs = simulate(
        quadratic_federation([np.eye(2)] * 5, list(b)),
        quadratic_model(start),
        fedprox(mu),
        cohort=Cohort(clients, sampling="proportional"),
        rounds=rounds,
        solver=Solver(lambda t: (0.75 + 0.04 * t) / (1 + mu), "all", steps=1),
        seed=range(8),
        evaluation=Evaluation(),
    )
    promised, kept = [], []
    for run in runs:
        gammas = [record.gamma_max for record in run.history[1:]]
        np.testing.assert_allclose(gammas, 0.25 - 0.04 * np.arange(rounds), atol=1e-5)
        excess = np.array([record.train_loss for record in run.history]) - spread / 2
        worst = max(record.dissimilarity for record in run.history[:-1])
        values = [rho(mu, Constants(1.0, worst, clients, gamma=gamma)) for gamma in gammas]
        assert min(values) > 0
        assert values == sorted(values)
        promised.append(float(np.sum(np.array(values) * 2 * excess[:-1])))
        kept.append(excess[0] - excess[-1])
    assert np.mean(kept) >= np.mean(promised)
    assert np.mean(kept) < 4 * np.mean(promised)


# Bad input.

RIGHT: dict[str, Any] = {"smoothness": 1.0, "dissimilarity": 2.0, "clients_per_round": 10}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Constants(**RIGHT | {"smoothness": 0.0}), "smoothness = 0.0"),
        (lambda: Constants(**RIGHT | {"smoothness": math.nan}), "smoothness = nan"),
        (lambda: Constants(**RIGHT | {"smoothness": 10**400}), "smoothness"),
        (lambda: Constants(**RIGHT | {"dissimilarity": 0.9}), "dissimilarity = 0.9"),
        (lambda: Constants(**RIGHT | {"dissimilarity": math.inf}), "dissimilarity = inf"),
        (lambda: Constants(**RIGHT | {"clients_per_round": 0}), "clients_per_round = 0"),
        (lambda: Constants(**RIGHT | {"negative_curvature": 1.5}), "negative_curvature = 1.5"),
        (lambda: Constants(**RIGHT | {"gamma": 1.1}), "gamma = 1.1"),
        (lambda: rho(-1.0, Constants(**RIGHT)), r"mu = -1\.0"),
        (lambda: rho(10**400, Constants(**RIGHT)), "mu = "),
        (lambda: dissimilarity_bound(1.0, 0.0), r"epsilon = 0\.0"),
        (lambda: dissimilarity_bound(-1.0, 1.0), r"variance = -1\.0"),
        (lambda: rounds_needed(0.0, 1.0, 1.0), r"rho = 0\.0"),
        (lambda: rounds_needed(1.0, -1.0, 1.0), r"gap = -1\.0"),
        (lambda: rounds_needed(1.0, 1.0, 0.0), r"epsilon = 0\.0"),
        (lambda: rounds_needed(1e-200, 1e200, 1e-200), "rounds: the bound is inf"),
        (lambda: convex_rate(0.0, 1.0, 1.0, 1.0), r"smoothness = 0\.0"),
        (lambda: convex_rate(1.0, math.nan, 1.0, 1.0), "gap = nan"),
        (lambda: convex_rate(1.0, 1.0, -1.0, 1.0), r"variance = -1\.0"),
        (lambda: convex_rate(1.0, 1.0, 1.0, 0.0), r"epsilon = 0\.0"),
    ],
)
def test_numbers_out_of_range_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.slow
def test_large_numbers_are_not_refused() -> None:
    assert mu_needed(Constants(1e200, 1, 8)) == pytest.approx(5.5e200)
    assert convex_case(1e300, 1e300) == (math.inf, 0)
