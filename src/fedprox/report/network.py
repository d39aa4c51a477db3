"""What a record of a deployment says of the network, in one line."""

from rich.filesize import decimal

from fedprox.privacy.accounting import rounded_up
from fedprox.simulation.results.record import Record, figures


def network_line(record: Record) -> str:
    """A record of a deployment in one line; with privacy it has epsilon in place of the clients.

    >>> measures = {"train_loss": 0.5, "test_accuracy": 0.9}
    >>> measures |= {"seconds": 1.25, "bytes_down": 5200, "bytes_up": 5100, "nodes": 2}
    >>> measures["network"] = {"a": {"node": "x"}, "b": {"node": "y"}}
    >>> network_line(Record("fedavg", "fedavg", {}, 0.1, 0, 5, measures))
    'fedavg, seed 0, round 5: train loss 0.5, test accuracy 90.00 %; 2 nodes, 2 clients, 1.2 s,
     5.2 kB down, 5.1 kB up'
    """
    clients, nodes = len(record.network or {}), record.nodes or 0
    used = f"{clients} client{'s' * (clients != 1)}"
    if record.epsilon is not None:
        used = f"epsilon {rounded_up(record.epsilon)}"
    return (
        f"{record.label}, seed {record.seed}, round {record.round}: {figures(record)}; "
        f"{nodes} node{'s' * (nodes != 1)}, {used}, "
        f"{record.seconds or 0.0:.1f} s, {decimal(record.bytes_down or 0)} down, "
        f"{decimal(record.bytes_up or 0)} up"
    )
