"""The library's methods driven by hand: their pure functions in a loop, so that state can be seen,
and whole runs of them beside the oracle's.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedprox as fp
from fedprox.algorithms.base import ClientContext, Solution
from fedprox.algorithms.reporting import Evaluated
from tests import methods
from tests.methods import Vector
from tests.quadratics import quadratic_model, ragged_quadratics

CLIENTS = 20
ROWS = [1 + (7 * k) % 9 for k in range(CLIENTS)]
START = np.array([2.0, -1.0, 0.5])

SOME = fp.Cohort(2)
"""Ten per cent of the clients."""

SLOW = fp.Systems(deadline=3.5)
DEVICES = fp.Population(step_seconds=[(9.0, 1.0, 9.0, 0.1)[k % 4] for k in range(CLIENTS)])
"""Half of the clients never finish a step, a quarter do three at most, a quarter finish."""


def ragged_runs(methods: Any, **changes: Any) -> list[fp.Run]:
    """Runs on the clients of `ROWS`, few of which take part, with changes."""
    options: dict[str, Any] = {
        "federation": ragged_quadratics(0, ROWS),
        "model": quadratic_model(START),
        "methods": methods,
        "solver": fp.Solver([0.05, 0.1], 3, epochs=2),
        "cohort": fp.Cohort(5),
        "systems": SLOW,
        "population": DEVICES,
        "rounds": 11,
        "evaluation": fp.Evaluation(every=3, gradients=False),
    }
    return fp.simulate(**options | changes)


class Local(NamedTuple):
    """What a client found, in how many steps."""

    params: Any
    steps: int = 1


class ByHand:
    """A server and its clients, by the functions of an `Algorithm`."""

    def __init__(
        self, algorithm: fp.Algorithm, federation: fp.Federation, start: Vector = START
    ) -> None:
        self.algorithm, self.federation = algorithm, federation
        self.rows = [methods.rows_of(federation, k) for k in range(len(federation))]
        first = jnp.asarray(start, jnp.float32)
        assert algorithm.client.state is not None
        self.state = algorithm.server.init(first)
        self.nothing = algorithm.client.state(first)
        self.client_state = [self.nothing] * len(federation)

    @property
    def params(self) -> Vector:
        return np.asarray(self.algorithm.server.params(self.state), float)

    def hparams(self, participation: float = 1.0, learning_rate: float = 0.1) -> dict[str, Any]:
        own = {name: jnp.float32(value[0]) for name, value in self.algorithm.hparams.items()}  # type: ignore[index]
        return own | {
            "learning_rate": jnp.float32(learning_rate),
            "participation": jnp.float32(participation),
        }

    def context(self, k: int) -> ClientContext:
        sizes = self.federation.train.sizes
        gradient = jnp.asarray(methods.gradient(self.params, *self.rows[k]), jnp.float32)
        return ClientContext(gradient, self.client_state[k], jnp.float32(sizes[k] / sizes.mean()))

    def posed(self, k: int, context: ClientContext | None = None) -> methods.Problem:
        """What client k is asked to minimise, from where."""
        problem = self.algorithm.subproblem(self.state, self.hparams(), context or self.context(k))
        np.testing.assert_array_equal(problem.start, np.float32(self.params))
        zero = np.zeros(len(START))
        linear = zero if problem.linear is None else np.asarray(problem.linear, float)
        if problem.mu is None:
            return methods.Problem(linear, 0.0, zero)
        return methods.Problem(linear, float(problem.mu), np.asarray(problem.anchor, float))

    def exact(self, k: int) -> Local:
        return Local(methods.exact(*self.rows[k], self.posed(k)))

    def round(
        self,
        cohort: Iterable[int],
        solve: Callable[[int], Local] | None = None,
        learning_rate: float = 0.1,
    ) -> dict[int, Vector]:
        """One round; returns the cohort's answers."""
        sizes = self.federation.train.sizes
        counts = sizes if self.algorithm.average == "rows" else np.ones_like(sizes)
        cohort = list(cohort)
        hparams = self.hparams(counts[cohort].sum() / counts.sum(), learning_rate)
        found = {k: (solve or self.exact)(k) for k in cohort}
        messages, client_state = [], {}
        for k, (params, steps) in found.items():
            context = self.context(k)
            problem = self.algorithm.subproblem(self.state, hparams, context)
            solution = Solution(problem, jnp.asarray(params, jnp.float32), jnp.int32(steps))
            message, client_state[k] = self.algorithm.client.message(
                self.state, hparams, context, solution
            )
            weight = counts[k] / counts[cohort].sum()
            messages.append(jax.tree.map(lambda m, weight=weight: weight * m, message))
        mean = jax.tree.map(lambda *parts: sum(parts), *messages)
        self.state = self.algorithm.server.update(self.state, mean, hparams)
        for k, value in client_state.items():
            self.client_state[k] = value
        return {k: np.asarray(local.params, float) for k, local in found.items()}


def beside_the_oracle(
    algorithm: fp.Algorithm,
    oracle: Callable[[dict[str, float], fp.Federation], methods.Method],
    *,
    rounds: int = 8,
    evaluated: Evaluated = "server",
    **options: Any,
) -> None:
    """Runs of a method on ragged clients, few of which take part and some never, and the oracle's.

    Every seed and sweep point, with all of the solver's settings, evaluated now and then; the loss
    is that of the model evaluated.

    Args:
        algorithm: The method, one point or several.
        oracle: A point's numbers, federation -> the oracle's method at START.
        rounds: Rounds.
        evaluated: Which model is evaluated.
        options: More of `simulate`'s.
    """
    federation = ragged_quadratics(0, ROWS)
    setting: dict[str, Any] = {
        "solver": fp.Solver(0.2, 3, epochs=2, learning_rate_decay=0.9, weight_decay=0.05, clip=1.5),
        "cohort": options.pop("cohort", SOME),
        "systems": SLOW,
        "population": DEVICES,
        "rounds": rounds,
    }
    runs = fp.simulate(
        federation,
        quadratic_model(START),
        algorithm,
        seed=[0, 1],
        evaluation=fp.Evaluation(every=3, model=evaluated, gradients=False),
        **setting,
        **options,
    )
    for run in runs:
        setting["solver"] = setting["solver"].changed(learning_rate=run.learning_rate)
        path = methods.run(oracle(run.hparams, federation), federation, seed=run.seed, **setting)
        expected = getattr(path, evaluated)[-1]
        np.testing.assert_allclose(run.params, expected, rtol=2e-4, atol=2e-5, err_msg=run.label)
        assert run.evaluated == evaluated
        for record in run.history:
            loss = methods.objective(federation, getattr(path, evaluated)[record.round])
            np.testing.assert_allclose(record.train_loss, loss, rtol=2e-4)
            assert record.communication == record.round * algorithm.communication


Numbers = dict[str, float]


class Case(NamedTuple):
    """A method and its oracle.

    Attributes:
        method: The method, with two points of its sweep.
        oracle: A point's numbers, federation -> the oracle's method.
        lanes: Lanes of clients; None for the library's choice.
        widest: Most rows that are read at once; None for the library's choice.
        options: More of `beside_the_oracle`'s.
    """

    method: fp.Algorithm
    oracle: Callable[[Numbers, fp.Federation], methods.Method]
    lanes: int | None = None
    widest: int | None = None
    options: Mapping[str, Any] = {}


def feddc(numbers: Numbers, federation: fp.Federation) -> methods.Method:
    method = methods.FedDC(START, len(federation), numbers["alpha"])
    method.weights = federation.train.sizes / federation.train.sizes.sum()
    return method


CASES = {
    "fedavg": Case(
        fp.fedavg(stragglers="keep", average="clients").with_solver(learning_rate=[0.1, 0.2]),
        lambda *_: methods.FedProx(START, CLIENTS, by_rows=False),
    ),
    "fedprox": Case(
        fp.fedprox(mu=[0.0, 0.5]), lambda n, _: methods.FedProx(START, CLIENTS, n["mu"])
    ),
    "fedprox drop": Case(
        fp.fedprox(mu=[0.0, 0.5]).with_stragglers("drop"),
        lambda n, _: methods.FedProx(START, CLIENTS, n["mu"], drop=True),
    ),
    "feddane": Case(
        fp.feddane(mu=[0.0, 0.5]),
        lambda n, federation: methods.FedDane(START, federation, n["mu"]),
        lanes=3,
        widest=2,
        options={"cohort": fp.Cohort(6), "evaluated": "clients"},
    ),
    "scaffold 1": Case(
        fp.scaffold(option=1, server_learning_rate=[0.8, 1.0]),
        lambda n, _: methods.Scaffold(START, CLIENTS, 1, n["server_learning_rate"]),
        lanes=1,
        options={"devices": 2},
    ),
    "scaffold 2": Case(
        fp.scaffold(option=2, server_learning_rate=[0.8, 1.0]),
        lambda n, _: methods.Scaffold(START, CLIENTS, 2, n["server_learning_rate"]),
        lanes=2,
        options={"devices": 1},
    ),
    "feddyn": Case(
        fp.feddyn(alpha=[0.3, 2.0]), lambda n, _: methods.FedDyn(START, CLIENTS, n["alpha"])
    ),
    "fedsplit": Case(
        fp.fedsplit(step_size=[0.5, 2.0], average="all"),
        lambda n, _: methods.FedSplit(START, CLIENTS, n["step_size"], "all"),
    ),
    "fedadmm": Case(
        fp.fedadmm(rho=[0.5, 2.0], server_learning_rate=0.3),
        lambda n, _: methods.FedAdmm(START, CLIENTS, n["rho"], 0.3),
    ),
    "fedexp": Case(
        fp.fedexp(epsilon=[1e-4, 0.1]),
        lambda n, _: methods.Ruled(
            methods.FedProx(START, CLIENTS, drop=True, by_rows=False),
            methods.Extrapolation(n["epsilon"]),
        ),
    ),
    # the clip, of whole mini-batches, and the weight decay count as part of the gradients
    "fednova": Case(
        fp.fednova(mu=[0.0, 2.0]), lambda n, _: methods.FedNova(START, CLIENTS, n["mu"]), widest=2
    ),
    "qffl": Case(fp.qffl(q=[0.3, 2.0]), lambda n, f: methods.QFfl(START, f, n["q"])),
    "fedcm": Case(
        fp.fedcm(alpha=[0.4, 1.0]), lambda n, _: methods.FedCM(START, CLIENTS, n["alpha"])
    ),
    # gradients are added up over the parts of a mini-batch, and each mini-batch is corrected once
    "mime": Case(
        fp.mime(beta=[0.0, 0.6]), lambda n, _: methods.Mime(START, CLIENTS, n["beta"]), widest=2
    ),
    "mimelite": Case(
        fp.mime(beta=[0.0, 0.9], lite=True),
        lambda n, _: methods.Mime(START, CLIENTS, n["beta"], lite=True),
    ),
    "mime of whole gradients": Case(
        fp.mime(beta=[0.0, 0.6], whole_gradients=True),
        lambda n, _: methods.Mime(START, CLIENTS, n["beta"], whole_gradients=True),
    ),
    # its gradient of a mini-batch has no parts, so the mini-batch is read in one piece
    "fedsam": Case(
        fp.fedsam(rho=[0.0, 0.5]), lambda n, _: methods.FedSam(START, CLIENTS, n["rho"]), widest=2
    ),
    "feddc": Case(fp.feddc(alpha=[0.1, 1.0]), feddc),
}
"""Methods, each beside its oracle."""
