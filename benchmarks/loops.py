"""What users write instead: the same training as plain loops in NumPy and in torch.

Both see the same federation, the same cohorts and the same mini-batches as the library, and do the
same: local SGD on each client of the cohort, one after another, n_k-weighted averaging, and the
asked-for evaluation. Both are written with care for speed within what their style allows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox import Cohort, Federation, Solver
from fedprox.streams import Purpose, Shuffler

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
        mu: Weight of the proximal term.
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
        for k in Cohort(self.clients_per_round).draw(0, t, len(self.federation)).tolist():
            size = int(sizes[k])
            yield k, Shuffler(0, Purpose.BATCHES).orders(t, k, count=self.solver.epochs, size=size)


def numpy_loop(setting: Setting) -> tuple[float, float]:
    """Logistic regression with its gradient by hand; final training loss and test accuracy."""
    train, test = setting.federation.train, setting.federation.test
    x = train.x.reshape(len(train), -1)
    test_x = test.x.reshape(len(test), -1)
    classes = setting.federation.classes
    one_hot = np.eye(classes, dtype=np.float32)[train.y]
    offsets = train.offsets
    clients = [slice(offsets[k], offsets[k + 1]) for k in range(len(setting.federation))]
    client_x = [x[rows] for rows in clients]
    client_y = [one_hot[rows] for rows in clients]
    batch = setting.solver.batch_size
    assert isinstance(batch, int)
    rate = np.float32(setting.solver.learning_rate)
    pull = np.float32(rate * setting.mu)
    weight = np.zeros((x.shape[1], classes), np.float32)
    bias = np.zeros(classes, np.float32)

    def evaluate() -> tuple[float, float]:
        """Loss, accuracy, and the clients' gradients for variance and B(w)."""
        logits = x @ weight + bias
        logits -= logits.max(axis=1, keepdims=True)
        error = np.exp(logits)
        total = error.sum(axis=1, keepdims=True)
        loss = float(np.mean(np.log(total[:, 0]) - (logits * one_hot).sum(axis=1)))
        error /= total
        error -= one_hot
        gradients = [
            (own.T @ error[rows], error[rows].sum(axis=0))
            for own, rows in zip(client_x, clients, strict=True)
        ]
        # E_k ||g_k||^2 - ||E_k g_k||^2 costs less than the deviations, and less precision
        squares = sum(
            (np.vdot(a, a) + np.vdot(b, b)) / (rows.stop - rows.start)
            for (a, b), rows in zip(gradients, clients, strict=True)
        )
        mean = (x.T @ error / len(x), error.mean(axis=0))
        _ = squares / len(x) - sum(np.vdot(m, m) for m in mean)
        accuracy = float(np.mean((test_x @ weight + bias).argmax(axis=1) == test.y))
        return loss, accuracy

    result = evaluate()
    for t in range(setting.rounds):
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
        weight, bias = moved / mass, moved_bias / mass
        if (t + 1) % setting.evaluate_every == 0 or t + 1 == setting.rounds:
            result = evaluate()
    return result


def torch_loop(setting: Setting) -> tuple[float, float]:
    """A torch module with an SGD optimizer; final training loss and test accuracy."""
    import torch

    train, test = setting.federation.train, setting.federation.test
    x = torch.from_numpy(np.array(train.x.reshape(len(train), -1)))
    y = torch.from_numpy(train.y.astype(np.int64))
    test_x = torch.from_numpy(np.array(test.x.reshape(len(test), -1)))
    test_y = torch.from_numpy(test.y.astype(np.int64))
    bounds = train.offsets.tolist()
    batch = setting.solver.batch_size
    assert isinstance(batch, int)
    rate: Any = setting.solver.learning_rate
    cross_entropy = torch.nn.CrossEntropyLoss()
    model = torch.nn.Linear(x.shape[1], setting.federation.classes)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)

    def evaluate() -> tuple[float, float]:
        gradients = []
        for k in range(len(setting.federation)):
            rows = slice(bounds[k], bounds[k + 1])
            gradient = torch.autograd.grad(cross_entropy(model(x[rows]), y[rows]), parameters)
            gradients.append(torch.cat([g.flatten() for g in gradient]))
        share = torch.from_numpy(setting.federation.shares.astype(np.float32))
        stacked = torch.stack(gradients)
        (share[:, None] * (stacked - share @ stacked) ** 2).sum().item()
        with torch.no_grad():
            loss = cross_entropy(model(x), y).item()
            accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean().item()
        return loss, accuracy

    parameters = list(model.parameters())
    result = evaluate()
    for t in range(setting.rounds):
        start = [p.detach().clone() for p in parameters]
        moved, mass = [torch.zeros_like(p) for p in start], 0
        for k, epochs in setting.orders(t):
            with torch.no_grad():
                for p, s in zip(parameters, start, strict=True):
                    p.copy_(s)
            optimizer = torch.optim.SGD(parameters, lr=rate)
            n = bounds[k + 1] - bounds[k]
            own_x, own_y = x[bounds[k] : bounds[k + 1]], y[bounds[k] : bounds[k + 1]]
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
        if (t + 1) % setting.evaluate_every == 0 or t + 1 == setting.rounds:
            result = evaluate()
    return result
