"""The README's figure: FedAvg and FedProx where 90 % of each cohort are stragglers.

`python -m experiments.first_sight` trains what `examples/demo.toml` describes with five seeds in
place of one, in about half a minute, and writes `docs/first-sight.png`.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

import fedprox as fp
from fedprox.report.figure import Line, band, curves

ROOT = Path(__file__).parents[1]

PAGE = ROOT / "docs" / "first-sight.png"

SEEDS = 5

STYLES = {
    "fedprox mu=1": ("FedProx\nkeeps partial work", "#0072b2", "solid"),
    "fedavg": ("FedAvg\ndrops it", "#d55e00", "dashed"),
}
"""The label in the figure, colour and dash of each method."""


def main() -> None:
    """Train, and write the figure."""
    demo = ROOT / "examples" / "demo.toml"
    runs = fp.run(demo, [f"seed={[*range(SEEDS)]}"])
    groups = {label: [run for run in runs if run.label == label] for label in STYLES}
    drawn(curves(groups, "round", "test_accuracy")).savefig(PAGE, dpi=200)
    print(PAGE.relative_to(ROOT))


def drawn(lines: Sequence[Line]) -> Figure:
    """Accuracies by round: a line for each method, with its name at the end, and a band."""
    with mpl.rc_context({"font.size": 11, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axis = figure.subplots()
        for line in lines:
            words, colour, dash = STYLES[line.label]
            mean, low, high = (100 * edge for edge in band(line.values))
            axis.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.plot(line.x, mean, color=colour, linestyle=dash, linewidth=2.2)
            axis.annotate(
                words,
                (line.x[-1], mean[-1]),
                xytext=(8, 0),
                textcoords="offset points",
                verticalalignment="bottom" if line is lines[0] else "top",
                color=colour,
                weight="bold",
                annotation_clip=False,
            )
        axis.set(xlabel="round", ylabel="test accuracy, %", xlim=(0, lines[0].x[-1]), ylim=(0, 100))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    return figure


if __name__ == "__main__":
    main()
