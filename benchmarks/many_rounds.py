"""The time and memory until a run's first record, by the number of its rounds.

    python -m benchmarks.many_rounds

Logistic regression on Synthetic(1,1), an evaluation every 100 rounds. Each run has a separate
process and ends at the first evaluation after that of the initial model. *Seconds* are from the
call of `simulate` to that evaluation, compilation included; *MB* is the process's greatest memory.
"""

import json
import resource
import subprocess
import sys
import time

import fedprox as fp
from benchmarks.page import show, table

CASES = ((30, 10, 1, (10**3, 10**5, 10**7)), (1000, 1000, 5, (10**3, 5 * 10**3, 10**7)))
"""Clients, clients of a round, seeds, and several numbers of rounds."""


class FirstRoundsDone(BaseException):
    """Raised to end a run after its first rounds."""


def measure(clients: int, cohort: int, seeds: int, rounds: int) -> None:
    """Print the seconds and the megabytes of one run, as JSON."""
    fp.use_cpu_devices(cohort)
    federation = fp.datasets.synthetic(1.0, 1.0, clients=clients)
    model = fp.models.logistic(federation)
    begin = time.perf_counter()

    def stop_after_first(record: fp.Record) -> None:
        if record.round:
            raise FirstRoundsDone

    try:
        fp.simulate(
            federation,
            model,
            fp.fedprox(mu=1.0),
            solver=fp.Solver(0.01, 10, epochs=1),
            cohort=fp.Cohort(cohort),
            systems=fp.Systems(stragglers=0.5),
            rounds=rounds,
            evaluation=fp.Evaluation(every=100, gradients=False),
            seed=list(range(seeds)),
            callbacks=[fp.Callback(on_record=stop_after_first)],
        )
    except FirstRoundsDone:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(json.dumps([time.perf_counter() - begin, memory]))


def main() -> None:
    """Print a line for each number of rounds."""
    if len(sys.argv) > 1:
        measure(*map(int, sys.argv[1:]))
        return
    shown = table("clients", "a round", "seeds", "rounds", "seconds", "MB", left=0)
    for clients, cohort, seeds, round_counts in CASES:
        for rounds in round_counts:
            case = (clients, cohort, seeds, rounds)
            command = [sys.executable, "-m", "benchmarks.many_rounds", *map(str, case)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, memory = json.loads(done.stdout)
            cells = (f"{clients:,}", f"{cohort:,}", f"{seeds}", f"{rounds:,}")
            shown.add_row(*cells, f"{seconds:.1f}", f"{memory:.0f}")
    show(shown)


if __name__ == "__main__":
    main()
