"""What a run with secure sums declares, and what does not go with them."""

from collections.abc import Sequence

from fedprox.deployment.messages import Securing
from fedprox.errors import require, require_number, require_one_of, require_whole
from fedprox.experiment.resolved import Resolved
from fedprox.experiment.sections import Experiment

LEAST_NODES, MOST_NODES = 3, 100
"""Nodes of a secure sum. In a sum of two each knows the other's part; beyond the most, the shares
of a node no longer fit into the head of an answer."""


def require_threshold(threshold: int, nodes: int) -> None:
    """Raise `InputError` unless a threshold fits a number of nodes.

    More than half of the nodes are needed, so that no two different sums of a round are confirmed
    by enough nodes each.
    """
    require(
        LEAST_NODES <= nodes <= MOST_NODES,
        f"deployment.secure: {nodes} nodes; a secure sum is over {LEAST_NODES} to {MOST_NODES}",
    )
    least = max(LEAST_NODES, nodes // 2 + 1)
    require(
        least <= threshold <= nodes,
        f"deployment.secure.threshold = {threshold}; with {nodes} nodes it must be from {least} to "
        f"{nodes}",
    )


def securing_of(
    experiment: Experiment, resolved: Resolved, nodes: Sequence[str]
) -> Securing | None:
    """How a run's messages are summed in secret; None if they are not.

    Args:
        experiment: The experiment.
        resolved: Its objects.
        nodes: The names of the nodes that have joined.

    Raises:
        InputError: If a key is out of range, or the experiment has settings that do not fit.
    """
    given = experiment.deployment.secure
    if given is None:
        return None
    require_whole("deployment.secure.threshold", given.threshold)
    require_threshold(given.threshold, len(nodes))
    hidden = resolved.privacy is not None and resolved.privacy.unit == "client"
    require(
        (given.bound is None) == hidden,
        f"deployment.secure.bound = {given.bound}; it is needed without [privacy] of clients, and "
        "follows from privacy.clip with it",
    )
    if given.bound is not None:
        require_number("deployment.secure.bound", given.bound, positive=True)
    require_whole("deployment.secure.honest", given.honest, most=given.threshold)
    require(
        given.honest == 1 or hidden,
        f"deployment.secure.honest = {given.honest}; it is for [privacy]: leave it out",
    )
    require_one_of("deployment.secure.bits", given.bits, (32, 64))
    everybody = resolved.cohort.clients_per_round == len(resolved.federation)
    require(
        not hidden or everybody,
        f"cohort.clients_per_round = {resolved.cohort.clients_per_round}; with [privacy] and "
        f"deployment.secure it must be {len(resolved.federation)}, all clients: the operator knows "
        "who takes part, so cohorts hide nobody",
    )
    return Securing.model_validate(given.model_dump() | {"nodes": sorted(nodes)})
