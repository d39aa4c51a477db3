"""What the papers' code does otherwise than the papers say."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.quirks import (
    EPOCHS_AFTER_RESET,
    epochs_after_reset,
    fedprox_without_quadratic,
    overlapping_classes,
    overlapping_femnist,
)
from fedprox import Cohort, InputError, Solver, Systems
from fedprox.experiment import parse, resolve
from fedprox.parts.systems import Straggler
from fedprox.streams import Purpose, generator
from tests.quadratics import one_run, quadratic_federation, quadratic_model

FIVE_EPOCHS = Solver(learning_rate=0.1, batch_size=10, epochs=5)


def test_fedprox_without_the_quadratic_only_pulls_along_the_model() -> None:
    """w = (L b + mu w^t) / L: the exact solution with -mu w^t w alone, in one dimension."""
    start, curvature, minimum, mu = 2.0, 3.0, -1.0, 0.6
    federation = quadratic_federation([np.array([[curvature]])], [np.array([minimum])])
    model = quadratic_model(np.array([start]))
    solver = Solver(learning_rate=0.1, batch_size="all", steps=2000)
    run = one_run(federation, model, fedprox_without_quadratic(mu=mu), solver)
    expected = (curvature * minimum + mu * start) / curvature
    np.testing.assert_allclose(run.params, [expected], rtol=1e-5)
    assert run.label == "fedprox without the quadratic mu=0.6"


def test_overlapping_clients_hold_the_first_rows_of_a_class() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 1000))
    parts = overlapping_classes(labels, clients=30, classes_per_client=5, seed=0)
    for c in range(10):
        held = [part[labels[part] == c] for part in parts if (labels[part] == c).any()]
        longest = max(held, key=len)
        assert len(held) == 15
        assert all((rows == longest[: len(rows)]).all() for rows in held)


def test_overlapping_femnist_has_the_papers_number_of_samples(data_dir: Path) -> None:
    if not (data_dir / "emnist" / "emnist_lowercase.npz").is_file():
        pytest.skip("no EMNIST: set FEDPROX_DATA to a folder that has emnist/")
    sizes = [
        np.add(*(rows.sizes for rows in (federation.train, federation.test)))
        for seed in range(4)
        for federation in [overlapping_femnist(seed=seed, data_dir=data_dir)]
    ]
    # Table 1: mean 92, standard deviation 159; LogNormal(4, 1) has 90 and 118
    assert np.mean(sizes) == pytest.approx(92, rel=0.1)
    assert 90 < np.std(sizes) < 200


def test_epochs_after_a_reset_are_never_all_and_follow_the_client_before() -> None:
    systems = Systems(stragglers=1.0, straggler_epochs=epochs_after_reset())
    after: dict[tuple[int, int], set[int]] = {}
    for round_ in range(300):
        cohort = Cohort(3).draw(0, round_, np.arange(0, 70, 10)).clients
        steps = systems.work(0, round_, cohort, np.full(3, 10), FIVE_EPOCHS).steps
        assert 1 <= steps.min() <= steps.max() <= 4
        for slot in (1, 2):
            pair = int(cohort[slot - 1]), int(cohort[slot])
            after.setdefault(pair, set()).add(int(steps[slot]))
    assert len(after) == 30
    assert all(len(numbers) == 1 for numbers in after.values())
    assert len({min(numbers) for numbers in after.values()}) > 1


def test_epochs_after_a_reset_are_those_of_the_streams() -> None:
    systems = Systems(stragglers=1.0, straggler_epochs=epochs_after_reset())
    cohort, sizes = np.array([7, 3, 9, 1, 4]), np.array([5, 40, 1, 333, 20])
    for seed in range(4):
        work = systems.work(seed, 3, cohort, sizes, FIVE_EPOCHS)
        places = [(3, 7), (0, 7), (0, 3), (0, 9), (0, 1)]
        epochs = [generator(seed, Purpose.WORK, *place).integers(1, 5) for place in places]
        np.testing.assert_array_equal(work.steps, epochs * -(-sizes // 10))


def test_one_epoch_leaves_nothing_to_draw() -> None:
    def draw(_: Straggler) -> int:
        raise AssertionError

    solver = Solver(learning_rate=0.1, batch_size=10, epochs=1)
    args = (0, 3, np.arange(4), np.full(4, 55), solver)
    drawn = Systems(1.0, straggler_epochs=draw).work(*args)
    np.testing.assert_array_equal(drawn.steps, Systems(1.0).work(*args).steps)


@pytest.mark.parametrize("epochs", [0, 6, 1.5, "two"])
def test_a_number_of_epochs_that_cannot_be_is_refused(epochs: Any) -> None:
    systems = Systems(stragglers=1.0, straggler_epochs=lambda _: epochs)
    with pytest.raises(InputError, match=r"straggler_epochs\(straggler\) = .* from 1 to 5"):
        systems.work(0, 0, np.arange(3), np.full(3, 10), FIVE_EPOCHS)


def test_what_draws_epochs_must_be_a_function_and_needs_a_fraction() -> None:
    with pytest.raises(InputError, match=r"systems\.straggler_epochs = 'x'; it must be a function"):
        Systems(straggler_epochs="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"leave it out with systems\.deadline"):
        Systems(deadline=1.0, straggler_epochs=epochs_after_reset())


def test_an_experiment_file_names_what_draws_epochs() -> None:
    experiment = tomllib.loads(
        f"""
        rounds = 2
        data.name = "synthetic"
        cohort.clients_per_round = 3
        systems = {{stragglers = 0.5, straggler_epochs = "{EPOCHS_AFTER_RESET}"}}
        solver = {{learning_rate = 0.1, batch_size = 10, epochs = 5}}
        method = [{{name = "fedavg"}}]
        """
    )
    resolved = resolve(parse("here", experiment))
    assert resolved.systems == Systems(0.5, straggler_epochs=epochs_after_reset())
    assert resolved.table["systems"]["straggler_epochs"] == EPOCHS_AFTER_RESET
