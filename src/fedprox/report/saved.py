"""Files of parameters, with a model's state: of run directories, and weights in PyTorch's layout.

Arrays are stored under their dotted paths ("dense.bias"). The file's metadata describe, as JSON,
how dicts, lists and tuples hold them: the paths alone do not distinguish the key 0 from "0".
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedprox.columns import Columns
from fedprox.errors import InputError, reason, require
from fedprox.files.packed import refusing
from fedprox.files.whole import write_whole
from fedprox.model import Model, Params, Variables, check_params, dotted, trainable
from fedprox.report.archive import RunTimes, read_summary
from fedprox.user_code import listed

Array = NDArray[Any]

STRUCTURE, COLUMNS = "structure", "columns"
"""The keys of the structure in the metadata, and of a table's columns."""

TYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
"""The types that parameters may have, by safetensors' names."""

NUMBERS = TYPES | {f"{k}{8 * n}": np.dtype(f"{k.lower()}{n}") for k in "IU" for n in (1, 2, 4, 8)}
"""Likewise those of a model's state, which may hold counters."""

STATE = "state"
"""The first part of the names of a state's arrays, beside those of the parameters."""


def names_of(params: Params) -> list[str]:
    """The name of each array of a pytree: its dotted path, with "_" appended until it is unique.

    >>> names_of({"a": {"b": 1.0}, "a.b": 2.0})
    ['a.b', 'a.b_']
    """
    names: dict[str, None] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        name = dotted(path)
        while name in names:
            name += "_"
        names[name] = None
    return list(names)


def named_arrays(params: Params) -> dict[str, Array]:
    """The arrays of a pytree by name, checked to be of the types of `TYPES`, or of a state's."""
    leaves = jax.tree.leaves(params)
    arrays = {n: np.asarray(a, order="C") for n, a in zip(names_of(params), leaves, strict=True)}
    trained = len(jax.tree.leaves(trainable(params)))
    for i, (name, array) in enumerate(arrays.items()):
        require(
            array.dtype in (TYPES if i < trained else NUMBERS).values(),
            f"parameters: {name!r} is of type {array.dtype}; it must be "
            + ("floating-point numbers" if i < trained else "numbers"),
        )
    return arrays


def encode_params(params: Params, columns: Columns | None = None) -> bytes:
    """The content of a file with a model's parameters, or its variables.

    A pytree with nodes other than dicts, lists and tuples is saved without its structure.
    """
    arrays, metadata = named_arrays(params), dict[str, str]()
    with suppress(TypeError):
        tree = jax.tree.unflatten(jax.tree.structure(params), arrays)
        metadata[STRUCTURE] = json.dumps(_outline(tree))
    if columns is not None:
        metadata[COLUMNS] = json.dumps(columns.as_json())
    return safetensors.numpy.save(arrays, metadata=metadata or None)


def _outline(node: Any) -> Any:
    """A tree of names as JSON, with an object for each container; else `TypeError`."""
    if node is None or isinstance(node, str):
        return node
    if type(node) is dict and all(type(key) in (str, int) for key in node):
        return {"dict": [[key, _outline(part)] for key, part in node.items()]}
    if type(node) in (list, tuple, Variables):
        return {type(node).__name__: [_outline(part) for part in node]}
    raise TypeError(f"a node of type {type(node).__name__}")


def decode(content: bytes) -> tuple[dict[str, Array], Params]:
    """The arrays in a file of parameters by name, and in the structure that was saved, or None."""
    try:
        tensors = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise ValueError(reason(error)) from None
    arrays = {}
    for name, tensor in tensors:
        kind = tensor["dtype"]
        kinds = NUMBERS if _begins(name, STATE) else TYPES
        if kind not in kinds:
            raise TypeError(f"array {name!r} is of type {kind}; it must be {', '.join(kinds)}")
        arrays[name] = np.frombuffer(tensor["data"], kinds[kind]).reshape(tensor["shape"])
    outline = _metadata(content).get(STRUCTURE)
    if not outline:
        return arrays, None
    remaining = dict(arrays)
    try:
        params = _restore(json.loads(outline), remaining)
    except RecursionError:
        raise ValueError("its structure is too deep") from None
    if remaining:
        raise ValueError(f"its structure has no place for {next(iter(remaining))!r}")
    return arrays, params


def _metadata(content: bytes) -> dict[str, str]:
    """The words in a file of parameters."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header.get("__metadata__") or {}


def _restore(node: Any, remaining: dict[str, Array]) -> Params:
    """The inverse of `_outline`; removes the arrays that it uses from `remaining`."""
    if node is None:
        return None
    if isinstance(node, str) and node in remaining:
        return remaining.pop(node)
    (kind, parts), *others = node.items() if isinstance(node, Mapping) else [("", None)]
    if isinstance(parts, list) and not others:
        if kind == "list":
            return [_restore(part, remaining) for part in parts]
        if kind == "tuple":
            return tuple(_restore(part, remaining) for part in parts)
        if kind == Variables.__name__ and len(parts) == 2:
            return Variables(*(_restore(part, remaining) for part in parts))
        entries = (isinstance(p, list) and len(p) == 2 and type(p[0]) in (str, int) for p in parts)
        if kind == "dict" and all(entries):
            return {key: _restore(part, remaining) for key, part in parts}
    raise ValueError(f"its structure has {str(node)[:50]!r}")


LONGEST_LABEL = 150
"""Most bytes of a label in a file name; file systems allow 255 for the whole name."""


def model_file(label: str, seed: int) -> str:
    """The file name of a run's model.

    >>> model_file("fedprox mu=1", 0)
    'model-fedprox-mu=1-0.safetensors'
    """
    return f"model-{file_name(label, seed)}.safetensors"


def file_name(label: str, seed: int) -> str:
    """A run as part of a file name: its label, if long cut and followed by a digest, and seed."""
    name = re.sub(r"[^\w.=+-]+", "-", label)
    if len(name.encode()) > LONGEST_LABEL:
        digest = hashlib.sha256(label.encode()).hexdigest()[:16]
        name = f"{name.encode()[:LONGEST_LABEL].decode(errors='ignore')}-{digest}"
    return f"{name}-{seed}"


def save_model(path: str | Path, params: Params, *, columns: Columns | None = None) -> None:
    """Write a model's parameters to a file, in the format of run directories.

    Args:
        path: The file, such as "model.safetensors". It is written whole or not at all.
        params: A pytree of floating-point arrays, such as `Run.params`; `fedprox.Variables` of a
            model with state.
        columns: How rows of a table become what the model reads, such as `Run.columns`, which
            `fedprox.predict` needs.

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
    write_whole(path, encode_params(params, columns))


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
        A pytree of NumPy arrays of the structure that was saved, `fedprox.Variables` of a model
        with state; with `model`, of the structure that its `init` gives.

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
    path = model_path(path, label, seed)
    try:
        arrays, params = decode(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not a file of parameters, or damaged: {error}") from None
    except TypeError as error:
        raise InputError(f"{path}: {error}; {_OTHERS}") from None
    if model:
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


def model_path(path: str | Path, label: str | None, seed: int | None) -> Path:
    """The file of a model: itself, or that of the only run of a directory with a label and seed."""
    path = Path(path)
    if path.is_dir():
        run = _chosen(path, label, seed)
        path = path / model_file(run.label, run.seed)
    else:
        require(path.exists(), f"{path}: no such run directory or file")
        require(
            (label, seed) == (None, None),
            f"{path}: not a run directory, and only those have runs to choose by label and seed",
        )
    require(path.is_file(), f"{path}: no such file")
    return path


def load_columns(path: Path) -> Columns:
    """How rows of a table become what the model in a file reads."""
    columns = saved_columns(path)
    require(columns is not None, f"{path}: this model was not trained on a table")
    assert columns is not None
    return columns


def saved_columns(path: Path) -> Columns | None:
    """Likewise; None for a model that was not trained on a table."""
    try:
        with path.open("rb") as file:  # its arrays are not read
            length, most = file.read(8), path.stat().st_size
            header = file.read(min(int.from_bytes(length, "little"), most))
            words = _metadata(length + header).get(COLUMNS)
        columns = None if words is None else json.loads(words)
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a file of parameters, or damaged: {error}") from None
    return None if columns is None else Columns.of_json(columns, str(path))


_OTHERS = "fp.load_weights loads what PyTorch or Hugging Face's libraries wrote"


def _chosen(path: Path, label: str | None, seed: int | None) -> RunTimes:
    """The only run of a run directory with a label and a seed."""
    runs = read_summary(path) or []
    begun = (path / "experiment.toml").is_file()
    require(runs or begun, f"{path}: no experiment.toml; not a run directory")
    require(runs, f"{path}: no summary.json; the run has not finished")
    labels = dict.fromkeys(repr(run.label) for run in runs)
    fitting = [run for run in runs if label in (None, run.label)]
    require(fitting, f"{path}: no run {label!r}; it has {', '.join(labels)}")
    labels = dict.fromkeys(repr(run.label) for run in fitting)
    seeds = dict.fromkeys(str(run.seed) for run in fitting)
    fitting = [run for run in fitting if seed in (None, run.seed)]
    require(fitting, f"{path}: {', '.join(labels)} has no seed {seed}; it has {', '.join(seeds)}")
    wanted = {"label": labels} if len(labels) > 1 else {}
    wanted |= {"seed": seeds} if seed is None and len(seeds) > 1 else {}
    asked = " and ".join(f"{key}, one of {', '.join(each)}" for key, each in wanted.items())
    require(not wanted, f"{path}: several runs; give {asked}")
    return fitting[0]


Rename = Mapping[str, str | None]

WEIGHTS = ("kernel", "scale", "embedding", "table")
"""Names in flax and in this library of parameters that PyTorch calls `weight`."""

STATISTICS = {"mean": "running_mean", "var": "running_var"}
"""Names of running statistics in flax, and in PyTorch."""

COLLECTION = "batch_stats."
"""The prefix of the names of linen's running statistics."""

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The files of a repository: all weights, or the list of the files that have them."""

TORCH, FLAX = (0, 1), (-1, -2)
"""The axes of a kernel's outputs and inputs."""

PICKLES = (".bin", ".ckpt", ".pt", ".pth")

MOST_LINES = 20
"""Most mismatches that a message lists."""


def load_weights(
    path: str | Path,
    like: Model | Params,
    *,
    rename: Rename | None = None,
    keep: Sequence[str] = (),
) -> Params:
    """Load weights that PyTorch or Hugging Face's libraries wrote to safetensors files.

    A tensor belongs to the parameter of its name, where `weight` may also be flax's `kernel`,
    `scale` or `embedding`, or `table` of this library's models. Of a `kernel`, whose last axes are
    (inputs, outputs), the tensor is PyTorch's (outputs, inputs, ...), as of `nn.Linear` and
    `nn.Conv2d`, and is transposed. Other parameters have the tensor's own shape. In the state of a
    model, `mean` and `var` are a layer's `running_mean` and `running_var`. Tensors of whole numbers
    that the model lacks, such as `position_ids` and `num_batches_tracked`, are passed over.

    Args:
        path: A safetensors file; or a folder with `model.safetensors`, or with
            `model.safetensors.index.json` and the files that it names.
        like: The model, or its parameters; `fedprox.Variables` of one with state. Names of both
            parts are those within them ("norm.scale", "norm.mean"), without linen's "batch_stats".
        rename: Prefixes of the file's names, up to a dot, and the model's prefixes in their place:
            `{"bert": "", "encoder.layer": "blocks", "pooler": None}` takes the prefix away, renames
            layers, and leaves out the pooler. The longest prefix that fits counts.
        keep: Names of parameters, or of parts with several, that keep their values in `like`, such
            as a new head. Then `like` must be parameters.

    Returns:
        A pytree of NumPy arrays with the structure and types of `like`. Those of the file's types
        are memory-mapped: read when they are used.

    Raises:
        InputError: There is no such file, it is damaged or a pickle, or it has not exactly the
            model's parameters. The message has a line for each that is missing, in excess or of
            another shape.

    Example:
        >>> import tempfile
        >>> import jax
        >>> import fedprox as fp
        >>> model = fp.models.mlp(fp.datasets.synthetic(clients=2), hidden=[30])
        >>> params = model.init(jax.random.key(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/a.safetensors", params, rename={"layers": "net"})
        ...     found = load_weights(f"{folder}/a.safetensors", model, rename={"net": "layers"})
        >>> found["layers"][0]["weight"].shape
        (30, 60)
    """
    path, tree = Path(path), like.shapes if isinstance(like, Model) else like
    names, (leaves, structure) = _names_in_both(tree), jax.tree.flatten(tree)
    arrays = all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)
    require(arrays, "like: neither a model nor the parameters of one")
    for part in keep:
        known = any(_begins(name, part) for name, _ in names)
        require(known, f"keep: no parameter {part!r}")
    counts = [not _is_real(leaf) for leaf in leaves]
    found = _renamed(_tensors(path, NUMBERS if any(counts) else TYPES), rename)
    values, wrong = [], []
    for (name, theirs), leaf, is_count in zip(names, leaves, counts, strict=True):
        tensor = found.pop(theirs, None)
        if any(_begins(name, part) for part in keep):
            require(
                not isinstance(leaf, jax.ShapeDtypeStruct),
                f"keep: {name} has no values in `like`; give parameters, as of model.init(key)",
            )
            values.append(np.asarray(leaf))
        elif tensor is None or _is_real(tensor) == is_count:
            kind = "tensor of whole numbers" if is_count else "floating-point tensor"
            wrong.append(f"{name}: no {kind} of this name")
        else:
            value = _moved(name, tensor, to=FLAX)
            if value.shape != leaf.shape:
                given = f"{value.shape} in the file" + " when transposed" * (value is not tensor)
                wrong.append(f"{name}: shape {given} where {leaf.shape} is needed")
            values.append(value.astype(leaf.dtype, copy=False))
    unused = {name: a for name, a in found.items() if _is_real(a)}
    wrong += [f"{name}: the model lacks it; shape {a.shape}" for name, a in unused.items()]
    if wrong:
        more = [f"{len(wrong) - MOST_LINES} more"] if len(wrong) > MOST_LINES else []
        message = f"{path}: not the weights of this model; `rename` and `keep` may help:"
        raise InputError(message, wrong[:MOST_LINES] + more)
    return jax.tree.unflatten(structure, values)


def save_weights(path: str | Path, params: Params, *, rename: Rename | None = None) -> None:
    """Write parameters as PyTorch's weights, the inverse of `load_weights`.

    In PyTorch, `model.load_state_dict(safetensors.torch.load_file(path))` loads the file, also with
    running statistics, without `num_batches_tracked`.

    Args:
        path: The file, such as "model.safetensors". It is written whole or not at all.
        params: A pytree of floating-point arrays, such as `Run.params`; `fedprox.Variables` of a
            model with state.
        rename: Prefixes of the parameters' names, up to a dot, and the file's prefixes in their
            place: the inverse of `rename` in `load_weights`.

    Raises:
        InputError: There is no such folder, a parameter is not a floating-point array, or two would
            have one name.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import safetensors.numpy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/a.safetensors", {"fc": {"kernel": np.zeros((4, 3))}})
        ...     safetensors.numpy.load_file(f"{folder}/a.safetensors")["fc.weight"].shape
        (3, 4)
    """
    path = Path(path)
    require(path.parent.is_dir(), f"{path.parent}: no such folder")
    arrays: dict[str, Array] = {}
    given = named_arrays(params).values()
    for (name, theirs), array in zip(_names_in_both(params), given, strict=True):
        require(theirs not in arrays, f"{path}: two parameters would be named {theirs!r}")
        arrays[theirs] = _moved(name, array, to=TORCH)
    arrays = {name: np.asarray(a, order="C") for name, a in _renamed(arrays, rename).items()}
    write_whole(path, safetensors.numpy.save(arrays, metadata={"format": "pt"}))


def _begins(name: str, part: str) -> bool:
    """Whether a dotted name begins with the names of a part; with those of "" every one does."""
    return not part or f"{name}.".startswith(f"{part}.")


def _names_in_both(tree: Params) -> list[tuple[str, str]]:
    """The name of each array of parameters, or of variables, here and in PyTorch's files."""
    if not isinstance(tree, Variables):
        return [(name, _ending(name, dict.fromkeys(WEIGHTS, "weight"))) for name in names_of(tree)]
    statistics = [name.removeprefix(COLLECTION) for name in names_of(tree.state)]
    return _names_in_both(tree.params) + [(name, _ending(name, STATISTICS)) for name in statistics]


def _ending(name: str, others: Mapping[str, str]) -> str:
    """A dotted name whose last part may be called otherwise."""
    begin, dot, last = name.rpartition(".")
    return f"{begin}{dot}{others.get(last, last)}"


def _is_real(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _moved(name: str, array: Array, *, to: tuple[int, int]) -> Array:
    """A kernel with its two axes of features moved: first in PyTorch, last and swapped in flax."""
    if array.ndim < 2 or name.rpartition(".")[2] != "kernel":
        return array
    return np.moveaxis(array, FLAX if to == TORCH else TORCH, to)


def _renamed(arrays: dict[str, Array], rename: Rename | None) -> dict[str, Array]:
    """Arrays under their new names; see `load_weights`."""
    rename, renamed = rename or {}, {}
    for part in rename:
        known = any(_begins(name, part) for name in arrays)
        require(known, f"rename: {part!r} begins no name of {listed(list(arrays), str)}")
    for name, array in arrays.items():
        new: str | None = name
        for part in sorted(rename, key=len)[::-1]:
            if _begins(name, part):
                begin, rest = rename[part], name[len(part) :].lstrip(".")
                new = None if begin is None else ".".join(filter(None, (begin, rest)))
                break
        if new is not None:
            require(new not in renamed, f"rename: two arrays would be named {new!r}")
            renamed[new] = array
    return renamed


def _tensors(path: Path, kinds: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors of some types in a file or a repository by their names, memory-mapped."""
    if path.is_dir():
        files = [name for name in (FILE, INDEX) if (path / name).is_file()]
        files += sorted(file.name for file in path.glob("*") if file.suffix in PICKLES)
        require(files, f"{path}: neither {FILE} nor {INDEX}")
        path = path / files[0]
    require(path.is_file(), f"{path}: no such file")
    require(
        path.suffix not in PICKLES,
        f"{path}: a pickle, which is refused since reading it runs code; where PyTorch is "
        f"installed, safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), "
        f"{FILE!r}) converts it",
    )
    if path.suffix != ".json":
        return _mapped(path, kinds)
    with refusing(f"{path}: not a list of files with weights"):
        index = json.loads(path.read_bytes())["weight_map"]
        files = sorted({Path(name).name for name in index.values()})
    tensors: dict[str, Array] = {}
    for file in (path.with_name(name) for name in files):
        require(file.is_file(), f"{path}: it names {file.name}, which is missing")
        for name, tensor in _mapped(file, kinds).items():
            require(name not in tensors, f"{file}: {name!r} is in another file too")
            tensors[name] = tensor
    return tensors


def _mapped(path: Path, kinds: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors of some types in a file by their names, memory-mapped."""
    with refusing(f"{path}: not a safetensors file, or damaged"):
        with safetensors.safe_open(path, framework="np"):
            pass  # the library checks that the header describes the file
        content = np.memmap(path, np.uint8, "r").view(np.ndarray)
        begin = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8:begin].tobytes())
        header.pop("__metadata__", None)
        return {
            name: content[begin + tensor["data_offsets"][0] : begin + tensor["data_offsets"][1]]
            .view(kinds[tensor["dtype"]])
            .reshape(tensor["shape"])
            for name, tensor in header.items()
            if tensor["dtype"] in kinds
        }
