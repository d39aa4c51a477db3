"""Li et al. 2020: Figures 1, 5, 7, 9 and 10, stragglers and partial work."""

from experiments.common import FEDAVG, fedprox
from experiments.engine.item import Claim, Comparison, Curve, Item, Panel, Row, Side, Task
from experiments.engine.summaries import FINAL, MEAN, RISE
from experiments.fedprox.common import on_each, two_mus
from experiments.fedprox.tasks import FIVE, IID, ONE_DRAW, PAPER, STRAGGLERS, run_key, runs_of


def _stragglers_by_task(tasks: tuple[Task, ...], measure: str, epochs: int = 20) -> tuple[Row, ...]:
    """A row for each share of stragglers, a column for each data set."""
    best = epochs == 20

    def curves(task: Task, s: float) -> tuple[Curve, ...]:
        run = run_key(task, s, epochs)
        fedavg = (Curve(run, "fedavg", "FedAvg"),) if s else ()
        mus = two_mus(run, task.mu)
        return (*fedavg, *(mus if best else mus[:1]))

    def title(task: Task) -> str:
        return f"{task.title}, mu = {task.mu:g}" if best else task.title

    return tuple(
        Row(
            f"{100 * s:.0f} % stragglers",
            tuple(task.panel(measure, *curves(task, s), title=title(task)) for task in tasks),
        )
        for s in STRAGGLERS
    )


def _with_and_without(
    tasks: tuple[Task, ...], greater: str, less: str, epochs: int = 20
) -> tuple[Comparison, ...]:
    """A comparison at 50 and 90 % stragglers."""
    end = "" if epochs == 20 else f"-e{epochs}"
    return tuple(
        comparison
        for s in (50, 90)
        for comparison in on_each(tasks, f"{{}}-s{s}{end}", greater, less, f", {s} %")
    )


FIGURE_1 = Item(
    "Figure 1: training loss with stragglers",
    f"{PAPER}, Figure 1, sections 5.2 and 5.3.2",
    {"short": 490, "paper": 2400},
    runs_of(FIVE, STRAGGLERS),
    _stragglers_by_task(FIVE, "train_loss"),
    (
        Claim(
            "Keeping partial work helps: FedAvg ends above FedProx with mu = 0.",
            "train_loss",
            FINAL,
            _with_and_without(FIVE, "fedavg", "fedprox mu=0"),
        ),
        Claim(
            "Keeping partial work is faster: over the rounds FedAvg's loss lies above.",
            "train_loss",
            MEAN,
            _with_and_without(FIVE, "fedavg", "fedprox mu=0"),
        ),
        Claim(
            "Keeping partial work is steadier: FedAvg's loss rises more.",
            "train_loss",
            RISE,
            _with_and_without(FIVE, "fedavg", "fedprox mu=0"),
        ),
        Claim(
            "More stragglers make FedAvg worse: at 90 % it ends above where it ends without.",
            "train_loss",
            FINAL,
            tuple(
                Comparison(
                    task.title,
                    Side(run_key(task, 0.9), "fedavg"),
                    Side(run_key(task, 0), "fedprox mu=0"),
                    task.note,
                )
                for task in FIVE
            ),
        ),
        Claim(
            "mu > 0 is steadier: the loss rises less than with mu = 0.",
            "train_loss",
            RISE,
            (
                *on_each(FIVE, "{}-s0", "fedprox mu=0", "fedprox mu={}", ", 0 %"),
                *_with_and_without(FIVE, "fedprox mu=0", "fedprox mu={}"),
            ),
        ),
    ),
    notes=(ONE_DRAW,),
)

FIGURE_7 = Item(
    "Figure 7: test accuracy with stragglers",
    f"{PAPER}, Figure 7, appendix C.3.2",
    {"short": 490, "paper": 2400},
    runs_of(FIVE, STRAGGLERS),
    _stragglers_by_task(FIVE, "test_accuracy"),
    (
        Claim(
            "FedProx with the best mu ends more accurate than FedAvg.",
            "test_accuracy",
            FINAL,
            _with_and_without(FIVE, "fedprox mu={}", "fedavg"),
        ),
        Claim(
            "FedProx with the best mu is more accurate than FedAvg over the rounds.",
            "test_accuracy",
            MEAN,
            _with_and_without(FIVE, "fedprox mu={}", "fedavg"),
        ),
    ),
    notes=(ONE_DRAW, "For the 22 % of the abstract see `fedprox/headline`."),
)

FIGURE_5 = Item(
    "Figure 5: stragglers on IID data",
    f"{PAPER}, Figure 5, appendix C.3.1",
    {"short": 13, "paper": 70},
    {
        f"{IID.key}-partial-{100 * s:.0f}": IID.experiment(FEDAVG, fedprox(0.0), stragglers=s)
        for s in STRAGGLERS
    },
    tuple(
        Row(
            "",
            tuple(
                Panel(
                    f"Synthetic IID, {100 * s:.0f} % stragglers",
                    measure,
                    (
                        Curve(f"{IID.key}-partial-{100 * s:.0f}", "fedavg", "FedAvg"),
                        two_mus(f"{IID.key}-partial-{100 * s:.0f}", 0.0)[0],
                    ),
                )
                for s in STRAGGLERS
            ),
        )
        for measure in ("train_loss", "test_accuracy")
    ),
    (
        Claim(
            "On IID data it matters little whether partial work is kept.",
            "test_accuracy",
            FINAL,
            tuple(
                comparison
                for s in (50, 90)
                for comparison in on_each(
                    (IID,), f"{{}}-partial-{s}", "fedprox mu=0", "fedavg", f", {s} %"
                )
            ),
            alike=0.02,
        ),
        Claim(
            "On IID data FedAvg is robust to dropped devices: they cost it little accuracy.",
            "test_accuracy",
            FINAL,
            tuple(
                Comparison(
                    f"{IID.title}, {s} %",
                    Side(f"{IID.key}-partial-0", "fedavg"),
                    Side(f"{IID.key}-partial-{s}", "fedavg"),
                )
                for s in (50, 90)
            ),
            alike=0.02,
        ),
    ),
    notes=(ONE_DRAW,),
)


def _one_epoch(measure: str, number: int, claim: Claim) -> Item:
    return Item(
        f"Figure {number}: {'loss' if measure == 'train_loss' else 'accuracy'} with E = 1",
        f"{PAPER}, Figure {number}, appendix C.3.2",
        {"short": 180, "paper": 850},
        runs_of(FIVE, STRAGGLERS, epochs=1),
        _stragglers_by_task(FIVE, measure, epochs=1),
        (claim,),
        notes=(
            "A straggler does a part of its one epoch: a number of mini-batches, uniform on "
            "{1, ..., all of them}. The rounds are those of Figure 1; the paper does not say.",
            ONE_DRAW,
        ),
    )


FIGURE_9 = _one_epoch(
    "train_loss",
    9,
    Claim(
        "With E = 1, too, keeping partial work helps.",
        "train_loss",
        FINAL,
        _with_and_without(FIVE, "fedavg", "fedprox mu=0", epochs=1),
    ),
)
FIGURE_10 = _one_epoch(
    "test_accuracy",
    10,
    Claim(
        "With E = 1, too, keeping partial work helps accuracy.",
        "test_accuracy",
        FINAL,
        _with_and_without(FIVE, "fedprox mu=0", "fedavg", epochs=1),
    ),
)
