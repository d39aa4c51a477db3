"""What each guarantee costs in accuracy and in seconds of a round.

    python -m benchmarks.guarantees [NAME ...]

1,200 patients of ten measurements and two outcomes, as on docs/howto/pilot.md, are divided among
three hospitals: as three clients of 400, or as 30 wards of 40. Logistic regression by FedAvg, 20
rounds, all clients in each. Accuracy is the mean and standard deviation over five seeds of
simulations. Seconds are the median of the rounds after the first, each with its evaluation, of a
deployment over TLS on this machine: a SuperLink, a node for each hospital with its wards, and an
operator. Each guarantee is measured beside none, in turns.
"""

import argparse
import copy
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import fedprox as fp
from benchmarks.page import add, show, table
from fedprox.deployment.certificates import make_node_key
from fedprox.deployment.processes import Child, running
from fedprox.deployment.trial import LocalSuperLink, local_superlink
from fedprox.report.archive import read_archive

PATIENTS, NUMBERS, HOSPITALS, ROUNDS, SEEDS, TURNS = 1200, 10, 3, 20, 5, 3

CLIENTS = 3, 30

EVERYBODY: dict[str, Any] = {"unit": "client", "epsilon": 2.0, "delta": 1e-5, "clip": 0.3}
ROWS: dict[str, Any] = {"unit": "example", "epsilon": 2.0, "delta": 1e-5, "clip": 1.0}
MEASURES: dict[str, Any] = {"measures": {"share": 0.1, "loss_bound": 2.0}}
SECURE: dict[str, Any] = {"deployment": {"secure": {"threshold": 3}}}
OWN: dict[str, Any] = {"own": {"epsilon": 2.0, "delta": 1e-5, "clip": 0.3}}

GUARANTEES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "secure sums": ({"deployment": {"secure": {"threshold": 3, "norm": 1.0}}}, {}),
    "clients": ({"privacy": EVERYBODY}, {}),
    "clients, secure sums": ({"privacy": EVERYBODY} | SECURE, {}),
    "clients, measures": ({"privacy": EVERYBODY | MEASURES}, {}),
    "a site's own": ({"privacy": EVERYBODY | {"trust": "none"}}, OWN),
    "rows": ({"privacy": ROWS}, {}),
    "rows, measures": ({"privacy": ROWS | MEASURES}, {}),
    "rows, measures, secure sums": (
        {"privacy": ROWS | MEASURES, "deployment": {"secure": {"threshold": 3, "norm": 1.0}}},
        {},
    ),
}
"""Sections of the experiment, and `[policy.privacy]` of the nodes."""


def patients(folder: Path, clients: int) -> list[Path]:
    """A table for each hospital, of test rows as many as of training rows."""
    draw = np.random.default_rng(1)
    slope = draw.normal(size=NUMBERS)
    names = [f"x{i}" for i in range(NUMBERS)]
    each, files = PATIENTS // clients, []
    for hospital in range(HOSPITALS):
        lines = [",".join(["ward", "part", *names, "ill"])]
        for ward in range(hospital * clients // HOSPITALS, (hospital + 1) * clients // HOSPITALS):
            x = draw.normal(size=(2 * each, NUMBERS))
            ill = x @ slope + draw.normal(size=2 * each) > 0
            for i, (row, label) in enumerate(zip(x, ill, strict=True)):
                part = "train" if i < each else "test"
                numbers = ",".join(f"{number:.6g}" for number in row)
                lines.append(f"ward-{ward:02},{part},{numbers},{int(label)}")
        file = folder / f"hospital-{hospital}-{clients}.csv"
        file.write_text("\n".join(lines) + "\n")
        files.append(file)
    whole = folder / f"all-{clients}.csv"
    heads = [file.read_text().splitlines() for file in files]
    whole.write_text("\n".join([heads[0][0], *(line for one in heads for line in one[1:])]) + "\n")
    return [whole, *files]


def table_of(file: Path) -> dict[str, Any]:
    """The section `[data]` of a table."""
    plain = {"client": "ward", "label": "ill", "test": "part", "standardize": "none"}
    return {"table": str(file)} | plain


def experiment(clients: int, sections: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment without data."""
    return {
        "rounds": ROUNDS,
        "model": {"name": "logistic"},
        "cohort": {"clients_per_round": clients, "sampling": "bernoulli"},
        "solver": {"learning_rate": 0.1, "batch_size": 20, "epochs": 2},
        "evaluation": {"gradients": False},
        "method": [{"name": "fedavg"}],
        **copy.deepcopy(dict(sections)),
    }


def accuracy(folder: Path, clients: int, sections: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and standard deviation of the last test accuracy, in per cent.

    Under secure sums each node adds the noise that hides a client by itself, so a sum has that of
    all nodes. With a guarantee of its own a site has one client. What runs chose is inside the
    guarantee, and what is printed here is not: the accuracy of a model with noised measures is
    measured again, without noise.
    """
    whole = patients(folder, clients)[0]
    table = experiment(clients, {k: v for k, v in sections.items() if k != "deployment"})
    table["data"], table["seed"] = table_of(whole), list(range(SEEDS))
    runs = simulated(folder, table)
    if "deployment" in sections and table.get("privacy", {}).get("unit") == "client":
        del table["privacy"]["epsilon"]
        table["privacy"]["noise_multiplier"] = math.sqrt(HOSPITALS) * runs[0].noise_multiplier
        runs = simulated(folder, table)
    federation = fp.Federation.from_table(
        whole, client="ward", label="ill", test="part", standardize=None
    )
    model = fp.models.logistic(federation)
    found = [100 * fp.evaluate(model, run.params, federation).test_accuracy for run in runs]
    return float(np.mean(found)), float(np.std(found, ddof=1))


def simulated(folder: Path, table: Mapping[str, Any]) -> list[Any]:
    """The runs of an experiment."""
    file = folder / "simulated.toml"
    file.write_text(tomli_w.dumps(table))
    return fp.run(file, progress=False)


@contextmanager
def nodes(
    folder: Path, superlink: LocalSuperLink, privacy: Mapping[str, Any], *, secure: bool
) -> Iterator[None]:
    """A node for each hospital, which answers until it is stopped."""
    own = [folder / f"hospital-{i}" for i in range(HOSPITALS)]
    keys = {each.name: make_node_key(each)[1] for each in own}
    programs = []
    for each, data in zip(own, patients(folder, CLIENTS[1])[1:], strict=True):
        superlink.register(keys[each.name])
        peers = {name: str(key) for name, key in keys.items() if name != each.name}
        policy = {"secure": {"threshold": 3, "peers": peers}} if secure else {}
        file = each / "node.toml"
        table = {
            "name": each.name,
            "superlink": superlink.address,
            "ca_certificate": str(superlink.ca_certificate),
            "key": "node.key",
            "folder": "state",
            "data": table_of(data),
            "policy": {**policy, **({"privacy": dict(privacy)} if privacy else {})},
        }
        file.write_text(tomli_w.dumps(table))
        programs.append(Child("fedprox.cli:main", ["node", str(file)], each / "node.log"))
    with running(programs):
        yield


def seconds(sections: Mapping[str, Any], privacy: Mapping[str, Any]) -> float:
    """The median seconds of a round of a deployment."""
    given = {k: dict(v) for k, v in sections.items()}
    if privacy:
        del given["privacy"]  # each site has it of its own
    given["deployment"] = {"nodes": HOSPITALS} | given.get("deployment", {})
    with tempfile.TemporaryDirectory() as name, local_superlink(Path(name) / "link") as superlink:
        folder = Path(name)
        known = {
            "address": superlink.address,
            "ca_certificate": str(superlink.ca_certificate),
            "secret": str(superlink.secret),
        }
        (folder / "superlink.toml").write_text(tomli_w.dumps(known))
        (folder / "run.toml").write_text(tomli_w.dumps(experiment(CLIENTS[1], given)))
        with nodes(folder, superlink, privacy, secure="secure" in given["deployment"]):
            command = [sys.executable, "-m", "fedprox", "deploy", "run.toml", "--out", "out"]
            command += ["--superlink", "superlink.toml"]
            done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        (run,) = read_archive(folder / "out").runs
    return statistics.median(record.value("seconds") for record in run.history[2:])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each guarantee that is named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*GUARANTEES], metavar="NAME")
    accuracies = (f"accuracy, {clients} clients, %" for clients in CLIENTS)
    shown = table("guarantee", *accuracies, "seconds a round", "of none")
    for name in parser.parse_args(arguments).names:
        sections, privacy = GUARANTEES[name]
        with tempfile.TemporaryDirectory() as folder:
            cells = [
                "{:.1f} ± {:.1f}".format(*accuracy(Path(folder), clients, sections))
                for clients in CLIENTS
            ]
        turns = [(seconds({}, {}), seconds(sections, privacy)) for _ in range(TURNS)]
        plain, own = (statistics.median(each) for each in zip(*turns, strict=True))
        add(shown, name, *cells, f"{own:.3f}", f"{own / plain:.2f}")
    show(shown)


if __name__ == "__main__":
    main()
