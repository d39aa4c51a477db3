"""A node's policy: what it computes for others, what it reports, and what private runs declare.

By how much a client can move the sum of a private round, and so the epsilon, follows from what the
run has declared. A node computes the epsilon from the declaration, so it answers nothing else. How
many steps clients take and where they stop needs no check: their messages are clipped in any case.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprox.algorithms import ALGORITHMS
from fedprox.algorithms.base import Algorithm
from fedprox.deployment.approval import asked_of, digest_of_run
from fedprox.deployment.wire import PrivateRounds, PrivateSteps, Securing, Setup, required
from fedprox.engine.planning.jobs import Jobs
from fedprox.errors import plural, require
from fedprox.experiment.schema import Section, Table
from fedprox.models import MODELS
from fedprox.parts.privacy.accounting import (
    Composed,
    Hidden,
    Mechanism,
    epsilon_beside,
    epsilon_together,
    quick_epsilon,
    rounded_up,
)
from fedprox.parts.privacy.setting import Unit, releases
from fedprox.protocol.cohort import group_of_round
from fedprox.solver import Solver

LEAST_NODES, MOST_NODES = 3, 100
"""Nodes of a secure sum. In a sum of two each knows the other's part; beyond the most, the shares
of a node no longer fit into the head of an answer."""


def require_threshold(threshold: int, nodes: int) -> None:
    """Raise `InputError` unless a threshold fits a number of nodes.

    More than half of the nodes are needed, so that no two different sums of a round are confirmed
    by enough nodes each.
    """
    require(
        LEAST_NODES <= nodes <= MOST_NODES,
        f"deployment.secure: {nodes} nodes; a secure sum is over {LEAST_NODES} to {MOST_NODES}",
    )
    least = max(LEAST_NODES, nodes // 2 + 1)
    require(
        least <= threshold <= nodes,
        f"deployment.secure.threshold = {threshold}; with {nodes} nodes it must be from {least} to "
        f"{nodes}",
    )


Reportable = Literal["loss", "accuracy", "metrics", "gradients"]
"""Measures that a node may report."""

REPORTS: tuple[Reportable, ...] = get_args(Reportable)


class OwnPrivacy(Section):
    """`own` of `[policy.privacy]`: the guarantee of a node's clients, whatever a run asks."""

    epsilon: float = Field(
        description="Epsilon of each client's messages, of all runs together.", examples=[8.0]
    )
    delta: float = Field(
        description="Delta of this epsilon, below one over the node's clients.", examples=[1e-5]
    )
    clip: float = Field(description="Largest norm of a client's message.", examples=[1.0])
    rounds: int | None = Field(
        default=None,
        description="Rounds over which it is spent, over all runs and for each sweep point. If "
        "left out, these are the rounds of one run: a client that took part in all of them takes "
        "part in no other run.",
        examples=[500],
    )


class Bound(NamedTuple):
    """The weakest guarantee of a run that a node accepts, as in `PrivacyPolicy`."""

    unit: Unit
    epsilon: float
    delta: float


class PrivacyPolicy(Section):
    """`[policy.privacy]`: the weakest guarantee that a node accepts, and the one of its own."""

    unit: Unit = Field(
        default="client",
        description='The unit that it hides: "client" for a client with all of its rows, '
        '"example" for a row. Runs that hide the other are refused.',
        examples=["example"],
    )
    epsilon: float | None = Field(
        default=None,
        description="Largest epsilon of all runs together; the node counts what it has answered. "
        "Left out together with `delta`, runs need no guarantee; then there must be `own`.",
        examples=[4.0],
    )
    delta: float | None = Field(
        default=None,
        description="Delta at which this epsilon is computed, whatever delta a run has. It must be "
        "below one over the number of clients of a run, or of rows of the node's client with "
        "fewest; a tenth of that or less is usual.",
        examples=[1e-5],
    )
    exact_measures: bool = Field(
        default=False,
        description="Whether losses, accuracies and metrics in `report` are answered in runs whose "
        "`privacy.measures` gives them no noise. They have no "
        "noise and cost no epsilon: from those of models that it chooses, an operator can compute "
        "rows and labels. Without them runs are trained blindly.",
        examples=[True],
    )
    own: OwnPrivacy | None = Field(
        default=None,
        description="The node's own guarantee: it clips the messages of its clients and adds noise "
        "to their sum itself, whatever a run asks, and refuses rounds beyond its epsilon. It keeps "
        "count in `own.json` in its folder.",
        examples=[{"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}],
    )

    @property
    def bound(self) -> Bound | None:
        """The weakest guarantee of runs; None if they need none."""
        if self.epsilon is None or self.delta is None:
            return None
        return Bound(self.unit, self.epsilon, self.delta)

    def require_whole(self) -> None:
        """Raise `InputError` unless it bounds runs, or has a guarantee of its own."""
        require(
            (self.epsilon is None) == (self.delta is None),
            "policy.privacy: give epsilon and delta, or none of both",
        )
        require(
            self.epsilon is not None or self.own is not None,
            "policy.privacy: give epsilon and delta, or own, or all of them",
        )


class SecurePolicy(Section):
    """`[policy.secure]`: the nodes with which a node's messages are summed in secret."""

    threshold: int = Field(
        description="Fewest nodes of a sum, at least 3; a run may ask for more.", examples=[3]
    )
    honest: int = Field(
        default=1,
        description="Nodes of a sum, this one included, that a run may count on, with privacy, to "
        "add noise and keep it to themselves.",
        examples=[2],
    )
    peers: dict[str, str] = Field(
        description="The public key of each other node, a file by the node's name. Make sure by "
        "another way than the operator that the files are these nodes'.",
        examples=[{"hospital-b": "hospital-b.pub", "hospital-c": "hospital-c.pub"}],
    )


class Policy(Section):
    """`[policy]` of a node's file: what the node accepts, and what it reports of its data.

    An update is not a measure: `report` and `fewest_clients` do not bound what it reveals. The
    update of one step on all rows is a gradient, and for a cohort with one of the node's clients
    the sum is that client's. With `[compression]` no updates are summed on the node.
    """

    methods: list[str] = Field(
        default_factory=lambda: list(ALGORITHMS),
        description="Methods that the node runs; all of the library's if left out. One of your own "
        'is named "package.module:function", and must be installed on the node.',
        examples=[["fedprox", "fedavg"]],
    )
    models: list[str] = Field(
        default_factory=lambda: list(MODELS),
        description="Models that the node trains, named likewise.",
        examples=[["logistic"]],
    )
    runs: list[str] | None = Field(
        default=None,
        description="Runs that the node answers, each by the digest that `fedprox deploy FILE "
        "--describe` prints; any that the rest of the policy allows if left out. A run is one "
        "method with one seed. How often an approved run comes is bounded by `most_rounds` and "
        "`[policy.privacy]`.",
        examples=[["6dba51...", "0c77f2..."]],
    )
    base: str | None = Field(
        default=None,
        description="File of a model's parameters, as `fedprox.save_model` writes it, with the "
        "values that a run freezes (`frozen` and `lora` of `[model]`). Runs that freeze others "
        "are refused, and all that freeze some if left out.",
        examples=["pretrained.safetensors"],
    )
    most_rounds: int | None = Field(
        default=None,
        description="Most rounds that the node answers with its data, over all runs together and "
        "for each sweep point; no limit if left out.",
        examples=[1000],
    )
    most_epochs: float | None = Field(
        default=None,
        description="Most epochs of a client in a round, also where a solver counts steps; no "
        "limit if left out. A run in which one of the node's clients could take more is refused.",
        examples=[50.0],
    )
    report: list[Reportable] = Field(
        default=["loss", "accuracy", "metrics"],
        description="Measures of its data that the node reports, summed over its clients; those of "
        '`[policy.privacy]` need `exact_measures`. "gradients" must be named: one gradient can '
        'hold a row. Without "gradients" or "loss" the node refuses methods whose clients send '
        'gradients or losses of their own, and without "gradients" a solver with `gamma`, since '
        "steps show when a gradient was small. It does not limit what updates reveal.",
    )
    fewest_rows: int = Field(
        default=1,
        description="Fewest training rows of a client that takes part; the node does not mention "
        "clients with fewer. Also the fewest rows over which a measure is summed: measures of "
        "fewer test or validation rows are not reported. Above 1, as with `fewest_clients`, losses "
        "are not reported if those of some clients are not finite, since the model chooses whose.",
        examples=[50],
    )
    measured_rows: int | None = Field(
        default=None,
        description="Rows of each client that are measured at most, of each part of its data, and "
        "not below `fewest_rows`; all if left out. They are always the same rows, whatever a run "
        "asks for, and stand for all.",
        examples=[10000],
    )
    fewest_clients: int = Field(
        default=1,
        description="Fewest clients over which a measure is summed; measures of fewer are not "
        "reported. In methods whose clients send gradients or losses of their own, the node sits "
        "out rounds with fewer of its clients, and refuses runs if it has fewer. Above 1 it "
        "refuses a solver with `gamma`, and compression, by which each client's update travels by "
        "itself. Sums of updates are sent for any number of clients.",
        examples=[10],
    )
    privacy: PrivacyPolicy | None = Field(
        default=None,
        description="Weakest guarantee of differential privacy; runs without one are accepted if "
        "left out.",
    )
    secure: SecurePolicy | None = Field(
        default=None,
        description="Other nodes with which messages are summed in secret: runs in which the "
        "operator would see the node's own are refused. Runs with secure sums are refused if left "
        "out.",
    )

    @property
    def bound(self) -> Bound | None:
        """The weakest guarantee of differential privacy of a run; None if it needs none."""
        return None if self.privacy is None else self.privacy.bound

    @property
    def reported(self) -> list[Reportable]:
        """The measures that the node reports without noise, if it has enough clients."""
        if self.privacy is not None and not self.privacy.exact_measures:
            return []
        masked = self.privacy is not None or self.secure is not None
        # a gradient is as large as a message, and has neither noise nor masks
        never = {"gradients"} if masked else set()
        return [each for each in REPORTS if each in self.report and each not in never]

    def silent_on_losses(self, clients: int) -> str:
        """Why a node with so many clients reports no losses without noise; empty if it does."""
        if "loss" not in self.report:
            return 'policy.report has no "loss"'
        if "loss" not in self.reported:
            return "[policy.privacy] without exact_measures"
        few = clients < self.fewest_clients
        return f"policy.fewest_clients = {self.fewest_clients}, and it has {clients}" * few

    @property
    def reported_with_noise(self) -> list[Reportable]:
        """The measures that the node reports with noise, in runs that account for it.

        A node with a guarantee of its own reports none, as this noise is the run's.
        """
        if self.privacy is not None and self.privacy.own and not self.privacy.exact_measures:
            return []
        return [each for each in ("loss", "accuracy") if each in self.report]

    def check(self, setup: Setup) -> None:
        """Raise `InputError` if the policy does not allow what a run asks for."""
        if self.runs is not None:
            digest = digest_of_run(asked_of(setup))
            require(digest in self.runs, f"run {digest}; it is not in policy.runs")
            _require_calibrated(setup)
        self.check_names(setup.method, setup.model, setup.solver)
        require(
            setup.compression is None or self.fewest_clients == 1,
            "compression: each client's message travels by itself; that needs "
            "policy.fewest_clients = 1",
        )
        weakest = self.bound
        if weakest is not None:
            most = f"epsilon = {weakest.epsilon:g} with delta = {weakest.delta:g}"
            given = {"client": setup.privacy, "example": setup.private_steps}
            require(any(given.values()), f"a run without [privacy]; at most {most} is allowed")
            require(
                given[weakest.unit] is not None,
                f'a run whose privacy.unit is not "{weakest.unit}"; at most {most} is allowed for '
                f"each {weakest.unit}",
            )
        self._check_secure(setup.secure)

    def check_names(self, method: Table, model: Table, solver: Table) -> None:
        """Raise `InputError` if a method, a model, a loss or a solver is not allowed."""
        for kind, name, allowed in (
            ("method", method.get("name"), self.methods),
            ("model", model.get("name"), self.models),
        ):
            require(name in allowed, f"{kind} {name!r}; allowed: {', '.join(allowed) or 'none'}")
        for kind, kinds, given in (
            ("solver", "solvers", (solver, method.get("solver", {}))),
            ("loss", "losses", model.get("loss")),
        ):
            for name in jax.tree.leaves(given):
                own = isinstance(name, str) and ":" in name  # as "package.module:function"
                require(not own, f"{kind} {name!r}; a node runs the {kinds} of its library")

    def _check_secure(self, securing: Securing | None) -> None:
        """Raise `InputError` if messages are not summed in secret as the policy asks."""
        own = self.secure
        if own is None:
            require(securing is None, "deployment.secure: the node has no policy.secure")
            return
        line = "a run without deployment.secure; the node's messages are summed in secret only"
        given = required(securing, line)
        require(
            given.threshold >= own.threshold,
            f"deployment.secure.threshold = {given.threshold}; at least {own.threshold} is allowed",
        )
        require(
            given.honest <= own.honest,
            f"deployment.secure.honest = {given.honest}; at most {own.honest} is allowed",
        )
        require_threshold(given.threshold, len(set(given.nodes)))

    def check_rounds(self, spent: int, more: int) -> None:
        """Raise `InputError` if rounds are more than are left."""
        most = self.most_rounds
        require(
            most is None or spent + more <= most,
            f"{more} more rounds; the node has answered {spent}, and at most {most} are allowed "
            "over all runs",
        )

    def check_privacy(
        self,
        hiding: PrivateRounds,
        others: Sequence[tuple[Mechanism, int]],
        before: Composed | None = None,
    ) -> None:
        """Raise `InputError` if a private run costs more epsilon than is left."""
        if self.bound is None:
            return
        clients = hiding.mechanism.clients
        among = Hidden(clients, f"the {plural(clients, 'client')} of this run")
        among.require_delta("policy.privacy.delta", self.bound.delta)
        taken = (*others, (hiding.mechanism, hiding.rounds))
        _require_left(self.bound, taken, before, "for this run")

    def check_steps(
        self,
        clients: Mapping[str, Sequence[tuple[Mechanism, int]]],
        before: Mapping[str, Composed] = MappingProxyType({}),
    ) -> None:
        """Raise `InputError` if the private steps of a client cost more epsilon than is left."""
        most = self.bound
        for name, steps in clients.items() if most else ():
            if most and quick_epsilon(steps, most.delta, before.get(name)) > most.epsilon:
                whose = f"for each row of client {name!r}, of this run"
                _require_left(most, steps, before.get(name), whose)

    def check_declared_steps(
        self,
        declared: PrivateSteps | None,
        clients: Mapping[str, tuple[Mechanism, int]],
        beside: tuple[Mechanism, int] | None = None,
    ) -> None:
        """Raise `InputError` if steps of an approved run cost more epsilon than was approved.

        Given are the private steps of each client in this run, and evaluations with noise.
        """
        if self.runs is None or declared is None or declared.epsilon is None:
            return
        for name, steps in clients.items():
            released = [steps] if beside is None else [steps, beside]
            if quick_epsilon(released, declared.delta) > declared.epsilon:
                epsilon = epsilon_beside(*steps, beside)
                require(
                    epsilon <= declared.epsilon,
                    f"epsilon = {rounded_up(epsilon)} for each row of client {name!r}; epsilon = "
                    f"{declared.epsilon:g} was approved for the run",
                )

    def check_measures(self, algorithm: Algorithm, solver: Solver) -> None:
        """Raise `InputError` if a method's clients send measures that the node does not report."""
        for measure, sent in (
            ("gradients", algorithm.first.gradient),
            ("loss", algorithm.first.loss),
        ):
            require(
                not sent or measure in self.report,
                f"{algorithm.name}: its clients send what they measure, and policy.report does not "
                f'have "{measure}"',
            )
        require(
            solver.gamma is None or ("gradients" in self.reported and self.fewest_clients == 1),
            "solver.gamma: steps show when a client's gradient was small; that needs "
            '"gradients" in policy.report, and policy.fewest_clients = 1',
        )

    def check_planned(self, algorithm: Algorithm, solver: Solver, rows: NDArray[np.int64]) -> None:
        """Raise `InputError` if rounds of a run would be refused, as is known beforehand."""
        self.check_work(solver, rows, solver.steps_for(rows))
        require(
            len(rows) >= self.fewest_clients or not algorithm.first.measures,
            f"{algorithm.name}: its clients send what they measure, and gradients and losses of "
            f"fewer than {self.fewest_clients} clients are not sent; the node has {len(rows)}",
        )

    def check_clients(self, jobs: Jobs) -> None:
        """Raise `InputError` if a sum of gradients or losses would be of too few clients.

        With weights of the operator's choice, it could be that of one client but for rounding.
        """
        if self.fewest_clients <= 1:
            return
        self._require_clients(len(jobs.client))
        same = [np.ptp(a) <= 1e-6 * a.min() for a in (jobs.weight, jobs.weight / jobs.size)]
        require(
            jobs.weight.min() > 0 and any(same),
            f"weights {jobs.weight.tolist()}; in a sum of gradients or losses all weights are "
            "equal or those of rows: the node sits out this round",
        )

    def check_counted(self, jobs: Jobs, counted: NDArray[np.float32]) -> None:
        """Raise `InputError` if some clients are left out of such a sum, and too few remain."""
        if self.fewest_clients > 1:
            left_out = (jobs.weight.sum() - counted[counted > 0]) / jobs.weight.min()
            most = np.ceil(left_out - 0.01).max(initial=0)
            self._require_clients(len(jobs.client) - int(most))

    def _require_clients(self, count: int) -> None:
        require(
            count >= self.fewest_clients,
            f"{plural(count, 'client')}; gradients and losses of fewer than "
            f"{self.fewest_clients} are not sent: the node sits out this round",
        )

    def check_work(self, solver: Solver, rows: Any, steps: Any) -> None:
        """Raise `InputError` if jobs take more epochs than allowed."""
        if self.most_epochs is None or not len(steps):
            return
        epochs = (steps / solver.steps_per_epoch(rows)).max()
        require(
            epochs <= self.most_epochs,
            f"{epochs:g} epochs; at most {self.most_epochs:g} are allowed",
        )


def _require_calibrated(setup: Setup) -> None:
    """Raise `InputError` if the noise of clients is not enough for the epsilon of a run."""
    hiding = setup.privacy
    if hiding is None or hiding.epsilon is None:
        return
    beside = setup.measures and setup.measures.planned
    epsilon = epsilon_beside(hiding.mechanism, setup.rounds, beside)
    rounds = f"{plural(setup.rounds, 'round')} cost{'s' * (setup.rounds == 1)}"
    require(
        epsilon <= hiding.epsilon,
        f"privacy: {rounds} epsilon = {rounded_up(epsilon)}; the run declares {hiding.epsilon:g}",
    )


def _require_left(
    most: Bound,
    taken: Sequence[tuple[Mechanism, int]],
    before: Composed | None,
    whose: str,
) -> None:
    """Raise `InputError` if releases cost more epsilon than a policy allows."""
    epsilon = epsilon_together(tuple(taken), most.delta, before)
    require(
        epsilon <= most.epsilon,
        f"privacy: epsilon = {rounded_up(epsilon)} with delta = {most.delta:g} {whose} and all "
        f"before it together; at most epsilon = {most.epsilon:g} is allowed",
    )


SINGLE_ROUNDING = 1e-5
"""Relative error of numbers that were computed in single precision."""

DEVIATIONS = 10
"""Standard deviations of noise that are never exceeded."""


def check_declaration(setup: Setup, algorithm: Algorithm, points: int) -> None:
    """Raise `InputError` if what a private run declares does not fit its method."""
    hiding = setup.privacy
    private = [each for each in (hiding, setup.private_steps) if each is not None]
    require(len(private) < 2, "privacy hides clients or rows; a run has one of both")
    require(not private or points == 1, f"{points} sweep points; a private run has one")
    if hiding is None:
        return
    mechanism, cohort = hiding.mechanism, (setup.clients, setup.clients_per_round)
    declared, needed = (mechanism.clients, mechanism.clients_per_round), releases(algorithm)
    require(declared == cohort, f"cohorts of {cohort} clients; privacy is for {declared}")
    require(
        mechanism.releases == needed,
        f"privacy.mechanism.releases = {mechanism.releases}; a round of the method has {needed}",
    )
    strategy = mechanism.strategy
    require(
        strategy is None or strategy.rounds == setup.rounds,
        f"privacy.mechanism: a strategy that is not of {setup.rounds} rounds",
    )
    require(
        hiding.rounds >= setup.rounds,
        f"{plural(setup.rounds, 'round')}; privacy is declared for {hiding.rounds}",
    )


def check_jobs(
    setup: Setup, hiding: PrivateRounds, jobs: Jobs, round_: int, participation: float
) -> None:
    """Raise `InputError` if the jobs of a private round are not as declared."""
    mechanism, count = hiding.mechanism, len(jobs.client)
    most, strategy = mechanism.clients, mechanism.strategy
    if strategy is not None:
        group = group_of_round(setup.seed, round_, mechanism.clients, strategy.separation)
        require(
            bool(np.isin(jobs.client, group).all()),
            f"round {round_ + 1}: clients of another group, whose rounds are at least "
            f"{strategy.separation} apart",
        )
    if mechanism.sampling in ("uniform", "cyclic"):
        most = mechanism.clients_per_round
    elif mechanism.capacity is not None:
        most = mechanism.capacity
    require(count <= most, f"{plural(count, 'client')}; a private round has at most {most}")
    share = setup.clients_per_round / setup.clients
    for name, values, value in (
        ("weight", jobs.weight, 1 / setup.clients_per_round),
        ("relative_size", jobs.relative_size, 1.0),
        ("participation", np.array([participation]), share),
    ):
        same = np.allclose(values, value, rtol=SINGLE_ROUNDING, atol=0.0)
        require(same, f"{name} = {values.tolist()}; in this private run it is {value:g}")


def check_clip(setup: Setup, hiding: PrivateRounds, round_: int, clip: NDArray[np.float32]) -> None:
    """Raise `InputError` if a clipping norm is not the declared one, or cannot follow from it.

    An adaptive norm moves by a factor each round, which has a largest value.
    """
    declared, adaptive = np.float32(hiding.clip), hiding.adaptive_clip
    if adaptive is None:
        require((clip == declared).all(), f"clip = {clip.tolist()}; {declared:g} is declared")
        return
    mechanism = hiding.mechanism
    cohort, most = setup.clients_per_round, mechanism.capacity or mechanism.clients
    # of the mean of bits 1/2 or -1/2 from its quantile, with its noise
    distance = most / (2 * cohort) + 0.5 + DEVIATIONS * adaptive.count_noise / cohort
    reach = SINGLE_ROUNDING + round_ * (adaptive.rate * distance + SINGLE_ROUNDING)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.abs(np.log(clip.astype(np.float64)) - math.log(declared))
    require(
        (moved <= reach).all(),
        f"clip = {clip.tolist()}; in round {round_ + 1} it cannot be so far from {declared:g}, "
        "with which it began",
    )
