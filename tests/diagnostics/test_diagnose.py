"""A diagnosis: what it measures, what it suggests, and the command."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.diagnostics import Constants, Curvature, Grouping, grouping, mu_needed
from fedprox.diagnostics.diagnosis import (
    MUS,
    SWEEP_ROUNDS,
    SWEEP_SEEDS,
    Tried,
    effective_classes,
    expected_gaps,
    suggest,
)
from fedprox.federation import no_rows
from fedprox.measures import dissimilarity
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


TEXT = SMALL.replace("clients = 6", "clients = 9").replace(
    "evaluation.every = 2", "evaluation = {every = 2, clients = 8}"
)
"""An experiment whose diagnosis reads eight of nine clients."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment and its diagnosis, in `runs/small-diagnosis`."""
    folder = tmp_path_factory.mktemp("diagnose")
    (folder / "small.toml").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert status("diagnose", "small.toml") == 0
    return folder


SETTINGS: dict[str, Any] = {
    "solver": fp.Solver(learning_rate=0.01, batch_size=10, epochs=2),
    "cohort": fp.Cohort(3),
    "systems": fp.Systems(stragglers=0.5),
    "rounds": 4,
}
"""The settings of that experiment."""

WHOLE = fp.datasets.synthetic(1.0, 1.0, clients=9)
EIGHT = WHOLE.sample_clients(8)


def find_out(federation: fp.Federation = WHOLE, **changes: Any) -> fp.Diagnosis:
    options = SETTINGS | {"evaluation": fp.Evaluation(clients=8)} | changes
    model = options.pop("model", None) or fp.models.logistic(federation)
    return fp.diagnose(federation, model, **options)


@pytest.fixture(scope="module")
def found() -> fp.Diagnosis:
    return find_out()


def facts(found: fp.Diagnosis) -> dict[str, tuple[str, str]]:
    """The values and notes of the findings."""
    return {what: (value, note) for what, value, note in found.facts()}


def test_measurements_at_the_initial_model(found: fp.Diagnosis) -> None:
    """B(w) and the variance from the definition, the mean over the sweep's three starts."""
    model, train = fp.models.logistic(WHOLE), EIGHT.train
    owner = np.repeat(np.arange(8), train.sizes)

    def at_start(seed: int) -> tuple[float, float]:
        layer = jax.device_get(initial_params(model, seed))["dense"]
        outputs = np.asarray(train.x, float) @ np.asarray(layer["weight"], float).T + layer["bias"]
        away = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        away /= away.sum(axis=1, keepdims=True)
        away[np.arange(len(owner)), train.y] -= 1
        rows = np.concatenate([away[:, :, None] * train.x[:, None], away[:, :, None]], axis=2)
        g = np.array([rows[owner == k].mean(axis=0).ravel() for k in range(8)])
        shares = train.sizes / train.sizes.sum()
        variance = shares @ ((g - shares @ g) ** 2).sum(axis=1)
        return float(variance), float(dissimilarity(variance, ((shares @ g) ** 2).sum()))

    variance, b = np.mean([at_start(seed) for seed in (0, 1, 2)], axis=0)
    assert found.gradient_variance[0] == pytest.approx(variance, rel=1e-3)
    assert found.dissimilarity[:, 0].mean() == pytest.approx(b, rel=1e-3)
    assert found.sizes.tolist() == train.sizes.tolist()
    known = grouping(model, initial_params(model, 0), EIGHT)
    np.testing.assert_array_equal(found.grouping.gaps, known.gaps)


def test_the_sweep_is_an_ordinary_run_with_the_same_seed(found: fp.Diagnosis) -> None:
    runs = fp.simulate(
        replace(EIGHT, test=no_rows(EIGHT.train)),
        fp.models.logistic(WHOLE),
        fp.fedprox(mu=MUS),
        **SETTINGS,
        seed=[0, 1, 2],
    )
    means = {
        mu: np.mean(
            [[r.train_loss for r in run.history] for run in runs if run.hparams["mu"] == mu], axis=0
        )
        for mu in MUS
    }
    assert [tried.mu for tried in found.sweep] == list(MUS)
    for tried in found.sweep:
        assert tried.train_loss == pytest.approx(means[tried.mu], rel=1e-5)
    assert found.rounds == tuple(range(5))


def test_clients_alike_have_a_mu_by_theory(found: fp.Diagnosis) -> None:
    alike = replace(found, dissimilarity=np.ones((SWEEP_SEEDS, 5)))
    bend = found.curvature
    needed = mu_needed(Constants(bend.smoothness, 1.0, 3, bend.negative_curvature))
    assert alike.theory_mu == needed is not None
    assert facts(alike)["mu by Theorem 4"][0] == f"above {needed:.3g}"


def test_theory_asks_for_more_clients_where_they_differ(found: fp.Diagnosis) -> None:
    assert found.theory_mu is None
    value, note = facts(found)["mu by Theorem 4"]
    assert value == "none"
    enough = math.floor(2 * found.largest_dissimilarity**2) + 1
    assert f"at least {enough:,} clients" in note
    bend = found.curvature
    for clients, works in ((enough, True), (enough - 1, False)):
        constants = Constants(bend.smoothness, found.largest_dissimilarity, clients)
        assert (mu_needed(constants) is not None) == works


SIDES = fp.Federation.from_arrays([([[1.0]], [s]) for s in (1.0, -1.0)] * 4)
"""Clients with the objectives (w -+ 1)^2 / 2, whose gradients cancel at w = 0."""

SQUARES = fp.Model(
    lambda _: np.zeros(1, np.float32), lambda w, x: x @ w, lambda o, y: (o - y) ** 2 / 2, None
)


def of_sides(learning_rate: float, rounds: int) -> fp.Diagnosis:
    return find_out(
        SIDES,
        model=SQUARES,
        solver=fp.Solver(learning_rate, "all", steps=20),
        cohort=fp.Cohort(8),
        systems=fp.Systems(),
        rounds=rounds,
    )


@pytest.mark.slow
def test_a_rate_that_diverges_everywhere_suggests_nothing() -> None:
    """With a step of 1e4 every mu is off at once."""
    found = of_sides(1e4, 21)
    assert found.suggested_mu is None
    assert found.facts()[-1][1] == "none"
    assert len(found.effective_classes) == 0
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert document["suggested_mu"] is None
    assert document["sweep"][0]["late_loss"] is None
    assert document["sweep"][0]["train_loss"][0] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "evaluations"), [(21, 11), (39, 20)])
def test_gradients_that_cancel_have_no_b(rounds: int, evaluations: int) -> None:
    """f's gradient is zero and the clients' are not; the sweep has 20 evaluations at most."""
    found = of_sides(0.1, rounds)
    assert len(found.rounds) == evaluations + 1
    assert found.largest_dissimilarity == math.inf


def test_without_b_theory_has_no_mu(found: fp.Diagnosis) -> None:
    found = replace(found, dissimilarity=np.full((SWEEP_SEEDS, 5), math.inf))
    assert found.theory_mu is None
    assert facts(found)["dissimilarity B(w)"][0] == "infinite"
    value, note = facts(found)["mu by theory"]
    assert value == "none"
    assert "no B bounds B(w)" in note
    json.dumps(found.document(), allow_nan=False)


def test_objectives_that_do_not_bend(found: fp.Diagnosis) -> None:
    straight = Curvature(np.zeros(8), np.zeros(8), 0.0, 0.0)
    assert replace(found, curvature=straight).theory_mu is None
    assert facts(replace(found, curvature=straight))["mu by theory"][0] == "any"


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


def test_a_sample_of_the_clients_is_called_one(found: fp.Diagnosis) -> None:
    value, note = facts(found)["clients"]
    assert value == "8"
    assert note.startswith("of 9, drawn at random; all ")
    assert facts(replace(found, of_clients=8))["clients"][1].startswith("all ")
    few = replace(found, grouping=Grouping(1, math.nan, np.zeros(0), np.zeros(8, np.int64)))
    assert facts(few)["clusters"] == ("-", "of 8 clients; they are told of 8 or more")


@pytest.mark.slow
def test_a_sample_of_the_clients_has_their_speeds() -> None:
    """A client that is too slow for a single step is a straggler wherever it is drawn."""
    chosen = WHOLE.drawn(8)

    def sweep(seconds: list[float]) -> Any:
        devices = fp.Population(step_seconds=seconds)
        return find_out(systems=fp.Systems(deadline=1.0), population=devices).sweep[0]

    fast, mixed = (
        sweep([1e-6 if k in chosen else other for k in range(9)]).train_loss
        for other in (1e-6, 10.0)
    )
    assert np.ptp(fast) > 1e-6
    assert fast.tolist() == mixed.tolist()
    with pytest.raises(fp.InputError, match="no client has time for a single step"):
        sweep([10.0 if k in chosen else 1e-6 for k in range(9)])
    with pytest.raises(fp.InputError, match="step_seconds: 5 numbers; the federation has 9"):
        sweep([1.0] * 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"federation": 3}, "federation = 3; it must be a fedprox.Federation"),
        ({"model": 3}, "model = 3; it must be a fedprox.Model"),
        ({"solver": 3}, "solver = 3; it must be a fedprox.Solver"),
        ({"cohort": 2}, "cohort = 2; it must be a fedprox.Cohort"),
        ({"seed": "a"}, "seed = 'a'; it must be a whole number of at least 0"),
        ({"seed": 2**63 - 1}, "seed = 9223372036854775807; it must be a whole number from 0 to"),
        ({"solver": fp.Solver([0.01, 0.1], 10, epochs=1)}, "a diagnosis is for one learning rate"),
        (
            {"evaluation": fp.Evaluation(clients=2)},
            "clients = 2; a diagnosis draws its cohorts of 3",
        ),
    ],
)
def test_bad_arguments_are_one_line(change: dict[str, Any], message: str) -> None:
    given = {"federation": WHOLE, "model": fp.models.logistic(WHOLE), **SETTINGS}
    with pytest.raises(fp.InputError, match=message):
        fp.diagnose(**{"evaluation": fp.Evaluation(clients=8)} | given | change)


def test_the_document_has_the_agreed_form(folder: Path, found: fp.Diagnosis) -> None:
    out = folder / "runs" / "small-diagnosis"
    assert {path.name for path in out.iterdir()} == {
        *("diagnosis.json", "experiment.toml", "report.html")
    }
    document = json.loads((out / "diagnosis.json").read_text())
    assert document == json.loads(json.dumps(found.document()))
    assert set(document) == {
        *("facts", "sizes", "classes", "path", "sweep", "suggested_mu", "theory_mu"),
        "clusters",
    }
    assert document["clusters"]["p"] > 0
    assert len(document["clusters"]["labels"]) == 8
    assert all(set(fact) == {"what", "value", "note"} for fact in document["facts"])
    assert all(isinstance(text, str) for fact in document["facts"] for text in fact.values())
    assert len(document["sizes"]) == len(document["classes"]) == 8
    assert set(document["path"]) == {"round", "dissimilarity", "gradient_variance"}
    assert document["path"]["round"] == [0, 1, 2, 3, 4]
    assert {len(values) for values in document["path"].values()} == {5}
    assert [point["mu"] for point in document["sweep"]] == list(MUS)
    for point in document["sweep"]:
        assert set(point) == {*Tried._fields, "round"}
        assert len(point["train_loss"]) == len(point["round"]) == 5
    assert document["suggested_mu"] in MUS
    assert tomllib.loads((out / "experiment.toml").read_text())["rounds"] == 4


@pytest.mark.slow
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
        ("cohort.clients_per_round=10", "cohorts of 10 from"),
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
