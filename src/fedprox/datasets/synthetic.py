"""Synthetic federations with adjustable heterogeneity.

The draws follow the authors' generators. Random numbers come from this library's streams, so the
data agree with theirs in distribution.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.partition import split
from fedprox.errors import require, require_number, require_one_of, require_whole
from fedprox.federation import Federation
from fedprox.streams import Purpose, generator

Draw = NDArray[np.float64]


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    iid: bool = False,
    random_mean: bool = False,
    clients: int = 30,
    train_share: float = 0.8,
    seed: int = 0,
) -> Federation:
    r"""FedProx's Synthetic(alpha, beta), or its IID counterpart.

    Client :math:`k` has :math:`n_k` examples of 60 features, of 10 classes:

    .. math::
        n_k &= \lfloor \mathrm{LogNormal}(4, 2) \rfloor + 50, \\
        x &\sim N(v_k, \Sigma), \quad \Sigma_{jj} = j^{-1.2}, \quad v_k \sim N(B_k, 1),
        \quad B_k \sim N(0, \beta), \\
        y &= \arg\max (W_k x + b_k), \quad W_k, b_k \sim N(u_k, 1), \quad u_k \sim N(0, \alpha).

    alpha and beta are standard deviations, as in the authors' code. beta sets how much the clients'
    features differ. alpha was meant to set how much their models differ, but :math:`u_k` raises the
    scores of all classes equally, so no label depends on it.

    Args:
        alpha: Standard deviation of :math:`u_k`, at least 0.
        beta: Standard deviation of :math:`B_k`, at least 0.
        iid: Whether all clients share one :math:`W, b \sim N(0, 1)` and :math:`v_k = 0`; alpha and
            beta then have no effect.
        random_mean: Whether the IID counterpart has one mean of features :math:`v \sim N(0, I)` for
            all clients, as in the paper's first draft (appendix C.1), in place of 0. With equal
            seeds both have the same sizes and the same :math:`W, b`. Since :math:`W v` is large,
            one class then has nearly all rows.
        clients: Number of clients.
        train_share: Share of each client's examples to train on, above 0 and below 1: 0.8 in the
            paper (appendix C.2), 0.9 in the authors' code.
        seed: Seed of the data, independent of the seeds of runs.

    Returns:
        A federation whose features are float32 of shape (60,).

    Raises:
        InputError: If an argument is out of range, or `random_mean` is given without `iid`.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(alpha=1.0, beta=1.0)
        >>> len(federation), federation.features.shape, federation.classes
        (30, (60,), 10)

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, section 5.1 and appendix C.1.
    """
    require_number("data.alpha", alpha)
    require_number("data.beta", beta)
    require_whole("data.clients", clients)
    require(
        iid or not random_mean,
        "data.random_mean: given without data.iid = true; clients then have means of their own",
    )
    features, classes = 60, 10
    stream = generator(seed, Purpose.DATA)
    sizes = stream.lognormal(4, 2, clients).astype(int) + 50
    u, b = stream.normal(0, alpha, clients), stream.normal(0, beta, clients)
    v = np.zeros((clients, features)) if iid else stream.normal(b[:, None], 1, (clients, features))
    shared = _draw_model(stream, 0.0, classes, features)
    if random_mean:
        v = v + stream.normal(0, 1, features)
    parts = []
    for k in range(clients):
        own = generator(seed, Purpose.DATA, 1, k)
        model = shared if iid else _draw_model(own, u[k], classes, features)
        parts.append(_draw_rows(own, model, v[k], sizes[k]))
    rows = [np.arange(size) for size in sizes]
    divided = (
        [(x[chosen], y[chosen]) for (x, y), chosen in zip(parts, half, strict=True)]
        for half in split(rows, train_share=train_share, seed=seed)
    )
    return Federation.from_arrays(*divided, classes=classes)


def synthetic_feddyn(
    heterogeneity: Literal["none", "type1", "type2", "type3"] = "none",
    *,
    gamma: float | None = None,
    clients: int = 20,
    mean_size: int = 200,
    seed: int = 0,
) -> Federation:
    r"""FedDyn's synthetic data, with one kind of heterogeneity.

    20 clients have about 200 examples each, of 30 features and 5 classes, drawn as in `synthetic`
    except for what `heterogeneity` names.

    Args:
        heterogeneity: The difference between clients. "none"; "type1" for their models,
            :math:`W_k, b_k \sim N(u_k, 1)` with :math:`u_k \sim N(0, \gamma)`; "type2" for their
            features, :math:`v_k \sim N(B_k, 1)` with :math:`B_k \sim N(0, \gamma)`; or "type3" for
            their sizes, LogNormal(log(mean_size), gamma) rounded down.
        gamma: The paper's :math:`\gamma_1`, :math:`\gamma_2` or :math:`\gamma_3`, a standard
            deviation. The paper gives no values. None for 1 with types 1 and 2 and 0.3 with type 3.
            With type 1 no label depends on it.
        clients: Number of clients.
        mean_size: Mean number of examples of a client.
        seed: Seed of the data, independent of the seeds of runs.

    Returns:
        A federation that is tested on its training data, as in the paper.

    Raises:
        InputError: If an argument is out of range, or gamma is given with "none".

    Example:
        >>> import fedprox as fp
        >>> fp.datasets.synthetic_feddyn("type3").features.shape
        (30,)

    References:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.1.
    """
    kinds = ("none", "type1", "type2", "type3")
    require_one_of("data.heterogeneity", heterogeneity, kinds)
    require(
        gamma is None or heterogeneity != "none",
        'data.gamma: given, and with data.heterogeneity = "none" clients do not differ',
    )
    if gamma is None:
        gamma = 0.3 if heterogeneity == "type3" else 1.0
    require_number("data.gamma", gamma)
    require_whole("data.clients", clients)
    require_whole("data.mean_size", mean_size)
    features, classes = 30, 5
    stream = generator(seed, Purpose.DATA)
    sizes = np.full(clients, mean_size)
    if heterogeneity == "type3":
        drawn = stream.lognormal(np.log(mean_size + 1e-3), gamma, clients)
        require(
            drawn.max() < 2**31,
            f"data.gamma = {gamma}; a client would have {drawn.max():.1e} examples, at most "
            f"{2.0**31:.1e} can be",
        )
        sizes = np.maximum(drawn.astype(int), 1)
    shared = _draw_model(stream, 0.0, classes, features)
    parts = []
    for k in range(clients):
        own = generator(seed, Purpose.DATA, 1, k)
        model, v = shared, np.zeros(features)
        if heterogeneity == "type1":
            model = _draw_model(own, own.normal(0, gamma), classes, features)
        if heterogeneity == "type2":
            v = own.normal(own.normal(0, gamma), 1, features)
        parts.append(_draw_rows(own, model, v, sizes[k]))
    return Federation.from_arrays(parts, parts, classes=classes)


def _draw_model(
    stream: np.random.Generator, mean: float, classes: int, features: int
) -> tuple[Draw, Draw]:
    return stream.normal(mean, 1, (classes, features)), stream.normal(mean, 1, classes)


def _draw_rows(
    stream: np.random.Generator, model: tuple[Draw, Draw], mean: Draw, count: int
) -> tuple[Draw, NDArray[np.int64]]:
    """Features around a mean, and the classes that a model gives them."""
    weights, bias = model
    scale = np.arange(1, len(mean) + 1) ** (-1.2 / 2)
    x = stream.normal(mean, scale, (count, len(mean)))
    return x, np.argmax(x @ weights.T + bias, axis=1)
