"""The files and commands that the pages on deployments print work as printed."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from fedprox import cli
from fedprox.deployment.audit import checked_lines
from fedprox.deployment.certificates import make_node_key, node_file
from fedprox.deployment.node_file import load_node, read_node_file
from fedprox.deployment.policy import Policy
from fedprox.experiment import DEPLOYED, parse, read_experiment
from fedprox.files.toml import parse_toml
from tests.deployment.federations import deployed

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


def test_the_files_of_the_pages_work_as_printed(folder: Path) -> None:
    (function,) = (each for each in blocks("node-data.md", "toml") if "hospital:load" in each)
    data, experiment = blocks("deploy.md", "toml")
    policy, private, of_private, rows, of_rows, exact, *of_sums = blocks("security.md", "toml")
    secure, peers, hidden = of_sums
    names = ["hospital-a", "hospital-b", "hospital-c"]
    file = folder / "node.toml"

    written = node_file(names[0], "fl.example.org:9092")
    assert parse_toml(written)["data"] == parse_toml(data)["data"]
    node = written.partition("[data]")[0]
    file.write_text(node + function + policy)
    held = load_node(read_node_file(file))
    assert held.name == names[0]
    assert str(held.federation).startswith("Federation: 1 client, 320 training rows")
    assert list(held.federation.names) == names[:1]

    file.write_text(experiment)
    read = read_experiment(file, (), {"data": {"name": DEPLOYED}})
    assert read.deployment.names == names
    (method,) = read.method
    assert method["name"] in held.policy.methods
    assert read.model["name"] in held.policy.models

    def policy_of(given: str) -> Policy:
        file.write_text(node + function + given)
        return read_node_file(file).policy

    deployed = {"data": {"name": DEPLOYED}}
    for of_run, of_node, unit in ((private, of_private, "client"), (rows, of_rows, "example")):
        read = parse("page", {**parse_toml(experiment), **deployed, **parse_toml(of_run)})
        assert dict(read.privacy).get("unit", "client") == unit
        privacy = policy_of(of_node).privacy
        assert privacy is not None
        assert privacy.unit == unit

    privacy = policy_of(exact).privacy
    assert privacy is not None
    assert privacy.exact_measures

    securing = parse(
        "page", {**parse_toml(experiment), **deployed, **parse_toml(secure)}
    ).deployment
    both = parse("page", {**parse_toml(experiment), **deployed, **parse_toml(hidden)})
    assert both.privacy is not None
    assert both.deployment.secure is not None
    assert both.deployment.secure.honest == 2

    known_to = policy_of(peers).secure
    assert known_to is not None
    assert securing.secure is not None
    assert known_to.threshold == securing.secure.threshold
    others = securing.names[1:]
    assert known_to.peers == {name: str(folder / f"{name}.pub") for name in others}


def commands(page: str) -> list[str]:
    """The commands of a page, without comments."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0].strip() for line in lines]


def test_the_first_federation_takes_ten_commands() -> None:
    text = (PAGES / "deploy.md").read_text(encoding="utf-8")
    steps, alone = commands("deploy.md")[:-1], commands("deploy.md")[-1]
    assert len(steps) == 10
    assert "--local" in alone
    assert len(text.split()) <= 1200


@pytest.mark.slow
def test_the_pilot_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, of_node = map(parse_toml, blocks("pilot.md", "toml"))
    names = experiment["deployment"]["names"]
    nodes = []
    for name in names:
        make_node_key(tmp_path / name)
    monkeypatch.setattr(sys, "argv", ["patients.py", str(tmp_path)])
    runpy.run_path(str(PAGES.parents[1] / "deploy" / "patients.py"), run_name="__main__")
    for name in names:
        own = tmp_path / name
        of_node["policy"]["secure"]["peers"] = {
            each: str(tmp_path / each / "node.key.pub") for each in names if each != name
        }
        written = parse_toml(node_file(name, "localhost:9092")) | of_node
        (own / "node.toml").write_text(tomli_w.dumps(written))
        monkeypatch.chdir(own)
        nodes.append(load_node(read_node_file(Path("node.toml"))))
    (run,) = deployed(experiment | {"data": {"name": DEPLOYED}}, [each.answer for each in nodes])
    assert run.final.round == 20
    assert 1.9 < run.final.value("epsilon") <= 2.0
    assert len(run.history) == 2
    for record in run.history:
        assert np.isfinite([record.value("train_loss"), record.value("test_accuracy")]).all()
    for name in names:
        asked = [each.line["kind"] for each in checked_lines(tmp_path / name / "state")]
        assert (asked.count("train"), asked.count("evaluate")) == (20, 2)


@pytest.mark.parametrize("page", ["deploy.md", "security.md", "operation.md"])
def test_the_commands_of_the_pages_have_their_options(page: str) -> None:
    found = [each.partition("fedprox ")[2] for each in commands(page) if "fedprox " in each]
    called = [shlex.split(each) for each in found if each.split()[0] in cli.COMMANDS]
    assert len(called) > (0 if page == "security.md" else 3)
    for name, *arguments in called:
        context = cli.command_of(name).make_context(name, arguments)
        assert context.params
