"""The mean of adapters' products beside dense matrices, and runs that take it."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.parts.part import beside
from fedprox.parts.robust import mean_product
from tests import settings
from tests.objectives import FEATURES, Matrix, one_hot, probabilities
from tests.settings import CLIENTS, FEDERATION

RANK = 2
MODEL = fp.models.logistic(FEDERATION)
START = MODEL.init(jax.random.key(0))
ADAPTED = fp.lora(MODEL, START, rank=RANK, alpha=3.0, trained=["dense.bias"])
FIRST = ADAPTED.init(jax.random.key(7)) | {
    "dense.weight.B": np.full((RANK, FEATURES), 0.1, "f4"),
    "dense.bias": np.linspace(-0.3, 0.3, FEDERATION.classes, dtype=np.float32),
}
"""Adapters whose products are not zero, and a bias; alpha / rank is 1.5."""

PRODUCT = fp.Aggregation("product")
product_of = jax.jit(mean_product)


def factors(n: int, rows: int, rank: int, columns: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "w.A": rng.normal(size=(n, rows, rank)).astype(np.float32),
        "w.B": rng.normal(size=(n, rank, columns)).astype(np.float32),
        "bias": rng.normal(size=(n, columns)).astype(np.float32),
    }


def best(matrix: Matrix, rank: int) -> Matrix:
    """The best approximation of a rank."""
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray((u[:, :rank] * values[:rank]) @ v[:rank])


SHAPE = 3, 9, 2, 4
WEIGHTS, ALL = np.array([1.0, 2.0, 3.0], np.float32), np.ones(3, bool)


@pytest.mark.parametrize("shape", [SHAPE, (5, 4, 3, 11)])
def test_the_product_is_the_best_approximation_of_the_mean(shape: tuple[int, ...]) -> None:
    sent, rank = factors(*shape), shape[2]
    weights = np.arange(1.0, 1 + shape[0], dtype=np.float32)
    share = weights / weights.sum()
    found = jax.device_get(product_of(sent, np.ones(shape[0], bool), weights))
    mean = np.einsum("n,nir,nrj->ij", share, sent["w.A"], sent["w.B"])
    np.testing.assert_allclose(found["w.A"] @ found["w.B"], best(mean, rank), atol=1e-5)
    np.testing.assert_allclose(found["bias"], share @ sent["bias"], atol=1e-6)
    assert found["w.A"].shape == sent["w.A"].shape[1:]
    size = np.sqrt(share @ (sent["w.A"] ** 2).sum(axis=(1, 2)))
    assert float(np.linalg.norm(found["w.A"])) == pytest.approx(size, rel=1e-5)
    # the product of the means is another matrix
    of_means = np.tensordot(share, sent["w.A"], 1) @ np.tensordot(share, sent["w.B"], 1)
    assert np.linalg.norm(of_means - mean) > 1.05 * np.linalg.norm(best(mean, rank) - mean)


def test_what_does_not_count_changes_nothing() -> None:
    sent, counts = factors(*SHAPE), np.array([True, False, True])
    bad = {name: np.where(beside(counts, leaf), leaf, np.nan) for name, leaf in sent.items()}
    here, there = (jax.device_get(product_of(each, counts, WEIGHTS)) for each in (sent, bad))
    jax.tree.map(np.testing.assert_array_equal, here, there)
    mean = np.einsum("n,nir,nrj->ij", [0.25, 0, 0.75], sent["w.A"], sent["w.B"])
    np.testing.assert_allclose(here["w.A"] @ here["w.B"], best(mean, 2), rtol=1e-4, atol=1e-5)


def test_factors_keep_their_rank_where_products_are_zero() -> None:
    sent = factors(*SHAPE)
    sent["w.B"] = np.zeros_like(sent["w.B"])
    found = jax.device_get(product_of(sent, ALL, WEIGHTS))
    np.testing.assert_allclose(found["w.B"], 0, atol=1e-12)
    assert np.linalg.matrix_rank(found["w.A"]) == 2


def run_of(aggregation: fp.Aggregation, **options: Any) -> fp.Run:
    """Two steps of all clients on all of their rows, from `FIRST`, unless options say otherwise."""
    given: dict[str, Any] = {
        "model": ADAPTED,
        "initial": FIRST,
        "solver": fp.Solver(0.5, "all", steps=2),
        "cohort": fp.Cohort(CLIENTS),
        "rounds": 1,
        "aggregation": aggregation,
    }
    return settings.runs(**given | options)[-1]


def product(params: Any) -> Matrix:
    a, b = (np.asarray(params[f"dense.weight.{factor}"], float) for factor in "AB")
    return a @ b


def trained_by_hand(k: int, rank: int, mu: float) -> dict[str, Matrix]:
    """What client k makes of the leading part of `FIRST` in two steps of FedProx."""
    x, y = map(np.asarray, FEDERATION.train.client(k))
    base = np.asarray(START["dense"]["weight"], float)
    first = {name: np.asarray(leaf, float) for name, leaf in FIRST.items()}
    first["dense.weight.A"][:, rank:], first["dense.weight.B"][rank:] = 0, 0
    w = first
    for _ in range(2):
        z = x @ (base + 1.5 * product(w)).T + w["dense.bias"]
        of_z = (probabilities(z) - one_hot(y)) / len(y)
        slope = 1.5 * of_z.T @ x
        gradient = {
            "dense.bias": of_z.sum(axis=0),
            "dense.weight.A": slope @ w["dense.weight.B"].T,
            "dense.weight.B": w["dense.weight.A"].T @ slope,
        }
        w = {name: w[name] - 0.5 * (gradient[name] + mu * (w[name] - first[name])) for name in w}
    return w


@pytest.mark.parametrize("ranks", [pytest.param(None, marks=pytest.mark.slow), (1, 2, 2, 1, 2, 1)])
def test_a_round_takes_the_mean_of_the_clients_products(ranks: Any) -> None:
    """Clients of other ranks train the leading part, and a faulty client does not count."""
    broken, mu = 3, 0.5
    x = np.array(FEDERATION.train.x)
    x[slice(*FEDERATION.train.offsets[broken : broken + 2])] = np.nan
    run = run_of(
        fp.Aggregation("product", ranks=ranks),
        federation=replace(FEDERATION, train=replace(FEDERATION.train, x=x)),
        methods=fp.fedprox(mu=[0.0, mu]),
        faults=fp.Faults(),
    )
    assert run.faulty == 1
    sizes = FEDERATION.train.sizes.astype(float)
    sizes[broken] = 0
    alone = [trained_by_hand(k, (ranks or [2] * CLIENTS)[k], mu) for k in range(CLIENTS)]
    mean = np.average([product(each) for each in alone], axis=0, weights=sizes)
    np.testing.assert_allclose(product(run.params), best(mean, RANK), atol=2e-5)
    bias = np.average([each["dense.bias"] for each in alone], axis=0, weights=sizes)
    np.testing.assert_allclose(run.params["dense.bias"], bias, atol=1e-6)
    # the first column alone is the best approximation of rank 1
    a, b = run.params["dense.weight.A"], run.params["dense.weight.B"]
    np.testing.assert_allclose(np.asarray(a)[:, :1] @ np.asarray(b)[:1], best(mean, 1), atol=2e-5)


def shaken(learning_rate: Any) -> optax.GradientTransformation:
    """An optimizer that moves all parameters, whatever their gradients are."""

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda g: -learning_rate * (g + 0.3), gradient), state

    return optax.GradientTransformation(lambda _: (), update)


SHAKEN = fp.Solver(0.05, 3, steps=3, optimizer=shaken)
ONE: dict[str, dict[str, Any]] = {
    "private": {"privacy": fp.Privacy(1.0, noise_multiplier=0.5, unit="example", accountant="rdp")},
    "fedprox": {"methods": fp.fedprox(mu=0.5), "solver": SHAKEN},
    "line search": {"solver": fp.Solver(0.05, "all", epochs=2, optimizer=fp.line_search_descent)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE)
def test_nothing_enters_what_is_beyond_a_clients_rank(name: str) -> None:
    """Also not the noise of private steps, of which the client's own numbers have theirs."""
    one: dict[str, Any] = {
        "federation": FEDERATION.of_clients(np.array([2])),
        "cohort": fp.Cohort(1),
        **ONE[name],
    }
    for rank in (1, RANK):
        found = product(run_of(fp.Aggregation("product", ranks=[rank]), **one).params)
        largest = np.linalg.svd(found, compute_uv=False)[0]
        assert np.linalg.matrix_rank(found, tol=1e-5 * largest) == rank


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        ([2, 2], "aggregation.ranks has 2 ranks; there are 6 clients"),
        ([2, 2, 3, 1, 1, 1], "aggregation.ranks: 3; the model's adapters have rank 2"),
        ([2, 2, 0, 1, 1, 1], r"aggregation\.ranks\[2\] = 0"),
    ],
)
def test_wrong_ranks_are_refused(ranks: list[int], line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        run_of(fp.Aggregation("product", ranks=ranks))


def test_ranks_are_for_products() -> None:
    with pytest.raises(fp.InputError, match=r"aggregation\.ranks: they are for rule"):
        fp.Aggregation(ranks=[1])
