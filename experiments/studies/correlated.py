"""Correlated noise against independent noise, at the same epsilon, with clients as the unit.

With cyclic cohorts noise is independent, or correlated by banded or BLT strategies; no
amplification is counted. Against them, independent noise with Poisson samples, whose amplification
holds only if who takes part stays secret.
"""

from typing import NamedTuple

from experiments.engine.item import Claim, Comparison, Item, Line, Panel, Table, Values
from experiments.engine.series import ACCURACY, LOWEST
from experiments.engine.summaries import FINAL

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA, CLIP, GROUPS = 1e-4, 0.5, 10
INDEPENDENT, BANDED, BLT, POISSON = MECHANISMS = (
    "cyclic, independent",
    "cyclic, banded",
    "cyclic, BLT",
    "Poisson, independent",
)
NAMES = {INDEPENDENT: "independent", BANDED: "banded", BLT: "blt", POISSON: "independent"}
CLIPPING = "clipping alone"
ALIKE = 0.02
"""The largest difference of accuracies that counts as none."""


class Task(NamedTuple):
    """A data set whose clients are writers.

    Attributes:
        key: The end of the item's name.
        title: The data set's name.
        data: `[data]`.
        clients: Clients.
        seconds: Time by scale on two cores.
    """

    key: str
    title: str
    data: Table
    clients: int
    seconds: dict[str, float]


TASKS = (
    Task(
        "mnist",
        "MNIST",
        {"name": "mnist", "partition": "writers"},
        836,
        {"short": 450.0, "paper": 1000.0},
    ),
    Task(
        "femnist",
        "FEMNIST",
        {"name": "femnist", "partition": "writers", "clients": 300},
        300,
        {"short": 700.0, "paper": 2700.0},
    ),
)


def experiment(task: Task, mechanism: str, epsilon: float | None) -> Table:
    """The experiment of a mechanism at an epsilon; None for clipping without noise."""
    sampling: Table = {"sampling": "cyclic", "min_separation": GROUPS}
    if mechanism == POISSON:
        sampling = {"sampling": "bernoulli"}
    noise: Table = {"noise_multiplier": 0.0} if epsilon is None else {"epsilon": epsilon}
    return {
        "rounds": 100,
        "data": task.data,
        "evaluation": {"gradients": False, "every": 10},
        "solver": {"learning_rate": [0.01, 0.03, 0.1], "batch_size": 10, "epochs": 5},
        "cohort": {"clients_per_round": task.clients // GROUPS, **sampling},
        "privacy": {"clip": CLIP, "delta": DELTA, "mechanism": NAMES[mechanism], **noise},
        "method": [{"name": "fedavg"}],
    }


def place(task: Task, epsilon: float) -> str:
    """The name of the lines of an epsilon."""
    return f"{task.title}, epsilon = {epsilon:g}"


def study(task: Task) -> Item:
    """The study on a data set."""
    runs: dict[str, Table] = {}
    joined: dict[str, dict[str, dict[str, str]]] = {}
    for epsilon in EPSILONS:
        for mechanism in MECHANISMS:
            run = f"correlated-{task.key}-{mechanism}-{epsilon:g}"
            runs[run] = experiment(task, mechanism, epsilon)
            joined.setdefault(place(task, epsilon), {})[run] = {"fedavg": mechanism}
    without = f"correlated-{task.key}-{CLIPPING}"
    runs[without] = experiment(task, INDEPENDENT, None)

    def line(mechanism: str, epsilon: float) -> Line:
        return Line(place(task, epsilon), f"{LOWEST}{mechanism}")

    def claim(
        text: str,
        better: str,
        worse: str,
        epsilons: tuple[float, ...] = EPSILONS,
        alike: float | None = None,
    ) -> Claim:
        """That a mechanism is more accurate than another, or about as accurate."""
        comparisons = tuple(
            Comparison(f"epsilon = {epsilon:g}", line(better, epsilon), line(worse, epsilon))
            for epsilon in epsilons
        )
        return Claim(text, ACCURACY, FINAL, comparisons, alike, by="by the claim")

    least, most = EPSILONS[0], EPSILONS[-1]
    plain = Line(without, f"{LOWEST}fedavg")
    return Item(
        f"Correlated noise at the same epsilon: {task.title}",
        "A study of this library",
        task.seconds,
        runs,
        (
            tuple(
                Panel(
                    f"epsilon = {epsilon:g}",
                    ACCURACY,
                    (place(task, epsilon),),
                    tuple(f"{LOWEST}{mechanism}" for mechanism in MECHANISMS),
                )
                for epsilon in EPSILONS
            ),
        ),
        (
            claim(
                "With cyclic cohorts, banded noise is more accurate than independent noise.",
                BANDED,
                INDEPENDENT,
            ),
            claim("So is BLT noise.", BLT, INDEPENDENT),
            claim("BLT noise is as accurate as banded noise.", BLT, BANDED, alike=ALIKE),
            claim(
                "At the smallest epsilon, Poisson samples with independent noise are more accurate "
                "than cyclic cohorts with correlated noise.",
                POISSON,
                BANDED,
                (least,),
            ),
            claim("At the largest it is the other way.", BANDED, POISSON, (most,)),
        ),
        values=(
            Values(
                "Test accuracy at the end.",
                ((ACCURACY, FINAL),),
                (*MECHANISMS, CLIPPING),
                tuple(
                    (
                        f"epsilon = {epsilon:g}",
                        (*(line(mechanism, epsilon) for mechanism in MECHANISMS), plain),
                    )
                    for epsilon in EPSILONS
                ),
            ),
        ),
        joined=joined,
        notes=(
            f"FedAvg of logistic regression with {task.clients // GROUPS} of {task.clients} "
            "writers a round, five epochs of SGD in batches of 10, clipping norm "
            f"{CLIP:g} and delta = {DELTA:g}. Cyclic cohorts are {GROUPS} rounds apart. All seeds "
            "have one draw of the data.",
            "Each mechanism tries three learning rates. The lowest final training loss, mean over "
            "seeds, chooses one for all seeds, which the guarantee does not cover.",
        ),
    )


ITEMS = {f"correlated-{task.key}": study(task) for task in TASKS}
"""The study of correlated noise."""
