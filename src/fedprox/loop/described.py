"""Descriptions of a comparison: for `experiment.toml`, and for its checkpoints to match."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

from fedprox.algorithms.base import Algorithm
from fedprox.epsilon import noise_of
from fedprox.errors import InputError
from fedprox.model import Model, trainable
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.solver import name_of
from fedprox.user_code import describe

IN_PYTHON = "in-python"
"""Value of `data.name` if data, model and methods were passed as Python objects, and of `initial`
if initial parameters were passed."""


def describe_comparison(protocol: Protocol, methods: Sequence[Algorithm]) -> dict[str, Any]:
    """Describe a comparison in types of TOML; the data by their numbers of clients and rows."""
    federation = protocol.federation
    others = {"federation", "model", "seeds", "target", "initial"}
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
    table["method"] = [_method(method) for method in methods]
    plain: dict[str, Any] = _plain(table)
    return plain


def _model(model: Model) -> dict[str, Any]:
    function = getattr(model.apply, "function", model.apply)
    sizes = (leaf.size for leaf in jax.tree.leaves(trainable(model.shapes)))
    return {"name": name_of(function), "parameters": sum(sizes)}


def _method(method: Algorithm) -> dict[str, Any]:
    hparams = {k: v[0] if np.size(v) == 1 and np.ndim(v) else v for k, v in method.hparams.items()}  # type: ignore[index]
    own = {"solver": method.settings} if method.settings else {}
    variant = {"variant": method.variant} if method.variant else {}
    adapt = {"adapt": True} if method.adapt is not None else {}
    paired = {"paired": True} if method.paired else {}
    return {"name": method.name, **variant, **hparams, **adapt, **paired, **own}


def _plain(value: Any) -> Any:
    """Convert a value to types of TOML: functions become their names, None values are left out."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items() if each is not None}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain({f.name: getattr(value, f.name) for f in fields(value)})
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return name_of(value) if callable(value) else str(value)


def fingerprint(protocol: Protocol, methods: Sequence[Method]) -> dict[str, Any]:
    """The settings that the checkpoints of a comparison must match, for JSON."""
    settings: dict[str, Any] = {
        "labels": [label for method in methods for label in method.labels],
        "seeds": list(protocol.seeds),
        "processes": jax.process_count(),
        **protocol.settings,
        "parameters": describe(protocol.model.shapes),
        # labels are not enough: they have six digits
        "points": [list(point.values()) for method in methods for point in method.points],
    }
    for method in methods:
        settings |= _schedule(method)
        noise = noise_of(method)
        if noise is not None:
            # a run with more rounds may need more noise for its epsilon
            settings[f"{method.labels[0]}: noise multiplier"] = float(f"{noise:.6g}")
    return settings


COMPARED_ROUNDS = 0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000
"""Rounds whose learning rates identify a schedule in a checkpoint. They do not depend on T, since a
run may be extended."""


def _schedule(method: Method) -> dict[str, Any]:
    """How a checkpoint identifies a method's learning rate schedule; empty without a schedule."""
    solver = method.solver
    if solver.schedule is None:
        return {}
    factors: list[float | None] = []
    for t in COMPARED_ROUNDS:
        try:
            factors.append(solver.factor(t))
        except InputError:  # a schedule may end with the run
            factors.append(None)
    return {f"{method.labels[0]}: learning rates": [name_of(solver.schedule), *factors]}
