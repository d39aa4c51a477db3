"""FedAvg's whole curves, distributed SGD and the searches, as data."""

from experiments import ITEMS
from experiments.engine.item import AT_EACH_ROUND, BEST, LOWEST, SCALES, SHORT, expand
from experiments.engine.summaries import RISE
from experiments.fedavg.curves import CNN_PLOTS, LSTM_PLOTS, PERCEPTRON_PLOTS
from experiments.fedavg.posts import CHAT
from experiments.fedavg.tables import TABLE_2_CNN, TABLE_2_LSTM, TABLE_4
from experiments.feddyn.search import CODE_ALPHA, MNIST_ALPHAS, MNIST_CHOICE, SYNTHETIC_ALPHAS
from experiments.fedprox.searches import MUS


def test_curves_go_beyond_the_counts_of_the_papers_tables() -> None:
    for plots, table in (
        (CNN_PLOTS, TABLE_2_CNN),
        (LSTM_PLOTS, TABLE_2_LSTM),
        (PERCEPTRON_PLOTS, TABLE_4),
    ):
        for column, plot in enumerate(plots):
            assert len(plot.runs) == len(table)
            for run, numbers in zip(plot.runs.values(), table.values(), strict=True):
                assert run["rounds"] > int(numbers[column])
                assert "stop_at_target" not in run
                (short,) = expand(run, SCALES["short"]).values()
                assert len(short["solver"]["learning_rate"]) == 1
            first, most = plot.runs[plot.fedsgd], plot.runs[plot.most]
            assert (first["solver"]["epochs"], first["solver"]["batch_size"]) == (1, "all")
            assert most["solver"]["batch_size"] == 10
            assert most["solver"]["epochs"] == max(epochs for epochs, _ in table)


def test_figures_2_and_6_share_the_cnns_runs() -> None:
    two, six = ITEMS["fedavg/figure-2"], ITEMS["fedavg/figure-6"]
    assert six.runs.items() <= two.runs.items()
    assert all(panel.logarithmic for row in six.rows for panel in row.panels)
    assert [panel.last for panel in two.rows[0].panels] == [1_000, 1_000]


def test_printed_accuracies_have_the_papers_rounds() -> None:
    item = ITEMS["fedavg/section-3-accuracies"]
    rounds = [item.runs[score.side.run]["rounds"] for score in item.scores]
    assert rounds == [1_200, 6_000, 300, 197_500]
    assert [score.paper for score in item.scores] == [
        "99.22 %",
        "not improved further",
        "99.44 %",
        "86 %",
    ]
    sgd = item.runs[item.scores[3].side.run]
    assert (sgd["solver"]["batch_size"], sgd["solver"]["steps"]) == (100, 1)
    assert "target_accuracy" not in sgd


def test_unbalanced_sets_differ_from_balanced_ones_in_their_sizes_alone() -> None:
    runs = ITEMS["fedavg/unbalanced"].runs
    for name, run in runs.items():
        if name.startswith("2nn-balanced"):
            other = runs[name.replace("balanced", "unbalanced")]
            assert other == run | {"data": run["data"] | {"size_spread": 1.0}}
            seeds = [one["data"]["seed"] for one in expand(run, SCALES["paper"]).values()]
            assert seeds == [0, 1, 2]


def test_chat_items_are_the_papers_with_other_posts() -> None:
    for number in (5, 10):
        posts, chat = ITEMS[f"fedavg/figure-{number}"], ITEMS[f"fedavg/figure-{number}-chat"]
        for run, table in posts.runs.items():
            same = chat.runs[f"chat-{run}"]
            assert same["data"] == table["data"] | {"path": CHAT}
            assert same | {"data": table["data"], SHORT: table[SHORT]} == table
        assert [claim.text for claim in chat.claims] == [claim.text for claim in posts.claims]
        assert any("Ubuntu" in note for note in chat.notes)


def test_searches_hold_the_papers_ranges_and_choices() -> None:
    mus = ITEMS["fedprox/search-mu"]
    assert MUS == (0.001, 0.01, 0.1, 1.0)
    assert all(run["method"][0]["mu"] == [0.0, *MUS] for run in mus.runs.values())
    rates = ITEMS["fedprox/search-rates"]
    assert {run["solver"]["epochs"] for run in rates.runs.values()} == {1}
    for name, beginning in (
        ("fedprox/search-mu", BEST),
        ("fedprox/search-rates", LOWEST),
        ("feddyn/search-alpha", LOWEST),
    ):
        for claim in ITEMS[name].claims:
            assert claim.alike or claim.over is RISE
            assert all(one.greater.label.startswith(beginning) for one in claim.comparisons)
    assert CODE_ALPHA in SYNTHETIC_ALPHAS
    assert set(MNIST_CHOICE.values()) <= set(MNIST_ALPHAS)


def test_distributed_sgd_has_rates_of_its_own_and_never_stops_at_a_loss() -> None:
    for name in ("fedprox/distributed-sgd", "feddyn/distributed-sgd"):
        item = ITEMS[name]
        for run in item.runs.values():
            (one,) = (method for method in run["method"] if method["name"] == "fedsgd")
            assert len(one["solver"]["learning_rate"]) > 3
            assert "target_loss" not in run
        for claim in item.claims:
            for comparison in claim.comparisons:
                sides = (comparison.greater.label, comparison.less.label)
                worse = sides[claim.measure != "train_loss"]
                assert worse.removeprefix(AT_EACH_ROUND).removeprefix(LOWEST).startswith("fedsgd")
