"""CFL (Sattler et al. 2021): clients are divided where one model cannot serve them.

This is a procedure over whole runs and no method of a round: whether a cluster is divided depends
on the gradients of all its clients at once, after its model has converged, and how many models
there are is its result.
"""

from collections import deque
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms import Algorithm, fedavg
from fedprox.diagnostics.clients import evaluate
from fedprox.diagnostics.grouping import gradients
from fedprox.errors import require, require_number, require_whole
from fedprox.federation import Federation
from fedprox.model import Model, Params
from fedprox.simulation.config.cohort import Cohort
from fedprox.simulation.config.evaluation import Evaluation
from fedprox.simulation.config.method import sweep_points
from fedprox.simulation.simulate import simulate
from fedprox.solver import Solver


class Division(NamedTuple):
    """A cluster after its rounds, and whether it was divided.

    Attributes:
        clients: The cluster's clients, int64.
        mean_norm: The norm of the gradient of the cluster's objective.
        largest_norm: The largest norm of a client's gradient.
        parts: The clients of each part; None if it was not divided.
        similarity: The largest cosine of gradients across the parts; NaN if it was not divided.
    """

    clients: NDArray[np.int64]
    mean_norm: float
    largest_norm: float
    parts: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    similarity: float


class Clustering(NamedTuple):
    """What `cfl` finds.

    Attributes:
        labels: Each client's cluster, int64 (clients,).
        models: The clusters' models, leaves (clusters, ...), as NumPy arrays.
        test_accuracy: The share of all test labels that are met by the model of the client's
            cluster; NaN without test rows, and for a model without accuracy.
        divisions: The clusters in the order in which they were trained: for each its `clients`, the
            `mean_norm` of its gradient, the `largest_norm` of a client's, its `parts`, None if it
            was not divided, and the `similarity` across them.

    Example:
        >>> from fedprox.clustering import Clustering
        >>> Clustering(np.array([0, 1]), {"w": np.zeros((2, 3))}, 0.9, ()).labels.tolist()
        [0, 1]
    """

    labels: NDArray[np.int64]
    models: Params
    test_accuracy: float
    divisions: tuple[Division, ...]


def cfl(
    federation: Federation,
    model: Model,
    *,
    eps1: float,
    eps2: float,
    solver: Solver,
    rounds: int,
    local: Algorithm | None = None,
    most: int = 8,
    seed: int = 0,
    initial: Params | None = None,
    progress: bool = True,
) -> Clustering:
    r"""CFL: divide the clients in two as long as one model leaves their gradients large.

    All clients train a model with a local method. Then a cluster :math:`C` is divided if its own
    gradient is small and that of some client is not,

    .. math:: \Big\| \sum_{k \in C} p_k \nabla F_k(w) \Big\| < \varepsilon_1, \qquad
        \max_{k \in C} \|\nabla F_k(w)\| > \varepsilon_2,

    such that the largest cosine of gradients across its two parts is as small as possible. Both
    parts go on from :math:`w`, and may be divided again.

    The paper looks at the clients' updates; here they are the gradients over all of a client's
    rows, of which its theorem is. Every client takes part in every round.

    Args:
        federation: The clients and their data.
        model: The model.
        eps1: :math:`\varepsilon_1`, above 0. The paper's rule is a tenth of the largest norm of a
            client's update.
        eps2: :math:`\varepsilon_2`, above 0. The paper's range is from one to ten times
            :math:`\varepsilon_1`.
        solver: The local solver, with one learning rate.
        rounds: Rounds of each cluster, before it is looked at.
        local: The local method, with one value of its hyperparameters; FedAvg if None.
        most: Most clusters.
        seed: Seed.
        initial: Initial parameters, as in `simulate`.
        progress: Whether to show progress, as in `simulate`.

    Returns:
        The clusters, their models, and what each decision was based on.

    Raises:
        InputError: If an argument is out of range or refused by `simulate`.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> found = fp.cfl(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     eps1=0.1,
        ...     eps2=100.0,  # no client's gradient is so large
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=1),
        ...     rounds=2,
        ...     progress=False,
        ... )
        >>> found.labels.tolist()
        [0, 0, 0, 0]

    References:
        Sattler, Müller, Samek, `Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
        Optimization Under Privacy Constraints <https://arxiv.org/abs/1910.01991>`_, IEEE TNNLS
        2021, Algorithms 1 and 2.
    """
    require_number("eps1", eps1, positive=True)
    require_number("eps2", eps2, positive=True)
    require_whole("most", most)
    method = fedavg() if local is None else local
    require(isinstance(method, Algorithm), "local: it must be a method, such as fedprox.fedavg()")
    require(
        method.personal is None and method.first.probe is None and not method.pooled,
        f"local: {method.name} has no single model of all clients; it must be a method such as "
        "fedavg, fedprox or feddyn",
    )
    points = len(sweep_points(method, method.solver(solver)))
    require(points == 1, f"local: {method.name} has {points} sweep points; give one value of each")
    waiting = deque([(np.arange(len(federation)), initial)])
    ended: list[tuple[NDArray[np.int64], Params]] = []
    divisions: list[Division] = []
    while waiting:
        clients, start = waiting.popleft()
        cluster = federation.of_clients(clients)
        (run,) = simulate(
            cluster,
            model,
            method,
            solver=solver,
            cohort=Cohort(len(clients)),
            rounds=rounds,
            evaluation=Evaluation(every=rounds, gradients=False),
            seed=seed,
            initial=start,
            progress=progress,
        )
        room = len(waiting) + len(ended) + 1 < most
        division = _looked_at(cluster, clients, gradients(model, run.params, cluster), eps1, eps2)
        if division.parts is not None and not room:
            division = division._replace(parts=None, similarity=np.nan)
        divisions.append(division)
        if division.parts is None:
            ended.append((clients, run.params))
        else:
            waiting.extend((part, run.params) for part in division.parts)
    ended.sort(key=lambda each: int(each[0][0]))
    labels = np.zeros(len(federation), np.int64)
    for j, (clients, _) in enumerate(ended):
        labels[clients] = j
    models: Any = jax.tree.map(lambda *leaves: np.stack(leaves), *(params for _, params in ended))
    return Clustering(labels, models, _accuracy(federation, model, ended), tuple(divisions))


def _looked_at(
    cluster: Federation,
    clients: NDArray[np.int64],
    vectors: NDArray[np.float64],
    eps1: float,
    eps2: float,
) -> Division:
    """Whether a cluster is divided, by its clients' gradients (clients, numbers)."""
    lengths = np.linalg.norm(vectors, axis=1)
    mean = float(np.linalg.norm(cluster.shares @ vectors))
    largest = float(lengths.max())
    if len(clients) < 2 or not (mean < eps1 and largest > eps2):
        return Division(clients, mean, largest, None, np.nan)
    unit = vectors / np.maximum(lengths, 1e-300)[:, None]
    part, similarity = bipartition(unit @ unit.T)
    return Division(clients, mean, largest, (clients[~part], clients[part]), similarity)


def bipartition(similarities: NDArray[np.float64]) -> tuple[NDArray[np.bool_], float]:
    """The two parts whose largest similarity across is the least possible, and that similarity.

    Clients are joined in the order of their similarity until two groups are left (Algorithm 1).

    >>> part, across = bipartition(np.array([[1.0, 0.9, 0.1], [0.9, 1.0, -0.2], [0.1, -0.2, 1.0]]))
    >>> part.tolist(), across
    ([False, False, True], 0.1)
    """
    count = len(similarities)
    group, groups = np.arange(count), count
    rows, columns = np.triu_indices(count, 1)
    order = np.argsort(-similarities[rows, columns], kind="stable")
    for at in order:
        a, b = group[rows[at]], group[columns[at]]
        if a == b:
            continue
        if groups == 2:
            return group != group[0], float(similarities[rows[at], columns[at]])
        group[group == b] = a
        groups -= 1
    raise AssertionError  # two groups are always left


def _accuracy(
    federation: Federation, model: Model, clusters: list[tuple[NDArray[np.int64], Params]]
) -> float:
    """The share of test labels that are met by the model of each client's cluster."""
    met = 0.0
    for clients, params in clusters:
        accuracy = evaluate(model, params, federation).by_client["test_accuracy"][clients]
        labels = federation.test.labels[clients]
        met += float(np.where(labels > 0, accuracy, 0) @ labels)
    total = int(federation.test.labels.sum())
    return met / total if total else np.nan
