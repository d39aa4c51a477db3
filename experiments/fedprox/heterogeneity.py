"""Li et al. 2020: Figures 2, 3, 6, 8 and 11, statistical heterogeneity and adaptive mu."""

from experiments.common import fedprox
from experiments.engine.item import Claim, Comparison, Curve, Item, Side, Task
from experiments.engine.summaries import FINAL, MEAN, RISE
from experiments.fedprox.common import (
    each_above_previous,
    measures_by_task,
    mu_label,
    on_each,
    two_mus,
)
from experiments.fedprox.tasks import (
    FIVE,
    HETEROGENEOUS,
    IID,
    MOST,
    ONE_DRAW,
    PAPER,
    SYNTHETIC,
    run_key,
    runs_of,
)


def _synthetic_item(title: str, source: str, measures: tuple[str, ...], *claims: Claim) -> Item:
    """The four synthetic sets without stragglers, mu 0 and 1."""
    return Item(
        title,
        source,
        {"short": 14, "paper": 90},
        runs_of(SYNTHETIC, (0.0,)),
        measures_by_task(SYNTHETIC, measures, lambda task: two_mus(run_key(task, 0), task.mu)),
        claims,
        notes=(ONE_DRAW,),
    )


WORSE_WITH_HETEROGENEITY = Claim(
    "With mu = 0 more heterogeneous data end at a larger loss.",
    "train_loss",
    FINAL,
    each_above_previous(SYNTHETIC, "{}-s0", "fedprox mu=0"),
)
MU_HELPS = Claim(
    "mu = 1 helps on heterogeneous data: the loss rises less.",
    "train_loss",
    RISE,
    on_each(HETEROGENEOUS, "{}-s0", "fedprox mu=0", "fedprox mu=1"),
)
MU_SLOWS_IID = Claim(
    "mu = 1 is slower on IID data.",
    "train_loss",
    MEAN,
    on_each((IID,), "{}-s0", "fedprox mu=1", "fedprox mu=0"),
)
VARIANCE_GROWS = Claim(
    "The variance of gradients grows with heterogeneity.",
    "gradient_variance",
    MEAN,
    each_above_previous(SYNTHETIC, "{}-s0", "fedprox mu=0"),
)
MU_LOWERS_VARIANCE = Claim(
    "mu = 1 makes the variance of gradients smaller.",
    "gradient_variance",
    MEAN,
    on_each(HETEROGENEOUS, "{}-s0", "fedprox mu=0", "fedprox mu=1"),
)

FIGURE_2 = _synthetic_item(
    "Figure 2: statistical heterogeneity",
    f"{PAPER}, Figure 2, sections 5.3.1 and 5.3.3",
    ("train_loss", "gradient_variance"),
    WORSE_WITH_HETEROGENEITY,
    MU_HELPS,
    MU_SLOWS_IID,
    VARIANCE_GROWS,
    MU_LOWERS_VARIANCE,
)

FIGURE_6 = _synthetic_item(
    "Figure 6: statistical heterogeneity, in full",
    f"{PAPER}, Figure 6, appendix C.3.2",
    ("train_loss", "test_accuracy", "gradient_variance"),
    Claim(
        "mu = 1 is more accurate over the rounds on heterogeneous data.",
        "test_accuracy",
        MEAN,
        on_each(HETEROGENEOUS, "{}-s0", "fedprox mu=1", "fedprox mu=0"),
    ),
)


def _adaptive(tasks: tuple[Task, ...], measures: tuple[str, ...], title: str, source: str) -> Item:
    """Adaptive mu, from 1 on IID data and from 0 on other data, with mu = 0 and mu = 1."""

    def start(task: Task) -> float:
        return 1.0 if task is IID else 0.0

    def curves(task: Task) -> tuple[Curve, ...]:
        run = f"{task.key}-adaptive"
        label = f"{mu_label(start(task))} adaptive"
        return (*two_mus(run, 1.0), Curve(run, label, "FedProx, adaptive mu"))

    def compared(task: Task, label: str) -> Comparison:
        run = f"{task.key}-adaptive"
        adaptive = f"{mu_label(start(task))} adaptive"
        return Comparison(task.title, Side(run, label), Side(run, adaptive))

    return Item(
        title,
        source,
        {"short": 5 * len(tasks), "paper": 36 * len(tasks)},
        {
            f"{task.key}-adaptive": task.experiment(
                fedprox(0.0, 1.0), {"name": "fedprox", "mu": start(task), "adapt": True}
            )
            for task in tasks
        },
        measures_by_task(tasks, measures, curves),
        (
            Claim(
                "From an adverse start, adaptive mu is steadier than mu = 0 on heterogeneous data.",
                "train_loss",
                RISE,
                tuple(compared(task, mu_label(0)) for task in tasks if task is not IID),
            ),
            Claim(
                "On IID data it is faster than mu = 1, from where it starts.",
                "train_loss",
                MEAN,
                (compared(IID, mu_label(1)),),
            ),
        ),
        notes=(
            "mu starts at 1 on IID data and at 0 elsewhere; it grows by 0.1 when the loss rises "
            "and falls by 0.1 after five falls in a row.",
            ONE_DRAW,
        ),
    )


FIGURE_3 = _adaptive(
    (IID, MOST),
    ("train_loss",),
    "Figure 3: adaptive mu",
    f"{PAPER}, Figure 3, section 5.3.2",
)
FIGURE_11 = _adaptive(
    SYNTHETIC,
    ("train_loss", "mu"),
    "Figure 11: adaptive mu, in full",
    f"{PAPER}, Figure 11, appendix C.3.3; the second row is ours",
)

FIGURE_8 = Item(
    "Figure 8: dissimilarity",
    f"{PAPER}, Figure 8, appendix C.3.2",
    {"short": 140, "paper": 680},
    runs_of(FIVE, (0.0,)),
    measures_by_task(FIVE, ("gradient_variance",), lambda task: two_mus(run_key(task, 0), task.mu)),
    (
        Claim(
            "The best mu makes the variance of gradients smaller.",
            "gradient_variance",
            MEAN,
            on_each(FIVE, "{}-s0", "fedprox mu=0", "fedprox mu={}"),
        ),
    ),
    notes=(ONE_DRAW,),
)
