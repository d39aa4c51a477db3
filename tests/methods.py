"""Methods whose clients and servers remember, as plain NumPy loops in float64: the tests' oracle.

Written down from the papers, with every client's state in one array. It shares with the library
what defines a run (the random streams of cohorts, stragglers and mini-batch orders) and nothing of
how it is computed. Clients hold rows of quadratics, loss(w; A, b) = 1/2 (w - b)' A (w - b).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox import Cohort, Federation, Population, Rows, Solver, Systems
from fedprox.streams import Purpose, Streams

Vector = NDArray[np.float64]


class Problem(NamedTuple):
    """h(w) = F(w) + <linear, w> + mu/2 ||w - anchor||^2.

    With a reference r, steps use grad F(w; z) - grad F(r; z) + grad F(r) for a mini-batch z, and
    with a radius rho grad F(w + rho g / ||g||; z) for g = grad F(w; z).
    """

    linear: Vector
    mu: float
    anchor: Vector
    reference: Vector | None = None
    rho: float = 0.0


class Answer(NamedTuple):
    """What a client found, in how many steps."""

    params: Vector
    steps: int


Answers = Mapping[int, Answer]
Gradients = Callable[[Vector], Vector]
"""w (d,) -> grad F_k(w) of every client (clients, d)."""


class Method(ABC):
    """A server and its clients: `params` is the model that is sent out."""

    drop = False
    by_rows = False
    reads = False
    """Whether clients pass over their rows before their steps."""
    exchanges = ""
    """Who first sends gradients, within a quarter of a deadline: "own", the round's clients, or
    "another" cohort."""

    def __init__(self, params: Vector, clients: int) -> None:
        self.params = params.astype(float)
        self.zero = np.zeros_like(self.params)
        self.clients = clients

    def begin(self, workers: list[int], gradients: Gradients) -> None:  # noqa: B027 (optional)
        """Begin a round with the gradients of those who send them first, or else of who works."""

    def problem(self, k: int) -> Problem:
        del k
        return Problem(self.zero, 0.0, self.zero)

    @abstractmethod
    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        """End a round in which these clients, and at least one, have answered."""


class FedProx(Method):
    """Li et al. 2020, Algorithm 2; FedAvg for mu = 0 but for stragglers."""

    def __init__(
        self,
        params: Vector,
        clients: int,
        mu: float = 0.0,
        drop: bool = False,
        by_rows: bool = True,
    ) -> None:
        super().__init__(params, clients)
        self.mu, self.drop, self.by_rows = mu, drop, by_rows

    def problem(self, k: int) -> Problem:
        del k
        return Problem(self.zero, self.mu, self.params)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del rate, gradients
        weights = [sizes[k] if self.by_rows else 1.0 for k in answers]
        found = [answer.params for answer in answers.values()]
        self.params = np.asarray(np.average(found, axis=0, weights=weights))


class FedDane(FedProx):
    """Li et al. 2019, Algorithm 2."""

    reads = True
    exchanges = "another"

    def __init__(self, params: Vector, federation: Federation, mu: float) -> None:
        super().__init__(params, len(federation), mu)
        self.sizes = federation.train.sizes

    def begin(self, workers: list[int], gradients: Gradients) -> None:
        self.own = gradients(self.params)
        self.mean = np.average(self.own[workers], axis=0, weights=self.sizes[workers])

    def problem(self, k: int) -> Problem:
        return Problem(self.mean - self.own[k], self.mu, self.params)


class FedSam(FedProx):
    """Qu et al. 2022, Algorithm 1."""

    def __init__(self, params: Vector, clients: int, rho: float) -> None:
        super().__init__(params, clients, drop=True)
        self.rho = rho

    def problem(self, k: int) -> Problem:
        del k
        return Problem(self.zero, 0.0, self.zero, rho=self.rho)


class FedDC(Method):
    """Gao et al. 2022, Algorithm 1, with g_k of each client's own steps and rate."""

    by_rows = True

    def __init__(self, params: Vector, clients: int, alpha: float) -> None:
        super().__init__(params, clients)
        self.alpha = alpha
        self.drift, self.last = (np.zeros((clients, *self.params.shape)) for _ in range(2))
        self.weights = np.full(clients, 1 / clients)

    def problem(self, k: int) -> Problem:
        linear = self.last[k] - self.weights @ self.last
        return Problem(linear, self.alpha, self.params - self.drift[k])

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del gradients
        self.weights = sizes / sizes.sum()
        for k, (w, steps) in answers.items():
            self.drift[k] += w - self.params
            self.last[k] = (w - self.params) / (rate * steps)
        taken = [answer.params for answer in answers.values()]
        mean = np.average(taken, axis=0, weights=[sizes[k] for k in answers])
        self.params = mean + self.weights @ self.drift


class FedDyn(Method):
    """Acar et al. 2021, Algorithm 1; `weights` scale alpha for each client."""

    def __init__(
        self, params: Vector, clients: int, alpha: float, weights: Vector | None = None
    ) -> None:
        super().__init__(params, clients)
        self.alpha = alpha
        self.alphas = alpha * (np.ones(clients) if weights is None else weights)
        self.h = np.zeros_like(self.params)
        self.g = np.zeros((clients, *self.params.shape))

    def problem(self, k: int) -> Problem:
        return Problem(-self.g[k], self.alphas[k], self.params)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del sizes, rate, gradients
        for k, answer in answers.items():
            self.g[k] -= self.alphas[k] * (answer.params - self.params)
        moved = sum(answer.params - self.params for answer in answers.values())
        self.h = self.h - self.alpha / self.clients * moved
        self.params = np.mean([a.params for a in answers.values()], axis=0) - self.h / self.alpha


class Scaffold(Method):
    """Karimireddy et al. 2020, Algorithm 1."""

    def __init__(
        self, params: Vector, clients: int, option: int = 2, server_rate: float = 1.0
    ) -> None:
        super().__init__(params, clients)
        self.option, self.server_rate = option, server_rate
        self.reads = option == 1
        self.c = np.zeros_like(self.params)
        self.c_k = np.zeros((clients, *self.params.shape))

    def problem(self, k: int) -> Problem:
        return Problem(self.c - self.c_k[k], 0.0, self.zero)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del sizes
        here = gradients(self.params)
        change = {}
        for k, (w, steps) in answers.items():
            by_path = self.c_k[k] - self.c + (self.params - w) / (steps * rate)
            change[k] = (here[k] if self.option == 1 else by_path) - self.c_k[k]
        moved = np.mean([answer.params - self.params for answer in answers.values()], axis=0)
        self.params = self.params + self.server_rate * moved
        self.c = self.c + len(answers) / self.clients * np.mean(list(change.values()), axis=0)
        for k, d in change.items():
            self.c_k[k] += d


class FedSplit(Method):
    """Pathak and Wainwright 2020, Algorithm 1; in part as Acar et al. 2021, A.4."""

    def __init__(self, params: Vector, clients: int, s: float, average: str = "active") -> None:
        super().__init__(params, clients)
        self.s, self.average = s, average
        self.z = np.tile(self.params, (clients, 1))

    def problem(self, k: int) -> Problem:
        return Problem(self.zero, 1 / self.s, 2 * self.params - self.z[k])

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del sizes, rate, gradients
        for k, answer in answers.items():
            self.z[k] += 2 * (answer.params - self.params)
        who = list(answers) if self.average == "active" else slice(None)
        self.params = self.z[who].mean(axis=0)


class Rule(ABC):
    """What a server makes of the model and of the direction in which a method moves it."""

    @abstractmethod
    def step(self, params: Vector, direction: Vector, squares: float) -> Vector:
        """The next model, given the weighted mean of ||w_k - w^t||^2."""


class Momentum(Rule):
    """FedAvgM (Hsu et al. 2019)."""

    def __init__(self, rate: float, momentum: float = 0.9) -> None:
        self.rate, self.momentum = rate, momentum
        self.velocity: Vector = np.zeros(1)

    def step(self, params: Vector, direction: Vector, squares: float) -> Vector:
        del squares
        self.velocity = self.momentum * self.velocity + direction
        return params + self.rate * self.velocity


class Adam(Rule):
    """Adam, with the bias correction of Kingma and Ba 2015."""

    def __init__(self, rate: float) -> None:
        self.rate, self.t = rate, 0
        self.m: Vector = np.zeros(1)
        self.v: Vector = np.zeros(1)

    def step(self, params: Vector, direction: Vector, squares: float) -> Vector:
        del squares
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * direction
        self.v = 0.999 * self.v + 0.001 * direction**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return np.asarray(params + self.rate * m / (np.sqrt(v) + 1e-8))


class Adagrad(Rule):
    """Adagrad, with optax's first sum of squares."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.sums: Vector = np.full(1, 0.1)

    def step(self, params: Vector, direction: Vector, squares: float) -> Vector:
        del squares
        self.sums = self.sums + direction**2
        return np.asarray(params + self.rate * direction / np.sqrt(self.sums + 1e-7))


class Extrapolation(Rule):
    """FedExP's step (Jhunjhunwala et al. 2023)."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def step(self, params: Vector, direction: Vector, squares: float) -> Vector:
        scale = squares / (2 * (float(direction @ direction) + self.epsilon))
        return params + max(1.0, scale) * direction


class Ruled(Method):
    """A method whose server takes the steps of a rule along its own: the product of the two."""

    def __init__(self, inner: Method, rule: Rule) -> None:
        super().__init__(inner.params, inner.clients)
        self.inner, self.rule = inner, rule
        self.drop, self.by_rows = inner.drop, inner.by_rows
        self.reads, self.exchanges = inner.reads, inner.exchanges

    def begin(self, workers: list[int], gradients: Gradients) -> None:
        self.inner.begin(workers, gradients)

    def problem(self, k: int) -> Problem:
        return self.inner.problem(k)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        before = self.params
        found = np.array([answer.params - before for answer in answers.values()])
        weights = [sizes[k] if self.by_rows else 1.0 for k in answers]
        squares = float(np.average((found**2).sum(axis=1), weights=weights))
        self.inner.finish(answers, sizes, rate, gradients)
        self.params = self.rule.step(before, self.inner.params - before, squares)
        self.inner.params = self.params


class FedCM(Method):
    """Xu et al. 2021, Algorithm 1, in terms of eta = (the solver's rate) / alpha."""

    def __init__(self, params: Vector, clients: int, alpha: float) -> None:
        super().__init__(params, clients)
        self.alpha, self.last = alpha, self.zero

    def problem(self, k: int) -> Problem:
        del k
        return Problem((1 - self.alpha) / self.alpha * self.last, 0.0, self.zero)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del sizes, gradients
        moved = np.sum([self.params - answer.params for answer in answers.values()], axis=0)
        self.last = moved / (rate / self.alpha * sum(a.steps for a in answers.values()))
        self.params = self.params - moved / len(answers)


class FedNova(Method):
    """Wang et al. 2020: plain SGD with a proximal term; the a_k are written out."""

    by_rows = True

    def __init__(self, params: Vector, clients: int, mu: float = 0.0) -> None:
        super().__init__(params, clients)
        self.mu = mu

    def problem(self, k: int) -> Problem:
        del k
        return Problem(self.zero, self.mu, self.params)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del gradients
        n = sum(sizes[k] for k in answers)
        tau, direction = 0.0, self.zero
        for k, (w, steps) in answers.items():
            a = np.array([(1 - rate * self.mu) ** (steps - 1 - j) for j in range(steps)])
            norm = np.abs(a).sum()
            tau += sizes[k] / n * norm
            direction = direction + sizes[k] / n * (self.params - w) / norm
        self.params = self.params - tau * direction


class FedAdmm(Method):
    """Gong et al. 2022, Algorithm 1."""

    def __init__(self, params: Vector, clients: int, rho: float, server_rate: float) -> None:
        super().__init__(params, clients)
        self.rho, self.server_rate = rho, server_rate
        self.w_k = np.tile(self.params, (clients, 1))
        self.dual = np.zeros((clients, *self.params.shape))

    def problem(self, k: int) -> Problem:
        return Problem(self.dual[k], self.rho, self.params)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del sizes, rate, gradients
        before = self.w_k + self.dual / self.rho
        for k, answer in answers.items():
            self.w_k[k] = answer.params
            self.dual[k] += self.rho * (answer.params - self.params)
        change = (self.w_k + self.dual / self.rho - before)[list(answers)].mean(axis=0)
        self.params = self.params + self.server_rate * change


class QFfl(Method):
    """Li et al. 2020, Fair Resource Allocation, Algorithm 2."""

    drop = True
    reads = True

    def __init__(self, params: Vector, federation: Federation, q: float) -> None:
        super().__init__(params, len(federation))
        self.q, self.rows = q, [rows_of(federation, k) for k in range(len(federation))]

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del sizes, gradients
        delta, bound = self.zero, 0.0
        for k, answer in answers.items():
            x, y = self.rows[k]
            away = self.params - y
            loss = np.einsum("bi,bij,bj->b", away, x, away).mean() / 2
            g = (self.params - answer.params) / rate
            delta = delta + loss**self.q * g
            bound += self.q * loss ** (self.q - 1) * (g @ g) + loss**self.q / rate
        self.params = self.params - delta / bound


class Mime(Method):
    """Karimireddy et al. 2021, Algorithm 1, with momentum: eta (1 - beta) is the solver's rate."""

    def __init__(
        self,
        params: Vector,
        clients: int,
        beta: float,
        *,
        lite: bool = False,
        whole_gradients: bool = False,
    ) -> None:
        super().__init__(params, clients)
        self.beta, self.lite, self.whole = beta, lite, whole_gradients
        self.exchanges, self.reads = "" if lite else "own", lite
        self.m = np.zeros_like(self.params)

    def begin(self, workers: list[int], gradients: Gradients) -> None:
        self.own = gradients(self.params)
        self.c = self.own[workers].mean(axis=0)

    def problem(self, k: int) -> Problem:
        """Steps y - eta ((1 - beta) (g(y; z) - g(x; z) + c) + beta m)."""
        momentum = self.beta / (1 - self.beta) * self.m
        if self.lite:
            return Problem(momentum, 0.0, self.zero)
        linear = self.c - self.own[k] + momentum
        return Problem(linear, 0.0, self.zero, None if self.whole else self.params)

    def finish(self, answers: Answers, sizes: Vector, rate: float, gradients: Gradients) -> None:
        del sizes, rate, gradients
        self.params = np.mean([answer.params for answer in answers.values()], axis=0)
        self.m = (1 - self.beta) * self.c + self.beta * self.m


class Path(NamedTuple):
    """Three models after 0, 1, ... rounds, each (rounds + 1, d)."""

    server: Vector
    cohort: Vector
    clients: Vector


def gradient(w: Vector, x: Vector, y: Vector) -> Vector:
    """The mean gradient of some rows."""
    return np.asarray(np.einsum("bij,bj->i", x, w - y) / len(y))


def rows_of(federation: Federation, k: int) -> tuple[Vector, Vector]:
    x, y = federation.train.client(k)
    return np.asarray(x, float), np.asarray(y, float)


def exact(x: Vector, y: Vector, problem: Problem) -> Vector:
    """argmin h."""
    a = x.mean(axis=0)
    ab = np.einsum("bij,bj->i", x, y) / len(y)
    right = ab - problem.linear + problem.mu * problem.anchor
    return np.linalg.solve(a + problem.mu * np.eye(len(ab)), right)


def minimiser(federation: Federation, *, by_rows: bool = False) -> Vector:
    """argmin of the plain mean of the F_k, or of their mean weighted by n_k."""
    clients = [rows_of(federation, k) for k in range(len(federation))]
    weights = [len(y) if by_rows else 1 for _, y in clients]
    a = sum(n * x.mean(axis=0) for n, (x, _) in zip(weights, clients, strict=True))
    ab = sum(
        n * np.einsum("bij,bj->i", x, y) / len(y)
        for n, (x, y) in zip(weights, clients, strict=True)
    )
    return np.linalg.solve(a, ab)


def objective(federation: Federation, w: Vector) -> float:
    """f(w), the mean over all rows."""
    x, y = np.asarray(federation.train.x, float), np.asarray(federation.train.y, float)
    return float(0.5 * np.einsum("bi,bij,bj->", w - y, x, w - y) / len(y))


def batches_of(
    seed: int, t: int, k: int, rows: int, solver: Solver, steps: int
) -> list[NDArray[np.int32]]:
    """The rows of each of a client's mini-batches in a round."""
    size = rows if solver.batch_size == "all" else solver.batch_size
    epochs = -(-steps // -(-rows // size))
    streams = Streams(seed, Purpose.BATCHES)
    orders = streams.orders([t], [k], counts=[epochs], sizes=[rows]).reshape(epochs, rows)
    return [order[i : i + size] for order in orders for i in range(0, rows, size)][:steps]


def descend(
    start: Vector,
    problem: Problem,
    rows: tuple[Vector, Vector],
    batches: list[NDArray[np.int32]],
    solver: Solver,
    rate: float,
) -> Vector:
    """SGD on h, one step for each mini-batch."""
    (x, y), w = rows, start
    for batch in batches:
        at = w
        if problem.rho:
            g = gradient(w, x[batch], y[batch])
            at = w + problem.rho * g / np.linalg.norm(g)
        step = gradient(at, x[batch], y[batch]) + problem.linear + problem.mu * (w - problem.anchor)
        if problem.reference is not None:
            r = problem.reference
            step = step - gradient(r, x[batch], y[batch]) + gradient(r, x, y)
        if solver.clip is not None:
            step = step * min(1.0, solver.clip / float(np.linalg.norm(step)))
        w = w - rate * (step + solver.weight_decay * w)
    return w


def in_time(
    method: Method,
    population: Population,
    deadline: float,
    solver: Solver,
    first: list[int],
    chosen: list[int],
    train: Rows,
) -> tuple[list[int], Vector]:
    """Whose gradients arrive in time, and the steps for which clients have time.

    Devices differ in their speed alone.
    """
    seconds = population.step_seconds
    assert isinstance(seconds, list)
    reading = [
        s * solver.steps_per_epoch(int(n)) for s, n in zip(seconds, train.sizes, strict=True)
    ]
    heard = [k for k in first if reading[k] <= deadline / 4]
    before = min(deadline / 4, max(reading[k] for k in first)) if method.exchanges else 0.0
    steps = []
    for k in chosen:
        waits = k not in heard if method.exchanges == "own" else bool(first) and not heard
        left = deadline - before - (reading[k] if method.reads else 0.0)
        steps.append(0.0 if waits else max(0.0, left // seconds[k]))
    return heard, np.array(steps)


def run(
    method: Method,
    federation: Federation,
    *,
    cohort: Cohort,
    rounds: int,
    solver: Solver | None = None,
    systems: Systems = Systems(),  # noqa: B008 (frozen)
    population: Population | None = None,
    seed: int = 0,
    faulty: Container[int] = (),
) -> Path:
    """Some rounds of a method, with exact local answers where no solver is given.

    What `faulty` clients send is left out.
    """
    train = federation.train
    sizes = train.sizes.astype(float)
    rows = [rows_of(federation, k) for k in range(len(federation))]

    def gradients(w: Vector) -> Vector:
        return np.array([gradient(w, *each) for each in rows])

    last = np.tile(method.params, (len(federation), 1))
    weights = sizes if method.by_rows else np.ones(len(federation))
    path = [(method.params, method.params, method.params)]
    for t in range(rounds):
        chosen = cohort.draw(seed, t, train.offsets).clients
        answers, rate = {}, 0.0
        if solver is None:
            for k in (k for k in map(int, chosen) if k not in faulty):
                answers[k] = Answer(exact(*rows[k], method.problem(k)), 1)
        else:
            assert isinstance(solver.learning_rate, float)
            rate = solver.learning_rate * solver.learning_rate_decay**t
            first, time = list[int](), np.full(len(chosen), np.inf)
            if method.exchanges:
                purpose = Purpose.COHORT if method.exchanges == "own" else Purpose.GRADIENT_COHORT
                first = cohort.draw(seed, t, train.offsets, purpose).clients.tolist()
            if population is not None and systems.deadline is not None:
                limits = population, systems.deadline, solver
                first, time = in_time(method, *limits, first, chosen.tolist(), train)
            work = systems.work(seed, t, chosen, train.sizes[chosen], solver, in_time=time)
            everyone = zip(map(int, chosen), map(int, work.steps), work.stragglers, strict=True)
            doing = {
                k: steps
                for k, steps, late in everyone
                if steps and not (method.drop and late) and k not in faulty
            }
            if doing:
                method.begin(first if method.exchanges == "another" else list(doing), gradients)
            for k, steps in doing.items():
                batches = batches_of(seed, t, k, len(rows[k][1]), solver, steps)
                found = descend(method.params, method.problem(k), rows[k], batches, solver, rate)
                answers[k] = Answer(found, steps)
        if answers:
            who = list(answers)
            last[who] = [a.params for a in answers.values()]
            method.finish(answers, sizes, rate, gradients)
            mean = np.average(last[who], axis=0, weights=weights[who])
        else:
            mean = path[-1][1]
        path.append((method.params, mean, np.average(last, axis=0, weights=weights)))
    return Path(*(np.array(models) for models in zip(*path, strict=True)))
