"""FedRep (Collins et al. 2021): a shared representation, under a head of each client's own."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    Algorithm,
    Batch,
    ClientContext,
    HParams,
    Own,
    Solution,
    local_update,
)
from fedprox.algorithms.fedprox import fedprox
from fedprox.algorithms.parts import check_parts, merged, personal_parts, split
from fedprox.model import Model, Params
from fedprox.subproblem import Subproblem


def from_own(
    parts: tuple[str, ...],
    fix_parts: bool,
    state: Params,
    hparams: HParams,
    context: ClientContext,
) -> Subproblem:
    """The problem in the parts, or in all others, from w^t with the client's own head."""
    del hparams
    others = jax.tree.map(lambda _: jnp.bool_(fix_parts), state)
    own = dict.fromkeys(split(state, parts)[0], jnp.bool_(not fix_parts))
    return Subproblem(merged(state, context.state.model), trained=merged(others, own))


def with_fixed(
    parts: tuple[str, ...], fix_parts: bool, model: Model, params: Params, batch: Batch, given: Any
) -> jax.Array:
    """The mini-batch's loss, of which the parts, or all others, are constants."""
    del given
    own, others = split(params, parts)
    fixed = own if fix_parts else others
    return batch.loss(model, merged(params, jax.tree.map(jax.lax.stop_gradient, fixed)))


def keep(parts: tuple[str, ...], state: Own, solved: Params) -> Own:
    """The client's next head."""
    del state
    return Own(split(solved, parts)[0], jnp.bool_(True))


def message(
    parts: tuple[str, ...],
    state: Params,
    hparams: HParams,
    context: ClientContext,
    solved: Solution,
) -> tuple[dict[str, jax.Array], Own]:
    """Send the change of the representation; the head is that of the first problem."""
    del state, hparams
    return split(local_update(solved), parts)[1], context.state


def fedrep(parts: list[str]) -> Algorithm:
    r"""FedRep: clients fit their own heads to the shared representation, then improve the latter.

    The parameters are a representation :math:`w` and a head, the `parts`. Client :math:`k` first
    trains its own head :math:`v_k` with :math:`w^t` fixed, then :math:`w` from :math:`w^t` with
    :math:`v_k` fixed, both by the same steps of SGD on :math:`F_k` and the same mini-batches. It
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
    given = check_parts("fedrep", parts)
    shared = personal_parts(fedprox(mu=0.0), parts)
    assert shared.personal is not None

    def subproblem(state: Params, hparams: HParams, context: ClientContext) -> Subproblem:
        """F_k(w) in the parts that are not fixed, from w^t with the client's own head."""
        return from_own(given, True, state, hparams, context)

    return shared._replace(
        name="fedrep",
        hparams={},
        subproblem=subproblem,
        personal=shared.personal._replace(
            subproblem=partial(from_own, given, False),
            objective=partial(with_fixed, given, False),
            keep=partial(keep, given),
        ),
        client=shared.client._replace(
            objective=partial(with_fixed, given, True), message=partial(message, given)
        ),
    )
