"""FedProx (Li et al. 2020): a proximal term in the local problem, and partial work is kept.

The server's mean is weighted by n_k under uniform sampling, as in the paper's experiments (section
5.1), and plain under proportional sampling, as Algorithm 2 is written.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.algorithms.adaptive import ADAPTIVE_MU
from fedprox.algorithms.base import Algorithm, ClientContext, HParams, check_hparam
from fedprox.errors import require
from fedprox.model import Params, dotted, named_part
from fedprox.precision import real_type
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


def proximal(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + (mu / 2) ||w - w^t||^2, from w^t."""
    del context
    return Subproblem(start=params, mu=hparams["mu"], anchor=params)


def by_part(params: Params, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + sum_p (mu_p / 2) ||w_p - w_p^t||^2 over the parts p, from w^t."""
    del context
    of_part = {name[3:]: mu for name, mu in hparams.items() if name.startswith("mu.")}
    names = [dotted(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for part in of_part:
        require(named_part(part, names), f"fedprox: mu: the model has no part {part!r}")

    def mu_of(path: Any, _: jax.Array) -> jax.Array:
        longest = max((p for p in of_part if named_part(p, [dotted(path)])), key=len, default=None)
        return jnp.zeros((), real_type()) if longest is None else of_part[longest]

    mu = jax.tree_util.tree_map_with_path(mu_of, params)
    return Subproblem(start=params, mu=mu, anchor=params)


def fedprox(mu: HParam | dict[str, HParam], *, adapt: bool = False) -> Algorithm:
    r"""FedProx: FedAvg with a proximal term that keeps stragglers' partial work.

    Client :math:`k` approximately minimizes

    .. math:: h_k(w) = F_k(w) + \frac{\mu}{2} \|w - w^t\|^2,

    starting from :math:`w^t`. The server averages the results, weighted by rows.

    Args:
        mu: Proximal weight, at least 0. A sequence sweeps over its values. With 0 this is FedAvg
            that keeps partial work. Or a dict of such weights by the dotted names of parameters or
            of the layers that hold them, the longest name first; the others have 0.
        adapt: Whether mu follows the training loss, starting from the value given (section 5.3.2);
            see `fedprox.algorithms.adaptive`. It must be one mu.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If mu is negative or not finite, or has names beside `adapt`; later, if the
            model has no part of that name.

    Example:
        >>> import fedprox as fp
        >>> fp.fedprox(mu=[0.0, 1.0]).hparams["mu"]
        (0.0, 1.0)
        >>> fp.fedprox(mu={"conv1": 0.1, "dense2": 1.0}).hparams
        {'mu.conv1': (0.1,), 'mu.dense2': (1.0,)}

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Algorithm 2 and equation 2.
    """
    if isinstance(mu, Mapping):
        require(
            mu and not adapt, "fedprox: mu: with adapt it must be one, and with names at least one"
        )
        named = {f"mu.{part}": check_hparam(f"fedprox: mu.{part}", v) for part, v in mu.items()}
        return Algorithm("fedprox", by_part, hparams=named, stragglers="keep")
    values = check_hparam("fedprox: mu", mu)
    return Algorithm(
        "fedprox",
        proximal,
        hparams={"mu": values},
        stragglers="keep",
        adapt=ADAPTIVE_MU if adapt else None,
    )
