"""Clipping and noise: what one client can change, and how much noise hides it."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.algorithms.base import ClientContext, Memory, Personal, Solution
from fedprox.engine.compiled import layout
from fedprox.parts.part import sound
from fedprox.parts.privacy.setting import Clipped, clip_to, private
from fedprox.subproblem import Subproblem
from tests.quadratics import quadratic_federation, quadratic_model, random_quadratics
from tests.variants import mostly_slow

CLIP = 0.3
METHODS: dict[str, fp.Algorithm] = {
    "fedsgd": fp.fedsgd(),
    "fedavg": fp.fedavg(),
    "fedprox": fp.fedprox(mu=0.5),
    "feddane": fp.feddane(mu=0.5),
    "scaffold": fp.scaffold(),
    "option 1": fp.scaffold(option=1),
    "feddyn": fp.feddyn(alpha=0.5),
    "fedsplit": fp.fedsplit(step_size=0.5, average="all"),
    "mimelite": fp.mime(beta=0.5, lite=True),
    "ditto": fp.ditto(lam=0.5),
    "pfedme": fp.pfedme(lam=1.0, eta=0.5, inner_steps=3),
    "fedadmm": fp.fedadmm(rho=0.5, server_learning_rate=0.5),
    "fedsam": fp.fedsam(rho=0.5),
    "feddc": fp.feddc(alpha=0.5),
    "fedopt": fp.fedopt(optimizer=optax.sgd, server_learning_rate=1.0),
}
SENT = ("feddane", "scaffold", "option 1", "feddyn", "mimelite", "ditto", "fedopt")
"""Methods that differ in what is sent and read: two exchanges, state of clients and of the server,
gradients over all rows, own models, another server's step."""

SOLVER = fp.Solver(0.1, "all", steps=3)
A, B = random_quadratics(0, 6, 3)
START = np.array([1.0, -1.0, 2.0])


def run(
    method: fp.Algorithm, privacy: fp.Privacy | None, *, seed: int = 0, **options: Any
) -> fp.Run:
    """A run on quadratics, by default with everyone in every round."""
    defaults: dict[str, Any] = {
        "federation": quadratic_federation(A, B),
        "model": quadratic_model(START),
        "solver": SOLVER,
        "cohort": fp.Cohort(len(B)),
        "rounds": 1,
        "evaluation": fp.Evaluation(gradients=False),
    }
    (only,) = fp.simulate(
        methods=method, privacy=privacy, seed=seed, progress=False, **(defaults | options)
    )
    return only


@pytest.mark.slow
@pytest.mark.parametrize("name", SENT)
def test_without_noise_and_bound_it_is_the_method_with_equal_weights(name: str) -> None:
    federation = quadratic_federation(A, B, rows=[1, 5, 2, 1, 3, 9])
    options: dict[str, Any] = {"federation": federation, "cohort": fp.Cohort(4), "rounds": 3}
    plain = run(METHODS[name]._replace(average="clients"), None, **options)
    none = run(METHODS[name], fp.Privacy(math.inf, noise_multiplier=0.0), **options)
    np.testing.assert_allclose(none.params, plain.params, rtol=1e-6, atol=1e-7)
    assert none.final.epsilon == math.inf


@pytest.mark.parametrize("name", mostly_slow(SENT, "scaffold"))
def test_no_client_moves_the_model_by_more_than_its_bound(name: str) -> None:
    """Compared with a client whose update is not finite, and so counts as zero."""
    privacy = fp.Privacy(CLIP, noise_multiplier=0.0)

    def run_with(b: float) -> fp.Run:
        federation = quadratic_federation([10 * A[0], *A[1:]], [np.full(3, b), *B[1:]])
        return run(METHODS[name], privacy, federation=federation, solver=solver)

    # after one small step only, the others' updates hardly depend on FedDANE's first release
    solver = fp.Solver(0.01, "all", steps=1) if name == "feddane" else SOLVER
    absent = run_with(3e38)
    assert absent.final.faulty == (2 if name == "feddane" else 1)
    moved = [
        float(np.linalg.norm(np.asarray(run_with(b).params) - np.asarray(absent.params)))
        for b in (0.0, -1e17, 1e30)
    ]
    factor = {"feddyn": 2.0, "feddane": 1.01}.get(name, 1.0)  # FedDyn's h moves the model too
    assert max(moved) <= factor * CLIP / len(B) * (1 + 1e-4)
    # FedDANE cancels the client's own gradient; SCAFFOLD shares the bound with control variates
    assert max(moved) >= (0.01 if name == "feddane" else 0.1) * CLIP / len(B)


NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)
CLIPPED, SOUND = jax.jit(clip_to), jax.jit(sound)


@given(st.lists(NUMBERS, min_size=4, max_size=4), st.floats(1e-6, 1e6))
@settings(max_examples=100)
def test_what_a_client_sends_is_bounded_or_screened(numbers: list[float], bound: float) -> None:
    message = {"a": np.float32(numbers[0]), "b": np.asarray(numbers, np.float32)}
    clipped, norm = CLIPPED(np.float32(bound), message)
    values = np.concatenate([np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(clipped)])
    if SOUND(clipped):
        assert np.linalg.norm(values) <= bound * (1 + 1e-5)
        exact = np.concatenate([[numbers[0]], numbers])
        clearly = bound * (1 - 1e-6)  # norms are computed in single precision
        if np.linalg.norm(exact) <= clearly and np.abs(exact).max() > 1e-15:
            np.testing.assert_array_equal(values, exact.astype(np.float32))
    else:
        assert not np.isfinite(numbers).all() or not math.isfinite(float(norm))


@pytest.mark.slow
def test_a_method_that_evaluates_another_model_still_does() -> None:
    halved = fp.fedavg()._replace(
        name="half", server=fp.fedavg().server._replace(evaluated=lambda state: state / 2)
    )
    privacy = fp.Privacy(math.inf, noise_multiplier=0.0)
    half, whole = run(halved, privacy), run(fp.fedavg(), privacy)
    np.testing.assert_array_equal(half.params, np.asarray(whole.params) / 2)


def test_all_arrays_of_a_message_are_clipped_together() -> None:
    method = private(fp.scaffold(), fp.Privacy(CLIP, noise_multiplier=1.0), 1.0, 2, 4)
    state, w = method.server.init(jnp.zeros(2)), jnp.array([30.0, 40.0])
    context = ClientContext(None, jnp.zeros(2), jnp.float32(1))
    solution = Solution(Subproblem(jnp.zeros(2)), w, jnp.int32(10))
    given = {"learning_rate": 0.1, "participation": 0.5, "server_learning_rate": 1.0}
    hparams = {name: jnp.float32(value) for name, value in given.items()}
    (sent, _), own = jax.jit(method.client.message)(state, hparams, context, solution)
    step, change = sent
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([step, change])), CLIP, rtol=1e-6)
    np.testing.assert_allclose(change, -step, rtol=1e-6)  # both are scaled by the same factor
    np.testing.assert_allclose(own, -w, rtol=1e-6)  # the client's state is not sent


def test_a_method_reads_the_expected_share_and_never_who_came() -> None:
    read = []

    def reads(hparams: Any, result: Any) -> Any:
        read.append(float(hparams["participation"]))
        return result

    def problem(state: Any, hparams: Any, _: Any) -> Subproblem:
        return reads(hparams, Subproblem(state))

    memory = Memory(lambda state, _: state, lambda state, hparams, *_: reads(hparams, state))
    given = fp.Algorithm(
        "reader",
        problem,
        hparams={},
        stragglers="keep",
        personal=Personal(lambda state, _: state, problem, lambda state, _: state),
        first=fp.First(gradient=True, exchange=lambda state, _, hparams: reads(hparams, state)),
        client=fp.OnClient(
            message=lambda state, hparams, *_: reads(hparams, (state, None)), memory=memory
        ),
        server=fp.OnServer(update=lambda state, _, hparams: reads(hparams, state)),
    )
    method = private(given, fp.Privacy(1.0, noise_multiplier=0.0), 0.0, 3, 12)
    assert method.first.exchange is not None
    assert method.client.memory is not None
    assert method.personal is not None
    assert method.personal.subproblem is not None
    w, hparams = jnp.zeros(2), {"participation": jnp.float32(0.75)}
    state, context = method.server.init(w), ClientContext(None, None, jnp.float32(1))
    solution = Solution(method.subproblem(state, hparams, context), w, jnp.int32(1))
    sent, _ = method.client.message(state, hparams, context, solution)
    method.server.update(state, sent, hparams)
    method.first.exchange(state, w, hparams)
    assert method.client.memory.init(state, context) is w
    method.client.memory.update(state, hparams, context, w)
    method.personal.subproblem(state, hparams, context)
    assert read == [3 / 12] * 6
    assert method.average == "clients"  # a weight of 1 for each, whatever its rows


DIMENSION = 20_000
Z, BOUND, COHORT = 1.7, 0.4, 3
FALSE_ALARM = 5.0
"""Standard errors of a sample variance; a correct one is farther away with probability 6e-7."""


MODEL = fp.Model(
    lambda _: {"a": jnp.zeros(DIMENSION // 2), "b": jnp.zeros((2, DIMENSION // 4))},
    lambda params, x: x[:, 0] + 0.0 * params["a"][0],
    lambda outputs, y: 0.0 * outputs * y,
    None,
)
"""A model whose loss does not depend on its parameters, so that updates are zero."""


def noise_of(
    method: fp.Algorithm | list[fp.Algorithm] = fp.fedavg(),  # noqa: B008 (frozen)
    *,
    clients: int = 8,
    sampling: Any = "bernoulli",
    rounds: int = 1,
    **options: Any,
) -> list[np.ndarray[Any, Any]]:
    """The models after rounds of zero updates, a vector for each run."""
    federation = fp.Federation.from_arrays([(np.ones((2, 1)), np.ones(2))] * clients)
    runs = fp.simulate(
        federation,
        MODEL,
        method,
        solver=fp.Solver(0.1, "all", steps=1),
        cohort=fp.Cohort(COHORT, sampling),
        rounds=rounds,
        privacy=fp.Privacy(BOUND, noise_multiplier=Z, accountant="rdp"),
        evaluation=fp.Evaluation(gradients=False),
        progress=False,
        **options,
    )
    return [np.concatenate([np.ravel(a) for a in jax.tree.leaves(run.params)]) for run in runs]


def assert_variance(values: np.ndarray[Any, Any], expected: float) -> None:
    error = expected * math.sqrt(2 / len(values))
    assert abs(values.var() - expected) < FALSE_ALARM * error
    assert abs(values.mean()) < FALSE_ALARM * math.sqrt(expected / len(values))


VARIANCE = (Z * BOUND / COHORT) ** 2


@pytest.fixture(scope="module")
def points() -> list[np.ndarray[Any, Any]]:
    """The noise of a round of two sweep points, with two seeds each."""
    return noise_of(fp.fedprox(mu=[0.0, 1.0]), seed=[0, 1])


@pytest.fixture(scope="module")
def noise() -> np.ndarray[Any, Any]:
    """The noise of a round of FedAvg."""
    return noise_of()[0]


def test_the_noise_has_the_variance_that_is_accounted_for(noise: np.ndarray[Any, Any]) -> None:
    """However many clients came, in every round."""
    assert_variance(noise, VARIANCE)
    (fourth,) = noise_of(rounds=4)
    assert_variance(fourth, 4 * VARIANCE)
    assert_variance(fourth - noise, 3 * VARIANCE)


@pytest.mark.slow
def test_noise_is_added_once_whatever_the_devices(noise: np.ndarray[Any, Any]) -> None:
    (one,) = noise_of(devices=1)
    np.testing.assert_array_equal(one, noise)
    (alone,) = noise_of(clients=3, seed=3)
    assert_variance(alone, VARIANCE)


@pytest.mark.slow
def test_every_seed_sweep_point_and_method_has_noise_of_its_own(
    noise: np.ndarray[Any, Any], points: list[np.ndarray[Any, Any]]
) -> None:
    for a, b in itertools.combinations([noise, *points], 2):
        assert_variance(a - b, 2 * VARIANCE)


@pytest.mark.slow
def test_sweep_points_have_the_same_noise_whatever_they_are_computed_with(
    points: list[np.ndarray[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, in one tick, and one after another."""
    np.testing.assert_array_equal(noise_of(fp.fedprox(mu=0.0))[0], points[0])
    for batched in (True, False):
        monkeypatch.setattr(layout, "batch_points", lambda _, batched=batched: batched)
        for one, two in zip(noise_of(fp.fedprox(mu=[0.0, 1.0])), points[:2], strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_a_round_without_clients_releases_noise_too() -> None:
    cohort, offsets = fp.Cohort(COHORT, "bernoulli"), np.arange(9)
    drawn = (cohort.draw(seed, 0, offsets, poisson=True).clients for seed in itertools.count())
    empty = next(seed for seed, clients in enumerate(drawn) if not len(clients))
    (noise,) = noise_of(seed=empty)
    assert_variance(noise, VARIANCE)


def test_a_first_exchange_has_noise_of_its_own() -> None:
    """The noises of a round's two releases are independent, and both are as large as is stated."""
    method = private(fp.feddane(mu=0.0), fp.Privacy(BOUND, noise_multiplier=Z), Z, COHORT, 8)
    exchange = method.first.exchange
    assert exchange is not None

    @jax.jit
    def released(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        zeros, hparams = jnp.zeros(DIMENSION), {"participation": jnp.float32(1), "noise_key": key}
        state = exchange(method.server.init(zeros), zeros, hparams)
        after = method.server.update(state, Clipped(zeros, None), hparams)
        return state.state.gradient, method.server.params(after)

    gradient, update = map(np.asarray, released(jnp.array([1, 2], jnp.uint32)))
    for noise in (gradient, update):
        assert_variance(noise, VARIANCE)
    assert_variance(gradient - update, 2 * VARIANCE)


def test_poisson_cohorts_have_independent_clients_and_a_largest_size() -> None:
    offsets, cohort = np.arange(41), fp.Cohort(10, "bernoulli")
    sizes = np.array([len(cohort.draw(0, t, offsets, poisson=True).clients) for t in range(4000)])
    assert abs(sizes.mean() - 10) < 5 * math.sqrt(7.5 / 4000)
    assert abs(sizes.var() - 7.5) < 5 * 7.5 * math.sqrt(2 / 4000)
    cut = np.array(
        [len(cohort.draw(0, t, offsets, poisson=True, capacity=12).clients) for t in range(4000)]
    )
    np.testing.assert_array_equal(cut, np.minimum(sizes, 12))
    small = fp.Cohort(1, "bernoulli")
    empty = [not len(small.draw(0, t, offsets, poisson=True).clients) for t in range(4000)]
    expected = (1 - 1 / 40) ** 40
    assert abs(np.mean(empty) - expected) < 5 * math.sqrt(expected * (1 - expected) / 4000)


def adapted(norms: list[float], *, rounds: int, z: float = 0.0, quantile: float = 0.5) -> float:
    """The clipping norm after some rounds in which clients' updates have these norms."""
    adaptive = fp.AdaptiveClip(quantile=quantile, rate=0.2, count_noise=2.0)
    privacy = fp.Privacy(1.0, noise_multiplier=z, adaptive_clip=adaptive)
    method = private(fp.fedavg(), privacy, z, len(norms), len(norms))
    state = method.server.init(jnp.zeros(1))
    context = ClientContext(None, None, jnp.float32(1))
    hparams = {"participation": jnp.float32(1), "learning_rate": jnp.float32(1)}

    @jax.jit
    def step(state: Any, t: jax.Array) -> Any:
        def sent(norm: jax.Array) -> Any:
            solution = Solution(Subproblem(jnp.zeros(1)), norm[None], jnp.int32(1))
            return method.client.message(state, hparams, context, solution)[0]

        mean = jax.tree.map(lambda a: a.mean(axis=0), jax.vmap(sent)(jnp.asarray(norms)))
        key = jnp.stack([jnp.uint32(0), t.astype(jnp.uint32)])
        return method.server.update(state, mean, {**hparams, "noise_key": key})

    for t in range(rounds):
        state = step(state, jnp.asarray(t))
    return float(state.clip)


def test_an_adaptive_norm_follows_its_quantile() -> None:
    # one of two is within 1.0: b = 1/2, so C moves by exp(-0.2 (1/2 - quantile))
    np.testing.assert_allclose(
        adapted([0.5, 3.0], rounds=1, quantile=0.9), math.exp(0.08), rtol=1e-6
    )
    norms = np.linspace(1, 101, 101).tolist()
    assert 0.6 * 51 < adapted(norms, rounds=300) < 1.5 * 51
    assert 0.7 * 81 < adapted(norms, rounds=300, quantile=0.8) < 1.3 * 81
    assert 0.6 * 51 < adapted(norms, rounds=300, z=1.0) < 1.5 * 51


def test_noise_is_added_in_its_stated_scale() -> None:
    """To messages, bits and gradients, with standard normal numbers that are known."""
    adaptive = fp.AdaptiveClip(quantile=0.3, rate=0.2, count_noise=6.0)
    privacy = fp.Privacy(2.0, noise_multiplier=1.5, adaptive_clip=adaptive)
    method = private(fp.fedavg(), privacy, 1.5, 4, 20)
    mean = Clipped(jnp.array([1.0, -1.0]), jnp.float32(-0.125))
    noise = Clipped(jnp.array([0.5, 2.0]), jnp.float32(-0.75))
    hparams = {"participation": jnp.float32(0.5), "noise": noise}
    after = method.server.update(method.server.init(jnp.array([3.0, 4.0])), mean, hparams)
    z = (1.5**-2 - 12.0**-2) ** -0.5
    expected = np.array([4.0, 3.0]) + z * 2.0 / 4 * np.array([0.5, 2.0])
    np.testing.assert_allclose(after.state, expected, rtol=1e-6)
    share = 0.5 - 0.125 - 6.0 / 4 * 0.75
    np.testing.assert_allclose(after.clip, 2.0 * math.exp(-0.2 * (share - 0.3)), rtol=1e-6)

    gradients = private(fp.feddane(mu=0.0), fp.Privacy(2.0, noise_multiplier=1.5), 1.5, 4, 20)
    assert gradients.first.exchange is not None
    given = {"participation": jnp.float32(0.5), "noise": jnp.array([0.5, 2.0])}
    exchanged = gradients.first.exchange(
        gradients.server.init(jnp.zeros(2)), jnp.array([1.0, -1.0]), given
    )
    expected = np.array([1.0, -1.0]) + 1.5 * 2.0 / 4 * np.array([0.5, 2.0])
    np.testing.assert_allclose(exchanged.state.gradient, expected, rtol=1e-6)
    np.testing.assert_allclose(gradients.first.sent(jnp.array([3.0, 4.0])), [1.2, 1.6], rtol=1e-6)


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    'faults.norm = 10.0 does not go with privacy.unit = "client", since a client': (
        "fedavg",
        lambda: {"faults": fp.Faults()},
    ),
    'evaluation.model = "cohort" does not go with privacy.unit = "client"': (
        "fedavg",
        lambda: {"evaluation": fp.Evaluation(model="cohort")},
    ),
    'fedprox: its mu follows the training loss, so privacy.unit = "client" does not fit': (
        "adaptive",
        dict,
    ),
    "centralised: it has all rows in one place, so privacy.unit": ("centralised", dict),
    "feddane: its clients send gradients first, so privacy.adaptive_clip does not fit": (
        "feddane",
        lambda: {"privacy": fp.Privacy(1.0, noise_multiplier=1, adaptive_clip=fp.AdaptiveClip())},
    ),
    "privacy = 1.0; it must be a fedprox.Privacy or None": ("fedavg", lambda: {"privacy": 1.0}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_reads_clients_without_noise_is_refused(message: str) -> None:
    name, options = REFUSED[message]
    others = {"adaptive": fp.fedprox(mu=0.1, adapt=True), "centralised": fp.centralised()}
    method = (METHODS | others)[name]
    given = {"privacy": fp.Privacy(1.0, noise_multiplier=1.0)} | options()
    with pytest.raises(fp.InputError) as error:
        run(method, **given)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip": 0.0}, "privacy.clip = 0.0"),
        ({"clip": math.inf}, "privacy.clip = inf"),
        ({"clip": 1e39}, "privacy.clip = 1e+39; it must be from 1e-09 to 1e+09"),
        ({"clip": 1e-10}, "privacy.clip = 1e-10; it must be from 1e-09 to 1e+09"),
        ({"clip": 0.0, "noise_multiplier": 0.0}, "privacy.clip = 0.0"),
        ({"epsilon": 0.0, "noise_multiplier": None}, "privacy.epsilon = 0.0"),
        (
            {"clip": math.inf, "noise_multiplier": 0.0, "adaptive_clip": fp.AdaptiveClip()},
            "privacy.adaptive_clip: it needs a finite privacy.clip",
        ),
        ({"epsilon": 1.0}, "privacy.epsilon = 1.0 and privacy.noise_multiplier = 1.0"),
        ({"noise_multiplier": None}, "privacy.epsilon = None and privacy.noise_multiplier = None"),
        ({"noise_multiplier": -1.0}, "privacy.noise_multiplier = -1.0"),
        (
            {"noise_multiplier": 1e-6},
            "privacy.noise_multiplier = 1e-06; it must be 0, or from 0.001 to 1e+06",
        ),
        ({"noise_multiplier": 2e6}, "privacy.noise_multiplier = 2e+06; it must be 0, or from"),
        (
            {"epsilon": 1e300, "noise_multiplier": None},
            "privacy.epsilon = 1e+300; it must be above 0 and at most 100000",
        ),
        ({"delta": 0.0}, "privacy.delta = 0.0"),
        ({"delta": 1.0}, "privacy.delta = 1.0"),
        ({"accountant": "moments"}, "privacy.accountant = 'moments'; it must be one of pld, rdp"),
        ({"capacity": 0}, "privacy.capacity = 0"),
        ({"capacity": 9, "accountant": "rdp"}, "privacy.capacity = 9; privacy.accountant"),
        ({"adaptive_clip": 0.5}, "privacy.adaptive_clip = 0.5"),
    ],
)
def test_settings_out_of_range_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError) as error:
        fp.Privacy(**({"clip": 1.0, "noise_multiplier": 1.0} | given))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"quantile": -0.1}, "from 0 to 1"),
        ({"quantile": 1.1}, "from 0 to 1"),
        ({"rate": 0.0}, "above 0 and at most 100"),
        ({"rate": 1e300}, "above 0 and at most 100"),
        ({"count_noise": 0.0}, "above 0 and at most 1e\\+06"),
        ({"count_noise": 1e300}, "above 0 and at most 1e\\+06"),
    ],
)
def test_an_adaptive_clip_out_of_range_is_one_line(given: dict[str, Any], allowed: str) -> None:
    (name,) = given
    with pytest.raises(fp.InputError, match=rf"^privacy.adaptive_clip.{name} = .*; .* {allowed}$"):
        fp.AdaptiveClip(**given)


def test_settings_at_the_ends_of_their_ranges() -> None:
    for quantile in (0.0, 1.0):
        assert fp.AdaptiveClip(quantile=quantile) == fp.AdaptiveClip(quantile, 0.2, 6.0)
    assert fp.AdaptiveClip().quantile == 0.5
    adaptive = fp.Privacy(1.0, noise_multiplier=0.0, adaptive_clip=fp.AdaptiveClip())
    assert (adaptive.delta, adaptive.accountant, adaptive.update_noise(0.0)) == (1e-5, None, 0.0)
    assert fp.Privacy(math.inf, noise_multiplier=0).update_noise(0.0) == 0.0
    assert fp.Privacy(1.0, epsilon=0.1, capacity=1).update_noise(3.0) == 3.0


@pytest.mark.parametrize(("quantile", "bit", "end"), [(1.0, -0.5, 1e9), (0.0, 0.5, 1e-9)])
def test_an_adaptive_clip_stays_within_its_range(quantile: float, bit: float, end: float) -> None:
    """A step by e^100 would leave single precision, and the noise would not be finite."""
    clip = fp.AdaptiveClip(quantile=quantile, rate=100.0)
    given = fp.Privacy(1.0, noise_multiplier=0.0, adaptive_clip=clip)
    method = private(fp.fedavg(), given, 0.0, 1, 1)
    state, mean = method.server.init(START), Clipped(jnp.zeros(3), jnp.float32(bit))
    for _ in range(3):
        state = method.server.update(state, mean, {"participation": jnp.ones(())})
        assert float(state.clip) == pytest.approx(end)


def test_bits_with_too_little_noise_are_refused() -> None:
    privacy = fp.Privacy(1.0, noise_multiplier=4.0, adaptive_clip=fp.AdaptiveClip(count_noise=2.0))
    with pytest.raises(fp.InputError, match="count_noise = 2; with a noise multiplier of 4 it"):
        privacy.update_noise(4.0)
    for bits in (1e-300, 2.0, 2.0 * (1 + 1e-15)):
        adaptive = fp.AdaptiveClip(count_noise=bits)
        with pytest.raises(fp.InputError, match="with a noise multiplier of 4 it must be above 2"):
            replace(privacy, adaptive_clip=adaptive).update_noise(4.0)
    split = fp.Privacy(1.0, noise_multiplier=1.0, adaptive_clip=fp.AdaptiveClip(count_noise=1.0))
    # two Gaussian releases with these multipliers are one with z = 1
    assert math.isclose(split.update_noise(1.0) ** -2 + 2.0**-2, 1.0)
