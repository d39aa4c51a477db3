"""What an asynchronous step costs beside a round with a barrier, and what its events cost.

    python -m benchmarks.asynchronous [--data-dir DIR]

FedProx with mu = 0.1, batches of 10 and 30 steps for each client, so that both do the same work: a
round of 10 clients, and a step of the server at 10 updates with 20 clients at work, whose states
start from a ring of 11. The two alternate in this process, and the shortest run counts. Events are
those of a million clients, 1,000 at work, without training.
"""

import argparse
import itertools
import math
import os
import time

import numpy as np

import fedprox as fp
from benchmarks.page import show, table
from fedprox.protocol.protocol import Protocol

TURNS, CLIENTS, AT_WORK, EVENTS = 5, 10**6, 1000, 50_000
SPEEDS = fp.Population(fp.LogNormal(1.0, spread=1.0))
RULES = {
    "barrier": (fp.Cohort(10), None),
    "buffer": (fp.Cohort(20), fp.Asynchronous(10, most_staleness=10)),
}
POPULATIONS = {
    "speeds": SPEEDS,
    "losses": fp.Population(SPEEDS.step_seconds, dropout=0.1),
    "hours": fp.Population(SPEEDS.step_seconds, available=fp.DayNight()),
}


def milliseconds(federation: fp.Federation, model: fp.Model, rule: str, rounds: int) -> float:
    """Milliseconds of a round, or of a step."""
    cohort, asynchronous = RULES[rule]
    (run,) = fp.simulate(
        federation,
        model,
        fp.fedprox(mu=0.1),
        solver=fp.Solver(0.01, batch_size=10, steps=30),
        cohort=cohort,
        population=SPEEDS,
        asynchronous=asynchronous,
        rounds=rounds,
        evaluation=fp.Evaluation(every=rounds, rows=1, gradients=False),
        progress=False,
    )
    return 1000 * run.run_seconds / rounds


def microseconds(population: fp.Population, buffer: int) -> float:
    """Microseconds of an event, a client that starts and is done."""
    x, offsets = np.zeros((CLIENTS, 1), np.float32), np.arange(CLIENTS + 1)
    rows = fp.Rows(x, np.zeros(CLIENTS, np.int64), offsets)
    none = fp.Rows(x[:0], rows.y[:0], 0 * offsets)
    federation = fp.Federation(rows, none, classes=2, names=list(map(str, range(CLIENTS))))
    solver = fp.Solver(0.01, batch_size=10, steps=30)
    protocol = Protocol(
        federation=federation,
        model=fp.models.logistic(federation),
        solver=solver,
        cohort=fp.Cohort(AT_WORK),
        rounds=EVENTS,
        evaluation=fp.Evaluation(gradients=False),
        seeds=(0,),
        population=population,
        asynchronous=fp.Asynchronous(buffer, most_staleness=10_000),
    )
    steps = protocol.steps(fp.fedavg(), solver, 0)
    assert steps is not None
    next(steps)
    begin = time.perf_counter()
    lost = sum(step.lost for step in itertools.islice(steps, EVENTS // buffer))
    return 1e6 * (time.perf_counter() - begin) / (EVENTS + lost)


def main() -> None:
    """Run all and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("FEDPROX_DATA"))
    arguments = parser.parse_args()
    fp.use_cpu_devices(10)
    synthetic = fp.datasets.synthetic()
    mnist = fp.datasets.mnist("power-law", data_dir=arguments.data_dir)
    problems = {
        "logistic, Synthetic(1,1)": (synthetic, fp.models.logistic(synthetic), 400),
        "logistic, MNIST": (mnist, fp.models.logistic(mnist), 300),
        "2NN, MNIST": (mnist, fp.models.mlp(mnist, hidden=[200, 200]), 40),
        "CNN, MNIST": (mnist, fp.models.mnist_cnn(mnist), 3),
    }
    shown = table("model", *RULES, "buffer / barrier", title="milliseconds for ten updates")
    for name, (federation, model, rounds) in problems.items():
        times = dict.fromkeys(RULES, math.inf)
        for _ in range(TURNS):
            for rule in RULES:
                times[rule] = min(times[rule], milliseconds(federation, model, rule, rounds))
        ratio = times["buffer"] / times["barrier"]
        shown.add_row(name, *(f"{each:.2f}" for each in times.values()), f"{ratio:.2f}")
    title = "microseconds for an event of a million clients"
    events = table("buffer", *POPULATIONS, title=title, left=0)
    for buffer in (1, 10, 100):
        cells = [microseconds(population, buffer) for population in POPULATIONS.values()]
        events.add_row(str(buffer), *(f"{each:.1f}" for each in cells))
    show(shown, events)


if __name__ == "__main__":
    main()
