"""What one evaluation measured of each client."""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class ClientRecord(NamedTuple):
    """What an evaluation measured of each client that it read, and what these clients did before.

    The records that callbacks receive have it as `Record.by_client`, if
    `Evaluation(client_records=True)` asks for it.

    Attributes:
        clients: The clients' names, in the order of the arrays.
        training_rows: Training rows n_k of each client, int64 (clients,).
        test_rows: Test rows of each client, int64 (clients,).
        train_loss: F_k(w), float64 (clients,); NaN for a client whose loss or gradient is not
            finite, if updates are screened.
        test_accuracy: Accuracy over the client's test rows, float64 (clients,); NaN without test
            rows.
        rounds: Rounds since the previous record in which the client trained, int64 (clients,).
        steps: Mini-batch steps that it took in these rounds, int64 (clients,).

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> seen = []
        >>> runs = fp.simulate(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, steps=3),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=1,
        ...     evaluation=fp.Evaluation(client_records=True),
        ...     callbacks=[fp.Callback(on_record=seen.append)],
        ... )
        >>> sorted(seen[-1].by_client.steps.tolist())
        [0, 0, 3, 3]
    """

    clients: Sequence[str]
    training_rows: NDArray[np.int64]
    test_rows: NDArray[np.int64]
    train_loss: NDArray[np.float64]
    test_accuracy: NDArray[np.float64]
    rounds: NDArray[np.int64]
    steps: NDArray[np.int64]


def client_columns(measures: ClientRecord) -> bytes:
    """The measures of clients as JSON columns; null for numbers that are not finite."""
    columns: dict[str, Any] = {"clients": list(measures.clients)}
    for name in measures._fields[1:]:
        values = getattr(measures, name)
        columns[name] = [_number(value) for value in values.tolist()]
    return json.dumps(columns, allow_nan=False).encode()


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def checksum_of(columns: bytes) -> str:
    """The checksum of `client_columns`, by which a run that resumes knows them again."""
    return hashlib.sha256(columns).hexdigest()
