"""Li et al. 2020: Figure 12, two ways to sample clients."""

from collections.abc import Sequence

from experiments.common import fedprox
from experiments.engine.item import Claim, Comparison, Curve, Item, Side, Task
from experiments.engine.summaries import MEAN, RISE
from experiments.fedprox.common import measures_by_task, mu_label, on_each
from experiments.fedprox.tasks import HETEROGENEOUS, ONE_DRAW, PAPER, SYNTHETIC, run_key, runs_of


def _uniform_above_proportional(tasks: Sequence[Task]) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(
            f"{task.title}, mu = {mu:g}",
            Side(run_key(task, 0), mu_label(mu)),
            Side(f"{task.key}-proportional", mu_label(mu)),
        )
        for mu in (0.0, 1.0)
        for task in tasks
    )


FIGURE_12 = Item(
    "Figure 12: two ways to sample clients",
    f"{PAPER}, Figure 12, appendix C.3.4",
    {"short": 27, "paper": 170},
    runs_of(SYNTHETIC, (0.0,))
    | {
        f"{task.key}-proportional": task.experiment(fedprox(0.0, task.mu), sampling="proportional")
        for task in SYNTHETIC
    },
    measures_by_task(
        SYNTHETIC,
        ("train_loss", "test_accuracy", "gradient_variance"),
        lambda task: (
            Curve(run_key(task, 0), "fedprox mu=0", "mu = 0, uniform"),
            Curve(run_key(task, 0), "fedprox mu=1", "mu > 0, uniform"),
            Curve(f"{task.key}-proportional", "fedprox mu=0", "mu = 0, proportional"),
            Curve(f"{task.key}-proportional", "fedprox mu=1", "mu > 0, proportional"),
        ),
    ),
    (
        Claim(
            "Sampling with p_k and a plain mean is slightly better than uniform sampling and a "
            "weighted mean.",
            "train_loss",
            MEAN,
            _uniform_above_proportional(SYNTHETIC),
        ),
        Claim(
            "Sampling with p_k makes both methods more stable: the loss rises less.",
            "train_loss",
            RISE,
            _uniform_above_proportional(HETEROGENEOUS),
        ),
        Claim(
            "mu = 1 is steadier with either.",
            "train_loss",
            RISE,
            (
                *on_each(HETEROGENEOUS, "{}-s0", "fedprox mu=0", "fedprox mu=1", ", uniform"),
                *on_each(
                    HETEROGENEOUS,
                    "{}-proportional",
                    "fedprox mu=0",
                    "fedprox mu=1",
                    ", proportional",
                ),
            ),
        ),
    ),
    notes=(ONE_DRAW,),
)
