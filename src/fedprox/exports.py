"""Trained models as StableHLO, which run with JAX alone."""

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from fedprox.columns import INDICATOR, NUMBERS, NUMERIC, Column, Columns
from fedprox.errors import InputError, installing, reason, require
from fedprox.features import Prepared, formed, map_leaves, rows_like
from fedprox.files.whole import write_whole
from fedprox.model import Model, Params, check_params
from fedprox.predictions import label_values, model_of_directory, resolved_of
from fedprox.report.saved import load_model, model_path, saved_columns
from fedprox.results.run import Run

PROGRAM, DESCRIPTION = "model.stablehlo", "model.json"
"""The files of an exported model."""

PLATFORMS = ("cpu", "cuda", "tpu")
"""Where an exported model runs, unless its code is for one of them alone."""

LOCATIONS = "jax_traceback_in_locations_limit"
"""JAX's setting of how many places in the code it notes for each operation."""

ROWS = "rows"
"""The name of the number of rows, which is left open."""


def export(
    run: Run | str | Path,
    path: str | Path,
    *,
    label: str | None = None,
    seed: int | None = None,
    model: Model | None = None,
    example: Any = None,
) -> None:
    """Export a trained model as StableHLO, which runs with JAX alone, for any number of rows.

    It needs the extra `export`, and whoever loads the model JAX and the package flatbuffers.

    The folder gets two files. `model.stablehlo` is the model with its parameters and what prepares
    its inputs, for `jax.export.deserialize`. `model.json` says what it takes and returns: the shape
    and type of each input, a table's columns with their vocabularies, and the label's values.

    A model of a table takes a dict of the columns, each of shape (rows,), before standardization.
    Numbers are float32, booleans 0 and 1, dates days since 1970-01-01, and missing values NaN.
    Categories and indices are int32 positions in the vocabulary, -1 where one is missing. The model
    standardizes in single precision. Where :func:`fedprox.predict` would refuse a row,
    its outputs are NaN.

    Another model takes features as the federation has them; raw rows, if they are
    :class:`fedprox.Prepared`, which it prepares.

    Args:
        run: A run; a run directory; or a file that `save_model` wrote.
        path: The folder, which is made unless it is there.
        label: For a run directory: the run's label, as tables show it. Needed only if the runs
            have different labels.
        seed: For a run directory: the run's seed. Needed only if the runs have different seeds.
        model: The model. Needed for a run, for a file, and for a run directory of a comparison in
            Python.
        example: Some rows of features, such as `federation.train.x`, of which only the shapes and
            types matter. Needed unless the model was trained on a table, or the run directory is of
            an experiment file, whose data are then loaded.

    Raises:
        InputError: There is no such run; the model or an example is needed; each client's own
            numbers standardize its rows; or the model's code cannot be exported.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> model = fp.models.logistic(federation)
        >>> (run,) = fp.simulate(
        ...     federation, model, fp.fedavg(), solver=fp.Solver(0.01, 10, steps=1),
        ...     cohort=fp.Cohort(2), rounds=1, progress=False,
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fp.export(run, folder, model=model, example=federation.train.x)
        ...     content = Path(folder, "model.stablehlo").read_bytes()
        >>> jax.export.deserialize(bytearray(content)).call(np.zeros((3, 60), np.float32)).shape
        (3, 10)
    """
    if not find_spec("flatbuffers"):
        raise InputError(f"export: JAX needs flatbuffers for it: {installing('export')}")
    if isinstance(run, Run):
        require((label, seed) == (None, None), "export: label and seed choose in a run directory")
        columns, params = run.columns, run.params
        require(model, f"export: {run!r} does not have its model; give model")
        assert model
        check_params("run.params", params, model.shapes)
    else:
        file, source = model_path(run, label, seed), Path(run)
        columns = saved_columns(file)
        if model is None and columns is not None:
            model = model_of_directory(source, columns, "fp.export")
        elif model is None:
            resolved = resolved_of(source, "model and example to fp.export")
            model = resolved.model
            example = resolved.federation.train.x if example is None else example
        params = load_model(file, model=model)
    params = jax.tree.map(jnp.asarray, params)  # as the arguments of a program are
    if columns is None:
        require(
            example is not None,
            "export: the shape of the model's features is not known; give example, some rows such "
            "as federation.train.x",
        )
        program, shapes = _of_features(model, params, example)
    else:
        require(
            columns.standardize != "client",
            "export: the model was trained on rows that each client's own mean and deviation "
            "standardize, which an exported model does not have; fedprox.predict computes them",
        )
        program, shapes = _of_table(model, params, columns)
    exported = _exported(program, shapes)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PROGRAM, bytes(exported.serialize()))
    described = _described(exported, shapes, columns)
    write_whole(folder / DESCRIPTION, (json.dumps(described, indent=1) + "\n").encode())


Program = Callable[[Any], jax.Array]


def _of_features(model: Model, params: Params, example: Any) -> tuple[Program, Any]:
    """The model of features, and the shapes of its inputs."""
    like = formed(example, lambda leaf, _: leaf if hasattr(leaf, "shape") else np.asarray(leaf))
    raw = map_leaves(lambda leaf: leaf.index if isinstance(leaf, Prepared) else leaf, like)

    def read(leaf: Any, x: jax.Array) -> jax.Array:
        return leaf.look_up(x) if isinstance(leaf, Prepared) else x

    def program(x: Any) -> jax.Array:
        return model.apply(params, map_leaves(read, like, x))

    return program, rows_like(raw)


def _of_table(model: Model, params: Params, columns: Columns) -> tuple[Program, Any]:
    """The model of columns of a table, and the shapes of these."""

    def program(table: Mapping[str, jax.Array]) -> jax.Array:
        x, valid = table_features(columns, table)
        outputs = model.apply(params, x)
        return jnp.where(valid.reshape(-1, *[1] * (outputs.ndim - 1)), outputs, jnp.nan)

    kinds = {c.name: np.dtype(np.int32 if c.values else np.float32) for c in columns.features}
    return program, {name: jax.ShapeDtypeStruct((2,), kind) for name, kind in kinds.items()}


def table_features(columns: Columns, table: Mapping[str, jax.Array]) -> tuple[Any, jax.Array]:
    """The features that `features_of` makes, in JAX, and the rows that it does not refuse."""
    parts, indices, numeric = list[jax.Array](), dict[str, jax.Array](), 0
    valid = jnp.array(True)
    for column in columns.features:
        given = table[column.name]
        if column.values:
            words = len(column.values)
            codes = jnp.where(given == -1, _stands_for_missing(column), given)
            valid &= (codes >= 0) & (codes < (len(column.features) or words))
            if column.kind == "index":
                indices[column.name] = codes
            else:
                parts.append(jax.nn.one_hot(codes, len(column.features), dtype=jnp.float32))
            continue
        missing = jnp.isnan(given)
        if column.missing is None:
            valid &= ~missing
        stated = 0.0 if column.missing in (None, INDICATOR) else float(column.missing)
        values = jnp.where(missing, stated, given)
        if column.kind in NUMERIC:
            if columns.mean is not None and columns.scale is not None:
                values = _standardized(values, columns.mean[numeric], columns.scale[numeric])
            numeric += 1
        else:
            valid &= (values == 0) | (values == 1)
        if column.missing == INDICATOR:
            values = jnp.where(missing, 0.0, values)
        valid &= jnp.isfinite(values)
        parts.append(values[:, None])
        if column.missing == INDICATOR:
            parts.append(missing[:, None].astype(jnp.float32))
    rows = table[columns.features[0].name].shape[0]
    array = jnp.concatenate(parts, axis=1) if parts else jnp.zeros((rows, 0), jnp.float32)
    return ({NUMBERS: array, **indices} if indices else array), valid


def _stands_for_missing(column: Column) -> int:
    """The position that stands for a missing word; -1, which is refused, if none does."""
    if column.missing is None:
        return -1
    return (
        len(column.values) if column.missing == INDICATOR else column.values.index(column.missing)
    )


def _standardized(values: jax.Array, mean: float, scale: float) -> jax.Array:
    """(value - mean) / scale, in which single precision loses nothing of the mean."""
    near = np.float32(mean)
    return (values - near) / np.float32(scale) - np.float32((mean - float(near)) / scale)


def _exported(program: Program, shapes: Any) -> jax_export.Exported:
    """A program for any number of rows, on all platforms, or else on that at hand."""
    frames = getattr(jax.config, LOCATIONS)
    for platforms in (PLATFORMS, None):
        try:
            # a file for others does not say in which folders this machine has the code
            jax.config.update(LOCATIONS, 0)
            (any_rows,) = jax_export.symbolic_args_specs((shapes,), f"{ROWS}, ...")
            return jax_export.export(jax.jit(program), platforms=platforms)(any_rows)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            failed = error
        finally:
            jax.config.update(LOCATIONS, frames)
    first = reason(failed).partition(". ")[0]
    raise InputError(
        f"export: the model's code cannot be exported for any number of rows: {first}"
    ) from failed


def _described(exported: jax_export.Exported, shapes: Any, columns: Columns | None) -> Any:
    """The inputs and outputs of an exported model, as JSON."""

    def of(array: Any) -> dict[str, Any]:
        return {"type": array.dtype.name, "shape": [ROWS, *array.shape[1:]]}

    described: dict[str, Any] = {
        "platforms": list(exported.platforms),
        "inputs": map_leaves(of, shapes),
        "outputs": of(exported.out_avals[0]),
    }
    if columns is not None:
        words = columns.as_json()
        label = words["label"] | {"values": label_values(columns.label).tolist()}
        described |= {"columns": words["features"], "label": label}
    return described
