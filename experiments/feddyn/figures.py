"""Acar et al. 2021: Figures 1, 2 and 11, on CIFAR-10: alpha, FedSplit and ResNet-18."""

from collections.abc import Sequence

from experiments.common import GPU
from experiments.engine.item import (
    Claim,
    Comparison,
    Item,
    Line,
    Panel,
    Row,
    Score,
    Table,
    overlaid,
)
from experiments.engine.summaries import HIGHEST, MEAN
from experiments.feddyn.cifar import PHOTOS, cifar_run
from experiments.feddyn.settings import AS_IN_THE_CODE, COLUMNS, EVALUATED, PAPER, all_methods

ALPHAS = (1.0, 0.5, 0.1, 0.05, 0.01, 0.001)


def _figure_run(percent: int, methods: Sequence[Table], short: Table | None = None) -> Table:
    """A run on IID data with 100 clients and without a target, for a figure."""
    return cifar_run(
        percent,
        "iid",
        methods,
        overlaid({"evaluation": {"every": 1}}, short or {}),
        evaluation={"every": 5, "rows": 120},
    )


FIGURES_SHORT = "short: 50 images of each client, at most 5 a round"

FIGURE_1 = Item(
    "Figure 1: FedDyn's alpha",
    f"{PAPER}, Figure 1, appendix A.3",
    {"short": 100, "paper": 140_000},
    {"feddyn-cifar-10-alphas": _figure_run(10, [{"name": "feddyn", "alpha": list(ALPHAS)}])},
    rows=(
        Row(
            "",
            (
                Panel(
                    "CIFAR-10, IID, 10 %",
                    "test_accuracy",
                    tuple(
                        Line("feddyn-cifar-10-alphas", f"feddyn alpha={a:g}", f"alpha = {a:g}")
                        for a in ALPHAS
                    ),
                ),
            ),
        ),
    ),
    claims=(
        Claim(
            "alpha = 0.1 comes to the best accuracy.",
            "test_accuracy",
            HIGHEST,
            tuple(
                Comparison(
                    f"against {a:g}",
                    Line("feddyn-cifar-10-alphas", "feddyn alpha=0.1"),
                    Line("feddyn-cifar-10-alphas", f"feddyn alpha={a:g}"),
                    FIGURES_SHORT,
                )
                for a in ALPHAS
                if a != 0.1
            ),
        ),
    ),
    scores=tuple(
        Score(
            f"alpha = {a:g}",
            Line("feddyn-cifar-10-alphas", f"feddyn alpha={a:g}"),
            "the best" if a == 0.1 else "",
            FIGURES_SHORT,
        )
        for a in ALPHAS
    ),
    notes=("The scores are the figure's second panel.", PHOTOS, EVALUATED, AS_IN_THE_CODE, GPU),
)

FEDDYN_01: Table = {"name": "feddyn", "alpha": 0.1}


def _fedsplit(average: str) -> Table:
    return {"name": "fedsplit", "step_size": 10.0, "average": average}


FIGURE_2 = Item(
    "Figure 2: FedSplit",
    f"{PAPER}, Figure 2, appendix A.4",
    {"short": 120, "paper": 520_000},
    {
        "feddyn-cifar-10-fedsplit-100": _figure_run(100, [FEDDYN_01, _fedsplit("active")]),
        "feddyn-cifar-10-fedsplit-10": _figure_run(
            10, [FEDDYN_01, _fedsplit("active"), _fedsplit("all")]
        ),
    },
    rows=(
        Row(
            "",
            (
                Panel(
                    "CIFAR-10, IID, 100 %",
                    "test_accuracy",
                    (
                        Line("feddyn-cifar-10-fedsplit-100", "feddyn alpha=0.1", "FedDyn"),
                        Line(
                            "feddyn-cifar-10-fedsplit-100",
                            "fedsplit active step_size=10",
                            "FedSplit",
                        ),
                    ),
                ),
                Panel(
                    "CIFAR-10, IID, 10 %",
                    "test_accuracy",
                    (
                        Line("feddyn-cifar-10-fedsplit-10", "feddyn alpha=0.1", "FedDyn"),
                        *(
                            Line(
                                "feddyn-cifar-10-fedsplit-10",
                                f"fedsplit {average} step_size=10",
                                f"FedSplit, {average}",
                            )
                            for average in ("active", "all")
                        ),
                    ),
                ),
            ),
        ),
    ),
    claims=(
        Claim(
            "FedDyn is better than FedSplit.",
            "test_accuracy",
            MEAN,
            tuple(
                Comparison(
                    f"{percent} %",
                    Line(f"feddyn-cifar-10-fedsplit-{percent}", "feddyn alpha=0.1"),
                    Line(f"feddyn-cifar-10-fedsplit-{percent}", "fedsplit active step_size=10"),
                    FIGURES_SHORT,
                )
                for percent in (100, 10)
            ),
        ),
        Claim(
            "FedSplit is better where the server averages the round's clients than all.",
            "test_accuracy",
            MEAN,
            (
                Comparison(
                    "10 %",
                    Line("feddyn-cifar-10-fedsplit-10", "fedsplit active step_size=10"),
                    Line("feddyn-cifar-10-fedsplit-10", "fedsplit all step_size=10"),
                    FIGURES_SHORT,
                ),
            ),
        ),
    ),
    notes=(
        "alpha is 0.1, the best of Figure 1. The paper names no step size of FedSplit; it is 10 "
        "here, so that its quadratic term weighs the same, 1 / s = alpha.",
        PHOTOS,
        EVALUATED,
        AS_IN_THE_CODE,
        GPU,
    ),
)


def _resnet_methods(steps: int) -> list[Table]:
    return all_methods({"alpha": 0.1}, {"solver": {"steps": steps}}, {"mu": 0.0001})


RESNET_LABELS = ("feddyn alpha=0.1", "scaffold steps=50", "fedavg", "fedprox mu=0.0001")

FIGURE_11 = Item(
    "Figure 11: ResNet-18",
    f"{PAPER}, Figure 11, appendix A.2",
    {"short": 240, "paper": 500_000},
    {
        "feddyn-cifar-10-resnet18": _figure_run(
            10,
            _resnet_methods(50),
            {
                "rounds": 2,
                "data": {"clients": 10},
                "cohort": {"clients_per_round": 2},
            },
        )
        | {"model": {"name": "resnet18"}}
    },
    rows=(
        Row(
            "",
            (
                Panel(
                    "CIFAR-10, IID, 10 %",
                    "test_accuracy",
                    tuple(
                        Line("feddyn-cifar-10-resnet18", label, shown)
                        for label, shown in zip(RESNET_LABELS, COLUMNS, strict=True)
                    ),
                ),
            ),
        ),
    ),
    claims=(
        Claim(
            "FedDyn is better than the others.",
            "test_accuracy",
            HIGHEST,
            tuple(
                Comparison(
                    f"than {other}",
                    Line("feddyn-cifar-10-resnet18", RESNET_LABELS[0]),
                    Line("feddyn-cifar-10-resnet18", label),
                    "short: 10 clients with 50 images each",
                )
                for label, other in zip(RESNET_LABELS[1:], COLUMNS[1:], strict=True)
            ),
        ),
    ),
    notes=(
        "100 clients, as the text has it; the figure says 1,000. The paper names no numbers for "
        "this model: alpha is 0.1, the best of Figure 1, and mu 0.0001.",
        PHOTOS,
        EVALUATED,
        AS_IN_THE_CODE,
        GPU,
    ),
)
