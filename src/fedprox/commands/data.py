"""`fedprox data list`, `fetch` and `describe`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprox.commands.options import Command, DataDir
from fedprox.commands.training import prepare
from fedprox.datasets import CATALOGUE
from fedprox.datasets.sources import at_hand, cache_folder, fetch
from fedprox.errors import choices, printable, require
from fedprox.experiment import apply_setting, load_data
from fedprox.parts.part import Part
from fedprox.report.data import (
    catalogue_table,
    columns_table,
    data_figure,
    population_figure,
    population_words,
    statistics_table,
    work_seconds,
)
from fedprox.report.directory import write_figure
from fedprox.terminal import Bar, standard_console

data = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="The data sets: list them, fetch their files, describe their clients.",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set that `data list` names.")]


@data.command("list", cls=Command)
def list_data(data_dir: DataDir = None) -> None:
    """List all data sets: content, papers, partitions, and where the files are."""
    standard_console().print(catalogue_table(data_dir))


@data.command("fetch", cls=Command)
def fetch_data(
    name: Name,
    data_dir: DataDir = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also files that only some options need.")
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Also files without a published checksum.")
    ] = False,
) -> None:
    """Download a data set's files into the cache, and print where they are.

    Checksums are checked. A file that is in the data folder is not downloaded.
    """
    require(name in CATALOGUE, f"{name!r} is not a data set; {choices(name, CATALOGUE)}")
    entry = CATALOGUE[name]
    if not entry.files:
        how = f"read from data.{entry.brought}" if entry.brought else "generated"
        print(f"{name}: nothing to fetch; it is {how}")
    shown = set()
    for file in entry.files:
        path = at_hand(file, data_dir)
        if file.use and not (path or everything):
            print(f"{file.name}: not fetched, for {file.use} alone; --all fetches it too")
            continue
        if not path or path.is_relative_to(cache_folder()):
            path = fetch(file, unverified=unverified)
        if path not in shown:  # one file may replace several others
            print(printable(path))
        shown.add(path)


@data.command("describe", cls=Command)
def describe_data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.toml", help="A data set that `data list` names, or an experiment."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="An option, as in [data] of an experiment file: partition=iid. Repeatable.",
        ),
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figure. [default: runs/NAME-data]")
    ] = None,
) -> None:
    """Compare a data set's statistics with the paper's, and plot its clients' sizes and labels.

    An experiment file has its [data] described, and the devices of its [population].
    """
    file = Path(name)
    if described := file.suffix == ".toml":
        console, experiment, resolved = prepare(file, settings, data_dir)
        federation, table, title = resolved.federation, resolved.table["data"], "data"
    else:
        console, table = standard_console(), {}
        for setting in settings or ():
            apply_setting(table, setting)
        already = f"the name is {name!r} already"
        require("name" not in table, f"--set name={table.get('name')}: {already}")
        with Bar("loading the data"):
            federation, table = load_data({"name": name, **table}, data_dir)
        title = ", ".join(f"{k} = {v}" for k, v in table.items() if k != "name")
        console.print(f"{name}: {printable(title)}\n", highlight=False)
    drawn = {"data": data_figure(federation, f"{name}: {title}")}
    of_paper = str(table.get("name", "")), table.get("partition", "")
    console.print(statistics_table(federation, *of_paper))
    if federation.columns:
        console.print()
        console.print(columns_table(federation.columns))
    if described and resolved.population:  # for the first method and seed
        parts = [each for each in resolved.settings.values() if isinstance(each, Part)]
        seconds, hours = work_seconds(
            *(resolved.population, federation, resolved.model, resolved.methods[0]),
            *(resolved.solver, experiment.seeds[0], parts),
        )
        title = f"{file}: {resolved.methods[0].name}, devices"
        drawn["population"] = population_figure(seconds, hours, title)
        words = population_words(seconds, hours, resolved.population.dropout)
        console.print(f"\n{words}", highlight=False)
    folder = out or Path("runs") / f"{file.stem if described else name}-data"
    folder.mkdir(parents=True, exist_ok=True)
    for each, figure in drawn.items():
        write_figure(folder, figure, each)
    files = ", ".join(f"{each}.{kind}" for each in drawn for kind in ("png", "svg"))
    console.print(f"\n{printable(folder)}: {files}", highlight=False, soft_wrap=True)
