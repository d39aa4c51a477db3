"""A grid of 16 points as one sweep against 16 single runs.

    python -m benchmarks.sweeps [--data-dir DIR]

Four learning rates times four values of mu of FedProx on MNIST, 10 clients a round, E = 1: logistic
regression over the 1,000 clients of the power law, and FedAvg's 2NN over 100 IID clients. The
initial and the final model are evaluated, without gradients. Single runs and sweeps alternate in
this process, the shortest time counts, and the losses of the point that runs alone must agree. Only
one point runs alone; its time is multiplied by 16, because all points do the same work.

*Single run* and *sweep* are seconds of compilation and of the rest. Among the ratios, *warm* is
without compilation, *cold* with it, *processes* also adds the time in which a new process imports
the library and reads the data, and *processor* is *cold* in processor seconds, which other work on
the machine disturbs less.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

import fedprox as fp
from benchmarks.page import add, show, table

RATES = (0.02, 0.05, 0.1, 0.2)
MUS = (0.0, 0.01, 0.1, 1.0)
POINTS = len(RATES) * len(MUS)
TURNS = 2
PARTITIONS: dict[str, Literal["power-law", "iid"]] = {
    "logistic regression": "power-law",
    "2NN": "iid",
}


class Seconds(NamedTuple):
    """Times of a run, in seconds.

    Attributes:
        compile: Wall-clock time of compilation.
        run: Wall-clock time of rounds and evaluations.
        processor: Processor time of the whole call, over all cores.
    """

    compile: float
    run: float
    processor: float


def run(
    federation: fp.Federation,
    name: str,
    batch: int,
    rounds: int,
    rates: Sequence[float],
    mus: Sequence[float],
) -> tuple[fp.Run, Seconds]:
    """The first run of a sweep, and the sweep's times."""
    mlp = name == "2NN"
    begin = time.process_time()
    first, *_ = fp.simulate(
        federation,
        fp.models.mlp(federation, hidden=[200, 200]) if mlp else fp.models.logistic(federation),
        fp.fedprox(mu=mus),
        solver=fp.Solver(rates, batch, epochs=1),
        cohort=fp.Cohort(10),
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, gradients=False),
    )
    processor = time.process_time() - begin
    return first, Seconds(first.compile_seconds, first.run_seconds, processor)


def least(turns: list[Seconds]) -> Seconds:
    """The least value of each time."""
    return Seconds(*map(min, zip(*turns, strict=True)))


def start(name: str, data_dir: str | None) -> float:
    """Seconds in which a new process imports the library and reads the data."""
    code = "import sys, fedprox; fedprox.datasets.mnist(sys.argv[1], data_dir=sys.argv[2] or None)"
    command = [sys.executable, "-c", code, PARTITIONS[name], data_dir or ""]
    times = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        times.append(time.perf_counter() - begin)
    return min(times)


def compare(
    federation: fp.Federation, name: str, batch: int, rounds: int, alone: float
) -> tuple[str, ...]:
    """A row of the table; `alone` is the time in which a process starts."""
    ones, sweeps = [], []
    for _ in range(TURNS):
        single, seconds = run(federation, name, batch, rounds, RATES[:1], MUS[:1])
        ones.append(seconds)
        together, seconds = run(federation, name, batch, rounds, RATES, MUS)
        sweeps.append(seconds)
        loss, expected = together.final.train_loss, single.final.train_loss
        if abs(loss - expected) > 1e-3 * expected:
            raise SystemExit(f"{name}: losses differ, {loss} against {expected}")
    one, sweep = least(ones), least(sweeps)
    cold = one.compile + one.run, sweep.compile + sweep.run
    processes = cold[0] + alone, cold[1] + alone
    return (
        name,
        str(batch),
        str(rounds),
        f"{one.compile:.2f} + {one.run:.2f}",
        f"{sweep.compile:.2f} + {sweep.run:.2f}",
        f"{POINTS * one.run / sweep.run:.2f}",
        f"{POINTS * cold[0] / cold[1]:.1f}",
        f"{POINTS * processes[0] / processes[1]:.1f}",
        f"{POINTS * one.processor / sweep.processor:.1f}",
    )


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    parser.add_argument("--rounds", type=int, nargs="+", default=[5, 20])
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    headers = "model,B,rounds,single run,sweep,warm,cold,processes,processor"
    title = "16 single runs against a sweep of 16, seconds and ratios"
    shown = table(*headers.split(","), title=title)
    for name, partition in PARTITIONS.items():
        federation = fp.datasets.mnist(partition, data_dir=arguments.data_dir)
        alone = start(name, arguments.data_dir)
        print(f"{name}: a process starts in {alone:.2f} s")
        for batch in (10, 50):
            for rounds in arguments.rounds:
                add(shown, *compare(federation, name, batch, rounds, alone))
    show(shown)


if __name__ == "__main__":
    main()
