"""Runs over a base: each node has the frozen values, and nothing of them travels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.network import Parcel
from fedprox.deployment.node_file import read_node_file
from fedprox.deployment.policy import Policy
from fedprox.experiment import parse, resolve
from tests.deployment.federations import apart, deployed, nodes_of, simulated, table_of

MODEL = {"name": "mlp", "hidden": [6]}
SLOW = {"learning_rate": 0.002}
LORA = {"lora": {"rank": 2, "alpha": 2.0, "targets": ["layers.0"], "trained": ["layers.1"]}}


def table_with(path: Path, **model: Any) -> dict[str, Any]:
    """An experiment whose model has a base in a file, which is written if it is not there."""
    plain = table_of(
        {"name": "scaffold"},
        rounds=2,
        model=MODEL,
        solver=SLOW,
        cohort={"clients_per_round": 4},
        evaluation={"gradients": False},
    )
    if not path.exists():
        whole = resolve(parse("test", plain)).model
        fp.save_model(path, whole.init(jax.random.key(5)))
    return plain | {"model": MODEL | model, "initial": str(path)}


@pytest.mark.parametrize(
    "model",
    [LORA, pytest.param({"frozen": ["layers.0"]}, marks=pytest.mark.slow)],
    ids=["lora", "frozen"],
)
def test_a_deployment_over_a_base_equals_the_simulation(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    file = tmp_path / "base.safetensors"
    table, traffic = table_with(file, **model), b""

    def heard(answer: Callable[[Parcel], Parcel]) -> Callable[[Parcel], Parcel]:
        def heard_answer(parcel: Parcel) -> Parcel:
            nonlocal traffic
            answered = answer(parcel)
            traffic += parcel.head + parcel.body + answered.head + answered.body
            return answered

        return heard_answer

    nodes = nodes_of(table, tmp_path, policy=Policy(base=str(file)))
    (run,) = deployed(table, [heard(node.answer) for node in nodes])
    (other,) = simulated(table)
    assert apart(run.params, other.params) < 1e-5
    assert run.params.keys() == other.params.keys()
    frozen = fp.load_model(file)["layers"][0]
    for row in frozen["weight"][:, :4]:
        assert row.tobytes() not in traffic
    for leaf in run.params.values():  # what was trained travels as it is
        assert np.asarray(leaf).tobytes() in traffic


def products_of(file: Path, **sections: Any) -> dict[str, Any]:
    """An experiment whose server averages the products of adapters."""
    table = table_with(file, **LORA) | {"aggregation": {"rule": "product"}}
    return table | {"method": [{"name": "fedprox", "mu": 0.1}]} | sections


def test_products_of_nodes_are_those_of_the_simulation(tmp_path: Path) -> None:
    """With a client each, of as many rows, so that nodes share a program."""
    file = tmp_path / "base.safetensors"
    table = products_of(file, client_rows=30)
    nodes = nodes_of(table, tmp_path, 4, policy=Policy(base=str(file)))
    (run,) = deployed(table, [node.answer for node in nodes])
    (other,) = simulated(table)
    whole = resolve(parse("test", table)).model.whole
    assert apart(whole(run.params), whole(other.params)) < 1e-5  # the factors' signs may differ


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:all training labels")
def test_a_node_with_several_clients_sends_the_best_approximation(tmp_path: Path) -> None:
    """Of its mean product."""
    file = tmp_path / "base.safetensors"
    solver = {"learning_rate": 0.01, "batch_size": "all", "epochs": 2}
    table = products_of(file, rounds=1, solver=solver)
    nodes = nodes_of(table, tmp_path, policy=Policy(base=str(file)))
    (together,) = deployed(table, [node.answer for node in nodes])
    resolved = resolve(parse("test", table))
    alone = [
        fp.simulate(
            node.federation,
            resolved.model,
            fp.fedprox(mu=0.1),
            solver=resolved.solver,
            cohort=fp.Cohort(2),
            rounds=1,
            aggregation=fp.Aggregation("product"),
            evaluation=resolved.evaluation,
            progress=False,
        )[0].params
        for node in nodes
    ]
    rows = np.array([len(node.federation.train) for node in nodes])
    mean = np.tensordot(rows / rows.sum(), list(map(_product, alone)), axes=1)
    u, values, v = np.linalg.svd(mean, full_matrices=False)
    best = (u[:, :2] * values[:2]) @ v[:2]
    np.testing.assert_allclose(_product(together.params), best, atol=1e-5)


def _product(params: Any) -> Any:
    return np.asarray(params["layers.0.weight.A"]) @ np.asarray(params["layers.0.weight.B"])


@pytest.mark.parametrize(
    ("own", "line"),
    [
        (None, "the run freezes values; the node's policy names no base"),
        ("other.safetensors", r"policy.base: its frozen values have the digest [0-9a-f]{64}, the"),
        ("missing.safetensors", "missing.safetensors: no such file"),
    ],
)
def test_a_node_without_the_base_is_refused(tmp_path: Path, own: str | None, line: str) -> None:
    table = table_with(tmp_path / "base.safetensors", **LORA)
    params = fp.load_model(tmp_path / "base.safetensors")
    params["layers"][0]["bias"] = params["layers"][0]["bias"] + 1
    fp.save_model(tmp_path / "other.safetensors", params)
    policy = Policy(base=None if own is None else str(tmp_path / own))
    nodes = nodes_of(table, tmp_path, policy=policy)
    with pytest.raises(fp.InputError, match=line):
        deployed(table, [node.answer for node in nodes])


def test_other_values_of_trained_parts_are_no_other_base(tmp_path: Path) -> None:
    table = table_with(tmp_path / "base.safetensors", **LORA)
    params = fp.load_model(tmp_path / "base.safetensors")
    params["layers"][1]["bias"] = params["layers"][1]["bias"] + 1
    fp.save_model(tmp_path / "head.safetensors", params)
    nodes = nodes_of(table, tmp_path, policy=Policy(base=str(tmp_path / "head.safetensors")))
    (run,) = deployed(table, [node.answer for node in nodes])
    (other,) = simulated(table)
    assert apart(run.params, other.params) < 1e-5


def test_the_file_of_a_base_is_beside_that_of_the_node(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'name = "a"\nsuperlink = "x:1"\nca_certificate = "ca.pem"\nkey = "k"\nfolder = "state"\n'
        '[data]\nname = "synthetic"\n[policy]\nbase = "base.safetensors"\n'
    )
    assert read_node_file(file).policy.base == str(tmp_path / "base.safetensors")
