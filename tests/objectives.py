"""The oracle of methods with objectives of their own: a plain NumPy loop in float64.

A network of two layers, whose losses are those of the papers, with derivatives by hand. It shares
with the library what defines a run (the random streams of cohorts and mini-batch orders) and
nothing of how it is computed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox import Cohort, Federation, Model, Rows, Solver
from tests.methods import batches_of

CLASSES, HIDDEN, FEATURES = 3, 4, 5
ROWS = [1, 7, 4, 9, 3, 6]

Matrix = NDArray[np.float64]
Params = dict[str, Matrix]


def federation(seed: int = 0) -> Federation:
    """Clients with few rows, most of which lack a class."""
    rng = np.random.default_rng(seed)
    clients = []
    for k, n in enumerate(ROWS):
        y = (
            rng.choice([k % CLASSES, (k + 1) % CLASSES], n)
            if k < 4
            else rng.integers(CLASSES, size=n)
        )
        clients.append((rng.normal(size=(n, FEATURES)) + y[:, None], y))
    return Federation.from_arrays(clients, test=clients)


def represent(w: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w["body"])


def apply(w: Any, x: jax.Array) -> jax.Array:
    outputs: jax.Array = represent(w, x) @ w["head"]
    return outputs


def first(key: jax.Array) -> Any:
    a, b = jax.random.split(key)
    body = jax.random.normal(a, (FEATURES, HIDDEN))
    return {"body": body, "head": jax.random.normal(b, (HIDDEN, CLASSES))}


MODEL = Model(first, apply, representation=represent)


def represented(w: Params, x: Matrix) -> Matrix:
    return np.tanh(x @ w["body"])


def probabilities(z: Matrix) -> Matrix:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def one_hot(y: Any) -> Matrix:
    return np.eye(CLASSES)[y]


class Method:
    """FedAvg, whose server averages by rows; others change what each row's loss is.

    Args:
        params: The first model.
        train: The clients' rows.
    """

    decay = 0.0
    """Weight decay of what is trained."""

    def __init__(self, params: Any, train: Rows) -> None:
        self.params = {name: np.asarray(a, float) for name, a in params.items()}
        self.train = train

    def by_logits(self, z: Matrix, x: Matrix, y: Any, k: int) -> Matrix:
        """The derivative of each row's loss by its logits z."""
        del x, k
        return probabilities(z) - one_hot(y)

    def by_representation(self, r: Matrix, x: Matrix, k: int) -> Matrix:
        """The derivative of each row's loss by its representation, apart from by its logits."""
        del x, k
        return 0 * r

    def gradient(self, w: Params, x: Matrix, y: Any, k: int) -> Params:
        r = represented(w, x)
        of_z = self.by_logits(r @ w["head"], x, y, k) / len(y)
        of_r = of_z @ w["head"].T + self.by_representation(r, x, k) / len(y)
        return {"body": x.T @ (of_r * (1 - r**2)), "head": r.T @ of_z}

    def descend(self, k: int, batches: list[NDArray[np.int32]], rate: float) -> Params:
        """What client k sends."""
        return self.steps(self.params, k, batches, rate, list(self.params))

    def steps(
        self, w: Params, k: int, batches: list[NDArray[np.int32]], rate: float, parts: list[str]
    ) -> Params:
        """SGD on some parts."""
        x, y = map(np.asarray, self.train.client(k))
        for batch in batches:
            g = self.gradient(w, x[batch].astype(float), y[batch], k)
            step = {name: rate * (g[name] + self.decay * w[name]) for name in parts}
            w = {name: w[name] - step.get(name, 0.0) for name in w}
        return w

    def finish(self, answers: dict[int, Params]) -> None:
        """The server's step."""
        weights = [float(self.train.sizes[k]) for k in answers]
        for name in self.params:
            taken = [w[name] for w in answers.values()]
            self.params[name] = np.average(taken, axis=0, weights=weights)


class FedLC(Method):
    """Zhang et al. 2022: logits less tau n_c^(-1/4), over the classes that the client has."""

    def __init__(self, params: Any, train: Rows, tau: float) -> None:
        super().__init__(params, train)
        self.tau = tau

    def by_logits(self, z: Matrix, x: Matrix, y: Any, k: int) -> Matrix:
        del x
        counts = np.bincount(self.train.client(k)[1], minlength=CLASSES)
        p, has = np.zeros_like(z), counts > 0
        p[:, has] = probabilities(z[:, has] - self.tau * counts[has] ** -0.25)
        return p - one_hot(y)


class Moon(Method):
    """Li et al. 2021: mu log(1 + exp((sim(r, last) - sim(r, global)) / tau)), the cosine sim."""

    def __init__(self, params: Any, train: Rows, mu: float, tau: float) -> None:
        super().__init__(params, train)
        self.mu, self.tau, self.last = mu, tau, dict[int, Params]()

    def by_representation(self, r: Matrix, x: Matrix, k: int) -> Matrix:
        def cosine(other: Params) -> tuple[Matrix, Matrix]:
            """Its value and its derivative by r."""
            b = represented(other, x)
            of_r, of_b = (np.linalg.norm(v, axis=1, keepdims=True) for v in (r, b))
            value = (r * b).sum(axis=1, keepdims=True) / (of_r * of_b)
            return value, b / (of_r * of_b) - value * r / of_r**2

        (near, by_near), (far, by_far) = map(cosine, (self.params, self.last.get(k, self.params)))
        wrong = 1 / (1 + np.exp((near - far) / self.tau))
        return np.asarray(self.mu / self.tau * wrong * (by_far - by_near))

    def finish(self, answers: dict[int, Params]) -> None:
        super().finish(answers)
        self.last |= answers


class FedGKD(Method):
    """Yao et al. 2021: gamma / 2 KL(teacher || w), the teacher the mean of the last models."""

    def __init__(self, params: Any, train: Rows, gamma: float, models: int) -> None:
        super().__init__(params, train)
        self.gamma, self.models, self.past = gamma, models, [dict(self.params)]

    def by_logits(self, z: Matrix, x: Matrix, y: Any, k: int) -> Matrix:
        last = self.past[-self.models :]
        teacher = {name: np.mean([w[name] for w in last], axis=0) for name in self.params}
        away = probabilities(z) - probabilities(represented(teacher, x) @ teacher["head"])
        return super().by_logits(z, x, y, k) + self.gamma / 2 * away

    def finish(self, answers: dict[int, Params]) -> None:
        super().finish(answers)
        self.past.append(dict(self.params))


class FedPer(Method):
    """Arivazhagan et al. 2019: heads stay on the clients; the loop of Collins et al. 2021 `apart`.

    Args:
        params: The first model.
        train: The clients' rows.
        apart: Whether the head is trained first, and then the body.
    """

    def __init__(self, params: Any, train: Rows, *, apart: bool = False) -> None:
        super().__init__(params, train)
        self.apart, self.first, self.heads = apart, self.params["head"], dict[int, Matrix]()

    def own(self, k: int) -> Params:
        return {"body": self.params["body"], "head": self.heads.get(k, self.first)}

    def descend(self, k: int, batches: list[NDArray[np.int32]], rate: float) -> Params:
        w = self.own(k)
        for parts in (["head"], ["body"]) if self.apart else (["head", "body"],):
            found = self.steps(w, k, batches, rate, parts)
            w = {**w, "head": found["head"]}
        self.heads[k] = w["head"]
        return {"body": found["body"], "head": self.first}


class Ifca(Method):
    """Ghosh et al. 2020: FedProx within the cluster whose model has the lowest loss.

    Args:
        starts: The first models.
        train: The clients' rows.
        mu: The proximal weight.
    """

    def __init__(self, starts: list[Any], train: Rows, mu: float = 0.0) -> None:
        super().__init__(starts[0], train)
        self.models = [Method(start, train) for start in starts]
        self.mu, self.chosen = mu, dict[int, int]()

    def nearest(self, k: int) -> int:
        x, y = map(np.asarray, self.train.client(k))
        losses = []
        for each in self.models:
            p = probabilities(represented(each.params, x.astype(float)) @ each.params["head"])
            losses.append(-np.log(p[np.arange(len(y)), y]).mean())
        return int(np.argmin(losses))

    def gradient(self, w: Params, x: Matrix, y: Any, k: int) -> Params:
        plain, anchor = super().gradient(w, x, y, k), self.models[self.chosen[k]].params
        return {name: plain[name] + self.mu * (w[name] - anchor[name]) for name in w}

    def descend(self, k: int, batches: list[NDArray[np.int32]], rate: float) -> Params:
        self.chosen[k] = self.nearest(k)
        self.params = self.models[self.chosen[k]].params
        return super().descend(k, batches, rate)

    def finish(self, answers: dict[int, Params]) -> None:
        for j, each in enumerate(self.models):
            if own := {k: w for k, w in answers.items() if self.chosen[k] == j}:
                each.finish(own)


def run(method: Method, *, solver: Solver, cohort: Cohort, rounds: int, seed: int) -> Params:
    """The model after some rounds of SGD for whole epochs."""
    assert isinstance(solver.learning_rate, float)
    train, method.decay = method.train, solver.weight_decay
    for t in range(rounds):
        answers = {}
        for k in map(int, cohort.draw(seed, t, train.offsets).clients):
            rows = int(train.sizes[k])
            batches = batches_of(seed, t, k, rows, solver, int(solver.steps_for(rows)))
            answers[k] = method.descend(k, batches, solver.learning_rate)
        method.finish(answers)
    return method.params
