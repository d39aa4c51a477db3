"""Measures of single clients: as if computed by hand from each run's parameters."""

import itertools
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.protocol.protocol import initial_params
from fedprox.report.directory import summarise
from fedprox.report.records import metrics_line
from fedprox.report.table import table
from tests.variants import mostly_slow

FAIRNESS = tuple(f"client_accuracy_{name}" for name in fp.Fairness._fields)

BOTH: dict[str, Any] = {"by_client": True, "client_records": True}


def federation() -> fp.Federation:
    """Twelve clients, of which one has no test rows."""
    made = fp.datasets.synthetic(clients=12)
    test = [made.test.client(k) for k in range(12)]
    x, y = test[3]
    test[3] = x[:0], y[:0]
    train = [made.train.client(k) for k in range(12)]
    return fp.Federation.from_arrays(train, test)


def simulate(methods: Any, **options: Any) -> tuple[list[fp.Run], dict[Any, list[fp.Record]]]:
    """Runs, and the records that `on_record` received of each (label, seed)."""
    seen: dict[Any, list[fp.Record]] = defaultdict(list)
    clients = options.pop("federation", None) or federation()
    usual: dict[str, Any] = {
        "solver": fp.Solver(0.05, 10, epochs=2),
        "cohort": fp.Cohort(4),
        "systems": fp.Systems(stragglers=0.5),
        "rounds": 7,
        "evaluation": fp.Evaluation(every=3, gradients=False, **BOTH),
        "progress": False,
    }
    runs = fp.simulate(
        clients,
        fp.models.logistic(clients),
        methods,
        callbacks=[fp.Callback(on_record=lambda r: seen[r.label, r.seed].append(r))],
        **usual | options,
    )
    return runs, seen


def losses_and_accuracies(clients: fp.Federation, params: Any) -> tuple[Any, Any]:
    """F_k and the test accuracy of each client, in a plain loop."""
    apply = fp.models.logistic(clients).apply
    train, test = clients.train, clients.test
    # all rows at once: JAX compiles each operation again for a client with another number of rows
    outputs = apply(params, train.x)
    rows = np.asarray(optax.softmax_cross_entropy_with_integer_labels(outputs, train.y))
    right = np.argmax(np.asarray(apply(params, test.x)), axis=-1) == np.asarray(test.y)
    losses, accuracies = [], []
    for k in range(len(clients)):
        losses.append(rows[train.offsets[k] : train.offsets[k + 1]].mean())
        own = right[test.offsets[k] : test.offsets[k + 1]]
        accuracies.append(own.mean() if len(own) else np.nan)
    return np.array(losses), np.array(accuracies)


def check(run: fp.Run, record: fp.Record, clients: fp.Federation, params: Any) -> None:
    """Check that a record's measures of clients are those of some parameters."""
    losses, accuracies = losses_and_accuracies(clients, params)
    assert record.by_client is not None
    np.testing.assert_allclose(record.by_client.train_loss, losses, rtol=1e-5)
    np.testing.assert_array_equal(record.by_client.test_accuracy, accuracies)
    for name, value in fp.fairness(accuracies)._asdict().items():
        assert record.value(f"client_accuracy_{name}") == value
    shares, tests = clients.train.sizes, clients.test.sizes
    assert np.average(losses, weights=shares) == pytest.approx(record.train_loss, rel=1e-5)
    known = tests > 0
    found = np.average(accuracies[known], weights=tests[known])
    assert found == pytest.approx(record.test_accuracy)
    assert run.final.client_accuracy_std is not None


def test_they_are_those_of_each_models_parameters() -> None:
    clients = federation()
    runs, seen = simulate([fp.fedavg(), fp.fedprox(mu=[0.0, 1.0])], seed=[0, 1])
    assert len(runs) == len(seen) == 6
    for run in runs:
        first, *_, last = seen[run.label, run.seed]
        check(run, last, clients, run.params)
        check(run, first, clients, initial_params(fp.models.logistic(clients), run.seed))
    worst = {run.final.client_accuracy_worst for run in runs}
    assert len({run.final.client_accuracy_mean for run in runs}) > 3, worst


def test_the_other_measures_are_the_same() -> None:
    runs, _ = simulate(fp.fedprox(mu=[0.0, 1.0]), evaluation=fp.Evaluation(3, gradients=False))
    more, _ = simulate(fp.fedprox(mu=[0.0, 1.0]))
    for one, two in zip(runs, more, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one.params, two.params)
        for a, b in zip(one.history, two.history, strict=True):
            assert (a.train_loss, a.test_accuracy) == (b.train_loss, b.test_accuracy)
            assert a.test_loss == pytest.approx(b.test_loss, rel=1e-5)
            assert a.client_accuracy_mean is None


def test_histories_do_not_keep_them() -> None:
    runs, seen = simulate(fp.fedavg(), rounds=3)
    assert all(record.by_client is None for record in runs[0].history)
    assert all(record.by_client is not None for record in seen["fedavg", 0])
    evaluation = fp.Evaluation(by_client=True, gradients=False)
    _, none = simulate(fp.fedavg(), rounds=3, evaluation=evaluation)
    assert all(record.by_client is None for record in none["fedavg", 0])
    evaluation = fp.Evaluation(client_records=True, gradients=False)
    alone, _ = simulate(fp.fedavg(), rounds=3, evaluation=evaluation)
    assert alone[0].final.client_accuracy_mean is None


WORK: dict[str, tuple[Any, dict[str, Any]]] = {
    "planned": (lambda: fp.fedprox(mu=[0.0, 1.0]), {}),
    "dropped": (fp.fedavg, {}),
    "a stop rule": (
        lambda: fp.fedprox(mu=[0.0, 1.0]),
        {"solver": fp.Solver(0.05, 10, epochs=4, gamma=0.6)},
    ),
    "a state": (fp.scaffold, {}),
    "drawn twice": (fp.fedavg, {"cohort": fp.Cohort(6, "proportional")}),
    "a first exchange": (lambda: fp.feddane(mu=1.0), {}),
    "empty rounds": (fp.fedavg, {"cohort": fp.Cohort(1, "bernoulli")}),
    "privacy": (
        fp.fedavg,
        {"cohort": fp.Cohort(3, "bernoulli"), "privacy": fp.Privacy(0.1, noise_multiplier=1.0)},
    ),
    "faulty": (fp.fedavg, {"faults": fp.Faults(norm=1.0)}),
}


@pytest.mark.parametrize("case", mostly_slow(WORK, "planned", "a stop rule", "drawn twice"))
def test_steps_and_rounds_are_those_since_the_record_before(case: str) -> None:
    method, options = WORK[case]
    every = fp.Evaluation(every=1, gradients=False, **BOTH)
    if "solver" in options:
        every = replace(every, gradients=True)
    _, each = simulate(method(), **options | {"evaluation": every})
    _, some = simulate(method(), **options | {"evaluation": replace(every, every=3)})
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


def test_central_training_has_no_clients_that_train() -> None:
    _, seen = simulate(fp.centralised(), rounds=3, systems=fp.Systems())
    for record in seen["centralised", 0]:
        assert record.by_client is not None
        assert not record.by_client.steps.any()
        assert np.isfinite(record.by_client.train_loss).all()


def test_a_sample_of_clients_has_their_names_rows_and_steps() -> None:
    clients = federation()
    whole: dict[str, Any] = {"every": 3, "gradients": False, **BOTH}
    _, all_of_them = simulate(fp.fedavg(), evaluation=fp.Evaluation(**whole))
    _, few = simulate(fp.fedavg(), evaluation=fp.Evaluation(clients=5, **whole))
    chosen = clients.drawn(5)
    for one, two in zip(all_of_them["fedavg", 0], few["fedavg", 0], strict=True):
        assert one.by_client is not None
        assert two.by_client is not None
        assert list(two.by_client.clients) == [clients.names[k] for k in chosen]
        for name in ("training_rows", "test_rows", "test_accuracy", "rounds", "steps"):
            expected = getattr(one.by_client, name)[chosen]
            np.testing.assert_array_equal(getattr(two.by_client, name), expected, name)
        assert two.client_accuracy_mean == fp.fairness(two.by_client.test_accuracy).mean


def test_few_rows_of_each_client_are_those_that_are_read() -> None:
    clients = federation()
    evaluation = fp.Evaluation(every=7, rows=5, gradients=False, **BOTH)
    runs, seen = simulate(fp.fedavg(), evaluation=evaluation)
    losses, accuracies = losses_and_accuracies(clients.sample(5), runs[0].params)
    last = seen["fedavg", 0][-1].by_client
    assert last is not None
    np.testing.assert_allclose(last.train_loss, losses, rtol=1e-5)
    np.testing.assert_array_equal(last.test_accuracy, accuracies)
    np.testing.assert_array_equal(last.training_rows, clients.train.sizes)


def test_a_model_without_accuracy_has_none_of_clients() -> None:
    data = fp.Federation.from_arrays([([[1.0], [2.0]], [0.5, 1.0]), ([[1.0]], [3.0])])
    model = fp.Model(
        lambda _: np.ones(1, np.float32),
        lambda w, x: x @ w,
        lambda outputs, y: (outputs - y) ** 2,
    )
    (run,) = fp.simulate(
        data,
        model,
        fp.fedavg(),
        solver=fp.Solver(0.01, 2, steps=1),
        cohort=fp.Cohort(1),
        rounds=1,
        evaluation=fp.Evaluation(by_client=True),
        progress=False,
    )
    assert np.isnan(run.final.value("client_accuracy_mean"))
    assert metrics_line(run.final)["client_accuracy_worst"] is None
    assert str(table([run])).splitlines()[1].count(" - ") > 0


def test_files_and_tables_have_them_only_if_asked() -> None:
    runs, _ = simulate(fp.fedavg(), rounds=3, seed=[0, 1])
    plain, _ = simulate(fp.fedavg(), rounds=3, evaluation=fp.Evaluation(gradients=False))
    line = metrics_line(runs[0].final)
    assert tuple(key for key in line if key.startswith("client_accuracy")) == FAIRNESS
    assert [summarise(runs[0], None)[f"final_{key}"] for key in FAIRNESS] == [
        line[key] for key in FAIRNESS
    ]
    assert "by_client" not in line
    assert not set(FAIRNESS) & metrics_line(plain[0].final).keys()
    assert not {f"final_{key}" for key in FAIRNESS} & summarise(plain[0], None).keys()
    assert fp.records(runs)[0].keys() - fp.records(plain)[0].keys() == set(FAIRNESS)
    header, row = str(table(runs)).splitlines()
    worst = [100 * run.final.value("client_accuracy_worst") for run in runs]
    assert f"{np.mean(worst):.2f} ± {np.std(worst, ddof=1):.2f} %" in row
    assert "worst 10 %" in header
    assert "worst 10 %" not in str(table(plain))


PROGRAM = """
import json
import fedprox as fp

fp.use_cpu_devices(clients_per_round=6, devices=2)
federation = fp.datasets.synthetic(clients=12)
found = []
for devices in (1, 2):
    seen = []
    fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedprox(mu=[0.0, 1.0]),
        solver=fp.Solver(0.01, 10, epochs=4, gamma=0.5),
        cohort=fp.Cohort(6),
        rounds=3,
        evaluation=fp.Evaluation(every=2, by_client=True, client_records=True),
        devices=devices,
        callbacks=[fp.Callback(on_record=seen.append)],
        progress=False,
    )
    found.append([
        [r.by_client.train_loss.tolist(), r.by_client.test_accuracy.tolist(),
         r.by_client.rounds.tolist(), r.by_client.steps.tolist(), r.client_accuracy_worst]
        for r in seen
    ])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_devices_give_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    one, two = json.loads(done.stdout)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-4)
        np.testing.assert_allclose(a[1], b[1], atol=0.03)  # a label may be on the edge
        assert a[2:4] == b[2:4]
        assert sum(a[3]) > 0 or a is one[0] or a is one[1]
