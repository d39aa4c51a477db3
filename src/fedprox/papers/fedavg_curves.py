"""McMahan et al. 2017: whole learning curves, and the numbers that its text prints.

Figures 2, 6 and 7 show the runs of Tables 2 and 4 without an end at the target. As in the paper
(section 3), a line is the best over learning rates at each round, on the curve of the best accuracy
so far. The paper's text does not give the axes: ours cover the counts of its tables.
"""

from dataclasses import replace
from typing import NamedTuple

from fedprox.papers.common import FEDAVG, GPU
from fedprox.papers.fedavg import (
    ALL,
    CIFAR_SGD,
    CNN,
    FEW_LINES,
    FIGURE_5,
    FIGURE_10,
    FINE,
    GRID,
    LSTM,
    ONE_SEED,
    PAPER,
    PERCEPTRON,
    READ,
    READ_LINES,
    TABLE_2_CNN,
    TABLE_2_LSTM,
    TABLE_4,
    TWENTY_ROLES,
    TWO_LAYERS,
    Batch,
    Cell,
    RateSearch,
    grid,
)
from fedprox.reproduce.item import (
    AT_EACH_ROUND,
    MOST_SEEDS,
    SHORT,
    Claim,
    Comparison,
    Curve,
    Entry,
    Item,
    Panel,
    Race,
    RaceRow,
    Row,
    Score,
    Side,
    Table,
    overlaid,
)
from fedprox.reproduce.summaries import FINAL, HIGHEST, MEAN
from fedprox.simulation.results.target import Target

BEST_FEDAVG = f"{AT_EACH_ROUND}fedavg"
ENVELOPE = (
    "A line is the best at each round over the learning rates of its table's grid, as in the "
    "paper; accuracies are the best so far."
)


class Network(NamedTuple):
    """A model whose curves a figure shows.

    Attributes:
        key: Beginning of the names of its runs.
        model: `[model]` of an experiment.
        data: Name of its data set.
        target: The test accuracy of its table, a grey line in the paper.
        searches: The learning rates of each cell.
        rows: Rows of a client that evaluations read at most.
        short: Changes at the short scale.
        note: What these changes are.
        rates: The grid that `searches` take their rates from.
    """

    key: str
    model: Table
    data: str
    target: float
    searches: dict[Cell, RateSearch]
    rows: int
    short: Table
    note: str
    rates: tuple[float, ...] = GRID


_SHORT_IMAGES: Table = {"client_rows": 20, "evaluation": {"every": 1, "rows": 10}}
DIGITS_CNN = Network(
    "cnn",
    {"name": "mnist-cnn"},
    "mnist",
    0.99,
    CNN,
    100,
    {"rounds": 3, "cohort": {"clients_per_round": 2}, **_SHORT_IMAGES},
    "short: one learning rate, 20 images of a client, 2 clients a round",
)
DIGITS_2NN = Network(
    "2nn",
    TWO_LAYERS,
    "mnist",
    0.97,
    PERCEPTRON,
    100,
    {"rounds": 20, **_SHORT_IMAGES},
    "short: one learning rate, 20 images of a client",
)
LETTERS_LSTM = Network(
    "lstm",
    {"name": "char-lstm-fedavg"},
    "shakespeare",
    0.54,
    LSTM,
    10,
    TWENTY_ROLES | {"rounds": 2},
    f"{FEW_LINES}, one learning rate",
    FINE,
)


def curve(network: Network, cell: Cell, rounds: int, every: int) -> tuple[str, Table]:
    """A cell's run over all rounds, with the rates of its table, and the run's name."""
    rates = grid(*network.searches[cell].rates, network.rates)
    middle: Table = {"solver": {"learning_rate": [rates[len(rates) // 2]]}}
    run = {
        "rounds": rounds,
        MOST_SEEDS: 1,
        SHORT: network.short | middle,
        "evaluation": {"gradients": False, "every": every, "rows": network.rows},
        "data": {"name": network.data, "partition": cell.partition},
        "model": network.model,
        "cohort": {"clients_per_round": cell.clients},
        "solver": {"learning_rate": rates, "batch_size": cell.batch, "epochs": cell.epochs},
        "method": [FEDAVG],
    }
    return f"{network.key}-curve-{cell.key}", run


class Plot(NamedTuple):
    """A panel of curves: its runs, and their names in the legend.

    Attributes:
        title: The panel's title.
        network: The model.
        runs: The runs by name.
        shown: The legend's name of each run.
        fedsgd: The run with E = 1 and B = all.
        most: The run with the most local work.
    """

    title: str
    network: Network
    runs: dict[str, Table]
    shown: dict[str, str]
    fedsgd: str
    most: str

    def panel(self, measure: str, *, last: int | None = None) -> Panel:
        """The panel of the test accuracy, or of the training loss on a logarithmic axis."""
        curves = tuple(Curve(run, BEST_FEDAVG, shown) for run, shown in self.shown.items())
        if measure == "train_loss":
            return Panel(self.title, measure, curves, last=last, logarithmic=True)
        return Panel(self.title, measure, curves, best=True, level=self.network.target, last=last)

    def compared(self, *, loss: bool = False) -> Comparison:
        """FedAvg with the most local work above FedSGD, or for losses below."""
        sides = Side(self.most, BEST_FEDAVG), Side(self.fedsgd, BEST_FEDAVG)
        return Comparison(self.title, *(sides[::-1] if loss else sides), self.network.note)


def _plot(
    title: str,
    network: Network,
    partition: str,
    clients: int,
    work: dict[tuple[int, Batch], int],
    every: int,
) -> Plot:
    """The curves of a partition, with so many rounds for each E and B."""
    runs: dict[str, Table] = {}
    shown: dict[str, str] = {}
    for (epochs, batch), rounds in work.items():
        key, run = curve(network, Cell(partition, clients, batch, epochs), rounds, every)
        runs[key], shown[key] = run, f"E = {epochs}, B = {batch}"
    most = max(work, key=lambda one: (one[1] != ALL, one[0], -int(one[1]) if one[1] != ALL else 0))
    names = dict(zip(work, runs, strict=True))
    return Plot(title, network, runs, shown, names[1, ALL], names[most])


def _all(plots: tuple[Plot, ...]) -> dict[str, Table]:
    return {key: run for plot in plots for key, run in plot.runs.items()}


FEDSGD_IS_LOWER = "FedAvg converges to a higher test accuracy than FedSGD."

# ------------------------------------------------------------------------------- Figures 2 and 6

CNN_PLOTS = tuple(
    _plot(title, DIGITS_CNN, partition, 10, dict.fromkeys(TABLE_2_CNN, 2_000), 10)
    for partition, title in (("iid", "MNIST CNN, IID"), ("shards", "MNIST CNN, non-IID"))
)
_LSTM_ROUNDS = dict.fromkeys(TABLE_2_LSTM, 1_000) | {(1, ALL): 4_000, (1, 50): 2_000}
LSTM_PLOTS = tuple(
    _plot(title, LETTERS_LSTM, partition, 115, _LSTM_ROUNDS, 20)
    for partition, title in (
        ("lines-iid", "Shakespeare LSTM, IID"),
        ("lines", "Shakespeare LSTM, by play and role"),
    )
)

FIGURE_2 = Item(
    "Figure 2: accuracy against rounds, MNIST CNN and Shakespeare LSTM",
    f"{PAPER}, Figure 2, section 3",
    # short by four runs of each model, nearly all compilation; paper: 2.3 s an epoch and round of
    # the CNN and 15 s of the LSTM, by Figures 8 and 3, for each of three rates
    {"short": 250, "paper": 4_100_000},
    _all(CNN_PLOTS) | _all(LSTM_PLOTS),
    rows=(
        Row("", tuple(plot.panel("test_accuracy", last=1_000) for plot in CNN_PLOTS)),
        Row("", tuple(plot.panel("test_accuracy") for plot in LSTM_PLOTS)),
    ),
    claims=(
        Claim(
            FEDSGD_IS_LOWER,
            "test_accuracy",
            HIGHEST,
            tuple(plot.compared() for plot in (*CNN_PLOTS, *LSTM_PLOTS)),
        ),
        Claim(
            "More local updates a round lower the cost of communication: FedAvg is more accurate "
            "than FedSGD over the rounds.",
            "test_accuracy",
            MEAN,
            tuple(plot.compared() for plot in CNN_PLOTS),
        ),
    ),
    notes=(
        GPU,
        ENVELOPE,
        ONE_SEED,
        READ_LINES,
        "C = 0.1. The paper's text does not say how many rounds its figure shows. Ours has 1,000 "
        "of the CNN's 2,000, which are those of Figure 6. For Shakespeare FedSGD has 4,000, E = 1 "
        "with B = 50 2,000, and the other lines 1,000: more than any count of Table 2. Claims "
        "compare FedSGD with the line of the most local work: B = 10 and E = 20, or 5.",
    ),
)

FIGURE_6 = Item(
    "Figure 6: training loss against rounds, MNIST CNN",
    f"{PAPER}, Figure 6, appendix A",
    {"short": 110, "paper": 2_100_000},  # its share of Figure 2, whose runs these are
    _all(CNN_PLOTS),
    rows=(Row("", tuple(plot.panel("train_loss") for plot in CNN_PLOTS)),),
    claims=(
        Claim(
            "FedAvg is effective at optimizing the training loss as well: FedSGD ends above.",
            "train_loss",
            FINAL,
            tuple(plot.compared(loss=True) for plot in CNN_PLOTS),
        ),
    ),
    notes=(
        GPU,
        ENVELOPE,
        ONE_SEED,
        READ,
        "C = 0.1. The figure covers more rounds than Figure 2, the text does not say how many; "
        "here 2,000.",
    ),
)

# -------------------------------------------------------------------------------------- Figure 7

PERCEPTRON_PLOTS = tuple(
    _plot(title, DIGITS_2NN, partition, 10, dict.fromkeys(TABLE_4, 2_000), 10)
    for partition, title in (("iid", "MNIST 2NN, IID"), ("shards", "MNIST 2NN, non-IID"))
)
FIGURE_7 = Item(
    "Figure 7: accuracy against rounds, MNIST 2NN",
    f"{PAPER}, Figure 7, appendix A",
    # short as measured; paper: 0.05 s an epoch, round and rate, by Table 4
    {"short": 60, "paper": 55_000},
    _all(PERCEPTRON_PLOTS),
    rows=(Row("", tuple(plot.panel("test_accuracy") for plot in PERCEPTRON_PLOTS)),),
    claims=(
        Claim(
            FEDSGD_IS_LOWER,
            "test_accuracy",
            HIGHEST,
            tuple(plot.compared() for plot in PERCEPTRON_PLOTS),
        ),
        Claim(
            "With more local work it gets there in fewer rounds: it is more accurate over the "
            "rounds.",
            "test_accuracy",
            MEAN,
            tuple(plot.compared() for plot in PERCEPTRON_PLOTS),
        ),
    ),
    notes=(
        GPU,
        ENVELOPE,
        ONE_SEED,
        "C = 0.1. The paper's text does not say how many rounds its figure shows; 2,000 are more "
        "than any count of Table 4. Claims compare FedSGD with B = 10 and E = 20.",
    ),
)

# -------------------------------------------------------------- numbers that the text alone prints

_FEDSGD_CELL, _FEDAVG_CELL = Cell("iid", 10, ALL, 1), Cell("iid", 10, 10, 20)


def _of_rounds(cell: Cell, rounds: int) -> tuple[str, Table]:
    key, run = curve(DIGITS_CNN, cell, rounds, 10)
    return f"{key}-{rounds}-rounds", run


_SGD_1200, _SGD_6000 = _of_rounds(_FEDSGD_CELL, 1_200), _of_rounds(_FEDSGD_CELL, 6_000)
_AVG_300 = _of_rounds(_FEDAVG_CELL, 300)
_CIFAR_KEY = "cifar-sgd-197500"
_CIFAR_WHOLE: Table = {
    key: value
    for key, value in CIFAR_SGD.items()
    if key not in ("target_accuracy", "stop_at_target")
} | {
    "rounds": 197_500,
    SHORT: overlaid(CIFAR_SGD[SHORT], {"rounds": 100, "evaluation": {"every": 20}}),
}
_BEST_SGD = f"{AT_EACH_ROUND}centralised"
_CIFAR_NOTE = "short: 100 updates, 50 images of a client, of which 10 are measured"

ACCURACIES = Item(
    "The accuracies that section 3 prints: MNIST CNN and CIFAR-10",
    f"{PAPER}, section 3, increasing computation per client, and CIFAR experiments",
    # short as measured; paper: for each rate 2.3 s an epoch and round of the CNN, and 0.07 s
    # an update of CIFAR's, by Figure 9
    {"short": 100, "paper": 120_000},
    {**dict((_SGD_1200, _SGD_6000, _AVG_300)), _CIFAR_KEY: _CIFAR_WHOLE},
    scores=(
        Score(
            "MNIST CNN, IID: FedSGD, 1,200 rounds",
            Side(_SGD_1200[0], BEST_FEDAVG),
            "99.22 %",
            DIGITS_CNN.note,
        ),
        Score(
            "MNIST CNN, IID: FedSGD, 6,000 rounds",
            Side(_SGD_6000[0], BEST_FEDAVG),
            "not improved further",
            DIGITS_CNN.note,
        ),
        Score(
            "MNIST CNN, IID: FedAvg, E = 20, B = 10, 300 rounds",
            Side(_AVG_300[0], BEST_FEDAVG),
            "99.44 %",
            DIGITS_CNN.note,
        ),
        Score(
            "CIFAR-10: SGD, 197,500 updates with batches of 100",
            Side(_CIFAR_KEY, _BEST_SGD),
            "86 %",
            _CIFAR_NOTE,
        ),
    ),
    claims=(
        Claim(
            "In 300 rounds FedAvg reaches a higher accuracy than FedSGD in 1,200 or 6,000.",
            "test_accuracy",
            HIGHEST,
            tuple(
                Comparison(
                    f"FedSGD, {rounds} rounds",
                    Side(_AVG_300[0], BEST_FEDAVG),
                    Side(run[0], BEST_FEDAVG),
                    DIGITS_CNN.note,
                )
                for rounds, run in (("1,200", _SGD_1200), ("6,000", _SGD_6000))
            ),
        ),
        Claim(
            "After 1,200 rounds FedSGD does not improve further.",
            "test_accuracy",
            HIGHEST,
            (
                Comparison(
                    "FedSGD",
                    Side(_SGD_6000[0], BEST_FEDAVG),
                    Side(_SGD_1200[0], BEST_FEDAVG),
                    DIGITS_CNN.note,
                ),
            ),
            alike=0.0005,
        ),
    ),
    notes=(
        GPU,
        ONE_SEED,
        "The paper does not say to which partition its MNIST numbers belong; here IID. C = 0.1. "
        "Accuracies are the best over learning rates at each round. SGD's learning rates and its "
        "decay, 0.99998, are ours.",
    ),
)

# ------------------------------------------------------------------------------- unbalanced MNIST

SPREAD = 1.0
"""Standard deviation of the logarithm of sizes in the unbalanced sets."""

_SIZES = {"balanced": {}, "unbalanced": {"size_spread": SPREAD}}
_PARTITIONS = {"iid": "IID", "shards": "non-IID"}
_BATCHES = (50, 10)
_BALANCE_ROUNDS = {"iid": 100, "shards": 500}


def _balance(sizes: str, partition: str, batch: int) -> str:
    return f"2nn-{sizes}-{partition}-b{batch}"


def _balance_run(sizes: str, partition: str, batch: int) -> Table:
    """One run of a pair; seeds are for the partition."""
    rounds = _BALANCE_ROUNDS[partition]
    return {
        "rounds": rounds,
        "seed": 0,
        MOST_SEEDS: 3,
        SHORT: {
            "rounds": rounds // 20,
            MOST_SEEDS: 1,
            "evaluation": {"every": rounds // 100},
            "solver": {"learning_rate": [0.215]},
        },
        "evaluation": {"gradients": False, "every": rounds // 50},
        "data": {"name": "mnist", "partition": partition, **_SIZES[sizes]},
        "model": TWO_LAYERS,
        "cohort": {"clients_per_round": 10},
        "solver": {
            "learning_rate": grid(0.1, 0.464),
            "batch_size": batch,
            "epochs": 1,
        },
        "method": [FEDAVG],
    }


_BALANCE_NOTE = "short: one learning rate, a twentieth of the rounds"
UNBALANCED = Item(
    "Unbalanced MNIST: is it easier for FedAvg?",
    f"{PAPER}, section 3, footnote 5",
    # short as measured; paper extrapolated from it by rounds, rates and seeds
    {"short": 50, "paper": 4_000},
    {
        _balance(sizes, partition, batch): _balance_run(sizes, partition, batch)
        for sizes in _SIZES
        for partition in _PARTITIONS
        for batch in _BATCHES
    },
    rows=tuple(
        Row(
            f"E = 1, B = {batch}",
            tuple(
                Panel(
                    f"MNIST 2NN, {title}",
                    "test_accuracy",
                    tuple(
                        Curve(_balance(sizes, partition, batch), BEST_FEDAVG, sizes)
                        for sizes in _SIZES
                    ),
                    best=True,
                    level=0.97,
                )
                for partition, title in _PARTITIONS.items()
            ),
        )
        for batch in _BATCHES
    ),
    claims=(
        Claim(
            "Unbalanced versions are slightly easier: FedAvg is more accurate over the rounds.",
            "test_accuracy",
            MEAN,
            tuple(
                Comparison(
                    f"{title}, B = {batch}",
                    Side(_balance("unbalanced", partition, batch), BEST_FEDAVG),
                    Side(_balance("balanced", partition, batch), BEST_FEDAVG),
                    _BALANCE_NOTE,
                )
                for batch in _BATCHES
                for partition, title in _PARTITIONS.items()
            ),
        ),
    ),
    races=(
        Race(
            ("balanced", "unbalanced"),
            tuple(
                RaceRow(
                    f"{title}, E = 1, B = {batch}",
                    Target("test_accuracy", 0.97),
                    tuple(
                        Entry(
                            _balance(sizes, partition, batch),
                            "fedavg",
                            TABLE_4[1, batch][column] if sizes == "balanced" else "",
                        )
                        for sizes in _SIZES
                    ),
                    _BALANCE_NOTE,
                )
                for batch in _BATCHES
                for column, (partition, title) in enumerate(_PARTITIONS.items())
            ),
            "rounds",
            "first column",
        ),
    ),
    notes=(
        "The footnote describes neither the unbalanced sets nor how much easier they are. Ours "
        f"have log-normal sizes with a standard deviation of {SPREAD:g} of the logarithm: of "
        "clients (IID), or of the 200 shards (non-IID). The largest client has about 100 times the "
        "images of the smallest. The paper's numbers are those of Table 4.",
        "C = 0.1 and E = 1. Each seed is a partition of its own, with the same initial model. The "
        "learning rate is the best of three at each round. Evaluations read all rows.",
    ),
)

# --------------------------------------------------------------- Figures 5 and 10 on chat messages

CHAT = "ubuntu-irc/messages.tsv.gz"
_CHAT_NOTE = (
    "In place of the paper's 10 million posts of more than 500,000 authors, which are not public: "
    f"192,220 messages of 15,729 authors of Ubuntu's chat (`{CHAT}` in the data folder; Kummerfeld "
    "et al. 2019). A tenth of the authors are for testing. Most have few messages, so a client "
    "takes few steps, and words and accuracies differ from the paper's."
)


_FEW_MESSAGES: Table = {
    "rounds": 6,
    "client_rows": 10,
    "evaluation": {"every": 1, "rows": 2},
    "data": {"clients": 100},
    "cohort": {"clients_per_round": 10},
}
_FEW_MESSAGES_NOTE = "short: 100 authors, 10 a round, 10 rows of each, of which 2 are measured"


def on_chat(item: Item) -> Item:
    """An item about the user's posts with the chat messages as posts."""

    def named(run: str) -> str:
        return f"chat-{run}"

    def side(one: Side) -> Side:
        return one._replace(run=named(one.run))

    rows = tuple(
        row._replace(
            panels=tuple(
                panel._replace(
                    title="chat messages by author",
                    curves=tuple(line._replace(run=named(line.run)) for line in panel.curves),
                )
                for panel in row.panels
            )
        )
        for row in item.rows
    )
    claims = tuple(
        claim._replace(
            comparisons=tuple(
                Comparison("chat", side(one.greater), side(one.less), _FEW_MESSAGES_NOTE)
                for one in claim.comparisons
            )
        )
        for claim in item.claims
    )
    races = tuple(
        race._replace(
            rows=tuple(
                row._replace(
                    entries=tuple(
                        entry and entry._replace(run=named(entry.run)) for entry in row.entries
                    ),
                    note=_FEW_MESSAGES_NOTE,
                )
                for row in race.rows
            )
        )
        for race in item.races
    )
    return replace(
        item,
        title=f"{item.title}, on chat messages",
        # short as measured; paper: 25 steps of a client and round, of 0.06 s each
        seconds={"short": 100, "paper": 300_000},
        runs={
            named(run): overlaid(table, {"data": {"path": CHAT}, SHORT: _FEW_MESSAGES})
            for run, table in item.runs.items()
        },
        rows=rows,
        claims=claims,
        races=races,
        notes=(*item.notes[:1], _CHAT_NOTE, *item.notes[2:]),
    )


ITEMS = {
    "figure-2": FIGURE_2,
    "figure-6": FIGURE_6,
    "figure-7": FIGURE_7,
    "section-3-accuracies": ACCURACIES,
    "unbalanced": UNBALANCED,
    "figure-5-chat": on_chat(FIGURE_5),
    "figure-10-chat": on_chat(FIGURE_10),
}
