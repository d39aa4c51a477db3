"""A node's policy: what it computes for others, and what it reports."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from fedprox.algorithms import ALGORITHMS
from fedprox.deployment.messages import Hiding, Setup
from fedprox.errors import InputError, require
from fedprox.experiment.sections import Section
from fedprox.models import MODELS
from fedprox.privacy.accounting import epsilon_of, rounded_up
from fedprox.solver import Solver

Report = Literal["loss", "accuracy", "metrics", "gradients"]
"""Measures that a node may report."""

REPORTS: tuple[Report, ...] = get_args(Report)


class PrivacyPolicy(Section):
    """`[policy.privacy]`: the weakest guarantee of differential privacy that a node accepts."""

    epsilon: float = Field(description="Largest epsilon of a run.", examples=[4.0])
    delta: float = Field(description="Largest delta of a run.", examples=[1e-5])


class Policy(Section):
    """`[policy]` of a node's file: what the node accepts, and what it reports of its data."""

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
    most_rounds: int | None = Field(
        default=None, description="Most rounds of a run; no limit if left out.", examples=[1000]
    )
    most_epochs: float | None = Field(
        default=None,
        description="Most epochs of a client in a round, also where a solver counts steps; no "
        "limit if left out.",
        examples=[50.0],
    )
    report: list[Report] = Field(
        default_factory=lambda: list(REPORTS),
        description="Measures of its data that the node reports, summed over its clients.",
    )
    fewest_rows: int = Field(
        default=1,
        description="Fewest training rows of a client that takes part; the node does not mention "
        "clients with fewer.",
    )
    fewest_clients: int = Field(
        default=1,
        description="Fewest clients over which a measure is summed; measures of fewer are not "
        "reported.",
        examples=[10],
    )
    privacy: PrivacyPolicy | None = Field(
        default=None,
        description="Weakest guarantee of differential privacy; runs without one are accepted if "
        "left out.",
    )

    def check(self, setup: Setup) -> None:
        """Raise `InputError` if the policy does not allow what a run asks for."""
        for kind, name, allowed in (
            ("method", setup.method.get("name"), self.methods),
            ("model", setup.model.get("name"), self.models),
        ):
            require(name in allowed, f"{kind} {name!r}; allowed: {', '.join(allowed) or 'none'}")
        for name in _functions((setup.solver, setup.method.get("solver", {}))):
            raise InputError(f"solver {name!r}; a node runs the solvers of its library")
        require(
            self.most_rounds is None or setup.rounds <= self.most_rounds,
            f"{setup.rounds} rounds; at most {self.most_rounds} are allowed",
        )
        if self.privacy is not None:
            self._check_privacy(self.privacy, setup.privacy)

    def _check_privacy(self, weakest: PrivacyPolicy, hiding: Hiding | None) -> None:
        allowed = f"epsilon = {weakest.epsilon:g} with delta = {weakest.delta:g} is allowed"
        require(hiding is not None, f"a run without [privacy]; at most {allowed}")
        assert hiding is not None
        delta, spent = hiding.mechanism.delta, epsilon_of(hiding.mechanism, hiding.rounds)
        require(
            delta <= weakest.delta and spent <= weakest.epsilon,
            f"privacy: epsilon = {rounded_up(spent)} with delta = {delta:g}; at most {allowed}",
        )

    def check_work(self, solver: Solver, rows: Any, steps: Any) -> None:
        """Raise `InputError` if jobs take more epochs than allowed.

        Args:
            solver: The local solver.
            rows: Training rows of each client, shape (jobs,).
            steps: Mini-batch steps of each job, shape (jobs,).
        """
        if self.most_epochs is None or not len(steps):
            return
        epochs = float((steps / solver.steps_per_epoch(rows)).max())
        require(
            epochs <= self.most_epochs,
            f"{epochs:g} epochs; at most {self.most_epochs:g} are allowed",
        )


def _functions(tables: Any) -> Iterator[str]:
    """The functions of users that tables name, as "package.module:function"."""
    if isinstance(tables, Mapping):
        tables = tables.values()
    elif isinstance(tables, str):
        if ":" in tables:
            yield tables
        return
    elif not isinstance(tables, list | tuple):
        return
    for each in tables:
        if each is not tables:
            yield from _functions(each)
