"""What clients keep between rounds has the same bits wherever it lives; the mean of last models."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.devices import mesh as mesh_module
from fedprox.devices.mesh import lane_mesh, shard
from fedprox.engine.storage.client_store import open_store
from tests import methods
from tests.byhand import CLIENTS, ROWS, START, beside_the_oracle, ragged_runs
from tests.quadratics import one_run, quadratic_model, ragged_quadratics


def test_where_state_lives_and_how_often_it_is_evaluated_changes_no_bit() -> None:
    # the mean of all clients' models is one more thing that clients keep
    first, *others = [
        ragged_runs(
            fp.scaffold(),
            seed=[0, 1],
            client_store=place,
            evaluation=fp.Evaluation(every=every, model="clients", gradients=False),
        )
        for place, every in (("device", 3), ("host", 3), ("disk", 7))
    ]
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a.params, b.params)
            for record in (0, -1):
                assert a.history[record].train_loss == b.history[record].train_loss
    assert len({float(run.params[0]) for run in first}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("balance", [False, True])
def test_feddyn_is_evaluated_at_two_more_models(balance: bool) -> None:
    scales = np.mean(ROWS) / np.array(ROWS) if balance else np.ones(CLIENTS)
    beside_the_oracle(
        fp.feddyn(alpha=[0.3, 2.0], balance=balance),
        lambda hparams, _: methods.FedDyn(START, CLIENTS, hparams["alpha"], scales),
        evaluated="clients" if balance else "cohort",
    )


@pytest.mark.slow
def test_the_mean_of_fedproxs_clients_is_weighted_by_rows() -> None:
    beside_the_oracle(
        fp.fedprox(mu=[0.0, 2.0]),
        lambda hparams, _: methods.FedProx(START, CLIENTS, hparams["mu"]),
        evaluated="clients",
    )


def test_the_mean_of_all_clients_needs_to_know_each_once() -> None:
    with pytest.raises(fp.InputError, match=r"clients.*proportional|proportional.*clients"):
        ragged_runs(
            fp.fedprox(mu=1.0),
            cohort=fp.Cohort(2, sampling="proportional"),
            evaluation=fp.Evaluation(model="clients"),
        )


def test_other_places_are_refused() -> None:
    with pytest.raises(fp.InputError, match=r"client_store = 'ram'; it must be one of"):
        ragged_runs(fp.feddyn(alpha=1.0), client_store="ram")


@pytest.mark.slow
def test_gamma_is_of_the_problem_that_was_posed_with_the_state_before_the_round() -> None:
    federation = ragged_quadratics(3, [2, 5, 1, 4])
    solver, cohort = fp.Solver(0.1, "all", steps=3), fp.Cohort(2)
    model = quadratic_model(START)
    options: dict[str, Any] = {"cohort": cohort, "rounds": 5, "evaluation": fp.Evaluation()}
    run = one_run(federation, model, fp.feddyn(alpha=0.7), solver, **options)
    oracle = methods.FedDyn(START, 4, 0.7)
    rows = [methods.rows_of(federation, k) for k in range(4)]
    for t in range(5):
        answers, gammas = {}, []
        for k in map(int, cohort.draw(0, t, federation.train.offsets).clients):
            problem, whole = oracle.problem(k), [np.arange(len(rows[k][1]), dtype=np.int32)]
            w = methods.descend(oracle.params, problem, rows[k], whole * 3, solver, 0.1)
            answers[k] = methods.Answer(w, 3)
            first, last = (
                methods.gradient(at, *rows[k]) + problem.linear + problem.mu * (at - problem.anchor)
                for at in (oracle.params, w)
            )
            gammas.append(np.linalg.norm(last) / np.linalg.norm(first))
        oracle.finish(
            answers,
            federation.train.sizes.astype(float),
            0.1,
            lambda w: np.array([methods.gradient(w, *each) for each in rows]),
        )
        assert run.history[t + 1].gamma_mean == pytest.approx(np.mean(gammas), rel=1e-3)


@pytest.mark.slow
def test_gamma_is_of_the_problem_of_its_round() -> None:
    """The round's own numbers pose it: here mu follows the decaying rate and who took part."""

    def posed(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
        del context
        mu = 0.1 * hparams["participation"] / hparams["learning_rate"]
        return fp.Subproblem(params, mu, params)

    method = fp.fedavg()._replace(subproblem=posed)
    solver = fp.Solver(0.1, "all", steps=200, gamma=0.2, learning_rate_decay=0.5)
    federation, model = ragged_quadratics(3, [2, 5, 1, 4]), quadratic_model(START)
    run = one_run(federation, model, method, solver, rounds=3, evaluation=fp.Evaluation())
    assert [record.unsolved for record in run.history] == [0, 0, 0, 0]
    assert all(0 < record.gamma_max <= 0.2001 for record in run.history[1:])


def test_free_memory_is_that_of_the_container_and_unknown_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_module, "Path", lambda name: tmp_path / str(name).lstrip("/"))
    assert mesh_module.free_on_host() == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert mesh_module.free_on_host() == 5000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    for limit, free in (("max", 5000 * 1024), ("4000", 3000), ("99999999", 5000 * 1024)):
        (group / "memory.max").write_text(limit + "\n")
        assert mesh_module.free_on_host() == free


def disk_is_full(*_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_disk_that_is_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.posix_fallocate", disk_is_full)
    full = rf"client_store: no room on disk in {tempfile.gettempdir()} .*No space left"
    with pytest.raises(fp.InputError, match=full):
        ragged_runs(fp.feddyn(alpha=1.0), client_store="disk")
    # also for what is read again
    store = open_store("disk", np.zeros(3, np.float32), range(4), lane_mesh(1), most=4)
    known = np.array([False, True, False, False])
    with pytest.raises(fp.InputError, match=full):
        store.restore([("known", known), ("0-0-1", np.ones((1, 3), np.float32))])
    store.close()


@pytest.mark.parametrize(
    ("devices", "host", "kind"),
    [(48, 0, "_OnDevices"), (47, 96, "_Rows"), (47, 95, "_MappedRows")],
)
def test_state_is_kept_in_the_first_place_where_half_of_the_memory_holds_it(
    devices: int, host: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "fedprox.engine.storage.client_store"
    monkeypatch.setattr(f"{module}.free_on_devices", lambda _: devices)  # each of two
    monkeypatch.setattr(f"{module}.free_on_host", lambda: host)
    store = open_store("auto", np.zeros(3, np.float32), range(9), lane_mesh(), most=4)
    assert kind == type(store.rows[0] if kind.endswith("Rows") else store).__name__  # type: ignore[attr-defined]
    store.close()


def test_a_store_on_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = open_store("disk", {"g": np.ones(3, np.float32)}, range(2, 6), lane_mesh(), most=2)
    store.write(np.array([5, -1]), jax.device_put({"g": np.full((2, 3), 4, np.float32)}))
    found = np.asarray(store.read(np.array([2, 5]))["g"])
    np.testing.assert_array_equal(found, [[1, 1, 1], [4, 4, 4]])
    assert not list(tmp_path.iterdir())  # not even now, so that no way to end leaves it
    store.close()


@pytest.mark.parametrize("where", ["device", "host", "disk"])
def test_what_is_held_is_the_rows_that_were_written(where: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedprox.engine.storage.client_store.BLOCK_BYTES", 3 * 4 * 2)  # two rows
    mesh, initial = lane_mesh(), {"g": np.zeros((1, 3), np.float32)}
    clients, at = range(20, 120), np.array([30, -1, 90, 70])
    values = np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    first = open_store(where, initial, clients, mesh, most=5)
    first.write(at, {"g": shard(mesh, values)})
    held = [(name, np.array(block)) for name, block in first.contents()]
    assert [block.nbytes for _, block in held] == [len(clients), 2 * 12, 12]
    # on one device in place of two there is no padding
    second = open_store(where, initial, clients, one := lane_mesh(1), most=5)
    second.restore(held)
    expected = np.where((at >= 0)[:, None, None], values, 0)
    np.testing.assert_array_equal(np.asarray(second.read(at)["g"]), expected)
    np.testing.assert_array_equal(np.asarray(second.read(np.array([20, 119]))["g"]), 0)
    assert one.devices.size == 1
    for store in (first, second):
        store.close()
