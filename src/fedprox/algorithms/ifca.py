"""IFCA (Ghosh et al. 2020): clusters of clients, each of which trains a model of its own.

The local method runs inside a cluster as it would run alone. Each cluster has a state of that
method. A client reads the state of its cluster, and its message is added to the same one.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.algorithms import capabilities as needs
from fedprox.algorithms.fedavg import fedavg
from fedprox.errors import require, require_whole, shown
from fedprox.model import Params
from fedprox.subproblem import Subproblem


class Clusters(NamedTuple):
    """The clusters.

    Attributes:
        states: The local method's state in each cluster, leaves (k, ...).
        share: Each cluster's share of the last round's weight, shape (k,).
    """

    states: base.State
    share: jax.Array


def own_cluster(context: base.ClientContext) -> jax.Array:
    """The cluster whose model has the lowest loss on the client's rows; the first on ties."""
    return jnp.argmin(jnp.where(jnp.isnan(context.probed), jnp.inf, context.probed))


def state_of(clusters: Clusters, cluster: jax.Array) -> base.State:
    """The local method's state in a cluster."""
    return jax.tree.map(lambda a: jnp.take(a, cluster, axis=0, mode="clip"), clusters.states)


def ifca(k: int, *, local: base.Algorithm | None = None) -> base.Algorithm:
    r"""IFCA: each client trains the one of k models that fits its rows best.

    The server sends :math:`w_1^t, \dots, w_k^t`. Client :math:`i` of the cohort measures them on
    its training rows, chooses

    .. math:: j_i = \arg\min_j F_i(w_j^t),

    and runs the local method from :math:`w_{j_i}^t`. The local method's server then updates each
    model by the messages of the clients that chose it. A model that no client chose stays as it is.
    The k first models are `model.init` with different random keys, so `init` must depend on its
    key.

    `personal_loss` and `personal_accuracy` measure each client on its test rows, with the model
    that fits its training rows best. All other measures are of the model that had the largest share
    of the last round's weight.

    Args:
        k: Number of models, at least 1. With 1 this is the local method.
        local: The method inside a cluster: FedAvg, or another one that sends a message once and
            measures nothing first, such as FedProx, FedDyn, FedOpt or SCAFFOLD. Client state stays
            with it when it changes the cluster, and `participation` is that of the round.

    Returns:
        An algorithm for :func:`fedprox.simulate`. `Run.models` are the k models at the end.

    Raises:
        InputError: If k is not a whole number above 0, or the local method does not fit.

    Example:
        >>> import fedprox as fp
        >>> method = fp.ifca(4, local=fp.fedprox(mu=[0.0, 0.1]))
        >>> method.variant, method.hparams
        ('k=4 fedprox', {'mu': (0.0, 0.1)})

    References:
        Ghosh, Chung, Yin, Ramchandran, `An Efficient Framework for Clustered Federated Learning
        <https://arxiv.org/abs/2006.04088>`_, NeurIPS 2020, Algorithm 1, option II with any local
        method.
    """
    require_whole("ifca: k", k)
    inner = fedavg() if local is None else local
    require(
        isinstance(inner, base.Algorithm),
        f"ifca: local = {shown(local)}; it must be a method, such as fedprox.fedavg()",
    )
    instead = "it must be a method such as fedavg, fedprox or feddyn"
    refused = (
        *(needs.POOLED, needs.EVERYONE, needs.GRADIENT, needs.LOSS, needs.ADAPTS),
        *(needs.PROBES, needs.OWN_MODELS, needs.REMEMBERS, needs.EVALUATES),
    )
    needs.require_none("ifca: local", inner, refused, instead)
    count = int(k)
    shown_name = "" if inner.name == "fedavg" else inner.name

    def init(starts: Params) -> Clusters:
        if count == 1:
            starts = jax.tree.map(lambda w: jnp.asarray(w)[None], starts)
        return Clusters(jax.vmap(inner.server.init)(starts), jnp.zeros(count))

    def subproblem(
        state: Clusters, hparams: base.HParams, context: base.ClientContext
    ) -> Subproblem:
        """F_k(w) and the local method's terms, from the w_j^t of the client's cluster."""
        return inner.subproblem(state_of(state, own_cluster(context)), hparams, context)

    def message(
        state: Clusters, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[tuple[Any, jax.Array], base.ClientState]:
        """Send the local method's message and 1 at the client's cluster, 0 at the others."""
        cluster = own_cluster(context)
        sent, own = inner.client.message(state_of(state, cluster), hparams, context, solution)
        chosen = jax.nn.one_hot(cluster, count)
        placed = jax.tree.map(lambda m: jax.vmap(lambda c: c.astype(m.dtype) * m)(chosen), sent)
        return (placed, chosen), own

    def size(sent: tuple[Any, jax.Array]) -> jax.Array:
        return inner.client.size(jax.tree.map(lambda m: m.sum(axis=0), sent[0]))

    def update(state: Clusters, mean: tuple[Any, jax.Array], hparams: base.HParams) -> Clusters:
        def one(before: base.State, message: Any, share: jax.Array) -> base.State:
            some = share > 0
            own = jax.tree.map(lambda m: m / jnp.where(some, share, 1).astype(m.dtype), message)
            after = inner.server.update(before, own, hparams)
            return jax.tree.map(lambda a, b: jnp.where(some, a, b), after, before)

        return Clusters(jax.vmap(one)(state.states, *mean), mean[1])

    begins = inner.client.model_state

    def models(state: Clusters) -> Params:
        return jax.vmap(inner.server.params)(state.states)

    return inner._replace(
        name="ifca",
        variant=" ".join(part for part in (f"k={count}", shown_name, inner.variant) if part),
        subproblem=subproblem,
        communication=inner.communication * (count + 1) / 2,
        fixed=dict.fromkeys(
            ("server", "stragglers", "average"), "these are its local method's: set them there"
        ),
        not_private="what it adds up is how many clients chose each model, beside their updates",
        server=inner.server._replace(
            init=init,
            starts=count,
            update=update,
            params=lambda state: inner.server.params(state_of(state, jnp.argmax(state.share))),
            received=lambda state, context: inner.server.params(
                state_of(state, own_cluster(context))
            ),
        ),
        client=inner.client._replace(
            message=message,
            size=size,
            possible=None,
            model_state=begins
            and (lambda state, context: begins(state_of(state, own_cluster(context)), context)),
        ),
        first=inner.first._replace(probe=models),
        inside=lambda change: ifca(k, local=change(inner)),
    )
