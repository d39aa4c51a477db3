"""How heterogeneous is a federation, and which mu should FedProx try first?

A diagnosis precedes training and costs a short sweep, which is ordinary training. About their data,
clients report only the number of rows, the effective number of classes and the curvature of their
objective; no label leaves them. The diagnosis gives the mu that theory requires (Li et al. 2020,
Theorem 4 and Corollary 7) and the mu that the sweep suggests. The two are far apart. The paper
itself tunes mu over {0.001, 0.01, 0.1, 1}.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.algorithms import fedprox
from fedprox.diagnostics import (
    Constants,
    Curvature,
    Grouping,
    convex_case,
    curvature,
    grouping,
    mu_needed,
)
from fedprox.errors import plural, require, require_whole
from fedprox.federation import Federation, no_rows
from fedprox.loop.following import Progress
from fedprox.loop.simulate import simulate
from fedprox.model import Model, Params, fitted_params
from fedprox.parts.population import Population
from fedprox.parts.systems import Systems
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.protocol import Evaluation, check_objects, initial_params
from fedprox.results.run import Run
from fedprox.solver import Solver

MUS = (0.0, 0.001, 0.01, 0.1, 1.0)
"""The values of mu tried: no proximal term, and the grid of Li et al. 2020, section 5.3.2."""

SWEEP_ROUNDS = 40
"""Rounds of the short sweep; with 20, the slow start of a large mu still hides its benefit."""

SWEEP_SEEDS = 3
"""Seeds of the short sweep."""

EVALUATIONS = 20
"""Evaluations of each run of the sweep, besides that of the initial model."""

Floats = NDArray[np.float64]


class Tried(NamedTuple):
    """The results of the short sweep for one mu.

    Attributes:
        mu: Proximal weight at this sweep point.
        train_loss: f(w) at each evaluation, mean over seeds; NaN once a seed has diverged.
        late_loss: Mean f(w) over the last quarter of the evaluations and over the seeds.
        spread: Standard deviation over seeds of each seed's mean over that quarter.
        expected_gap: Expected difference between f(w) and that of the best mu at the end of the
            planned run. Infinity if a seed has diverged or f(w) is above that of the initial model.
    """

    mu: float
    train_loss: Floats
    late_loss: float
    spread: float
    expected_gap: float


@dataclass(frozen=True)
class Diagnosis:
    """The findings of `diagnose`.

    Attributes:
        of_clients: Number of clients of the whole federation; the diagnosed clients may be a
            sample of them.
        sizes: Training rows n_k of each client, shape (clients,).
        effective_classes: exp(entropy of its labels) of each client, shape (clients,); empty where
            labels are not classes.
        classes: Number of classes.
        clients_per_round: Clients K of a round.
        curvature: Extreme eigenvalues of the clients' Hessians at the initial model.
        grouping: Whether the clients form clusters, by their gradients at the initial model.
        rounds: The evaluated rounds of the short sweep, 0 first.
        dissimilarity: B(w) at these rounds with the suggested mu, shape (seeds, evaluations).
        gradient_variance: E_k ||grad F_k - grad f||^2 at these rounds with the suggested mu, mean
            over seeds, shape (evaluations,).
        gamma_mean: Mean gamma_k of the local solves of these rounds (Definition 2).
        gamma_max: Greatest gamma_k of these local solves.
        sweep: The results for each mu that was tried.
        suggested_mu: The mu to start with; None if no mu lowers the loss.
        planned_rounds: Rounds of the planned run.
    """

    of_clients: int
    sizes: NDArray[np.int64]
    effective_classes: Floats
    classes: int
    clients_per_round: int
    curvature: Curvature
    grouping: Grouping
    rounds: tuple[int, ...]
    dissimilarity: Floats
    gradient_variance: Floats
    gamma_mean: float
    gamma_max: float
    sweep: tuple[Tried, ...]
    suggested_mu: float | None
    planned_rounds: int

    @property
    def largest_dissimilarity(self) -> float:
        """The largest B(w) of the short runs, a lower bound for the B of Theorem 4.

        It is infinite if f's gradient vanishes and the clients' gradients do not.
        """
        known = self.dissimilarity[~np.isnan(self.dissimilarity)]
        return float(known.max(initial=1.0))

    @property
    def theory_mu(self) -> float | None:
        """The mu above which Theorem 4 guarantees a decrease with exact local solves, or None."""
        constants = self._constants
        return mu_needed(constants) if constants else None

    @property
    def _constants(self) -> Constants | None:
        """Theorem 4's constants; None if the objectives have no curvature or no B bounds B(w)."""
        smoothness = self.curvature.smoothness
        if smoothness == 0 or math.isinf(self.largest_dissimilarity):
            return None
        return Constants(
            smoothness,
            self.largest_dissimilarity,
            self.clients_per_round,
            self.curvature.negative_curvature,
        )

    def facts(self) -> list[tuple[str, str, str]]:
        """The findings: for each, the quantity, its value and its meaning."""
        return [
            *self._data_facts(),
            *self._gradient_facts(),
            self._clusters(),
            *self._theory_facts(),
            self._suggestion(),
        ]

    def _data_facts(self) -> list[tuple[str, str, str]]:
        sizes = np.sort(self.sizes)
        tenth = -(-len(sizes) // 10)
        share = sizes[-tenth:].sum() / sizes.sum()
        drawn = f"of {self.of_clients:,}, drawn at random; " if len(sizes) < self.of_clients else ""
        facts = [
            ("clients", f"{len(sizes):,}", f"{drawn}all {sizes.sum():,} training rows were read"),
            (
                "rows of a client",
                f"{median(sizes):g}",
                f"the median, of {sizes[0]:,} to {sizes[-1]:,}; the largest tenth of the clients "
                f"holds {100 * share:.0f} % of all rows",
            ),
        ]
        if len(self.effective_classes):
            skew = self.effective_classes
            facts.append(
                (
                    "classes of a client",
                    f"{np.median(skew):.1f} of {self.classes}",
                    f"the median of exp(entropy of its labels), of {skew.min():.1f} to "
                    f"{skew.max():.1f}",
                )
            )
        return facts

    def _gradient_facts(self) -> list[tuple[str, str, str]]:
        b, variance, hessians = self.dissimilarity[:, 0], self.gradient_variance, self.curvature
        convex = hessians.negative_curvature <= 1e-4 * hessians.smoothness
        return [
            (
                "dissimilarity B(w)",
                _number(float(b.mean())),
                f"at the initial model; up to {_number(self.largest_dissimilarity)} in the first "
                f"{plural(self.rounds[-1], 'round')}. 1 means that all clients' gradients agree",
            ),
            (
                "gradient variance",
                _number(variance[0]),
                f"at the initial model; {_number(variance[-1])} after "
                f"{plural(self.rounds[-1], 'round')}",
            ),
            (
                "smoothness L",
                _number(hessians.smoothness),
                f"of the client with the greatest curvature, at the initial model; "
                f"{_number(np.median(hessians.largest))} of the median client, "
                f"{_number(hessians.largest_of_f)} of f",
            ),
            (
                "negative curvature L_-",
                _number(hessians.negative_curvature),
                "of the client with the most, at the initial model"
                + (": negligible" if convex else ""),
            ),
            (
                "inexactness gamma",
                _number(self.gamma_mean),
                f"mean of the local solves of these rounds; {_number(self.gamma_max)} at most",
            ),
        ]

    def _clusters(self) -> tuple[str, str, str]:
        found = self.grouping
        if math.isnan(found.p):
            return ("clusters", "-", f"of {len(self.sizes)} clients; they are told of 8 or more")
        chance = f"by the clients' gradients at the initial model; p = {found.p:.2g}"
        if found.clusters == 1:
            return ("clusters", "none", f"{chance}, where below 0.05 is a sign of clusters")
        sizes = ", ".join(map(str, np.sort(np.bincount(found.labels))[::-1]))
        return (
            "clusters",
            str(found.clusters),
            f"of {sizes} clients, {chance}: a model for each may fit better than one for all, such "
            f"as those of ifca(k={found.clusters})",
        )

    def _theory_facts(self) -> list[tuple[str, str, str]]:
        constants, b, k = self._constants, self.largest_dissimilarity, self.clients_per_round
        if self.curvature.smoothness == 0:
            return [("mu by theory", "any", "the clients' objectives have no curvature")]
        if constants is None:
            unbounded = (
                "no B bounds B(w): f's gradient vanishes in some round, and the clients' do not"
            )
            return [("mu by theory", "none", unbounded)]
        within = "holds" if b <= math.sqrt(k) / 2 else "does not hold"
        convex, needed = convex_case(constants.smoothness, b), mu_needed(constants)
        if needed is None:
            value, enough = "none", math.floor(2 * b**2) + 1
            note = "no mu satisfies it, as is usual: even with exact local solutions, it requires "
            note += f"B sqrt(2/K) < 1, so at least {enough:,} clients a round"
        else:
            value = f"above {_number(needed)}"
            note = (
                "it guarantees a decrease if local solutions are exact, cohorts are drawn by p_k, "
            )
            note += "and the B and L measured here bound those of all rounds"
        return [
            (
                "mu by Corollary 7",
                _number(convex.mu),
                f"6 L B^2, for convex objectives, exact local solutions and B <= sqrt(K)/2, which "
                f"{within} here: B = {_number(b)}, K = {k}",
            ),
            ("mu by Theorem 4", value, f"{note}. It is a worst-case bound"),
        ]

    def _suggestion(self) -> tuple[str, str, str]:
        if self.suggested_mu is None:
            return ("mu to start with", "none", "no mu lowers the loss: lower the learning rate")
        return (
            "mu to start with",
            f"{self.suggested_mu:g}",
            f"the largest of {', '.join(f'{t.mu:g}' for t in self.sweep)} that is expected to end "
            f"as low as the best after {plural(self.planned_rounds, 'round')}",
        )

    def document(self) -> dict[str, Any]:
        """The contents of `diagnosis.json`; numbers that are not finite become None."""
        return {
            "facts": [
                dict(zip(("what", "value", "note"), fact, strict=True)) for fact in self.facts()
            ],
            "sizes": self.sizes.tolist(),
            "classes": self.effective_classes.tolist(),
            "path": {
                "round": list(self.rounds),
                "dissimilarity": _finite(self.dissimilarity.mean(axis=0)),
                "gradient_variance": _finite(self.gradient_variance),
            },
            "sweep": [
                {"mu": tried.mu, "round": list(self.rounds)}
                | {name: _finite(value) for name, value in tried._asdict().items()}
                for tried in self.sweep
            ],
            "suggested_mu": self.suggested_mu,
            "theory_mu": self.theory_mu,
            "clusters": {
                "count": self.grouping.clusters,
                "p": _finite(self.grouping.p),
                "labels": self.grouping.labels.tolist(),
            },
        }


def _finite(given: ArrayLike) -> Any:
    """A number or a list of numbers, with None where one is not finite."""
    numbers = np.asarray(given, np.float64)
    values = [v if math.isfinite(v) else None for v in numbers.ravel().tolist()]
    return values if numbers.ndim else values[0]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "infinite"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def diagnose(
    federation: Federation,
    model: Model,
    *,
    solver: Solver,
    cohort: Cohort,
    systems: Systems = Systems(),  # noqa: B008 (frozen)
    population: Population | None = None,
    rounds: int = 200,
    evaluation: Evaluation = Evaluation(),  # noqa: B008 (frozen)
    seed: int = 0,
    initial: Params | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    progress: bool = True,
) -> Diagnosis:
    """Measure a federation and suggest a mu for FedProx.

    Args:
        federation: The clients; only their training rows are read.
        model: The model to train.
        solver: The local solver, with one learning rate.
        cohort: How a round's clients are chosen.
        systems: Which clients cannot finish their work.
        population: The clients' devices, which a deadline needs.
        rounds: Rounds of the planned run; the sweep has at most 40.
        evaluation: Its `clients` limits the number of clients that are diagnosed, drawn at random;
            the sweep draws its cohorts from them. Its other settings are ignored.
        seed: Seed; the sweep runs with this one and the next two.
        initial: Initial parameters, as in `simulate`.
        on_progress: Called with the sweep's progress, as in `simulate`.
        progress: Whether the sweep's progress is shown; see `simulate`.

    Returns:
        The measurements and the suggested mu.

    Raises:
        InputError: An argument is refused, as by `simulate`, or there are several learning rates.

    Example:
        >>> from fedprox import datasets, models
        >>> federation = datasets.synthetic(clients=5)
        >>> diagnosis = diagnose(
        ...     federation,
        ...     models.logistic(federation),
        ...     solver=Solver(learning_rate=0.01, batch_size=10, epochs=1),
        ...     cohort=Cohort(clients_per_round=2),
        ...     rounds=4,
        ... )
        >>> diagnosis.suggested_mu in MUS, diagnosis.theory_mu is None
        (True, True)
    """
    check_objects(
        federation=federation,
        model=model,
        solver=solver,
        cohort=cohort,
        systems=systems,
        population=population,
        evaluation=evaluation,
    )
    require_whole("seed", seed, least=0, most=2**63 - SWEEP_SEEDS)
    rates = list(solver.rates)
    require(
        len(rates) == 1,
        f"solver.learning_rate = {rates}; a diagnosis is for one learning rate",
    )
    require_whole("rounds", rounds)
    of_clients = len(federation)
    if evaluation.clients is not None:
        if population is not None:
            population.check(of_clients)
            population = population.of_clients(federation.drawn(evaluation.clients))
        federation = _sampled(federation, cohort, evaluation.clients)
    train = federation.train
    short = min(rounds, SWEEP_ROUNDS)
    runs = simulate(
        replace(federation, test=no_rows(train), validation=None),
        model,
        [fedprox(mu=MUS)],
        solver=solver,
        cohort=cohort,
        systems=systems,
        population=population,
        rounds=short,
        evaluation=Evaluation(every=-(-short // EVALUATIONS)),
        seed=[seed + i for i in range(SWEEP_SEEDS)],
        initial=initial,
        on_progress=on_progress,
        progress=progress,
    )
    evaluated = max(([record.round for record in run.history] for run in runs), key=len)
    losses = np.array([_measured(runs, mu, "train_loss", len(evaluated)) for mu in MUS])
    gaps, noise = expected_gaps(losses, evaluated, rounds)
    suggested = suggest(MUS, gaps, noise)

    def of_suggested(name: str) -> Floats:
        mu = MUS[0] if suggested is None else suggested
        return _measured(runs, mu, name, len(evaluated))

    # the initial model has no local solves, and a round may have no client
    gammas, largest = (
        values[np.isfinite(values)] for values in map(of_suggested, ("gamma_mean", "gamma_max"))
    )
    first = initial_params(model, seed)
    if initial is not None:
        first = fitted_params("initial", model, initial)
    return Diagnosis(
        of_clients=of_clients,
        sizes=train.sizes,
        effective_classes=effective_classes(federation),
        classes=federation.classes,
        clients_per_round=cohort.clients_per_round,
        curvature=curvature(federation, model, first, seed=seed),
        grouping=grouping(model, first, federation, seed=seed),
        rounds=tuple(evaluated),
        dissimilarity=of_suggested("dissimilarity"),
        gradient_variance=of_suggested("gradient_variance").mean(axis=0),
        gamma_mean=float(gammas.mean()) if len(gammas) else math.nan,
        gamma_max=float(largest.max()) if len(largest) else math.nan,
        sweep=_tried(losses, gaps),
        suggested_mu=suggested,
        planned_rounds=rounds,
    )


def _sampled(federation: Federation, cohort: Cohort, clients: int) -> Federation:
    """A sample of the clients."""
    per_round = cohort.clients_per_round
    require(
        clients >= min(per_round, len(federation)) or cohort.sampling == "proportional",
        f"evaluation.clients = {clients}; a diagnosis draws its cohorts of {per_round} from them",
    )
    return federation.sample_clients(clients)


def _measured(runs: Sequence[Run], mu: float, name: str, evaluations: int) -> Floats:
    """A measure of a mu's runs, (seeds, evaluations); NaN where a run had ended."""
    values = np.full((SWEEP_SEEDS, evaluations), math.nan)
    for of_seed, run in zip(values, (r for r in runs if r.hparams["mu"] == mu), strict=True):
        of_seed[: len(run.history)] = [getattr(record, name) for record in run.history]
    return values


def _tried(losses: Floats, gaps: Floats) -> tuple[Tried, ...]:
    """The results for each mu, from f(w), (mus, seeds, evaluations)."""
    late = losses[:, :, -_quarter(losses.shape[2]) :].mean(axis=2)
    columns = zip(
        MUS,
        losses.mean(axis=1),
        late.mean(axis=1).tolist(),
        late.std(axis=1, ddof=1).tolist(),
        gaps.tolist(),
        strict=True,
    )
    return tuple(Tried(*row) for row in columns)


def _quarter(evaluations: int) -> int:
    return max(1, evaluations // 4)


def expected_gaps(losses: Floats, evaluated: Sequence[int], rounds: int) -> tuple[Floats, float]:
    """Each mu's expected final loss above the best mu's, and the noise of the best mu's loss.

    A large mu slows the first rounds down and stabilizes the later ones, so the lowest loss of a
    short sweep is no guide. On heterogeneous data the mu that is best in the end is still behind.
    The question is whether it is catching up. The gap to the best mu over the last quarter of the
    sweep is extrapolated to the last planned round. In each further quarter it shrinks by the same
    factor as between the last two quarters. A gap that did not shrink stays the same.

    `losses` are f(w), (mus, seeds, evaluations). A gap is infinite if a seed diverged or f(w) rose
    above that of the initial model. The noise is the standard error of the best mu's mean over the
    last quarter, estimated from the deviations of its loss from its trend.

    A gap of 1 shrinks to 1/2 in five rounds, and ten rounds remain:

    >>> evaluated = range(21)
    >>> steady, late = np.ones(21), 1 + np.where(np.arange(21) < 16, 1.0, 0.5)
    >>> gaps, noise = expected_gaps(np.array([[steady], [late]]), evaluated, 30)
    >>> gaps.tolist(), noise
    ([0.0, 0.125], 0.0)
    """
    gaps = np.full(len(losses), np.inf)
    quarter = _quarter(len(evaluated))
    late = losses[:, :, -quarter:].mean(axis=(1, 2))
    usable = np.isfinite(losses).all(axis=(1, 2)) & (late <= losses[:, :, 0].mean(axis=1))
    if not usable.any():
        return gaps, 0.0
    late = late[usable]
    early = losses[usable][:, :, -2 * quarter : -quarter].mean(axis=(1, 2))
    best = int(late.argmin())
    gap, gap_before = late - late[best], early - early[best]
    shrinking = (gap > 0) & (gap_before > gap)
    factor = np.where(shrinking, gap / np.where(shrinking, gap_before, 1), 1.0)
    span = max(1, evaluated[-1] - evaluated[-1 - quarter])
    gaps[usable] = gap * factor ** ((rounds - evaluated[-1]) / span)
    # second differences remove a linear trend; for independent numbers, their variance is six
    # times that of the numbers
    even = len(evaluated) < 3 or evaluated[-1] - evaluated[-2] == evaluated[1] - evaluated[0]
    path = losses[usable][best][:, : None if even else -1]  # the last interval may be shorter
    differences = np.diff(path[:, -2 * quarter :], n=2, axis=1)
    scatter = math.sqrt((differences**2).mean() / 6) if differences.size else 0.0
    return gaps, scatter / math.sqrt(losses.shape[1] * quarter)


def suggest(mus: Sequence[float], gaps: Floats, noise: float) -> float | None:
    """The largest mu whose expected gap is no more than noise; None if all gaps are infinite.

    Of two values with equal final losses, the larger is more stable. If the loss is smooth, noise
    is small, and a large mu, which is slower, has no advantage.

    >>> suggest([0.0, 0.1, 1.0], np.array([0.0, 0.01, 0.3]), noise=0.02)
    0.1
    """
    return max((mu for mu, gap in zip(mus, gaps, strict=True) if gap <= noise), default=None)


def effective_classes(federation: Federation) -> Floats:
    """exp(entropy of its labels) of each client: 1 for a single class, C for C equally frequent.

    Positions without a label do not count; a client without any label has 0.

    >>> two = ([[0.0]] * 4, [0, 0, 2, 2])
    >>> effective_classes(Federation.from_arrays([two, ([[0.0]], [1])])).round(6).tolist()
    [2.0, 1.0]
    """
    if not federation.classes:
        return np.zeros(0)

    def perplexity(labels: NDArray[Any]) -> float:
        counts = np.unique(labels[labels >= 0], return_counts=True)[1]
        share = counts / counts.sum()
        return float(np.exp(-(share * np.log(share)).sum())) if len(counts) else 0.0

    return np.array([perplexity(federation.train.client(k)[1]) for k in range(len(federation))])
