"""A network with batch normalization, and its training by a plain NumPy loop in float64.

    z = softmax(head^T tanh(scale (h - m) / sqrt(v + eps) + shift)),  h = body^T x,

where m and v are the mean and the variance of the mini-batch's h, or the running ones where the
network is evaluated. The gradients are by hand.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import fedprox as fp
from tests.methods import batches_of
from tests.objectives import CLASSES, FEATURES, HIDDEN, Matrix, one_hot, probabilities

MOMENTUM, EPS = 0.9, 1e-5


def first(key: jax.Array) -> Any:
    a, b = jax.random.split(key)
    return {
        "body": jax.random.normal(a, (FEATURES, HIDDEN)),
        "head": jax.random.normal(b, (HIDDEN, CLASSES)),
        "norm": {"scale": jnp.ones(HIDDEN), "shift": jnp.zeros(HIDDEN)},
    }


def statistics(key: jax.Array) -> Any:
    del key
    return {"norm": {"mean": jnp.zeros(HIDDEN), "var": jnp.ones(HIDDEN)}}


def outputs(params: Any, mean: Any, var: Any, h: Any) -> Any:
    norm = params["norm"]
    scaled = norm["scale"] * (h - mean) / jnp.sqrt(var + EPS) + norm["shift"]
    return jnp.tanh(scaled) @ params["head"]


def apply(params: Any, state: Any, x: Any) -> Any:
    return outputs(params, state["norm"]["mean"], state["norm"]["var"], x @ params["body"])


def train(params: Any, state: Any, x: Any, key: Any, mask: Any) -> Any:
    del key
    h, counts = x @ params["body"], mask[:, None]
    mean = jnp.mean(h, axis=0, where=counts)
    var = jnp.mean((h - mean) ** 2, axis=0, where=counts)
    now = {"norm": {"mean": mean, "var": var}}
    moved = jax.tree.map(lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new, state, now)
    return outputs(params, mean, var, h), moved


MODEL = fp.Model(first, apply, train=train, state=statistics)
START = MODEL.init(jax.random.key(0))


class Client(NamedTuple):
    """What a client has, as NumPy arrays by name."""

    params: dict[str, Matrix]
    mean: Matrix
    var: Matrix


def flat(params: Any) -> dict[str, Matrix]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {path[-1].key: np.asarray(leaf, float) for path, leaf in leaves}


def gradient(w: dict[str, Matrix], x: Matrix, y: Any) -> tuple[dict[str, Matrix], Matrix, Matrix]:
    """The gradient of a mini-batch's mean loss, and its mean and variance."""
    h = x @ w["body"]
    mean, var = h.mean(axis=0), h.var(axis=0)
    root = np.sqrt(var + EPS)
    unit = (h - mean) / root
    r = np.tanh(w["scale"] * unit + w["shift"])
    of_z = (probabilities(r @ w["head"]) - one_hot(y)) / len(y)
    of_r = (of_z @ w["head"].T) * (1 - r**2)
    of_unit = of_r * w["scale"]
    of_h = (of_unit - of_unit.mean(axis=0) - unit * (of_unit * unit).mean(axis=0)) / root
    parts = {
        "body": x.T @ of_h,
        "head": r.T @ of_z,
        "scale": (of_r * unit).sum(axis=0),
        "shift": of_r.sum(axis=0),
    }
    return parts, mean, var


def trained(
    client: Client,
    rows: tuple[Any, Any],
    batches: list[NDArray[np.int32]],
    *,
    rate: float,
    mu: float = 0.0,
    decay: float = 0.0,
    frozen: tuple[str, ...] = (),
) -> Client:
    """SGD of a client from what it has, towards which a proximal term draws the parameters.

    Those that are frozen do not move.
    """
    (w, mean, var), (x, y) = client, map(np.asarray, rows)
    for batch in batches:
        g, now_mean, now_var = gradient(w, x[batch].astype(float), y[batch])
        w = {
            name: a - rate * (g[name] + mu * (a - client.params[name]) + decay * a)
            for name, a in w.items()
            if name not in frozen
        } | {name: w[name] for name in frozen}
        mean = MOMENTUM * mean + (1 - MOMENTUM) * now_mean
        var = MOMENTUM * var + (1 - MOMENTUM) * now_var
    return Client(w, mean, var)


def loss(client: Client, x: Any, y: Any) -> float:
    """The mean loss with the running statistics."""
    h = np.asarray(x, float) @ client.params["body"]
    unit = (h - client.mean) / np.sqrt(client.var + EPS)
    r = np.tanh(client.params["scale"] * unit + client.params["shift"])
    of_labels = (probabilities(r @ client.params["head"]) * one_hot(y)).sum(axis=1)
    return float(-np.log(of_labels).mean())


def averaged(clients: list[Client], rows: Any) -> Client:
    """The mean of what clients have, weighted by their rows."""
    return jax.tree.map(lambda *each: np.average(each, axis=0, weights=rows), *clients)


class Federated(NamedTuple):
    """The server's model after some rounds, and what the clients have of their own."""

    server: Client
    clients: dict[int, Client]


def federated(
    federation: fp.Federation,
    solver: fp.Solver,
    rounds: int,
    *,
    kept: tuple[str, ...] = (),
    frozen: tuple[str, ...] = (),
    mu: float = 0.0,
    start: Any = START,
    cohort: fp.Cohort | None = None,
) -> Federated:
    """FedAvg or FedProx of all clients, or cohorts: each has its own "state", "scale" or "shift".

    A client that has not taken part has nothing of its own, and begins with what the server has.
    """
    start = jax.device_get(start)
    sizes = federation.train.sizes
    server = Client(flat(start.params), *flat(start.state).values())
    clients: dict[int, Client] = {}
    for t in range(rounds):
        drawn = cohort and cohort.draw(0, t, federation.train.offsets).clients.tolist()
        chosen = sorted(drawn or range(len(federation)))
        for k in chosen:
            own = clients.get(k, server)
            begun = Client(
                {name: (own if name in kept else server).params[name] for name in server.params},
                *((own if "state" in kept else server)[1:]),
            )
            count = solver.steps_for(int(sizes[k]))
            batches = batches_of(0, t, k, int(sizes[k]), solver, count)
            rate: Any = solver.learning_rate
            clients[k] = trained(
                begun,
                federation.train.client(k),
                batches,
                rate=rate,
                mu=mu,
                decay=solver.weight_decay,
                frozen=frozen,
            )
        means = averaged([clients[k] for k in chosen], sizes[chosen])
        shared = {n: server.params[n] if n in kept else a for n, a in means.params.items()}
        server = means._replace(params=shared)
    return Federated(server, clients)
