"""Synthetic federations whose heterogeneity is set by two numbers.

Li et al. 2020, section 5.1 and appendix C.1, with the draws of the authors' generator: client k has

    n_k = int(LogNormal(4, 2)) + 50 examples,   d = 60 features, C = 10 classes,
    u_k ~ N(0, alpha),  W_k ~ N(u_k, 1) (C x d),  b_k ~ N(u_k, 1),
    B_k ~ N(0, beta),   v_k ~ N(B_k, 1) (d),      x ~ N(v_k, diag(j^-1.2)),
    y = argmax(W_k x + b_k).

alpha and beta are standard deviations, as the authors' code uses them. beta sets how much the
clients' features differ. alpha is meant to set how much their models do, but u_k raises the scores
of all classes by the same u_k (sum_j x_j + 1), and no argmax depends on it: the data are the same
for any alpha, and models differ by the N(0, 1) around u_k alone.

Acar et al. 2021, appendix A.1.1 turn on one kind of heterogeneity at a time, with d = 30, C = 5 and
20 clients of about 200 examples.
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
    clients: int = 30,
    train_share: float = 0.8,
    seed: int = 0,
) -> Federation:
    """FedProx's Synthetic(alpha, beta), or its IID counterpart.

    Args:
        alpha: Standard deviation of the clients' mean model parameter u_k, on which no label
            depends.
        beta: Standard deviation of the clients' mean feature B_k.
        iid: One W, b ~ N(0, 1) for all clients and v_k = 0; alpha and beta are not used.
        clients: Number of clients.
        train_share: Share of each client's examples to train on: 0.8 by the paper (appendix C.2),
            0.9 in the authors' code.
        seed: Seed of the data, apart from the seeds of runs on it.

    Raises:
        InputError: A negative alpha or beta, no clients, or a share not inside (0, 1).

    >>> federation = synthetic(1.0, 1.0)
    >>> len(federation), federation.train.x.shape[1], federation.classes
    (30, 60, 10)
    """
    _check(alpha=alpha, beta=beta, clients=clients)
    features, classes = 60, 10
    stream = generator(seed, Purpose.DATA)
    sizes = stream.lognormal(4, 2, clients).astype(int) + 50
    u, b = stream.normal(0, alpha, clients), stream.normal(0, beta, clients)
    v = np.zeros((clients, features)) if iid else stream.normal(b[:, None], 1, (clients, features))
    scale = np.arange(1, features + 1) ** (-1.2 / 2)
    shared = _draw_model(stream, 0.0, classes, features)
    parts = []
    for k in range(clients):
        own = generator(seed, Purpose.DATA, 1, k)
        weights, bias = shared if iid else _draw_model(own, u[k], classes, features)
        x = own.normal(v[k], scale, (sizes[k], features))
        parts.append((x, np.argmax(x @ weights.T + bias, axis=1)))
    return _federation(parts, classes, train_share, seed)


def synthetic_feddyn(
    heterogeneity: Literal["none", "type1", "type2", "type3"] = "none",
    *,
    gamma: float | None = None,
    clients: int = 20,
    mean_size: int = 200,
    seed: int = 0,
) -> Federation:
    """FedDyn's synthetic federation, with one kind of heterogeneity turned on.

    Args:
        heterogeneity: "none", or what differs between clients: "type1" their models
            (W_k, b_k ~ N(u_k, 1), u_k ~ N(0, gamma)), "type2" their features (v_k ~ N(B_k, 1),
            B_k ~ N(0, gamma)), "type3" their sizes (int(LogNormal(log(mean_size), gamma))).
        gamma: The paper's gamma_1, gamma_2 or gamma_3, a standard deviation as the authors' code
            uses it. The paper gives no value; 1 for types 1 and 2 and 0.3 for type 3 where left
            out. On that of type 1 no label depends.
        clients: Number of clients.
        mean_size: Mean examples of a client.
        seed: Seed of the data.

    Returns:
        A federation that is tested on its training data, as the authors do.

    Raises:
        InputError: An unknown kind of heterogeneity, a gamma that is negative, too large or has
            nothing to scale, or no clients.

    >>> synthetic_feddyn("type3").train.x.shape[1]
    30
    """
    kinds = ("none", "type1", "type2", "type3")
    require_one_of("data.heterogeneity", heterogeneity, kinds)
    require(
        gamma is None or heterogeneity != "none",
        'data.gamma: given, and with data.heterogeneity = "none" clients do not differ',
    )
    if gamma is None:
        gamma = 0.3 if heterogeneity == "type3" else 1.0
    _check(gamma=gamma, clients=clients, mean_size=mean_size)
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
    scale = np.arange(1, features + 1) ** (-1.2 / 2)
    shared = _draw_model(stream, 0.0, classes, features)
    parts = []
    for k in range(clients):
        own = generator(seed, Purpose.DATA, 1, k)
        weights, bias, v = *shared, np.zeros(features)
        if heterogeneity == "type1":
            weights, bias = _draw_model(own, own.normal(0, gamma), classes, features)
        if heterogeneity == "type2":
            v = own.normal(own.normal(0, gamma), 1, features)
        x = own.normal(v, scale, (sizes[k], features))
        parts.append((x, np.argmax(x @ weights.T + bias, axis=1)))
    return Federation.from_arrays(parts, parts, classes=classes)


def _draw_model(
    stream: np.random.Generator, mean: float, classes: int, features: int
) -> tuple[Draw, Draw]:
    return stream.normal(mean, 1, (classes, features)), stream.normal(mean, 1, classes)


def _federation(
    parts: list[tuple[Draw, NDArray[np.int64]]], classes: int, train_share: float, seed: int
) -> Federation:
    """Divide each client's examples at random into training and test rows."""
    rows = [np.arange(len(y)) for _, y in parts]
    pairs = [
        [(x[chosen], y[chosen]) for (x, y), chosen in zip(parts, part, strict=True)]
        for part in split(rows, train_share=train_share, seed=seed)
    ]
    return Federation.from_arrays(*pairs, classes=classes)


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if name in ("clients", "mean_size"):
            require_whole(f"data.{name}", value)
        else:
            require_number(f"data.{name}", value)
