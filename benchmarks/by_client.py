"""The cost of measuring the clients one by one.

    python -m benchmarks.by_client [--data-dir DIR]

Logistic regression, FedAvg, 10 clients a round, B = 10, E = 1, an evaluation of all clients after
every round: Synthetic(1,1) over 30 clients, and MNIST over the 1,000 clients of the power law, each
with and without gradients. The same rounds run as usual, with `by_client`, and with
`client_records` too, whose lines are written and flushed as in a run directory. The variants
alternate in this process, and the least of each counts: of the seconds of a run, and of those of
all its cores, which include planning in the background and depend less on what else the machine
does. Final losses and accuracies must agree.
"""

import argparse
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import fedprox as fp
from benchmarks.page import show, table
from fedprox.report.client_lines import ClientLines

TURNS = 5
ROUNDS = {"Synthetic(1,1)": 200, "MNIST": 30}
VARIANTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "by client": {"by_client": True},
    "client records": {"by_client": True, "client_records": True},
}


def train(
    federation: fp.Federation, variant: str, rounds: int, folder: Path, *, gradients: bool
) -> tuple[fp.Run, float, float]:
    """A run of some rounds with a key of `VARIANTS`, and its seconds and processor seconds.

    They are from the first record to the last.
    """
    evaluation = fp.Evaluation(gradients=gradients, **VARIANTS[variant])
    lines = ClientLines(folder, resumed=False)

    times: list[tuple[float, float]] = []

    def write(record: fp.Record) -> None:
        times.append((time.perf_counter(), time.process_time()))
        if record.by_client is not None:
            lines.add(record)

    (run,) = fp.simulate(
        federation,
        fp.models.logistic(federation),
        fp.fedavg(),
        solver=fp.Solver(0.03, 10, epochs=1),
        cohort=fp.Cohort(10),
        rounds=rounds,
        evaluation=evaluation,
        callbacks=[fp.Callback(on_record=write)],
        progress=False,
    )
    lines.close()
    seconds, processor = (end - begin for begin, end in zip(times[0], times[-1], strict=True))
    return run, seconds, processor


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    title = "milliseconds a round and its evaluation, and ratios to usual"
    headers = ("data", "gradients", "milliseconds of", *VARIANTS, *list(VARIANTS)[1:])
    shown = table(*headers, title=title, left=3)
    data: dict[str, Any] = {
        "Synthetic(1,1)": fp.datasets.synthetic(1.0, 1.0),
        "MNIST": fp.datasets.mnist("power-law", data_dir=arguments.data_dir),
    }
    for name, federation in data.items():
        for gradients in (True, False):
            least = measure(federation, ROUNDS[name], gradients=gradients)
            for kind, of in enumerate(("clock", "cores")):
                times = [1000 * least[variant][kind] / ROUNDS[name] for variant in VARIANTS]
                ratios = (f"{t / times[0]:.2f}" for t in times[1:])
                cells = (f"{t:.2f}" for t in times)
                shown.add_row(name, "yes" if gradients else "no", of, *cells, *ratios)
    show(shown)


def measure(
    federation: fp.Federation, rounds: int, *, gradients: bool
) -> dict[str, tuple[float, float]]:
    """The least seconds and processor seconds of each variant."""
    least = dict.fromkeys(VARIANTS, (math.inf, math.inf))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            finals = set()
            for variant in VARIANTS:
                run, *seconds = train(
                    federation, variant, rounds, Path(folder), gradients=gradients
                )
                least[variant] = (
                    min(least[variant][0], seconds[0]),
                    min(least[variant][1], seconds[1]),
                )
                finals.add((run.final.train_loss, run.final.test_accuracy))
            if len(finals) > 1:
                raise SystemExit(f"results differ: {finals}")
        size = (Path(folder) / "clients.jsonl").stat().st_size / (rounds + 1) / len(federation)
        print(f"{size:.0f} bytes of clients.jsonl for each client and record")
    return least


if __name__ == "__main__":
    main()
