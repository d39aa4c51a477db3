"""The content of a file of parameters: arrays by path, in safetensors' format, and their structure.

Arrays are stored under their dotted paths ("dense.bias"). The file's metadata describe, as JSON,
how dicts, lists and tuples hold them: the paths alone do not distinguish the key 0 from "0".
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedprox.errors import reason, require
from fedprox.model import Params, dotted

Array = NDArray[Any]

STRUCTURE = "structure"
"""The key of the structure in the metadata."""

TYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
"""The types that parameters may have, by safetensors' names."""


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
    """The arrays of a pytree by name, checked to be of the types of `TYPES`."""
    leaves = jax.tree.leaves(params)
    arrays = {n: np.asarray(a, order="C") for n, a in zip(names_of(params), leaves, strict=True)}
    for name, array in arrays.items():
        require(
            array.dtype in TYPES.values(),
            f"parameters: {name!r} is of type {array.dtype}; it must be floating-point numbers",
        )
    return arrays


def encode(params: Params) -> bytes:
    """The content of a file with a model's parameters.

    A pytree with nodes other than dicts, lists and tuples is saved without its structure.
    """
    arrays = named_arrays(params)
    try:
        outline = json.dumps(_outline(jax.tree.unflatten(jax.tree.structure(params), arrays)))
    except TypeError:
        return safetensors.numpy.save(arrays)
    return safetensors.numpy.save(arrays, metadata={STRUCTURE: outline})


def _outline(node: Any) -> Any:
    """A tree of names as JSON, with an object for each container; else `TypeError`."""
    if node is None or isinstance(node, str):
        return node
    if type(node) is dict and all(type(key) in (str, int) for key in node):
        return {"dict": [[key, _outline(part)] for key, part in node.items()]}
    if type(node) in (list, tuple):
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
        if kind not in TYPES:
            raise TypeError(f"array {name!r} is of type {kind}; it must be {', '.join(TYPES)}")
        arrays[name] = np.frombuffer(tensor["data"], TYPES[kind]).reshape(tensor["shape"])
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    outline = (header.get("__metadata__") or {}).get(STRUCTURE)
    if outline is None:
        return arrays, None
    remaining = dict(arrays)
    try:
        params = _restore(json.loads(outline), remaining)
    except RecursionError:
        raise ValueError("its structure is too deep") from None
    if remaining:
        raise ValueError(f"its structure has no place for {next(iter(remaining))!r}")
    return arrays, params


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
        entries = (isinstance(p, list) and len(p) == 2 and type(p[0]) in (str, int) for p in parts)
        if kind == "dict" and all(entries):
            return {key: _restore(part, remaining) for key, part in parts}
    raise ValueError(f"its structure has {str(node)[:50]!r}")
