"""Compressed runs beside loops, error feedback as a promise, bits in records and on the clock."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

import fedprox as fp
from fedprox.algorithms.base import ClientContext, Solution
from fedprox.errors import InputError
from fedprox.parts.compression import CODEC_KEY, compressed
from fedprox.streams import Purpose, generator
from fedprox.subproblem import Subproblem
from tests.quadratics import quadratic_federation, quadratic_model

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
    return fp.simulate(FEDERATION, MODEL, method or fp.fedavg(), **given | options)


def run(setting: fp.Compression | None, method: Any = None, **options: Any) -> fp.Run:
    (found,) = runs(setting, method, **options)
    return found


def key_of(seed: int, t: int, client: int) -> Any:
    """The random key of (seed, round, client)."""
    words = generator(seed, Purpose.PARTS, t).integers(2**32, size=2, dtype=np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(key, CODEC_KEY), client)


def by_loop(setting: fp.Compression, seed: int = 0) -> NDArray[np.float64]:
    """FedAvg with compressed messages, as a loop over rounds and clients."""
    w, error = START.copy(), np.zeros((CLIENTS, D))
    codec = setting.codec_of(D)
    for t in range(ROUNDS):
        chosen = fp.Cohort(3).draw(seed, t, FEDERATION.train.offsets).clients
        total = sum(ROWS[k] for k in chosen)
        mean = np.zeros(D)
        for k in chosen.tolist():
            sent = 0.5 * (CENTRES[k] - w) + error[k]
            key = key_of(seed, t, k)
            code = codec.encode(jnp.asarray(sent, jnp.float32), key)
            arrived = np.asarray(codec.decode(code, key), np.float64)
            if setting.error_feedback:
                error[k] = sent - arrived
            mean += ROWS[k] / total * arrived
        w = w + mean
    return w


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("name", CODECS)
def test_a_run_is_that_of_a_loop(name: str, feedback: bool) -> None:
    setting = with_feedback(CODECS[name]) if feedback else CODECS[name]
    for found in runs(setting, seed=[0, 4]):
        np.testing.assert_allclose(found.params, by_loop(setting, found.seed), atol=2e-5)


def test_a_run_does_not_depend_on_devices_and_sweep_points() -> None:
    setting = with_feedback(CODECS["quantize"])
    solver = fp.Solver(0.2, batch_size="all", epochs=3)
    one, two = (run(setting, fp.fedprox(mu=0.5), solver=solver, devices=n) for n in (1, 2))
    np.testing.assert_allclose(one.params, two.params, atol=1e-5)
    swept = runs(setting, fp.fedprox(mu=[0.0, 0.5]), solver=solver)
    np.testing.assert_allclose(swept[1].params, one.params, atol=1e-5)
    assert np.abs(swept[0].params - one.params).max() > 1e-3


def test_methods_share_what_is_drawn() -> None:
    setting = fp.Compression("random-k", share=0.2)
    averaged, proximal = runs(setting, [fp.fedavg(), fp.fedprox(mu=1e-9)])
    np.testing.assert_allclose(averaged.params, proximal.params, atol=1e-5)


@pytest.mark.parametrize("store", ["device", "host", "disk"])
def test_a_resumed_run_has_the_same_bits(store: Any, tmp_path: Path) -> None:
    setting = with_feedback(CODECS["random-k"])
    whole = run(setting, client_store=store)
    run(setting, client_store=store, rounds=3, checkpoints=fp.Checkpoints(tmp_path))
    again = fp.Checkpoints(tmp_path, resume=True)
    extended = run(setting, client_store=store, checkpoints=again)
    np.testing.assert_array_equal(whole.params, extended.params)
    assert [r.bits_up for r in whole.history] == [r.bits_up for r in extended.history]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_bits_are_counted_whenever_records_are_made(every: int, tmp_path: Path) -> None:
    setting, evaluation = CODECS["top-k"], fp.Evaluation(every=every, gradients=False)
    each = 2 * (32 + 3)  # the two largest of six, and their places

    def check(found: fp.Run) -> None:
        for record in found.history:
            assert record.bits_up == 3 * each * record.round

    check(run(setting, evaluation=evaluation))
    run(setting, evaluation=evaluation, rounds=4, checkpoints=fp.Checkpoints(tmp_path))
    again = fp.Checkpoints(tmp_path, resume=True)
    check(run(setting, evaluation=evaluation, checkpoints=again))


def test_clients_that_are_dropped_send_nothing() -> None:
    late = fp.Systems(stragglers=0.5)
    found = run(fp.Compression("full"), systems=late, rounds=20)
    counted = sum(r.clients - r.dropped for r in found.history)
    assert 0 < counted < 60
    assert found.final.bits_up == 32 * D * counted
    plain = run(None, systems=late, rounds=20)
    np.testing.assert_array_equal(found.params, plain.params)
    assert plain.final.bits_up is None


def test_a_smaller_message_takes_less_time() -> None:
    def seconds(setting: fp.Compression | None, **options: Any) -> float | None:
        population = fp.Population(step_seconds=1.0, download=8.0, upload=2.0)
        return run(setting, population=population, rounds=1, **options).final.time

    model = 4 * D
    assert seconds(None) == seconds(fp.Compression("full")) == 1 + model / 8 + model / 2
    assert seconds(fp.Compression("sign")) == 1 + model / 8 + (32 + D) / 8 / 2
    assert seconds(None, method=fp.centralised()) == seconds(
        fp.Compression("sign"), method=fp.centralised()
    )


def messages_of(
    setting: fp.Compression, messages: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What arrives of a client's messages, and what it owes at last."""
    first = jnp.zeros(messages.shape[1])
    method = compressed(fp.fedavg(), setting)
    assert method.client.state is not None
    state, arrived = method.client.state(first), []
    step = jax.jit(
        lambda message, state, words: method.client.message(
            first,
            {},
            ClientContext(None, state, jnp.ones(()), columns={"key": words}),
            Solution(Subproblem(jnp.zeros_like(message)), message, jnp.int32(1)),
        )
    )
    for t, message in enumerate(messages):
        words = jax.random.key_data(key_of(0, t, 0))
        sent, state = step(jnp.asarray(message, jnp.float32), state, words)
        arrived.append(np.asarray(sent, np.float64))
    return np.array(arrived), np.asarray(state.error, np.float64)


@pytest.mark.parametrize("name", CODECS)
def test_what_has_arrived_and_what_is_owed_are_all_messages(name: str) -> None:
    messages = np.random.default_rng(5).normal(size=(60, 40))
    arrived, owed = messages_of(with_feedback(CODECS[name]), messages)
    np.testing.assert_allclose(arrived.sum(axis=0) + owed, messages.sum(axis=0), atol=1e-4)
    assert np.abs(arrived - messages).max() > 0.1


@pytest.mark.parametrize("name", CODECS)
def test_what_is_owed_stays_bounded(name: str) -> None:
    messages = np.random.default_rng(5).normal(size=(400, 40))
    owed = [
        np.linalg.norm(messages_of(with_feedback(CODECS[name]), messages[:n])[1])
        for n in (200, 400)
    ]
    assert max(owed) < 30 * np.sqrt(40)
    assert owed[1] < 2 * owed[0] + 5


def test_one_number_of_a_hundred_reaches_the_optimum_with_feedback_alone() -> None:
    d, clients = 100, 5
    rng = np.random.default_rng(0)
    centres = list(rng.normal(size=(clients, d)))
    federation = quadratic_federation([np.eye(d)] * clients, centres)
    optimum = np.mean(centres, axis=0)
    apart = {}
    for name, setting in (
        ("without", fp.Compression("top-k", share=0.01)),
        ("with", fp.Compression("top-k", share=0.01, error_feedback=True)),
    ):
        (found,) = fp.simulate(
            federation,
            quadratic_model(np.full(d, 3.0)),
            fp.fedavg(),
            solver=fp.Solver(0.01, batch_size="all", steps=1, learning_rate_decay=0.998),
            cohort=fp.Cohort(clients),
            rounds=2500,
            evaluation=fp.Evaluation(every=2500, gradients=False),
            compression=setting,
            progress=False,
        )
        apart[name] = np.linalg.norm(found.params - optimum)
    assert apart["with"] < 0.2
    assert apart["without"] > 1


@pytest.mark.parametrize(
    "method",
    [
        fp.fedavg(),
        fp.fedprox(mu=0.5, adapt=True),
        fp.fedopt(optax.sgd, server_learning_rate=0.5),
        fp.ditto(lam=0.5),
        fp.pfedme(lam=2.0, eta=0.1),
    ],
    ids=lambda method: method.name,
)
@pytest.mark.parametrize("model", ["server", "clients"])
def test_methods_are_themselves_if_all_numbers_arrive(method: fp.Algorithm, model: Any) -> None:
    evaluation = fp.Evaluation(model=model, gradients=False)
    if model == "clients" and (method.personal is not None or method.adapt is not None):
        return  # these evaluate the server's model
    lossless = fp.Compression("top-k", share=1.0, error_feedback=True)
    (found, *_), (plain, *_) = (
        runs(setting, method, evaluation=evaluation) for setting in (lossless, None)
    )
    np.testing.assert_allclose(found.params, plain.params, atol=1e-6)
    for name in ("personal_loss", "train_loss"):
        for a, b in zip(found.history, plain.history, strict=True):
            np.testing.assert_allclose(
                getattr(a, name) or 0.0, getattr(b, name) or 0.0, atol=1e-5, err_msg=name
            )


def arrived(setting: fp.Compression, sent: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the server has of a message, in float64 beside the coded numbers' places."""
    codec = setting.codec_of(len(sent))
    return np.asarray(codec.decode(codec.encode(jnp.asarray(sent, jnp.float32), None), None), float)


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
            reached.append(w + arrived(setting, sent))
            if setting.error_feedback:
                error[k] = sent - (reached[k] - w)
        w = np.mean(reached, axis=0)
        h += p / rate * (w - np.array(reached))
        assert np.abs(h.sum(axis=0)).max() < 1e-6  # what the method needs
    return w


@pytest.mark.parametrize("feedback", [False, True])
def test_scaffnew_beside_top_k_is_fedcomloc(feedback: bool) -> None:
    """The control variates follow from what arrived, so they sum to zero in every round."""
    setting = dataclasses.replace(CODECS["top-k"], error_feedback=feedback)
    found = run(setting, fp.scaffnew(p=0.5), cohort=fp.Cohort(CLIENTS))
    np.testing.assert_allclose(found.params, fedcomloc(setting, 0.5, 0.5), atol=1e-5)
    plain = run(None, fp.scaffnew(p=0.5), cohort=fp.Cohort(CLIENTS))
    assert np.abs(found.params - plain.params).max() > 1e-2


def test_feddyns_state_follows_from_what_arrived() -> None:
    """With top-k of a sixth and without feedback it still ends at the minimizer."""
    setting, alpha = fp.Compression("top-k", share=1 / D), 1.0
    w, g, h = START.copy(), np.zeros((CLIENTS, D)), np.zeros(D)
    for t in range(ROUNDS):
        moved = []
        for k in fp.Cohort(3).draw(0, t, FEDERATION.train.offsets).clients:
            step = -0.5 * (w - CENTRES[k] - g[k])  # the proximal term is zero at w
            moved.append(arrived(setting, step))
            g[k] -= alpha * moved[-1]
        h = h - alpha / CLIENTS * np.sum(moved, axis=0)
        w = w + np.mean(moved, axis=0) - h / alpha
    method = fp.feddyn(alpha=alpha)
    np.testing.assert_allclose(run(setting, method).params, w, atol=1e-5)
    long = run(
        setting,
        method,
        cohort=fp.Cohort(CLIENTS),
        rounds=400,
        evaluation=fp.Evaluation(every=400, gradients=False),
    )
    np.testing.assert_allclose(long.params, np.mean(CENTRES, axis=0), atol=1e-3)


def test_rounds_without_a_barrier_are_compressed() -> None:
    asynchronous = fp.Asynchronous(buffer=2)
    options: dict[str, Any] = {
        "asynchronous": asynchronous,
        "population": fp.Population(1.0, upload=10.0),
        "rounds": 30,
    }
    found = run(fp.Compression("quantize", bits=8), **options)
    plain = run(None, **options)
    assert found.final.bits_up == 60 * (32 + 8 * D)
    assert found.final.time is not None
    assert plain.final.time is not None
    assert found.final.time < plain.final.time
    np.testing.assert_allclose(found.params, plain.params, atol=0.1)


def test_a_rule_reads_what_has_arrived() -> None:
    setting = fp.Compression("sign", bucket=8)
    found = run(setting, cohort=fp.Cohort(CLIENTS), rounds=1, aggregation=fp.Aggregation("median"))
    sent = [0.5 * (centre - START) for centre in CENTRES]
    arrived = [np.abs(x).mean() * np.sign(x) for x in sent]
    np.testing.assert_allclose(found.params, START + np.median(arrived, axis=0), atol=1e-5)


def test_a_faulty_client_keeps_what_it_owes() -> None:
    setting = with_feedback(CODECS["top-k"])
    centres = [np.full(D, 1e30) if k == 2 else c for k, c in enumerate(CENTRES)]
    federation = quadratic_federation([np.eye(D)] * CLIENTS, centres, ROWS)
    (found,) = fp.simulate(
        federation,
        MODEL,
        fp.fedavg(),
        solver=fp.Solver(0.5, batch_size="all", epochs=1),
        cohort=fp.Cohort(CLIENTS),
        rounds=3,
        faults=fp.Faults(norm=np.inf),
        evaluation=fp.Evaluation(gradients=False),
        compression=setting,
        progress=False,
    )
    assert [r.faulty_clients for r in found.history[1:]] == [["2"]] * 3
    assert np.isfinite(found.params).all()


def test_doubles_travel_in_64_bits() -> None:
    assert fp.Compression("sign").codec_of(100, 64).bits == 164


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (fp.feddane(mu=0.1), "its clients send gradients first"),
        (fp.mime(), "its clients send gradients first"),
        (fp.mime(lite=True), "a method whose clients do not send an update of the whole model"),
        (fp.scaffold(), "a method whose clients do not send an update of the whole model"),
        (fp.fednova(), "a method whose clients do not send an update of the whole model"),
        (fp.fedexp(), "a method whose clients do not send an update of the whole model"),
        (fp.qffl(q=0.5), "a method whose clients do not send an update of the whole model"),
        (fp.moon(mu=1.0), "its clients keep a state that belongs to what they sent"),
        (fp.fedadmm(rho=0.1), "a method whose clients do not send an update of the whole model"),
        (
            fp.fedsplit(step_size=0.1),
            "a method whose clients do not send an update of the whole model",
        ),
        (fp.fedcm(alpha=0.5), "a method whose clients do not send an update of the whole model"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_methods_whose_clients_send_more_are_refused(method: fp.Algorithm, why: str) -> None:
    with pytest.raises(InputError, match=f"{method.name}: {why}"):
        run(CODECS["sign"], method, cohort=fp.Cohort(CLIENTS))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: fp.Compression("zip"), "compression.codec = 'zip'"),  # type: ignore[arg-type]
        (lambda: fp.Compression("top-k", share=0.0), r"compression.share = 0\.0"),
        (lambda: fp.Compression("quantize", bits=1), "compression.bits = 1; .* from 2 to 16"),
        (lambda: fp.Compression("sign", bucket=1), "compression.bucket = 1"),
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
        (
            lambda: run(CODECS["sign"], privacy=fp.Privacy(1.0, epsilon=2.0)),
            "compression does not go with privacy.unit",
        ),
        (
            lambda: run(
                with_feedback(CODECS["sign"]),
                asynchronous=fp.Asynchronous(2),
                population=fp.Population(1.0),
            ),
            "compression.error_feedback = True does not go with asynchronous",
        ),
        (
            lambda: run(
                CODECS["sign"],
                asynchronous=fp.Asynchronous(1, adds="models"),
                population=fp.Population(1.0),
            ),
            'asynchronous.adds = "models" does not go with compression, .*; it must be "updates"',
        ),
    ],
)
def test_bad_settings_are_one_line(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        make()
