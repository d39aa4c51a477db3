"""Theorem 4: its number, the mu it asks for, and that its promise is kept."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import InputError
from fedprox.diagnostics import (
    Constants,
    best_mu,
    convex_case,
    decrease_possible,
    dissimilarity_bound,
    mu_needed,
    rho,
    rho_bounded_variance,
)
from tests.quadratics import Vector

DRAFT = [False, True]

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
    for terms, draft in ((theorem, False), (lemma, True)):
        scale = sum(map(abs, terms))
        assert rho(mu, c, draft=draft) == pytest.approx(sum(terms), abs=1e-12 * scale)


@pytest.mark.parametrize("draft", DRAFT)
@given(some_constants)
def test_mu_needed_is_where_rho_turns_positive(draft: bool, c: Constants) -> None:
    grid = c.negative_curvature + c.smoothness * np.geomspace(1e-3, 1e9, 60)
    needed, best = mu_needed(c, draft=draft), best_mu(c, draft=draft)
    values = [rho(mu, c, draft=draft) for mu in grid]
    if needed is None:
        assert best is None
        assert max(values) <= 0
        return
    assert best is not None
    below = c.negative_curvature
    assert rho(below + (needed - below) * 0.999, c, draft=draft) < 0
    assert rho(below + (needed - below) * 1.001, c, draft=draft) > 0
    assert rho(best, c, draft=draft) > 0
    assert rho(best, c, draft=draft) >= max(values) * (1 - 1e-9)


def test_whether_some_mu_is_enough_is_decided_by_b_gamma_and_k() -> None:
    assert mu_needed(Constants(1.0, 5.0, 10**3, 0.5)) is not None
    assert mu_needed(Constants(1.0, 1.0, 2)) is None  # sqrt(2 / K) = 1
    assert mu_needed(Constants(1.0, 1.0, 2), draft=True) is not None
    assert mu_needed(Constants(1.0, 2.0, 10**9, 0.0, 0.49)) is not None
    assert mu_needed(Constants(1.0, 2.0, 10**9, 0.0, 0.5)) is None  # gamma B = 1


def test_some_clients_are_enough_for_the_draft_alone() -> None:
    # B < sqrt(K), but not B sqrt(2) < sqrt(K)
    c = Constants(1.0, 3.0, 10)
    assert (mu_needed(c), best_mu(c)) == (None, None)
    needed, best = mu_needed(c, draft=True), best_mu(c, draft=True)
    assert needed is not None
    assert best == pytest.approx(2 * needed)  # as L_- = 0


def test_remark_5_excludes_its_bounds() -> None:
    # gamma B = 1 and B / sqrt(K) = 1
    assert not decrease_possible(Constants(1.0, 2.0, 9, gamma=0.5))
    assert not decrease_possible(Constants(1.0, 3.0, 9))
    assert decrease_possible(Constants(1.0, 2.0, 9, gamma=0.4))


@pytest.mark.parametrize("draft", DRAFT)
@given(some_constants, st.floats(0.0, 1.0), st.floats(0.0, 1e6))
def test_nothing_is_promised_where_remark_5_is_violated(
    draft: bool, c: Constants, gamma: float, mu: float
) -> None:
    b = c.dissimilarity
    few = replace(c, clients_per_round=max(1, math.floor(b**2)))
    inexact = replace(c, gamma=min(1.0, 1 / b + gamma * (1 - 1 / b)), dissimilarity=b * (1 + 1e-12))
    for violated in (few, inexact):
        assert not decrease_possible(violated)
        assert rho(mu, violated, draft=draft) <= 0
        assert mu_needed(violated, draft=draft) is None


@given(st.floats(3.0, 1e3), st.floats(1e-2, 1e2))
def test_corollary_7_holds_for_the_draft_and_for_the_theorem_with_twice_the_clients(
    b: float, lipschitz: float
) -> None:
    """B <= sqrt(K) / 2 as stated fits Lemma 3; for Theorem 4, with 2/K, B <= sqrt(K / 8) does."""
    mu, decrease = convex_case(lipschitz, b)
    assert mu == pytest.approx(6 * lipschitz * b**2)
    clients = math.ceil(4 * b**2)
    assert rho(mu, Constants(lipschitz, b, clients), draft=True) >= decrease
    assert rho(mu, Constants(lipschitz, b, 2 * clients)) >= decrease
    share = rho(mu, Constants(lipschitz, b, clients)) / decrease
    assert 0.26 < share < 0.85  # the cohort as stated is not enough for Theorem 4


def test_numbers_beyond_floats_are_refused_and_large_ones_are_not() -> None:
    for call in (lambda: rho(10**400, Constants(1, 1, 8)), lambda: Constants(10**400, 1, 8)):
        with pytest.raises(InputError, match="it must be"):
            call()
    assert mu_needed(Constants(1e200, 1, 8)) == pytest.approx(5.5e200)
    assert convex_case(1e300, 1e300) == (math.inf, 0)


@given(st.floats(0.0, 1e3), st.floats(1e-3, 1e3), st.floats(1.0, 1e3))
def test_theorem_11_is_theorem_4_with_corollary_10(
    variance: float, epsilon: float, mu: float
) -> None:
    """Appendix A.2, as printed."""
    k, g, root = 7, 0.1, math.sqrt(1 + variance / epsilon)
    assert dissimilarity_bound(variance, epsilon) == pytest.approx(root)
    bar = mu - 0.5
    printed = 1 / mu - (g / mu + (1 + g) * math.sqrt(2 / k) / bar + (1 + g) / (bar * mu)) * root
    printed -= (
        (1 + g) ** 2 / (2 * bar**2) + (1 + g) ** 2 / (bar**2 * k) * (2 * math.sqrt(2 * k) + 2)
    ) * (1 + variance / epsilon)
    found = rho_bounded_variance(
        mu,
        smoothness=1.0,
        variance=variance,
        epsilon=epsilon,
        clients_per_round=k,
        negative_curvature=0.5,
        gamma=g,
    )
    assert found == pytest.approx(printed, rel=1e-9, abs=1e-12 * root**2)


@given(some_constants, st.floats(0.0, 1e3), st.floats(1e-3, 1e3), st.floats(1.001, 1e4))
def test_lemma_5_is_as_the_draft_prints_it(
    c: Constants, variance: float, epsilon: float, factor: float
) -> None:
    """The draft, section 4.2, Lemma 5, and its Corollary 4 for B."""
    mu = c.negative_curvature + factor * c.smoothness
    lipschitz, k, g = c.smoothness, c.clients_per_round, c.gamma
    bar = mu - c.negative_curvature
    linear = g / mu + (1 + g) / (bar * math.sqrt(k)) + lipschitz * (1 + g) / (bar * mu)
    square = lipschitz * (1 + g) ** 2 / (2 * bar**2)
    square += lipschitz * (1 + g) ** 2 / (bar**2 * k) * (2 * math.sqrt(k) + 1)
    ratio = 1 + variance / epsilon
    terms = 1 / mu, linear * math.sqrt(ratio), square * ratio
    found = rho_bounded_variance(
        mu,
        smoothness=lipschitz,
        variance=variance,
        epsilon=epsilon,
        clients_per_round=k,
        negative_curvature=c.negative_curvature,
        gamma=g,
        draft=True,
    )
    assert found == pytest.approx(terms[0] - terms[1] - terms[2], abs=1e-12 * sum(terms))


@pytest.mark.parametrize(
    "wrong",
    [
        {"smoothness": 0.0},
        {"smoothness": math.nan},
        {"dissimilarity": 0.9},
        {"clients_per_round": 0},
        {"negative_curvature": 1.5},
        {"gamma": 1.1},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"smoothness": 1.0, "dissimilarity": 2.0, "clients_per_round": 10}
    (name,) = wrong
    with pytest.raises(InputError, match=name):
        Constants(**(right | wrong))
    with pytest.raises(InputError, match="dissimilarity"):
        Constants(**(right | {"dissimilarity": math.inf}))
    with pytest.raises(InputError, match="mu"):
        rho(-1.0, Constants(**right))
    with pytest.raises(InputError, match="epsilon"):
        dissimilarity_bound(1.0, 0.0)
    with pytest.raises(InputError, match="variance"):
        dissimilarity_bound(-1.0, 1.0)


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
    """Of convex and of non-convex quadratics."""
    q = Quadratics(seed, spread, lowered=lowered)
    b = q.dissimilarity
    gamma = min(gamma, 0.6 / b)
    # the fewest clients that leave a fifth of the gain: rho > 0 for some mu in every example
    moved = b * (1 + gamma) / (0.8 * (1 - gamma * b))
    cohort = math.ceil((1 if draft else 2) * moved**2)
    if cohort > 150:  # too many cohorts to enumerate
        return
    c = Constants(q.smoothness, b, cohort, q.negative_curvature, gamma)
    needed = mu_needed(c, draft=draft)
    assert needed is not None
    mu = factor * needed
    promised = rho(mu, c, draft=draft) * float(q.gradient @ q.gradient)
    assert promised > 0
    assert q.expected_decrease(q.answers(mu, gamma, along=along), cohort) >= promised


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
    square = float(q.gradient @ q.gradient)
    variance = float(q.p @ ((q.gradients - q.gradient) ** 2).sum(axis=1))
    epsilon = share * square
    b = dissimilarity_bound(variance, epsilon)
    assert b >= q.dissimilarity * (1 - 1e-12)
    if gamma * b > 0.6:
        return
    moved = b * (1 + gamma) / (0.8 * (1 - gamma * b))
    cohort = math.ceil((1 if draft else 2) * moved**2)
    if cohort > 150:  # too many cohorts to enumerate
        return
    needed = mu_needed(Constants(q.smoothness, b, cohort, 0.0, gamma), draft=draft)
    assert needed is not None
    promised = square * rho_bounded_variance(
        factor * needed,
        smoothness=q.smoothness,
        variance=variance,
        epsilon=epsilon,
        clients_per_round=cohort,
        gamma=gamma,
        draft=draft,
    )
    assert promised > 0
    answers = q.answers(factor * needed, gamma, along=True)
    assert q.expected_decrease(answers, cohort) >= promised


def test_few_of_those_examples_are_left_out() -> None:
    """B = 1.5 with gamma = 0.3 takes 40 clients a round, and B = 2 takes 133."""
    many = [Quadratics(seed, 0.3).dissimilarity for seed in range(200)]
    assert np.mean(np.array(many) < 1.5) > 0.9


@pytest.mark.parametrize("gamma", [0.0, 0.2])
@pytest.mark.parametrize("draft", DRAFT)
def test_the_promise_is_tight_for_equal_clients(gamma: float, draft: bool) -> None:
    """Equal clients, mu much above L, K large: all that is lost is gamma."""
    q = Quadratics(0, 0.0)
    q.b[:] = 0
    c = Constants(q.smoothness, 1.0, 10**9, 0.0, gamma)
    mu = 1e4 * q.smoothness
    promised = rho(mu, c, draft=draft) * float(q.gradient @ q.gradient)
    decrease = q.expected_decrease(q.answers(mu, gamma, along=True), 10)
    assert decrease >= promised
    assert promised == pytest.approx((1 - gamma) / mu * float(q.gradient @ q.gradient), rel=1e-3)
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
