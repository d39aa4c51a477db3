"""Saving a model's parameters, and loading them from a file or from a run directory."""

from pathlib import Path

import jax

from fedprox.errors import InputError, require
from fedprox.files.whole import write_whole
from fedprox.model import Model, Params, check_params
from fedprox.report.archive import RunTimes, read_summary
from fedprox.report.directory import model_file
from fedprox.report.parameters import decode, encode, names_of


def save_model(path: str | Path, params: Params) -> None:
    """Write a model's parameters to a file, in the format of run directories.

    Args:
        path: The file, such as "model.safetensors". It is written whole or not at all.
        params: A pytree of floating-point arrays, such as `Run.params`.

    Raises:
        InputError: There is no such folder, or a parameter is not a floating-point array.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(f"{folder}/a.safetensors", {"w": np.arange(3.0)})
        ...     load_model(f"{folder}/a.safetensors")["w"].tolist()
        [0.0, 1.0, 2.0]
    """
    path = Path(path)
    require(path.parent.is_dir(), f"{path.parent}: no such folder")
    write_whole(path, encode(params))


def load_model(
    path: str | Path,
    label: str | None = None,
    seed: int | None = None,
    *,
    model: Model | None = None,
) -> Params:
    """Load the parameters of a model that a run directory holds, or that `save_model` wrote.

    Args:
        path: A run directory, or a file.
        label: For a run directory: the run's label, as tables show it. Needed only if the runs
            have different labels.
        seed: For a run directory: the run's seed. Needed only if the runs have different seeds.
        model: The model, to check the parameters against. It is needed for parameters in
            containers other than dicts, lists and tuples, and for files without a structure. Files
            of other libraries are for `load_weights`.

    Returns:
        A pytree of NumPy arrays of the structure that was saved; with `model`, of the structure
        that its `init` gives.

    Raises:
        InputError: There is no such file or run, several runs fit, the file is damaged or does not
            say its structure, or the parameters are not those of `model`.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(f"{folder}/a.safetensors", {"layers": [np.ones(2), np.zeros(1)]})
        ...     load_model(f"{folder}/a.safetensors")
        {'layers': [array([1., 1.]), array([0.])]}
    """
    path = Path(path)
    if path.is_dir():
        run = _chosen(path, label, seed)
        path = path / model_file(run.label, run.seed)
    else:
        require(
            label is None and seed is None,
            f"{path}: not a run directory, and only those have runs to choose by label and seed",
        )
    require(path.is_file(), f"{path}: no such file")
    try:
        arrays, params = decode(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not a file of parameters, or damaged: {error}") from None
    except TypeError as error:
        raise InputError(f"{path}: {error}; {_OTHERS}") from None
    if model is not None:
        names = names_of(model.shapes)
        leaves, structure = jax.tree.flatten(model.shapes)
        try:
            check_params(str(path), arrays, dict(zip(names, leaves, strict=True)))
        except InputError as error:
            raise InputError(f"{error}; {_OTHERS}" if params is None else str(error)) from None
        return jax.tree.unflatten(structure, [arrays[name] for name in names])
    require(
        params is not None,
        f"{path}: the file does not say the structure of its parameters; give model=; {_OTHERS}",
    )
    return params


_OTHERS = "fp.load_weights loads what PyTorch or Hugging Face's libraries wrote"


def _chosen(path: Path, label: str | None, seed: int | None) -> RunTimes:
    """The only run of a run directory with a label and a seed."""
    runs = read_summary(path) or []
    require(runs, f"{path}: no summary.json; not a run directory, or not finished")
    labels = ", ".join(dict.fromkeys(repr(run.label) for run in runs))
    fitting = [run for run in runs if label in (None, run.label)]
    require(fitting, f"{path}: no run {label!r}; it has {labels}")
    labels = ", ".join(dict.fromkeys(repr(run.label) for run in fitting))
    require(len({run.label for run in fitting}) == 1, f"{path}: give label, one of {labels}")
    seeds = ", ".join(str(run.seed) for run in fitting)
    fitting = [run for run in fitting if seed in (None, run.seed)]
    require(fitting, f"{path}: {labels} has no seed {seed}; it has {seeds}")
    require(len(fitting) == 1, f"{path}: give seed, one of {seeds}")
    return fitting[0]
