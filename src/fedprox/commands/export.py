"""`fedprox export`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprox.errors import printable
from fedprox.exports import DESCRIPTION, PROGRAM
from fedprox.exports import export as export_model

MORE = """Bad input is reported in one line, with exit status 2."""


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Directory that `run` or `deploy` wrote.")
    ],
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for the model.")],
    label: Annotated[
        str | None, typer.Option(help="The run's label, if the runs have different labels.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The run's seed, if the runs have different seeds.")
    ] = None,
) -> None:
    """Export a trained model as StableHLO, which runs with JAX alone.

    FOLDER gets model.stablehlo, the model with what prepares its inputs, and model.json, which says
    what it takes and returns. The data are loaded for their shapes, unless they are a table.
    """
    export_model(run, path, label=label, seed=seed)
    print(f"{printable(path)}: {PROGRAM}, {DESCRIPTION}")
