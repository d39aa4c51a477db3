"""Compressed runs and models beside loops, what error feedback owes, bits in records and time."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import fedprox as fp
from fedprox.algorithms.base import ClientContext, Solution
from fedprox.errors import InputError
from fedprox.parts import codecs
from fedprox.parts.compression import (
    CODEC_KEY,
    arrived,
    compressed,
    rounded,
    sends_more,
    sent_bits,
)
from fedprox.streams import Purpose, generator
from fedprox.subproblem import Subproblem
from tests.parts.test_population import BYTES, work_of
from tests.parts.test_population import CLIENTS as POPULATION
from tests.quadratics import quadratic_federation, quadratic_model
from tests.variants import mostly_slow

CLIENTS, D, ROUNDS = 7, 6, 8
CENTRES = list(np.random.default_rng(3).normal(size=(CLIENTS, D)))
ROWS = [1 + k % 3 for k in range(CLIENTS)]
FEDERATION = quadratic_federation([np.eye(D)] * CLIENTS, CENTRES, ROWS)
"""A step with rate 1/2 brings a client half of the way to its own minimum."""

START = np.linspace(-1, 2, D)
MODEL = quadratic_model(START)

CODECS = {
    "top-k": fp.Compression("top-k", share=0.3),
    "random-k": fp.Compression("random-k", share=0.3),
    "quantize": fp.Compression("quantize", bits=3, bucket=4),
    "quantize rotated": fp.Compression("quantize", bits=3, bucket=4, rotate=True),
    "sign": fp.Compression("sign", bucket=4),
    "sign rotated": fp.Compression("sign", bucket=4, rotate=True),
}


def with_feedback(setting: fp.Compression) -> fp.Compression:
    return dataclasses.replace(setting, error_feedback=True)


def runs(setting: fp.Compression | None, method: Any = None, **options: Any) -> list[fp.Run]:
    given: dict[str, Any] = {
        "solver": fp.Solver(0.5, batch_size="all", epochs=1),
        "cohort": fp.Cohort(3),
        "rounds": ROUNDS,
        "evaluation": fp.Evaluation(gradients=False),
        "progress": False,
        "compression": setting,
    }
    federation = options.pop("federation", FEDERATION)
    return fp.simulate(federation, MODEL, method or fp.fedavg(), **given | options)


def run(setting: fp.Compression | None, method: Any = None, **options: Any) -> fp.Run:
    (found,) = runs(setting, method, **options)
    return found


@jax.jit
def key_of(words: Any, client: Any) -> Any:
    """The random key of a client, from the words of (seed, round)."""
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, CODEC_KEY), client)


def words_of(seed: int, t: int) -> NDArray[np.uint32]:
    """The random words of a round."""
    return generator(seed, Purpose.PARTS, t).integers(2**32, size=2, dtype=np.uint32)


@functools.cache
def arrival(setting: fp.Compression) -> Callable[..., NDArray[np.float64]]:
    """What arrives of a message of d numbers with a key."""
    codec = setting.codec_of(D)
    found = jax.jit(lambda sent, key: codec.decode(codec.encode(sent, key), key))
    return lambda sent, key=None: np.asarray(found(np.float32(sent), key), np.float64)


def by_loop(setting: fp.Compression, seed: int, pull: float = 0.5) -> NDArray[np.float64]:
    """FedAvg with compressed messages, as a loop, where clients go a part of their way."""
    w, error = START.copy(), np.zeros((CLIENTS, D))
    for t in range(ROUNDS):
        chosen = fp.Cohort(3).draw(seed, t, FEDERATION.train.offsets).clients
        total = sum(ROWS[k] for k in chosen)
        mean = np.zeros(D)
        for k in chosen.tolist():
            sent = pull * (CENTRES[k] - w) + error[k]
            arrived = arrival(setting)(sent, key_of(words_of(seed, t), k))
            if setting.error_feedback:
                error[k] = sent - arrived
            mean += ROWS[k] / total * arrived
        w = w + mean
    return w


RUNS = [CODECS["random-k"], with_feedback(CODECS["quantize rotated"])]
"""Of the codecs with a random key: without and with a state of clients."""


@pytest.mark.parametrize(
    ("setting", "devices"),
    [(RUNS[0], 2), pytest.param(RUNS[1], 1, marks=pytest.mark.slow)],
)
def test_a_run_is_that_of_a_loop(setting: fp.Compression, devices: int) -> None:
    for found in runs(setting, seed=[0, 4], devices=devices):
        np.testing.assert_allclose(found.params, by_loop(setting, found.seed), atol=2e-5)


@pytest.mark.parametrize(
    ("setting", "codec"),
    [
        (fp.Compression("full"), codecs.full(D, 32)),
        (CODECS["top-k"], codecs.top_k(D, 32, 2)),
        (fp.Compression("top-k", share=1 / 3), codecs.top_k(D, 32, 2)),
        (fp.Compression("top-k", share=1e-9), codecs.top_k(D, 32, 1)),
        (CODECS["random-k"], codecs.random_k(D, 32, 2)),
        (with_feedback(CODECS["random-k"]), codecs.contraction(codecs.random_k(D, 32, 2))),
        (CODECS["quantize"], codecs.quantize(D, 32, 3, 4, rotate=False)),
        (
            with_feedback(CODECS["quantize rotated"]),
            codecs.contraction(codecs.quantize(D, 32, 3, 4, rotate=True)),
        ),
        (CODECS["sign"], codecs.sign(D, 32, 4, rotate=False)),
        (CODECS["sign rotated"], codecs.sign(D, 32, 4, rotate=True, unbiased=True)),
        (with_feedback(CODECS["sign rotated"]), codecs.sign(D, 32, 4, rotate=True)),
    ],
)
def test_a_setting_has_its_codec(setting: fp.Compression, codec: codecs.Codec) -> None:
    def program(codec: codecs.Codec) -> tuple[str, ...]:
        code = jax.make_jaxpr(codec.encode)(START, jax.random.key(0))
        like = jax.eval_shape(codec.encode, START, jax.random.key(0))
        return str(code), str(jax.make_jaxpr(codec.decode)(like, jax.random.key(0)))

    found = setting.codec_of(D)
    assert (found.bits, found.omega, program(found)) == (codec.bits, codec.omega, program(codec))
    assert setting.codec_of(D, 64).bits > found.bits


def test_a_share_that_is_a_whole_number_but_for_rounding_is_one() -> None:
    assert 0.07 * 100 > 7
    assert fp.Compression("random-k", share=0.07).message_bits(100) == 7 * 32


@pytest.mark.slow
def test_points_of_a_sweep_and_methods_share_what_is_drawn() -> None:
    solver, mu = fp.Solver(0.5, batch_size="all", epochs=3), [0.0, 0.5]
    for found in runs(RUNS[1], fp.fedprox(mu=mu), solver=solver):
        pull = 0.0
        for _ in range(3):
            pull -= 0.5 * (pull - 1 + found.hparams["mu"] * pull)
        np.testing.assert_allclose(found.params, by_loop(RUNS[1], 0, pull), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["device", "host", "disk"])
def test_a_resumed_run_has_the_same_bits(store: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"client_store": store, "devices": 1}
    whole = run(RUNS[1], **options)
    run(RUNS[1], rounds=3, checkpoints=fp.Checkpoints(tmp_path), **options)
    extended = run(RUNS[1], checkpoints=fp.Checkpoints(tmp_path, resume=True), **options)
    np.testing.assert_array_equal(whole.params, extended.params)
    assert [r.bits_up for r in whole.history] == [r.bits_up for r in extended.history]


@pytest.mark.parametrize("every", mostly_slow([1, 3], 1))
def test_bits_are_counted_whenever_records_are_made(every: int, tmp_path: Path) -> None:
    setting, evaluation = CODECS["random-k"], fp.Evaluation(every=every, gradients=False)
    run(setting, evaluation=evaluation, rounds=4, checkpoints=fp.Checkpoints(tmp_path))
    again = fp.Checkpoints(tmp_path, resume=True)
    for found in (run(setting, evaluation=evaluation, checkpoints=again), run(setting)):
        for record in found.history:
            assert record.bits_up == 3 * 2 * 32 * record.round  # two numbers of six


def test_clients_that_are_dropped_send_nothing() -> None:
    found = run(fp.Compression("full"), systems=fp.Systems(stragglers=0.5))
    counted = sum(r.clients - r.dropped for r in found.history)
    assert 0 < counted < 3 * ROUNDS
    assert found.final.bits_up == 32 * D * counted


def test_a_smaller_message_takes_less_time() -> None:
    def seconds(setting: fp.Compression | None, method: Any = None, **options: Any) -> float | None:
        population = fp.Population(step_seconds=0.25, download=8.0, upload=2.0)
        cohort = fp.Cohort(POPULATION)
        (work,) = work_of(
            method or fp.fedavg(), 1, population, compression=setting, cohort=cohort, **options
        )
        return work.time

    slowest = 0.25 * 2 * 4  # two epochs of forty rows
    assert seconds(None) == seconds(fp.Compression("full")) == slowest + BYTES / 8 + BYTES / 2
    assert seconds(fp.Compression("sign")) == slowest + BYTES / 8 + (32 + 2) / 8 / 2
    assert seconds(None, fp.centralised()) == seconds(fp.Compression("sign"), fp.centralised())


@pytest.mark.parametrize("name", ["top-k", "random-k"])
def test_what_has_arrived_and_what_is_owed_are_all_messages(name: str) -> None:
    """And what is owed stays bounded."""
    messages = np.random.default_rng(5).normal(size=(400, 40)).astype(np.float32)
    words = np.array([words_of(0, t) for t in range(len(messages))])
    first, method = jnp.zeros(40), compressed(fp.fedavg(), with_feedback(CODECS[name]))
    assert method.client.state is not None

    def step(state: Any, given: Any) -> Any:
        message, round_words = given
        columns = {"key": jax.random.key_data(key_of(round_words, 0))}
        context = ClientContext(None, state, jnp.ones(()), columns=columns)
        solution = Solution(Subproblem(jnp.zeros_like(message)), message, jnp.int32(1))
        sent, state = method.client.message(first, {}, context, solution)
        return state, (sent, state.error)

    nothing = method.client.state(first)
    found = jax.jit(lambda *given: jax.lax.scan(step, nothing, given)[1])
    arrived, owed = (np.asarray(part, np.float64) for part in found(messages, words))
    for t in (1, 60, 400):
        total = arrived[:t].sum(axis=0) + owed[t - 1]
        np.testing.assert_allclose(total, messages[:t].sum(axis=0), atol=3e-4)
    assert np.abs(arrived - messages).max() > 0.1
    half, last = np.linalg.norm(owed[[199, 399]], axis=1)
    assert max(half, last) < 30 * np.sqrt(40)
    assert last < 2 * half + 5


@pytest.mark.slow
def test_one_number_of_six_reaches_the_optimum_with_feedback_or_feddyn_alone() -> None:
    apart = []
    for feedback, method in ((False, fp.fedavg()), (True, fp.fedavg()), (False, fp.feddyn(1.0))):
        found = run(
            fp.Compression("top-k", share=1 / D, error_feedback=feedback),
            method,
            solver=fp.Solver(0.2, batch_size="all", epochs=1, learning_rate_decay=0.99),
            cohort=fp.Cohort(CLIENTS),
            rounds=400,
            evaluation=fp.Evaluation(every=400, gradients=False),
        )
        optimum = np.average(CENTRES, axis=0, weights=ROWS if method.name == "fedavg" else None)
        apart.append(np.linalg.norm(found.params - optimum))
    assert apart[0] > 0.5
    assert max(apart[1:]) < 0.05


@pytest.mark.slow
def test_the_clients_models_are_themselves_if_all_numbers_arrive() -> None:
    """Those of methods stand in the table of crossings."""
    evaluation = fp.Evaluation(model="clients", gradients=False)
    lossless = fp.Compression("top-k", share=1.0, error_feedback=True)
    found, plain = (run(setting, evaluation=evaluation) for setting in (lossless, None))
    np.testing.assert_allclose(found.params, plain.params, atol=1e-6)
    assert plain.final.bits_up is None


def fedcomloc(setting: fp.Compression, p: float, rate: float) -> NDArray[np.float64]:
    """Yi et al. 2024, FedComLoc-Com, with the differences to the last average coded."""
    w, h, error = START.copy(), np.zeros((CLIENTS, D)), np.zeros((CLIENTS, D))
    for t in range(ROUNDS):
        steps = fp.scaffnew(p).client.round_steps
        assert steps is not None
        reached = []
        for k in range(CLIENTS):
            x = w
            for _ in range(steps(0, t)):
                x = x - rate * (x - CENTRES[k] - h[k])
            sent = x - w + error[k]
            reached.append(w + arrival(setting)(sent))
            error[k] = sent - (reached[k] - w)
        w = np.mean(reached, axis=0)
        h += p / rate * (w - np.array(reached))
        assert np.abs(h.sum(axis=0)).max() < 1e-6  # what the method needs
    return w


def test_scaffnew_beside_top_k_is_fedcomloc() -> None:
    """The control variates follow from what arrived, so they sum to zero in every round."""
    setting = with_feedback(CODECS["top-k"])
    found = run(setting, fp.scaffnew(p=0.5), cohort=fp.Cohort(CLIENTS))
    np.testing.assert_allclose(found.params, fedcomloc(setting, 0.5, 0.5), atol=1e-5)


@pytest.mark.slow
def test_feddyns_state_follows_from_what_arrived() -> None:
    setting, alpha = fp.Compression("top-k", share=1 / D), 1.0
    w, g, h = START.copy(), np.zeros((CLIENTS, D)), np.zeros(D)
    for t in range(ROUNDS):
        moved = []
        for k in fp.Cohort(3).draw(0, t, FEDERATION.train.offsets).clients:
            step = -0.5 * (w - CENTRES[k] - g[k])  # the proximal term is zero at w
            moved.append(arrival(setting)(step))
            g[k] -= alpha * moved[-1]
        h = h - alpha / CLIENTS * np.sum(moved, axis=0)
        w = w + np.mean(moved, axis=0) - h / alpha
    found = run(setting, fp.feddyn(alpha=alpha))
    np.testing.assert_allclose(found.params, w, atol=1e-5)


@pytest.mark.slow
def test_rounds_without_a_barrier_are_compressed() -> None:
    """With clients of equal speed, a buffer of the cohort is a round."""
    found = run(
        RUNS[0], asynchronous=fp.Asynchronous(3), population=fp.Population(1.0, upload=10.0)
    )
    np.testing.assert_allclose(found.params, by_loop(RUNS[0], 0), atol=2e-5)
    assert found.final.bits_up == ROUNDS * 3 * 2 * 32
    assert found.final.time == pytest.approx(ROUNDS * (1 + 2 * 4 / 10))


@pytest.mark.slow
def test_a_rule_reads_what_has_arrived() -> None:
    setting = fp.Compression("sign", bucket=8)
    found = run(setting, cohort=fp.Cohort(CLIENTS), rounds=1, aggregation=fp.Aggregation("median"))
    sent = [0.5 * (centre - START) for centre in CENTRES]
    arrived = [np.abs(x).mean() * np.sign(x) for x in sent]
    np.testing.assert_allclose(found.params, START + np.median(arrived, axis=0), atol=1e-5)


@pytest.mark.slow
def test_a_faulty_client_keeps_what_it_owes() -> None:
    centres = [np.full(D, 1e30) if k == 2 else c for k, c in enumerate(CENTRES)]
    found = run(
        with_feedback(CODECS["top-k"]),
        federation=quadratic_federation([np.eye(D)] * CLIENTS, centres, ROWS),
        cohort=fp.Cohort(CLIENTS),
        faults=fp.Faults(norm=np.inf),
    )
    assert [r.faulty_clients for r in found.history[1:]] == [["2"]] * ROUNDS
    assert np.isfinite(found.params).all()


UPDATES = [fp.fedavg(), fp.fedprox(0.1), fp.feddyn(0.1), fp.scaffnew(0.5), fp.moon(1.0)]
MORE = [
    *(fp.scaffold(), fp.mime(lite=True), fp.fednova(), fp.fedexp(), fp.qffl(q=0.5)),
    *(fp.fedadmm(rho=0.1), fp.fedsplit(step_size=0.1), fp.fedcm(alpha=0.5)),
]


def test_methods_whose_clients_send_more_than_an_update_are_known() -> None:
    for method in UPDATES + MORE:
        assert sends_more(method, MODEL.shapes) == (method in MORE), method.name


# ------------------------------------------------------------ the model that the server sends

DOWN = fp.Compression("full", bucket=4, download=8)


@jax.jit(static_argnums=(1, 2))
def travels(x: Any, bits: int, row: int) -> Any:
    """The whole numbers, the scales, and what arrives."""
    whole, scale = rounded(x, bits, row)
    return whole, scale, arrived(whole, scale, row)


@settings(max_examples=25)
@given(
    hnp.arrays(np.float32, 40, elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from([(8, 4), (16, 9)]),
)
def test_a_number_is_off_by_at_most_half_a_scale(x: NDArray[Any], form: tuple[int, int]) -> None:
    bits, row = form
    whole, scale, there = jax.device_get(travels(x, bits, row))
    assert whole.dtype == f"int{bits}"
    assert whole.size * bits + 32 * len(scale) == sent_bits(len(x), bits, row)
    step = np.repeat(scale.astype(np.float64), row)[: len(x)]
    off = np.abs(there.astype(np.float64) - x)
    assert (off <= step * (0.5 + 1e-3 * bits) + 1e-36).all()  # the least scale


def rounded_loop(w: NDArray[Any]) -> NDArray[Any]:
    """What arrives of a model with 8 bits, in rows of four."""
    received = np.empty(D)
    for first in range(0, D, 4):
        part = w[first : first + 4].astype(np.float32)
        scale = np.float32(np.abs(part).max()) / np.float32(127)
        received[first : first + 4] = np.rint(part / scale) * scale
    return received


CHANGED: dict[str, tuple[fp.Compression, float, dict[str, Any]]] = {
    "feedback": (
        fp.Compression("top-k", share=0.5, bucket=4, error_feedback=True, download=8),
        0.5,
        {"method": fp.fedopt(functools.partial(optax.sgd, momentum=0.5))},
    ),
    # with clients of equal speed, a buffer of the cohort is a round
    "no barrier": (
        fp.Compression("sign", bucket=4, download=8),
        0.0,
        {"asynchronous": fp.Asynchronous(CLIENTS), "population": fp.Population(1.0)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGED)
def test_a_run_whose_models_are_rounded_is_that_of_a_loop(name: str) -> None:
    """The server's own model is never rounded."""
    setting, momentum, options = CHANGED[name]
    w, moved = START.copy(), np.zeros(D)
    error = np.zeros((CLIENTS, D))
    for _ in range(ROUNDS):
        start = rounded_loop(w)
        sent = 0.5 * (np.array(CENTRES) - start) + error
        changes = np.array([arrival(setting)(each) for each in sent])
        error = (sent - changes) * setting.error_feedback
        moved = momentum * moved + np.average(changes, axis=0, weights=ROWS)
        w = w + moved
    found = run(setting, cohort=fp.Cohort(CLIENTS), **options)
    np.testing.assert_allclose(found.params, w, atol=1e-5)


@pytest.mark.slow
def test_personal_models_are_nearly_themselves_with_16_bits() -> None:
    half = fp.Compression("full", download=16)
    ours, theirs = (run(setting, fp.ditto(lam=0.1)) for setting in (half, None))
    np.testing.assert_allclose(ours.params, theirs.params, atol=2e-3)
    assert (np.asarray(ours.params) != np.asarray(theirs.params)).any()


def test_a_smaller_model_takes_less_time() -> None:
    population = fp.Population(step_seconds=0.25, download=8.0, upload=2.0)
    cohort = fp.Cohort(POPULATION)
    (work,) = work_of(fp.fedavg(), 1, population, compression=DOWN, cohort=cohort)
    assert work.time == 0.25 * 2 * 4 + (8 * 2 + 32) / 8 / 8 + BYTES / 2


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: fp.Compression("zip"), "compression.codec = 'zip'"),  # type: ignore[arg-type]
        (lambda: fp.Compression("top-k", share=0.0), r"compression.share = 0\.0"),
        (lambda: fp.Compression("quantize", bits=1), "compression.bits = 1; .* from 2 to 16"),
        (lambda: fp.Compression("sign", bucket=1), "compression.bucket = 1"),
        (
            lambda: fp.Compression("full", download=4),  # type: ignore[arg-type]
            r"compression\.download = 4; it must be one of 8, 16",
        ),
        (
            lambda: fp.Compression("sign", bucket=100, rotate=True),
            "compression.bucket = 100; with rotate = True it must be a power of two",
        ),
        (
            lambda: fp.Compression("top-k", rotate=True),
            'compression.rotate = True; it is for "quantize" and "sign", not for "top-k"',
        ),
        (
            lambda: fp.Compression("full", error_feedback=True),
            'compression.error_feedback = True; "full" has no error',
        ),
    ],
)
def test_bad_settings_are_one_line(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        make()
