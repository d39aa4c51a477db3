"""`fedprox predict`."""

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from fedprox.commands.training import set_up_jax
from fedprox.errors import plural, printable, require
from fedprox.files.whole import write_whole
from fedprox.predictions import Outputs, outputs_of


def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run on a table.")
    ],
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE", help="The rows: a file .csv, .parquet, .feather or .arrow."
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(help="The run, as tables show it: fedprox mu=1. Needed if there are several."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The run's seed. Needed if there are several.")
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help='Who each row belongs to. Needed if data.standardize = "client".',
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also the probability of each class.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write to a new file instead.")
    ] = None,
) -> None:
    """Predict the label of each row of a table, by a model that was trained on one.

    It prints CSV: a line with the name of the label's column, and one for each row, in their order.
    With --probabilities, a column such as ill=yes follows for each class.

    Bad input is reported in one line, with exit status 2.
    """
    require(out is None or not out.exists(), f"--out: {out} exists already; name a new file")
    require(run.is_dir(), f"{run}: no such run directory")
    set_up_jax(1, 1)
    found = outputs_of(run, table, label=label, seed=seed, model=None, client=client)
    content = as_csv(found, probabilities=probabilities)
    if out is None:
        print(content, end="")
        return
    write_whole(out, content.encode())
    print(f"{printable(out)}: {plural(len(found.values), 'row')}")


def as_csv(found: Outputs, *, probabilities: bool) -> str:
    """A line for each row, under a header."""
    name = found.label.name
    table = {name: _texts(found.labels())}
    if probabilities:
        classes, values = found.probabilities()
        shares = map(_texts, values.T.astype(np.float32))  # the outputs' precision
        table |= zip([f"{name}={each}" for each in _texts(classes)], shares, strict=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [list(table), *zip(*table.values(), strict=True)]
    )
    return text.getvalue()


def _texts(values: NDArray[Any]) -> list[str]:
    """Values as tables have them."""
    texts: list[str] = values.astype(str).tolist()
    return [each.lower() for each in texts] if values.dtype == bool else texts
