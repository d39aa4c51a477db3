"""The inputs of an evaluation: which rows each lane reads, and how many rows each represents."""

from typing import Any

import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.federation import Examples, Rows, offsets_of
from fedprox.precision import real_type
from fedprox.simulation.compiled.evaluation import HELD_OUT, EvaluationInputs, EvaluationShape, Part
from fedprox.simulation.compiled.layout import Layout
from fedprox.simulation.config.method import Method
from fedprox.simulation.devices.mesh import PER_DEVICE, REPLICATED, replicate, shard
from fedprox.simulation.devices.ownership import Ownership
from fedprox.simulation.planning.reads import plan_reading, row_groups, slice_width
from fedprox.simulation.storage.training_data import Data, rows_spec

ALONE = Ownership(np.array([0, 1]), 0)
"""The ownership of rows that belong to no client, which each process has: those of one client."""


def plan_evaluation(
    method: Method, data: Data, layout: Layout, mesh: Mesh
) -> tuple[EvaluationShape, EvaluationInputs, EvaluationInputs]:
    """Plan what the evaluations of a method read.

    Args:
        method: The method.
        data: The rows that evaluations read, on the devices.
        layout: The shapes of the method's programs.
        mesh: The devices.

    Returns:
        The program's shape, its inputs, and how these are spread over the devices.
    """
    protocol = method.protocol
    whole, read = protocol.sampled, protocol.measured
    same: Any = REPLICATED
    split: Any = PER_DEVICE
    parts, specs, widths, clients = {}, {}, {}, set()
    for name, (x, y) in data.read.items():
        rows: Rows | Examples = getattr(read, name)
        offsets, ownership = np.array([0, len(rows)]), ALONE
        if isinstance(rows, Rows):
            offsets, ownership = rows.offsets, protocol.measured_ownership
        bounds = ownership.first_rows(offsets)
        grid = layout.reading_grid._replace(processes=ownership.processes)
        by_client = name == "train" or (isinstance(rows, Rows) and method.tests_by_client)
        widths[name] = width = slice_width(np.diff(offsets) if by_client else offsets[1:][-1:])
        if by_client:
            clients.add(name)
            first, last = offsets[:-1], offsets[1:]
            owner = ownership.of(np.arange(len(first)))
            stand_for = getattr(whole, name).sizes / np.maximum(last - first, 1)
        else:
            first, last, owner = row_groups(bounds, width, grid)
            stand_for = np.ones(len(first))
        base, labels = bounds[owner], np.zeros(len(first), np.int64)
        if method.protocol.model.correct is not None and name in HELD_OUT:
            labels = _labels(rows.y, first, last)
        reading = plan_reading(first - base, last - base, width, grid, owner=owner)
        numbers = tuple(a.astype(real_type()) for a in (last - first, labels, stand_for))
        parts[name] = Part(x, y, shard(mesh, reading), *replicate(mesh, numbers))
        specs[name] = Part(
            rows_spec(x, ownership), rows_spec(y, ownership), split, same, same, same
        )
    shape = EvaluationShape(
        protocol.evaluation.gradients,
        method.faults is not None,
        protocol.by_client,
        widths,
        frozenset(clients),
    )
    shares = replicate(mesh, whole.shares.astype(real_type()))
    return shape, EvaluationInputs(shares, parts), EvaluationInputs(same, specs)


def _labels(
    y: NDArray[Any], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Number of labels in some ranges of rows."""
    if y.ndim == 1:
        return last - first
    before = offsets_of(np.count_nonzero(y >= 0, axis=tuple(range(1, y.ndim))))
    return before[last] - before[first]
