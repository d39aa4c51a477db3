"""Evaluations on a sample of clients: what they estimate, and how far they are off."""

import json
import math
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

import fedprox as fp
from fedprox import Federation, InputError, Run
from fedprox.datasets import mapped, write_mapped
from fedprox.engine.storage import training_data
from fedprox.experiment import parse, resolve
from fedprox.measures import mean_error
from fedprox.protocol.protocol import initial_params
from fedprox.report.records import metrics_line, read_record
from fedprox.report.table import notes_on, table
from tests import objectives, outputs
from tests.engine.compiled.test_compiled_once import keys
from tests.loop.test_client_records import TESTED, losses_and_accuracies
from tests.settings import CLIENTS, runs
from tests.test_cli import LOSSES, SMALL, status

Vector = NDArray[np.float64]


def test_rows_are_measured_at_random_among_those_that_are_used(tmp_path: Path) -> None:
    rows = np.arange(10.0, dtype=np.float32)[:, None]
    write_mapped(tmp_path / "ten", [(rows, np.zeros(10, int))] * 2000)
    table = tomllib.loads(SMALL) | {"data": {"name": "mapped", "path": str(tmp_path / "ten")}}
    made = parse("", table | {"client_rows": 5, "evaluation": {"rows": 2}})
    measured = resolve(made).federation.sample(2).train.x
    share = np.bincount(np.asarray(measured)[:, 0].astype(int), minlength=10) / 2000
    # of 10 rows 2 are measured; four standard errors
    np.testing.assert_allclose(share, 0.2, atol=4 * math.sqrt(0.2 * 0.8 / 2000))


def test_all_clients_leave_no_error_and_one_of_several_says_nothing() -> None:
    values, weights = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 3])
    assert mean_error(values, weights, 2).tolist() == [0, 0]
    assert mean_error(values[:1], weights[:1], 1).tolist() == [0, 0]
    assert np.isnan(mean_error(values[:1], weights[:1], 2)).all()
    assert np.isnan(mean_error(values, [0, 0], 9)).all()
    assert np.isnan(mean_error([[1.0], [math.inf]], [1, 1], 9)).all()
    # clients alike in what they have are known from two of them, whatever their sizes
    assert mean_error([[5.0], [5.0]], [1, 100], 9).tolist() == [0]


def test_of_equal_weights_it_is_the_error_of_a_mean() -> None:
    values = np.random.default_rng(0).normal(size=(20, 3))
    plain = values.std(axis=0, ddof=1) / math.sqrt(20)
    np.testing.assert_allclose(mean_error(values, np.full(20, 7), 10**9), plain, rtol=1e-6)
    finite = plain * math.sqrt(1 - 20 / 50)
    np.testing.assert_allclose(mean_error(values, np.full(20, 7), 50), finite, rtol=1e-12)


def test_weights_may_differ_from_point_to_point() -> None:
    # as where a client's loss is not finite at some of them
    stream = np.random.default_rng(2)
    values, weights = stream.normal(size=(9, 3)), stream.integers(0, 5, size=(9, 3))
    found = mean_error(values, weights, 20)
    alone = [mean_error(values[:, [p]], weights[:, p], 20)[0] for p in range(3)]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_the_error_is_that_of_many_samples_and_covers_the_truth() -> None:
    stream = np.random.default_rng(1)
    clients, drawn, repeats = 500, 80, 4000
    sizes = np.ceil(stream.lognormal(3, 1, clients))
    values = stream.gamma(2.0, 0.5, clients) + 0.1 * np.log(sizes)
    truth = np.average(values, weights=sizes)
    found: list[tuple[float, float]] = []
    for _ in range(repeats):
        some = stream.choice(clients, drawn, replace=False)
        estimate = float(np.average(values[some], weights=sizes[some]))
        found.append((estimate, float(mean_error(values[some, None], sizes[some], clients)[0])))
    estimates, errors = np.array(found).T
    bias = estimates.mean() - truth
    assert abs(bias) < 0.1 * errors.mean()  # a ratio is biased by much less than its error
    assert math.sqrt((errors**2).mean()) == pytest.approx(estimates.std(), rel=0.1)
    covered = (abs(estimates - truth) < 1.96 * errors).mean()
    assert 0.9 < covered < 0.97


FEW = 3


def run(**options: Any) -> Run:
    (only,) = runs(**{"federation": TESTED, "methods": fp.fedprox(mu=0.1), "rounds": 2} | options)
    return only


@pytest.fixture(scope="module")
def exact() -> Run:
    """A run that is evaluated on all clients."""
    return run(evaluation=fp.Evaluation())


@pytest.fixture(scope="module")
def estimated() -> Run:
    """The same evaluated on some of them."""
    return run(evaluation=fp.Evaluation(clients=FEW))


@pytest.mark.slow
@pytest.mark.parametrize("clients", [CLIENTS, 99])
def test_as_many_as_there_are_is_no_sample(exact: Run, clients: int) -> None:
    of_all = run(evaluation=fp.Evaluation(clients=clients))
    assert repr(of_all.history) == repr(exact.history)  # with repr NaN is NaN
    assert cells([of_all])[:-1] == cells([exact])[:-1]  # all but the seconds
    assert notes_on([of_all]) == []


def test_a_sample_is_measured_and_the_rounds_are_the_same(exact: Run, estimated: Run) -> None:
    jax.tree.map(np.testing.assert_array_equal, exact.params, estimated.params)
    few = TESTED.sample_clients(FEW)
    assert len(few) == FEW
    losses, share = losses_and_accuracies(few, estimated.params)
    sizes, tests, last = few.train.sizes, few.test.sizes, estimated.final
    share = np.where(tests > 0, share, 0)  # one has no test rows
    assert last.train_loss == pytest.approx(np.average(losses, weights=sizes), rel=1e-5)
    assert last.test_accuracy == pytest.approx(np.average(share, weights=tests))
    for found, values, weights in (
        (last.train_loss_se, losses, sizes),
        (last.test_accuracy_se, share, tests),
    ):
        error = float(mean_error(values[:, None], weights, CLIENTS)[0])
        assert found == pytest.approx(error, rel=1e-4)
        assert error > 0
    # gradients are those of the sample
    loop = objectives.Method(estimated.params, few.train)
    gradients = []
    for k in range(FEW):
        x, y = few.train.client(k)
        own = loop.gradient(loop.params, np.asarray(x, float), np.asarray(y), k)
        gradients.append(np.concatenate([own[name].ravel() for name in ("body", "head")]))
    mean = np.average(gradients, axis=0, weights=sizes)
    scatter = np.average([((g - mean) ** 2).sum() for g in gradients], weights=sizes)
    assert last.gradient_variance == pytest.approx(scatter, rel=1e-3)
    assert last.dissimilarity == pytest.approx(np.sqrt(1 + scatter / (mean @ mean)), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [CLIENTS, 5])
def test_a_client_counts_by_all_of_its_rows_however_few_are_read(clients: int) -> None:
    whole = TESTED.sample_clients(clients)
    few = whole.sample(2)
    some = None if clients == CLIENTS else clients
    found = run(evaluation=fp.Evaluation(rows=2, clients=some, gradients=False))
    share, weights = losses_and_accuracies(few, found.params)[1], whole.test.sizes
    tested = weights > 0
    share, cut = np.where(tested, share, 0), (weights / np.maximum(few.test.sizes, 1))[tested]
    assert np.ptp(cut) > 1  # clients are cut by very different parts
    assert found.final.test_accuracy == pytest.approx(np.average(share, weights=weights))
    error = None if some is None else float(mean_error(share[:, None], weights, CLIENTS)[0])
    assert found.final.test_accuracy_se == (error and pytest.approx(error))


@pytest.mark.slow
def test_a_client_that_cannot_be_measured_is_no_part_of_the_sample() -> None:
    drawn = int(TESTED.drawn(5)[2])
    parts = dict[str, Any]()
    for name, rows in (("train", TESTED.train), ("test", TESTED.test)):
        x = rows.x.copy()
        x[rows.offsets[drawn]] = np.nan
        parts[name] = replace(rows, x=x)
    spoilt = replace(TESTED, **parts)
    found = run(
        federation=spoilt,
        methods=fp.fedavg(),
        evaluation=fp.Evaluation(clients=5, gradients=False),
        faults=fp.Faults(),
    )
    few = spoilt.sample_clients(5)
    start = initial_params(objectives.MODEL, 0)
    losses, _ = losses_and_accuracies(few, start)
    known = np.isfinite(losses)
    first, sizes = found.history[0], few.train.sizes * known
    assert first.unmeasured == 1 == (~known).sum()
    values = np.where(known, losses, 0.0)
    assert first.train_loss == pytest.approx(np.average(values, weights=sizes), rel=1e-5)
    expected = float(mean_error(values[:, None], sizes, CLIENTS)[0])
    assert first.train_loss_se == pytest.approx(expected, rel=1e-4)
    # its test rows are no part of the test loss, and count for the accuracy
    logits = objectives.represented(start, few.test.x) @ start["head"]
    finite, left = np.isfinite(logits).all(axis=1), np.repeat(known, few.test.sizes)
    assert not left.all()
    z = np.where(finite[:, None], logits, 0)
    expected = float(np.average(outputs.losses(z, few.test.y), weights=left))
    assert first.test_loss == pytest.approx(expected, rel=1e-5)
    assert first.test_accuracy == pytest.approx((outputs.met(z, few.test.y) * finite).mean())


def test_errors_are_written_where_there_are_some(exact: Run, estimated: Run) -> None:
    assert not {"train_loss_se", "test_accuracy_se"} & metrics_line(exact.final).keys()
    measures = {**estimated.final.measures, "test_accuracy_se": math.nan}
    unknown = replace(estimated.final, measures=measures)
    for record in (exact.final, estimated.final, unknown):
        line = json.dumps(metrics_line(record)).encode()
        assert repr(read_record(line)) == repr(record)
    assert json.loads(json.dumps(metrics_line(unknown)))["test_accuracy_se"] is None


def cells(runs: list[Run]) -> list[str]:
    return [str(next(iter(column.cells))) for column in table(runs).columns]


def test_the_table_shows_them_for_a_single_seed(exact: Run, estimated: Run) -> None:
    assert "±" not in "".join(cells([exact]))
    last = estimated.final
    assert last.train_loss_se is not None
    assert last.test_accuracy_se is not None
    assert cells([estimated])[1:3] == [
        f"{last.train_loss:.4f} ± {last.train_loss_se:.4f}",
        f"{100 * last.test_accuracy:.2f} ± {100 * last.test_accuracy_se:.2f} %",
    ]
    assert notes_on([exact]) == []
    (line,) = notes_on([estimated])
    assert "shown after ±, of at most" in line
    assert f"{last.train_loss_se:.2g} of training loss" in line
    # over seeds ± is their standard deviation
    two = [estimated, replace(estimated, seed=1)]
    (line,) = notes_on(two)
    assert "standard errors of at most" in line
    assert cells(two)[1] == f"{last.train_loss:.4f} ± 0.0000"


def test_the_sample_is_random_and_the_same_each_time() -> None:
    many = Federation.from_arrays([([[float(k)]], [0]) for k in range(40)])
    seen = np.zeros(40)
    for seed in range(1000):
        few = many.sample_clients(10, seed=seed)
        again = many.sample_clients(10, seed=seed)
        numbers = few.train.x[:, 0].astype(int)
        assert (np.diff(numbers) > 0).all()
        assert list(few.names) == [str(k) for k in numbers] == list(again.names)
        seen[numbers] += 1
    # each client in a quarter of them: 250 with standard deviation 13.7
    assert abs(seen - 250).max() < 4.5 * 13.7
    assert many.sample_clients(40) is many
    for wrong in (0, 2.5):
        with pytest.raises(InputError, match="clients = "):
            many.sample_clients(wrong)  # type: ignore[arg-type]


def test_too_many_clients_to_evaluate_on_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mapped(tmp_path / "few", TESTED)
    few = mapped(str(tmp_path / "few"), classes=3)
    monkeypatch.setattr(training_data, "EVALUATED_BYTES", 1)
    with pytest.raises(InputError, match=r"^evaluation.clients: none given.* of all 6 clients"):
        run(federation=few)
    for options in ({"federation": few, "evaluation": fp.Evaluation(clients=5)}, {}):
        assert "rounds" in keys(**options)  # not refused: few clients, and rows on the devices


@pytest.mark.parametrize("most", [0, -1, 1.5])
def test_no_clients_is_refused(most: Any) -> None:
    with pytest.raises(InputError, match=f"evaluation.clients = {most}"):
        run(evaluation=fp.Evaluation(clients=most))


@pytest.mark.slow
def test_the_command_says_that_it_is_a_sample(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "small.toml").write_text(LOSSES)
    change = ("evaluation.clients=4", "seed=0", 'method=[{name = "fedavg"}]')
    settings = [part for setting in change for part in ("--set", setting)]
    out = tmp_path / "out"
    assert status("run", tmp_path / "small.toml", *settings, "--out", out) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "estimates from a sample of clients" in printed
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(line["train_loss_se"] > 0 for line in lines)
    (clients,) = json.loads((out / "clients.json").read_text())
    assert len(clients["clients"]) == len(clients["test_accuracy"]) == 4
    assert set(clients["clients"]) < set("012345")
    (summary,) = json.loads((out / "summary.json").read_text())
    assert summary["final_train_loss_se"] == lines[-1]["train_loss_se"]
    assert tomllib.loads((out / "experiment.toml").read_text())["evaluation"]["clients"] == 4
    page = (out / "report.html").read_text()
    assert "These are the clients that evaluations read." in page
    assert "estimates from a sample of clients" in page


@pytest.mark.slow
def test_as_many_as_there_are_is_the_run_without_the_key(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "small.toml").write_text(LOSSES)
    found: list[list[Any]] = []
    for setting in ("rounds=4", "evaluation.clients=6", "evaluation.clients=1000"):
        out = tmp_path / str(len(found))
        changes = (setting, "seed=0", 'method=[{name = "fedavg"}]')
        settings = [part for change in changes for part in ("--set", change)]
        assert status("run", tmp_path / "small.toml", *settings, "--out", out) == 0
        assert "sample" not in capsys.readouterr().out
        page = (out / "report.html").read_text()
        assert "of clients: standard errors" not in page
        assert "These are the clients that evaluations read." not in page
        table = tomllib.loads((out / "experiment.toml").read_text())
        found.append([table, *((out / f).read_bytes() for f in ("metrics.jsonl", "clients.json"))])
    assert found[0] == found[1] == found[2]


CHILD = """
import json, resource, sys
from dataclasses import replace
import numpy as np
import fedprox as fp

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def train(federation):
    fp.simulate(
        federation, fp.models.logistic(federation), fp.fedavg(),
        solver=fp.Solver(0.1, 10, steps=1), cohort=fp.Cohort(20), rounds=300,
        evaluation=fp.Evaluation(every=150, clients=10, gradients=False),
    )

fp.use_cpu_devices(1)
*folders, kind = sys.argv[1:]
small, large = (fp.datasets.mapped(path, classes=2) for path in folders)
if kind == "memmap":
    plain = [np.lib.format.open_memmap(f"{folders[1]}/{name}.npy", "r") for name in "xy"]
    large = replace(large, train=fp.Rows(*plain, large.train.offsets))
train(small)
before = peak()
train(large)
print(json.dumps([peak() - before, large.train.x.nbytes]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data set", "memmap"])
def test_memory_is_bounded_by_the_cohort(tmp_path: Path, kind: str) -> None:
    # 512 MB in 2,000 clients, nearly all of whom take part in one of 300 rounds of 20
    folders = [tmp_path / "small", tmp_path / "large"]
    for folder, width in zip(folders, (64, 1280), strict=True):
        folder.mkdir()
        arrays: list[tuple[str, Any, tuple[int, ...]]] = [
            ("x", np.float32, (100_000, width)),
            ("y", np.uint8, (100_000,)),
        ]
        for name, dtype, shape in arrays:
            sparse = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)
            del sparse
        np.save(folder / "offsets.npy", np.arange(2001) * 50)
    command = [sys.executable, "-c", CHILD, *map(str, folders), kind]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    grown, size = json.loads(done.stdout)
    assert size == 512_000_000
    assert grown < size / 2
