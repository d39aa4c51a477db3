"""McMahan et al. 2017: Figures 5 and 10, next words of posts by author, or of chat messages."""

from dataclasses import replace

from experiments.common import FEDAVG, FEDSGD, GPU
from experiments.engine.item import (
    SHORT,
    Claim,
    Comparison,
    Entry,
    Item,
    Line,
    Panel,
    Race,
    RaceRow,
    Row,
    Table,
    overlaid,
)
from experiments.engine.summaries import MEAN, SPREAD
from experiments.fedavg.networks import PAPER, plain
from fedprox.simulation.results.target import Target

POSTS = plain(
    {"name": "posts", "path": "posts.tsv.gz"},
    {"name": "peephole-word-lstm"},
    {"learning_rate": 9.0, "batch_size": 8, "epochs": 1},
    FEDSGD | {"solver": {"learning_rate": 18.0}},
    FEDAVG | {"solver": {"epochs": 1}},
    FEDAVG | {"solver": {"epochs": 5}},
    clients=200,
    rounds=1000,
    short={
        "rounds": 20,
        "client_rows": 20,
        "evaluation": {"every": 2, "rows": 2},
        "data": {"clients": 500},
        "cohort": {"clients_per_round": 20},
    },
    evaluation={"every": 20, "rows": 100},
)
_FEW_POSTS = "short: 500 authors, 20 a round, 20 rows of each, of which 2 are measured"
_POST_CURVES = (
    Line("posts", "fedsgd learning_rate=18", "FedSGD"),
    Line("posts", "fedavg epochs=1", "FedAvg, E = 1"),
    Line("posts", "fedavg epochs=5", "FedAvg, E = 5"),
)
_POST_NOTES = (
    GPU,
    "The paper's posts are not public. Yours are read from `posts.tsv.gz` in the data folder: an "
    "author, a tab and a post in each line, and more than 200 authors. B = 8, 200 clients a round, "
    "the paper's learning rates 18 (FedSGD) and 9 (FedAvg).",
)
FIGURE_5 = Item(
    "Figure 5: next words, the best accuracy so far",
    f"{PAPER}, Figure 5, section 3",
    {"short": 150, "paper": 74_000},
    {"posts": POSTS},
    rows=(Row("", (Panel("posts by author", "test_accuracy", _POST_CURVES[:2], best=True),)),),
    races=(
        Race(
            ("rounds",),
            tuple(
                RaceRow(
                    title, Target("test_accuracy", 0.105), (Entry("posts", label, n),), _FEW_POSTS
                )
                for title, label, n in (
                    ("FedSGD", "fedsgd", 820),
                    ("FedAvg, E = 1", "fedavg epochs=1", 35),
                )
            ),
            "rounds",
            "first row",
        ),
    ),
    notes=_POST_NOTES,
)
FIGURE_10 = Item(
    "Figure 10: next words, FedAvg with E = 1 and 5",
    f"{PAPER}, Figure 10, appendix A",
    FIGURE_5.seconds,
    {"posts": POSTS},
    rows=(Row("", (Panel("posts by author", "test_accuracy", _POST_CURVES),)),),
    claims=(
        Claim(
            "E = 5 performs slightly worse than E = 1.",
            "test_accuracy",
            MEAN,
            (
                Comparison(
                    "posts",
                    Line("posts", "fedavg epochs=1"),
                    Line("posts", "fedavg epochs=5"),
                    _FEW_POSTS,
                ),
            ),
        ),
        Claim(
            "FedAvg's accuracy varies less from evaluation to evaluation than FedSGD's.",
            "test_accuracy",
            SPREAD,
            tuple(
                Comparison(
                    f"posts, E = {epochs}",
                    Line("posts", "fedsgd learning_rate=18"),
                    Line("posts", f"fedavg epochs={epochs}"),
                    _FEW_POSTS,
                )
                for epochs in (1, 5)
            ),
        ),
    ),
    notes=_POST_NOTES,
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

    def side(one: Line) -> Line:
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
                Comparison(
                    one.where.replace("posts", "chat messages"),
                    side(one.greater),
                    side(one.less),
                    _FEW_MESSAGES_NOTE,
                )
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
