"""CFL: planted clusters, its bipartition against all of them, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.clustering import bipartition
from tests.algorithms.test_ifca import planted

FEDERATION = planted()
MODEL = fp.models.logistic(FEDERATION)


def found(**options: Any) -> fp.Clustering:
    given: dict[str, Any] = {
        "eps1": 0.05,
        "eps2": 0.2,
        "solver": fp.Solver(0.5, "all", steps=5),
        "rounds": 30,
        "progress": False,
    }
    return fp.cfl(FEDERATION, MODEL, **(given | options))


def test_planted_clusters_are_recovered_exactly() -> None:
    """In two divisions, each of a cluster whose own gradient is small and a client's is not."""
    clusters = found()
    assert clusters.labels.tolist() == [0, 1, 2] * 4
    assert clusters.test_accuracy > 0.8
    divided = [each for each in clusters.divisions if each.parts is not None]
    assert [len(each.clients) for each in clusters.divisions] == [12, 8, 4, 4, 4]
    for each in clusters.divisions:
        assert each.mean_norm < 0.05
        assert (each.largest_norm > 0.2) == (each.parts is not None)
        assert np.isnan(each.similarity) == (each.parts is None)
    assert len(divided) == 2
    # the models are those of the clients' clusters
    nearest = fp.nearest_models(MODEL, clusters.models, FEDERATION)
    np.testing.assert_array_equal(nearest, clusters.labels)
    met = [
        fp.evaluate(MODEL, {"dense": {n: a[j] for n, a in clusters.models["dense"].items()}}, own)
        for j, own in ((j, FEDERATION.of_clients(np.arange(j, 12, 3))) for j in range(3))
    ]
    mean = np.mean([each.test_accuracy for each in met])  # of as many test rows each
    assert clusters.test_accuracy == pytest.approx(mean)


def test_without_a_reason_there_is_one_cluster_and_its_model_is_the_local_methods() -> None:
    local = fp.fedprox(mu=0.1)
    for options in ({"eps1": 1e-6}, {"eps2": 10.0}, {"most": 1}):
        one = found(local=local, rounds=5, **({"eps1": 1.0} | options))
        assert not one.labels.any()
        assert len(one.divisions) == 1
    (run,) = fp.simulate(
        FEDERATION,
        MODEL,
        local,
        solver=fp.Solver(0.5, "all", steps=5),
        cohort=fp.Cohort(12),
        rounds=5,
        evaluation=fp.Evaluation(every=5, gradients=False),
        progress=False,
    )
    np.testing.assert_array_equal(one.models["dense"]["bias"][0], run.params["dense"]["bias"])
    assert one.test_accuracy == pytest.approx(run.final.test_accuracy)


@pytest.mark.parametrize("seed", range(5))
def test_the_bipartition_is_the_best_of_all(seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(6, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = vectors @ vectors.T
    part, across = bipartition(similarities)
    least = np.inf
    for chosen in itertools.product([False, True], repeat=6):
        other = np.array(chosen)
        if other.any() and not other.all():
            least = min(least, similarities[other][:, ~other].max())
    assert across == pytest.approx(least)
    assert similarities[part][:, ~part].max() == pytest.approx(least)
    assert not part[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps1": 0.0}, "eps1 = 0.0; it must be"),
        ({"eps2": -1.0}, "eps2 = -1.0; it must be"),
        ({"most": 0}, "most = 0; it must be a whole number"),
        ({"local": 3}, "local: it must be a method"),
        ({"local": fp.ditto(0.1)}, "local: ditto has no single model of all clients"),
        ({"local": fp.ifca(2)}, "local: ifca has no single model of all clients"),
        ({"local": fp.fedprox(mu=[0.0, 0.1])}, "local: fedprox has 2 sweep points"),
        ({"solver": fp.Solver([0.1, 0.2], "all", steps=5)}, "local: fedavg has 2 sweep points"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        found(**options)
