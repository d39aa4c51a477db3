"""Parameters that stay on the clients: FedPer, FedBN, and the same for other methods.

A client's parts are its state, and are never sent: a message has the other parameters alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from fedprox.algorithms import capabilities as needs
from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    HParams,
    Own,
    Personal,
    Solution,
    add,
    local_update,
)
from fedprox.algorithms.fedavg import fedavg
from fedprox.errors import require, shown
from fedprox.model import Params, dotted, named_part
from fedprox.subproblem import Subproblem

Named = dict[str, jax.Array]
"""Some parameters by their dotted names."""


def split(params: Params, parts: Sequence[str]) -> tuple[Named, Named]:
    """The parameters that belong to the parts, and the others.

    Raises:
        InputError: If the model lacks a part, or has no other parameters.

    >>> own, others = split({"head": {"bias": 1}, "body": {"bias": 2}}, ["head"])
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


def check_parts(name: str, parts: Sequence[str]) -> tuple[str, ...]:
    """The names of parts, checked."""
    several = isinstance(parts, Sequence) and not isinstance(parts, str | bytes)
    require(
        several and len(parts) > 0 and all(isinstance(part, str) for part in parts),
        f'{name}: parts = {shown(parts)}; it must be a list of names, such as ["head"]',
    )
    return tuple(parts)


REFUSED = (
    *(needs.POOLED, needs.GRADIENT, needs.LOSS, needs.ADAPTS, needs.KEEPS_STATE),
    *(needs.SERVER_STATE, needs.OTHER_UPDATE, needs.OTHER_MESSAGE),
)
"""What a method cannot have whose clients keep parameters to themselves: it averages models."""


def personal_parts(method: Algorithm, parts: Sequence[str]) -> Algorithm:
    r"""A method whose clients keep some parameters to themselves.

    With the client's own :math:`v_k` of these parameters, all of the method's :math:`w^t` is
    :math:`(w^t, v_k)`: client :math:`k` starts there, and a proximal term is relative to it. It
    keeps its next :math:`v_k` and sends the change of the others. The server's values of
    the parts stay the initial ones, with which a client begins.

    Args:
        method: A method whose server keeps the model alone and whose clients keep nothing and send
            :math:`w_k - w^t`, such as FedAvg, FedProx, FedSAM and FedLC.
        parts: The dotted names of parameters, or of layers that hold them.

    Returns:
        An algorithm for :func:`fedprox.simulate`. Evaluations measure the clients' own models as
        `personal_accuracy`; `test_accuracy` is that of the server's model with the initial parts.

    Raises:
        InputError: If the method does not fit, or the names are not a list of strings; later, if
            the model lacks a part or consists of these parts.

    Example:
        >>> import fedprox as fp
        >>> fp.personal_parts(fp.fedprox(mu=0.1), ["dense2"]).variant
        'own dense2'
    """
    given = check_parts(method.name, parts)
    instead = "it must be a method such as fedavg, fedprox, fedsam or fedlc"
    needs.require_none("personal_parts", method, REFUSED, instead)

    def composed(state: Params, hparams: HParams, context: ClientContext) -> Subproblem:
        """F_k(w), from w^t with the client's own parts."""
        return method.subproblem(merged(state, context.state.model), hparams, context)

    def message(
        state: Params, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Named, Own]:
        """Send w_k - w^t without the parts, and keep the parts."""
        del state, hparams, context
        return split(local_update(solution), given)[1], kept(solution.params)

    def kept(params: Params) -> Own:
        return Own(split(params, given)[0], jnp.bool_(True))

    return method._replace(
        variant=f"{method.variant} own {', '.join(given)}".lstrip(),
        subproblem=composed,
        personal=Personal(own=own_model, parts=given),
        client=method.client._replace(
            state=lambda params: Own(split(params, given)[0], jnp.bool_(False)), message=message
        ),
        server=method.server._replace(
            update=replace(add, model=lambda state: split(state, given)[1], moved=merged)
        ),
    )


def own_model(state: Own, params: Params) -> Own:
    """The server's model with the client's own parts."""
    return Own(merged(params, state.model), state.trained)


def fedper(parts: list[str]) -> Algorithm:
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
