"""FedProx (Li et al. 2020): a proximal term in the local problem, and partial work is kept.

The server's mean is weighted by n_k under uniform sampling, as in the paper's experiments (section
5.1), and plain under proportional sampling, as Algorithm 2 is written. Adaptive mu is a heuristic
for any method with a proximal term.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.errors import require
from fedprox.model import Params, dotted, named_part
from fedprox.precision import real_type
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem

STEP, FALLS = 0.1, 5
"""By how much mu rises or falls, and after how many falls of the loss in a row it falls."""


class Trend(NamedTuple):
    """The last loss, and how many times in a row the loss has fallen."""

    loss: jax.Array
    falls: jax.Array


def first_trend(hparams: base.HParams, loss: jax.Array) -> Trend:
    """The trend after the evaluation of w^0."""
    del hparams
    return Trend(loss, jnp.zeros(jnp.shape(loss), jnp.int32))


def follow_loss(hparams: base.HParams, trend: Trend, loss: jax.Array) -> tuple[base.HParams, Trend]:
    """The hyperparameters of the next round, given the loss after this one (section 5.3.2).

    With the loss f(w) over all training rows::

        mu <- mu + 0.1             if f rose (or is no longer finite),
        mu <- max(mu - 0.1, 0)     if f fell five times in a row, after which the count restarts.

    The paper starts at mu = 1 on IID data and at mu = 0 elsewhere, far from the best value in both
    cases (appendix C.3.3).

    >>> hparams, trend = {"mu": jnp.array(1.0)}, first_trend({}, jnp.array(3.0))
    >>> for loss in (2.9, 2.8, 2.7, 2.6, 2.5, 2.6):
    ...     hparams, trend = follow_loss(hparams, trend, jnp.array(loss))
    ...     print(f"{float(hparams['mu']):.1f}", end=" ")
    1.0 1.0 1.0 1.0 0.9 1.0
    """
    mu = hparams["mu"]
    rose = (loss > trend.loss) | ~jnp.isfinite(loss)
    falls = jnp.where(loss < trend.loss, trend.falls + 1, 0)
    enough = falls >= FALLS
    mu = jnp.where(rose, mu + STEP, jnp.where(enough, jnp.maximum(mu - STEP, 0.0), mu))
    return {**hparams, "mu": mu}, Trend(loss, jnp.where(enough, 0, falls))


ADAPTIVE_MU = base.Adaptation(first_trend, follow_loss)


def proximal(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + (mu / 2) ||w - w^t||^2, from w^t."""
    del context
    return Subproblem(start=params, mu=hparams["mu"], anchor=params)


def by_part(params: Params, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
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


def fedprox(mu: HParam | dict[str, HParam], *, adapt: bool = False) -> base.Algorithm:
    r"""FedProx: FedAvg with a proximal term that keeps stragglers' partial work.

    Client :math:`k` approximately minimizes

    .. math:: h_k(w) = F_k(w) + \frac{\mu}{2} \|w - w^t\|^2,

    starting from :math:`w^t`. The server averages the results, weighted by rows.

    Args:
        mu: Proximal weight, at least 0. With 0 this is FedAvg that keeps partial work. A sequence
            sweeps over its values. A dict gives weights by the dotted names of parameters or
            layers: the longest name that matches counts, and parameters without one have 0.
        adapt: Whether mu follows the training loss, starting from the value given (section 5.3.2).
            It rises by 0.1 when the loss rises, and falls by 0.1 when the loss fell five times in a
            row. It needs a single mu.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If mu is negative or not finite, or is a dict together with `adapt`. Later, if
            the model has no part of a dict's name.

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
        named = {
            f"mu.{part}": base.check_hparam(f"fedprox: mu.{part}", v) for part, v in mu.items()
        }
        return base.Algorithm("fedprox", by_part, hparams=named, stragglers="keep")
    values = base.check_hparam("fedprox: mu", mu)
    return base.Algorithm(
        "fedprox",
        proximal,
        hparams={"mu": values},
        stragglers="keep",
        adapt=ADAPTIVE_MU if adapt else None,
    )
