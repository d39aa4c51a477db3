"""Which part of a method helps: the proximal term, partial work, or the server's step.

All products of {plain, proximal} local problems, {mean, Adam, momentum, extrapolation} on the
server and {keep, drop} of stragglers' partial work, with 0, 50 and 90 % of stragglers. Each has as
many settings, of the learning rate and of its own numbers, of which the lowest final training loss
chooses one for all seeds.
"""

from typing import Any, NamedTuple

from experiments.engine.item import Claim, Comparison, Item, Line, Panel, Table, Values
from experiments.engine.series import ACCURACY, LOSS, LOWEST
from experiments.engine.summaries import FINAL

SHARES = (0.0, 0.5, 0.9)
"""Shares of stragglers."""

PLAIN, PROXIMAL = LOCALS = ("plain", "proximal")
MUS = (0.1, 1.0)

MEAN, ADAM, MOMENTUM, EXTRAPOLATION = "mean", "Adam", "momentum", "extrapolation"
RULES: dict[str, Table | None] = {
    MEAN: None,
    ADAM: {"name": "adam", "learning_rate": [0.01, 0.1]},
    MOMENTUM: {"name": "momentum", "learning_rate": [0.3, 1.0]},
    EXTRAPOLATION: {"name": "extrapolate", "epsilon": [0.001, 0.1]},
}
"""`server` of a method by name, with two numbers each."""

KEEP, DROP = CHOICES = ("keep", "drop")

SETTINGS = 8
"""Settings of each product."""

MULTIPLES = {8: (0.1, 0.2, 0.5, 1, 2, 5, 10, 20), 4: (0.3, 1, 3, 10), 2: (1, 3)}
"""Learning rates as multiples of a data set's, by how many there are."""


class Task(NamedTuple):
    """A data set, with the learning rate that the papers use on it, and the number of rounds.

    Attributes:
        key: The end of the item's name.
        title: The data set's name.
        data: Its section.
        rate: The papers' learning rate.
        rounds: Rounds at the paper's scale.
        seconds: What the scales took on two cores beside other work.
    """

    key: str
    title: str
    data: Table
    rate: float
    rounds: int
    seconds: dict[str, float]


TASKS = (
    Task(
        *("synthetic", "Synthetic(1,1)", {"name": "synthetic", "alpha": 1.0, "beta": 1.0}),
        *(0.01, 200, {"short": 114.0, "paper": 2460.0}),
    ),
    Task("mnist", "MNIST", {"name": "mnist"}, 0.03, 100, {"short": 102.0, "paper": 1140.0}),
    Task("femnist", "FEMNIST", {"name": "femnist"}, 0.003, 100, {"short": 69.0, "paper": 840.0}),
)


def product(local: str, rule: str, choice: str) -> str:
    """The name of a product.

    >>> product(PROXIMAL, ADAM, KEEP)
    'proximal, Adam, keep'
    """
    return f"{local}, {rule}, {choice}"


def place(task: Task, share: float) -> str:
    """The name of the lines of a data set and a share of stragglers."""
    return f"{task.title}, {share:.0%} stragglers"


def method(local: str, rule: str, choice: str) -> Table:
    """`[[method]]` of a product."""
    table: Table = {"name": "fedavg"} if local == PLAIN else {"name": "fedprox", "mu": list(MUS)}
    server = RULES[rule]
    return table | {"stragglers": choice} | ({} if server is None else {"server": server})


def experiment(task: Task, share: float, local: str, rule: str, choice: str) -> Table:
    """The experiment of a product."""
    own = (1 if local == PLAIN else len(MUS)) * (1 if RULES[rule] is None else 2)
    rates = [round(task.rate * each, 6) for each in MULTIPLES[SETTINGS // own]]
    return {
        "rounds": task.rounds,
        "data": task.data,
        "evaluation": {"gradients": False, "every": 10},
        "solver": {"learning_rate": rates, "batch_size": 10, "epochs": 20},
        "cohort": {"clients_per_round": 10},
        "systems": {"stragglers": share},
        "method": [method(local, rule, choice)],
    }


def line(task: Task, share: float, local: str, rule: str, choice: str) -> Line:
    """A product with the setting that the training loss chooses."""
    return Line(place(task, share), f"{LOWEST}{product(local, rule, choice)}")


def choices(share: float) -> tuple[str, ...]:
    """Without stragglers there is nothing to drop."""
    return CHOICES if share else (KEEP,)


def study(task: Task) -> Item:
    """The study on a data set."""
    runs: dict[str, Table] = {}
    joined: dict[str, dict[str, dict[str, str]]] = {}
    for share in SHARES:
        for local in LOCALS:
            for rule in RULES:
                for choice in choices(share):
                    run = f"composition-{task.key}-{share:.0%}-{local}-{rule}-{choice}"
                    runs[run] = experiment(task, share, local, rule, choice)
                    name = runs[run]["method"][0]["name"]
                    words = {name: product(local, rule, choice)}
                    joined.setdefault(place(task, share), {})[run] = words

    def claim(text: str, better: tuple[str, str, str], worse: tuple[str, str, str]) -> Claim:
        """That a product has the lower loss, where both are run."""
        shares = [s for s in SHARES if {better[2], worse[2]} <= {*choices(s)}]
        comparisons = tuple(
            Comparison(place(task, s), line(task, s, *worse), line(task, s, *better))
            for s in shares
        )
        return Claim(text, LOSS, FINAL, comparisons, by="by the claim")

    def row(share: float, local: str, choice: str) -> tuple[str, tuple[Line, ...]]:
        title = f"{share:.0%} stragglers, {local}, {choice}"
        return title, tuple(line(task, share, local, rule, choice) for rule in RULES)

    kept: tuple[Any, ...] = tuple((local, rule, KEEP) for local in LOCALS for rule in RULES)
    return Item(
        f"Which part helps: {task.title}",
        "A study of this library",
        task.seconds,
        runs,
        (
            tuple(
                Panel(
                    place(task, share),
                    LOSS,
                    (place(task, share),),
                    tuple(line(task, share, *each).label for each in kept),
                )
                for share in SHARES
            ),
        ),
        (
            claim("Partial work lowers FedAvg's loss.", (PLAIN, MEAN, KEEP), (PLAIN, MEAN, DROP)),
            claim(
                "The proximal term lowers the loss of FedAvg that keeps partial work.",
                (PROXIMAL, MEAN, KEEP),
                (PLAIN, MEAN, KEEP),
            ),
            *(
                claim(
                    f"On the server, {rule} lowers FedProx's loss.",
                    (PROXIMAL, rule, KEEP),
                    (PROXIMAL, MEAN, KEEP),
                )
                for rule in RULES
                if rule != MEAN
            ),
            *(
                claim(
                    f"Beside {rule}, the proximal term still lowers the loss.",
                    (PROXIMAL, rule, KEEP),
                    (PLAIN, rule, KEEP),
                )
                for rule in RULES
                if rule != MEAN
            ),
        ),
        values=(
            Values(
                "Training loss / test accuracy at the last round.",
                ((LOSS, FINAL), (ACCURACY, FINAL)),
                tuple(RULES),
                tuple(
                    row(share, local, choice)
                    for share in SHARES
                    for local in LOCALS
                    for choice in choices(share)
                ),
            ),
        ),
        joined=joined,
        notes=(
            "Ten clients a round, 20 epochs, batches of 10; logistic regression, means by rows. "
            "Without stragglers there is nothing to drop.",
            f"Each product has {SETTINGS} settings: of the learning rate, of mu ({MUS[0]} and "
            f"{MUS[1]}), and of one number of the server's rule. The lowest final training loss, "
            "mean over seeds, chooses one for all seeds; test rows choose nothing.",
        ),
    )


ITEMS = {f"composition-{task.key}": study(task) for task in TASKS}
