"""FedDyn's theorems: their constants, and that their promises are kept.

On quadratics an exact round is a linear map of everything that server and clients remember, so the
second moments of any number of rounds, and with them all expectations in the theorems, are exact.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import InputError, feddyn
from fedprox.diagnostics import (
    FedDynBound,
    feddyn_convex,
    feddyn_nonconvex,
    feddyn_strongly_convex,
)
from tests.byhand import ByHand
from tests.quadratics import quadratic_federation

SIZES = [(4, 1), (4, 2), (4, 4), (6, 1)]
"""N and K."""


class Problem:
    """N quadratics F_k(w) = 1/2 (w - b_k)' A_k (w - b_k), and a start w^0.

    Args:
        seed: Of all random numbers.
        clients: N.
        convex: Whether all A_k are positive definite; their mean always is.
        spread: Scale of the b_k.
        start: Scale of w^0 - w^*.
    """

    def __init__(
        self, seed: int, clients: int, *, convex: bool = True, spread: float = 3.0, start: float = 1
    ) -> None:
        rng = np.random.default_rng(seed)
        factors = rng.normal(size=(clients, 2, 2))
        if convex:
            self.a = factors @ factors.transpose(0, 2, 1) / 2 + 0.3 * np.eye(2)
        else:
            self.a = (factors + factors.transpose(0, 2, 1)) / 2
            lowest = np.linalg.eigvalsh(self.a.mean(axis=0)).min()
            self.a = self.a + (0.3 - lowest) * np.eye(2)
        self.b = spread * rng.normal(size=(clients, 2))
        self.clients = clients
        self.hessian = self.a.mean(axis=0)
        pull = np.einsum("kij,kj->ki", self.a, self.b)
        self.star = np.linalg.solve(self.hessian, pull.mean(axis=0))
        away = start * rng.normal(size=2)
        self.start = self.star + away
        values = np.linalg.eigvalsh(self.a)
        self.smoothness = float(np.abs(values).max())
        self.strong_convexity = float(values.min())
        self.squared_distance = float(away @ away)
        slopes = pull - np.einsum("kij,j->ki", self.a, self.star)
        self.squared_gradients = float((slopes**2).sum(axis=1).mean())
        self.gap = float(0.5 * away @ self.hessian @ away)
        # b_k is the one stationary point of F_k
        self.squared_distances = float(((self.start - self.b) ** 2).sum(axis=1).mean())

    def convex(self, rounds: int, cohort: int, alpha: float | None = None) -> FedDynBound:
        return feddyn_convex(
            rounds,
            smoothness=self.smoothness,
            clients=self.clients,
            clients_per_round=cohort,
            squared_distance=self.squared_distance,
            squared_gradients=self.squared_gradients,
            alpha=alpha,
        )

    def strongly_convex(self, rounds: int, cohort: int, alpha: float | None = None) -> FedDynBound:
        return feddyn_strongly_convex(
            rounds,
            smoothness=self.smoothness,
            strong_convexity=self.strong_convexity,
            clients=self.clients,
            clients_per_round=cohort,
            squared_distance=self.squared_distance,
            squared_gradients=self.squared_gradients,
            alpha=alpha,
        )

    def nonconvex(self, rounds: int, cohort: int, alpha: float | None = None) -> FedDynBound:
        return feddyn_nonconvex(
            rounds,
            smoothness=self.smoothness,
            clients=self.clients,
            clients_per_round=cohort,
            gap=self.gap,
            squared_distances=self.squared_distances,
            alpha=alpha,
        )


class Expected:
    """Exact expectations over all cohorts of exact FedDyn.

    The state is (w, gamma, u, g_1, ..., g_N, 1) in coordinates with w^* = 0; u is the sum of the
    past gamma^t, in which a round counts `growth` times as much as the one before.

    Attributes:
        loss: E f(gamma^t) - f(w^*), t = 0, ..., T - 1.
        gradient: E ||grad f(gamma^t)||^2.
        of_mean: E f(weighted mean of gamma^0, ..., gamma^{T - 1}) - f(w^*), T = 1, 2, ...
        means: The means of the loss with these weights, T = 1, 2, ...
        gradients: The plain means of the gradient, T = 1, 2, ...
    """

    def __init__(
        self, problem: Problem, cohort: int, alpha: float, rounds: int, growth: float = 1.0
    ) -> None:
        n, a, hessian = problem.clients, problem.a, problem.hessian
        b = problem.b - problem.star
        rows = np.eye(2 * (3 + n) + 1)
        w, gamma, u, one = rows[0:2], rows[2:4], rows[4:6], rows[-1:]
        g = [rows[6 + 2 * k : 8 + 2 * k] for k in range(n)]
        maps = []
        for chosen in itertools.combinations(range(n), cohort):
            found = {
                k: np.linalg.solve(
                    a[k] + alpha * np.eye(2), np.outer(a[k] @ b[k], one) + g[k] + alpha * w
                )
                for k in chosen
            }
            after = [g[k] - alpha * (found[k] - w) if k in found else g[k] for k in range(n)]
            mean = sum(found.values()) / cohort
            server = mean - sum(after) / n / alpha
            maps.append(np.vstack([server, mean, u / growth + gamma, *after, one]))
        self.cohorts = list(itertools.combinations(range(n), cohort))
        self.maps = np.array(maps)
        first = np.zeros(len(rows))
        first[0:2] = first[2:4] = problem.start - problem.star
        first[-1] = 1
        self.first = first
        moments, weight = np.outer(first, first), 0.0
        loss, gradient, of_mean = [], [], []
        for _ in range(rounds):
            loss.append(0.5 * np.sum(hessian * moments[2:4, 2:4]))
            gradient.append(np.sum(hessian @ hessian * moments[2:4, 2:4]))
            moments = (self.maps @ moments @ self.maps.transpose(0, 2, 1)).mean(axis=0)
            weight = weight / growth + 1
            of_mean.append(0.5 * np.sum(hessian * moments[4:6, 4:6]) / weight**2)
        self.loss, self.gradient, self.of_mean = map(np.array, (loss, gradient, of_mean))
        weights = growth ** np.arange(rounds)
        self.means = np.cumsum(weights * self.loss) / np.cumsum(weights)
        self.gradients = np.cumsum(self.gradient) / np.arange(1, rounds + 1)


# The constants.

settings_of_theorems = {
    "smoothness": st.floats(1e-3, 1e3),
    "sizes": st.integers(1, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    "factor": st.floats(1.0, 100.0),
    "ratio": st.floats(1e-6, 1.0),
}


@given(**settings_of_theorems)
def test_the_constants_are_those_that_the_proofs_imply(
    smoothness: float, sizes: tuple[int, int], factor: float, ratio: float
) -> None:
    """With the weights that the proofs give to Lemmas 4, 5, 11 and 12, and nothing left over."""
    lip, (m, p) = smoothness, sizes

    problem: dict[str, Any] = {"smoothness": lip, "clients": m, "clients_per_round": p}
    dispersion: dict[str, Any] = {"squared_distance": 1.0, "squared_gradients": 1.0}

    alpha = factor * 25 * lip
    found = feddyn_convex(1, **problem, **dispersion, alpha=alpha)
    # page 30: the weight of Lemma 4; inequality 10 and Lemma 3
    a = alpha * (lip + alpha) / (alpha**2 - 20 * lip**2)
    k = found.kappa
    noise = 1 + lip / alpha + k * 2 * lip**2 * p / m
    assert noise == pytest.approx(a * (1 - 4 * lip**2 / alpha**2))
    assert k * (1 - p / m) + 8 * a / alpha**2 == pytest.approx(k)
    left = 2 / alpha - 8 * lip * a / alpha**2 - k * 4 * lip * p / m
    assert found.kappa_0 == pytest.approx(left)
    # Lemma 1 as printed
    assert k == pytest.approx(8 * m / p / alpha * (lip + alpha) / (alpha**2 - 20 * lip**2))
    printed = 2 / alpha * (alpha**2 - 20 * alpha * lip - 40 * lip**2) / (alpha**2 - 20 * lip**2)
    assert found.kappa_0 == pytest.approx(printed)

    mu = ratio * lip
    alpha = factor * max(5 * m / p * mu, 30 * lip)
    found = feddyn_strongly_convex(1, **problem, **dispersion, strong_convexity=mu, alpha=alpha)
    z = alpha**3 * p + alpha**2 * p * mu - alpha**2 * m * mu
    z += -20 * alpha * lip**2 * p + 4 * lip**2 * m * mu - 20 * lip**2 * p * mu
    a = alpha * (lip + alpha) * (p * alpha + p * mu - m * mu) / z  # page 33
    k, r = found.kappa, 1 + mu / alpha
    assert r * k == pytest.approx(8 * m * (lip + alpha) * (alpha + mu) / (alpha * z))
    noise = 1 + lip / alpha + r * k * 2 * lip**2 * p / m
    assert noise == pytest.approx(a * (1 - 4 * lip**2 / alpha**2))
    assert r * k * (1 - p / m) + 8 * a / alpha**2 == pytest.approx(k)
    left = 2 / alpha - 8 * lip * a / alpha**2 - r * k * 4 * lip * p / m
    assert found.kappa_0 == pytest.approx(left)

    alpha = factor * 20 * lip * m / p
    found = feddyn_nonconvex(1, **problem, gap=1.0, squared_distances=1.0, alpha=alpha)
    z = alpha**2 * p**2 - 32 * lip**2 * m**2 + 16 * lip**2 * p * m - 20 * lip**2 * p**2
    a = lip * p**2 / 2 * alpha * (alpha + lip) / z  # page 35: the weight of Lemma 11
    k = found.kappa
    noise = lip / 2 + lip**2 / (2 * alpha) + k * (2 * p / (2 * m - p) + 2 * m / p)
    assert noise == pytest.approx(a * (1 - 4 * lip**2 / alpha**2))
    assert k * 2 * (m - p) / (2 * m - p) + 8 * lip**2 * a / alpha**2 == pytest.approx(k)
    assert found.kappa_0 == pytest.approx(1 / (2 * alpha) - 4 * a / alpha**2)


def test_without_alpha_it_is_that_of_theorem_1() -> None:
    problem: dict[str, Any] = {"smoothness": 2.0, "clients": 100, "clients_per_round": 4}
    dispersion: dict[str, Any] = {"squared_distance": 3.0, "squared_gradients": 5.0}
    convex = feddyn_convex(7, **problem, **dispersion)
    assert convex.alpha == 30 * 2 * 5  # 30 L sqrt(m / P)
    # O(sqrt(m / P) / T)
    assert convex.printed == pytest.approx(5 * (300 * 2 * 3 + 100 / 30 / 2 * 5) / 7)
    assert convex.bound == pytest.approx((3 + convex.kappa * 5) / convex.kappa_0 / 7)
    # max(5 mu m / P, 30 L)
    steep, flat = (
        feddyn_strongly_convex(7, **problem, **dispersion, strong_convexity=mu) for mu in (1.0, 0.1)
    )
    assert (steep.alpha, flat.alpha) == (125, 60)
    for mu, found in ((1.0, steep), (0.1, flat)):
        powers = (1 + mu / found.alpha) ** np.arange(7)
        printed = (20 * found.alpha * 3 + 400 * 25 / found.alpha * 5) / powers[-1]
        assert found.printed == pytest.approx(printed)
        proved = (3 + found.kappa * 5) / found.kappa_0 / powers.sum()
        assert found.bound == pytest.approx(proved)
    nonconvex = feddyn_nonconvex(7, **problem, gap=3.0, squared_distances=5.0)
    assert nonconvex.alpha == 30 * 2 * 25  # 30 L m / P
    assert nonconvex.printed == pytest.approx((90 * 2 * 25 * 3 + 4 * 5) / 7)
    assert nonconvex.bound == pytest.approx((3 + nonconvex.kappa * 5) / nonconvex.kappa_0 / 7)


def test_the_proofs_constants_are_those_that_the_docstrings_name() -> None:
    problem: dict[str, Any] = {"smoothness": 1.0, "clients": 10, "clients_per_round": 10}
    for alpha, distance, gradients in ((25.0, 3.6, 31), (1e6, 0.5, 4)):
        first, second = (
            feddyn_convex(
                1, **problem, squared_distance=d, squared_gradients=1 - d, alpha=alpha
            ).bound
            for d in (1.0, 0.0)
        )
        assert first / alpha == pytest.approx(distance, rel=0.02)
        assert second * alpha == pytest.approx(gradients, rel=0.02)
    # the worst case of Theorem 3: both conditions bind
    problem = {"smoothness": 1.0, "strong_convexity": 1e-6}
    problem |= {"clients": 6 * 10**6, "clients_per_round": 1}
    steep, spread = (
        feddyn_strongly_convex(1, **problem, squared_distance=d, squared_gradients=1 - d)
        for d in (1.0, 0.0)
    )
    assert steep.alpha == 30
    assert 3.3 < steep.bound / 30 < 3.4
    assert 35 < spread.bound * 30 / (6 * 10**6) < 36


def test_the_strongly_convex_bound_falls_like_1_over_t_and_then_geometrically() -> None:
    def found(rounds: int) -> FedDynBound:
        return feddyn_strongly_convex(
            rounds,
            smoothness=1.0,
            strong_convexity=1e-3,
            clients=10,
            clients_per_round=5,
            squared_distance=1.0,
            squared_gradients=1.0,
        )

    r = 1 + 1e-3 / 30
    assert found(1000).bound / found(10).bound == pytest.approx(0.01, rel=0.02)
    assert found(1000).printed / found(10).printed == pytest.approx(1, rel=0.04)
    for one in ("bound", "printed"):
        far, next_ = getattr(found(10**6), one), getattr(found(10**6 + 1), one)
        assert far / next_ == pytest.approx(r, rel=1e-9)
    assert found(2**31 - 1).bound == 0  # too small for double precision


# The promises.


@pytest.mark.parametrize(("clients", "cohort"), SIZES)
def test_the_expectations_are_those_of_the_librarys_functions(clients: int, cohort: int) -> None:
    one = Problem(0, clients)
    alpha = one.convex(1, cohort).alpha
    expected = Expected(one, cohort, alpha, rounds=1)
    ours = ByHand(feddyn(alpha), quadratic_federation(list(one.a), list(one.b)), one.start)
    state = expected.first
    for chosen in np.random.default_rng(1).integers(len(expected.cohorts), size=12):
        found = ours.round(expected.cohorts[chosen])
        state = expected.maps[chosen] @ state
        np.testing.assert_allclose(ours.params, state[0:2] + one.star, rtol=1e-4, atol=1e-4)
        mean = np.mean(list(found.values()), axis=0)
        np.testing.assert_allclose(mean, state[2:4] + one.star, rtol=1e-4, atol=1e-4)


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), sizes=st.sampled_from(SIZES), start=st.sampled_from([0.0, 1.0]))
def test_theorem_2_keeps_its_promise(seed: int, sizes: tuple[int, int], start: float) -> None:
    clients, cohort = sizes
    one = Problem(seed, clients, start=start)
    for alpha in (25 * one.smoothness, None):
        found = one.convex(1, cohort, alpha)
        expected = Expected(one, cohort, found.alpha, rounds=100)
        bounds = found.bound / np.arange(1, 101)
        assert (expected.of_mean <= expected.means * (1 + 1e-9) + 1e-12).all()
        assert (expected.means <= bounds).all()
        assert one.convex(100, cohort, alpha).bound == pytest.approx(bounds[-1])


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), sizes=st.sampled_from(SIZES), start=st.sampled_from([0.0, 1.0]))
def test_theorem_3_keeps_its_promise(seed: int, sizes: tuple[int, int], start: float) -> None:
    clients, cohort = sizes
    one = Problem(seed, clients, start=start)
    alpha = one.strongly_convex(1, cohort).alpha
    growth = 1 + one.strong_convexity / alpha
    expected = Expected(one, cohort, alpha, rounds=400, growth=growth)
    bounds = np.array([one.strongly_convex(t, cohort).bound for t in range(1, 401)])
    assert (expected.of_mean <= expected.means * (1 + 1e-9) + 1e-12).all()
    assert (expected.means <= bounds).all()


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), sizes=st.sampled_from(SIZES), start=st.sampled_from([0.0, 1.0]))
def test_theorem_4_keeps_its_promise(seed: int, sizes: tuple[int, int], start: float) -> None:
    clients, cohort = sizes
    one = Problem(seed, clients, convex=False, spread=1.0, start=start)
    for alpha in (20 * one.smoothness * clients / cohort, None):
        found = one.nonconvex(1, cohort, alpha)
        expected = Expected(one, cohort, found.alpha, rounds=200)
        assert (expected.gradients <= found.bound / np.arange(1, 201)).all()


def test_theorem_4_is_false_with_the_first_model_as_the_clients_last_one() -> None:
    """At the minimum of f, C = 0 would promise a gradient of 0, but small cohorts move away."""
    one = Problem(2, 4, convex=False, spread=1.0, start=0.0)
    found = one.nonconvex(1, 1)
    expected = Expected(one, 1, found.alpha, rounds=20)
    assert one.gap == 0 < one.squared_distances
    assert expected.gradient[0] == 0 < expected.gradient[1]
    assert (expected.gradients <= found.bound / np.arange(1, 21)).all()


# Bad input.

RIGHT: dict[str, Any] = {"rounds": 10, "smoothness": 1.0, "clients": 10, "clients_per_round": 5}
CONVEX = RIGHT | {"squared_distance": 1.0, "squared_gradients": 1.0}
STRONGLY = CONVEX | {"strong_convexity": 0.1}
NONCONVEX = RIGHT | {"gap": 1.0, "squared_distances": 1.0}


@pytest.mark.parametrize(
    ("bound", "arguments", "message"),
    [
        (feddyn_convex, CONVEX | {"rounds": 0}, "rounds = 0"),
        (feddyn_convex, CONVEX | {"smoothness": 0.0}, "smoothness = 0.0"),
        (feddyn_convex, CONVEX | {"clients": 0}, "clients = 0"),
        (feddyn_convex, CONVEX | {"clients_per_round": 11}, "clients_per_round = 11; .* 1 to 10"),
        (feddyn_convex, CONVEX | {"squared_distance": -1.0}, "squared_distance = -1.0"),
        (feddyn_convex, CONVEX | {"squared_gradients": math.nan}, "squared_gradients = nan"),
        (feddyn_convex, CONVEX | {"alpha": 24.9}, "alpha = 24.9; .* at least 25 L = 25"),
        (feddyn_convex, CONVEX | {"alpha": math.inf}, "alpha = inf"),
        (feddyn_strongly_convex, STRONGLY | {"squared_distance": -1.0}, "squared_distance = -1.0"),
        (feddyn_strongly_convex, STRONGLY | {"squared_gradients": -1.0}, "squared_gradients = -1"),
        (feddyn_strongly_convex, STRONGLY | {"strong_convexity": 0.0}, "strong_convexity = 0.0"),
        (feddyn_strongly_convex, STRONGLY | {"strong_convexity": 1.1}, "above 0 and at most 1"),
        (feddyn_strongly_convex, STRONGLY | {"alpha": 29.0}, r"max\(5 mu N / K, 30 L\) = 30"),
        (feddyn_nonconvex, NONCONVEX | {"gap": -1.0}, "gap = -1.0"),
        (feddyn_nonconvex, NONCONVEX | {"squared_distances": math.inf}, "squared_distances = inf"),
        (feddyn_nonconvex, NONCONVEX | {"alpha": 39.0}, "at least 20 L N / K = 40"),
    ],
)
def test_numbers_out_of_range_are_refused(
    bound: Callable[..., FedDynBound], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        bound(**arguments)
