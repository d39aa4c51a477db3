"""How much room a round's arrays have: it is found in bounded time, and changes no result."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.engine.compiled import layout as laying_out
from fedprox.engine.compiled.compile import Compiler
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.batch_plan import Capacity, Shape, plan_bytes
from fedprox.engine.planning.round_work import RoundWork, round_work
from fedprox.engine.storage import training_data
from tests.quadratics import quadratic_model, ragged_quadratics

SIZES = [1, 2, 3, 4, 5, 60, 7, 90, 2, 1]
START = np.array([1.0, -2.0, 3.0])


class Enough(BaseException):
    """A run has come far enough for a test."""


def runs(method: fp.Algorithm, **options: Any) -> list[fp.Run]:
    setting: dict[str, Any] = {
        "solver": fp.Solver(0.02, 3, epochs=2),
        "cohort": fp.Cohort(3),
        "systems": fp.Systems(stragglers=0.4),
        "rounds": 12,
        "evaluation": fp.Evaluation(every=4, gradients=False),
        "seed": [0, 1],
    }
    return fp.simulate(
        ragged_quadratics(0, SIZES), quadratic_model(START), method, **setting | options
    )


@contextmanager
def sampling(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[list[Capacity]]:
    """Room for the first `count` rounds; the room that programs are asked for."""
    asked: list[Capacity] = []
    original = Compiler._rounds

    def noted(self: Compiler, layout: Layout, state: Any) -> Any:
        asked.append(layout.room)
        return original(self, layout, state)

    with monkeypatch.context() as patch:
        patch.setattr(laying_out, "SAMPLE_ROUNDS", (count, count))
        # the lanes are chosen by the sample and change the order of sums
        patch.setattr(laying_out, "choose_lanes", lambda *_: 2)
        patch.setattr(Compiler, "_rounds", noted)
        yield asked


ANY = fp.Cohort(3, "bernoulli")
GROWING: dict[str, tuple[fp.Algorithm, bool, dict[str, Any]]] = {
    "scaffold": (fp.scaffold(), False, {}),
    "gradients": (fp.fedprox(mu=0.3), False, {"evaluation": fp.Evaluation(every=4)}),
    "faults": (fp.fedprox(mu=0.3), True, {"faults": fp.Faults(), "cohort": ANY}),
    "a first exchange": (fp.feddane(mu=0.3), True, {"cohort": ANY}),
}
"""A method, whether rows stay with the host, and settings."""


@pytest.mark.slow
@pytest.mark.parametrize("case", GROWING)
def test_a_round_that_needs_more_room_gets_it(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, stays, options = GROWING[case]
    monkeypatch.setattr(training_data, "stays_with_host", lambda *_: stays)
    with sampling(monkeypatch, 1) as grown:
        some = runs(method, **options)
    with sampling(monkeypatch, 24) as enough:
        others = runs(method, **options)
    assert len(set(grown)) > len(set(enough)) == 1
    assert grown[-1].ticks > grown[0].ticks
    for a, b in zip(some, others, strict=True):
        np.testing.assert_allclose(a.params, b.params, rtol=1e-5)
        np.testing.assert_allclose(
            [r.train_loss for r in a.history], [r.train_loss for r in b.history], rtol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [fp.scaffold(), fp.fedavg(), fp.mime()], ids=lambda method: method.name
)
def test_a_run_that_grew_goes_on_bit_for_bit(
    method: fp.Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where calls end nor the seeds that came before change how much room a round has."""

    def until(record: fp.Record) -> None:
        if record.seed == 1 and record.round == 8:
            raise Enough

    with sampling(monkeypatch, 1):
        whole = runs(method)
        with pytest.raises(Enough):
            runs(
                method,
                checkpoints=fp.Checkpoints(tmp_path, every=3),
                callbacks=[fp.Callback(on_record=until)],
            )
        resumed = runs(method, checkpoints=fp.Checkpoints(tmp_path, resume=True))
        second = runs(method, seed=1)
    np.testing.assert_equal(second[0].history, whole[1].history)
    for a, b in zip(whole, resumed, strict=True):
        np.testing.assert_equal(a.history, b.history)
        np.testing.assert_array_equal(a.params, b.params)


@pytest.mark.slow
def test_what_is_done_before_the_first_rounds_does_not_depend_on_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(record: fp.Record) -> None:
        if record.round == 4:
            raise Enough

    draws: list[int] = []
    draw = round_work

    def counted(*args: Any) -> Any:
        draws[-1] += 1
        return draw(*args)

    monkeypatch.setattr("fedprox.engine.planning.round_work.round_work", counted)
    for number in (10**3, 10**7):
        for method in (fp.fedprox(mu=0.3), fp.scaffold()):
            draws.append(0)
            with pytest.raises(Enough):
                runs(method, rounds=number, callbacks=[fp.Callback(on_record=first)])
    assert max(draws) < 300
    assert np.ptp(draws[::2]) < 50 > np.ptp(draws[1::2])  # some are drawn behind the main thread


def test_shapes_grow_by_half_of_what_is_needed_and_only_where_it_is() -> None:
    room = Capacity(10, 5, 2, 7, 0, 9, 100)
    layout = Layout(Shape(4, 2, 3, 8), Shape(4, 2, 2, 16), room, False, True, 0.1, 50, 1)
    assert layout.fitting(room) is layout
    larger = layout.fitting(Capacity(20, 5, 1, 0, 0, 10, 0))
    assert larger.room == Capacity(30, 5, 2, 7, 0, 15, 100)
    assert larger._replace(room=room) == layout


def test_a_call_has_places_for_the_clients_of_all_its_rounds() -> None:
    room = Capacity(10, 5, places=3)
    layout = Layout(Shape(4, 2, 3, 8), Shape(4, 2, 2, 16), room, False, True, 0.1, 50, 1)
    assert layout.held == 10
    assert layout._replace(clients=15).held == 8
    assert layout.together(1).held == 3


def test_a_round_without_clients_needs_one_place_and_one_tick() -> None:
    room = Capacity(10, 5, places=3)
    layout = Layout(Shape(4, 2, 3, 8), Shape(4, 2, 2, 16), room, False, True, 0.1, 50, 1)
    asked = laying_out.needed(layout, fp.Solver(0.1, 3, epochs=1), RoundWork())
    assert asked == Capacity(ticks=1, slots=1, places=1)


def test_a_client_keeps_its_row_whenever_it_first_takes_part() -> None:
    """Of rounds in one call or several, and of a store with as many rows as can be needed."""
    few, many = (runs(fp.scaffold(), rounds=rounds) for rounds in (4, 12))
    for a, b in zip(few, many, strict=True):
        np.testing.assert_equal(a.history, b.history[:2])


def layout_of(**options: Any) -> Layout:
    """The layout of a run's programs, none of which is compiled."""
    found: list[Layout] = []

    def noted(_: Compiler, layout: Layout, state: Any) -> Any:
        del state
        found.append(layout)
        raise Enough

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiler, "_rounds", noted)
        with pytest.raises(Enough):
            runs(fp.fedavg(), systems=fp.Systems(), **options)
    return found[0]


def test_a_call_takes_the_rounds_up_to_an_evaluation_if_its_plan_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def together(every: int = 12) -> int:
        evaluation = fp.Evaluation(every=every, gradients=False)
        return layout_of(rounds=every, evaluation=evaluation).shape.rounds

    monkeypatch.setattr(laying_out, "SAMPLE_ROUNDS", (8, 20))
    assert [together(4), together(12), together(1000)] == [4, 12, 20]
    one = layout_of().together(1)
    monkeypatch.setattr(laying_out, "PLAN_BYTES", 5 * plan_bytes(one.shape, one.room))
    assert together() == 5
    monkeypatch.setattr(laying_out, "SMALL_MODEL", 2)
    assert together() == 1


def test_lanes_follow_the_cost_of_a_step_and_slices_the_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solver, cohort = fp.Solver(0.02, 3, steps=2), fp.Cohort(len(SIZES))
    found = layout_of(solver=solver, cohort=cohort)
    assert [found.shape.lanes, found.reading.lanes, found.reading.width] == [3, 1, 16]
    monkeypatch.setattr(laying_out, "SMALL_STEP", 2)
    assert layout_of(solver=solver, cohort=cohort).shape.lanes == 1


def test_rows_are_read_ahead_for_long_jobs_of_small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laying_out, "choose_lanes", lambda *_: 2)
    steps = (1, 130, 600)
    found = [layout_of(solver=fp.Solver(0.02, 3, steps=each)).ahead for each in steps]
    assert found == [1, 16, 64]  # at most a quarter of a segment: three jobs on two devices
    train = ragged_quadratics(0, SIZES).train
    row = train.x[0].nbytes + train.y[0].nbytes
    monkeypatch.setattr(laying_out, "AHEAD_BYTES", 20 * 2 * 3 * row)  # ticks, lanes, rows, bytes
    assert layout_of(solver=fp.Solver(0.02, 3, steps=600)).ahead == 16
    monkeypatch.setattr(laying_out, "SMALL_STEP", 2)
    assert layout_of(solver=fp.Solver(0.02, 3, steps=600)).ahead == 1


@pytest.mark.slow
def test_what_is_read_ahead_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of segments that end within a block, and of blocks within a segment."""
    monkeypatch.setattr(laying_out, "choose_lanes", lambda *_: 2)
    monkeypatch.setattr(laying_out, "LEAST_AHEAD", 2)
    monkeypatch.setattr(laying_out, "MOST_AHEAD", 4)
    settings: dict[str, Any] = {"solver": fp.Solver(0.02, 3, epochs=9)}
    assert layout_of(**settings).ahead == 4
    ahead = runs(fp.scaffold(), **settings)
    monkeypatch.setattr(laying_out, "MOST_AHEAD", 1)
    assert layout_of(**settings).ahead == 1
    for a, b in zip(ahead, runs(fp.scaffold(), **settings), strict=True):
        np.testing.assert_equal(a.params, b.params)
        np.testing.assert_equal(a.history, b.history)
