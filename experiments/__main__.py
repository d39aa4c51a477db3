"""The command `python -m experiments`: list, run, resume, judge and draw the papers' items."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from experiments import ITEMS, select
from experiments.engine.item import SCALES
from experiments.engine.run import Step, reproduce
from experiments.engine.table import duration
from experiments.printed import PRINTED, Printed
from fedprox.cli import main
from fedprox.commands.options import DataDir
from fedprox.datasets.sources import cache_folder
from fedprox.devices.compilation_cache import use_compilation_cache
from fedprox.devices.mesh import use_cpu_devices
from fedprox.errors import printable, require
from fedprox.terminal import standard_console

HELP = """Run a figure or table of a paper, and compare it with the paper's numbers.

Without ITEM it lists all items, with the time that each takes. ITEM is a name, all items of a paper
("fedprox/"), "long", which is those that take half an hour or more, or "all". DIR gets a folder for
each item with a table, its data, a report and, if it has curves, a figure. The run directories are
in DIR/runs; complete ones are not run again, and interrupted ones go on from their last checkpoint.

Of items that two cores would need more than a day for, it prints what the paper printed and an
experiment for `fedprox run`.
"""

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, help=HELP
)


@app.command(help=HELP)
def run_items(
    name: Annotated[str | None, typer.Argument(metavar="[ITEM]", help="What to run.")] = None,
    scale: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="short, the default: a fifth of the rounds or less, at most two seeds; or paper: "
            "the paper's rounds, at most five.",
        ),
    ] = "short",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Default: runs/experiments-SCALE.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run the items that a name selects."""
    console = standard_console()
    if name is None:
        console.print(listing())
        console.print("\nOnly printed, with an experiment for `fedprox run`:", highlight=False)
        for key, printed in PRINTED.items():
            console.print(f"{key}: {printed.title}", soft_wrap=True, highlight=False)
        return
    require(scale in SCALES, f"--scale {scale}; it must be {' or '.join(SCALES)}")
    items = select(name)
    folder = out or Path("runs") / f"experiments-{scale}"
    use_cpu_devices(clients_per_round=10)
    use_compilation_cache(cache_folder() / "xla")
    for key, item in items.items():
        if isinstance(item, Printed):
            print(f"fedprox run {item.path}\n\n{item.path.read_text(encoding='utf-8')}")
            continue
        console.print(f"{key}: {item.title}; about {duration(item.seconds[scale])} on two cores")
        text = reproduce(key, item, SCALES[scale], folder, data_dir, _show_step)
        console.print(f"\n{text}", soft_wrap=True, highlight=False)
        console.print(f"{printable(folder / key)}: table.md and what it is made from\n")


def listing() -> Table:
    """All items, with their data and the time that each takes at each scale."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("item", "what", "data", *SCALES):
        shown.add_column(header, no_wrap=header == "item")
    for key, item in ITEMS.items():
        times = (duration(item.seconds[scale]) for scale in SCALES)
        shown.add_row(key, item.title, ", ".join(item.data), *times)
    return shown


def _show_step(step: Step) -> None:
    print(f"{step.number} of {step.of}: {step.name}", file=sys.stderr)


if __name__ == "__main__":
    main(app)
