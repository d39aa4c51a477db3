"""Privacy of examples: clipped gradients, Poisson mini-batches and noise in local steps."""

import functools
import itertools
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.engine.planning.batch_plan import (
    EXAMPLE_BYTES,
    PoissonTicks,
    poisson_places,
    poisson_width,
)
from fedprox.engine.planning.jobs import Jobs, no_jobs
from fedprox.engine.planning.round_work import example_width
from fedprox.parts.privacy.accounting import Releases, epsilon_of, worst_steps
from fedprox.parts.privacy.examples import EXAMPLES_KEY, clipped_sum
from fedprox.parts.privacy.numerics import EXAMPLES, standard_normals
from fedprox.protocol.method import noise_words, sweep_points
from fedprox.streams import Purpose, generator
from tests.quadratics import quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

Vector = np.ndarray[Any, Any]
START = np.array([1.0, -1.0, 2.0])
ROWS = [23, 9, 40, 4]
SOLVER = fp.Solver(0.05, 6, epochs=2)
METHODS: dict[str, fp.Algorithm] = {
    "fedavg": fp.fedavg(),
    "fedprox": fp.fedprox(mu=[0.0, 0.5]),
    "scaffold": fp.scaffold(),
    "feddyn": fp.feddyn(alpha=0.5),
}


def run(methods: Any, privacy: fp.Privacy | None, **options: Any) -> list[fp.Run]:
    defaults: dict[str, Any] = {
        "federation": ragged_quadratics(0, ROWS),
        "model": quadratic_model(START),
        "solver": SOLVER,
        "cohort": fp.Cohort(len(ROWS)),
        "rounds": 2,
        "evaluation": fp.Evaluation(every=2, gradients=False),
        "progress": False,
    }
    return fp.simulate(methods=methods, privacy=privacy, **(defaults | options))


def example(clip: float = 1.0, noise: float = 1.0, **others: Any) -> fp.Privacy:
    """Privacy of rows with the faster accountant."""
    given: dict[str, Any] = {"noise_multiplier": noise, "accountant": "rdp"} | others
    return fp.Privacy(clip, unit="example", **given)


# --- clipped gradients


def rows_of(shape: tuple[int, ...], classes: int = 10) -> tuple[Vector, Vector]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, *shape)).astype(np.float32), rng.integers(classes, size=6)


def images(make: Callable[[fp.Federation], fp.Model]) -> tuple[fp.Model, Vector, Vector]:
    x, y = rows_of((28, 28, 1))
    return make(fp.Federation.from_arrays([(x, y)] * 2)), x, y


def attention(params: Any, x: jax.Array) -> jax.Array:
    """A matrix at several positions, one used twice, and a scale of its own."""
    hidden = jnp.tanh(x @ params["first"])
    hidden = jnp.tanh(hidden @ params["again"]) @ params["again"]
    return params["scale"] * jnp.einsum("blh,hc->bc", hidden, params["last"])


def of_sequences() -> tuple[fp.Model, Vector, Vector]:
    shapes = {"first": (5, 7), "again": (7, 7), "last": (7, 10), "scale": ()}

    def init(key: jax.Array) -> Any:
        return {name: 1.0 + jax.random.normal(key, shape) for name, shape in shapes.items()}

    return fp.Model(init, attention), *rows_of((4, 5))


MODELS: dict[str, Callable[[], tuple[fp.Model, Vector, Vector]]] = {
    "mlp": partial(images, partial(fp.models.mlp, hidden=[8])),
    "cnn": partial(images, fp.models.mnist_cnn),
    "sequences": of_sequences,
}


class Clipping(NamedTuple):
    """A model's rows and parameters, and its compiled functions.

    Attributes:
        x, y: Rows.
        params: Parameters.
        gradients: (x, y) -> the gradient of each row.
        total: (clip, x, which count) -> the sum of clipped gradients.
    """

    x: Vector
    y: Vector
    params: Any
    gradients: Callable[..., Any]
    total: Callable[..., Any]


@functools.cache
def clipping(name: str) -> Clipping:
    """Of a model by its name."""
    model, x, y = MODELS[name]()
    params = jax.jit(model.init)(jax.random.key(1))

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return model.loss(model.apply(params, x[None]), y[None])[0]

    def total(clip: Any, x: jax.Array, counts: jax.Array) -> Any:
        return clipped_sum(loss, clip, params, x, y)(counts)

    each = jax.jit(jax.vmap(partial(jax.grad(loss), params)))
    return Clipping(x, y, params, each, jax.jit(total))


def norms_of(leaves: list[Vector]) -> Vector:
    """The norm of each row over all leaves (rows, ...)."""
    return np.sqrt(sum(np.sum(np.reshape(a, (len(a), -1)) ** 2, axis=1) for a in leaves))


@pytest.mark.parametrize("name", mostly_slow(MODELS, "mlp"))
def test_a_sum_of_clipped_gradients_is_that_of_a_loop(name: str) -> None:
    of = clipping(name)
    leaves = [np.asarray(a, float) for a in jax.tree.leaves(of.gradients(of.x, of.y))]
    norms, counts = norms_of(leaves), np.array([True, True, False, True, True, True])
    clip = sorted(norms)[3]
    found = jax.tree.leaves(of.total(np.float32(clip), of.x, counts))
    for got, each in zip(found, leaves, strict=True):
        scaled = [min(1, clip / n) * g for g, n in zip(each, norms, strict=True)]
        wanted = np.asarray(sum(itertools.compress(scaled, counts)))
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("name", ["mlp", "sequences"])
def test_an_example_without_a_finite_gradient_adds_nothing(name: str, bad: float) -> None:
    of, clip, x = clipping(name), np.float32(1.0), clipping(name).x.copy()
    x[2] = bad
    totals = of.total(clip, x, np.ones(6, bool)), of.total(clip, of.x, np.arange(6) != 2)
    leaves = (map(np.asarray, jax.tree.leaves(each)) for each in totals)
    moved = norms_of([(one - two)[None] for one, two in zip(*leaves, strict=True)])
    # a finite gradient may be left of large features
    assert moved[0] <= (1 + 1e-5 if bad == 1e30 else 0.0)


# --- Poisson mini-batches


@given(
    st.integers(1, 50), st.integers(1, 60), st.integers(1, 30), st.integers(0, 30), st.integers(0)
)
@settings(max_examples=25)
def test_draws_are_in_range_and_do_not_depend_on_later_steps(
    size: int, batch: int, steps: int, more: int, seed: int
) -> None:
    def places(steps: int) -> Vector:
        return poisson_places(np.random.default_rng(seed), size, min(batch, size), steps)

    few, many = places(steps), places(steps + more)
    assert (np.diff(many) > 0).all()
    assert ((many >= 0) & (many < size * (steps + more))).all()
    assert few.tolist() == many[many < size * steps].tolist()
    if batch >= size:
        assert few.tolist() == list(range(size * steps))


def test_each_row_is_drawn_on_its_own_with_the_same_probability() -> None:
    size, batch, steps = 20, 5, 5_000
    places = poisson_places(np.random.default_rng(0), size, batch, steps)
    drawn: Vector = np.zeros((steps, size), bool)
    drawn.reshape(-1)[places] = True
    error = 5 * math.sqrt(0.25 * 0.75 / steps)
    assert np.abs(drawn.mean(axis=0) - 0.25).max() < error
    together = (drawn.T.astype(float) @ drawn) / steps
    assert np.abs(together[~np.eye(size, dtype=bool)] - 1 / 16).max() < error
    after = (drawn[:-1].T.astype(float) @ drawn[1:]) / (steps - 1)
    assert np.abs(after - 1 / 16).max() < error
    sizes = drawn.sum(axis=1)
    assert abs(sizes.var() / (size * 0.25 * 0.75) - 1) < 5 * math.sqrt(2 / steps)


@pytest.mark.parametrize("batch", [1, 10, 64, 300, "all"])
@pytest.mark.parametrize("largest", [5, 600])
def test_ticks_are_no_wider_than_rows_or_memory(batch: Any, largest: int) -> None:
    solver = fp.Solver(0.1, batch, epochs=1)
    assert 1 <= poisson_width(solver, largest, 4000) <= min(512, largest)
    assert poisson_width(solver, largest, 2**27) <= 2
    assert poisson_width(solver, largest, 2**30) == 1


def test_a_tick_is_as_wide_as_the_largest_client_needs() -> None:
    """80 of 600 rows, for a model of 31,400 bytes; of fewer rows if the model is large."""
    train = SimpleNamespace(sizes=np.array([70, 600, 5]))
    for size, width in ((31_400, 80), (EXAMPLE_BYTES // 10, 10)):
        protocol: Any = SimpleNamespace(
            federation=SimpleNamespace(train=train), model=SimpleNamespace(size_bytes=size)
        )
        assert example_width(protocol, fp.Solver(0.1, 64, epochs=1)) == width


@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=4),
    st.integers(1, 200),
    st.integers(1, 120),
    st.integers(1, 300),
)
@settings(max_examples=20)
def test_ticks_are_estimated_without_rows(
    sizes: list[int], batch: int, width: int, steps: int
) -> None:
    """The mean plus four standard deviations is seldom exceeded, and is not far above."""
    count = np.zeros(len(sizes), np.int64)
    jobs = Jobs(*[count] * len(no_jobs()[:-1]))  # type: ignore[arg-type]
    jobs = jobs._replace(client=np.arange(len(sizes)), size=np.array(sizes), steps=count + steps)
    ticks = PoissonTicks(fp.Solver(0.1, batch, epochs=1), width, 0)
    usual, drawn = ticks.usual(jobs), ticks.count(jobs, 0)
    each = np.minimum(batch, sizes) / np.array(sizes)
    spread = np.sqrt(np.array(sizes) * each * (1 - each)) / width + 1
    assert (drawn <= usual + 2 * spread * np.sqrt(steps)).all()
    assert (usual <= drawn + 10 * spread * np.sqrt(steps) + 1).all()
    assert (usual >= steps).all()


# --- the method, in a loop


@jax.jit
def normals(key: jax.Array, words: jax.Array) -> jax.Array:
    """The noise of a step with a key, of a run with words of its own."""
    own = jax.random.wrap_key_data(key, impl="threefry2x32")
    for word in (EXAMPLES_KEY, *words):
        own = jax.random.fold_in(own, word)
    return standard_normals(jax.random.key_data(own), EXAMPLES, jnp.zeros(3))


def noise(method: fp.Algorithm, point: dict[str, float], key: Vector) -> Vector:
    words = noise_words(method, SOLVER, point)
    return np.asarray(normals(jnp.asarray(key), jnp.asarray(words)), float)


def oracle(
    name: str, point: dict[str, float], clip: float, z: float, seed: int, rounds: int
) -> Vector:
    """The server's model after rounds of all clients, in NumPy."""
    federation, method = ragged_quadratics(0, ROWS), METHODS[name]
    rate, batch = SOLVER.rates[0], SOLVER.batch_size
    assert isinstance(batch, int)
    width, ones = poisson_width(SOLVER, max(ROWS), 12), np.ones(3)
    w, control, h = START.copy(), 0 * ones, 0 * ones
    own = [0 * ones for _ in ROWS]
    for t in range(rounds):
        moved, changes = [], []
        for k, n in enumerate(ROWS):
            x, y = (np.asarray(a, float) for a in federation.train.client(k))
            mean, steps = min(batch, n), SOLVER.steps_for(n)
            places = poisson_places(generator(seed, Purpose.ROWS, t, k), n, mean, steps)
            chosen = [places[places // n == step] % n for step in range(steps)]
            ticks = [max(1, -(-len(each) // width)) for each in chosen]
            keys = generator(seed, Purpose.AUGMENTATION, t, k).integers(
                2**32, size=(sum(ticks), 2), dtype=np.uint32
            )
            v = w.copy()
            for rows, end in zip(chosen, np.cumsum(ticks), strict=True):
                total = z * clip * noise(method, point, keys[end - 1])
                for i in rows:
                    g = x[i] @ (v - y[i])
                    total += g * min(1, clip / np.linalg.norm(g))
                g = total / mean
                if name == "fedprox":
                    g += point["mu"] * (v - w)
                if name == "scaffold":
                    g += control - own[k]
                if name == "feddyn":
                    g += point["alpha"] * (v - w) - own[k]
                v -= rate * g
            moved.append(v - w)
            if name == "scaffold":
                changes.append(-control - (v - w) / (steps * rate))
                own[k] = own[k] + changes[-1]
            if name == "feddyn":
                own[k] = own[k] - point["alpha"] * (v - w)
        by_rows = name in ("fedavg", "fedprox")
        w = w + np.average(moved, axis=0, weights=ROWS if by_rows else None)
        if name == "scaffold":
            control = control + np.mean(changes, axis=0)
        if name == "feddyn":
            # h of Algorithm 1 after this round
            h = h - point["alpha"] * np.mean(moved, axis=0)
            w = w - h / point["alpha"]
    return w


NOISES = {"fedprox": 0.7, "fedavg": 0.0, "scaffold": 0.7, "feddyn": 0.7}


@pytest.mark.parametrize("name", mostly_slow(NOISES, "fedprox"))
def test_it_is_the_loop_of_the_formulas(name: str) -> None:
    clip, seed, z = 0.8, 4, NOISES[name]
    runs = run(METHODS[name], example(clip, z), seed=seed)
    for each in runs:
        point = {**each.hparams, "learning_rate": SOLVER.rates[0]}
        wanted = oracle(name, point, clip, z, seed, rounds=2)
        np.testing.assert_allclose(each.params, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_without_noise_and_bound_and_on_all_rows_it_is_the_method_itself() -> None:
    solver = fp.Solver(0.05, "all", epochs=3)
    (plain,) = run(fp.scaffold(), None, solver=solver)
    (none,) = run(fp.scaffold(), example(math.inf, 0.0), solver=solver)
    np.testing.assert_allclose(none.params, plain.params, rtol=1e-5)
    assert none.final.epsilon == math.inf


# --- what an example can change, and how much noise hides it


PFEDME = fp.pfedme(lam=1.0, eta=0.5, inner_steps=3)
MOVED = {**METHODS, "pfedme": PFEDME, "scaffnew": fp.scaffnew(p=0.3)}
"""Methods with terms and solvers of their own in local steps."""


@pytest.mark.parametrize("name", mostly_slow(MOVED, "scaffold"))
def test_an_example_moves_a_step_by_at_most_its_bound(name: str) -> None:
    """Compared with an example whose gradient is not finite, and so counts as zero."""
    clip, seen = 0.3, list[Vector]()

    def watching(learning_rate: Any) -> optax.GradientTransformation:
        del learning_rate

        def update(gradient: Any, state: Any, params: Any = None) -> Any:
            del params
            jax.debug.callback(lambda g: seen.append(np.ravel(g)), gradient, ordered=True)
            return 0 * gradient, state

        return optax.GradientTransformation(lambda _: (), update)

    def gradients(row: int | None) -> Vector:
        x, y = (np.array(a) for a in ragged_quadratics(1, [30]).train.client(0))
        if row is not None:
            y[row] = 1e30
        seen.clear()
        run(
            MOVED[name]._replace(client=MOVED[name].client._replace(solver=lambda solver: solver)),
            example(clip, 0.0),
            federation=fp.Federation.from_arrays([(x, y)]),
            solver=fp.Solver(1.0, 6, steps=12, optimizer=watching),
            cohort=fp.Cohort(1),
            rounds=1,
            devices=1,
            evaluation=fp.Evaluation(gradients=False),
        )
        return np.array(seen)

    whole = gradients(None)
    moved = [np.linalg.norm(gradients(row) - whole, axis=1).max() for row in (3, 17)]
    assert max(moved) <= clip / 6 * (1 + 1e-5)
    assert max(moved) > 0.5 * clip / 6


FLAT = 20_000


def flat_model() -> fp.Model:
    """A model whose loss is the same everywhere."""
    return fp.Model(
        lambda _: jnp.zeros(FLAT),
        lambda w, x: 0 * jnp.broadcast_to(w, (len(x), FLAT)),
        lambda w, y: jnp.sum(w, axis=1) + 0.0 * y,
        None,
    )


@pytest.fixture(scope="module")
def released() -> list[Vector]:
    """The models of noise alone, of runs of two sweep points and two seeds."""
    rows = [40, 8]
    runs = run(
        fp.fedprox(mu=[0.0, 1.0]),
        example(0.5, 2.0),
        federation=fp.Federation.from_arrays([(np.zeros((n, 1)), np.zeros(n)) for n in rows]),
        model=flat_model(),
        solver=fp.Solver(0.2, 8, steps=5),
        cohort=fp.Cohort(len(rows)),
        rounds=3,
        seed=[0, 1],
    )
    return [np.asarray(each.params, np.float64) for each in runs]


def test_the_noise_of_each_step_has_the_variance_that_is_claimed(released: list[Vector]) -> None:
    share = np.array([40, 8]) / 48
    variance = 3 * 5 * (0.2 * 2.0 * 0.5 / 8) ** 2 * (share**2).sum()
    assert abs(released[0].var() / variance - 1) < 5 * math.sqrt(2 / FLAT)
    assert abs(released[0].mean()) < 5 * math.sqrt(variance / FLAT)


@pytest.mark.slow
def test_no_two_runs_share_noise(released: list[Vector]) -> None:
    assert len(released) == 4
    correlated = np.corrcoef(released) - np.eye(4)
    assert np.abs(correlated).max() < 5 / math.sqrt(FLAT)
    methods = fp.fedavg(), fp.fedavg().with_solver(weight_decay=0.1), fp.fedprox(mu=0.0)
    solvers = [method.solver(SOLVER) for method in methods]
    words = [
        noise_words(*pair, point).tobytes()
        for pair in zip(methods, solvers, strict=True)
        for point in sweep_points(*pair)
    ]
    assert len({*words}) == 3


# --- epsilon


def accounted(rows: int, batch: int, taken: int, z: float, delta: float, accountant: str) -> float:
    """Epsilon by dp-accounting itself."""
    event: Any = dp_accounting.GaussianDpEvent(z)
    if batch < rows:
        event = dp_accounting.PoissonSampledDpEvent(batch / rows, event)
    own = pld.PLDAccountant() if accountant == "pld" else rdp.RdpAccountant()
    return float(own.compose(event, taken).get_epsilon(delta))


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_that_of_the_worst_client_by_dp_accounting(accountant: Any) -> None:
    privacy = example(1.0, 1.5, delta=1e-4, accountant=accountant)
    cohort, systems = fp.Cohort(2), fp.Systems(stragglers=0.5)
    options = {"cohort": cohort, "systems": systems, "rounds": 6, "seed": 3}
    every = {"evaluation": fp.Evaluation(every=3, gradients=False)}
    (only,) = run(fp.fedprox(mu=0.1), privacy, **(options | every))
    offsets = np.concatenate([[0], np.cumsum(ROWS)])
    taken, wanted = np.zeros(len(ROWS), int), [0.0]
    for t in range(6):
        chosen = cohort.draw(3, t, offsets).clients
        taken[chosen] += systems.work(3, t, chosen, np.array(ROWS)[chosen], SOLVER).steps
        if t in (2, 5):
            clients = [(n, min(6, n), int(s)) for n, s in zip(ROWS, taken, strict=True) if s]
            wanted.append(max(accounted(*each, 1.5, 1e-4, accountant) for each in clients))
    assert [record.epsilon for record in only.history] == pytest.approx(wanted, rel=2e-3)
    assert all(record.delta == 1e-4 for record in only.history)


@pytest.mark.slow
def test_the_noise_is_calibrated_to_the_worst_client_of_all_seeds() -> None:
    privacy = example(noise_multiplier=None, epsilon=3.0)
    runs = run(fp.fedavg(), privacy, seed=[0, 1, 2], cohort=fp.Cohort(2), rounds=4)
    assert len({each.noise_multiplier for each in runs}) == 1
    spent = [each.final.epsilon or 0.0 for each in runs]
    assert 2.995 < max(spent) <= 3.0


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(10, 3000), st.integers(1, 300)), min_size=1, max_size=8))
@settings(max_examples=5)
def test_the_worst_client_is_found_among_many(clients: list[tuple[int, int]]) -> None:
    privacy = example(1.0, 2.0, accountant="rdp")
    steps = [(privacy.of_steps(rows, min(20, rows), 2.0), taken) for rows, taken in clients]

    def spent(each: Releases) -> float:
        return epsilon_of(*each)

    assert spent(worst_steps(2.0, steps)) == max(map(spent, steps))


# --- the same again


@pytest.mark.slow  # it is the loop of the formulas on two devices
def test_the_same_seed_has_the_same_mini_batches_and_noise_whatever_the_lanes() -> None:
    one, two = (run(fp.scaffold(), example(), devices=each, seed=5)[0] for each in (1, 2))
    np.testing.assert_allclose(one.params, two.params, rtol=1e-5)
    assert [r.epsilon for r in one.history] == [r.epsilon for r in two.history]


@pytest.mark.slow
def test_a_resumed_run_is_the_run(tmp_path: Path) -> None:
    def some(rounds: int, checkpoints: fp.Checkpoints | None = None) -> fp.Run:
        every = fp.Evaluation(every=1, gradients=False)
        options = {"rounds": rounds, "evaluation": every, "checkpoints": checkpoints}
        return run(fp.scaffold(), example(), **options)[0]

    whole = some(4)
    some(2, fp.Checkpoints(tmp_path, every=1))
    resumed = some(4, fp.Checkpoints(tmp_path, every=1, resume=True))
    assert np.asarray(resumed.params).tolist() == np.asarray(whole.params).tolist()
    assert [r.epsilon for r in resumed.history] == [r.epsilon for r in whole.history]


@pytest.mark.slow
def test_dropout_has_a_key_for_each_example() -> None:
    """An example's mask is its own, so examples with the same row have different gradients."""
    model = fp.Model(
        lambda _: jnp.zeros(50),
        lambda w, x: x * w,
        lambda out, y: jnp.sum(out, axis=1) + 0.0 * y,
        None,
        train=lambda w, x, key: x * w * jax.random.bernoulli(key, 0.5, (len(x), 50)),
    )
    federation = fp.Federation.from_arrays([(np.ones((40, 50)), np.zeros(40))])
    (only,) = run(
        fp.fedavg(),
        example(math.inf, 0.0),
        federation=federation,
        model=model,
        solver=fp.Solver(1.0, "all", steps=1),
        cohort=fp.Cohort(1),
        rounds=1,
        evaluation=fp.Evaluation(gradients=False),
    )
    kept = -40 * np.asarray(only.params)
    assert 15 < kept.mean() < 25
    assert len(set(kept.round().tolist())) > 5  # not all or none


# --- what does not fit

FEDERATION = ragged_quadratics(0, ROWS)
REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "centralised": (fp.centralised, {}, "it has all rows in one place"),
    "feddane": (lambda: fp.feddane(mu=0.1), {}, "a gradient over all of their rows"),
    "option 1": (lambda: fp.scaffold(option=1), {}, "a gradient over all of their rows"),
    "mimelite": (lambda: fp.mime(beta=0.5, lite=True), {}, "a gradient over all of their rows"),
    "qffl": (lambda: fp.qffl(q=1.0), {}, "a loss over all of their rows"),
    "fedsam": (lambda: fp.fedsam(rho=0.1), {}, "its objective needs whole mini-batches"),
    "adapt": (lambda: fp.fedprox(mu=0.1, adapt=True), {}, "its mu follows the training loss"),
    "ditto": (lambda: fp.ditto(lam=0.1), {}, "a second model on the same rows"),
    "ifca": (lambda: fp.ifca(2), {}, "its clients measure several models"),
    "gamma": (
        fp.fedavg,
        {"solver": fp.Solver(0.1, "all", epochs=2, gamma=0.5), "evaluation": fp.Evaluation()},
        'solver.gamma = 0.5 does not go with privacy.unit = "example", since it looks',
    ),
    "line search": (
        fp.fedavg,
        {"solver": fp.Solver(0.1, "all", epochs=2, optimizer=fp.line_search_descent)},
        "a line search does not go with privacy.unit",
    ),
    "best": (
        fp.fedavg,
        {"selection": fp.Selection(keep="best", measure="train_loss")},
        "since these have no noise; give privacy.measures, or a validation set that belongs to no",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_looks_at_rows_without_noise_is_refused(name: str) -> None:
    method, options, line = REFUSED[name]
    with pytest.raises(fp.InputError, match=re.escape(line)) as error:
        run(method(), example(), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"unit": "row"}, "privacy.unit = 'row'"),
        ({"unit": "example", "capacity": 5}, "privacy.capacity: it is for privacy.unit"),
        (
            {"unit": "example", "adaptive_clip": fp.AdaptiveClip()},
            "privacy.adaptive_clip: it is for privacy.unit",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Any, line: str) -> None:
    with pytest.raises(fp.InputError, match=re.escape(line)):
        fp.Privacy(1.0, noise_multiplier=1.0, **settings)
