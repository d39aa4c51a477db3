"""Runs that a site approves by a digest: what it covers, and that a node answers no other."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import BaseModel
from typer.testing import CliRunner

from fedprox import cli
from fedprox.deployment.approval import OUTSIDE, asked_of, digest_of_run
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import Coordinator, Ledger
from fedprox.deployment.describing import in_words, runs_asked
from fedprox.deployment.joining import join
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from fedprox.deployment.wire import (
    ArrayKind,
    DataKind,
    PrivateMeasures,
    PrivateRounds,
    PrivateSteps,
    Securing,
    Setup,
    unpack_request,
)
from fedprox.errors import InputError
from fedprox.experiment import parse
from fedprox.parts.privacy import AdaptiveClip, setting
from fedprox.parts.privacy.accounting import Mechanism
from fedprox.parts.privacy.correlated import Strategy
from tests.deployment.conftest import Fresh
from tests.deployment.federations import (
    EVERYTHING,
    FEDPROX,
    STATEFUL,
    deployed,
    in_memory,
    nodes_of,
    overheard,
    table_of,
)
from tests.deployment.test_commands import refusal
from tests.deployment.test_policy import ALL, preparing, refused_by, run_of
from tests.deployment.test_private_steps import steps_table
from tests.deployment.test_spending import asked, edited, recorded

RDP = {"clip": 0.5, "delta": 1e-3, "accountant": "rdp"}

TABLES: dict[str, dict[str, Any]] = {
    "two methods with two seeds": table_of(*STATEFUL, seed=[0, 7]),
    "sweeps": table_of({"name": "fedprox", "mu": [0, 0.5]}, solver={"learning_rate": [0.1, 1]}),
    "a schedule": table_of(
        FEDPROX, solver={"learning_rate": {"schedule": "exponential_decay", "init_value": 0.1,
                                           "transition_steps": 2, "decay_rate": 0.5}},
    ),
    "a method's own solver and server": table_of(
        {**FEDPROX, "solver": {"epochs": 1}, "server": {"name": "adam", "learning_rate": 0.03}}
    ),
    "gamma": table_of(FEDPROX, solver={"batch_size": "all", "gamma": 0.5}),
    "evaluation": table_of(FEDPROX, evaluation={"gradients": True, "model": "cohort"}),
    "a deadline": table_of(FEDPROX, systems={"deadline": 2.5}),
    "compression": table_of(FEDPROX, compression={"codec": "quantize", "bits": 4}),
    "a noise of clients": table_of(
        FEDPROX, cohort={"sampling": "bernoulli"}, privacy=RDP | {"noise_multiplier": 1.0},
        evaluation={"gradients": False},
    ),
    "an epsilon of clients": table_of(
        FEDPROX, cohort={"sampling": "uniform"},
        privacy=RDP | {"epsilon": 6.015625, "adaptive_clip": {"quantile": 0.6}},
    ),
    "correlated noise": table_of(
        FEDPROX, cohort={"sampling": "cyclic", "min_separation": 2, "clients_per_round": 2},
        privacy={"clip": 0.5, "delta": 1e-3, "noise_multiplier": 1.0, "mechanism": "banded"},
    ),
    "a noise of examples": table_of(
        FEDPROX, privacy=RDP | {"unit": "example", "noise_multiplier": 1.0}
    ),
    "an epsilon of examples": table_of(FEDPROX, privacy=RDP | {"unit": "example", "epsilon": 9}),
    "secure sums": table_of(FEDPROX, deployment={"secure": {"threshold": 3, "bound": 2}}),
}  # fmt: skip


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[Node]:
    """Three nodes with four clients."""
    return nodes_of(TABLES["gamma"], tmp_path_factory.mktemp("nodes"), 3)


def server_of(table: Mapping[str, Any], nodes: list[Node]) -> Coordinator:
    """The operator's side of an experiment on nodes that have joined, and were asked nothing."""
    conversation = Conversation(in_memory([node.answer for node in nodes]), patience=1.0)
    experiment = parse("test", dict(table))
    return Coordinator(conversation, experiment, join(conversation, len(nodes)), Ledger())


def digests(table: Mapping[str, Any]) -> list[str]:
    """The digests that the file of an experiment has."""
    return [run.digest for run in runs_asked(parse("test", dict(table)))]


def sent(setup: Setup) -> Setup:
    """A setup as it arrives at a node."""
    return Setup.model_validate_json(setup.model_dump_json())


@pytest.mark.parametrize("name", TABLES)
def test_a_node_computes_the_digest_that_the_file_has(
    name: str, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a digest has no calibrated noise, whose search takes seconds
    monkeypatch.setattr(setting, "calibrated_steps", lambda *_: 1.5)
    monkeypatch.setattr(
        setting, "calibrated_beside", lambda what, *_: what._replace(noise_multiplier=1.5)
    )
    table = TABLES[name]
    server = server_of({**table, "data": {"name": "deployment"}}, nodes)
    setups = [
        sent(server.setup(method, seed))
        for method in server.methods
        for seed in server.protocol.seeds
    ]
    at_node = [json.loads(json.dumps(asked_of(setup))) for setup in setups]
    assert [json.loads(json.dumps(run.asked)) for run in runs_asked(parse("", table))] == at_node
    given = digests(table)
    assert [digest_of_run(each) for each in at_node] == given
    assert len(set(given)) == len(given)
    # as it is read again from a run directory, with every default and other data
    again = server_of(server.resolved.table, nodes)
    assert sent(again.setup(again.methods[0], 0)).run != setups[0].run
    assert digests(server.resolved.table) == given


def test_frozen_values_are_the_nodes_own() -> None:
    """The keys that freeze values are in the digest, with every default, and the values are not."""
    table = table_of(
        FEDPROX,
        initial="somewhere.safetensors",
        model={"name": "mlp", "hidden": [8], "lora": {"rank": 2}},
    )
    (run,) = runs_asked(parse("test", table))
    assert run.asked["model"]["lora"]["rank"] == 2
    assert len(run.asked["model"]["lora"]) > 1
    more = table_of(
        FEDPROX,
        initial="somewhere.safetensors",
        model={"name": "mlp", "hidden": [8], "lora": {"rank": 4}},
    )
    assert digests(more) != [run.digest]


MECHANISM = Mechanism(
    5, 2, "cyclic", None, 1.0, 1, 1e-3, "pld", Strategy("banded", 2, 3, (1.0, 0.5))
)
FULL = Setup(
    run="run1",
    number=0,
    seed=0,
    rounds=3,
    clients=5,
    clients_per_round=4,
    data=DataKind(
        classes=2,
        features=[ArrayKind(name="", shape=[3], type="float32", greatest=0)],
        label=[],
        label_type="int32",
        augmented=False,
    ),
    parameters="['w'] float32[3, 2]",
    model={"name": "logistic"},
    base=None,
    solver={"epochs": 1},
    method={"name": "fedavg"},
    evaluated="server",
    gradients=False,
    deadline=None,
    privacy=PrivateRounds(
        clip=1.0, epsilon=None, adaptive_clip=None, mechanism=MECHANISM, rounds=3
    ),
    private_steps=PrivateSteps(
        clip=1.0, epsilon=None, noise_multiplier=1.0, delta=1e-3, accountant="pld"
    ),
    measures=PrivateMeasures(
        loss_bound=8.0, share=None, only=None, noise_multiplier=9.0, delta=1e-3, evaluations=4
    ),
    secure=Securing(threshold=3, bound=1.0, bits=32, honest=1, nodes=["a", "b", "c"]),
    compression=None,
    products=False,
)
"""A setup with all parts."""

CHANGED: dict[str, Any] = {
    "run": "run2",
    "number": 1,
    "seed": 1,
    "rounds": 4,
    "clients": 6,
    "clients_per_round": 3,
    "data": FULL.data.model_copy(update={"classes": 3}),
    "mean": [1.0],
    "scale": [2.0],
    "parameters": "",
    "model": {"name": "cnn"},
    "base": 64 * "0",
    "solver": {"epochs": 2},
    "method": {"name": "fedavg", "average": "clients"},
    "evaluated": "cohort",
    "gradients": True,
    "deadline": 1.0,
    "privacy": None,
    "privacy.clip": 2.0,
    "privacy.epsilon": 1.0,
    "privacy.adaptive_clip": AdaptiveClip(),
    "privacy.mechanism.clients": 6,
    "privacy.mechanism.clients_per_round": 3,
    "privacy.mechanism.sampling": "uniform",
    "privacy.mechanism.capacity": 5,
    "privacy.mechanism.noise_multiplier": 2.0,
    "privacy.mechanism.releases": 2,
    "privacy.mechanism.delta": 1e-4,
    "privacy.mechanism.accountant": "rdp",
    "privacy.mechanism.strategy.kind": "blt",
    "privacy.mechanism.strategy.separation": 3,
    "privacy.mechanism.strategy.rounds": 4,
    "privacy.mechanism.strategy.scale": (1.0, 0.25),
    "privacy.mechanism.strategy.decay": (0.5,),
    "privacy.rounds": 4,
    "private_steps": None,
    "private_steps.clip": 2.0,
    "private_steps.epsilon": 1.0,
    "private_steps.noise_multiplier": 2.0,
    "private_steps.delta": 1e-4,
    "private_steps.accountant": "rdp",
    "measures": None,
    "measures.loss_bound": 4.0,
    "measures.share": 0.1,
    "measures.only": ["train_loss"],
    "measures.noise_multiplier": 8.0,
    "measures.delta": 1e-4,
    "measures.evaluations": 5,
    "measures.again": 1,
    "secure": None,
    "secure.threshold": 4,
    "secure.bound": 2.0,
    "secure.norm": 1.0,
    "secure.bits": 64,
    "secure.honest": 2,
    "secure.nodes": ["a", "b", "d"],
    "compression": {"codec": "quantize", "bits": 4},
    "products": True,
}
"""Another value of each field of a setup: whoever adds a field decides whether the digest has it,
and if not says why in `OUTSIDE`."""


def fields(kind: Any, prefix: str = "") -> Iterator[str]:
    """The fields of a setup, with those of its parts."""
    parts: dict[str, Any]
    parts = {"privacy": PrivateRounds, "private_steps": PrivateSteps, "secure": Securing}
    parts |= {"measures": PrivateMeasures}
    names = kind.model_fields if issubclass(kind, BaseModel) else kind._fields
    tuples = {"mechanism": Mechanism, "strategy": Strategy}
    for name in names:
        if name in tuples:
            yield from fields(tuples[name], f"{prefix}{name}.")
            continue
        yield prefix + name
        if not prefix and name in parts:
            yield from fields(parts[name], f"{name}.")


def with_change(part: Any, name: str, value: Any) -> Any:
    """A setup, or a part, with another value of one field."""
    first, _, rest = name.partition(".")
    inner = with_change(getattr(part, first), rest, value) if rest else value
    if isinstance(part, BaseModel):
        return part.model_copy(update={first: inner})
    return part._replace(**{first: inner})


def test_every_field_of_a_setup_is_in_the_digest_or_said_why_not() -> None:
    assert list(CHANGED) == list(fields(Setup))
    assert set(OUTSIDE) < set(CHANGED)
    digest = digest_of_run(asked_of(FULL))
    for name, value in CHANGED.items():
        setup = with_change(FULL, name, value)
        assert setup != FULL, name
        assert (digest_of_run(asked_of(setup)) == digest) == (name in OUTSIDE), name


@pytest.mark.parametrize("part", ["privacy", "private_steps"])
def test_a_calibrated_noise_is_not_in_the_digest(part: str) -> None:
    noise = "mechanism.noise_multiplier" if part == "privacy" else "noise_multiplier"
    calibrated = with_change(FULL, f"{part}.epsilon", 1.0)
    other = with_change(calibrated, f"{part}.{noise}", 3.0)
    assert asked_of(other) == asked_of(calibrated)
    assert asked_of(calibrated) != asked_of(FULL)


def test_a_node_answers_approved_runs_alone(fresh: Fresh, tmp_path: Path) -> None:
    approved, other = digests(ALL), "0" * 64
    allowed = EVERYTHING.model_copy(update={"runs": [other, *approved]})
    run = run_of(fresh(tmp_path / "a"), ALL, allowed, allowed)
    plain = run_of(fresh(tmp_path / "b"), ALL, EVERYTHING, EVERYTHING)
    assert run.history == plain.history or run.final.train_loss == plain.final.train_loss
    none = EVERYTHING.model_copy(update={"runs": [other]})
    line = f"^scaffold: node 'node-1': it refuses: run {approved[0]}; it is not in policy.runs$"
    with pytest.raises(InputError, match=line):
        run_of(fresh(tmp_path / "c"), ALL, allowed, none)


def test_a_node_believes_its_own_digest(fresh: Fresh, tmp_path: Path) -> None:
    """Whatever else a request of the name of an approved run asks for, it is refused."""
    site = fresh(tmp_path)[0]
    request = preparing(site.node)
    setup = unpack_request(request).setup
    assert setup is not None
    runs = [digest_of_run(asked_of(setup))]
    site.node.policy = EVERYTHING.model_copy(update={"runs": runs})

    def more(setup: dict[str, Any]) -> None:
        setup["solver"]["epochs"] = 3

    def renamed(setup: dict[str, Any]) -> None:
        setup |= {"run": "another", "number": 5}

    assert refused_by(site.node, request) == ""
    assert refused_by(site.node, request, renamed) == ""
    assert refused_by(site.node, request, more).endswith("; it is not in policy.runs")
    site.node.policy = EVERYTHING.model_copy(update={"runs": []})
    assert refused_by(site.node, request) == f"run {runs[0]}; it is not in policy.runs"


def test_a_digest_has_sixty_four_characters(fresh: Fresh, tmp_path: Path) -> None:
    node = fresh(tmp_path)[0].node
    with pytest.raises(InputError, match=r"^policy.runs: '12ab'; a digest, as `fedprox deploy FIL"):
        Node("a", node.federation, tmp_path, Policy(runs=["12ab"]))


def with_noise(noise: float) -> Any:
    """A change of a request's noise of clients."""

    def change(setup: dict[str, Any]) -> None:
        setup["privacy"]["mechanism"][4] = noise

    return change


def test_noise_that_is_not_enough_for_the_approved_epsilon_is_refused(
    fresh: Fresh, tmp_path: Path
) -> None:
    privacy = RDP | {"epsilon": 6.0}
    table = table_of(
        {"name": "fedavg"}, cohort={"sampling": "uniform", "clients_per_round": 2}, privacy=privacy
    )
    site, seen = fresh(tmp_path)[0], list[Parcel]()
    answer = overheard(site.answer, lambda parcel, _: seen.append(parcel))
    site.node.policy = EVERYTHING.model_copy(update={"runs": digests(table)})
    deployed(table, [answer])
    request = next(each for each in seen if json.loads(each.head)["kind"] == "prepare")
    noise = json.loads(request.head)["setup"]["privacy"]["mechanism"][4]
    assert refused_by(site.node, request, with_noise(1.1 * noise)) == ""
    refused = refused_by(site.node, request, with_noise(0.9 * noise))
    assert refused.startswith("privacy: 3 rounds cost epsilon = ")
    assert refused.endswith("; the run declares 6")
    site.node.policy = EVERYTHING
    assert refused_by(site.node, request, with_noise(0.9 * noise)) == ""


@pytest.mark.slow
def test_steps_of_rows_stay_within_the_approved_epsilon(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setting, "calibrated_steps", lambda *_: 2.0)  # more than enough
    table = steps_table(privacy={"epsilon": 9.0})
    del table["privacy"]["noise_multiplier"]
    sites = fresh(tmp_path)
    for site in sites:
        site.node.policy = EVERYTHING.model_copy(update={"runs": digests(table)})
    request, node = recorded(table, sites)["train"], sites[0].node
    less = edited(request, setup__run="run2", setup__private_steps__noise_multiplier=0.2)
    line = r"^epsilon = [\d.]+ for each row of client '\d'; epsilon = 9 was approved for the run$"
    assert re.match(line, asked(node, less).refused)
    for site in sites:
        site.node.policy = EVERYTHING
    assert asked(node, less).refused == ""


def test_the_command_describes_without_nodes(tmp_path: Path) -> None:
    table = dict(TABLES["two methods with two seeds"])
    del table["data"]
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(table))
    before = sorted(tmp_path.rglob("*"))
    result = CliRunner().invoke(
        cli.app, ["deploy", str(file), "--describe", "--set", "rounds=5"], standalone_mode=False
    )
    assert result.exception is None
    assert sorted(tmp_path.rglob("*")) == before
    pages = result.output.strip().split("\n\n")
    assert [page.splitlines()[0].split(maxsplit=1)[1] for page in pages] == [
        f"{name}, seed {seed}" for name in ("scaffold", "feddane") for seed in (0, 7)
    ]
    printed = [page.splitlines()[1].split()[1] for page in pages]
    assert printed == digests({**table, "data": {"name": "other"}, "rounds": 5})
    assert "first cohort" in pages[2]
    assert "first cohort" not in pages[0]


@pytest.mark.parametrize(
    ("name", "there", "not_there"),
    [
        (
            "secure sums",
            [
                "sent         the weighted sum of the updates of the node's clients in a round,",
                'gives another standardize than "federation", under masks too',
                "measures     losses, accuracies and metrics of the server's model, as far as",
                "none of a node with [policy.privacy], unless it has exact_measures",
            ],
            ["that of one client"],
        ),
        ("gamma", ["that of one client", "standardize than"], ["masks"]),
        (
            "a noise of clients",
            ["that of one client", "measures have no noise"],
            ["standardize than", "masks"],
        ),
        ("a noise of examples", ["that of one client"], ["standardize than", "masks"]),
    ],
)
def test_a_site_reads_what_is_sent(name: str, there: list[str], not_there: list[str]) -> None:
    (run,) = runs_asked(parse("test", TABLES[name]))
    page = "\n".join(f"{about:<12} {line}" for about, line in in_words(run))
    assert "\non joining   for any run, approved or not: the clients' names" in page
    assert all(each in page for each in there), page
    assert not any(each in page for each in not_there), page


def test_the_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/approve-runs.md").read_text(encoding="utf-8")
    file = tmp_path / "heart.toml"
    file.write_text(page.partition("```toml\n")[2].partition("```")[0])
    result = CliRunner().invoke(cli.app, ["deploy", str(file), "--describe"])
    shown = page.partition("```text\n")[2].partition("```")[0]
    digest = re.search(r"^digest +(\w+)\.\.\.$", shown, re.MULTILINE)
    assert digest is not None
    assert re.sub(r"(digest +).*", r"\1", result.output) == re.sub(r"(digest +).*", r"\1", shown)


@pytest.mark.parametrize("option", [["--local", "2"], ["--out", "somewhere"], ["--allow", "a:b"]])
def test_describing_goes_with_no_other_option(option: list[str], tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(TABLES["sweeps"]))
    line = "--describe: give FILE, and of the options --set alone"
    assert refusal("deploy", str(file), "--describe", *option) == line
