"""One process with one CPU device, one with two, and two processes over the loopback.

    python -m benchmarks.processes

Each setting runs `fedprox run` on MNIST with FedAvg, E = 20 and B = 10. The settings alternate, and
the shortest time counts. Times are the `run_seconds` of `summary.json`: all rounds and two small
evaluations, without compilation. MNIST's files come from `FEDPROX_DATA` or a download.
"""

import json
import math
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.page import show, table

TURNS = 3
EXPERIMENT = """
evaluation = {{every = {rounds}, rows = 1, gradients = false}}
data = {{name = "mnist", partition = "{partition}"}}
model = {{{model}}}
solver = {{learning_rate = 0.03, batch_size = 10, epochs = {epochs}}}
cohort = {{clients_per_round = {clients}}}
rounds = {rounds}
method = [{{name = "fedavg"}}]
"""
PROBLEMS = {
    "logistic regression, 10 clients a round": ("power-law", 'name = "logistic"', 20, 10, 300),
    "logistic regression, 100": ("power-law", 'name = "logistic"', 20, 100, 60),
    "2NN, 10": ("iid", 'name = "mlp", hidden = [200, 200]', 1, 10, 20),
}
SETTINGS = {"1 process, 1 device": (1, 1), "1 process, 2 devices": (1, 2), "2 processes": (2, 1)}


def seconds(folder: Path, experiment: Path, processes: int, devices: int) -> float:
    """The time of the rounds of a run."""
    out = folder / "run"
    command = [str(Path(sys.executable).with_name("fedprox")), "run", str(experiment)]
    command += ["--devices", str(devices), "--out", str(out)]
    options: list[list[str]] = [[]]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        shared = ["--coordinator", address, "--processes", str(processes), "--process"]
        options = [[*shared, str(i)] for i in range(processes)]
    started = [subprocess.Popen(command + each, stdout=subprocess.DEVNULL) for each in options]
    statuses = [process.wait() for process in started]
    if any(statuses):
        raise SystemExit(f"{experiment}: a process failed")
    (run,) = json.loads((out / "summary.json").read_text())
    out.rename(folder / f"done-{len(list(folder.iterdir()))}")
    return float(run["run_seconds"])


def main() -> None:
    """Print a line for each problem."""
    headers = ("model", *SETTINGS, "2 devices / 1", "2 processes / 1")
    shown = table(*headers, title="milliseconds a round")
    for name, (partition, model, epochs, clients, rounds) in PROBLEMS.items():
        least = dict.fromkeys(SETTINGS, math.inf)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            experiment = folder / "experiment.toml"
            experiment.write_text(
                EXPERIMENT.format(
                    partition=partition, model=model, epochs=epochs, clients=clients, rounds=rounds
                )
            )
            for _ in range(TURNS):
                for setting, counts in SETTINGS.items():
                    took = 1e3 * seconds(folder, experiment, *counts) / rounds
                    least[setting] = min(least[setting], took)
        one, two_devices, two_processes = least.values()
        times = (f"{ms:.1f}" for ms in least.values())
        shown.add_row(name, *times, f"{one / two_devices:.2f}", f"{one / two_processes:.2f}")
    show(shown)


if __name__ == "__main__":
    main()
