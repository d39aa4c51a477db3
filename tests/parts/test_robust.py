"""Robust rules beside numbers of ByzFL and loops, and runs in which clients attack."""

import functools
import logging
from collections.abc import Callable
from typing import Any, get_args

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedprox as fp
from fedprox.errors import InputError
from fedprox.parts.robust import ROBUST, RuleName
from tests.quadratics import quadratic_federation, quadratic_model

X = np.array(
    [
        [-0.80, -1.32, -0.25, 0.42],
        [1.14, 0.11, -0.55, -0.78],
        [20.75, -28.37, 0.27, 3.77],
        [-0.96, 1.60, 0.20, -1.73],
        [-0.08, -1.16, -0.63, -0.49],
        [-0.71, 0.55, -0.06, -0.59],
        [0.41, 0.83, -1.64, -0.26],
        [-15.98, 39.83, 1.71, 3.02],
        [-0.04, -0.30, -1.05, -0.40],
        [-1.09, -1.36, 0.22, -1.11],
        [1.17, 0.72, -2.00, 0.27],
    ],
    np.float32,
)
"""Eleven messages, of which two are far from the others."""

BYZFL = {
    "median": [-0.08, 0.11, -0.25, -0.4],
    "trimmed-mean": [-0.148571, -0.081429, -0.302857, -0.261429],
    "geometric-median": [-0.021446, -0.151667, -0.759708, -0.438519],
    "centred-clipping": [-0.041444, -0.087725, -0.628146, -0.453567],
    "krum": [-0.04, -0.3, -1.05, -0.4],
    "multi-krum": [-0.106667, -0.036667, -0.64, -0.518889],
    "mixing": [-0.106667, -0.036667, -0.64, -0.518889],
}
"""What ByzFL 0.0.11 makes of `X` with f = 2: 200 iterations of the geometric median with nu = 1e-6,
five of centred clipping from 0. Its Krum sums over n - f - 1 neighbours, and that of Blanchard et
al. over n - f - 2; here both choose the same messages. "mixing" is the trimmed mean after
nearest-neighbour mixing."""

TWO_OF_ELEVEN, ALL = 2 / 11, np.ones(11, bool)


@functools.cache
def taken_of(faulty: float) -> Callable[..., dict[str, Any]]:
    """What all robust rules make of messages (11, 4), in one program, also of mixed ones."""
    rules = {rule: fp.Aggregation(rule, faulty=faulty) for rule in ROBUST}  # type: ignore[arg-type]
    rules["mixing"] = fp.Aggregation("trimmed-mean", faulty=faulty, before="mixing")
    program = jax.jit(lambda x, counts: {name: rule.of(x, counts) for name, rule in rules.items()})
    return lambda x, counts=ALL: jax.device_get(program(np.float32(x), counts))


@pytest.mark.parametrize("rule", BYZFL)
def test_rules_are_those_of_byzfl(rule: str) -> None:
    np.testing.assert_allclose(taken_of(TWO_OF_ELEVEN)(X)[rule], BYZFL[rule], atol=2e-6)


def krum_scores(x: NDArray[Any], faulty: int) -> NDArray[Any]:
    """Blanchard et al.'s sums, in a loop."""
    scores = []
    for i in range(len(x)):
        apart = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        scores.append(sum(apart[: max(len(x) - faulty - 2, 1)]))
    return np.array(scores)


def messages_of(seed: int) -> NDArray[np.float64]:
    """Messages like `X`, some of them large, whose numbers are often equal."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=X.shape) * rng.choice([0.5, 2.0, 20.0], size=(len(X), 1))
    return np.asarray(np.round(4 * rows) / 4)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    share=st.sampled_from([TWO_OF_ELEVEN, 0.49]),
    n=st.integers(1, len(X)),
)
def test_rules_are_those_of_loops_whatever_does_not_count(seed: int, share: float, n: int) -> None:
    messages = messages_of(seed)
    # rows that do not count lie between the others, and hold anything
    at = np.sort(np.random.default_rng(seed).permutation(len(X))[:n])
    counts = np.isin(np.arange(len(X)), at)
    rows, faulty = messages[at], min(int(np.ceil(share * n - 1e-6)), (n - 1) // 2)
    scores, ordered = krum_scores(rows, faulty), np.sort(rows, axis=0)
    expected: dict[str, NDArray[Any]] = {
        "median": np.median(rows, axis=0),
        "trimmed-mean": ordered[faulty : n - faulty].mean(axis=0),
    }
    if len(np.unique(scores.round(3))) == n:  # else rounding decides between equal scores
        expected["krum"] = rows[np.argmin(scores)]
        expected["multi-krum"] = rows[np.argsort(scores)[: n - faulty]].mean(axis=0)
    found = taken_of(share)(np.where(counts[:, None], messages, np.nan), counts)
    for rule, value in expected.items():
        np.testing.assert_allclose(found[rule], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_no_point_is_nearer_to_all_than_the_geometric_median(seed: int) -> None:
    rows = messages_of(seed)

    def distance(point: Any) -> float:
        return float(np.linalg.norm(rows - point, axis=1).sum())

    found = taken_of(TWO_OF_ELEVEN)(rows)["geometric-median"]
    for other in (rows.mean(axis=0), np.median(rows, axis=0), *rows, *(found + rows / 100)):
        assert distance(found) <= distance(other) * (1 + 2e-3) + 1e-5


def test_buckets_are_of_consecutive_messages_that_count() -> None:
    rows = np.array([[1.0], [3.0], [np.nan], [10.0], [20.0], [100.0]], np.float32)
    counts = np.array([True, True, False, True, True, True])
    rule = fp.Aggregation("trimmed-mean", faulty=0.4, before="bucketing", bucket=2)
    assert float(jax.jit(rule.of)(rows, counts)[0]) == 15.0  # of 2, 15 and 100


def test_without_messages_there_is_none() -> None:
    for found in taken_of(TWO_OF_ELEVEN)(X * np.nan, np.zeros(len(X), bool)).values():
        np.testing.assert_array_equal(found, 0)


CLIENTS = 9
CENTRES = np.array([[k**2, -k] for k in range(CLIENTS)], float)
FEDERATION = quadratic_federation([np.eye(2)] * CLIENTS, list(CENTRES))
"""One step with rate 1 brings client k to its own minimum."""

START = np.array([5.0, 1.0])
MODEL = quadratic_model(START)
ATTACKERS = fp.Attack("noise", share=0.3).clients(CLIENTS)


def run(method: fp.Algorithm | None = None, **options: Any) -> fp.Run:
    (found,) = fp.simulate(
        FEDERATION,
        MODEL,
        method or fp.fedavg(),
        solver=fp.Solver(1.0, batch_size="all", epochs=1),
        cohort=fp.Cohort(CLIENTS),
        rounds=1,
        evaluation=fp.Evaluation(gradients=False),
        progress=False,
        **options,
    )
    return found


def sent_by_hand(kind: str, messages: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """The messages of a round whose attackers scale by 2."""
    honest, sent = messages[counts & ~ATTACKERS], messages.copy()
    sent[ATTACKERS & counts] = {
        "sign-flip": -2.0 * messages[ATTACKERS & counts],
        "inner-product": -2.0 * honest.mean(axis=0),
        "a-little-is-enough": honest.mean(axis=0) - 2.0 * honest.std(axis=0),
    }[kind]
    return sent


KINDS: tuple[Any, ...] = "sign-flip", "inner-product", "a-little-is-enough"


def test_attackers_send_what_their_papers_say() -> None:
    messages = X[:CLIENTS]
    counts = np.ones(CLIENTS, bool)
    counts[[np.flatnonzero(ATTACKERS)[0], np.flatnonzero(~ATTACKERS)[0]]] = False
    attacks = [fp.Attack(kind, share=0.3, scale=2.0) for kind in KINDS]
    program = jax.jit(lambda x, counts, lies: [a.sent(x, counts, lies, None) for a in attacks])
    for kind, found in zip(KINDS, program(messages, counts, ATTACKERS), strict=True):
        np.testing.assert_allclose(found, sent_by_hand(kind, messages, counts), rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "rule", "devices"),
    [
        pytest.param("sign-flip", "mean", 2, marks=pytest.mark.slow),
        pytest.param("a-little-is-enough", "median", 1, marks=pytest.mark.slow),
        ("inner-product", "median", 2),
    ],
)
def test_a_round_takes_what_the_rule_makes_of_all_devices(
    kind: Any, rule: Any, devices: int
) -> None:
    attack = fp.Attack(kind, share=0.3, scale=2.0)
    found = run(attack=attack, aggregation=fp.Aggregation(rule), devices=devices)
    messages = sent_by_hand(kind, CENTRES - START, np.ones(CLIENTS, bool))
    taken = np.mean(messages, axis=0) if rule == "mean" else np.median(messages, axis=0)
    np.testing.assert_allclose(found.params, START + taken, atol=1e-4)


@pytest.mark.slow
def test_noise_differs_from_client_to_client_and_repeats() -> None:
    attack = fp.Attack("noise", share=0.3, scale=1e6)
    ruined, again = run(attack=attack), run(attack=attack)
    assert np.abs(ruined.params).max() > 1e4
    np.testing.assert_array_equal(ruined.params, again.params)
    zeros, counts = np.zeros((CLIENTS, 4), np.float32), np.ones(CLIENTS, bool)
    noise = np.asarray(jax.jit(attack.sent)(zeros, counts, ATTACKERS, jax.random.key(0)))
    assert not noise[~ATTACKERS].any()
    assert len(np.unique(noise[ATTACKERS])) == 4 * ATTACKERS.sum()


def test_labels_are_flipped_of_the_attackers_alone() -> None:
    federation = fp.datasets.synthetic(clients=6)
    attack = fp.Attack("label-flip", share=0.5)
    flipped, attacks = attack.data(federation), attack.clients(6)
    assert attacks.sum() == 3
    for k in range(6):
        part = slice(*federation.train.offsets[k : k + 2])
        y = federation.train.y[part]
        np.testing.assert_array_equal(flipped.train.y[part], 9 - y if attacks[k] else y)
    assert flipped.test is federation.test


@pytest.mark.slow
def test_faults_are_screened_before_a_rule() -> None:
    attack = fp.Attack("sign-flip", share=0.3, scale=1e6)
    found = run(attack=attack, aggregation=fp.Aggregation("median"), faults=fp.Faults(norm=99.0))
    assert found.faulty == ATTACKERS.sum()
    np.testing.assert_allclose(found.params, np.median(CENTRES[~ATTACKERS], axis=0), atol=1e-4)


@pytest.mark.slow
def test_the_bytes_of_stored_messages_are_said_before_the_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(**settings: Any) -> list[tuple[int, str]]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            run(**settings)
        return [
            (record.levelno, record.getMessage())
            for record in caplog.records
            if record.name.startswith("fedprox")
        ]

    assert lines() == []
    ((level, line),) = lines(aggregation=fp.Aggregation("median"))
    assert level == logging.INFO
    assert "each device stores up to" in line
    monkeypatch.setattr("fedprox.loop.local.MUCH", 1)
    ((level, _),) = lines(aggregation=fp.Aggregation("median"))
    assert level == logging.WARNING


@pytest.mark.slow
def test_client_state_is_kept_whatever_the_rule() -> None:
    """FedDyn's first round goes twice as far as the rule says."""
    found = run(fp.feddyn(alpha=1.0), aggregation=fp.Aggregation("median"))
    np.testing.assert_allclose(found.params, 2 * np.median(CENTRES, axis=0) - START, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: fp.Aggregation("mode"), "aggregation.rule = 'mode'"),  # type: ignore[arg-type]
        (
            lambda: fp.Aggregation("median", faulty=0.5),
            "aggregation.faulty = 0.5; it must be at least 0 and below 0.5",
        ),
        (lambda: fp.Aggregation(before="mixing"), "it is for robust rules"),
        (lambda: fp.Attack("lie", share=0.1), "attack.kind = 'lie'"),  # type: ignore[arg-type]
        (
            lambda: fp.Attack("noise", share=1.0),
            "attack.share = 1.0; it must be above 0 and below 1",
        ),
        (
            lambda: run(attack=fp.Attack("label-flip", share=0.3)),
            'attack.kind = "label-flip"; the labels are not classes',
        ),
    ],
)
def test_bad_settings_are_one_line(make: Callable[[], Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        make()


def test_every_rule_is_public() -> None:
    """Of messages that are all the same a rule makes this message, and of none zeros."""
    one = {"w.A": [[1.0], [2.0]], "w.B": [[3.0, 4.0]], "b": [1.0, 1.0]}
    messages = {name: np.array([leaf] * 4, np.float32) for name, leaf in one.items()}
    counts, weights = np.array([True, True, True, False]), np.arange(1.0, 5.0)
    rules = [fp.Aggregation(rule, radius=100.0) for rule in get_args(RuleName)]

    @jax.jit
    def all_of(counts: Any) -> Any:
        given = [(rule, weights) for rule in rules] + [(rule, None) for rule in rules[:2]]
        made = [rule.of(messages, counts, weights) for rule, weights in given]
        return [(each["w.A"] @ each["w.B"], each["b"]) for each in made]

    for product, rest in all_of(counts):
        np.testing.assert_allclose(product, [[3.0, 4.0], [6.0, 8.0]], rtol=1e-5)
        np.testing.assert_allclose(rest, 1.0, rtol=1e-5)
    assert not any(np.any(leaf) for made in all_of(np.zeros(4, bool)) for leaf in made)


def test_the_mean_is_weighted() -> None:
    counts, weights = np.array([True, True, False]), np.array([1.0, 3.0, 5.0])
    made = jax.jit(fp.Aggregation().of)(np.array([4.0, 8.0, np.nan]), counts, weights)
    assert float(made) == 7.0
