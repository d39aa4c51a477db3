"""The commands `deploy` and `node`: what they refuse, and what they leave alone."""

import importlib.metadata
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from fedprox import InputError, cli
from fedprox.commands import deployment
from fedprox.deployment import trial
from fedprox.deployment.coordinator import Ledger, read_ledger
from fedprox.deployment.flower import require_flower
from fedprox.deployment.network import Network
from fedprox.deployment.node import Node
from fedprox.deployment.node_file import load_node, read_node_file, read_superlink_file
from fedprox.deployment.trial import check_allowed
from fedprox.deployment.wire import Answer, parcel_of
from fedprox.errors import installing
from fedprox.experiment import parse, read_experiment, resolve
from fedprox.experiment.sections import DEPLOYED
from fedprox.files.whole import holder, locked
from tests.deployment.conftest import Fresh
from tests.deployment.federations import FEDPROX, deployed, in_memory, table_of
from tests.test_cli import status

NODE: dict[str, Any] = {
    "name": "a",
    "superlink": "localhost:9092",
    "ca_certificate": "ca.pem",
    "key": "node.key",
    "folder": "state",
    "data": {"name": "synthetic", "clients": 5},
}


def refusal(*arguments: str) -> str:
    """The message with which a command refuses its arguments."""
    result = CliRunner().invoke(cli.app, list(arguments), standalone_mode=False)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def node_file(folder: Path, **changes: Any) -> Path:
    """A node's file; a change to None leaves a key out."""
    table = {key: value for key, value in {**NODE, **changes}.items() if value is not None}
    path = folder / "node.toml"
    path.write_text(tomli_w.dumps(table))
    return path


@pytest.mark.parametrize("options", [[], ["--local", "2", "--superlink", "superlink.toml"]])
def test_deploy_needs_one_kind_of_federation(options: list[str], tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(table_of(FEDPROX)))
    assert refusal("deploy", str(file), *options).startswith("give one of --local N")


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"model": {"name": "mine:build"}}, ["--allow", "mine:other"], "the nodes would refuse mo"),
        (
            {"solver": {"learning_rate": {"schedule": "mine:rate"}, "batch_size": 1, "steps": 1}},
            [],
            "the nodes would refuse solver 'mine:rate'; a node runs the solvers of its library",
        ),
        ({"cohort": {"clients_per_round": 0}}, [], "cohort.clients_per_round = 0; it must be"),
        ({"method": [{"name": "centralised"}]}, [], "centralised: it has all rows in one place, s"),
        ({"evaluation": {"by_client": True}}, [], "evaluation.by_client = True does not go with a"),
        ({"attack": {"kind": "sign-flip", "share": 0.2}}, [], "attack does not go with a deployme"),
    ],
)
def test_what_nodes_would_refuse_is_refused_before_they_start(
    changes: dict[str, Any], options: list[str], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(table_of(FEDPROX) | changes))
    said = refusal("deploy", str(file), "--local", "2", *options)
    assert said.startswith(message)
    assert said.endswith("; try it with --allow mine:build") == ("model" in changes)


def test_names_are_allowed_in_a_trial_only(tmp_path: Path) -> None:
    check_allowed(
        parse("own", table_of(FEDPROX) | {"model": {"name": "mine:build"}}), ["mine:build"]
    )
    options = ["--superlink", str(tmp_path / "s.toml"), "--allow", "mine:build"]
    said = refusal("deploy", str(tmp_path / "none.toml"), *options)
    assert said.startswith("--allow: only with --local; ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, "the key 'name' is missing"),
        ({"keys": "a"}, "unknown key 'keys'; did you mean 'key'?"),
        ({"policy": {"reports": ["loss"]}}, "policy: unknown key 'reports'; did you mean 'report'"),
        ({"policy": {"report": ["rows"]}}, "policy.report"),
        ({"data": {"name": "unheard-of"}}, "data.name = 'unheard-of'"),
        ({"data": {"name": "deployment"}}, "the data are on the nodes of a deployment"),
        ({"deal": {"part": 3, "parts": 3}}, "deal.part = 3; it must be a whole number from 0 to 2"),
        ({"deal": {"part": 0, "parts": 9}}, "deal.parts = 9"),
        ({"policy": {"fewest_rows": 10**6}}, "no client has so many training rows"),
    ],
)
def test_a_node_file_that_makes_no_sense_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as refused:
        load_node(read_node_file(node_file(tmp_path, **changes)))
    assert message in str(refused.value)


def test_a_node_reads_nothing_of_its_folder_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that ends meanwhile still writes what is spent."""
    folder, loaded = tmp_path / "state", []

    def load(*_: Any) -> Any:
        assert holder(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        loaded.append(folder)
        raise InputError("its data are missing")

    monkeypatch.setattr(deployment, "set_up_jax", lambda *_: None)
    monkeypatch.setattr(deployment, "load_node", load)
    file = str(node_file(tmp_path))
    assert refusal("node", file) == "its data are missing"
    assert not folder.exists()
    with locked(folder):
        assert refusal("node", file).startswith(f"{folder} is being written by process ")
    assert loaded == [folder]


def test_a_deployment_reads_nothing_of_its_folder_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that ends meanwhile still counts what is released."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "experiment.toml").write_text(tomli_w.dumps(table_of(FEDPROX)))
    read = []

    def ledger(folder: Path) -> Any:
        assert holder(folder)
        read.append(folder)
        raise InputError("so far")

    monkeypatch.setattr(deployment, "use_compilation_cache", lambda _: None)
    monkeypatch.setattr(deployment, "read_ledger", ledger)
    resume = ("deploy", "--resume", str(out), "--local", "2")
    assert refusal(*resume) == "so far"
    with locked(out):
        assert refusal(*resume).startswith(f"{out} is being written by process ")
        fresh = ("deploy", str(out / "experiment.toml"), "--local", "2", "--out", str(out))
        assert refusal(*fresh).startswith(f"{out} is being written by process ")
    assert read == [out]
    assert {path.name for path in out.iterdir()} == {"experiment.toml"}


@pytest.mark.slow
def test_a_resumed_deployment_prints_the_earlier_rounds_in_one_line(
    fresh: Fresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sites = fresh(tmp_path / "sites")

    @contextmanager
    def network(*_: Any) -> Iterator[Network]:
        yield in_memory([site.answer for site in sites])

    monkeypatch.setattr(deployment, "use_compilation_cache", lambda _: None)
    monkeypatch.setattr(deployment, "_network", network)
    file, out = tmp_path / "experiment.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps(table_of(FEDPROX, rounds=2)))
    begin = "fedprox mu=0.5, seed 0, round "

    def rounds(*options: object) -> list[str]:
        assert status("deploy", *options, "--local", 2) == 0
        printed = capsys.readouterr().out.splitlines()
        return [line.partition(":")[0] for line in printed if begin in line]

    assert rounds(file, "--out", out) == [f"{begin}0", f"{begin}2"]
    again = rounds("--resume", out, "--set", "rounds=4")
    assert again == [f"goes on after {begin}2", f"{begin}4"]


def test_a_resumed_trial_has_the_data_of_its_nodes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored experiment does not say where the data came from."""
    pytest.importorskip("cryptography")
    network = in_memory([])

    @contextmanager
    def superlink(folder: Path) -> Iterator[trial.LocalSuperLink]:
        yield trial.LocalSuperLink("127.0.0.1:1", folder / "ca.pem", folder / "s", lambda _: 0)

    monkeypatch.setattr(trial, "local_superlink", superlink)
    monkeypatch.setattr(trial, "running", nullcontext)
    monkeypatch.setattr(trial, "operator_network", lambda *_: nullcontext(network))
    files = [tmp_path / f"node-{i}" / "node.toml" for i in (1, 2)]

    def nodes_files(table: dict[str, Any], nodes: int) -> list[str]:
        with trial.local_nodes(parse("test", table), nodes, tmp_path):
            return [file.read_text() for file in files]

    table = table_of(FEDPROX, client_rows=7)
    begun = nodes_files(table, 2)
    assert [read_node_file(file).data for file in files] == [table["data"]] * 2
    resumed = {**table, "data": {"name": DEPLOYED, "nodes": 2, "training_rows": {}}}
    del resumed["client_rows"]
    assert nodes_files(resumed, 2) == begun
    missing = tmp_path / "node-3/node.toml"
    line = f"--local: {missing} is not there; a trial is resumed with as many nodes as it had"
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        nodes_files(resumed, 3)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = read_node_file(node_file(tmp_path))
    assert file.key == str(tmp_path / "node.key")
    known = tmp_path / "superlink.toml"
    known.write_text('address = "a:1"\nca_certificate = "ca.pem"\nsecret = "/elsewhere/secret"\n')
    assert read_superlink_file(known).ca_certificate == str(tmp_path / "ca.pem")
    assert read_superlink_file(known).secret == "/elsewhere/secret"


def test_a_part_of_the_clients_is_dealt_in_their_order(tmp_path: Path) -> None:
    names = []
    for part in range(2):
        file = read_node_file(node_file(tmp_path, deal={"part": part, "parts": 2}))
        names += list(load_node(file).federation.names)
    assert names == ["0", "1", "2", "3", "4"]


def test_the_identifier_of_a_run_is_in_its_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing or damaged"):
        read_ledger(tmp_path)
    ledger = Ledger(tmp_path)
    ledger.release()
    assert read_ledger(tmp_path) == ledger
    assert ledger.released == 1
    assert ledger.run != Ledger().run
    for damaged in ([ledger.run], {"run": ledger.run}):
        (tmp_path / "deployment.json").write_text(json.dumps(damaged))
        with pytest.raises(InputError, match="missing or damaged"):
            read_ledger(tmp_path)


def test_an_operator_needs_no_data_and_others_do(tmp_path: Path) -> None:
    table = table_of(FEDPROX)
    del table["data"]
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(table))
    with pytest.raises(InputError, match=r"the section \[data\] is missing"):
        read_experiment(file)
    experiment = read_experiment(file, (), {"data": {"name": "deployment"}})
    with pytest.raises(InputError, match="fedprox deploy trains on them"):
        resolve(experiment)


def test_a_run_ends_if_a_node_has_lost_client_state(fresh: Fresh, tmp_path: Path) -> None:
    table = table_of({"name": "scaffold"}, rounds=2, cohort={"clients_per_round": 4})
    nodes = [site.node for site in fresh(tmp_path)]
    asked = 0

    def forgetful(parcel: Any) -> Any:
        nonlocal asked
        if json.loads(parcel.head)["kind"] == "train":
            asked += 1
            if asked == 2:
                shutil.rmtree(nodes[1].folder)
        return nodes[1].answer(parcel)

    with pytest.raises(
        InputError, match=r"node 'node-1': it refuses: state of .* begin the run anew"
    ):
        deployed(table, [nodes[0].answer, forgetful])


@pytest.mark.parametrize("refuses", [False, True])
def test_a_run_without_any_update_ends_with_a_status_and_the_reason(
    refuses: bool, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    table = table_of({"name": "scaffold"}, rounds=2, cohort={"clients_per_round": 4})
    nodes = [site.node for site in fresh(tmp_path)]

    def answering(node: Node) -> Any:
        def answer(parcel: Any) -> Any:
            head = json.loads(parcel.head)
            if head["kind"] == "train" and (refuses or node is nodes[0]):
                return parcel_of(Answer(id=head["id"], refused="not today"))
            return node.answer(parcel)

        return answer

    @contextmanager
    def network(*_: Any) -> Iterator[Any]:
        yield in_memory([answering(node) for node in nodes])

    monkeypatch.setattr(deployment, "_network", network)
    monkeypatch.setattr(deployment, "use_compilation_cache", lambda _: None)
    file, out = tmp_path / "a.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps(table))
    assert status("deploy", file, "--local", 2, "--out", out) == refuses
    said = capsys.readouterr().err.splitlines()
    line = (
        "fedprox: scaffold, seed 0: no update was used in any of its 2 rounds; the last "
        "reason: round 2: node 'node-1': it refuses: not today; without its "
    )
    assert [each for each in said if each.startswith(line)] == said[-1:] * refuses
    assert (out / "summary.json").exists()  # what was measured is there


@pytest.mark.parametrize("version", ["1.40.1", "1.43.0", "2.0", ""])
def test_another_version_of_flower_or_none_is_named(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if not version:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    needs = f"flwr {version} is installed; deployment needs 1.41 or 1.42"
    with pytest.raises(InputError) as caught:
        require_flower()
    line = needs if version else "deployment needs Flower"
    assert str(caught.value) == f"{line}: {installing('flower')}"
