"""Li et al. 2020: Table 1 and Figures 1 to 12."""

from experiments.common import FEDAVG, FEWER_TWEETS, fedprox
from experiments.engine.item import Claim, Comparison, Item, Panel, Statistics
from experiments.engine.series import ACCURACY, LOSS, VARIANCE
from experiments.engine.summaries import FINAL, MEAN, RISE
from experiments.fedprox.tasks import (
    FEWER_LETTERS,
    FIVE,
    HETEROGENEOUS,
    IID,
    MOST,
    ONE_DRAW,
    PAPER,
    SENT140,
    STRAGGLERS,
    SYNTHETIC,
    Task,
    each_above_previous,
    feddane,
    on_each,
    row,
    runs_of,
    table_1,
)
from experiments.quirks import OVERLAPPING_FEMNIST

LETTERS = table_1("femnist", "letters")
TABLE_1 = Item(
    "Table 1: the federated data sets",
    f"{PAPER}, Table 1",
    {"short": 3, "paper": 4},
    statistics=(
        Statistics("MNIST", table_1("mnist", "power-law"), {"name": "mnist"}),
        Statistics("FEMNIST", LETTERS, {"name": "femnist"}, FEWER_LETTERS),
        Statistics(
            "FEMNIST, as the code",
            LETTERS,
            {"name": OVERLAPPING_FEMNIST},
            "3 classes to a client, overlapping",
        ),
        Statistics("Shakespeare", table_1("shakespeare", "roles"), {"name": "shakespeare"}),
        Statistics("Sent140", table_1("sent140"), SENT140.data, FEWER_TWEETS),
    ),
    notes=(
        "`emnist_lowercase.npz` has the letters of EMNIST ByClass's test part alone, 11,916 images "
        "of a to j; EMNIST's own files have enough. Where a letter runs out, what there is is "
        "divided in proportion to what was asked.",
    ),
)

# ------------------------------------------- Figures 1, 5, 7, 9 and 10: stragglers and partial work


def _by_stragglers(measure: str, end: str = "") -> tuple[tuple[Panel, ...], ...]:
    """A row for each share of stragglers, a column for each data set."""
    return tuple(
        row(FIVE, measure, f"{{}}-s{s}{end}", title=f"{{}}, {s} % stragglers") for s in STRAGGLERS
    )


def _with_and_without(greater: str, less: str, end: str = "") -> tuple[Comparison, ...]:
    """A comparison at 50 and 90 % stragglers."""
    at = [on_each(FIVE, f"{{}}-s{s}{end}", greater, less, f", {s} %") for s in (50, 90)]
    return at[0] + at[1]


PARTIAL = _with_and_without("fedavg", "fedprox mu=0")
FIGURE_1 = Item(
    "Figure 1: training loss with stragglers",
    f"{PAPER}, Figure 1, sections 5.2 and 5.3.2",
    {"short": 490, "paper": 2400},
    runs_of(FIVE, STRAGGLERS),
    _by_stragglers(LOSS),
    (
        Claim(
            "Keeping partial work helps: FedAvg ends above FedProx with mu = 0.",
            LOSS,
            FINAL,
            PARTIAL,
        ),
        Claim(
            "Keeping partial work is faster: over the rounds FedAvg's loss lies above.",
            LOSS,
            MEAN,
            PARTIAL,
        ),
        Claim("Keeping partial work is steadier: FedAvg's loss rises more.", LOSS, RISE, PARTIAL),
        Claim(
            "More stragglers make FedAvg worse: at 90 % it ends above where it ends without.",
            LOSS,
            FINAL,
            on_each(FIVE, ("{}-s90", "{}-s0"), "fedavg", "fedprox mu=0"),
        ),
        Claim(
            "mu > 0 is steadier: the loss rises less than with mu = 0.",
            LOSS,
            RISE,
            (
                *on_each(FIVE, "{}-s0", "fedprox mu=0", "fedprox mu={}", ", 0 %"),
                *_with_and_without("fedprox mu=0", "fedprox mu={}"),
            ),
        ),
    ),
    notes=(ONE_DRAW,),
)
BEST_MU = _with_and_without("fedprox mu={}", "fedavg")
FIGURE_7 = Item(
    "Figure 7: test accuracy with stragglers",
    f"{PAPER}, Figure 7, appendix C.3.2",
    {"short": 490, "paper": 2400},
    FIGURE_1.runs,
    _by_stragglers(ACCURACY),
    (
        Claim("FedProx with the best mu ends more accurate than FedAvg.", ACCURACY, FINAL, BEST_MU),
        Claim(
            "FedProx with the best mu is more accurate than FedAvg over the rounds.",
            ACCURACY,
            MEAN,
            BEST_MU,
        ),
    ),
    notes=(ONE_DRAW, "For the 22 % of the abstract see `fedprox/headline`."),
)


def _iid(other: str, greater: str, less: str) -> tuple[Comparison, ...]:
    """A comparison on IID data at 50 and 90 % stragglers; `other` is the greater side's share."""
    each = [
        on_each(
            (IID,), (f"{{}}-partial-{other or s}", f"{{}}-partial-{s}"), greater, less, f", {s} %"
        )
        for s in (50, 90)
    ]
    return each[0] + each[1]


FIGURE_5 = Item(
    "Figure 5: stragglers on IID data",
    f"{PAPER}, Figure 5, appendix C.3.1",
    {"short": 13, "paper": 70},
    {
        f"{IID.key}-partial-{s}": IID.experiment(FEDAVG, fedprox(0.0), stragglers=s)
        for s in STRAGGLERS
    },
    tuple(
        tuple(
            Panel(f"Synthetic IID, {s} % stragglers", measure, (f"{IID.key}-partial-{s}",))
            for s in STRAGGLERS
        )
        for measure in (LOSS, ACCURACY)
    ),
    (
        Claim(
            "On IID data it matters little whether partial work is kept.",
            ACCURACY,
            FINAL,
            _iid("", "fedprox mu=0", "fedavg"),
            alike=0.02,
        ),
        Claim(
            "On IID data FedAvg is robust to dropped devices: they cost it little accuracy.",
            ACCURACY,
            FINAL,
            _iid("0", "fedavg", "fedavg"),
            alike=0.02,
        ),
    ),
    notes=(ONE_DRAW,),
)


def _one_epoch(number: int, measure: str, claim: str, greater: str, less: str) -> Item:
    return Item(
        f"Figure {number}: {'loss' if measure == LOSS else 'accuracy'} with E = 1",
        f"{PAPER}, Figure {number}, appendix C.3.2",
        {"short": 180, "paper": 850},
        runs_of(FIVE, STRAGGLERS, epochs=1),
        _by_stragglers(measure, "-e1"),
        (Claim(claim, measure, FINAL, _with_and_without(greater, less, "-e1")),),
        notes=(
            "A straggler does a part of its one epoch: a number of mini-batches, uniform on "
            "{1, ..., all of them}. The rounds are those of Figure 1; the paper does not say.",
            ONE_DRAW,
        ),
    )


HELPS = "With E = 1, too, keeping partial work helps"
FIGURE_9 = _one_epoch(9, LOSS, f"{HELPS}.", "fedavg", "fedprox mu=0")
FIGURE_10 = _one_epoch(10, ACCURACY, f"{HELPS} accuracy.", "fedprox mu=0", "fedavg")

# ------------------------------------------ Figures 2, 3, 6, 8 and 11: heterogeneity, adaptive mu


def _synthetic_item(title: str, source: str, measures: tuple[str, ...], *claims: Claim) -> Item:
    """The four synthetic sets without stragglers, mu 0 and 1."""
    return Item(
        title,
        f"{PAPER}, {source}",
        {"short": 14, "paper": 90},
        runs_of(SYNTHETIC),
        tuple(row(SYNTHETIC, measure, "{}-s0") for measure in measures),
        claims,
        notes=(ONE_DRAW,),
    )


GROWS = each_above_previous(SYNTHETIC, "{}-s0", "fedprox mu=0")
MU_LOWERS = on_each(HETEROGENEOUS, "{}-s0", "fedprox mu=0", "fedprox mu=1")
FIGURE_2 = _synthetic_item(
    "Figure 2: statistical heterogeneity",
    "Figure 2, sections 5.3.1 and 5.3.3",
    (LOSS, VARIANCE),
    Claim("With mu = 0 more heterogeneous data end at a larger loss.", LOSS, FINAL, GROWS),
    Claim("mu = 1 helps on heterogeneous data: the loss rises less.", LOSS, RISE, MU_LOWERS),
    Claim(
        "mu = 1 is slower on IID data.",
        LOSS,
        MEAN,
        on_each((IID,), "{}-s0", "fedprox mu=1", "fedprox mu=0"),
    ),
    Claim("The variance of gradients grows with heterogeneity.", VARIANCE, MEAN, GROWS),
    Claim("mu = 1 makes the variance of gradients smaller.", VARIANCE, MEAN, MU_LOWERS),
)
FIGURE_6 = _synthetic_item(
    "Figure 6: statistical heterogeneity, in full",
    "Figure 6, appendix C.3.2",
    (LOSS, ACCURACY, VARIANCE),
    Claim(
        "mu = 1 is more accurate over the rounds on heterogeneous data.",
        ACCURACY,
        MEAN,
        on_each(HETEROGENEOUS, "{}-s0", "fedprox mu=1", "fedprox mu=0"),
    ),
)
FIGURE_8 = Item(
    "Figure 8: dissimilarity",
    f"{PAPER}, Figure 8, appendix C.3.2",
    {"short": 140, "paper": 680},
    runs_of(FIVE),
    (row(FIVE, VARIANCE, "{}-s0"),),
    (
        Claim(
            "The best mu makes the variance of gradients smaller.",
            VARIANCE,
            MEAN,
            on_each(FIVE, "{}-s0", "fedprox mu=0", "fedprox mu={}"),
        ),
    ),
    notes=(ONE_DRAW,),
)


def _adaptive(title: str, source: str, tasks: tuple[Task, ...], measures: tuple[str, ...]) -> Item:
    """Adaptive mu, from 1 on IID data and from 0 on other data, with mu = 0 and mu = 1."""

    def run(task: Task) -> dict[str, object]:
        start = 1.0 if task is IID else 0.0
        adaptive = {"name": "fedprox", "mu": start, "adapt": True}
        return task.experiment(fedprox(0.0, 1.0), adaptive)

    harder = [task for task in tasks if task is not IID]
    return Item(
        title,
        f"{PAPER}, {source}",
        {"short": 5 * len(tasks), "paper": 36 * len(tasks)},
        {f"{task.key}-adaptive": run(task) for task in tasks},
        tuple(row(tasks, measure, "{}-adaptive") for measure in measures),
        (
            Claim(
                "From an adverse start, adaptive mu is steadier than mu = 0 on heterogeneous data.",
                LOSS,
                RISE,
                on_each(harder, "{}-adaptive", "fedprox mu=0", "fedprox mu=0 adaptive"),
            ),
            Claim(
                "On IID data it is faster than mu = 1, from where it starts.",
                LOSS,
                MEAN,
                on_each((IID,), "{}-adaptive", "fedprox mu=1", "fedprox mu=1 adaptive"),
            ),
        ),
        notes=(
            "mu starts at 1 on IID data and at 0 elsewhere; it grows by 0.1 when the loss rises "
            "and falls by 0.1 after five falls in a row.",
            ONE_DRAW,
        ),
    )


FIGURE_3 = _adaptive("Figure 3: adaptive mu", "Figure 3, section 5.3.2", (IID, MOST), (LOSS,))
FIGURE_11 = _adaptive(
    "Figure 11: adaptive mu, in full",
    "Figure 11, appendix C.3.3; the second row is ours",
    SYNTHETIC,
    (LOSS, "mu"),
)

# ----------------------------------------------------------- Figures 4 and 12: FedDANE, sampling

FIGURE_4 = Item(
    "Figure 4: FedDANE",
    f"{PAPER}, Figure 4, appendix B",
    {"short": 52, "paper": 600},
    {
        f"{task.key}-dane-10": task.experiment(fedprox(0.0, 1.0), feddane(0.0, 1.0))
        for task in SYNTHETIC
    }
    | {
        f"{task.key}-dane-{clients}": task.experiment(feddane(0.0), clients_per_round=clients)
        for task in SYNTHETIC
        for clients in (20, 30)
    },
    (
        row(SYNTHETIC, LOSS, "{}-dane-10"),
        row(SYNTHETIC, LOSS, *(f"{{}}-dane-{k}" for k in (10, 20, 30)), labels=["feddane mu=0"]),
    ),
    (
        Claim(
            "On IID data FedDANE is about as good as FedProx.",
            ACCURACY,
            FINAL,
            on_each((IID,), "{}-dane-10", "feddane mu=0", "fedprox mu=0"),
            alike=0.02,
        ),
        Claim(
            "On heterogeneous data FedDANE converges worse than FedProx.",
            LOSS,
            FINAL,
            on_each(HETEROGENEOUS, "{}-dane-10", "feddane mu=0", "fedprox mu=0"),
        ),
        Claim(
            "More clients a round help FedDANE somewhat.",
            LOSS,
            MEAN,
            on_each(HETEROGENEOUS, ("{}-dane-10", "{}-dane-30"), "feddane mu=0", "feddane mu=0"),
        ),
        Claim(
            "It stays unstable: with 30 clients its loss rises more than that of FedProx with 10.",
            LOSS,
            RISE,
            on_each(HETEROGENEOUS, ("{}-dane-30", "{}-dane-10"), "feddane mu=0", "fedprox mu=0"),
        ),
    ),
    notes=("A round of FedDANE communicates twice; the paper counts it as one round.", ONE_DRAW),
)

SAMPLINGS = {"uniform": "{}-s0", "proportional": "{}-proportional"}


def _uniform_above_proportional(tasks: tuple[Task, ...]) -> tuple[Comparison, ...]:
    runs = SAMPLINGS["uniform"], SAMPLINGS["proportional"]
    return tuple(
        one
        for mu in ("0", "1")
        for one in on_each(tasks, runs, f"fedprox mu={mu}", f"fedprox mu={mu}", f", mu = {mu}")
    )


FIGURE_12 = Item(
    "Figure 12: two ways to sample clients",
    f"{PAPER}, Figure 12, appendix C.3.4",
    {"short": 27, "paper": 170},
    runs_of(SYNTHETIC)
    | {
        f"{task.key}-proportional": task.experiment(fedprox(0.0, task.mu), sampling="proportional")
        for task in SYNTHETIC
    },
    tuple(row(SYNTHETIC, measure, *SAMPLINGS.values()) for measure in (LOSS, ACCURACY, VARIANCE)),
    (
        Claim(
            "Sampling with p_k and a plain mean is slightly better than uniform sampling and a "
            "weighted mean.",
            LOSS,
            MEAN,
            _uniform_above_proportional(SYNTHETIC),
        ),
        Claim(
            "Sampling with p_k makes both methods more stable: the loss rises less.",
            LOSS,
            RISE,
            _uniform_above_proportional(HETEROGENEOUS),
        ),
        Claim(
            "mu = 1 is steadier with either.",
            LOSS,
            RISE,
            tuple(
                one
                for how, run in SAMPLINGS.items()
                for one in on_each(HETEROGENEOUS, run, "fedprox mu=0", "fedprox mu=1", f", {how}")
            ),
        ),
    ),
    notes=(ONE_DRAW,),
)
