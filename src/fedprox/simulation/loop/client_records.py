"""Making client records from an evaluation and the rounds before it, for each sweep point."""

from collections.abc import Sequence

from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.loop.participation import participation
from fedprox.simulation.loop.records import Counts, PendingEvaluation
from fedprox.simulation.results.clients import ClientRecord


def client_records_of(
    done: PendingEvaluation, protocol: Protocol, counts: Counts, points: int
) -> Sequence[ClientRecord | None]:
    """Wait for an evaluation, and make a client record for each sweep point.

    Args:
        done: The evaluation.
        protocol: The protocol.
        counts: How much the evaluation reads of each client.
        points: Number of sweep points.

    Returns:
        The client records; None in their place if the protocol does not ask for them.
    """
    if not protocol.evaluation.client_records:
        return [None] * points
    read, federation = protocol.sampled, protocol.federation
    rounds, steps = participation(done.trained, len(federation), points)
    if protocol.evaluation.clients is not None:
        drawn = federation.drawn(protocol.evaluation.clients)
        rounds, steps = rounds[drawn], steps[drawn]
    return [
        ClientRecord(
            clients=read.names,
            training_rows=read.train.sizes,
            test_rows=read.test.sizes,
            train_loss=each.loss,
            test_accuracy=each.accuracy,
            rounds=rounds,
            steps=steps[:, point],
        )
        for point, each in enumerate(counts.by_client(done.measures))
    ]
