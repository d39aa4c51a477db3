"""The description of a comparison for the `experiment.toml` of a run directory."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import jax
import numpy as np

from fedprox.algorithms.base import Algorithm
from fedprox.model import Model
from fedprox.simulation.config.protocol import Protocol
from fedprox.solver import name_of

IN_PYTHON = "in-python"
"""Value of `data.name` if data, model and methods were passed as Python objects, and of `initial`
if initial parameters were passed."""


def describe_comparison(protocol: Protocol, methods: Sequence[Algorithm]) -> dict[str, Any]:
    """Describe a comparison in types of TOML; the data by their numbers of clients and rows.

    Args:
        protocol: The protocol of the comparison.
        methods: The compared methods.
    """
    federation = protocol.federation
    others = {"federation", "model", "seeds", "target", "initial"}
    others |= {"evaluation", "cohort", "systems", "faults", "solver", "selection", "privacy"}
    table = {f.name: getattr(protocol, f.name) for f in fields(protocol) if f.name not in others}
    table["seed"] = protocol.seeds
    if protocol.target is not None:
        table[protocol.target.key] = protocol.target.setting
    table["data"] = {
        "name": IN_PYTHON,
        "clients": len(federation),
        "training_rows": len(federation.train),
        "test_rows": len(federation.test),
        "validation_rows": len(federation.validation) if federation.validation else None,
    }
    if protocol.initial is not None:
        table["initial"] = IN_PYTHON
    table["model"] = _model(protocol.model)
    for name in ("evaluation", "cohort", "systems", "faults", "selection", "privacy", "solver"):
        part = getattr(protocol, name)
        if part is not None:
            table[name] = {f.name: getattr(part, f.name) for f in fields(part)}
    if protocol.privacy is not None and protocol.privacy.adaptive_clip is not None:
        table["privacy"]["adaptive_clip"] = asdict(protocol.privacy.adaptive_clip)
    table["method"] = [_method(method) for method in methods]
    plain: dict[str, Any] = _plain(table)
    return plain


def _model(model: Model) -> dict[str, Any]:
    function = getattr(model.apply, "function", model.apply)
    sizes = (leaf.size for leaf in jax.tree.leaves(model.shapes))
    return {"name": name_of(function), "parameters": sum(sizes)}


def _method(method: Algorithm) -> dict[str, Any]:
    hparams = {k: v[0] if np.size(v) == 1 and np.ndim(v) else v for k, v in method.hparams.items()}  # type: ignore[index]
    own = {"solver": method.settings} if method.settings else {}
    variant = {"variant": method.variant} if method.variant else {}
    adapt = {"adapt": True} if method.adapt is not None else {}
    return {"name": method.name, **variant, **hparams, **adapt, **own}


def _plain(value: Any) -> Any:
    """Convert a value to types of TOML: functions become their names, None values are left out."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return name_of(value) if callable(value) else str(value)
