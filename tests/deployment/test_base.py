"""Runs over a base: each node has the frozen values, and nothing of them travels."""

import shutil
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
from tests.deployment.federations import (
    apart,
    deployed,
    nodes_of,
    overheard,
    simulated,
    table_of,
)
from tests.variants import mostly_slow

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


def with_another_bias(file: Path, layer: int) -> str:
    """The file of a base in which one layer has other values."""
    params = fp.load_model(file)
    params["layers"][layer]["bias"] = params["layers"][layer]["bias"] + 1
    fp.save_model(file.with_name("other.safetensors"), params)
    return str(file.with_name("other.safetensors"))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "products": (LORA, {"name": "fedprox", "mu": 0.1}, "product"),
    "adapters": (LORA, {"name": "scaffold"}, "mean"),
    "frozen": ({"frozen": ["layers.0"]}, {"name": "scaffold"}, "mean"),
}
"""A model over a base, a method, and what the server makes of messages."""


def table_of_case(name: str, file: Path) -> dict[str, Any]:
    model, method, rule = CASES[name]
    return table_with(file, **model) | {"method": [method], "aggregation": {"rule": rule}}


@pytest.mark.parametrize("name", mostly_slow(CASES))
def test_a_deployment_over_a_base_equals_the_simulation(name: str, tmp_path: Path) -> None:
    """With a client on each node, of as many rows, so that nodes share a program.

    Other values of what is trained are no other base.
    """
    file, traffic = tmp_path / "base.safetensors", bytearray()
    table = table_of_case(name, file) | {"client_rows": 30}
    table |= {"data": table["data"] | {"clients": 2}, "cohort": {"clients_per_round": 2}}
    nodes = nodes_of(table, tmp_path, policy=Policy(base=with_another_bias(file, 1)))

    def hear(*both: Parcel) -> None:
        traffic.extend(b"".join(each.head + each.body for each in both))

    (run,) = deployed(table, [overheard(node.answer, hear) for node in nodes])
    (other,) = simulated(table)
    assert run.params.keys() == other.params.keys()
    whole = resolve(parse("test", table)).model.whole
    assert apart(whole(run.params), whole(other.params)) < 1e-5  # factors' signs may differ
    frozen = fp.load_model(file)["layers"][0]
    for row in frozen["weight"][:, :4]:
        assert row.tobytes() not in traffic
    for leaf in run.params.values():  # what was trained travels as it is
        assert np.asarray(leaf).tobytes() in traffic
    # nor does a node that has served this run take part in one over another base
    (tmp_path / "another").mkdir()
    another = shutil.copy(file, tmp_path / "another")
    over_another = table | {"initial": with_another_bias(Path(another), 0)}
    with pytest.raises(fp.InputError, match=r"policy.base: its frozen values have the digest"):
        deployed(over_another, [node.answer for node in nodes])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:all training labels")
def test_a_node_with_several_clients_sends_the_best_approximation(tmp_path: Path) -> None:
    """Of its mean product."""
    file = tmp_path / "base.safetensors"
    solver = {"learning_rate": 0.01, "batch_size": "all", "epochs": 2}
    table = table_of_case("products", file) | {"rounds": 1, "solver": solver}
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
            evaluation=fp.Evaluation(gradients=False),
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
        ("missing.safetensors", "missing.safetensors: no such run directory or file"),
    ],
)
def test_a_node_without_the_base_is_refused(tmp_path: Path, own: str | None, line: str) -> None:
    table = table_with(tmp_path / "base.safetensors", **LORA)
    with_another_bias(tmp_path / "base.safetensors", 0)
    policy = Policy(base=None if own is None else str(tmp_path / own))
    nodes = nodes_of(table, tmp_path, policy=policy)
    with pytest.raises(fp.InputError, match=line):
        deployed(table, [node.answer for node in nodes])


def test_the_file_of_a_base_is_beside_that_of_the_node(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'name = "a"\nsuperlink = "x:1"\nca_certificate = "ca.pem"\nkey = "k"\nfolder = "state"\n'
        '[data]\nname = "synthetic"\n[policy]\nbase = "base.safetensors"\n'
    )
    assert read_node_file(file).policy.base == str(tmp_path / "base.safetensors")
