"""Robust rules beside numbers of ByzFL and loops, and runs in which clients attack."""

import logging
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
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
}
"""What ByzFL 0.0.11 makes of `X` with f = 2: 200 iterations of the geometric median with nu = 1e-6,
five of centred clipping from 0. Its Krum sums over n - f - 1 neighbours, and that of Blanchard et
al. over n - f - 2; here both choose the same messages."""

MIXED_BYZFL = [-0.106667, -0.036667, -0.64, -0.518889]
"""The trimmed mean of ByzFL after nearest-neighbour mixing, with f = 2."""

TWO_OF_ELEVEN = 2 / 11


@pytest.mark.parametrize("rule", BYZFL)
def test_rules_are_those_of_byzfl(rule: Any) -> None:
    found = fp.Aggregation(rule, faulty=TWO_OF_ELEVEN).of(X, jnp.ones(11, bool))
    np.testing.assert_allclose(found, BYZFL[rule], atol=2e-6)


def test_mixing_is_that_of_byzfl() -> None:
    rule = fp.Aggregation("trimmed-mean", faulty=TWO_OF_ELEVEN, before="mixing")
    np.testing.assert_allclose(rule.of(X, jnp.ones(11, bool)), MIXED_BYZFL, atol=2e-6)


def krum_scores(x: NDArray[Any], faulty: int) -> NDArray[Any]:
    """Blanchard et al.'s sums, in a loop."""
    scores = []
    for i in range(len(x)):
        apart = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        scores.append(sum(apart[: max(len(x) - faulty - 2, 1)]))
    return np.array(scores)


ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(1, 3)),
    elements=st.sampled_from([-40.0, -3.0, -1.5, 0.0, 0.25, 1.0, 2.0, 7.0]),
    unique=False,
)


@settings(max_examples=60)
@given(rows=ROWS, share=st.sampled_from([0.0, 0.2, 0.49]), hidden=st.integers(0, 3))
def test_rules_are_those_of_loops_whatever_does_not_count(
    rows: NDArray[Any], share: float, hidden: int
) -> None:
    n = len(rows)
    faulty = min(int(np.ceil(share * n - 1e-6)), (n - 1) // 2)
    scores = krum_scores(rows, faulty)
    ordered = np.sort(rows, axis=0)
    expected: dict[Any, NDArray[Any]] = {
        "median": np.median(rows, axis=0),
        "trimmed-mean": ordered[faulty : n - faulty].mean(axis=0),
        "krum": rows[np.argmin(scores)],
        "multi-krum": rows[np.argsort(scores, kind="stable")[: n - faulty]].mean(axis=0),
    }
    # rows that do not count lie between the others, and hold anything
    at = np.sort(np.random.default_rng(0).permutation(n + hidden)[:n])
    padded = np.full((n + hidden, rows.shape[1]), np.nan, np.float32)
    padded[at] = rows
    counts = np.isin(np.arange(n + hidden), at)
    for rule, value in expected.items():
        found = fp.Aggregation(rule, faulty=share).of(padded, counts)
        if rule in ("krum", "multi-krum") and len(np.unique(scores.round(3))) < n:
            continue  # rounding decides between equal scores
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5)


@settings(max_examples=30)
@given(rows=ROWS)
def test_no_point_is_nearer_to_all_than_the_geometric_median(rows: NDArray[Any]) -> None:
    def distance(point: Any) -> float:
        return float(np.linalg.norm(rows - np.asarray(point), axis=1).sum())

    found = np.asarray(fp.Aggregation("geometric-median").of(rows, np.ones(len(rows), bool)))
    for other in (rows.mean(axis=0), np.median(rows, axis=0), *rows, *(found + rows / 100)):
        assert distance(found) <= distance(other) * (1 + 2e-3) + 1e-5


def test_buckets_are_of_consecutive_messages_that_count() -> None:
    rows = jnp.array([[1.0], [3.0], [jnp.nan], [10.0], [20.0], [100.0]])
    counts = jnp.array([True, True, False, True, True, True])
    rule = fp.Aggregation("median", before="bucketing", bucket=2)
    assert float(rule.of(rows, counts)[0]) == 15.0  # of 2, 15 and 100


@pytest.mark.parametrize("rule", ROBUST)
def test_without_messages_there_is_none(rule: Any) -> None:
    rows = {"a": jnp.full((3, 2), jnp.nan), "b": jnp.ones(3)}
    found = fp.Aggregation(rule, before="mixing").of(rows, jnp.zeros(3, bool))
    assert jax.tree.map(lambda a: a.tolist(), found) == {"a": [0.0, 0.0], "b": 0.0}


CLIENTS = 9
CENTRES = [np.array([float(k), -float(k)]) for k in range(CLIENTS)]
FEDERATION = quadratic_federation([np.eye(2)] * CLIENTS, CENTRES)
"""One step with rate 1 brings client k to its own minimum."""

MODEL = quadratic_model(np.array([5.0, 1.0]))


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


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [("mean", 4.0), ("median", 4.0), ("trimmed-mean", 4.0), ("geometric-median", 4.0)],
)
def test_a_round_takes_what_the_rule_makes_of_all_devices(
    rule: Any, expected: float, devices: int
) -> None:
    found = run(aggregation=fp.Aggregation(rule, faulty=0.2), devices=devices)
    np.testing.assert_allclose(found.params, [expected, -expected], atol=1e-4)


ATTACKERS = np.flatnonzero(fp.Attack("noise", share=0.3).clients(CLIENTS))
START = np.array([5.0, 1.0])


def honest() -> NDArray[Any]:
    return np.array([CENTRES[k] - START for k in range(CLIENTS) if k not in ATTACKERS])


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("sign-flip", lambda k: -2.0 * (CENTRES[k] - START)),
        ("inner-product", lambda _: -2.0 * honest().mean(axis=0)),
        ("a-little-is-enough", lambda _: honest().mean(axis=0) - 2.0 * honest().std(axis=0)),
    ],
)
def test_attackers_send_what_their_papers_say(
    kind: Any, sent: Callable[[int], NDArray[Any]], devices: int
) -> None:
    messages = [sent(k) if k in ATTACKERS else CENTRES[k] - START for k in range(CLIENTS)]
    attack = fp.Attack(kind, share=0.3, scale=2.0)
    for rule, take in (("mean", np.mean), ("median", np.median)):
        found = run(attack=attack, aggregation=fp.Aggregation(rule), devices=devices)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.params, START + take(messages, axis=0), atol=1e-4)


def test_noise_differs_from_client_to_client_and_repeats() -> None:
    attack = fp.Attack("noise", share=0.3, scale=1e6)
    ruined, again = run(attack=attack), run(attack=attack)
    assert np.abs(ruined.params).max() > 1e4
    np.testing.assert_array_equal(ruined.params, again.params)
    held = run(attack=attack, aggregation=fp.Aggregation("median"))
    assert np.abs(held.params).max() < 10


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


def test_faults_are_screened_before_a_rule() -> None:
    attack = fp.Attack("sign-flip", share=0.3, scale=1e6)
    found = run(attack=attack, aggregation=fp.Aggregation("median"), faults=fp.Faults(norm=50.0))
    assert found.faulty == len(ATTACKERS)
    np.testing.assert_allclose(found.params, START + np.median(honest(), axis=0), atol=1e-4)


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


def test_client_state_is_kept_whatever_the_rule() -> None:
    found = run(fp.feddyn(alpha=1.0), aggregation=fp.Aggregation("median"))
    assert np.isfinite(found.params).all()


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
            lambda: run(fp.feddane(mu=0.1), aggregation=fp.Aggregation("median")),
            'feddane: its clients send gradients first, so aggregation.rule = "median" does not',
        ),
        (
            lambda: run(
                aggregation=fp.Aggregation("median"),
                asynchronous=fp.Asynchronous(2),
                population=fp.Population(1.0),
            ),
            "aggregation.rule = .*, since a buffer's updates have weights of their own",
        ),
        (
            lambda: run(attack=fp.Attack("noise", share=0.1), privacy=fp.Privacy(1.0, epsilon=2.0)),
            'attack.kind = "noise" does not go with privacy.unit = "client", since noise hides',
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


@pytest.mark.parametrize("rule", get_args(RuleName))
def test_every_rule_is_public(rule: Any) -> None:
    """Of messages that are all the same a rule makes this message, and of none zeros."""
    one = {"w.A": jnp.array([[1.0], [2.0]]), "w.B": jnp.array([[3.0, 4.0]]), "b": jnp.ones(2)}
    messages = jax.tree.map(lambda a: jnp.stack([a] * 4), one)
    counts = jnp.array([True, True, True, False])
    rule_of = fp.Aggregation(rule, radius=100.0).of

    def dense(message: Any) -> Any:
        return message["w.A"] @ message["w.B"], message["b"]

    for weights in (None, jnp.array([1.0, 2.0, 3.0, 4.0])):
        for found, expected in zip(
            dense(rule_of(messages, counts, weights)), dense(one), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not any(np.any(leaf) for leaf in dense(rule_of(messages, jnp.zeros(4, bool))))


def test_the_mean_is_weighted() -> None:
    counts, weights = jnp.array([True, True, False]), jnp.array([1.0, 3.0, 5.0])
    made = fp.Aggregation().of(jnp.array([4.0, 8.0, jnp.nan]), counts, weights)
    assert float(made) == 7.0
