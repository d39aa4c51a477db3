"""Faulty clients: left out as if they had not been in the cohort, counted and named."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import (
    Algorithm,
    Callback,
    Cohort,
    Evaluation,
    Faults,
    Federation,
    InputError,
    Record,
    Rows,
    Run,
    Solver,
    Subproblem,
    fedavg,
    feddane,
    feddyn,
    fednova,
    fedprox,
    fedsplit,
    qffl,
    scaffold,
    simulate,
)
from fedprox.algorithms.base import ClientContext, ClientState, HParams, Message, Solution, State
from fedprox.algorithms.check import check_algorithm
from fedprox.devices.mesh import AXIS
from fedprox.engine.compiled import layout
from fedprox.engine.compiled.aggregation import Arrived, Result, collector
from fedprox.engine.planning.batch_plan import Capacity
from fedprox.engine.planning.jobs import Slots
from fedprox.parts.faults import screen
from fedprox.parts.part import Reduction, mean_of, screened_sum, sound
from fedprox.streams import Purpose
from fedprox.user_code import describe
from tests import methods
from tests.byhand import START
from tests.quadratics import one_run, quadratic_federation, quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

CLIENTS = 100
FEDERATION = ragged_quadratics(0, [1 + (37 * k) % CLIENTS for k in range(CLIENTS)])
"""Every client has another number of rows, by which a method's functions can tell them apart."""

SHARES = (0.01, 0.1, 0.5, 1.0)


@pytest.mark.parametrize("norm", [math.inf, 3.0])
def test_an_update_that_came_late_is_neither_counted_nor_compared_nor_faulty(norm: float) -> None:
    """Sizes 1, 2, 50 and 1, of which the third is faulty if compared, and the last is late."""
    room = Capacity(ticks=1, slots=4, places=4)
    rules = collector(Reduction(screen=Faults("drop", norm)), jnp.abs, room)
    planned = jnp.array([0.2, 0.4, 0.2, 0.2])
    sent, before = jnp.array([[1.0], [2.0], [50.0], [1.0]]), jnp.zeros((4, 1))
    arrived = Arrived(jnp.arange(4), jnp.arange(4), planned.at[3].set(0.0), sent, sent)

    def round_() -> Result:
        sums, state = rules.take(rules.begin(sent, before), before, arrived)
        return rules.end(sums, state, Slots(planned, planned, planned, planned, planned), None)

    result = jax.jit(jax.vmap(lambda _: round_(), axis_name=AXIS))(jnp.zeros(1))
    result = jax.tree.map(lambda a: a[0], result)
    weighted = [0.2 * 1.0, 0.4 * 2.0] + ([] if norm == 3.0 else [0.2 * 50.0])
    assert result.screened is not None
    np.testing.assert_allclose(result.sums, [sum(weighted)], rtol=1e-6)
    assert result.screened.flagged[:, 0].tolist() == [False, False, norm == 3.0, False]
    if norm == 3.0:
        np.testing.assert_allclose(result.screened.counted, [0.6], rtol=1e-6)
        assert result.client_state[:, 0].tolist() == [1.0, 2.0, 0.0, 0.0]


def faulty_clients(share: float) -> list[int]:
    """The clients with the fewest rows: so many of all."""
    return np.flatnonzero(FEDERATION.train.sizes <= share * CLIENTS).tolist()


def corrupting(algorithm: Algorithm, far: float) -> Algorithm:
    """The same method, a share of whose clients send what they should not: swept over.

    In turn NaN, infinity, numbers whose squares overflow, the message times `far`, which is NaN
    where nobody is left to tell it from, and a sound message beside something to keep that is none.
    """
    mean = FEDERATION.train.sizes.mean()

    def message(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, ClientState]:
        sent, keeps = algorithm.client.message(state, hparams, context, solution)
        rows = jnp.round(context.relative_size * mean).astype(int)
        times = jnp.where(hparams["bad"] < 1, far, jnp.nan)
        kind = jnp.where(rows <= hparams["bad"] * CLIENTS, rows % 5, -1)

        def spoiled(a: jax.Array) -> jax.Array:
            return jnp.select(
                [kind == 0, kind == 1, kind == 2, kind == 3],
                [a * jnp.nan, a.at[(0,) * min(a.ndim, 1)].set(-jnp.inf), a + 1e25, a * times],
                a,
            )

        spoiled_keeps = jax.tree.map(lambda a: jnp.where(kind == 4, jnp.nan, a), keeps)
        if algorithm.client.state is None:
            sent = jax.tree.map(lambda a: jnp.where(kind == 4, jnp.nan, a), sent)
        return jax.tree.map(spoiled, sent), spoiled_keeps

    return algorithm._replace(
        hparams={**algorithm.hparams, "bad": SHARES},
        client=algorithm.client._replace(message=message),
    )


CASES: dict[str, tuple[Algorithm, Callable[[], methods.Method], Any, float]] = {
    "scaffold": (scaffold(), lambda: methods.Scaffold(START, CLIENTS), "clients", 20.0),
    "fedavg": (fedavg(), lambda: methods.FedProx(START, CLIENTS, drop=True), "clients", math.inf),
    "fedsplit": (
        fedsplit(1.0, average="all"),
        lambda: methods.FedSplit(START, CLIENTS, 1.0, "all"),
        "cohort",
        math.inf,
    ),
    "fednova": (fednova(), lambda: methods.FedNova(START, CLIENTS), "server", 20.0),
    "qffl": (qffl(1.0), lambda: methods.QFfl(START, FEDERATION, 1.0), "server", 20.0),
}
"""A method, its oracle, the model that is evaluated, and the bound of sizes; all methods beside
faulty rows stand in `tests/crossings`."""


@pytest.mark.parametrize("name", mostly_slow(CASES, "scaffold"))
def test_it_is_as_if_faulty_clients_had_not_been_in_the_cohort(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1, 10, 50 and 100 % of all clients, each a point of one sweep, in rounds of ten."""
    algorithm, oracle, evaluated, norm = CASES[name]
    # some end while others, faulty or not, are at work beside them
    monkeypatch.setattr(layout, "choose_lanes", lambda *_: 3)
    setting: dict[str, Any] = {
        "solver": Solver(0.2, 20, epochs=2),
        "cohort": Cohort(10),
        "rounds": 5,
    }
    runs = simulate(
        FEDERATION,
        quadratic_model(START),
        corrupting(algorithm, 1e4 if norm < math.inf else math.inf),
        faults=Faults(norm=norm),
        evaluation=Evaluation(every=2, model=evaluated, gradients=False),
        **setting,
    )
    for share, found in zip(SHARES, runs, strict=True):
        bad = set(faulty_clients(share))
        path = methods.run(oracle(), FEDERATION, faulty=bad, **setting)
        expected = getattr(path, evaluated)[-1]
        np.testing.assert_allclose(found.params, expected, rtol=2e-4, atol=2e-5)
        cohorts = [set(Cohort(10).draw(0, t, FEDERATION.train.offsets).clients) for t in range(5)]
        since = [(), cohorts[:2], cohorts[2:4], cohorts[4:]]
        for record, rounds in zip(found.history, since, strict=True):
            names = sorted({int(k) for cohort in rounds for k in cohort & bad})
            assert record.faulty == sum(len(cohort & bad) for cohort in rounds)
            assert record.faulty_clients == [str(k) for k in names]
        assert found.faulty == sum(len(cohort & bad) for cohort in cohorts)
    assert runs[1].faulty
    np.testing.assert_array_equal(runs[-1].params, np.float32(START))


def spoiled(federation: Federation, clients: dict[int, float]) -> Federation:
    """The same, all features of some clients being another number."""
    x = federation.train.x.copy()
    for k, value in clients.items():
        x[federation.train.offsets[k] : federation.train.offsets[k + 1]] = value
    return replace(federation, train=Rows(x, federation.train.y, federation.train.offsets))


BAD_ROWS = {1: math.nan, 3: math.inf, 4: 1e30, 7: -3e38}
SOME_ROWS = [1 + (7 * k) % 9 for k in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "batched"), [(1, True), (2, False)])
def test_rows_that_are_no_numbers_spoil_their_clients_alone(
    devices: int, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and in evaluations, beside a point of the sweep that would diverge."""
    if not batched:
        monkeypatch.setattr(layout, "SMALL_STEP", 0)
    federation = ragged_quadratics(0, SOME_ROWS)
    setting: dict[str, Any] = {"cohort": Cohort(6), "rounds": 4}
    calm, wild = simulate(
        spoiled(federation, BAD_ROWS),
        quadratic_model(START),
        feddyn(alpha=0.7),
        solver=Solver([0.1, 1e30], 3, epochs=1),
        faults=Faults(),
        evaluation=Evaluation(every=2),
        devices=devices,
        **setting,
    )
    oracle = methods.FedDyn(START, 10, 0.7)
    solver = Solver(0.1, 3, epochs=1)
    path = methods.run(oracle, federation, solver=solver, faulty=BAD_ROWS, **setting).server
    np.testing.assert_allclose(calm.params, path[-1], rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(wild.params, np.float32(START))
    good = Federation.from_arrays([federation.train.client(k) for k in (0, 2, 5, 6, 8, 9)])
    for record in calm.history:
        loss = methods.objective(good, path[record.round])
        np.testing.assert_allclose(record.train_loss, loss, rtol=2e-4)
        assert record.unmeasured == 4
        assert math.isfinite(record.dissimilarity)
    drawn = [Cohort(6).draw(0, t, federation.train.offsets).clients for t in range(4)]
    assert wild.faulty == 24
    assert calm.faulty == sum(k in BAD_ROWS for clients in drawn for k in clients)
    assert calm.final.gamma_max < 1
    assert math.isnan(wild.final.gamma_max)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "gradients"), [(math.inf, False), (10.0, True)])
def test_faulty_gradients_of_a_first_exchange_are_left_out(norm: float, gradients: bool) -> None:
    """FedDANE with everybody in both cohorts is FedDANE of the sound clients."""
    federation, sound = ragged_quadratics(0, SOME_ROWS), [0, 2, 4, 5, 6, 8, 9]
    solver, model, method = Solver(0.1, "all", steps=4), quadratic_model(START), feddane(mu=1.0)
    others = Federation.from_arrays([federation.train.client(k) for k in sound])
    measures = ["train_loss"]
    if gradients:
        measures += ["gradient_variance", "dissimilarity", "gamma_mean", "gamma_max"]
    options: dict[str, Any] = {"rounds": 3, "evaluation": Evaluation(gradients=gradients)}
    expected = one_run(others, model, method, solver, **options).final
    bad = spoiled(federation, {1: math.nan, 3: math.inf, 7: -3e38})
    found = one_run(bad, model, method, solver, faults=Faults(norm=norm), **options).final
    # a client's gradient, and its work
    assert (found.faulty, found.faulty_clients) == (6, ["1", "3", "7"])
    for name in measures:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4)


@pytest.mark.slow
def test_without_a_sound_gradient_of_a_first_exchange_nothing_changes() -> None:
    federation = spoiled(ragged_quadratics(0, [2, 3]), {0: math.nan})
    solver, cohort, rounds = Solver(0.1, "all", steps=2), Cohort(1), 24
    model, method = quadratic_model(START), feddane(mu=1.0)
    run = one_run(federation, model, method, solver, rounds=rounds, cohort=cohort, faults=Faults())
    kinds = set()
    for t, (before, after) in enumerate(itertools.pairwise(run.history)):
        drawn = [
            cohort.draw(0, t, federation.train.offsets, purpose).clients[0]
            for purpose in (Purpose.GRADIENT_COHORT, Purpose.COHORT)
        ]
        assert after.faulty == drawn.count(0)
        assert (after.train_loss == before.train_loss) == (0 in drawn)
        kinds.add(tuple(map(int, drawn)))
    assert len(kinds) == 4


def test_without_a_sound_update_what_the_server_remembers_stays() -> None:
    """One client a round: FedDyn's h moves the model even where the mean update is 0."""
    federation, cohort, rounds = ragged_quadratics(0, SOME_ROWS), Cohort(1), 8
    drawn = [int(cohort.draw(0, t, federation.train.offsets).clients[0]) for t in range(rounds)]
    # sound rounds before and after faulty ones
    assert {k in BAD_ROWS for k in drawn[1:-1]} == {True, False}
    solver, oracle = Solver(0.1, 3, epochs=1), methods.FedDyn(START, 10, 0.7)
    run = one_run(
        spoiled(federation, BAD_ROWS),
        quadratic_model(START),
        feddyn(alpha=0.7),
        solver,
        cohort=cohort,
        rounds=rounds,
        faults=Faults(),
    )
    path = methods.run(
        oracle, federation, cohort=cohort, rounds=rounds, solver=solver, faulty=BAD_ROWS
    )
    np.testing.assert_allclose(run.params, path.server[-1], rtol=2e-4, atol=2e-5)


def pulled(b: list[float], faults: Faults) -> Run:
    """Clients who come to b_k in one step from 0."""
    federation = quadratic_federation([np.eye(1)] * len(b), [np.zeros(1)] * len(b))
    y = np.array(b, np.float32)[:, None]
    federation = replace(federation, train=replace(federation.train, y=y))
    model, solver = quadratic_model(np.zeros(1)), Solver(1.0, "all", steps=1)
    return one_run(
        federation, model, fedavg(), solver, faults=faults, evaluation=Evaluation(gradients=False)
    )


@pytest.mark.slow
def test_an_update_far_beyond_the_others_is_left_out_or_scaled_down() -> None:
    far = [1.0, 2.0, 4.0, 3.0, math.nan, -100.0]  # of five that are finite the middle one is 3
    assert pulled(far, Faults(norm=5)).params == pytest.approx([2.5])
    clipped = pulled(far, Faults("clip", 5))
    assert clipped.params == pytest.approx([(10 - 15) / 5])
    assert (clipped.faulty, clipped.final.faulty_clients) == (2, ["4", "5"])
    assert pulled(far, Faults(norm=math.inf)).params == pytest.approx([-18])


PLACES = 24
"""Places for updates, so that all programs have one shape; those without weight are nobody's."""

SCREEN = jax.jit(partial(screen, Faults()))


def scales(sizes: list[float]) -> list[float]:
    """What finite updates of these sizes, all alike else, are multiplied by."""
    size, weight = np.zeros((PLACES, 1), np.float32), np.zeros(PLACES, np.float32)
    size[: len(sizes), 0], weight[: len(sizes)] = sizes, 1 / len(sizes)
    judged = SCREEN(np.ones_like(size), size, weight)
    return np.asarray(judged.scale[: len(sizes), 0]).tolist()


def test_vectors_side_by_side_are_compared_too() -> None:
    # of a first exchange's gradients, the last place being nobody's
    vectors = jnp.array([[[1.0]], [[2.0]], [[jnp.nan]], [[-300.0]], [[0.0]]])
    weight = jnp.array([0.1, 0.3, 0.2, 0.4, 0.0])
    sums, judged = jax.jit(partial(screened_sum, Faults(norm=5)))(vectors, weight)
    assert judged.flagged[:, 0].tolist() == [False, False, True, True, False]
    np.testing.assert_allclose(mean_of(sums, judged.counted), [[(0.1 + 0.6) / 0.4]], rtol=1e-6)


def test_what_is_no_number_is_not_judged() -> None:
    counted = jnp.arange(3), jnp.array([True]), jax.random.key(0)
    assert float(sound(jnp.ones(2), counted)) == 1
    assert float(sound(jnp.array([1.0, jnp.inf]), counted)) == 0


def test_the_measure_of_few() -> None:
    assert scales([500.0]) == [1]  # a single one is never beyond
    assert scales([1.0, 500.0]) == [1, 0]  # of two the smaller is the measure
    assert scales([1.0, 10.0]) == [1, 1]
    assert scales([0.0, 0.0, 3.0]) == [1, 1, 1]  # where most stay there is nothing to compare with
    assert scales([math.inf, 1.0]) == [0, 1]


@pytest.mark.slow
def test_a_client_that_comes_late_is_not_faulty_where_last_models_are_evaluated() -> None:
    # one step brings client k from the model, which is soon near 0, to b_k; only the last model of
    # one that has not taken part yet is still at the start, 10,000 times as far away
    b = [np.array([(-1.0) ** k]) for k in range(12)]
    run = one_run(
        quadratic_federation([np.eye(1)] * 12, b),
        quadratic_model(np.array([1e4])),
        fedavg(),
        Solver(0.9, "all", steps=2),
        cohort=Cohort(4),
        rounds=8,
        faults=Faults(norm=50),
        evaluation=Evaluation(model="clients", gradients=False),
    )
    assert run.faulty == 0


def counting(algorithm: Algorithm) -> Algorithm:
    """The same method, whose clients also keep how often they took part: a whole number."""
    assert algorithm.client.state is not None
    client_state = algorithm.client.state

    def message(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Any, Any]:
        before, times = context.state
        sent, keeps = algorithm.client.message(
            state, hparams, context._replace(state=before), solution
        )
        return sent, (keeps, times + 1)

    return algorithm._replace(
        subproblem=lambda state, hparams, context: algorithm.subproblem(
            state, hparams, context._replace(state=context.state[0])
        ),
        client=algorithm.client._replace(
            state=lambda params: (client_state(params), jnp.int32(0)), message=message
        ),
    )


@pytest.mark.slow
def test_what_a_client_keeps_is_clipped_with_its_message() -> None:
    """FedDyn's g_k: as if the client had gone the way that counts, and no further."""
    whole = ragged_quadratics(2, [2, 3, 4, 5])
    y = whole.train.y.copy()
    y[:2] += 30
    federation = replace(whole, train=replace(whole.train, y=y))
    rows = [methods.rows_of(federation, k) for k in range(4)]
    solver, oracle, shares = (
        Solver(0.1, "all", steps=3),
        methods.FedDyn(START, 4, 0.7),
        list[float](),
    )
    for _ in range(3):
        ways = {}
        for k, context in enumerate(rows):
            batches = [np.arange(len(context[1]), dtype=np.int32)] * 3
            found = methods.descend(oracle.params, oracle.problem(k), context, batches, solver, 0.1)
            ways[k] = found - oracle.params
        norms = {k: float(np.linalg.norm(way)) for k, way in ways.items()}
        bound = 2 * sorted(norms.values())[1]
        scale = {k: min(1.0, bound / norm) for k, norm in norms.items()}
        shares += scale.values()
        answers = {k: methods.Answer(oracle.params + scale[k] * ways[k], 3) for k in ways}
        oracle.finish(answers, np.ones(4), 0.1, lambda w: w)
    run = one_run(
        federation,
        quadratic_model(START),
        counting(feddyn(alpha=0.7)),
        solver,
        rounds=3,
        faults=Faults("clip", 2),
    )
    np.testing.assert_allclose(run.params, oracle.params, rtol=1e-4)
    assert run.faulty == sum(share < 1 for share in shares)
    assert 0 < run.faulty < 12


@given(
    sizes=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9),
    far=st.lists(st.floats(1e3, 1e9), max_size=9),
    lost=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_up_to_half_of_the_finite_updates_may_be_far(
    sizes: list[float], far: list[float], lost: int, seed: int
) -> None:
    far = far[: len(sizes)]
    count = len(sizes) + len(far) + lost
    order = np.random.default_rng(seed).permutation(count)
    size, finite, weight = (np.zeros(PLACES, np.float32) for _ in range(3))
    size[order] = sizes + far + [0.0] * lost
    finite[order] = [1.0] * (count - lost) + [0.0] * lost
    weight[:count] = 1 / count
    scale, faulty, share = SCREEN(finite[:, None], size[:, None], weight)
    sound = (finite > 0) & (size < 3)
    np.testing.assert_array_equal(scale[:, 0], sound)
    np.testing.assert_array_equal(faulty[:, 0], ~sound & (weight > 0))
    np.testing.assert_allclose(share, [sound.sum() / count], rtol=1e-5)


@pytest.mark.slow
def test_a_run_without_faulty_updates_is_the_same() -> None:
    federation, model = ragged_quadratics(0, SOME_ROWS), quadratic_model(START)
    without, other = (
        one_run(
            federation,
            model,
            scaffold(),
            Solver(0.1, 3, epochs=1),
            cohort=Cohort(4),
            rounds=3,
            evaluation=Evaluation(every=3, gradients=False),
            faults=faults,
        )
        for faults in (None, Faults(norm=1e6))
    )
    np.testing.assert_allclose(other.params, without.params, rtol=1e-6)
    for record, expected in zip(other.history, without.history, strict=True):
        assert record.train_loss == pytest.approx(expected.train_loss)
        assert (record.faulty, record.faulty_clients, record.unmeasured) == (0, [], 0)
        assert (expected.faulty, expected.faulty_clients) == (None, None)


@pytest.mark.parametrize(("count", "more"), [(5, ""), (6, " and 1 more")])
def test_at_most_five_clients_are_named(count: int, more: str) -> None:
    """Of the first round with faulty updates, and of its first run."""
    names = [f"c{k}" for k in range(9)]
    first = [(3, 1, k) for k in range(count)]
    flagged = np.array([(4, 0, 8), *first[::-1], (3, 2, 7)])
    line = f"b: round 4: faulty update of client c0, c1, c2, c3, c4{more}, and faults.policy"
    with pytest.raises(InputError, match=f"^{line}"):
        Faults("fail").measures_of(flagged, ["a", "b", "c"], names)
    found = Faults().measures_of(flagged, ["a", "b", "c"], names)
    assert found["faulty"] == [1, count, 1]
    assert found["faulty_clients"] == [["c8"], names[:count], ["c7"]]


def test_a_run_that_is_to_fail_names_the_round_and_the_clients() -> None:
    records: list[Record] = []
    federation = spoiled(ragged_quadratics(0, SOME_ROWS), {2: math.nan, 6: math.inf})
    cohort, offsets = Cohort(3), federation.train.offsets

    def bad(seed: int, t: int) -> set[int]:
        return set(cohort.draw(seed, t, offsets).clients.tolist()) & {2, 6}

    seed = next(seed for seed in itertools.count() if not any(bad(seed, t) for t in range(4)))
    t = next(t for t in itertools.count() if bad(seed, t))
    names = ", ".join(map(str, sorted(bad(seed, t))))
    expected = rf"fedprox mu=1, seed {seed}: round {t + 1}: faulty update of client {names}, and "
    with pytest.raises(InputError, match=expected):
        simulate(
            federation,
            quadratic_model(START),
            fedprox(mu=[1.0, 2.0]),
            solver=Solver(0.1, 3, epochs=1),
            cohort=cohort,
            rounds=30,
            evaluation=Evaluation(every=2, gradients=False),
            faults=Faults("fail"),
            seed=seed,
            callbacks=[Callback(on_record=records.append)],
        )
    assert {record.round for record in records} == set(range(0, t + 1, 2))
    assert all(record.faulty == 0 for record in records)


def wrong_message(*given: Any) -> Any:
    return jnp.zeros(4), given[2].state


def wrong_state(*given: Any) -> Any:
    return given[3].params, jnp.zeros((3, 1))


def whole_numbers(*given: Any) -> Any:
    return given[3].params.astype(int), given[2].state


def elsewhere(state: Any, *_: Any) -> Subproblem:
    return Subproblem({"a": state, "b": state, "c": state, "d": state, "e": state, "f": state})


def other_problem(**knobs: Any) -> Any:
    def subproblem(state: Any, *_: Any) -> Subproblem:
        return Subproblem(state, **knobs)

    return fedavg()._replace(subproblem=subproblem)


WRONG = [
    (
        feddane(mu=1.0)._replace(
            subproblem=fedavg().subproblem, first=feddane(mu=1.0).first._replace(gradient=False)
        ),
        "feddane: first.exchange: first.gradient must be True beside it",
    ),
    (
        feddane(mu=1.0)._replace(
            first=feddane(mu=1.0).first._replace(exchange=lambda state, *_: state.params)
        ),
        r"feddane: exchange\(.*\) gives float32\[3\]; it must be like the state before, params",
    ),
    (
        fedavg()._replace(server=fedavg().server._replace(evaluated=lambda state: state[:1])),
        r"fedavg: evaluated\(state\) gives float32\[1\]; it must be like the model, float32\[3\]",
    ),
    (
        fedavg()._replace(client=fedavg().client._replace(size=lambda message: message)),
        r"fedavg: size\(message\) gives float32\[3\]; it must be like a number, float32\[\]",
    ),
    (
        fedavg()._replace(subproblem=elsewhere),
        r"fedavg: its local problem starts from a float32\[3\], b float32\[3\], c float32\[3\], "
        r"d float32\[3\], 2 more; it must be like the model, float32\[3\]",
    ),
    (
        fedavg()._replace(
            server=fedavg().server._replace(params=lambda state: state.astype(jnp.bfloat16))
        ),
        r"fedavg: params\(state\) gives bfloat16\[3\]; it must be like the model, float32\[3\]",
    ),
    (
        fedavg()._replace(
            client=fedavg().client._replace(message=lambda *_: (None, None)),
            server=fedavg().server._replace(update=lambda *_: jnp.zeros(4)),
        ),
        r"fedavg: update\(.*\) gives float32\[4\]; it must be like the state before, float32\[3\]",
    ),
    (
        other_problem(linear=jnp.zeros(1)),
        r"fedavg: linear of its local problem is float32\[1\]; it must be like the model",
    ),
    (
        other_problem(mu=jnp.zeros(3), anchor=START),
        r"fedavg: mu of its local problem is float32\[3\]; it must be like a number, float32\[\]",
    ),
    (
        other_problem(mu=jnp.zeros(()), anchor=jnp.zeros(1)),
        r"fedavg: the anchor of its local problem is float32\[1\]; it must be like the model",
    ),
    (
        other_problem(mu=jnp.zeros(())),
        "fedavg: its local problem has one of mu and anchor; give both or neither",
    ),
    (
        fedprox(mu=1.0)._replace(client=fedprox(mu=1.0).client._replace(message=wrong_message)),
        r"fedprox: its message is float32\[4\]; it must be like the model, float32\[3\]",
    ),
    (
        feddyn(alpha=1.0)._replace(client=feddyn(alpha=1.0).client._replace(message=wrong_message)),
        r"feddyn: update\(state, mean, hparams\) raised TypeError: add got incompatible shapes .*"
        r"; it was given mean float32\[4\], state.params float32\[3\], state.h float32\[3\]",
    ),
    (
        feddyn(alpha=1.0)._replace(client=feddyn(alpha=1.0).client._replace(message=wrong_state)),
        r"feddyn: the new state of a client is float32\[3,1\]; it must be like its state "
        r"before, float32\[3\]",
    ),
    (
        fedavg()._replace(client=fedavg().client._replace(message=whole_numbers)),
        r"fedavg: its message is int32\[3\], of which",
    ),
    (
        fedavg()._replace(server=fedavg().server._replace(update=lambda state, *_: state[:1])),
        r"fedavg: update\(.*\) gives float32\[1\]; it must be like the state before, float32\[3\]",
    ),
]


@pytest.mark.parametrize(("algorithm", "message"), WRONG)
def test_a_method_with_arrays_of_wrong_shapes_is_named(algorithm: Algorithm, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        one_run(
            ragged_quadratics(0, [1, 2]), quadratic_model(START), algorithm, Solver(0.1, 1, steps=1)
        )
    assert "\n" not in str(refused.value)


def test_up_to_four_arrays_are_shown() -> None:
    trees = [[jnp.zeros(n) for n in range(count)] for count in (0, 4, 6)]
    assert list(map(describe, trees)) == [
        "nothing",
        "0 float32[0], 1 float32[1], 2 float32[2], 3 float32[3]",
        "0 float32[0], 1 float32[1], 2 float32[2], 3 float32[3], 2 more",
    ]


def test_a_method_is_checked_with_what_its_clients_know() -> None:
    def subproblem(state: Any, _: Any, context: ClientContext) -> Subproblem:
        assert (context.gradient, context.state) == (None, None)
        return Subproblem(state)

    check_algorithm(fedavg()._replace(subproblem=subproblem), jnp.zeros(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "skip"}, "faults.policy = 'skip'; it must be one of drop, fail, clip"),
        ({"norm": 0.5}, "faults.norm = 0.5; it must be a number of at least 1, or inf"),
        ({"norm": math.nan}, "faults.norm = nan; it must be a number of at least 1, or inf"),
        ({"norm": "10"}, "faults.norm = '10'; it must be a number of at least 1, or inf"),
        ({"policy": "clip", "norm": math.inf}, 'faults.policy = "clip" it must be finite'),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Faults(**options)


def test_a_bound_may_be_any_number() -> None:
    for norm in (np.int64(5), np.float32(5), 5):
        assert Faults(norm=norm).compares  # type: ignore[arg-type]
