"""The same training as plain loops in NumPy and in torch, as users would write them.

Both loops use the federation, the cohorts and the mini-batches of the library, and do the same
work: local SGD on the clients of the cohort one after another, averaging weighted by n_k, and the
same evaluation. Both are optimized as far as a plain loop allows.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox import Cohort, Federation, Solver
from fedprox.streams import Purpose, Streams

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Setting:
    """A benchmark: federation, solver, cohort size, rounds and how to evaluate.

    Attributes:
        federation: The clients.
        solver: Plain SGD with one learning rate.
        clients_per_round: K.
        rounds: Rounds T.
        evaluate_every: Rounds between evaluations.
        mu: Proximal weight.
    """

    federation: Federation
    solver: Solver
    clients_per_round: int
    rounds: int
    evaluate_every: int
    mu: float

    def orders(self, t: int) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Each client of round t with the order of its rows in each epoch."""
        assert self.solver.epochs is not None
        sizes = self.federation.train.sizes
        for k in (
            Cohort(self.clients_per_round)
            .draw(0, t, self.federation.train.offsets)
            .clients.tolist()
        ):
            size = int(sizes[k])
            yield (
                k,
                Streams(0, Purpose.BATCHES)
                .orders([t], [k], counts=[self.solver.epochs], sizes=[size])
                .reshape(-1, size),
            )


class Timing(NamedTuple):
    """Seconds of the rounds, seconds of the evaluations, and the final training loss."""

    rounds: float
    evaluations: float
    loss: float


def _alternate(
    setting: Setting, one_round: Callable[[int], None], evaluate: Callable[[], float]
) -> Timing:
    """Run and time rounds and evaluations; the initial model is evaluated too."""
    rounds, clock = 0.0, time.perf_counter
    begin = clock()
    loss = evaluate()
    for t in range(setting.rounds):
        started = clock()
        one_round(t)
        rounds += clock() - started
        if (t + 1) % setting.evaluate_every == 0 or t + 1 == setting.rounds:
            loss = evaluate()
    return Timing(rounds, clock() - begin - rounds, loss)


def numpy_loop(setting: Setting) -> Timing:
    """Logistic regression with a hand-written gradient."""
    federation, batch = setting.federation, setting.solver.batch_size
    assert isinstance(batch, int)
    train, test = federation.train, federation.test
    x = np.asarray(train.x).reshape(len(train), -1)
    test_x = np.asarray(test.x).reshape(len(test), -1)
    one_hot = np.eye(federation.classes, dtype=np.float32)[train.y]
    bounds = train.offsets.tolist()
    clients = [slice(*pair) for pair in itertools.pairwise(bounds)]
    client_x, client_y = [x[rows] for rows in clients], [one_hot[rows] for rows in clients]
    shares = federation.shares.astype(np.float32)
    (learning_rate,) = setting.solver.rates
    rate = np.float32(learning_rate)
    pull = np.float32(rate * setting.mu)
    weight = np.zeros((x.shape[1], federation.classes), np.float32)
    bias = np.zeros(federation.classes, np.float32)
    gradients = np.empty((len(clients), *weight.T.shape), np.float32)
    bias_gradients = np.empty((len(clients), *bias.shape), np.float32)

    def evaluate() -> float:
        """Training loss, test accuracy, and gradient variance from all clients' gradients."""
        logits = x @ weight
        logits += bias
        logits -= logits.max(axis=1, keepdims=True)
        error = np.exp(logits)
        total = error.sum(axis=1, keepdims=True)
        loss = float(np.log(total).mean() - np.einsum("ij,ij->", logits, one_hot) / len(x))
        error /= total
        error -= one_hot
        for k, rows in enumerate(clients):
            own = error[rows] / (rows.stop - rows.start)
            np.matmul(own.T, client_x[k], out=gradients[k])
            bias_gradients[k] = own.sum(axis=0)
        # E_k ||g_k||^2 - ||E_k g_k||^2 is faster than deviations, but less precise
        variance = 0.0
        for all_of_them in (gradients, bias_gradients):
            flat = all_of_them.reshape(len(clients), -1)
            mean = shares @ flat
            variance += float(shares @ np.einsum("ij,ij->i", flat, flat) - mean @ mean)
        np.mean((test_x @ weight + bias).argmax(axis=1) == test.y)
        return loss

    def one_round(t: int) -> None:
        moved, moved_bias, mass = np.zeros_like(weight), np.zeros_like(bias), 0
        for k, epochs in setting.orders(t):
            w, b, n = weight.copy(), bias.copy(), len(client_x[k])
            for order in epochs:
                shuffled, labels = client_x[k][order], client_y[k][order]
                for i in range(0, n, batch):
                    rows = shuffled[i : i + batch]
                    z = rows @ w
                    z += b
                    z -= z.max(axis=1, keepdims=True)
                    np.exp(z, out=z)
                    z /= z.sum(axis=1, keepdims=True)
                    z -= labels[i : i + batch]
                    z *= rate / len(rows)
                    if setting.mu:
                        w -= pull * (w - weight)
                        b -= pull * (b - bias)
                    w -= rows.T @ z
                    b -= z.sum(axis=0)
            moved += n * w
            moved_bias += n * b
            mass += n
        np.divide(moved, mass, out=weight)
        np.divide(moved_bias, mass, out=bias)

    return _alternate(setting, one_round, evaluate)


def torch_loop(setting: Setting) -> Timing:
    """A torch module with an SGD optimizer."""
    import torch

    federation, batch = setting.federation, setting.solver.batch_size
    assert isinstance(batch, int)
    train, test = federation.train, federation.test
    x = torch.from_numpy(np.array(train.x).reshape(len(train), -1))
    y = torch.from_numpy(train.y.astype(np.int64))
    test_x = torch.from_numpy(np.array(test.x).reshape(len(test), -1))
    test_y = torch.from_numpy(test.y.astype(np.int64))
    clients = [slice(*pair) for pair in itertools.pairwise(train.offsets.tolist())]
    share = torch.from_numpy(federation.shares.astype(np.float32))
    rate: Any = setting.solver.learning_rate
    cross_entropy = torch.nn.CrossEntropyLoss()
    model = torch.nn.Linear(x.shape[1], federation.classes)
    parameters = list(model.parameters())
    for parameter in parameters:
        torch.nn.init.zeros_(parameter)

    def evaluate() -> float:
        """Training loss, test accuracy, and gradient variance from all clients' gradients."""
        gradients = []
        for rows in clients:
            gradient = torch.autograd.grad(cross_entropy(model(x[rows]), y[rows]), parameters)
            gradients.append(torch.cat([g.flatten() for g in gradient]))
        stacked = torch.stack(gradients)
        mean = share @ stacked
        (share @ (stacked * stacked).sum(dim=1) - mean @ mean).item()
        with torch.no_grad():
            (model(test_x).argmax(dim=1) == test_y).float().mean().item()
            return float(cross_entropy(model(x), y))

    def one_round(t: int) -> None:
        start = [p.detach().clone() for p in parameters]
        moved, mass = [torch.zeros_like(p) for p in start], 0
        for k, epochs in setting.orders(t):
            with torch.no_grad():
                for p, s in zip(parameters, start, strict=True):
                    p.copy_(s)
            optimizer = torch.optim.SGD(parameters, lr=rate)
            own_x, own_y = x[clients[k]], y[clients[k]]
            n = len(own_x)
            for order in epochs:
                shuffled = torch.from_numpy(order.astype(np.int64))
                for i in range(0, n, batch):
                    rows = shuffled[i : i + batch]
                    optimizer.zero_grad()
                    loss = cross_entropy(model(own_x[rows]), own_y[rows])
                    if setting.mu:
                        apart = sum(
                            ((p - s) ** 2).sum() for p, s in zip(parameters, start, strict=True)
                        )
                        loss = loss + setting.mu / 2 * apart
                    loss.backward()
                    optimizer.step()
            for m, p in zip(moved, parameters, strict=True):
                m += n * p.detach()
            mass += n
        with torch.no_grad():
            for p, m in zip(parameters, moved, strict=True):
                p.copy_(m / mass)

    return _alternate(setting, one_round, evaluate)
