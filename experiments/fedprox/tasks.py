"""Li et al. 2020: the data sets with their models and settings.

The experiments have batches of 10, 10 clients a round, E = 20 and the learning rates of section 5.1
and appendix C.2. For the five data sets of Figure 1 the best mu is 1, 1, 1, 0.001 and 0.01 (section
5.3.2), and the figures show 200, 100, 200, 40 and 800 rounds.
"""

from experiments.common import FEDAVG, FEDPROX_PAPER, FEWER_TWEETS, SMALLER_MODEL, fedprox
from experiments.engine.item import Table, Task
from experiments.fedprox.common import FEWER_LETTERS, synthetic_tasks

PAPER = FEDPROX_PAPER

SYNTHETIC = synthetic_tasks(10)
IID, HETEROGENEOUS, MOST = SYNTHETIC[0], SYNTHETIC[1:], SYNTHETIC[3]
MNIST = Task("mnist", "MNIST", {"name": "mnist"}, 0.03, 1.0, 100)
FEMNIST = Task("femnist", "FEMNIST", {"name": "femnist"}, 0.003, 1.0, 200, note=FEWER_LETTERS)
SHAKESPEARE = Task(
    "shakespeare",
    "Shakespeare",
    {"name": "shakespeare"},
    0.8,
    0.001,
    40,
    note="25 windows of a role in place of 3,616, 10 of them measured",
    model={"name": "char-lstm"},
    client_rows=25,
    evaluation={"every": 2, "rows": 10},
    seeds=1,
)
SENT140 = Task(
    "sent140",
    "Sent140",
    {"name": "sent140", "vocabulary": 2000},
    0.3,
    0.01,
    200,
    note=f"200 rounds in place of 800, words as in the code, {FEWER_TWEETS}, {SMALLER_MODEL}",
    model={"name": "sentiment-lstm", "hidden": 100, "embedding": 50},
    evaluation={"every": 5},
    seeds=1,
)
FIVE = (MOST, MNIST, FEMNIST, SHAKESPEARE, SENT140)
STRAGGLERS = (0.0, 0.5, 0.9)

LOGISTIC = (*SYNTHETIC, MNIST, FEMNIST)
"""The data sets of logistic regression."""

ONE_DRAW = (
    "The paper has one draw of each synthetic set, which its code does not seed; ours has one for "
    "each seed. In Synthetic(alpha, beta) alpha moves the scores of all classes alike, so that the "
    "sets differ in beta alone."
)


def run_key(task: Task, stragglers: float, epochs: int = 20) -> str:
    """The name of `with_stragglers`."""
    return f"{task.key}-s{100 * stragglers:.0f}" + ("" if epochs == 20 else f"-e{epochs}")


def with_stragglers(task: Task, stragglers: float, epochs: int = 20) -> Table:
    """FedAvg (without stragglers it equals mu = 0), mu = 0, and with E = 20 the best mu."""
    methods = [FEDAVG] if stragglers else []
    mus = (0.0, task.mu) if epochs == 20 else (0.0,)
    return task.experiment(*methods, fedprox(*mus), stragglers=stragglers, epochs=epochs)


def runs_of(
    tasks: tuple[Task, ...], stragglers: tuple[float, ...], epochs: int = 20
) -> dict[str, Table]:
    """`with_stragglers` by name, for each data set and share of stragglers."""
    return {
        run_key(task, s, epochs): with_stragglers(task, s, epochs)
        for s in stragglers
        for task in tasks
    }
