"""Whether clients form clusters: planted ones are found, and none where there are none."""

import sys
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.diagnostics.grouping import directions, gradients, grouped, grouping, k_means
from fedprox.protocol.protocol import initial_params
from tests import objectives
from tests.objectives import MODEL
from tests.settings import FEDERATION


def rules(clients: int, clusters: int, *, rows: int = 60, seed: int = 0) -> fp.Federation:
    """Clients whose labels are those of linear rules, k mod clusters."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(clusters, 10, 4))
    both = []
    for k in range(clients):
        x = rng.normal(size=(rows, 10))
        both.append((x, (x @ weights[k % clusters]).argmax(axis=1)))
    return fp.Federation.from_arrays(both)


def of(federation: fp.Federation, **options: Any) -> fp.diagnostics.Grouping:
    model = fp.models.logistic(federation)
    return grouping(model, initial_params(model, 0), federation, **options)


def planted(found: fp.diagnostics.Grouping, clusters: int) -> bool:
    """Whether client k's cluster is k mod clusters, by another name."""
    members = [set(found.labels[j::clusters].tolist()) for j in range(clusters)]
    return all(len(each) == 1 for each in members) and len(set.union(*members)) == clusters


@pytest.mark.parametrize("clusters", [3, 4])
def test_planted_clusters_are_found_exactly(clusters: int) -> None:
    found = of(rules(24, clusters))
    assert found.clusters == clusters
    assert found.p == 0.01
    assert planted(found, clusters)


@pytest.mark.parametrize(
    "federation", [rules(24, 1), rules(12, 12, rows=20)], ids=["alike", "all different"]
)
def test_clients_without_groups_form_none(federation: fp.Federation) -> None:
    found = of(federation)
    assert found.clusters == 1
    assert found.p > 0.05
    assert not found.labels.any()


@pytest.mark.slow
def test_points_of_one_gaussian_are_seldom_taken_for_clusters() -> None:
    """At most one of ten."""
    rng, wrong = np.random.default_rng(0), 0
    for seed in range(10):
        points = rng.normal(size=(12, 3)) * np.arange(1, 4)
        left, values, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
        wrong += grouped(left * values, seed).clusters > 1
    assert wrong <= 1


def test_clusters_of_classes_count() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 5)), np.full(20, k % 3)) for k in range(12)]
    assert of(fp.Federation.from_arrays(clients)).clusters == 3


def test_the_gradients_are_those_of_whole_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few are read together, and hashed ones keep their inner products."""
    params = initial_params(MODEL, 1)
    oracle, expected = objectives.Method(params, FEDERATION.train), []
    for k in range(len(FEDERATION)):
        x, y = map(np.asarray, FEDERATION.train.client(k))
        by_part = oracle.gradient(oracle.params, x.astype(float), y, k)
        expected.append(np.concatenate([by_part["body"].ravel(), by_part["head"].ravel()]))
    whole = gradients(MODEL, params, FEDERATION)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-6)
    module = sys.modules[grouping.__module__]
    monkeypatch.setattr(module, "GRADIENT_BYTES", 4 * 32 * 4)
    monkeypatch.setattr(module, "READ_ROWS", 8)
    np.testing.assert_allclose(gradients(MODEL, params, FEDERATION), whole, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(module, "SKETCH", 31)
    hashed = gradients(MODEL, params, FEDERATION)
    assert hashed.shape == (6, 31)
    assert np.linalg.norm(hashed @ hashed.T - whole @ whole.T) < np.linalg.norm(whole @ whole.T)


def test_directions_are_those_of_unit_vectors() -> None:
    vectors = np.array([[3.0, 0, 0], [0, 0.1, 0], [0, 0, 7.0], [0, 0, 0]] * 3)
    points = directions(vectors)
    assert points.shape == (12, 3)
    unit = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]] * 3)
    apart = ((unit[:, None] - unit) ** 2).sum(axis=2)
    np.testing.assert_allclose(((points[:, None] - points) ** 2).sum(axis=2), apart, atol=1e-9)


def test_k_means_by_hand() -> None:
    line = np.array([[[0.0], [1.0], [10.0], [12.0]], [[0.0], [0.0], [0.0], [3.0]]])
    squares, labels = k_means(line, 2, np.random.default_rng(0))
    np.testing.assert_allclose(squares, [0.5 + 2, 0])
    assert labels[0] == labels[1] != labels[2] == labels[3]
    np.testing.assert_allclose(k_means(line, 1, np.random.default_rng(0))[0], [112.75, 6.75])


def test_few_clients_and_equal_ones_cannot_be_told_apart() -> None:
    few = of(rules(7, 2))
    assert (few.clusters, np.isnan(few.p)) == (1, True)
    x = np.random.default_rng(0).normal(size=(5, 3))
    same = of(fp.Federation.from_arrays([(x, [0, 1, 2, 0, 1])] * 9))
    assert (same.clusters, same.p) == (1, 1.0)


@pytest.mark.slow
def test_the_seed_is_of_the_references() -> None:
    federation = rules(18, 3)
    first, again, other = (of(federation, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.gaps, again.gaps)
    assert (first.gaps != other.gaps).any()
    assert first.clusters == other.clusters == 3


def test_parameters_of_another_model_are_refused() -> None:
    federation = rules(8, 2)
    with pytest.raises(fp.InputError, match="params"):
        grouping(fp.models.logistic(federation), {"w": np.zeros(3)}, federation)
