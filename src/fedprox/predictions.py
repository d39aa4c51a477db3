"""Predictions for rows of a table by a model that was trained on one."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.columns import (
    NUMBERS,
    Column,
    Columns,
    Numbers,
    features_of,
    moments_of,
    scaling,
)
from fedprox.errors import InputError, require
from fedprox.experiment import parse
from fedprox.experiment.resolved import resolve_with
from fedprox.features import map_leaves, row_count
from fedprox.federation import Federation
from fedprox.files.toml import read_toml
from fedprox.model import Model
from fedprox.report.saved import load_columns, load_model, model_path
from fedprox.table_layout import ROWS_AT_A_TIME, are_texts, clients_of
from fedprox.tables import Stored, Table, read_table, require_columns

Array = NDArray[Any]


def predict(
    path: str | Path,
    table: Any,
    *,
    label: str | None = None,
    seed: int | None = None,
    model: Model | None = None,
    client: str | None = None,
) -> Array:
    """Predict the label of each row of a table, by a model that was trained on a table.

    The rows' columns become features as those of the training rows did: by the same vocabularies,
    and standardized by the same numbers, which are in the model's file.

    With `standardize="client"` the file has no such numbers, since whoever has the model would know
    each client's means. A client's rows are then standardized by the mean and the standard
    deviation of these rows themselves: all rows of the client in `table`. So a prediction depends
    on which other rows of the client are in the table, and the more there are, the better. Clients
    need not have been in the training, and rows of the training may be in the table.

    Args:
        path: A run directory, or a file that `save_model` wrote with columns.
        table: The rows, in any form that `Federation.from_table` reads. It needs the columns of the
            features, in any order; others are passed over.
        label: For a run directory: the run's label, as tables show it. Needed only if the runs
            have different labels.
        seed: For a run directory: the run's seed. Needed only if the runs have different seeds.
        model: The model. Needed for a file, and for a run directory of a comparison in Python.
        client: The column that names each row's client. Needed with `standardize="client"`, else
            not read.

    Returns:
        The predictions in the order of the rows, shape (rows,): of classes the values of the
        label's column with the greatest output, or, of a model with one output for two classes,
        the second where it is above 0; else the outputs.

    Raises:
        InputError: There is no such run, or its model was not trained on a table; a column is
            missing, or a value cannot be used; the model has other outputs; or, with
            `standardize="client"`, a client has a single value of a column of numbers.

    Example:
        >>> import tempfile
        >>> import fedprox as fp
        >>> rows = {"ward": ["a", "b"] * 20, "dose": list(range(40)), "ill": ["no", "yes"] * 20}
        >>> rows["ill"] = ["yes" if dose > 19 else "no" for dose in rows["dose"]]
        >>> federation = fp.Federation.from_table(rows, client="ward", label="ill")
        >>> model = fp.models.logistic(federation)
        >>> (run,) = fp.simulate(
        ...     federation, model, fp.fedavg(), solver=fp.Solver(0.5, 10, epochs=5),
        ...     cohort=fp.Cohort(2), rounds=10, progress=False,
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fp.save([run], folder)
        ...     fp.predict(folder, {"dose": [3, 38]}, model=model).tolist()
        ['no', 'yes']
    """
    file = model_path(path, label, seed)
    columns = load_columns(file)
    if columns.standardize != "client":
        client = None
    else:
        require(
            client is not None,
            f"{file}: trained on rows that each client's own mean and deviation standardize; give "
            "client, the column of the table that names each row's client",
        )
    if model is None:
        model = model_of_directory(Path(path), columns)
    params = load_model(file, model=model)
    names = [column.name for column in columns.features]
    used = names if client is None else [*names, client]
    read = read_table(table, used, [c.name for c in columns.features if are_texts(c.values)])
    require_columns(used, read.names)
    if not read.rows:
        return label_values(columns.label)[:0]
    stored = {name: read.column(name) for name in names}
    numbers = _numbers(columns, read, stored, client)
    apply, parts, length = jax.jit(model.apply), list[Array](), min(read.rows, ROWS_AT_A_TIME)
    for first in range(0, read.rows, ROWS_AT_A_TIME):
        last = min(first + ROWS_AT_A_TIME, read.rows)
        block = {name: each.rows(first, last) for name, each in stored.items()}
        x = features_of(columns, block, first=first, numbers=numbers(slice(first, last)))
        outputs = np.asarray(apply(params, map_leaves(partial(_repeated, length), x)))[
            : row_count(x)
        ]
        parts.append(_labels(columns.label, outputs))
    return np.concatenate(parts)


def _numbers(
    columns: Columns, table: Table, stored: Mapping[str, Stored], client: str | None
) -> Callable[[slice], Numbers | None]:
    """(rows) -> mean and scale of each one's client, by its rows; None for those of the columns."""
    if client is None:
        return lambda _: None
    clients, owners = clients_of(client, table.column(client), table.rows)
    whole = {column.name: stored[column.name].rows(0, table.rows) for column in columns.numeric}
    moments = moments_of(columns, whole, owners=owners, clients=len(clients))
    for k, j in np.argwhere(moments.counts == 1)[:1]:
        raise InputError(
            f"client {clients[k]!r}: one value of column {columns.numeric[j].name!r}; the client's "
            "own mean and deviation, which standardize the column, need at least two"
        )
    mean, scale = scaling(moments)
    return lambda rows: (mean[owners[rows]], scale[owners[rows]])


def model_of_directory(folder: Path, columns: Columns) -> Model:
    """The model of a run directory's experiment."""
    file = folder / "experiment.toml"
    require(file.is_file(), f"{folder}: not a run directory; give model")
    try:
        experiment = parse(str(file), read_toml(file))
    except InputError as error:
        raise InputError(f"{error}; give model") from None
    resolved = resolve_with(experiment, lambda: (_stand_in(columns), experiment.data))
    found: Model = resolved.model
    return found


def _stand_in(columns: Columns) -> Federation:
    """A client with one row, from which a model is built."""
    numbers = np.zeros((1, len(columns.names)), np.float32)
    indices = {column.name: np.zeros(1, np.int32) for column in columns.indices}
    x = {NUMBERS: numbers, **indices} if indices else numbers
    y = np.zeros(1, np.int32 if columns.classes else np.float32)
    return Federation.from_arrays([(x, y)], [(x, y)], classes=columns.classes)


def _repeated(length: int, array: Array) -> Array:
    """Rows, of the last block repeated, so that all blocks have one length."""
    return array if len(array) == length else np.resize(array, (length, *array.shape[1:]))


def _labels(label: Column, outputs: Array) -> Array:
    """The labels that outputs predict."""
    known = label_values(label)
    if outputs.ndim == 2 and outputs.shape[1] == len(known) > 1:
        return known[np.argmax(outputs, axis=1)]
    scores = outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
    require(
        scores.ndim == 1 and len(known) in (0, 2),
        f"model: outputs of shape {outputs.shape[1:]} for {len(known)} values of column "
        f"{label.name!r}; there must be one for each, or one number for two or for a number",
    )
    return known[(scores > 0).astype(int)] if len(known) else scores


def label_values(label: Column) -> Array:
    """The values of a label's classes; none if it is a number."""
    return np.array([False, True]) if label.kind == "boolean" else np.array(label.values)
