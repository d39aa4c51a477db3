"""Each method's functions, called as a round calls them, against the formulas it documents.

Numbers are random and have several arrays, so that no two terms can be taken for each other.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

import fedprox as fp
from fedprox.algorithms.base import ClientContext, HParams, Memory, Own, Solution
from fedprox.algorithms.fednova import geometric
from fedprox.algorithms.fedprox import ADAPTIVE_MU
from fedprox.algorithms.personal import fine_tuning, second_pass
from fedprox.algorithms.reporting import reporting

Flat = NDArray[np.float64]
RATE, SHARE, STEPS, SIZE, LOSS = 0.25, 0.375, 6, 1.5, 0.8


def numbers(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return {"a": jnp.asarray(rng.normal(size=2), jnp.float32), "b": jnp.float32(rng.normal())}


def flat(tree: Any) -> Flat:
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


W, WK, GRADIENT, MEAN, STATE, OTHER = map(numbers, range(6))
"""w^t, w_k, grad F_k(w^t), a mean of messages, and what clients and servers keep."""

w, wk, gradient, mean, kept, other = map(flat, (W, WK, GRADIENT, MEAN, STATE, OTHER))


def same(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(flat(actual), expected, rtol=2e-5, atol=1e-6)


def of(method: fp.Algorithm, **values: float) -> HParams:
    """What the functions of a method receive: its hyperparameters and those of the round."""
    given = {
        name: value[0] if isinstance(value, tuple) else value
        for name, value in method.hparams.items()
    }
    given |= {"learning_rate": RATE, "participation": SHARE} | values
    return {name: jnp.float32(value) for name, value in given.items()}


def context(state: Any = None, memory: Any = None) -> ClientContext:
    return ClientContext(GRADIENT, state, jnp.float32(SIZE), jnp.float32(LOSS), memory)


def first_own(method: fp.Algorithm) -> Any:
    """A client's first state."""
    assert method.client.state is not None
    return method.client.state(W)


def posed(
    problem: fp.Subproblem,
    *,
    start: Flat = w,
    mu: float | None = None,
    anchor: Flat | None = None,
    linear: Flat | None = None,
) -> None:
    """Check a local problem."""
    same(problem.start, start)
    terms = (problem.mu, mu), (problem.anchor, anchor), (problem.linear, linear)
    for actual, expected in terms:
        assert (actual is None) == (expected is None)
        if expected is not None:
            same(actual, expected)


def answer(
    method: fp.Algorithm, state: Any, own: Any, steps: int = STEPS, memory: Any = None
) -> Any:
    """What a client sends, and its next state."""
    solution = Solution(fp.Subproblem(W), WK, jnp.int32(steps))
    return method.client.message(state, of(method), context(own, memory), solution)


@pytest.mark.parametrize("method", [fp.fedavg(), fp.fedsgd(), fp.centralised(), fp.fedprox(mu=0.7)])
def test_fedavg_and_fedprox(method: fp.Algorithm) -> None:
    proximal: dict[str, Any] = {"mu": 0.7, "anchor": w} if method.name == "fedprox" else {}
    posed(method.subproblem(method.server.init(W), of(method), context()), **proximal)
    sent, own = answer(method, W, STATE)
    same(sent, wk - w)
    same(own, kept)
    same(method.server.update(W, MEAN, of(method)), w + mean)
    same(method.server.params(W), w)
    assert method.client.state is None
    same(method.client.size(MEAN), [np.linalg.norm(mean)])


def test_feddane() -> None:
    method = fp.feddane(mu=0.7)
    assert method.first.exchange is not None
    state = method.first.exchange(method.server.init(W), MEAN, of(method))
    posed(method.subproblem(state, of(method), context()), mu=0.7, anchor=w, linear=mean - gradient)
    after = method.server.update(state, OTHER, of(method))
    same(after.params, w + other)
    same(after.gradient, mean)
    same(method.first.sent(GRADIENT), gradient)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold(option: int) -> None:
    method = fp.scaffold(option=option, server_learning_rate=0.6)
    first = method.server.init(W)
    same(first.params, w)
    same(first.control, 0 * w)
    same(first_own(method), 0 * w)
    state = first._replace(control=OTHER)
    posed(method.subproblem(state, of(method), context(STATE)), linear=other - kept)
    (step, change), own = answer(method, state, STATE)
    new = gradient if option == 1 else kept - other + (w - wk) / (STEPS * RATE)
    same(step, wk - w)
    same(change, new - kept)
    same(own, new)
    if option == 2:
        (_, change), own = answer(method, state, STATE, steps=0)
        same(change, 0 * w)
        same(own, kept)
    after = method.server.update(state, (MEAN, GRADIENT), of(method))
    same(after.params, w + 0.6 * mean)
    same(after.control, other + SHARE * gradient)


@pytest.mark.parametrize("balance", [False, True])
def test_feddyn(balance: bool) -> None:
    method = fp.feddyn(alpha=0.6, balance=balance)
    same(first_own(method), 0 * w)
    first = method.server.init(W)
    same(first.h, 0 * w)
    alpha = 0.6 / SIZE if balance else 0.6
    posed(method.subproblem(first, of(method), context(STATE)), mu=alpha, anchor=w, linear=-kept)
    sent, own = answer(method, first, STATE)
    same(sent, wk - w)
    same(own, kept - alpha * (wk - w))
    after = method.server.update(first._replace(h=OTHER), MEAN, of(method))
    h = other - 0.6 * SHARE * mean
    same(after.h, h)
    same(after.params, w + mean - h / 0.6)


@pytest.mark.parametrize("average", ["all", "active"])
def test_fedsplit(average: Any) -> None:
    method = fp.fedsplit(step_size=0.4, average=average)
    same(first_own(method), w)
    posed(method.subproblem(W, of(method), context(STATE)), mu=1 / 0.4, anchor=2 * w - kept)
    sent, own = answer(method, W, STATE)
    same(own, kept + 2 * (wk - w))
    ahead, step = sent
    same(step, 2 * (wk - w))
    same(ahead, kept + 2 * (wk - w) - w)
    same(method.client.size(sent), [2 * np.linalg.norm(wk - w)])
    after = method.server.update(W, (MEAN, OTHER), of(method))
    same(after, w + mean if average == "active" else w + SHARE * other)


def test_fedadmm() -> None:
    method = fp.fedadmm(rho=0.6, server_learning_rate=0.3)
    first = first_own(method)
    same(first, np.concatenate([w, 0 * w]))
    own = (STATE, OTHER)
    posed(method.subproblem(W, of(method), context(own)), mu=0.6, anchor=w, linear=other)
    sent, after = answer(method, W, own)
    dual = other + 0.6 * (wk - w)
    same(after, np.concatenate([wk, dual]))
    same(flat(sent[0]) + flat(sent[1]), wk + dual / 0.6 - kept - other / 0.6)
    same(method.client.size(sent), [np.linalg.norm(wk - w)])
    same(method.server.update(W, (MEAN, OTHER), of(method)), w + 0.3 * (mean + other))


def test_fedexp() -> None:
    method = fp.fedexp(epsilon=0.3)
    state = method.server.init(W)
    posed(method.subproblem(state, of(method), context()))
    sent, _ = answer(method, state, None)
    same(sent[0], wk - w)
    same(sent[1], [np.sum((wk - w) ** 2)])
    same(method.client.size(sent), [np.linalg.norm(wk - w)])
    bound = 2 * (np.sum(mean**2) + 0.3)
    for factor in (0.5, 3.0):
        after = method.server.update(state, (MEAN, jnp.float32(factor * bound)), of(method))
        same(method.server.params(after), w + max(1.0, factor) * mean)


@pytest.mark.parametrize("given", [{}, {"mu": 0.7}, {"mu": 5.0}, {"momentum": 0.75}])
def test_fednova(given: dict[str, float]) -> None:
    method, mu, rho = fp.fednova(**given), given.get("mu", 0.0), given.get("momentum", 0.0)
    posed(method.subproblem(W, of(method), context()), mu=mu or None, anchor=w if mu else None)
    for steps in (0, STEPS):
        proximal = [abs(1 - RATE * mu) ** j for j in range(steps)]
        momentum = [(1 - rho**j) / (1 - rho) for j in range(1, steps + 1)]
        length = sum(momentum if rho else proximal)
        sent, own = answer(method, W, STATE, steps=steps)
        same(sent[1], [length])
        same(sent[0], (w - wk) / (length or 1))
        same(own, kept)
        same(method.client.size(sent), [np.linalg.norm(w - wk) / (length or 1)])
    after = method.server.update(W, (MEAN, jnp.float32(4.0)), of(method))
    same(after, w - 4 * mean)
    optimizer: Any = method.solver(fp.Solver(0.1, 4, epochs=1)).optimizer
    assert optimizer.keywords == {"momentum": rho} if rho else optimizer is optax.sgd


def test_the_sum_of_powers_has_no_hole() -> None:
    for x in (0.0, 0.3, 1.9, 2.0):
        got = geometric(jnp.float32(x), jnp.float32(5))
        assert float(got) == pytest.approx(sum(abs(1 - x) ** j for j in range(5)), rel=1e-5)


def test_fedopt() -> None:
    method = fp.fedopt(functools.partial(optax.sgd, momentum=0.5), server_learning_rate=0.3)
    state = method.server.init(W)
    posed(method.subproblem(state, of(method), context()))
    state = method.server.update(state, MEAN, of(method))
    same(method.server.params(state), w + 0.3 * mean)
    state = method.server.update(state, OTHER, of(method))
    same(method.server.params(state), w + 0.3 * mean + 0.3 * (other + 0.5 * mean))
    decayed = fp.fedopt(functools.partial(optax.adamw, weight_decay=1.0, b1=0.0, b2=0.0, eps=0.0))
    after = decayed.server.update(
        decayed.server.init(W), MEAN, of(decayed, server_learning_rate=0.1)
    )
    same(decayed.server.params(after), w + 0.1 * (np.sign(mean) - w))


@pytest.mark.parametrize(
    ("q", "loss", "least"), [(0.0, LOSS, 0), (2.0, LOSS, 0), (2.0, 1e-8, 0), (0.5, 0.0, 1e-10)]
)
def test_qffl(q: float, loss: float, least: float) -> None:
    method, known = fp.qffl(q=q), context(STATE)._replace(loss=jnp.float32(loss))
    posed(method.subproblem(W, of(method), known))
    solution = Solution(fp.Subproblem(W), WK, jnp.int32(STEPS))
    sent, own = method.client.message(W, of(method), known, solution)
    g, power = (w - wk) / RATE, max(loss, least) ** q
    np.testing.assert_allclose(flat(sent[0]), power * g, rtol=2e-5)
    curvature = q * max(loss, least) ** (q - 1) * np.sum(g**2) + power / RATE
    np.testing.assert_allclose(sent[1], curvature, rtol=2e-5)
    same(own, kept)
    np.testing.assert_allclose(method.client.size(sent), np.linalg.norm(power * g), rtol=2e-5)
    for curvature in (0.0, 3.0):
        after = method.server.update(W, (MEAN, curvature), of(method))
        same(after, w - mean / (curvature or 1.0))
    negative = known._replace(loss=jnp.float32(-1))
    _, curvature = method.client.message(W, of(method), negative, solution)[0]
    assert np.isnan(curvature)


@pytest.mark.parametrize("lite", [False, True])
def test_mime(lite: bool) -> None:
    method = fp.mime(beta=0.6, lite=lite)
    first = method.server.init(W)
    same(first.momentum, 0 * w)
    state = first._replace(momentum=OTHER)
    sent, own = answer(method, state, STATE)
    same(own, kept)
    if lite:
        posed(method.subproblem(state, of(method), context()), linear=0.6 * other)
        same(sent, np.concatenate([wk - w, gradient]))
        after = method.server.update(state, (MEAN, GRADIENT), of(method))
        same(after.params, w + mean)
        same(after.momentum, gradient + 0.6 * other)
        return
    assert method.first.exchange is not None
    moved = method.first.exchange(state, MEAN, of(method))
    same(moved.momentum, mean + 0.6 * other)
    same(sent, wk - w)
    posed(method.subproblem(moved, of(method), context()), linear=mean - gradient + 0.6 * other)
    after = method.server.update(moved, STATE, of(method))
    same(after.params, w + kept)
    same(after.momentum, mean + 0.6 * other)


def test_feddc() -> None:
    method = fp.feddc(alpha=0.6)
    first, own = method.server.init(W), first_own(method)
    for part in (first.drift, first.change, *own):
        same(part, 0 * w)
    state = first._replace(drift=STATE, change=OTHER)
    own = (MEAN, STATE)
    problem = method.subproblem(state, of(method), context(own))
    posed(problem, mu=0.6, anchor=w - mean, linear=kept - other)
    (sent, change), after = answer(method, state, own)
    rate = (wk - w) / (STEPS * RATE)
    same(sent, wk - w)
    same(change, rate - kept)
    same(after, np.concatenate([mean + wk - w, rate]))
    (_, change), after = answer(method, state, own, steps=0)
    same(after[1], kept)
    same(change, 0 * w)
    new = method.server.update(state, (MEAN, GRADIENT), of(method))
    same(new.drift, kept + SHARE * mean)
    same(new.params, w + mean + kept + SHARE * mean)
    same(new.change, other + SHARE * gradient)


def test_fedcm() -> None:
    method = fp.fedcm(alpha=0.4)
    first = method.server.init(W)
    same(first.direction, 0 * w)
    state = first._replace(direction=STATE)
    posed(method.subproblem(state, of(method), context()), linear=(1 / 0.4 - 1) * kept)
    sent, own = answer(method, state, None)
    same(sent[0], wk - w)
    same(sent[1], [STEPS])
    assert own is None
    same(method.client.size(sent), [np.linalg.norm(wk - w)])
    new = method.server.update(state, (MEAN, jnp.float32(2.5)), of(method))
    same(new.params, w + mean)
    same(new.direction, -mean / (RATE / 0.4 * 2.5))
    still = jax.tree.map(jnp.zeros_like, W), jnp.float32(0)
    same(method.server.update(state, still, of(method)).direction, kept)


def test_moon_keeps_the_local_model() -> None:
    method = fp.moon(mu=2.0, tau=0.3)
    for was, last in ((True, kept), (False, w)):
        problem = method.subproblem(W, of(method), context(Own(STATE, jnp.bool_(was))))
        posed(problem)
        same(problem.given, np.concatenate([[2.0, 0.3], w, last]))
    sent, after = answer(method, W, Own(STATE, jnp.bool_(True)))
    same(sent, wk - w)
    same(after.model, wk)
    assert bool(after.trained)


@pytest.mark.parametrize("count", [1, 2])
def test_fedgkds_teacher_is_the_mean_of_the_last_models(count: int) -> None:
    method = fp.fedgkd(gamma=0.4, models=count)
    state, models = method.server.init(W), [w]
    for step in (MEAN, OTHER, GRADIENT):
        problem = method.subproblem(state, of(method), context())
        posed(problem, start=models[-1])
        same(problem.given, np.concatenate([[0.4], np.mean(models[-count:], axis=0)]))
        state = method.server.update(state, step, of(method))
        models.append(models[-1] + flat(step))
        same(method.server.params(state), models[-1])


def test_fedlcs_margins() -> None:
    method = fp.fedlc(tau=0.5)
    counted = context()._replace(labels=jnp.array([16.0, 0.0, 1.0]))
    problem = method.subproblem(W, of(method), counted)
    posed(problem)
    assert problem.given.tolist() == [0.25, 1e9, 0.5]


def test_scaffnew() -> None:
    method = fp.scaffnew(p=0.3)
    first = first_own(method)
    same(first, np.concatenate([0 * w, w]))
    own = (STATE, OTHER)
    h = kept + 0.3 / RATE * (w - other)
    posed(method.subproblem(W, of(method), context(own)), linear=-h)
    sent, after = answer(method, W, own)
    same(sent, wk - w)
    same(after, np.concatenate([h, wk]))


def test_ditto_and_its_second_pass() -> None:
    method = fp.ditto(lam=0.6)
    posed(method.subproblem(W, of(method), context()))
    second = second_pass(method)
    new, old = Own(STATE, jnp.bool_(False)), Own(STATE, jnp.bool_(True))
    posed(second.subproblem(W, of(method), context(new)), mu=0.6, anchor=w)
    posed(second.subproblem(W, of(method), context(old)), start=kept, mu=0.6, anchor=w)
    for own in (new, old):
        sent, after = answer(second, W, own)
        same(sent, [0.0])
        same(after.model, wk)
        assert bool(after.trained)
    assert not bool(first_own(method).trained)
    same(first_own(method).model, w)


@pytest.mark.parametrize(("inner_steps", "count"), [(None, 0), (3, 0), (3, 2)])
def test_pfedme(inner_steps: int | None, count: int) -> None:
    """After the last step of an envelope, and before it."""
    method = fp.pfedme(lam=0.6, eta=0.5, beta=0.7, inner_steps=inner_steps)
    assert method.client.memory is not None
    moved, steps = method.client.memory.init(W, context())
    same(moved, 0 * w)
    assert int(steps) == 0
    memory = OTHER, jnp.int32(count)
    posed(method.subproblem(W, of(method), context(memory=memory)), mu=0.6, anchor=w + other)
    moved, steps = method.client.memory.update(W, of(method), context(memory=memory), WK)
    ends = inner_steps is not None and count + 1 == inner_steps
    step = other - 0.5 * 0.6 * (w + other - wk)
    same(moved, step if ends else other)
    assert int(steps) == (0 if ends else count + 1)
    sent, own = answer(method, W, None, memory=memory)
    same(sent, step if count else other)
    same(own.model, wk)
    assert bool(own.trained)
    same(method.server.update(W, MEAN, of(method)), w + 0.7 * mean)


def test_fine_tuning() -> None:
    method = fine_tuning(fp.feddyn(alpha=0.6).with_solver(learning_rate=0.2), 7)
    first = Own(W, jnp.bool_(False))
    posed(method.subproblem(OTHER, of(method), context(first)))
    sent, own = answer(method, OTHER, first)
    same(sent, [0.0])
    same(own.model, wk)
    assert bool(own.trained)
    same(method.server.update(W, jnp.float32(0), of(method)), w)
    used = method.solver(fp.Solver(0.1, 4, epochs=3))
    assert (used.steps, used.epochs, used.learning_rate) == (7, None, 0.2)


@pytest.mark.parametrize("evaluated", ["cohort", "clients"])
def test_another_model_that_is_evaluated(evaluated: Any) -> None:
    """FedDyn inside, whose state, messages and client states are its own."""
    inner = fp.feddyn(alpha=0.6)
    method = reporting(inner, evaluated)
    assert inner.client.state is not None
    assert method.server.evaluated is not None
    first = method.server.init(W)
    same(method.server.params(first), w)
    same(method.server.evaluated(first), w)
    state = first._replace(state=first.state._replace(h=OTHER), mean=STATE)
    own = first_own(method)
    if evaluated == "clients":
        same(own, np.concatenate([0 * w, w]))
        own = own._replace(state=OTHER, last=GRADIENT)
    else:
        same(own, 0 * w)
        own = OTHER
    posed(method.subproblem(state, of(method), context(own)), mu=0.6, anchor=w, linear=-other)
    (sent, ahead), after = answer(method, state, own)
    same(sent, wk - w)
    same(ahead, wk - (gradient if evaluated == "clients" else w))
    if evaluated == "clients":
        same(after.last, wk)
        after = after.state
    same(after, other - 0.6 * (wk - w))
    same(method.client.size((sent, ahead)), [np.linalg.norm(wk - w)])
    new = method.server.update(state, (MEAN, GRADIENT), of(method))
    same(new.state, flat(inner.server.update(state.state, MEAN, of(method))))
    same(new.mean, kept + SHARE * gradient if evaluated == "clients" else w + gradient)
    same(method.server.evaluated(new), flat(new.mean))
    assert reporting(inner, "server") is inner


@pytest.mark.parametrize("evaluated", ["cohort", "clients"])
def test_first_exchanges_and_memories_are_the_inner_methods(evaluated: Any) -> None:
    def add_up(state: Any, hparams: Any, context: ClientContext, params: Any) -> Any:
        parts = state.params, state.gradient, context.memory, params
        return jax.tree.map(lambda a, b, c, d: hparams["mu"] * (a + 2 * b + 4 * c + 8 * d), *parts)

    inner = fp.feddane(mu=0.5)._replace(
        client=fp.feddane(mu=0.5).client._replace(
            memory=Memory(lambda state, _: state.gradient, add_up)
        )
    )
    method = reporting(inner, evaluated)
    assert method.first.exchange is not None
    assert method.client.memory is not None
    first = method.server.init(W)._replace(mean=STATE)
    after = method.first.exchange(first, MEAN, of(method))
    same(after.state.gradient, mean)
    same(after.state.params, w)
    same(after.mean, kept)
    known = context(method.client.state and first_own(method), memory=OTHER)
    same(method.client.memory.init(after, known), mean)
    expected = 0.5 * (w + 2 * mean + 4 * other + 8 * wk)
    same(method.client.memory.update(after, of(method), known, WK), expected)
    assert reporting(fp.fedavg(), evaluated).first.exchange is None
    assert reporting(fp.fedavg(), evaluated).client.memory is None
    assert method.begun(after, known._replace(memory=None)).memory is not None
    assert fp.fedavg().begun(W, context()).memory is None


def test_adaptive_mu_moves_by_a_tenth_and_not_below_zero() -> None:
    hparams: HParams = {"mu": jnp.array([0.25, 0.05]), "learning_rate": jnp.float32(RATE)}
    trend = ADAPTIVE_MU.init(hparams, jnp.array([9.0, 9.0]))
    seen = []
    for loss in (8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 3.0, np.nan, 2.0, 2.5):
        hparams, trend = ADAPTIVE_MU.update(hparams, trend, jnp.full(2, loss))
        seen.append(np.asarray(hparams["mu"]))
        assert float(hparams["learning_rate"]) == RATE
    np.testing.assert_allclose(np.array(seen)[:, 0], [0.25] * 4 + [0.15] * 3 + [0.25] * 2 + [0.35])
    np.testing.assert_allclose(np.array(seen)[:, 1], [0.05] * 4 + [0.0] * 3 + [0.1] * 2 + [0.2])


def described(method: fp.Algorithm) -> tuple[Any, ...]:
    """What the engine reads of a method beside its functions."""
    read = {
        "gradient": method.first.gradient,
        "loss": method.first.loss,
        "labels": method.first.labels,
    }
    read["probe"] = method.first.probe is not None
    first = method.first.reads and next(what for what, reads in read.items() if reads)
    cohort = method.first.exchange is not None and method.first.cohort
    return method.stragglers, method.average, method.communication, first, cohort, method.everyone


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (fp.fedsgd(), ("drop", "rows", 1, False, False, False)),
        (fp.fedavg(), ("drop", "rows", 1, False, False, False)),
        (fp.fedavg(average="clients"), ("drop", "clients", 1, False, False, False)),
        (fp.centralised(), ("keep", "rows", 1, False, False, False)),
        (fp.fedprox(mu=0.1), ("keep", "rows", 1, False, False, False)),
        (fp.feddane(mu=0.1), ("keep", "rows", 2, "gradient", "another", False)),
        (fp.scaffold(), ("keep", "clients", 2, False, False, False)),
        (fp.scaffold(option=1), ("keep", "clients", 2, "gradient", False, False)),
        (fp.feddyn(alpha=0.1), ("keep", "clients", 1, False, False, False)),
        (fp.fedsplit(2.0), ("keep", "clients", 1, False, False, False)),
        (fp.fedopt(optax.adam), ("drop", "rows", 1, False, False, False)),
        (fp.ditto(lam=0.1), ("keep", "rows", 1, False, False, False)),
        (fp.pfedme(2.0, eta=0.1), ("keep", "clients", 1, False, False, False)),
        (fp.fedadmm(0.5), ("keep", "clients", 1, False, False, False)),
        (fp.fedexp(), ("drop", "clients", 1, False, False, False)),
        (fp.fednova(), ("keep", "rows", 1, False, False, False)),
        (fp.qffl(q=2), ("drop", "clients", 1, "loss", False, False)),
        (fp.mime(), ("keep", "clients", 2, "gradient", "own", False)),
        (fp.mime(lite=True), ("keep", "clients", 2, "gradient", False, False)),
        (fp.fedcm(alpha=0.5), ("keep", "clients", 1.5, False, False, False)),
        (fp.scaffnew(p=0.3), ("drop", "clients", 1, False, False, True)),
        (fp.fedsam(rho=0.1), ("drop", "rows", 1, False, False, False)),
        (fp.moon(mu=1.0), ("drop", "rows", 1, False, False, False)),
        (fp.feddc(alpha=0.1), ("keep", "rows", 2, False, False, False)),
        (fp.fedlc(tau=1.0), ("drop", "rows", 1, "labels", False, False)),
        (fp.fedgkd(gamma=0.2), ("drop", "rows", 1, False, False, False)),
        (fp.fedper(["head"]), ("drop", "rows", 1, False, False, False)),
        (fp.fedrep(["head"]), ("keep", "rows", 1, False, False, False)),
        (fp.ifca(3), ("drop", "rows", 2, "probe", False, False)),
        (fp.ifca(3, local=fp.scaffold()), ("keep", "clients", 4, "probe", False, False)),
        (fp.fedgkd(gamma=0.2, models=2), ("drop", "rows", 1.5, False, False, False)),
    ],
)
def test_what_a_round_does_for_a_method(method: fp.Algorithm, expected: tuple[Any, ...]) -> None:
    assert described(method) == expected
    assert method.pooled == (method.name == "centralised")
    refuses = "fednova", "fedexp", "qffl", "scaffnew", "ifca", "fedcm"
    assert bool(method.not_private) == (method.name in refuses or described(method)[4] == "own")


@pytest.mark.parametrize(
    ("make", "name", "positive"),
    [
        (fp.fedprox, "mu", False),
        (fp.feddane, "mu", False),
        (fp.ditto, "lam", False),
        (fp.qffl, "q", False),
        (fp.mime, "beta", False),
        (fp.fednova, "mu", False),
        (fp.fedsam, "rho", False),
        (fp.moon, "mu", False),
        (functools.partial(fp.moon, 1.0), "tau", True),
        (fp.feddc, "alpha", True),
        (fp.fedcm, "alpha", True),
        (fp.fedlc, "tau", True),
        (fp.fedgkd, "gamma", False),
        (fp.feddyn, "alpha", True),
        (fp.fedsplit, "step_size", True),
        (fp.fedexp, "epsilon", True),
        (fp.scaffold, "server_learning_rate", True),
        (fp.fedadmm, "rho", True),
        (functools.partial(fp.fedadmm, 1.0), "server_learning_rate", True),
        (functools.partial(fp.fedopt, optax.adam), "server_learning_rate", True),
        (functools.partial(fp.pfedme, eta=1.0), "lam", True),
        (functools.partial(fp.pfedme, 1.0), "eta", True),
        (functools.partial(fp.pfedme, 1.0, eta=1.0), "beta", True),
    ],
)
def test_hyperparameters_out_of_range_are_refused(make: Any, name: str, positive: bool) -> None:
    method = getattr(make, "func", make).__name__
    for value in (-0.5, math.inf, math.nan, 1e39, [0.5, -0.5], "1", *[0.0, 1e-40] * positive):
        with pytest.raises(fp.InputError, match=f"^{method}: {name} = .*; it (must be|is beyond) "):
            make(**{name: value})
    for allowed in (0.5, *[0.0] * (not positive)):
        assert make(**{name: [allowed, 0.25]}).hparams[name] == (allowed, 0.25)


def test_a_method_is_changed_in_what_is_named_alone() -> None:
    method = fp.fedprox(mu=0.7).with_solver(epochs=3, clip=0.5)
    assert method.with_solver(steps=2).settings == {"clip": 0.5, "steps": 2}
    assert method.with_solver(clip=1.0).settings == {"epochs": 3, "clip": 1.0}
    assert method.settings == {"epochs": 3, "clip": 0.5}
    used = method.solver(fp.Solver(0.1, 4, epochs=1))
    assert (used.epochs, used.clip, used.learning_rate) == (3, 0.5, 0.1)
    with pytest.raises(fp.InputError, match=r"^fedsgd: its batch_size is always all, not 5"):
        fp.fedsgd().with_solver(batch_size=5).solver(fp.Solver(0.1, 4, epochs=1))
