"""Parameters that stay on the clients: FedPer, FedBN, FedRep, and the same for other methods.

A client's parts are its state, and are never sent: a message has the other parameters alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.algorithms import capabilities as needs
from fedprox.algorithms.fedavg import fedavg
from fedprox.algorithms.fedprox import fedprox
from fedprox.errors import require, shown
from fedprox.model import Model, Params, dotted, named_part
from fedprox.subproblem import Subproblem

Named = dict[str, jax.Array]
"""Some parameters by their dotted names."""


def divided(params: Params, parts: Sequence[str]) -> tuple[Named, Named]:
    """The parameters that belong to the parts, and the others, of which there must be some.

    >>> own, others = divided({"head": {"bias": 1}, "body": {"bias": 2}}, ["head"])
    >>> own, others
    ({'head.bias': 1}, {'body.bias': 2})
    """
    leaves = {dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    for part in parts:
        require(
            named_part(part, leaves),
            f"parts: the model has no part {shown(part)}; it has {', '.join(sorted(leaves))}",
        )
    of_parts = {name for part in parts for name in named_part(part, leaves)}
    require(len(of_parts) < len(leaves), "parts: these are all parameters; leave some out")
    own = {name: leaf for name, leaf in leaves.items() if name in of_parts}
    return own, {name: leaf for name, leaf in leaves.items() if name not in of_parts}


def merged(params: Params, named: Named) -> Params:
    """The parameters, with other values for some of them."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: named.get(dotted(path), leaf), params
    )


def own_model(state: base.Own, params: Params) -> base.Own:
    """The server's model with the client's own parts."""
    return base.Own(merged(params, state.model), state.trained)


def personal_parts(method: base.Algorithm, parts: Sequence[str]) -> base.Algorithm:
    r"""A method whose clients keep some parameters to themselves.

    Client :math:`k` has its own values :math:`v_k` of these parameters, at first the initial ones.
    It starts from :math:`(w^t, v_k)`, where :math:`w^t` are the other parameters; a proximal term
    is relative to the same point. It keeps its next :math:`v_k` and sends the change of the others.

    Args:
        method: A method whose server's state is the model, and whose clients have no state and send
            :math:`w_k - w^t`, such as FedAvg, FedProx, FedSAM and FedLC.
        parts: The dotted names of parameters, or of layers that hold them.

    Returns:
        An algorithm for :func:`fedprox.simulate`. Evaluations measure the clients' own models as
        `personal_accuracy`; `test_accuracy` is that of the server's model with the initial parts.

    Raises:
        InputError: If the method does not fit, or the names are not a list of strings. Later, if
            the model lacks a part or has no other parameters.

    Example:
        >>> import fedprox as fp
        >>> fp.personal_parts(fp.fedprox(mu=0.1), ["dense2"]).variant
        'own dense2'
    """
    several = isinstance(parts, Sequence) and not isinstance(parts, str | bytes)
    require(
        several and len(parts) > 0 and all(isinstance(part, str) for part in parts),
        f'{method.name}: parts = {shown(parts)}; it must be a list of names, such as ["head"]',
    )
    refused = (
        *(needs.POOLED, needs.GRADIENT, needs.LOSS, needs.ADAPTS, needs.KEEPS_STATE),
        *(needs.SERVER_STATE, needs.OTHER_UPDATE, needs.OTHER_MESSAGE),
    )
    instead = "it must be a method such as fedavg, fedprox, fedsam or fedlc"
    needs.require_none("personal_parts", method, refused, instead)
    given = tuple(parts)

    def composed(state: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
        """F_k(w), from w^t with the client's own parts."""
        return method.subproblem(merged(state, context.state.model), hparams, context)

    def message(
        state: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Named, base.Own]:
        """Send w_k - w^t without the parts, and keep the parts."""
        del state, hparams, context
        sent = divided(base.local_update(solution), given)[1]
        return sent, base.trained(divided(solution.params, given)[0])

    return method._replace(
        variant=f"{method.variant} own {', '.join(given)}".lstrip(),
        subproblem=composed,
        personal=base.Personal(own=own_model, parts=given),
        client=method.client._replace(
            state=lambda params: base.untrained(divided(params, given)[0]), message=message
        ),
        server=method.server._replace(
            update=replace(base.add, model=lambda state: divided(state, given)[1], moved=merged)
        ),
    )


def fedper(parts: list[str]) -> base.Algorithm:
    r"""FedPer: FedAvg whose clients keep some layers, such as the last, to themselves.

    Client :math:`k` trains all layers by SGD on :math:`F_k`, from the server's :math:`w^t` and its
    own :math:`v_k`. It keeps :math:`v_k` and sends the rest. The server averages as in FedAvg.
    Stragglers are dropped. With the parameters of normalization layers as parts this is FedBN.

    Args:
        parts: The dotted names of parameters, or of layers that hold them.

    Returns:
        An algorithm for :func:`fedprox.simulate`; see :func:`fedprox.personal_parts`.

    Raises:
        InputError: As :func:`fedprox.personal_parts`.

    Example:
        >>> import fedprox as fp
        >>> fp.fedper(["head"]).own_parts
        ('head',)

    References:
        Arivazhagan et al., `Federated Learning with Personalization Layers
        <https://arxiv.org/abs/1912.00818>`_, 2019, Algorithms 1 and 2; and Li et al., `FedBN:
        Federated Learning on Non-IID Features via Local Batch Normalization
        <https://arxiv.org/abs/2102.07623>`_, ICLR 2021.
    """
    return personal_parts(fedavg(), parts)._replace(name="fedper")


def fedrep(parts: list[str]) -> base.Algorithm:
    r"""FedRep: clients fit their own heads to the shared representation, then train the latter.

    The parameters are a representation :math:`w` and a head, the `parts`. Client :math:`k` first
    trains its own head :math:`v_k` with :math:`w^t` fixed, then :math:`w` from :math:`w^t` with
    :math:`v_k` fixed. Both use the same steps of SGD on :math:`F_k` and the same mini-batches. It
    keeps :math:`v_k` and sends :math:`w_k - w^t`. The server averages these, weighted by rows.
    Stragglers' partial work is kept.

    Args:
        parts: The dotted names of the head's parameters, or of layers that hold them.

    Returns:
        An algorithm for :func:`fedprox.simulate`; see :func:`fedprox.personal_parts`.

    Raises:
        InputError: If the names are not a list of strings; later, if the model lacks a part or
            consists of these parts.

    Example:
        >>> import fedprox as fp
        >>> fp.fedrep(["head"]).own_parts
        ('head',)

    References:
        Collins et al., `Exploiting Shared Representations for Personalized Federated Learning
        <https://arxiv.org/abs/2102.07078>`_, ICML 2021, Algorithm 1.
    """
    shared = personal_parts(fedprox(mu=0.0)._replace(name="fedrep"), parts)
    given = shared.own_parts

    def posed(of_head: bool) -> tuple[Any, Any]:
        """The local problem in the head, or in all others, and its objective."""

        def subproblem(
            state: Params, hparams: base.HParams, context: base.ClientContext
        ) -> Subproblem:
            """F_k(w) in the parts that are not fixed, from w^t with the client's own head."""
            del hparams
            others = jax.tree.map(lambda _: jnp.bool_(not of_head), state)
            own = dict.fromkeys(divided(state, given)[0], jnp.bool_(of_head))
            return Subproblem(merged(state, context.state.model), trained=merged(others, own))

        def objective(model: Model, params: Params, batch: base.Batch, _: Any) -> jax.Array:
            """The mini-batch's loss, of which the parts that are fixed are constants."""
            fixed = divided(params, given)[of_head]
            return batch.loss(model, merged(params, jax.tree.map(jax.lax.stop_gradient, fixed)))

        return subproblem, objective

    def message(
        state: Params, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Named, base.Own]:
        """Send the change of the representation; the head is that of the first problem."""
        del state, hparams
        return divided(base.local_update(solution), given)[1], context.state

    first, objective_of_first = posed(of_head=True)
    second, objective_of_second = posed(of_head=False)
    return shared._replace(
        hparams={},
        subproblem=second,
        personal=base.Personal(
            own=own_model,
            subproblem=first,
            objective=objective_of_first,
            keep=lambda _, solved: base.trained(divided(solved, given)[0]),
            parts=given,
        ),
        client=shared.client._replace(objective=objective_of_second, message=message),
    )
