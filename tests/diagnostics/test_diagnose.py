"""A diagnosis: what it measures, what it suggests, and the command."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.diagnostics import Constants, mu_needed
from fedprox.diagnostics.diagnosis import (
    MUS,
    SWEEP_ROUNDS,
    SWEEP_SEEDS,
    Tried,
    effective_classes,
    expected_gaps,
    suggest,
)
from fedprox.measures import dissimilarity
from fedprox.model import weighted_loss
from fedprox.protocol.protocol import initial_params
from fedprox.report.records import metrics_line
from tests.test_cli import SMALL, fedprox, record, status

ROUNDS = range(0, SWEEP_ROUNDS + 1, 2)


def losses(*curves: Any, noise: float = 0.0, seeds: int = 3) -> np.ndarray[Any, Any]:
    """Curves, functions of the round, with noise that depends on the seed: the mus are paired."""
    rng = np.random.default_rng(0)
    exact = np.array([[curve(np.array(ROUNDS, float))] * seeds for curve in curves])
    return exact + noise * rng.normal(size=exact.shape[1:])


def slow(rate: float, floor: float) -> Any:
    return lambda t: floor + (2.3 - floor) * np.exp(-rate * t)


def test_a_slow_mu_that_catches_up_is_preferred() -> None:
    """Behind at round 40, and level with the fast one long before round 400."""
    curves = losses(slow(0.06, 0.5), slow(0.04, 0.5))
    assert curves[1, :, -1].mean() > curves[0, :, -1].mean() + 0.1
    gaps, noise = expected_gaps(curves, ROUNDS, 400)
    assert suggest([0.0, 1.0], gaps, noise + 1e-3) == 1.0
    # but not where the run ends with the sweep
    gaps, noise = expected_gaps(curves, ROUNDS, SWEEP_ROUNDS)
    assert suggest([0.0, 1.0], gaps, noise + 1e-3) == 0.0


def test_a_gap_that_stays_or_grows_is_kept() -> None:
    curves = losses(slow(0.05, 0.5), slow(0.05, 0.6), lambda t: 2 - 0.01 * t)
    gaps, _ = expected_gaps(curves, ROUNDS, 10_000)
    late = curves[:, :, -5:].mean(axis=(1, 2))
    assert gaps[0] == 0
    assert gaps[2] == pytest.approx(late[2] - late[0])
    steady = losses(slow(0.05, 0.5), lambda t: slow(0.05, 0.5)(t) + 0.1)
    assert expected_gaps(steady, ROUNDS, 10_000)[0][1] == pytest.approx(0.1)


@pytest.mark.parametrize("sigma", [0.001, 0.03])
def test_noise_is_the_scatter_around_the_trend(sigma: float) -> None:
    """As a standard error of 200 seeds times 5 evaluations; a steep trend does not count."""
    curves = losses(lambda t: 3 - 0.05 * t, lambda t: 3 - 0.02 * t, noise=sigma, seeds=200)
    gaps, noise = expected_gaps(curves, ROUNDS, SWEEP_ROUNDS)
    assert noise == pytest.approx(sigma / math.sqrt(200 * 5), rel=0.1)
    assert gaps[1] == pytest.approx(0.03 * 36, rel=0.05)


def test_a_shorter_last_interval_is_no_noise() -> None:
    rounds = [*range(0, 39, 2), 39]
    line = np.array([[3 - 0.03 * np.array(rounds, float)] * 3])
    assert expected_gaps(line, rounds, 39)[1] == pytest.approx(0, abs=1e-12)


def test_a_difference_within_noise_does_not_decide() -> None:
    curves = [slow(0.05, 0.5), slow(0.05, 0.505), slow(0.05, 0.8)]
    gaps, noise = expected_gaps(losses(*curves, noise=0.05), ROUNDS, 200)
    assert suggest([0.0, 0.1, 1.0], gaps, noise) == 0.1


def test_what_diverged_is_not_suggested() -> None:
    curves = losses(slow(0.05, 0.5), slow(0.05, 0.5), slow(0.05, 0.4))
    curves[2, 1, -3:] = np.nan
    curves[1, 0, 4] = np.inf
    gaps, noise = expected_gaps(curves, ROUNDS, 200)
    assert gaps.tolist() == [0, math.inf, math.inf]
    assert suggest([0.0, 0.1, 1.0], gaps, noise) == 0.0
    # finite, but above the initial model
    curves[0, :, 1:] = 1e30
    for none in (curves, np.full_like(curves, np.nan)):
        gaps, noise = expected_gaps(none, ROUNDS, 200)
        assert suggest([0.0, 0.1, 1.0], gaps, noise) is None


def find_out(federation: fp.Federation, **changes: Any) -> fp.Diagnosis:
    options: dict[str, Any] = {
        "solver": fp.Solver(learning_rate=0.01, batch_size=10, epochs=2),
        "cohort": fp.Cohort(4),
        "rounds": 6,
    }
    model = changes.pop("model", None) or fp.models.logistic(federation)
    return fp.diagnose(federation, model, **(options | changes))


@pytest.fixture(scope="module")
def federation() -> fp.Federation:
    return fp.datasets.synthetic(1.0, 1.0, clients=6, seed=3)


@pytest.fixture(scope="module")
def found(federation: fp.Federation) -> fp.Diagnosis:
    return find_out(federation, seed=5)


def test_measurements_at_the_initial_model(federation: fp.Federation, found: fp.Diagnosis) -> None:
    """B(w) and the variance from the definition, the mean over the sweep's three starts."""
    model, train = fp.models.logistic(federation), federation.train
    gradient_of_mean = jax.jit(
        lambda params, weights: jax.grad(weighted_loss, argnums=1)(
            model, params, train.x, train.y, weights
        )
    )
    owner = np.repeat(np.arange(len(federation)), train.sizes)

    def at_start(seed: int) -> tuple[float, float]:
        params = initial_params(model, seed)
        gradients = []
        for k in range(len(federation)):
            mean = (owner == k) / np.float32(train.sizes[k])
            gradient = gradient_of_mean(params, mean.astype(np.float32))
            gradients.append(np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient)]))
        shares, g = federation.shares, np.array(gradients, float)
        apart = ((g - shares @ g) ** 2).sum(axis=1)
        variance = shares @ apart
        return float(variance), float(dissimilarity(variance, ((shares @ g) ** 2).sum()))

    variance, b = np.mean([at_start(seed) for seed in (5, 6, 7)], axis=0)
    assert found.gradient_variance[0] == pytest.approx(variance, rel=1e-3)
    assert found.dissimilarity[:, 0].mean() == pytest.approx(b, rel=1e-3)
    assert found.sizes.tolist() == federation.train.sizes.tolist()


def test_the_sweep_is_an_ordinary_run_with_the_same_seed(
    federation: fp.Federation, found: fp.Diagnosis
) -> None:
    runs = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedprox(mu=1.0),
        solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=2),
        cohort=fp.Cohort(4),
        rounds=6,
        seed=[5, 6, 7],
    )
    mean = np.mean([[r.train_loss for r in run.history] for run in runs], axis=0)
    assert [tried.mu for tried in found.sweep] == list(MUS)
    assert found.sweep[-1].train_loss == pytest.approx(mean, rel=1e-5)
    assert found.rounds == tuple(range(7))


def test_clients_alike_are_called_alike_and_theory_then_has_a_mu() -> None:
    rng = np.random.default_rng(0)
    client = rng.normal(size=(20, 4)), rng.integers(3, size=20)
    found = find_out(fp.Federation.from_arrays([client] * 8))
    assert found.largest_dissimilarity == pytest.approx(1, abs=1e-3)
    bend = found.curvature
    expected = mu_needed(Constants(bend.smoothness, found.largest_dissimilarity, 4))
    assert found.theory_mu == pytest.approx(expected, rel=1e-3)
    assert found.theory_mu is not None
    facts = {what: value for what, value, _ in found.facts()}
    assert facts["mu by Theorem 4"].startswith("above")


def test_theory_asks_for_more_clients_where_they_differ(found: fp.Diagnosis) -> None:
    assert found.theory_mu is None
    facts = {what: (value, note) for what, value, note in found.facts()}
    value, note = facts["mu by Theorem 4"]
    assert value == "none"
    enough = math.floor(2 * found.largest_dissimilarity**2) + 1
    assert f"at least {enough:,} clients" in note
    bend = found.curvature
    for clients, works in ((enough, True), (enough - 1, False)):
        constants = Constants(bend.smoothness, found.largest_dissimilarity, clients)
        assert (mu_needed(constants) is not None) == works


def test_a_rate_that_diverges_everywhere_suggests_nothing() -> None:
    """Squared loss with a step of 1e4: every mu is off at once."""
    federation = fp.Federation.from_arrays([([[1.0], [2.0]], [1.0, 2.0])] * 4, classes=0)
    model = fp.Model(
        lambda _: np.zeros(1, np.float32), lambda w, x: x @ w, lambda o, y: (o - y) ** 2, None
    )
    solver = fp.Solver(learning_rate=1e4, batch_size=1, epochs=20)
    found = find_out(federation, model=model, solver=solver)
    assert found.suggested_mu is None
    assert found.facts()[-1][1] == "none"
    assert len(found.effective_classes) == 0
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert document["suggested_mu"] is None
    assert document["sweep"][0]["late_loss"] is None
    assert document["sweep"][0]["train_loss"][0] > 0


def test_gradients_that_cancel_have_no_b_and_theory_no_mu() -> None:
    """F_k = (w -+ 1)^2 / 2 at w = 0: f's gradient is zero and the clients' are not."""
    federation = fp.Federation.from_arrays([([[1.0]], [s]) for s in (1.0, -1.0)] * 4)
    model = fp.Model(
        lambda _: np.zeros(1, np.float32), lambda w, x: x @ w, lambda o, y: (o - y) ** 2 / 2, None
    )
    solver = fp.Solver(learning_rate=0.1, batch_size="all", epochs=1)
    found = find_out(federation, model=model, solver=solver, cohort=fp.Cohort(8))
    assert found.largest_dissimilarity == math.inf
    assert found.theory_mu is None
    facts = {what: (value, note) for what, value, note in found.facts()}
    assert facts["dissimilarity B(w)"][0] == "infinite"
    assert facts["mu by theory"][0] == "none"
    assert "no B bounds B(w)" in facts["mu by theory"][1]
    json.dumps(found.document(), allow_nan=False)


def test_objectives_that_do_not_bend() -> None:
    federation = fp.Federation.from_arrays([([[1.0], [2.0]], [1.0, 2.0])] * 4, classes=0)
    model = fp.Model(lambda _: np.ones(1, np.float32), lambda w, x: x @ w, lambda o, y: o - y, None)
    found = find_out(federation, model=model)
    assert found.curvature.smoothness == 0
    assert found.theory_mu is None
    assert ("mu by theory", "any") in [fact[:2] for fact in found.facts()]


def test_positions_without_a_label_are_no_class() -> None:
    x, nothing = np.zeros((2, 3)), np.full((2, 3), -1)
    labels = np.array([[0, 1, -1], [1, 0, -1]])
    clients = [(x, labels), (x, labels + 2 * (labels >= 0)), (x, np.where(labels > 0, 3, -1))]
    federation = fp.Federation.from_arrays([*clients, (x, nothing)])
    assert effective_classes(federation).round(9).tolist() == [2, 2, 1, 0]


def test_the_largest_b_is_that_of_any_seed(found: fp.Diagnosis) -> None:
    assert found.dissimilarity.shape == (SWEEP_SEEDS, len(found.rounds))
    assert found.largest_dissimilarity == found.dissimilarity.max()
    assert found.largest_dissimilarity > found.dissimilarity.mean(axis=0).max()


def test_a_sample_of_the_clients_is_called_one(federation: fp.Federation) -> None:
    facts = {
        what: (value, note)
        for what, value, note in find_out(federation, evaluation=fp.Evaluation(clients=5)).facts()
    }
    value, note = facts["clients"]
    assert value == "5"
    assert note.startswith(f"of {len(federation)}, drawn at random; all ")
    with pytest.raises(fp.InputError, match=r"evaluation\.clients = 0"):
        find_out(federation, evaluation=fp.Evaluation(clients=0))
    with pytest.raises(
        fp.InputError, match=r"evaluation\.clients = 3; a diagnosis draws its cohorts"
    ):
        find_out(federation, evaluation=fp.Evaluation(clients=3))


@pytest.mark.slow
def test_a_sample_of_the_clients_has_their_speeds(federation: fp.Federation) -> None:
    """A client that is too slow for a single step is a straggler wherever it is drawn."""
    chosen = federation.drawn(4)

    def sweep(seconds: list[float]) -> Any:
        return find_out(
            federation,
            evaluation=fp.Evaluation(clients=4),
            systems=fp.Systems(deadline=1.0),
            population=fp.Population(step_seconds=seconds),
        ).sweep[0]

    fast, mixed = (
        sweep([1e-6 if k in chosen else other for k in range(6)]).train_loss
        for other in (1e-6, 10.0)
    )
    assert np.ptp(fast) > 1e-6
    assert fast.tolist() == mixed.tolist()
    with pytest.raises(fp.InputError, match="no client has time for a single step"):
        sweep([10.0 if k in chosen else 1e-6 for k in range(6)])
    with pytest.raises(fp.InputError, match="step_seconds: 5 numbers; the federation has 6"):
        sweep([1.0] * 5)


@pytest.mark.parametrize(
    ("rounds", "evaluations"), [(21, 11), pytest.param(39, 20, marks=pytest.mark.slow)]
)
def test_the_sweep_is_evaluated_twenty_times_at_most(rounds: int, evaluations: int) -> None:
    client = [[1.0], [2.0]], [0, 1]
    found = find_out(fp.Federation.from_arrays([client] * 4), rounds=rounds)
    assert len(found.rounds) == evaluations + 1


def test_several_learning_rates_are_refused(federation: fp.Federation) -> None:
    solver = fp.Solver(learning_rate=[0.01, 0.1], batch_size=10, epochs=1)
    with pytest.raises(fp.InputError, match="one learning rate"):
        find_out(federation, solver=solver)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"federation": 3}, "federation = 3; it must be a fedprox.Federation"),
        ({"model": 3}, "model = 3; it must be a fedprox.Model"),
        ({"solver": 3}, "solver = 3; it must be a fedprox.Solver"),
        (
            {"cohort": 2, "evaluation": fp.Evaluation(clients=2)},
            "cohort = 2; it must be a fedprox.Cohort",
        ),
        ({"seed": "a"}, "seed = 'a'; it must be a whole number of at least 0"),
        ({"seed": 2**63 - 1}, "seed = 9223372036854775807; it must be a whole number from 0 to"),
    ],
)
def test_arguments_of_another_kind_are_one_line(
    change: dict[str, Any], message: str, federation: fp.Federation
) -> None:
    given: dict[str, Any] = {
        "federation": federation,
        "model": fp.models.logistic(federation),
        "solver": fp.Solver(learning_rate=0.01, batch_size=10, epochs=1),
        "cohort": fp.Cohort(clients_per_round=2),
    }
    with pytest.raises(fp.InputError, match=message):
        fp.diagnose(**given | change)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment and its diagnosis, in `runs/small-diagnosis`."""
    folder = tmp_path_factory.mktemp("diagnose")
    (folder / "small.toml").write_text(SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert status("diagnose", "small.toml") == 0
    return folder


def test_the_document_has_the_agreed_form(folder: Path) -> None:
    out = folder / "runs" / "small-diagnosis"
    assert {path.name for path in out.iterdir()} == {
        *("diagnosis.json", "experiment.toml", "report.html")
    }
    found = json.loads((out / "diagnosis.json").read_text())
    assert set(found) == {
        *("facts", "sizes", "classes", "path", "sweep", "suggested_mu", "theory_mu"),
        "clusters",
    }
    assert found["clusters"] == {"count": 1, "p": None, "labels": [0] * 6}  # of few clients
    assert all(set(fact) == {"what", "value", "note"} for fact in found["facts"])
    assert all(isinstance(text, str) for fact in found["facts"] for text in fact.values())
    assert len(found["sizes"]) == len(found["classes"]) == 6
    assert set(found["path"]) == {"round", "dissimilarity", "gradient_variance"}
    assert found["path"]["round"] == [0, 1, 2, 3, 4]
    assert {len(values) for values in found["path"].values()} == {5}
    assert [point["mu"] for point in found["sweep"]] == list(MUS)
    for point in found["sweep"]:
        assert set(point) == {*Tried._fields, "round"}
        assert len(point["train_loss"]) == len(point["round"]) == 5
    assert found["suggested_mu"] in MUS
    assert tomllib.loads((out / "experiment.toml").read_text())["rounds"] == 4


def test_it_goes_beside_the_results_of_its_own_experiment_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder / "run"
    run.mkdir()
    experiment = (folder / "runs" / "small-diagnosis" / "experiment.toml").read_text()
    # as if made with other versions, and with results beside it
    (run / "experiment.toml").write_text(experiment.replace("python", "snake"))
    (run / "metrics.jsonl").write_text(json.dumps(metrics_line(record(1))) + "\n")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert status("diagnose", folder / "small.toml", "--out", run) == 0
    page = capsys.readouterr().out
    assert "training rows were read" in page
    assert "mu to start with" in page
    after = {path.name: path.read_bytes() for path in run.iterdir()}
    assert set(after) == {*before, "diagnosis.json", "report.html"}
    assert b"mu to start with" in after["report.html"]
    assert {name: after[name] for name in before} == before

    changed = ("--set", "solver.epochs=1", "--out", run)
    assert status("diagnose", folder / "small.toml", *changed) == 2
    assert "another experiment" in capsys.readouterr().err
    assert {path.name for path in run.iterdir()} == set(after)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("solver.learning_rate=[0.1, 0.2]", "one learning rate"),
        ("cohort.clients_per_round=7", "clients_per_round = 7"),
        ("rounds=0", "rounds = 0"),
        ("solver.epoch=1", "epochs"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, says: str
) -> None:
    out = folder / "nothing"
    assert status("diagnose", folder / "small.toml", "--set", setting, "--out", out) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_the_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fedprox("diagnose", "--help")
    assert "diagnosis.json" in capsys.readouterr().out
