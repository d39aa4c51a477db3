"""A delta from one over the number of what is hidden on is refused, and a tenth of it warns."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy, PrivacyPolicy
from fedprox.deployment.wire import PrivateRounds
from fedprox.parts.privacy.accounting import Hidden, Mechanism
from fedprox.parts.privacy.setting import Unit
from tests.quadratics import quadratic_model, ragged_quadratics
from tests.test_cli import status

ROWS = [23, 9, 40, 4]
FILE = """
rounds = 2
[data]
name = "synthetic"
clients = 30
[model]
name = "logistic"
[solver]
learning_rate = 0.01
batch_size = 10
epochs = 1
[cohort]
clients_per_round = 10
sampling = "bernoulli"
[privacy]
noise_multiplier = 1.0
clip = 1.0
accountant = "rdp"
[[method]]
name = "fedavg"
"""


def settings(privacy: fp.Privacy) -> dict[str, Any]:
    return {
        "federation": ragged_quadratics(0, ROWS),
        "model": quadratic_model(np.zeros(3)),
        "solver": fp.Solver(0.05, 6, epochs=1),
        "cohort": fp.Cohort(2, "bernoulli"),
        "rounds": 1,
        "evaluation": fp.Evaluation(gradients=False),
        "privacy": privacy,
        "progress": False,
    }


def of(unit: Unit, delta: float, noise: float = 1.0) -> fp.Privacy:
    return fp.Privacy(1.0, noise_multiplier=noise, delta=delta, unit=unit, accountant="rdp")


WORDS: dict[Unit, str] = {"client": "4 clients", "example": "4 rows of the smallest client"}


@pytest.mark.parametrize("unit", WORDS)
@pytest.mark.parametrize("delta", [0.25, 0.9])
def test_a_run_is_refused(unit: Unit, delta: float) -> None:
    line = f"privacy.delta = {delta:g}; with {WORDS[unit]} it must be below 1 / 4, the delta of "
    with pytest.raises(fp.InputError, match=re.escape(line)):
        fp.simulate(methods=fp.fedavg(), **settings(of(unit, delta)))


@pytest.mark.slow
@pytest.mark.parametrize("unit", WORDS)
def test_a_run_warns(unit: Unit) -> None:
    line = f"privacy.delta = 0.026 is above a tenth of 1 / 4, with {WORDS[unit]}: "
    with pytest.warns(UserWarning, match=re.escape(line)):
        fp.simulate(methods=fp.fedavg(), **settings(of(unit, 0.026)))


@pytest.mark.slow
def test_without_noise_no_delta_is_claimed() -> None:
    fp.simulate(methods=fp.fedavg(), **settings(of("client", 0.9, noise=0.0)))


@pytest.mark.parametrize("count", [1, 3, 30, 49, 10_007])
def test_the_limits_are_sharp(count: int) -> None:
    hidden = Hidden.of("client", np.ones(count, np.int64))
    for delta in (1 / count, np.nextafter(1 / count, 1)):
        with pytest.raises(fp.InputError):
            hidden.require_delta("delta", delta)
    below = float(np.nextafter(1 / count, 0))
    hidden.require_delta("delta", below)
    assert len(list(hidden.warnings("delta", below))) == 1
    assert not list(hidden.warnings("delta", 1 / (10 * count)))


def test_a_client_without_rows_hides_none() -> None:
    assert Hidden.of("example", np.array([0, 7, 3])).number == 3


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "private.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("command", ["privacy", "run"])
@pytest.mark.parametrize("delta", [0.034, 0.1, 0.99])
def test_commands_refuse(
    file: Path, capsys: Any, command: str, delta: float, tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")] if command == "run" else []
    assert status(command, file, "--set", f"privacy.delta={delta}", *out) == 2
    captured = capsys.readouterr()
    assert f"privacy.delta = {delta:g}; with 30 clients it must be below 1 / 30" in captured.err
    assert captured.err.count("\n") == 1
    assert "epsilon" not in captured.out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_warns(file: Path, capsys: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert status("privacy", file, "--set", "privacy.delta=0.01") == 0
    assert "privacy.delta = 0.01 is above a tenth of 1 / 30" in capsys.readouterr().err
    assert status("privacy", file, "--set", "privacy.delta=0.001") == 0
    assert capsys.readouterr().err == ""


def test_a_study_is_refused_before_its_first_cell(tmp_path: Path) -> None:
    shared = settings(of("client", 1e-3))
    with pytest.raises(fp.InputError, match=r"privacy.delta = 0.5; with 4 clients"):
        fp.study(
            {"FedAvg": fp.fedavg()},
            data=shared.pop("federation"),
            vary={"delta": {"small": of("client", 1e-3), "large": of("client", 0.5)}},
            seeds=[0],
            measure="train_loss",
            out=tmp_path,
            **{key: value for key, value in shared.items() if key != "privacy"},
        )
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize("unit", WORDS)
def test_a_policy_is_refused_or_warns(unit: Unit, tmp_path: Path) -> None:
    def node(delta: float) -> None:
        policy = Policy(privacy=PrivacyPolicy(unit=unit, epsilon=1.0, delta=delta))
        Node("node", ragged_quadratics(0, ROWS), tmp_path, policy)

    line = f"policy.privacy.delta = 0.25; with {WORDS[unit]} it must be below 1 / 4"
    with pytest.raises(fp.InputError, match=re.escape(line)):
        node(0.25)
    with pytest.warns(UserWarning, match=r"policy.privacy.delta = 0.03 is above a tenth of 1 / 4"):
        node(0.03)
    node(0.025)


def test_a_policy_refuses_a_run_of_so_many_clients_that_its_delta_is_too_large() -> None:
    policy = Policy(privacy=PrivacyPolicy(epsilon=1e6, delta=0.01))
    hiding = PrivateRounds(
        clip=1.0,
        epsilon=None,
        adaptive_clip=None,
        mechanism=Mechanism(100, 10, "bernoulli", None, 4.0, 1, 1e-5, "rdp"),
        rounds=1,
    )
    line = "policy.privacy.delta = 0.01; with the 100 clients of this run it must be below 1 / 100"
    with pytest.raises(fp.InputError, match=re.escape(line)):
        policy.check_privacy(hiding, [])
    fewer = hiding.mechanism._replace(clients=99)
    policy.check_privacy(hiding.model_copy(update={"mechanism": fewer}), [])
