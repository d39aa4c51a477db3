"""The files that the page on deployments prints work as printed."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedprox.deployment.node_file import load_node, read_node_file, read_superlink_file
from fedprox.experiment import DEPLOYED, parse, read_experiment
from fedprox.files.toml import parse_toml

PAGES = Path(__file__).parents[2] / "docs" / "howto"


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's folder with the page's function and some patients, where the node runs."""
    function = next(each for each in blocks("node-data.md", "python") if "def load(" in each)
    (tmp_path / "hospital.py").write_text(function)
    rows = np.random.default_rng(0).normal(size=(400, 4)).round(3)
    label = (rows.sum(axis=1) > 0).astype(int)
    table = np.column_stack([rows, label])
    np.savetxt(tmp_path / "patients.csv", table, delimiter=",", header="a,b,c,d,ill")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "hospital", raising=False)
    return tmp_path


def test_the_files_of_the_page_work_as_printed(folder: Path) -> None:
    page = blocks("deploy.md", "toml")
    node, superlink, experiment, private, policy, rows, of_rows, exact, *of_sums = page
    secure, peers, hidden = of_sums
    names = ["hospital-a", "hospital-b"]
    file = folder / "file.toml"

    file.write_text(node)
    held = load_node(read_node_file(file))
    assert held.name == names[0]
    assert str(held.federation).startswith("Federation: 1 client, 320 training rows")
    assert list(held.federation.names) == names[:1]

    file.write_text(superlink)
    known = read_superlink_file(file)
    assert known.keys == {name: str(folder / f"{name}.pub") for name in names}

    file.write_text(experiment)
    read = read_experiment(file, (), {"data": {"name": DEPLOYED}})
    assert read.deployment.names == names
    (method,) = read.method
    assert method["name"] in held.policy.methods
    assert read.model["name"] in held.policy.models

    data = {"data": {"name": DEPLOYED}}
    without_policy = node.replace("[policy]", "[rest]").split("[rest]")[0]
    for of_run, of_node, unit in ((private, policy, "client"), (rows, of_rows, "example")):
        read = parse("page", {**parse_toml(experiment), **data, **parse_toml(of_run)})
        assert dict(read.privacy).get("unit", "client") == unit
        file.write_text(without_policy + of_node)
        policy_read = read_node_file(file).policy
        assert policy_read.privacy is not None
        assert policy_read.privacy.unit == unit

    file.write_text(without_policy + exact)
    privacy = read_node_file(file).policy.privacy
    assert privacy is not None
    assert privacy.exact_measures

    securing = parse("page", {**parse_toml(experiment), **data, **parse_toml(secure)}).deployment
    both = parse("page", {**parse_toml(experiment), **data, **parse_toml(hidden)})
    assert both.privacy is not None
    assert both.deployment.secure is not None
    assert both.deployment.secure.honest == 2

    file.write_text(without_policy + peers)
    known_to = read_node_file(file).policy.secure
    assert known_to is not None
    assert securing.secure is not None
    assert known_to.threshold == securing.secure.threshold
    others = securing.names[1:]
    assert known_to.peers == {name: str(folder / f"{name}.pub") for name in others}
