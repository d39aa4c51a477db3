"""The mean of adapters' products beside dense matrices, and runs that take it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.parts.robust import mean_product

FEDERATION = fp.datasets.synthetic(clients=4)
MODEL = fp.models.logistic(FEDERATION)
ADAPTED = fp.lora(MODEL, MODEL.init(jax.random.key(0)), rank=2, alpha=2.0, trained=["dense.bias"])
PRODUCT = fp.Aggregation("product")


def factors(n: int, rows: int, rank: int, columns: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "w.A": rng.normal(size=(n, rows, rank)).astype(np.float32),
        "w.B": rng.normal(size=(n, rank, columns)).astype(np.float32),
        "bias": rng.normal(size=(n, columns)).astype(np.float32),
    }


@pytest.mark.parametrize("shape", [(1, 7, 2, 5), (3, 9, 2, 4), (5, 4, 3, 11), (6, 30, 1, 20)])
def test_the_product_is_the_best_approximation_of_the_mean(shape: tuple[int, ...]) -> None:
    sent, rank = factors(*shape), shape[2]
    weights = np.arange(1.0, 1 + shape[0], dtype=np.float32)
    share = weights / weights.sum()
    found = jax.jit(mean_product)(sent, np.ones(shape[0], bool), weights)
    mean = np.einsum("n,nir,nrj->ij", share, sent["w.A"], sent["w.B"])
    u, values, v = np.linalg.svd(mean, full_matrices=False)
    best = (u[:, :rank] * values[:rank]) @ v[:rank]
    np.testing.assert_allclose(found["w.A"] @ found["w.B"], best, atol=1e-5)
    np.testing.assert_allclose(found["bias"], share @ sent["bias"], atol=1e-6)
    assert found["w.A"].shape == sent["w.A"].shape[1:]
    size = np.sqrt(share @ (sent["w.A"] ** 2).sum(axis=(1, 2)))
    assert float(jnp.linalg.norm(found["w.A"])) == pytest.approx(size, rel=1e-5)
    if shape[0] > 1:  # the product of the means is another matrix
        of_means = np.tensordot(share, sent["w.A"], 1) @ np.tensordot(share, sent["w.B"], 1)
        assert np.linalg.norm(of_means - mean) > 1.05 * np.linalg.norm(best - mean)


def test_a_mean_of_low_rank_is_exact_where_that_of_factors_is_not() -> None:
    """Two clients with the same product, in factors of opposite sign, whose mean is zero."""
    one = factors(1, 6, 2, 5)
    sent = {name: np.concatenate([leaf, -leaf]) for name, leaf in one.items()}
    found = mean_product(sent, jnp.ones(2, bool), jnp.ones(2))
    np.testing.assert_allclose(
        found["w.A"] @ found["w.B"], one["w.A"][0] @ one["w.B"][0], atol=1e-5
    )
    assert np.tensordot([0.5, 0.5], sent["w.A"], 1).max() == 0


def test_what_does_not_count_changes_nothing() -> None:
    sent, counts = factors(3, 6, 2, 5), jnp.array([True, False, True])
    weights = jnp.array([1.0, 5.0, 2.0])
    bad = {name: leaf.copy() for name, leaf in sent.items()}
    for leaf in bad.values():
        leaf[1] = np.nan
    here, there = (mean_product(each, counts, weights) for each in (sent, bad))
    jax.tree.map(np.testing.assert_array_equal, here, there)
    kept = {name: leaf[[0, 2]] for name, leaf in sent.items()}
    alone = mean_product(kept, jnp.ones(2, bool), weights[counts])
    np.testing.assert_allclose(
        here["w.A"] @ here["w.B"], alone["w.A"] @ alone["w.B"], rtol=1e-4, atol=1e-5
    )


def test_factors_keep_their_rank_where_products_are_zero() -> None:
    sent = factors(3, 6, 2, 5)
    sent["w.B"] = np.zeros_like(sent["w.B"])
    found = mean_product(sent, jnp.ones(3, bool), jnp.ones(3))
    np.testing.assert_allclose(found["w.B"], 0, atol=1e-12)
    assert np.linalg.matrix_rank(found["w.A"]) == 2


def run_of(
    aggregation: fp.Aggregation, federation: fp.Federation = FEDERATION, **options: Any
) -> fp.Run:
    given: dict[str, Any] = {
        "methods": fp.fedavg(),
        "solver": fp.Solver(0.05, 10, steps=5),
        "cohort": fp.Cohort(4),
        "rounds": 3,
        "evaluation": fp.Evaluation(gradients=False),
        "aggregation": aggregation,
        "progress": False,
        **options,
    }
    (run,) = fp.simulate(federation, ADAPTED, **given)
    return run


@pytest.mark.filterwarnings("ignore:all training labels")
def test_a_round_takes_the_mean_of_the_clients_products() -> None:
    first = ADAPTED.init(jax.random.key(7))
    start = first | {"dense.weight.B": jnp.ones((2, 60)) / 10}
    step = {"solver": fp.Solver(0.05, "all", steps=1), "rounds": 1, "initial": start}
    clients = [FEDERATION.of_clients(np.array([k])) for k in range(4)]
    alone = [run_of(fp.Aggregation(), each, cohort=fp.Cohort(1), **step).params for each in clients]
    share = FEDERATION.train.sizes / FEDERATION.train.sizes.sum()
    mean = sum(p * _product(each) for p, each in zip(share, alone, strict=True))
    u, values, v = np.linalg.svd(mean, full_matrices=False)
    together = run_of(PRODUCT, **step).params
    np.testing.assert_allclose(_product(together), (u[:, :2] * values[:2]) @ v[:2], atol=2e-5)
    bias = sum(p * each["dense.bias"] for p, each in zip(share, alone, strict=True))
    np.testing.assert_allclose(together["dense.bias"], bias, atol=1e-6)
    factors = run_of(fp.Aggregation(), **step).params
    assert np.abs(_product(factors) - mean).max() > 1e-3


def at_rank(params: Any, rank: int) -> Any:
    a, b = params["dense.weight.A"], params["dense.weight.B"]
    return params | {"dense.weight.A": a.at[:, rank:].set(0), "dense.weight.B": b.at[rank:].set(0)}


@pytest.mark.filterwarnings("ignore:all training labels")
@pytest.mark.parametrize("method", [fp.fedavg(), fp.fedprox(mu=0.5)], ids=["fedavg", "fedprox"])
def test_clients_of_other_ranks_train_the_leading_part(method: fp.Algorithm) -> None:
    start = ADAPTED.init(jax.random.key(7)) | {"dense.weight.B": jnp.ones((2, 60)) / 10}
    steps: dict[str, Any] = {
        "solver": fp.Solver(0.05, "all", steps=2),
        "rounds": 1,
        "methods": method,
    }
    clients, ranks = [FEDERATION.of_clients(np.array([k])) for k in range(4)], (1, 2, 2, 1)
    alone = [
        run_of(
            fp.Aggregation(), each, cohort=fp.Cohort(1), initial=at_rank(start, rank), **steps
        ).params
        for each, rank in zip(clients, ranks, strict=True)
    ]
    assert not alone[0]["dense.weight.A"][:, 1].any()
    share = FEDERATION.train.sizes / FEDERATION.train.sizes.sum()
    mean = sum(p * _product(each) for p, each in zip(share, alone, strict=True))
    u, values, v = np.linalg.svd(mean, full_matrices=False)
    together = run_of(fp.Aggregation("product", ranks=ranks), initial=start, **steps).params
    np.testing.assert_allclose(_product(together), (u[:, :2] * values[:2]) @ v[:2], atol=2e-5)
    bias = sum(p * each["dense.bias"] for p, each in zip(share, alone, strict=True))
    np.testing.assert_allclose(together["dense.bias"], bias, atol=1e-6)
    # the first column alone is the best approximation of rank 1
    first = together["dense.weight.A"][:, :1] @ together["dense.weight.B"][:1]
    np.testing.assert_allclose(first, (u[:, :1] * values[:1]) @ v[:1], atol=2e-5)


def shaken(learning_rate: Any) -> optax.GradientTransformation:
    """An optimizer that moves all parameters, whatever their gradients are."""

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda g: -learning_rate * (g + 0.3), gradient), state

    return optax.GradientTransformation(lambda _: (), update)


@pytest.mark.filterwarnings("ignore:all training labels")
@pytest.mark.parametrize(
    "options",
    [
        {"privacy": fp.Privacy(1.0, noise_multiplier=0.5, unit="example")},
        {"solver": fp.Solver(0.05, 10, steps=3, optimizer=shaken)},
        {"solver": fp.Solver(0.05, 10, steps=3, optimizer=optax.adamw, weight_decay=0.1)},
        {"solver": fp.Solver(0.05, "all", epochs=2, optimizer=fp.line_search_descent)},
        {"methods": fp.fedprox(mu=0.5), "solver": fp.Solver(0.05, 10, steps=3, optimizer=shaken)},
    ],
    ids=["private", "shaken", "adamw", "line search", "fedprox"],
)
def test_nothing_enters_what_is_beyond_a_clients_rank(options: dict[str, Any]) -> None:
    """Also not the noise of private steps, of which the client's own numbers have theirs."""
    start = ADAPTED.init(jax.random.key(7)) | {"dense.weight.B": jnp.ones((2, 60)) / 10}
    first = FEDERATION.of_clients(np.array([0]))
    given = {"cohort": fp.Cohort(1), "rounds": 1, "initial": start, **options}
    for rank in (1, 2):
        found = _product(run_of(fp.Aggregation("product", ranks=[rank]), first, **given).params)
        largest = np.linalg.svd(found, compute_uv=False)[0]
        assert np.linalg.matrix_rank(found, tol=1e-5 * largest) == rank


def test_ranks_that_are_all_the_models_change_nothing() -> None:
    same, plain = run_of(fp.Aggregation("product", ranks=[2] * 4)), run_of(PRODUCT)
    jax.tree.map(np.testing.assert_array_equal, same.params, plain.params)


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        ([2, 2], "aggregation.ranks has 2 ranks; there are 4 clients"),
        ([2, 2, 3, 1], "aggregation.ranks: 3; the model's adapters have rank 2"),
        ([2, 2, 0, 1], r"aggregation\.ranks\[2\] = 0"),
    ],
)
def test_wrong_ranks_are_refused(ranks: list[int], line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        run_of(fp.Aggregation("product", ranks=ranks))


def test_ranks_are_for_products() -> None:
    with pytest.raises(fp.InputError, match=r"aggregation\.ranks: they are for rule"):
        fp.Aggregation(ranks=[1])


def _product(params: Any) -> Any:
    return np.asarray(params["dense.weight.A"]) @ np.asarray(params["dense.weight.B"])


def test_with_one_client_both_means_are_that_clients_model() -> None:
    rules = PRODUCT, fp.Aggregation()
    product, plain = (run_of(each, cohort=fp.Cohort(1), rounds=2) for each in rules)
    for a, b in zip(product.history[:2], plain.history[:2], strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-4)


def test_products_are_trained_with_a_sweep_and_screening() -> None:
    (first, second) = fp.simulate(
        FEDERATION,
        ADAPTED,
        fp.fedprox(mu=[0.0, 1.0]),
        solver=fp.Solver(0.02, 10, steps=5),
        cohort=fp.Cohort(3),
        rounds=2,
        faults=fp.Faults("drop", norm=5.0),
        aggregation=PRODUCT,
        progress=False,
    )
    assert first.final.train_loss < first.history[0].train_loss
    assert first.final.train_loss != second.final.train_loss


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"methods": fp.scaffold()}, r"scaffold: its clients do not send w_k - w\^t alone"),
        (
            {"methods": fp.fedopt(optax.adam, server_learning_rate=0.1)},
            "fedopt: its server does not",
        ),
        ({"compression": fp.Compression("sign")}, "compression does not go with aggregation.rule"),
        (
            {"faults": fp.Faults("clip")},
            'faults.policy = "clip" does not go with aggregation.rule = "product"',
        ),
        (
            {"evaluation": fp.Evaluation(model="cohort")},
            'evaluation.model = "cohort" does not go .*; it must be "server"',
        ),
    ],
)
def test_what_products_do_not_fit_is_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        run_of(PRODUCT, **options)


def test_products_need_adapters() -> None:
    with pytest.raises(fp.InputError, match=r"a model without adapters .* use fedprox\.lora"):
        fp.simulate(
            FEDERATION,
            MODEL,
            fp.fedavg(),
            solver=fp.Solver(0.05, 10, steps=5),
            cohort=fp.Cohort(2),
            rounds=1,
            aggregation=PRODUCT,
        )
