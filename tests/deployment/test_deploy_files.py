"""The files of `deploy/`: they are what their programs read, and their commands run.

No container engine is needed. A command of a container runs as a process here, in the folder that
the container mounts; the name of the SuperLink becomes that of the loopback.
"""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from fedprox.deployment.node_file import read_superlink_file
from fedprox.deployment.trial import free_port
from fedprox.files.toml import parse_toml
from tests.deployment.machines import finish, left_over
from tests.test_cli import status

yaml = pytest.importorskip("yaml", reason="comes with the extra flower")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy"
HOSPITALS = ["hospital-a", "hospital-b", "hospital-c"]


class Stage(NamedTuple):
    """A stage of a Dockerfile."""

    name: str
    origin: str
    instructions: list[tuple[str, str]]


INSTRUCTIONS = {"COPY", "RUN", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "EXPOSE", "CMD"}


def stages(text: str) -> dict[str, Stage]:
    """The stages of a Dockerfile by their names; AssertionError if an engine would refuse it."""
    found: dict[str, Stage] = {}
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    for line in filter(str.strip, lines):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            origin, named, name = rest.split()
            assert named == "AS", line
            assert origin in found or re.fullmatch(r"[a-z]+:[\w.-]+", origin), line
            assert name not in found, line
            found[name] = stage = Stage(name, origin, [])
            continue
        assert word in INSTRUCTIONS, line
        if word in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(part, str) for part in json.loads(rest)), line
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
        if word == "ENV":
            assert all("=" in part for part in shlex.split(rest)), line
        if word == "COPY" and rest.startswith("--from="):
            assert rest.removeprefix("--from=").split()[0] in found, line
        elif word == "COPY":
            *sources, target = rest.split()
            assert sources, line
            assert len(sources) == 1 or target.endswith("/"), line
            assert all((ROOT / each).exists() for each in sources), line
        stage.instructions.append((word, rest))
    return found


def last(found: Mapping[str, Stage], name: str, word: str) -> str:
    """The instruction of a stage or of those that it begins with that counts."""
    stage = found[name]
    given = [rest for each, rest in stage.instructions if each == word]
    return given[-1] if given else last(found, stage.origin, word)


DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def test_the_images_run_the_command_as_nobody_of_importance() -> None:
    found = stages(DOCKERFILE)
    for name in ("superlink", "node"):
        assert json.loads(last(found, name, "ENTRYPOINT")) == ["fedprox"]
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last(found, name, "USER"))
        assert last(found, name, "WORKDIR") == "/work"


@pytest.mark.parametrize(
    ("whole", "broken"),
    [
        ("FROM fedprox AS node", "FROM fedprocs AS node"),
        ("COPY src src", "COPPY src src"),
        ("COPY src src", "COPY source src"),
        ("--from=wheel", "--from=wheels"),
        ('["fedprox"]', "['fedprox']"),
        ("ENV HOME=/tmp", "ENV HOME /tmp"),
        (".whl)[flower", ".whl[flower"),
    ],
)
def test_a_broken_dockerfile_is_found(whole: str, broken: str) -> None:
    assert whole in DOCKERFILE
    with pytest.raises((AssertionError, ValueError, subprocess.CalledProcessError)):
        stages(DOCKERFILE.replace(whole, broken))


def test_an_image_is_made_of_the_package_alone() -> None:
    """Keys and patients, which may lie beside the files, do not reach the engine."""
    copied = [
        part
        for word, rest in stages(DOCKERFILE)["wheel"].instructions
        if word == "COPY"
        for part in rest.split()[:-1]
    ]
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in ignored if not line.startswith("#")]
    assert rules[0] == "*"
    assert sorted(rules[1:]) == sorted(f"!{name}" for name in copied)
    built = parse_toml((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    files = [*built["build"]["targets"]["wheel"]["packages"]]
    files += [*built["build"]["targets"]["wheel"]["force-include"]]
    files += [part["path"] for part in built["metadata"]["hooks"]["fancy-pypi-readme"]["fragments"]]
    for file in [*files, built["version"]["path"], "pyproject.toml", "LICENSE"]:
        assert file.split("/")[0] in copied, file


class Service(NamedTuple):
    """A service of the compose file.

    Attributes:
        command: What its container runs.
        mounts: The host's paths by the container's.
    """

    command: list[str]
    mounts: dict[str, str]


KEYS = {
    *("user", "init", "read_only", "tmpfs", "cap_drop", "security_opt", "image", "build"),
    *("command", "networks", "network_mode", "depends_on", "restart", "stop_grace_period"),
    *("profiles", "volumes", "pull_policy"),
}


def services(text: str) -> dict[str, Service]:
    """The services of a compose file; AssertionError if an engine would refuse it."""
    table = yaml.safe_load(text)
    known = {key for key in table if not key.startswith("x-")}
    assert known == {"name", "services", "networks"}
    images = stages(DOCKERFILE)
    found = {}
    for name, service in table["services"].items():
        assert service.keys() <= KEYS, name
        assert service["build"]["target"] in images, name
        assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert (service.get("networks") is None) == (service.get("network_mode") == "none"), name
        assert {*service.get("networks", [])} <= table["networks"].keys(), name
        assert {*service.get("depends_on", [])} <= table["services"].keys(), name
        assert all(isinstance(part, str) for part in service["command"]), name
        mounts = [each.split(":")[:2] for each in service["volumes"]]
        found[name] = Service(service["command"], {inside: here for here, inside in mounts})
    return found


COMPOSE = (FOLDER / "compose.yaml").read_text()


def test_each_container_is_confined_to_its_folder_and_the_federation() -> None:
    table = yaml.safe_load(COMPOSE)
    assert table["networks"] == {"federation": {"internal": True}}
    found = services(COMPOSE)
    assert found.keys() == {"certificates", "superlink", "operator", *HOSPITALS}
    for name, service in table["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if name != "certificates":
            assert found[name].mounts["/work"] == f"./federation/{name}"


@pytest.mark.parametrize(
    ("whole", "broken"),
    [
        ("command: [node", "comand: [node"),
        ("target: node", "target: nodes"),
        ("networks: [federation]", "networks: [federations]"),
        ("depends_on: [superlink]", "depends_on: [super-link]"),
        ("dockerfile: deploy/Dockerfile", "dockerfile: Dockerfile"),
        ("<<: *node", "<<: *nodes"),
    ],
)
def test_a_broken_compose_file_is_found(whole: str, broken: str) -> None:
    assert whole in COMPOSE
    with pytest.raises((AssertionError, yaml.YAMLError)):
        services(COMPOSE.replace(whole, broken))


UNITS = {"superlink": FOLDER / "superlink.service", "hospital-a": FOLDER / "fedprox-node.service"}


def unit(file: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(file)
    return parser


@pytest.mark.parametrize("name", UNITS)
def test_a_container_and_a_service_run_the_same_command(name: str) -> None:
    command = services(COMPOSE)[name].command
    image = "superlink" if name == "superlink" else "node"
    assert json.loads(last(stages(DOCKERFILE), image, "CMD")) == command
    section = unit(UNITS[name])["Service"]
    assert shlex.split(section["ExecStart"]) == ["/srv/fedprox/venv/bin/fedprox", *command]
    assert section["WorkingDirectory"] == section["ReadWritePaths"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="calls systemd-analyze")
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_services(name: str, broken: bool, tmp_path: Path) -> None:
    text = UNITS[name].read_text().replace("/srv/fedprox/venv/bin/fedprox", sys.executable)
    file = tmp_path / UNITS[name].name
    file.write_text(text.replace("Restart=", "Restarts=") if broken else text)
    command = ["systemd-analyze", "verify", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if str(file) in line or file.name in line]
    assert bool(said) == broken, said


def test_the_page_shows_the_experiment() -> None:
    page = (ROOT / "docs" / "howto" / "deploy.md").read_text()
    experiment = (FOLDER / "federation.toml").read_text()
    assert experiment.partition("\n\n")[2] in page


def test_the_tables_are_those_of_the_federation(tmp_path: Path) -> None:
    script = [sys.executable, str(FOLDER / "patients.py")]
    assert subprocess.run(script, capture_output=True, check=False).returncode == 1
    subprocess.run([*script, str(tmp_path)], check=True)
    header, *together = (tmp_path / "patients.csv").read_text().splitlines()
    for name in HOSPITALS:
        first, *rows = (tmp_path / name / "patients.csv").read_text().splitlines()
        assert header == f"hospital,{first}"
        assert [row for row in together if row.startswith(f"{name},")] == [
            f"{name},{row}" for row in rows
        ]


class Run(NamedTuple):
    """A service as a process: its arguments, and the folder where it runs."""

    arguments: list[str]
    folder: Path


def as_process(service: Service, here: Path) -> Run:
    """The command of a container, with the paths that it mounts."""
    (here / "federation.toml").write_bytes((FOLDER / "federation.toml").read_bytes())
    folder = here / service.mounts["/work"]
    files = {inside: str(here / outside) for inside, outside in service.mounts.items()}
    return Run([files.get(part, part) for part in service.command], folder.resolve())


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """End a process by SIGTERM, as an engine and systemd do."""
    try:
        yield
    finally:
        process.terminate()
        assert finish(process, 60) == 0


def measured(directory: Path) -> list[dict[str, Any]]:
    """The records of a run."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


DATA = {"client": "hospital", "label": "outcome", "test": 0.2}
FEW = ["--set", "rounds=4"]
"""Fewer rounds than the file has, since each takes processes seconds."""


@pytest.mark.slow
def test_the_commands_make_a_federation(tmp_path: Path) -> None:
    """Certificates, a SuperLink, three nodes and an operator, as the files start them.

    The numbers are those of the simulation.
    """
    runs = {name: as_process(each, tmp_path) for name, each in services(COMPOSE).items()}

    def call(name: str, *more: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "fedprox", *runs[name].arguments, *more]
        log = (tmp_path / f"{name}.log").open("wb")
        with log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=runs[name].folder)

    assert finish(call("certificates"), 120) == 0, (tmp_path / "certificates.log").read_text()
    operator = tmp_path / "federation" / "operator" / "superlink.toml"
    assert read_superlink_file(operator).address == "superlink:9092"
    port = free_port()
    for file in (operator, *(tmp_path.glob("federation/*/node.toml"))):
        file.write_text(file.read_text().replace("superlink:9092", f"localhost:{port}"))
    patients = [sys.executable, str(FOLDER / "patients.py"), str(tmp_path / "federation")]
    subprocess.run(patients, check=True)

    with ExitStack() as stack:
        for name in ("superlink", *HOSPITALS):
            more = ["--port", str(port)] if name == "superlink" else ["--devices", "1"]
            stack.enter_context(ended(call(name, *more)))
        deadline = time.monotonic() + 120
        while "listening" not in (tmp_path / "superlink.log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert finish(call("operator", *FEW), 300) == 0, (tmp_path / "operator.log").read_text()
    said = (tmp_path / "operator.log").read_text()
    assert f"3 of 3 nodes have joined: {', '.join(HOSPITALS)}" in said
    assert "fedavg, seed 0, round 4: " in said

    table = {"table": tmp_path / "federation" / "patients.csv", **DATA}
    data = [f"data.{key}={value}" for key, value in table.items()]
    options = [part for each in data for part in ("--set", each)]
    alone = ["run", str(FOLDER / "federation.toml"), *options, *FEW]
    alone += ["--out", str(tmp_path / "alone")]
    assert status(*alone) == 0
    ours = runs["operator"].folder / "runs" / "federation"
    for ours_at, at in zip(measured(ours), measured(tmp_path / "alone"), strict=True):
        assert ours_at["round"] == at["round"]
        assert ours_at["train_loss"] == pytest.approx(at["train_loss"], rel=1e-5)
        assert ours_at["test_accuracy"] == pytest.approx(at["test_accuracy"], abs=1e-3)
    assert left_over(tmp_path) == []
