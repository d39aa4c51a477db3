"""Measures of single clients: as if computed by hand from each run's parameters."""

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.federation import offsets_of
from fedprox.protocol.protocol import initial_params
from fedprox.report.directory import summarise
from fedprox.report.records import metrics_line
from fedprox.report.table import table
from tests import outputs
from tests.objectives import MODEL, represented
from tests.settings import CASES, CLIENTS, FEDERATION, privacy, runs

FAIRNESS = tuple(f"client_accuracy_{name}" for name in fp.Fairness._fields)

BOTH: dict[str, Any] = {"by_client": True, "client_records": True}

Seen = tuple[list[fp.Run], dict[Any, list[fp.Record]]]
"""Runs, and the records that `on_record` received of each (label, seed)."""


def untested(client: int) -> fp.Federation:
    """The suite's federation, of which one client has no test rows."""
    test, tested = FEDERATION.test, np.arange(CLIENTS) != client
    kept = np.repeat(tested, test.sizes)
    rows = fp.Rows(test.x[kept], test.y[kept], offsets_of(test.sizes * tested))
    return replace(FEDERATION, test=rows)


TESTED = untested(3)
SWEEP = fp.fedprox(mu=[0.0, 1.0])


def simulate(methods: Any = SWEEP, **options: Any) -> Seen:
    seen: dict[Any, list[fp.Record]] = defaultdict(list)
    usual: dict[str, Any] = CASES["stragglers"] | {
        "federation": TESTED,
        "evaluation": fp.Evaluation(every=2, gradients=False, **BOTH),
    }
    callback = fp.Callback(on_record=lambda r: seen[r.label, r.seed].append(r))
    return runs(methods=methods, callbacks=[callback], **usual | options), seen


@pytest.fixture(scope="module")
def measured() -> Seen:
    return simulate(seed=[0, 1])


@pytest.fixture(scope="module")
def plain() -> list[fp.Run]:
    """The same without measures of clients."""
    return simulate(seed=[0, 1], evaluation=fp.Evaluation(2, gradients=False))[0]


def losses_and_accuracies(clients: fp.Federation, params: Any) -> tuple[Any, Any]:
    """F_k and the test accuracy of each client, in a plain loop."""

    def by_client(rows: Any, of_rows: Any) -> Any:
        found = of_rows(represented(params, rows.x) @ params["head"], rows.y)
        parts = np.split(found, rows.offsets[1:-1])
        return np.array([part.mean() if len(part) else np.nan for part in parts])

    return by_client(clients.train, outputs.losses), by_client(clients.test, outputs.met)


def check(record: fp.Record, params: Any) -> None:
    """Check that a record's measures of clients are those of some parameters."""
    losses, accuracies = losses_and_accuracies(TESTED, params)
    assert record.by_client is not None
    np.testing.assert_allclose(record.by_client.train_loss, losses, rtol=1e-5)
    np.testing.assert_array_equal(record.by_client.test_accuracy, accuracies)
    for name, value in fp.fairness(accuracies)._asdict().items():
        assert record.value(f"client_accuracy_{name}") == value
    shares, tests = TESTED.train.sizes, TESTED.test.sizes
    assert np.average(losses, weights=shares) == pytest.approx(record.train_loss, rel=1e-5)
    known = tests > 0
    found = np.average(accuracies[known], weights=tests[known])
    assert found == pytest.approx(record.test_accuracy)


def test_they_are_those_of_each_models_parameters(measured: Seen) -> None:
    found, seen = measured
    assert len(found) == len(seen) == 4
    for run in found:
        first, *_, last = seen[run.label, run.seed]
        check(last, run.params)
        check(first, initial_params(MODEL, run.seed))
    assert len({run.final.client_accuracy_mean for run in found}) > 2


def test_the_other_measures_are_the_same(measured: Seen, plain: list[fp.Run]) -> None:
    for one, two in zip(plain, measured[0], strict=True):
        jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
        for a, b in zip(one.history, two.history, strict=True):
            assert (a.train_loss, a.test_accuracy) == (b.train_loss, b.test_accuracy)
            assert a.test_loss == pytest.approx(b.test_loss, rel=1e-5)
            assert a.client_accuracy_mean is None


def test_histories_do_not_keep_them(measured: Seen) -> None:
    assert all(record.by_client is None for run in measured[0] for record in run.history)
    assert all(record.by_client for records in measured[1].values() for record in records)
    _, none = simulate(evaluation=fp.Evaluation(2, by_client=True, gradients=False))
    assert all(record.by_client is None for records in none.values() for record in records)
    alone, _ = simulate(evaluation=fp.Evaluation(2, client_records=True, gradients=False))
    assert alone[0].final.client_accuracy_mean is None


WORK: dict[str, dict[str, Any]] = {
    "planned": {},
    "dropped": {"methods": fp.fedavg()},
    "a stop rule": {"solver": fp.Solver(0.1, 3, epochs=4, gamma=0.6)},
    "drawn twice": {"cohort": fp.Cohort(6, "proportional")},
    "a first exchange": {"methods": fp.feddane(mu=1.0)},
    "empty rounds": {
        "cohort": fp.Cohort(1, "bernoulli"),
        "privacy": privacy(),
        "systems": fp.Systems(),
    },
    "faulty": {"faults": fp.Faults(norm=1.0)},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WORK)
def test_steps_and_rounds_are_those_since_the_record_before(case: str) -> None:
    options = WORK[case]
    every = fp.Evaluation(gradients="solver" in options, **BOTH)
    _, each = simulate(**options | {"evaluation": every})
    _, some = simulate(**options | {"evaluation": replace(every, every=2)})
    for key, records in some.items():
        by_round = {record.round: record for record in each[key]}
        for before, record in itertools.pairwise(records):
            now = record.by_client
            assert now is not None
            assert now.steps.sum() == record.total_steps - before.total_steps
            parts = [by_round[t].by_client for t in range(before.round + 1, record.round + 1)]
            assert all(part is not None and part.rounds.max() <= 1 for part in parts)
            for name in ("rounds", "steps"):
                summed = sum(getattr(part, name) for part in parts)
                np.testing.assert_array_equal(getattr(now, name), summed, name)
            np.testing.assert_array_equal(now.rounds > 0, now.steps > 0)
        assert records[0].by_client is not None
        assert not records[0].by_client.steps.any()
        assert sum(record.by_client.steps.sum() for record in records if record.by_client) > 0


@pytest.mark.slow
def test_central_training_has_no_clients_that_train() -> None:
    _, seen = simulate(fp.centralised(), systems=fp.Systems())
    for record in seen["centralised", 0]:
        assert record.by_client is not None
        assert not record.by_client.steps.any()
        assert np.isfinite(record.by_client.train_loss).all()


def test_a_sample_of_clients_has_their_names_rows_and_steps(measured: Seen) -> None:
    _, few = simulate(evaluation=fp.Evaluation(2, clients=3, gradients=False, **BOTH))
    chosen = TESTED.drawn(3)
    for key, records in few.items():
        for one, two in zip(measured[1][key], records, strict=True):
            assert one.by_client is not None
            assert two.by_client is not None
            assert list(two.by_client.clients) == [TESTED.names[k] for k in chosen]
            for name in ("training_rows", "test_rows", "test_accuracy", "rounds", "steps"):
                expected = getattr(one.by_client, name)[chosen]
                np.testing.assert_array_equal(getattr(two.by_client, name), expected, name)
            assert two.client_accuracy_mean == fp.fairness(two.by_client.test_accuracy).mean


def test_few_rows_of_each_client_are_those_that_are_read() -> None:
    found, seen = simulate(evaluation=fp.Evaluation(2, rows=3, gradients=False, **BOTH))
    losses, accuracies = losses_and_accuracies(TESTED.sample(3), found[0].params)
    last = seen[found[0].label, 0][-1].by_client
    assert last is not None
    np.testing.assert_allclose(last.train_loss, losses, rtol=1e-5)
    np.testing.assert_array_equal(last.test_accuracy, accuracies)
    np.testing.assert_array_equal(last.training_rows, TESTED.train.sizes)


@pytest.mark.slow
def test_a_model_without_accuracy_has_none_of_clients() -> None:
    model = replace(MODEL, correct=None)
    (run,) = runs(model=model, rounds=1, evaluation=fp.Evaluation(by_client=True, gradients=False))
    assert np.isnan(run.final.value("client_accuracy_mean"))
    assert metrics_line(run.final)["client_accuracy_worst"] is None
    assert str(table([run])).splitlines()[1].count(" - ") > 0


def test_files_and_tables_have_them_only_if_asked(measured: Seen, plain: list[fp.Run]) -> None:
    found, without = ([run for run in each if run.hparams["mu"]] for each in (measured[0], plain))
    line = metrics_line(found[0].final)
    assert tuple(key for key in line if key.startswith("client_accuracy")) == FAIRNESS
    assert [summarise(found[0], None)[f"final_{key}"] for key in FAIRNESS] == [
        line[key] for key in FAIRNESS
    ]
    assert "by_client" not in line
    assert not set(FAIRNESS) & metrics_line(without[0].final).keys()
    assert not {f"final_{key}" for key in FAIRNESS} & summarise(without[0], None).keys()
    assert fp.records(found)[0].keys() - fp.records(without)[0].keys() == set(FAIRNESS)
    header, row = str(table(found)).splitlines()
    worst = [100 * run.final.value("client_accuracy_worst") for run in found]
    assert f"{np.mean(worst):.2f} ± {np.std(worst, ddof=1):.2f} %" in row
    assert "worst 10 %" in header
    assert "worst 10 %" not in str(table(without))


@pytest.mark.slow
def test_one_device_and_two_give_the_same() -> None:
    options: dict[str, Any] = WORK["a stop rule"] | {"evaluation": fp.Evaluation(2, **BOTH)}
    one, two = (simulate(devices=devices, **options)[1] for devices in (1, 2))
    for key, records in one.items():
        for a, b in zip(records, two[key], strict=True):
            assert a.by_client is not None
            assert b.by_client is not None
            np.testing.assert_allclose(a.by_client.train_loss, b.by_client.train_loss, rtol=1e-4)
            for name in ("test_accuracy", "rounds", "steps"):
                np.testing.assert_array_equal(*(getattr(each.by_client, name) for each in (a, b)))
        assert records[-1].by_client is not None
        assert records[-1].by_client.steps.any()
