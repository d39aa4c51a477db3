"""`deploy`: an experiment whose clients are on nodes, by the simulation's loop."""

import warnings
from collections.abc import Sequence

from fedprox.deployment.conversation import Conversation
from fedprox.deployment.remote import Nodes
from fedprox.deployment.server import Deployment, Server
from fedprox.errors import users_level
from fedprox.experiment.resolved import described_by, settings_of
from fedprox.precision import require_single
from fedprox.privacy.setting import delta_warnings
from fedprox.simulation.config.method import Method, checked_methods
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.loop.train import Follow, train
from fedprox.simulation.results.run import Run


def deploy(conversation: Conversation, deployment: Deployment, follow: Follow) -> list[Run]:
    """Train the methods of an experiment on the nodes that have joined.

    Args:
        conversation: The conversation with them.
        deployment: The experiment.
        follow: How the runs are followed.

    Returns:
        The runs, as `simulate` returns them.

    Raises:
        InputError: If a setting is not allowed, JAX computes in double precision, or a node refuses
            a method.
    """
    require_single("a deployment")
    methods = methods_of(deployment)
    protocol = methods[0].protocol
    for line in delta_warnings(protocol.privacy, protocol.federation.train.sizes):
        warnings.warn(line, stacklevel=users_level())
    server = Server(conversation, deployment, protocol, methods)
    follow = follow._replace(callbacks=[described_by(deployment.resolved), *follow.callbacks])
    return train(protocol, methods, Nodes(server), follow)


def without_updates(runs: Sequence[Run], conversation: Conversation) -> list[str]:
    """A line for each run in which no update was ever used, with the last reason."""
    unknown = "no client was drawn, or all were late, or a process before this one said why"
    return [
        f"{run.label}, seed {run.seed}: no update was used in any of its {run.final.round} rounds; "
        f"the last reason: {conversation.unused.get((run.method, run.seed), unknown)}"
        for run in runs
        if run.empty_rounds == run.final.round
    ]


def methods_of(deployment: Deployment) -> list[Method]:
    """The methods of a deployment under its protocol.

    Raises:
        InputError: If a setting is not allowed.
    """
    experiment, resolved = deployment.experiment, deployment.resolved
    seeds = experiment.seed if isinstance(experiment.seed, list) else [experiment.seed]
    settings = settings_of(experiment, resolved) | {"client_store": "auto"}
    protocol = Protocol(**settings, seeds=tuple(seeds))
    return checked_methods(protocol, resolved.methods)
