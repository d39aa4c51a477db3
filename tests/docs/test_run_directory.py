"""The reference of run directories lists what runs write."""

import json
import re
from pathlib import Path

import pytest

from fedprox import diagnose, run
from fedprox.experiment import read_experiment, resolve
from fedprox.report.directory import DEPLOYMENT_FILE, LOGS, NODES, RESULTS, RunDirectory
from fedprox.report.status import FILES
from fedprox.results.record import RECORD_COLUMNS

NETWORK = {"seconds", "bytes_down", "bytes_up", "nodes", "network", "measured"}
PRIVACY = {"epsilon", "delta"}
TIME = {"time", "staleness"}

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-directory.md"

EXPERIMENT = """
rounds = 2
validation_share = 0.2
evaluation = {gradients = false, by_client = true, fine_tune = 2, client_records = true}
data = {name = "synthetic", clients = 4}
cohort = {clients_per_round = 2}
faults = {policy = "drop"}
solver = {learning_rate = 0.01, batch_size = 10, epochs = 1}
method = [{name = "fedprox", mu = 0.1}]
"""


def listed(heading: str) -> list[str]:
    """What the first column of the table below a heading names."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (lines,) = [each.splitlines() for each in section if each.startswith(heading + "\n")]
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documented")
    file = folder / "a.toml"
    file.write_text(EXPERIMENT)
    run(file, out=folder / "out", progress=False)
    return folder / "out"


@pytest.mark.slow
def test_the_page_lists_every_file_of_a_run(directory: Path) -> None:
    page = set(listed("Files"))
    found = {
        "model-LABEL-SEED.safetensors" if path.name.startswith("model-") else path.name
        for path in directory.iterdir()
    }
    # during a run, by other commands
    assert page - found == {"diagnosis.json", DEPLOYMENT_FILE, NODES, *LOGS, *FILES}
    assert found <= page
    results = {re.sub(r"model-.*", "model-LABEL-SEED.safetensors", each) for each in RESULTS}
    assert results <= page


def test_the_page_lists_every_key_of_the_summary(directory: Path) -> None:
    page = listed("`summary.json`")
    (summary,) = json.loads((directory / "summary.json").read_text())
    found = summary.keys() - {"mu"}
    assert found <= set(page)
    sometimes = {"target_metric", "final_train_loss_se", "final_test_accuracy_se"}
    sometimes |= {*PRIVACY, "noise_multiplier", "bits_up"}
    metrics = {name for name in page if name.endswith("_NAME")}
    assert set(page) - found == sometimes | metrics
    assert len(page) == len(set(page))


def test_the_page_lists_every_key_of_the_clients(directory: Path) -> None:
    (first,) = json.loads((directory / "clients.json").read_text())
    assert set(listed("`clients.json`")) - {"test_NAME"} == first.keys()


def test_the_page_lists_every_key_of_the_client_records(directory: Path) -> None:
    line = json.loads((directory / "clients.jsonl").read_text().partition("\n")[0])
    assert listed("`clients.jsonl`") == list(line)


def test_records_have_the_keys_that_the_page_says(directory: Path) -> None:
    line = json.loads((directory / "metrics.jsonl").read_text().partition("\n")[0])
    fields = set(RECORD_COLUMNS) - {"hparams", "metrics", "by_client", "by_client_checksum"}
    optional = set(listed("`metrics.jsonl`"))
    assert fields - optional < line.keys() <= fields | {"mu"}
    assert optional - line.keys() == {
        "train_loss_se",
        "test_accuracy_se",
        *NETWORK,
        *PRIVACY,
        *TIME,
        "bits_up",
    }


@pytest.mark.slow
def test_the_page_lists_every_key_of_a_diagnosis(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(EXPERIMENT)
    resolved = resolve(read_experiment(file))
    found = diagnose(
        resolved.federation,
        resolved.model,
        solver=resolved.solver,
        cohort=resolved.cohort,
        rounds=2,
        progress=False,
    )
    assert set(listed("`diagnosis.json`")) == found.document().keys()
    with RunDirectory(tmp_path / "out", resolved.table) as opened:
        opened.diagnosis(found.document())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "diagnosis.json",
        "experiment.toml",
    }
