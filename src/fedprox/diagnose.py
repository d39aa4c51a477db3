"""How heterogeneous is a federation, and which mu should FedProx try first?

A diagnosis comes before training and costs a short sweep. Of their data clients would report their
size, the effective number of classes among their labels and how strongly their objective bends; no
label leaves them, and the sweep is training like any other. What theory asks for (Li et al. 2020,
Theorem 4 and Corollary 7) is said beside what the sweep suggests, since the two are far apart: the
paper itself chooses mu from {0.001, 0.01, 0.1, 1} by trying.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.algorithms import fedprox
from fedprox.diagnostics import Constants, Curvature, corollary_7, curvature, mu_needed
from fedprox.errors import require, require_whole
from fedprox.federation import Federation, Rows
from fedprox.model import Model, Params, fitted_params
from fedprox.simulation.config.cohort import Cohort
from fedprox.simulation.config.evaluation import Evaluation
from fedprox.simulation.config.protocol import check_parts, initial_params
from fedprox.simulation.config.systems import Systems
from fedprox.simulation.loop.progress import Progress
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.simulate import simulate
from fedprox.solver import Solver

MUS = (0.0, 0.001, 0.01, 0.1, 1.0)
"""What is tried: no proximal term, and the grid of Li et al. 2020, section 5.3.2."""

SWEEP_ROUNDS = 40
"""Rounds of the short sweep; with 20 the slow start still hides what a large mu is good for."""

SWEEP_SEEDS = 3
"""Seeds of the short sweep."""

EVALUATIONS = 20
"""Evaluations of each of its runs, beside that of the initial model."""

Floats = NDArray[np.float64]


class Tried(NamedTuple):
    """One mu of the short sweep.

    Attributes:
        mu: Weight of the proximal term.
        train_loss: f(w) at each evaluation, mean over seeds; NaN once a seed has diverged.
        late_loss: Mean f(w) over the last quarter of the evaluations and the seeds.
        spread: Standard deviation of its means over seeds.
        expected_gap: How far f(w) is expected to stay above the best's at the end of the run that
            the diagnosis is for; infinity where a seed has diverged or f(w) has risen above that of
            the initial model.
    """

    mu: float
    train_loss: Floats
    late_loss: float
    spread: float
    expected_gap: float


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` finds.

    Attributes:
        of_clients: Clients of the federation; where these are more than are diagnosed, a sample of
            them was drawn.
        sizes: Training rows n_k of each client, shape (clients,).
        effective_classes: exp(entropy of its labels) of each client, shape (clients,); empty where
            labels are not classes.
        classes: Classes there are.
        clients_per_round: K.
        curvature: Extreme eigenvalues of the clients' Hessians at the initial model.
        rounds: The evaluated rounds of the short sweep, 0 first.
        dissimilarity: B(w) at these rounds with the suggested mu, shape (seeds, evaluations).
        gradient_variance: E_k ||grad F_k - grad f||^2 likewise, mean over seeds.
        gamma_mean: Mean gamma_k of the local solves of these rounds (Definition 2).
        gamma_max: The greatest of them.
        sweep: Every mu that was tried.
        suggested_mu: The mu to start with; None where none lowers the loss.
        planned_rounds: Rounds of the run that it is for.
    """

    of_clients: int
    sizes: NDArray[np.int64]
    effective_classes: Floats
    classes: int
    clients_per_round: int
    curvature: Curvature
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
        """The largest B(w) of the short runs, which Theorem 4's B must cover.

        Infinite where f's gradient vanishes and the clients' do not.
        """
        known = self.dissimilarity[~np.isnan(self.dissimilarity)]
        return float(known.max(initial=1.0))

    @property
    def theory_mu(self) -> float | None:
        """The mu above which Theorem 4 promises a decrease with exact local solutions, or None."""
        constants = self._constants
        return mu_needed(constants) if constants else None

    @property
    def _constants(self) -> Constants | None:
        """None where the objectives do not bend, and where no B covers B(w)."""
        bend = self.curvature
        if bend.smoothness == 0 or math.isinf(self.largest_dissimilarity):
            return None
        return Constants(
            bend.smoothness,
            self.largest_dissimilarity,
            self.clients_per_round,
            bend.negative_curvature,
        )

    def facts(self) -> list[tuple[str, str, str]]:
        """What was found, its value, and what that means, a line each."""
        return [
            *self._data_facts(),
            *self._gradient_facts(),
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
        b, variance, bend = self.dissimilarity[:, 0], self.gradient_variance, self.curvature
        along = f"in the first {self.rounds[-1]} rounds"
        convex = "" if bend.negative_curvature > 1e-4 * bend.smoothness else ": none to speak of"
        return [
            (
                "dissimilarity B(w)",
                _number(float(b.mean())),
                f"at the initial model; up to {_number(self.largest_dissimilarity)} {along}. "
                "1 means that all clients pull the same way",
            ),
            (
                "gradient variance",
                _number(variance[0]),
                f"at the initial model; {_number(variance[-1])} after {self.rounds[-1]} rounds",
            ),
            (
                "smoothness L",
                _number(bend.smoothness),
                f"of the client that bends most, at the initial model; "
                f"{_number(np.median(bend.largest))} the median client's, "
                f"{_number(bend.largest_of_f)} that of f",
            ),
            ("negative curvature L_-", _number(bend.negative_curvature), f"likewise{convex}"),
            (
                "inexactness gamma",
                _number(self.gamma_mean),
                f"mean of the local solves of these rounds; {_number(self.gamma_max)} at most",
            ),
        ]

    def _theory_facts(self) -> list[tuple[str, str, str]]:
        constants, b, k = self._constants, self.largest_dissimilarity, self.clients_per_round
        if self.curvature.smoothness == 0:
            return [("mu by theory", "any", "the clients' objectives do not bend")]
        if constants is None:
            unbounded = (
                "no B covers B(w): f's gradient vanishes on the way, and the clients' do not"
            )
            return [("mu by theory", "none", unbounded)]
        within = "holds" if b <= math.sqrt(k) / 2 else "does not hold"
        convex, needed = corollary_7(constants.smoothness, b), mu_needed(constants)
        if needed is None:
            value, enough = "none", math.floor(2 * b**2) + 1
            note = (
                "no mu satisfies it, as is usual: it takes B sqrt(2/K) < 1 even with exact local "
            )
            note += f"solutions, so at least {enough:,} clients a round"
        else:
            value = f"above {_number(needed)}"
            note = (
                "a decrease is then sure if local solutions are exact, cohorts are drawn by p_k, "
            )
            note += "and the B and L found here bound those of all rounds"
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
            f"the largest of {', '.join(f'{t.mu:g}' for t in self.sweep)} that should keep up with "
            f"the best over {self.planned_rounds} rounds",
        )

    def document(self) -> dict[str, Any]:
        """The contents of `diagnosis.json`; numbers that are not finite become None."""
        return {
            "facts": [
                {"what": what, "value": value, "note": note} for what, value, note in self.facts()
            ],
            "sizes": self.sizes.tolist(),
            "classes": self.effective_classes.tolist(),
            "path": {
                "round": list(self.rounds),
                "dissimilarity": _finite(self.dissimilarity.mean(axis=0)),
                "gradient_variance": _finite(self.gradient_variance),
            },
            "sweep": [
                {
                    "mu": tried.mu,
                    "round": list(self.rounds),
                    "train_loss": _finite(tried.train_loss),
                    "late_loss": _finite([tried.late_loss])[0],
                    "spread": _finite([tried.spread])[0],
                    "expected_gap": _finite([tried.expected_gap])[0],
                }
                for tried in self.sweep
            ],
            "suggested_mu": self.suggested_mu,
            "theory_mu": self.theory_mu,
        }


def _finite(values: ArrayLike) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in np.asarray(values, np.float64).tolist()]


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
        systems: Which of them cannot finish.
        rounds: Rounds of the run that the suggestion is for; the sweep takes 40 at most.
        evaluation: Its `clients` is how many clients are diagnosed at most, drawn at random; the
            sweep draws its cohorts from them. The other settings are not read.
        seed: Seed; the sweep runs with this one and the two that follow.
        initial: The parameters to begin with, as in `simulate`.
        on_progress: Called now and then during the sweep.
        progress: Whether the sweep's progress is shown; see `simulate`.

    Raises:
        InputError: As `simulate`; or several learning rates.

    >>> from fedprox import datasets, models
    >>> federation = datasets.synthetic(clients=5)
    >>> found = diagnose(
    ...     federation,
    ...     models.logistic(federation),
    ...     solver=Solver(learning_rate=0.01, batch_size=10, epochs=1),
    ...     cohort=Cohort(clients_per_round=2),
    ...     rounds=4,
    ... )
    >>> found.suggested_mu in MUS, found.theory_mu is None
    (True, True)
    """
    check_parts(
        federation=federation,
        model=model,
        solver=solver,
        evaluation=evaluation,
        cohort=cohort,
        systems=systems,
    )
    require_whole("seed", seed, least=0, most=2**63 - SWEEP_SEEDS)
    require(
        len(solver.rates) == 1,
        f"solver.learning_rate = {list(solver.rates)}; a diagnosis is for one learning rate",
    )
    require_whole("rounds", rounds)
    of_clients = len(federation)
    if evaluation.clients is not None:
        require(
            evaluation.clients >= min(cohort.clients_per_round, of_clients)
            or cohort.sampling == "proportional",
            f"evaluation.clients = {evaluation.clients}; a diagnosis draws its cohorts of "
            f"{cohort.clients_per_round} from them",
        )
        systems.check(of_clients)
        systems = systems.of_clients(federation.drawn(evaluation.clients))
        federation = federation.sample_clients(evaluation.clients)
    train = federation.train
    nothing = Rows(train.x[:0], train.y[:0], np.zeros_like(train.offsets))
    short = min(rounds, SWEEP_ROUNDS)
    runs = simulate(
        replace(federation, test=nothing, validation=None),
        model,
        [fedprox(mu=MUS)],
        solver=solver,
        cohort=cohort,
        systems=systems,
        rounds=short,
        evaluation=Evaluation(every=-(-short // EVALUATIONS)),
        seed=[seed + i for i in range(SWEEP_SEEDS)],
        initial=initial,
        on_progress=on_progress,
        progress=progress,
    )
    begin = (
        initial_params(model, seed) if initial is None else fitted_params("initial", model, initial)
    )
    longest = max(runs, key=lambda run: len(run.history))
    evaluated = tuple(record.round for record in longest.history)

    def read(mu: float, value: Callable[[Record], float]) -> Floats:
        """A measurement of each of a mu's runs, shape (seeds, evaluations)."""
        chosen = [run for run in runs if run.hparams["mu"] == mu]
        return np.array([_history(run, value, len(evaluated)) for run in chosen])

    losses = np.array([read(mu, lambda record: record.train_loss) for mu in MUS])
    gaps, noise = expected_gaps(losses, evaluated, rounds)
    suggested = suggest(MUS, gaps, noise)
    shown = MUS[0] if suggested is None else suggested
    quarter = losses[:, :, -_quarter(len(evaluated)) :].mean(axis=2)
    # a round may have had no client, and the initial model had none
    gammas = [read(shown, by)[:, 1:] for by in (lambda r: r.gamma_mean, lambda r: r.gamma_max)]
    mean, most = (values[np.isfinite(values)] for values in gammas)
    return Diagnosis(
        of_clients=of_clients,
        sizes=train.sizes,
        effective_classes=effective_classes(federation),
        classes=federation.classes,
        clients_per_round=cohort.clients_per_round,
        curvature=curvature(federation, model, begin, seed=seed),
        rounds=evaluated,
        dissimilarity=read(shown, lambda record: record.dissimilarity),
        gradient_variance=read(shown, lambda record: record.gradient_variance).mean(axis=0),
        gamma_mean=float(mean.mean()) if len(mean) else math.nan,
        gamma_max=float(most.max()) if len(most) else math.nan,
        sweep=tuple(
            Tried(mu, *found)
            for mu, *found in zip(
                MUS,
                losses.mean(axis=1),
                quarter.mean(axis=1).tolist(),
                quarter.std(axis=1, ddof=1).tolist(),
                gaps.tolist(),
                strict=True,
            )
        ),
        suggested_mu=suggested,
        planned_rounds=rounds,
    )


def _history(run: Run, value: Callable[[Record], float], length: int) -> list[float]:
    """One value of a run's records; NaN for those that a run ended without."""
    known = [value(record) for record in run.history]
    return known + [math.nan] * (length - len(known))


def _quarter(evaluations: int) -> int:
    return max(1, evaluations // 4)


def expected_gaps(losses: Floats, evaluated: Sequence[int], rounds: int) -> tuple[Floats, float]:
    """How far above the best mu's each mu's loss is expected to end, and what counts as noise.

    A large mu slows the first rounds down and steadies the later ones, so the lowest loss of a
    short sweep is no guide: on heterogeneous data a mu that will win is still behind. What tells is
    whether it is catching up. The gap to the best over the last quarter of the sweep is carried on
    to the last planned round, shrinking from quarter to quarter as it did in the last two; a gap
    that does not shrink stays.

    Args:
        losses: f(w), shape (mus, seeds, evaluations); not finite where a run has diverged.
        evaluated: The evaluated rounds.
        rounds: Rounds of the run that is planned.

    Returns:
        The gaps, shape (mus,), infinity where a seed diverged or f(w) rose above that of the
        initial model; and the standard error of the best
        mu's mean over the last quarter, from how its loss scatters around its own trend.

    A gap of 1 that became 1/2 in five rounds, with ten more to go:

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
    # second differences are blind to a trend; those of independent numbers have six times their
    # variance
    even = len(evaluated) < 3 or evaluated[-1] - evaluated[-2] == evaluated[1] - evaluated[0]
    path = losses[usable][best][:, : None if even else -1]  # the last step may be a shorter one
    bends = np.diff(path[:, -2 * quarter :], n=2, axis=1)
    scatter = math.sqrt((bends**2).mean() / 6) if bends.size else 0.0
    return gaps, scatter / math.sqrt(losses.shape[1] * quarter)


def suggest(mus: Sequence[float], gaps: Floats, noise: float) -> float | None:
    """The largest mu whose expected gap is no more than noise; None where all gaps are infinite.

    Of two that end alike the larger is the steadier. Where no round disturbs the loss, noise is
    small and nothing speaks for a slow mu.

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
