"""Predictions for rows of a table by a model that was trained on one."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

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
from fedprox.experiment import Experiment, Resolved, parse, resolve
from fedprox.experiment.resolved import resolve_with
from fedprox.features import map_leaves, row_count
from fedprox.federation import Federation
from fedprox.files.toml import read_toml
from fedprox.losses import CrossEntropy, SigmoidCrossEntropy, by_labels
from fedprox.model import Model
from fedprox.report.saved import load_columns, load_model, model_path
from fedprox.table_layout import ROWS_AT_A_TIME, are_texts, clients_of
from fedprox.tables import Stored, Table, read_table, require_columns

Array = NDArray[Any]


class Probabilities(NamedTuple):
    """The probability of each class for rows of a table.

    Attributes:
        classes: The values of the label's column, shape (classes,).
        values: The probabilities, float64 (rows, classes).

    Example:
        >>> import numpy as np
        >>> found = Probabilities(np.array(["no", "yes"]), np.array([[0.2, 0.8]]))
        >>> dict(zip(found.classes.tolist(), found.values[0].tolist(), strict=True))
        {'no': 0.2, 'yes': 0.8}
    """

    classes: Array
    values: Array


@overload
def predict(
    path: str | Path,
    table: Any,
    *,
    label: str | None = ...,
    seed: int | None = ...,
    model: Model | None = ...,
    client: str | None = ...,
    probabilities: Literal[False] = ...,
) -> Array: ...
@overload
def predict(
    path: str | Path,
    table: Any,
    *,
    label: str | None = ...,
    seed: int | None = ...,
    model: Model | None = ...,
    client: str | None = ...,
    probabilities: Literal[True],
) -> Probabilities: ...
def predict(
    path: str | Path,
    table: Any,
    *,
    label: str | None = None,
    seed: int | None = None,
    model: Model | None = None,
    client: str | None = None,
    probabilities: bool = False,
) -> Array | Probabilities:
    """Predict the label of each row of a table, by a model that was trained on a table.

    The rows' columns become features as those of the training rows did: by the same vocabularies,
    and standardized by the same numbers, which are in the model's file.

    With `standardize="client"` the file has no such numbers, since whoever has the model would know
    each client's means. A client's rows are then standardized by the mean and the standard
    deviation of these rows themselves: all rows of the client in `table`. So a prediction depends
    on the client's other rows in the table, and is better the more there are. Clients need not have
    been in the training, and rows of the training may be in the table.

    A missing value is read as one of the training's table: `missing` of its columns stands for it.

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
        probabilities: Whether to return the probability of each class in place of the predictions:
            the softmax of the outputs, or of one output for two classes its sigmoid. They are not
            calibrated, and weights of classes in the loss shift them.

    Returns:
        The predictions in the order of the rows, shape (rows,). For classes they are values of the
        label's column: those with the greatest output. A model with one output for two classes
        predicts the second where it is above 0. Otherwise they are the outputs. With
        `probabilities`, :class:`fedprox.Probabilities`.

    Raises:
        InputError: If there is no such run, or its model was not trained on a table. Also if a
            column is missing, a value cannot be used, or the model has other outputs. Also if a
            client has a single value of a column of numbers, with `standardize="client"`; and if
            probabilities are asked for and the loss is not a cross-entropy.

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
        ...     found = fp.predict(folder, {"dose": [38]}, model=model, probabilities=True)
        ['no', 'yes']
        >>> found.classes.tolist(), bool(found.values[0, 1] > 0.5)
        (['no', 'yes'], True)
    """
    found = outputs_of(path, table, label=label, seed=seed, model=model, client=client)
    return found.probabilities() if probabilities else found.labels()


class Outputs(NamedTuple):
    """A model's outputs for rows of a table, and the label that they predict."""

    label: Column
    values: Array
    model: Model

    def labels(self) -> Array:
        """The labels that are predicted."""
        known, outputs = label_values(self.label), self._checked()
        if outputs.ndim == 2:
            return known[np.argmax(outputs, axis=1)]
        return known[(outputs > 0).astype(int)] if len(known) else outputs

    def probabilities(self) -> Probabilities:
        """The probability of each class."""
        known, outputs = label_values(self.label), self._checked()
        require(
            len(known),
            f"probabilities: column {self.label.name!r} is a number to predict; only classes have "
            "probabilities",
        )
        loss = self.model.loss
        require(
            loss is by_labels or isinstance(loss, CrossEntropy | SigmoidCrossEntropy),
            "probabilities: the model's loss is neither fp.losses.cross_entropy() nor "
            "fp.losses.sigmoid_cross_entropy(), whose outputs give them",
        )
        scores = outputs.astype(np.float64)
        if scores.ndim == 1:
            scores = np.stack([np.zeros(len(scores)), scores], axis=1)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return Probabilities(known, shares / shares.sum(axis=1, keepdims=True))

    def _checked(self) -> Array:
        """The outputs (rows, classes), or (rows,) for two classes or for a number."""
        outputs, known = self.values, len(label_values(self.label))
        if outputs.ndim == 2 and outputs.shape[1] == known > 1:
            return outputs
        scores = outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
        require(
            scores.ndim == 1 and known in (0, 2),
            f"model: outputs of shape {outputs.shape[1:]} for {known} values of column "
            f"{self.label.name!r}; there must be one for each, or one number for two or for a "
            "number",
        )
        return scores


def outputs_of(
    path: str | Path,
    table: Any,
    *,
    label: str | None,
    seed: int | None,
    model: Model | None,
    client: str | None,
) -> Outputs:
    """The outputs of a model for the rows of a table, see `predict`."""
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
        model = model_of_directory(Path(path), columns, "fp.predict")
    params = load_model(file, model=model)
    names = [column.name for column in columns.features]
    used = names if client is None else [*names, client]
    read = read_table(table, used, [c.name for c in columns.features if are_texts(c.values)])
    require_columns(used, read.names)
    stored = {name: read.column(name) for name in names}
    if not read.rows:
        none = np.zeros((0, columns.classes) if columns.classes else 0, np.float32)
        return Outputs(columns.label, none, model)
    numbers = _numbers(columns, read, stored, client)
    apply, parts, length = jax.jit(model.apply), list[Array](), min(read.rows, ROWS_AT_A_TIME)
    for first in range(0, read.rows, ROWS_AT_A_TIME):
        last = min(first + ROWS_AT_A_TIME, read.rows)
        block = {name: each.rows(first, last) for name, each in stored.items()}
        x = features_of(columns, block, first=first, numbers=numbers(slice(first, last)))
        outputs = apply(params, map_leaves(partial(_repeated, length), x))
        parts.append(np.asarray(outputs)[: row_count(x)])
    return Outputs(columns.label, np.concatenate(parts), model)


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


def model_of_directory(folder: Path, columns: Columns, given_to: str) -> Model:
    """The model of a run directory's experiment, or an error that says what to give."""

    def stand_in(experiment: Experiment) -> Resolved:
        return resolve_with(experiment, lambda: (_stand_in(columns), experiment.data))

    found: Model = resolved_of(folder, f"model to {given_to}", stand_in).model
    return found


def resolved_of(
    folder: Path, instead: str, resolve: Callable[[Experiment], Resolved] = resolve
) -> Resolved:
    """The objects of a run directory's experiment, or an error that says what to give instead."""
    file = folder / "experiment.toml"
    require(file.is_file(), f"{folder}: not a run directory; give {instead}")
    try:
        return resolve(parse(str(file), read_toml(file)))
    except InputError as error:
        raise InputError(f"{error}; give {instead}") from None


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


def label_values(label: Column) -> Array:
    """The values of a label's classes; none if it is a number."""
    return np.array([False, True]) if label.kind == "boolean" else np.array(label.values)
