"""Noised measures: what an evaluation releases, its noise, its epsilon, and what reads it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

import fedprox as fp
from fedprox.parts.privacy.accounting import (
    Mechanism,
    calibrated_beside,
    calibrated_steps,
    epsilon_beside,
    epsilon_of,
)
from fedprox.parts.privacy.measures import (
    NOISED,
    Sums,
    bounded,
    evaluations_of,
    noise_by_key,
    sums_of_clients,
    sums_of_rows,
)
from fedprox.protocol.method import checked_methods, noise_words
from fedprox.protocol.protocol import Protocol
from fedprox.released import deviations
from tests.objectives import MODEL, represented
from tests.settings import BASE, CLIENTS, FEDERATION, runs
from tests.settings import privacy as privacy_of
from tests.variants import mostly_slow

BOUND = 1.25
"""Some clients' losses, and some rows', are above it."""

NAMES = ("train_loss", "test_loss", "test_accuracy")
UNITS: tuple[Any, ...] = ("client", "example")
W = MODEL.init(jax.random.key(5))


def noised(noise: float = 0.0, unit: Any = "client", **others: Any) -> dict[str, Any]:
    """Arguments of a run whose measures have noise, and whose models have none."""
    measures = fp.NoisedMeasures(BOUND, noise_multiplier=noise, **others)
    return {
        "privacy": privacy_of(noise_multiplier=0.0, unit=unit, measures=measures),
        "initial": W,
        "rounds": 2,
    }


def oracle(w: Any, unit: str) -> dict[str, float]:
    """Clipped means of the shared federation, row by row in float64."""
    losses, correct = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
    w = jax.tree.map(np.float64, w)
    train = FEDERATION.train
    for first, last in zip(train.offsets[:-1], train.offsets[1:], strict=True):
        outputs = represented(w, train.x[first:last].astype(np.float64)) @ w["head"]
        y = train.y[first:last]
        log = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
        losses.append(-log[np.arange(len(y)), y])
        correct.append((outputs.argmax(axis=1) == y).astype(float))
    if unit == "example":
        loss = float(np.minimum(np.concatenate(losses), BOUND).mean())
        accuracy = float(np.concatenate(correct).mean())
    else:
        loss = float(np.mean([min(each.mean(), BOUND) for each in losses]))
        accuracy = float(np.mean([each.mean() for each in correct]))
    return dict(zip(NAMES, (loss, loss, accuracy), strict=True))  # test rows are the same


@pytest.mark.parametrize("unit", mostly_slow(UNITS, "client"))
def test_without_noise_measures_are_clipped_means(unit: str) -> None:
    (run,), (plain,) = runs(**noised(unit=unit)), runs(initial=W, rounds=2)
    for record, w in ((run.history[0], W), (run.final, run.params)):
        for name, value in oracle(w, unit).items():
            assert record.value(name) == pytest.approx(value, rel=1e-5), name
    assert run.history[0].train_loss < 0.98 * plain.history[0].train_loss
    assert run.final.epsilon == math.inf
    assert math.isnan(run.final.gradient_variance)
    missing = ("faulty", "faulty_clients", "unmeasured", "train_loss_se", "client_accuracy_mean")
    assert all(getattr(run.final, name) is None for name in missing)


@pytest.mark.parametrize("unit", mostly_slow(UNITS, "client"))
def test_records_have_the_noise_of_their_key_in_units_of_what_one_moves(unit: str) -> None:
    """A mean of clients moves by root 3 over N, and a sum of rows by the root of its part's."""
    (run,), (silent,) = runs(**noised(2.0, unit)), runs(**noised(0.0, unit))
    words = noise_words(fp.fedavg(), BASE["solver"], {"learning_rate": 0.1})
    rows = len(FEDERATION.train)
    for record, exact in zip(run.history, silent.history, strict=True):
        if unit == "client":
            like = Sums({name: np.zeros((1, 1)) for name in NAMES}, {}, {}, 0.0)
            noise = noise_by_key(like, 2.0, run.seed, record.round, words[None])[0, :, 0]
            scale = math.sqrt(3) / CLIENTS * np.array([BOUND, BOUND, 1.0])
        else:
            like = Sums({name: np.zeros((CLIENTS, 1)) for name in NAMES}, {}, {}, 0.0)
            each = noise_by_key(like, 2.0, run.seed, record.round, words[None])
            noise = each[:, :, 0].sum(axis=0)
            scale = np.sqrt([1, 2, 2]) / rows * np.array([BOUND, BOUND, 1.0])
        for i, name in enumerate(NAMES):
            added = record.value(name) - exact.value(name)
            assert added == pytest.approx(noise[i] * scale[i], rel=1e-4, abs=1e-6)
    assert run.params["head"].tolist() == silent.params["head"].tolist()


def test_noise_is_normal_and_independent_of_that_of_other_keys() -> None:
    """Its variance over 20,000 draws is within five standard errors, as are correlations."""
    like = Sums({name: np.zeros((20, 1)) for name in NAMES[:2]}, {}, {}, 0.0)
    words = np.array([[3, 2**32 - 1]], np.uint32)
    draws = np.stack(
        [noise_by_key(like, 3.0, seed, t, words) for seed in range(100) for t in range(5)]
    )
    flat = draws.ravel()
    assert len(np.unique(flat)) == len(flat) == 20_000
    assert abs(flat.mean()) <= 5 * 3.0 / math.sqrt(len(flat))
    assert abs(flat.var() / 9.0 - 1) <= 5 * math.sqrt(2 / len(flat))
    assert stats.kstest(flat / 3.0, "norm").pvalue > 1e-4
    pairs = draws[:, :, 0].ravel(), draws[:, :, 1].ravel()
    assert abs(np.corrcoef(*pairs)[0, 1]) <= 5 / math.sqrt(len(pairs[0]))
    given = like, 3.0, 7, 2, words
    first = noise_by_key(*given)
    assert (noise_by_key(*given) == first).all()
    for changed in ((8, 2, words), (7, 3, words), (7, 2, words ^ np.array([[0, 1]], np.uint32))):
        assert not np.isin(noise_by_key(like, 3.0, *changed), first).any()
    assert not noise_by_key(like, 0.0, 7, 2, words).any()


@pytest.mark.parametrize("unit", UNITS)
def test_deviations_are_those_of_the_means(unit: Any) -> None:
    (method,) = checked_methods(_protocol(noised(2.0, unit)), [fp.fedavg()])
    told = deviations(method.protocol, 2.0)
    sources = 1 if unit == "client" else CLIENTS
    rows = {name: float(len(FEDERATION.train)) for name in NAMES}
    roots = np.sqrt([3, 3, 3] if unit == "client" else [1, 2, 2])
    scale = dict(zip(NAMES, roots.tolist(), strict=True))
    divisors = dict.fromkeys(NAMES, CLIENTS) if unit == "client" else rows
    sums = Sums({name: np.zeros((sources, 4000)) for name in NAMES}, divisors, scale, BOUND)
    words = np.arange(8000, dtype=np.uint32).reshape(-1, 2)
    for name, mean in sums.means(noise_by_key(sums, 2.0, 0, 0, words)).items():
        assert mean.std() == pytest.approx(told[name], rel=5 / math.sqrt(2 * 4000))


def _protocol(changes: dict[str, Any]) -> Protocol:
    given = {key: value for key, value in BASE.items() if key not in ("methods", "progress")}
    return Protocol(**given | changes, seeds=(0,))


def test_epsilon_is_that_of_dp_accounting_for_rounds_and_evaluations() -> None:
    mechanism = Mechanism(100, 10, "bernoulli", None, 1.5, 1, 1e-3, "pld")
    one = Mechanism(1, 1, "bernoulli", None, 12.0, 1, 1e-3, "rdp")
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    gaussian = dp_accounting.GaussianDpEvent
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, gaussian(1.5))
    accountant.compose(sampled, 40).compose(gaussian(12.0), 9)
    theirs = accountant.get_epsilon(1e-3)
    assert epsilon_beside(mechanism, 40, (one, 9)) == pytest.approx(theirs, rel=2e-3)
    assert epsilon_beside(mechanism, 40, (one, 9)) > epsilon_of(mechanism, 40)
    renyi = dp_accounting.rdp.RdpAccountant()
    renyi.compose(sampled, 40).compose(gaussian(12.0), 9)
    ours = epsilon_beside(mechanism._replace(accountant="rdp"), 40, (one, 9))
    assert ours == pytest.approx(renyi.get_epsilon(1e-3), rel=1e-9)
    # nothing is counted twice where both are the same mechanism
    all_ = Mechanism(1, 1, "bernoulli", None, 6.0, 1, 1e-3, "pld")
    assert epsilon_beside(all_, 4, (all_, 5)) == pytest.approx(epsilon_of(all_, 9), rel=1e-3)
    assert epsilon_beside(all_, 0, (all_, 5)) == pytest.approx(epsilon_of(all_, 5))
    assert epsilon_beside(all_, 4, None) == epsilon_beside(all_, 4, (one, 0)) == epsilon_of(all_, 4)
    assert epsilon_beside(all_, 4, (one._replace(noise_multiplier=0.0), 1)) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_calibration_meets_epsilon_from_below(accountant: Any) -> None:
    silent = Mechanism(100, 10, "bernoulli", None, 0.0, 1, 1e-3, accountant)
    measures = fp.NoisedMeasures(8.0, share=0.3)
    beside = measures.releases(4.0, 1e-3, accountant, 11)
    assert 0.999 * 1.2 <= epsilon_of(*beside) <= 1.2
    found = calibrated_beside(silent, 4.0, 20, beside)
    assert 0.999 * 4 <= epsilon_beside(found, 20, beside) <= 4.0
    clients = tuple((silent._replace(clients=n), 20) for n in (60, 100))
    noise = calibrated_steps(4.0, clients, beside)
    worst = clients[0][0]._replace(noise_multiplier=noise)
    assert 0.999 * 4 <= epsilon_beside(worst, 20, beside) <= 4.0
    fewer = measures.releases(4.0, 1e-3, accountant, 3)
    assert fewer[0].noise_multiplier < 0.6 * beside[0].noise_multiplier


@pytest.mark.slow
def test_measures_that_leave_nothing_to_training_are_refused() -> None:
    silent = Mechanism(100, 10, "bernoulli", None, 0.0, 1, 1e-3, "rdp")
    beside = Mechanism(1, 1, "bernoulli", None, 0.5, 1, 1e-3, "rdp"), 11
    with pytest.raises(fp.InputError, match="the measures leave nothing of it for training"):
        calibrated_beside(silent, 2.0, 20, beside)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_the_epsilon_of_a_run_counts_evaluations(unit: Any) -> None:
    measures = fp.NoisedMeasures(BOUND, share=0.25)
    private = fp.Privacy(1.0, epsilon=8.0, delta=0.01, accountant="rdp", unit=unit)
    changes: dict[str, Any] = {
        "cohort": fp.Cohort(CLIENTS),
        "evaluation": fp.Evaluation(every=2, gradients=False),
        "rounds": 3,
    }
    (run,) = runs(**changes, privacy=replace(private, measures=measures))
    (without,) = runs(**changes, privacy=private)
    assert [record.round for record in run.history] == [0, 2, 3]
    spent = [record.value("epsilon") for record in run.history]
    assert 0.999 * 8 <= spent[-1] <= 8.0
    one, count = measures.releases(8.0, 0.01, "rdp", 3)
    assert count == 3
    assert spent[0] == pytest.approx(epsilon_of(one, 1))
    assert 0 < spent[0] < spent[1] < spent[2]
    noises = run.noise_multiplier, without.noise_multiplier
    assert noises[0] is not None
    assert noises[1] is not None
    assert noises[0] > noises[1]


def test_evaluations_are_counted_as_records_are() -> None:
    for rounds in range(1, 8):
        for every in range(1, 9):
            protocol = _protocol({"rounds": rounds, "evaluation": fp.Evaluation(every=every)})
            recorded = [t for t in range(rounds + 1) if protocol.is_recorded(t)]
            for done in range(rounds + 1):
                count = sum(t <= done for t in recorded)
                assert evaluations_of(rounds, every, done) == count
            assert protocol.evaluations == len(recorded)


values = st.one_of(st.floats(-1, 20), st.sampled_from([math.nan, math.inf, -math.inf]))
clients = st.tuples(values, values, st.integers(0, 5), st.integers(0, 5))


@given(st.lists(clients, min_size=1, max_size=4), clients, st.sets(st.sampled_from(NOISED[1:3])))
@settings(max_examples=60, deadline=None)
def test_a_client_moves_the_vector_by_at_most_one(
    others: list[Any], another: Any, more: set[str]
) -> None:
    """As one client more, and as one that is replaced by another."""
    names = ["train_loss", *sorted(more)]

    def vector(federation: list[Any]) -> NDArray[np.float64]:
        train, test, rows, met = (np.array(each)[:, None] for each in zip(*federation, strict=True))
        known = sums_of_clients(
            names,
            BOUND,
            {"train": train, "test": test},
            {"test": np.minimum(met, rows)},
            {"test": rows[:, 0]},
        )
        return np.concatenate([known.values[name][:, 0] for name in names])

    without = vector(others[1:]) if others[1:] else np.zeros(len(names))
    moved = vector(others) - vector([another, *others[1:]]), vector(others) - without
    assert max(map(np.linalg.norm, moved)) <= 1 + 1e-12


@given(st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=6), values, st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_row_moves_the_vector_by_at_most_one(rows: list[Any], loss: float, met: bool) -> None:
    """A row for training moves one number, and one for tests two; also against none."""

    def vector(part: str, given: list[Any]) -> NDArray[np.float64]:
        each = bounded(np.array([one[0] for one in given]), BOUND) * BOUND
        sums = {"train": np.zeros((1, 1)), "test": np.zeros((1, 1))}
        losses = sums | {part: np.array([[each.sum() / len(rows)]])}
        correct = {"test": np.array([[sum(one[1] for one in given)]]) * (part == "test")}
        sizes = {"train": np.array([len(rows)]), "test": np.array([len(rows)])}
        known = sums_of_rows(list(NAMES), BOUND, losses, correct, sizes)
        return np.concatenate([known.values[name][:, 0] for name in NAMES])

    for part in ("train", "test"):
        moved = [
            vector(part, rows) - vector(part, [(loss, met), *rows[1:]]),
            vector(part, rows) - vector(part, [(0.0, False), *rows[1:]]),
        ]
        assert max(map(np.linalg.norm, moved)) <= 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_losses_that_are_not_finite_count_as_the_bound(unit: str) -> None:
    """A run whose model has diverged goes on, since its models have the same guarantee."""

    def loss(outputs: Any, y: Any) -> Any:
        return jnp.where(y > 0, jnp.nan, jnp.inf) * outputs.mean(axis=-1) ** 2

    (run,) = runs(**noised(unit=unit) | {"model": replace(MODEL, loss=loss), "rounds": 1})
    assert [record.train_loss for record in run.history] == [BOUND] * 2
    assert [record.test_loss for record in run.history] == [BOUND] * 2
    assert not run.final.diverged


def test_clients_without_test_rows_count_as_the_worst() -> None:
    test = [(np.zeros((0, 5)), np.zeros(0, int)) if k else each for k, each in enumerate(_rows())]
    federation = fp.Federation.from_arrays(_rows(), test=test)
    (run,) = runs(**noised(), federation=federation)
    first, whole = run.history[0], oracle(W, "client")
    assert first.train_loss == pytest.approx(whole["train_loss"], rel=1e-5)
    assert first.test_loss >= BOUND * (CLIENTS - 1) / CLIENTS
    assert first.test_accuracy <= 1 / CLIENTS


def _rows() -> list[Any]:
    train = FEDERATION.train
    pairs = zip(train.offsets[:-1], train.offsets[1:], strict=True)
    return [(train.x[first:last], train.y[first:last]) for first, last in pairs]


@pytest.mark.slow
def test_validation_rows_of_clients_have_noise_and_those_of_nobody_have_none() -> None:
    of_clients = replace(FEDERATION, validation=FEDERATION.test)
    (run,) = runs(**noised(3.0), federation=of_clients)
    assert run.final.validation_loss != run.final.test_loss
    (silent,) = runs(**noised(0.0), federation=of_clients)
    assert silent.final.validation_loss == silent.final.test_loss
    x, y = FEDERATION.train.x, FEDERATION.train.y
    public = replace(FEDERATION, validation=fp.Examples(x, y))
    changes = noised(3.0, only=["test_accuracy", "train_loss"]) | {"federation": public}
    (run,), (plain,) = runs(**changes), runs(federation=public, initial=W, rounds=2)
    assert run.history[0].validation_loss == pytest.approx(plain.history[0].validation_loss)
    assert math.isnan(run.final.test_loss)
    words = noise_words(fp.fedavg(), BASE["solver"], {"learning_rate": 0.1})[None]
    like = Sums(dict.fromkeys(NAMES[:2], np.zeros((1, 1))), {}, {}, 0.0)
    noise = noise_by_key(like, 3.0, run.seed, 0, words)[0, :, 0]
    added = run.history[0].test_accuracy - oracle(W, "client")["test_accuracy"]
    assert added == pytest.approx(noise[1] * math.sqrt(2) / CLIENTS, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_lanes_points_and_a_resumed_run_have_the_same_bits(unit: Any, tmp_path: Path) -> None:
    def history(**changes: Any) -> list[Any]:
        found = runs(**noised(1.0, unit) | {"rounds": 4} | changes)
        return [[each.value(name) for name in NAMES] for each in found[0].history]

    whole = history()
    assert history(devices=2) == whole
    sweep = fp.fedavg(), fp.fedprox(mu=[0.5, 1.0])
    assert history(methods=list(sweep)) == whole
    saved = fp.Checkpoints(tmp_path / "kept", every=2)
    again = replace(saved, resume=True)

    def stop(record: fp.Record) -> None:
        assert record.round < 3, "stopped"

    with pytest.raises(fp.InputError, match="stopped"):
        history(checkpoints=saved, callbacks=[fp.Callback(on_record=stop)])
    assert history(checkpoints=again) == whole
    with pytest.raises(fp.InputError, match=r"with the evaluations of privacy\.measures for 4"):
        history(checkpoints=again, rounds=6)


@pytest.mark.slow
def test_patience_target_and_the_best_model_read_what_is_released() -> None:
    changes = noised(5.0) | {"rounds": 5}
    choosing = fp.Selection(keep="best", measure="test_accuracy", patience=2)
    (run,) = runs(**changes, selection=choosing)
    seen = [record.test_accuracy for record in run.history]
    best = int(np.argmax(seen))
    assert run.model_round == best
    assert len(seen) == best + 3 < 6
    target = fp.Target("train_loss", 0.5)
    (run,) = runs(**changes, target=target, stop_at_target="any")
    losses = [record.train_loss for record in run.history]
    assert losses[-1] <= 0.5 < min(losses[:-1], default=math.inf)
    assert len(losses) < 6


@pytest.mark.parametrize(
    ("settings_", "line"),
    [
        ({}, "privacy.measures.share = None and privacy.measures.noise_multiplier = None"),
        ({"share": 0.1, "noise_multiplier": 1.0}, "give one of the two"),
        ({"share": 1.0}, "privacy.measures.share = 1.0; it must be above 0"),
        ({"share": 0.1, "loss_bound": 0.0}, "privacy.measures.loss_bound = 0.0"),
        ({"share": 0.1, "loss_bound": math.inf}, "privacy.measures.loss_bound = inf"),
        ({"noise_multiplier": 1e-9}, "privacy.measures.noise_multiplier = 1e-09; it must be 0"),
        ({"share": 0.1, "only": ["test_loss"]}, "privacy.measures.only = ['test_loss']"),
        ({"share": 0.1, "only": ["train_loss", "f1"]}, "it must be a list of train_loss and some"),
        ({"share": 0.1, "only": "train_loss"}, "privacy.measures.only = 'train_loss'"),
    ],
)
def test_wrong_settings_are_refused(settings_: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        fp.NoisedMeasures(**{"loss_bound": 8.0} | settings_)
    assert line in str(refused.value)


def test_a_share_is_of_epsilon() -> None:
    for noise, measures in (
        ({"epsilon": 1.0}, {"noise_multiplier": 1.0}),
        ({"noise_multiplier": 1.0}, {"share": 0.1}),
    ):
        with pytest.raises(fp.InputError, match=r"share is a part of privacy\.epsilon"):
            fp.Privacy(1.0, **noise, measures=fp.NoisedMeasures(8.0, **measures))  # type: ignore[arg-type]
    with pytest.raises(fp.InputError, match=r"privacy\.measures = 1; it must be a fedprox\.Noised"):
        fp.Privacy(1.0, epsilon=1.0, measures=1)  # type: ignore[arg-type]


def test_a_target_without_a_form_with_noise_is_refused() -> None:
    with pytest.raises(fp.InputError, match="test_accuracy: records do not have it"):
        runs(**noised(only=["train_loss"]), target=fp.Target("test_accuracy", 0.5))
    with pytest.raises(fp.InputError, match=r"these have no form with noise; it must be False"):
        runs(**noised(), evaluation=fp.Evaluation())
