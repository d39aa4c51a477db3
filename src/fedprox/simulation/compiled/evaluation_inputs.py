"""The inputs of an evaluation: which rows each lane reads, and how many rows each represents."""

from typing import Any

import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.federation import Rows
from fedprox.precision import real_type
from fedprox.simulation.compiled.evaluation import (
    EvaluationInputs,
    EvaluationShape,
    StandFor,
    Validation,
)
from fedprox.simulation.compiled.layout import Layout
from fedprox.simulation.config.method import Method
from fedprox.simulation.devices.mesh import PER_DEVICE, REPLICATED, replicate, shard
from fedprox.simulation.planning.packing import Array
from fedprox.simulation.planning.reads import Reading, plan_reading, read_everything, slice_width
from fedprox.simulation.storage.training_data import Data, rows_spec


class EvaluationReads:
    """Plans what the evaluations of one method read.

    Args:
        method: The method.
        data: The rows that evaluations read, on the devices.
        layout: The shapes of the method's programs.
        mesh: The devices.
    """

    def __init__(self, method: Method, data: Data, layout: Layout, mesh: Mesh) -> None:
        protocol = method.protocol
        self.whole, self.read = protocol.sampled, protocol.measured
        self.data, self.layout, self.mesh = data, layout, mesh
        self.ownership = protocol.measured_ownership
        self.owner = self.ownership.of(np.arange(len(self.read)))
        self.gradients = protocol.evaluation.gradients
        self.screened, self.by_client = method.faults is not None, protocol.by_client
        self.tests_by_client = method.tests_by_client

    def plan(self) -> tuple[EvaluationShape, EvaluationInputs, EvaluationInputs]:
        """The program's shape, its inputs, and how these are spread over the devices."""
        layout, mesh = self.layout, self.mesh
        train, test = self.read.train, self.read.test
        reading = self._client_by_client(train, layout.width)
        test_reading = self._held_out(test, layout.test_width)
        validation, spec, width = self._validation()
        sizes, shares, stand_for = replicate(
            mesh,
            (
                train.sizes.astype(real_type()),
                self.whole.shares.astype(real_type()),
                StandFor(
                    train=stands_for(self.whole.train, train),
                    test=stands_for(self.whole.test, test),
                ),
            ),
        )
        reading, test_reading = shard(mesh, (reading, test_reading))
        shape = EvaluationShape(
            self.gradients,
            self.screened,
            self.by_client,
            layout.lanes,
            layout.width,
            layout.test_width,
            width,
        )
        x, y, test_x, test_y = self.data.measured
        inputs = EvaluationInputs(
            x, y, test_x, test_y, reading, sizes, shares, stand_for, test_reading, validation
        )
        x, y, test_x, test_y = (rows_spec(a, self.ownership) for a in self.data.measured)
        same: Any = REPLICATED
        split: Any = PER_DEVICE
        specs = EvaluationInputs(x, y, test_x, test_y, split, same, same, same, split, spec)
        return shape, inputs, specs

    def _validation(self) -> tuple[Validation | None, Validation | None, int]:
        """The validation rows, how they are spread over the devices, and the width of a slice."""
        if self.data.validation is None:
            return None, None, 0
        read, whole = self.read.validation, self.whole.validation
        same: Any = REPLICATED
        split: Any = PER_DEVICE
        if not (isinstance(read, Rows) and isinstance(whole, Rows)):  # rows of no client
            rows = len(self.data.validation[1])
            width = slice_width(np.array([rows]))
            reading = shard(self.mesh, self._in_slices(np.array([0, rows]), width))
            spec = Validation(same, same, split, None)
            return Validation(*self.data.validation, reading, None), spec, width
        width = slice_width(read.sizes if self.tests_by_client else np.array([len(read)]))
        weights = None
        if self.tests_by_client:
            weights = replicate(self.mesh, stands_for(whole, read))
        reading = shard(self.mesh, self._held_out(read, width))
        x, y = (rows_spec(a, self.ownership) for a in self.data.validation)
        spec = Validation(x, y, split, same if self.tests_by_client else None)
        return Validation(*self.data.validation, reading, weights), spec, width

    def _held_out(self, rows: Rows, width: int) -> Reading:
        if self.tests_by_client:
            return self._client_by_client(rows, width)
        return self._in_slices(self.ownership.first_rows(rows.offsets), width)

    def _client_by_client(self, rows: Rows, width: int) -> Reading:
        base = self.ownership.first_rows(rows.offsets)[self.owner]
        return plan_reading(
            rows.offsets[:-1] - base,
            rows.offsets[1:] - base,
            width,
            self.layout.reading_grid,
            owner=self.owner,
        )

    def _in_slices(self, bounds: NDArray[np.int64], width: int) -> Reading:
        return read_everything(bounds, width, self.layout.reading_grid)


def stands_for(whole: Rows, read: Rows) -> Array:
    """How many rows of its client each read row represents, float32 (clients,)."""
    return (whole.sizes / np.maximum(read.sizes, 1)).astype(real_type())
