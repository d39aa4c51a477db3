"""The privacy of an experiment as a page in the terminal, before anything is trained."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from fedprox.algorithms import Algorithm
from fedprox.loop.epsilon import Spent, noise_of
from fedprox.parts.privacy.accounting import (
    Mechanism,
    Steps,
    epsilons,
    mechanism_of,
    rounded_up,
    statement,
    statement_of_steps,
)
from fedprox.parts.privacy.clients import releases
from fedprox.parts.privacy.setting import Privacy
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.method import Method
from fedprox.report.table import TextTable, facts, grid

LARGER = 2, 4
"""Factors of the cohorts that the page compares."""

FEWER = 2, 4
"""Divisors of the rounds that the page compares."""

RELEASES = {1: "one noised sum a round", 2: "two noised sums a round"}


class Plan(NamedTuple):
    """What the privacy of an experiment depends on."""

    privacy: Privacy
    cohort: Cohort
    clients: int
    rounds: int

    def mechanism(self, releases: int) -> Mechanism:
        """The mechanism of a method with so many noised sums a round."""
        count, sampling = self.cohort.clients_per_round, self.cohort.sampling
        return mechanism_of(self.privacy, self.clients, count, sampling, self.rounds, releases)


def privacy_page(plan: Plan, methods: Sequence[Algorithm]) -> Group:
    """The noise, its epsilon and the guarantee of each method, without training."""
    parts: list[RenderableType] = []
    for count in sorted({releases(method) for method in methods}):
        names = dict.fromkeys(m.name for m in methods if releases(m) == count)
        mechanism = plan.mechanism(count)
        parts += [
            Text(f"{', '.join(names)}: {RELEASES[count]}", style="bold"),
            _facts(plan, mechanism),
            Text(),
            Text(f"Epsilon after a number of rounds, with delta = {mechanism.delta:g}"),
            _by_rounds(plan, mechanism),
            Text(),
        ]
        if mechanism.noise_multiplier:
            kept = "epsilon" if plan.privacy.epsilon is not None else "noise in the mean"
            parts += [
                Text(f"Larger cohorts and fewer rounds, with the same {kept}"),
                _alternatives(plan, mechanism),
                Text(),
            ]
        parts += [*map(Text, statement(mechanism, plan.rounds)), Text()]
    return Group(*parts[:-1])


def examples_page(methods: Sequence[Method]) -> Group:
    """As `privacy_page`, with privacy of examples."""
    parts: list[RenderableType] = []
    for method in methods:
        privacy, noise = _given(method)
        tenths = _tenths(method.protocol.rounds)
        seeds = [Spent(method, seed) for seed in method.protocol.seeds]
        spent = [_worst(seeds, t) for t in tenths]
        parts.append(Text(f"{method.name}: a noised sum in each local step", style="bold"))
        worst = spent[-1][0]
        if worst is None:
            parts += [Text("No client takes a step."), Text()]
            continue
        deviation = noise * privacy.clip / worst.batch if noise else 0.0
        of_noise = [
            ("noise multiplier", f"{noise:.5g}", _target(privacy)),
            ("noise in a gradient", f"{deviation:.5g}", "of the worst client"),
        ]
        shown = grid(("rounds", "epsilon", "steps", "rows"))
        for t, (steps, epsilon) in zip(tenths, spent, strict=True):
            of = ("0", "") if steps is None else (f"{steps.taken:,}", f"{steps.rows:,}")
            shown.add_row(f"{t:,}", rounded_up(epsilon), *of)
        parts += [
            facts(of_noise),
            Text(),
            Text(f"Epsilon of the worst client, with delta = {privacy.delta:g}"),
            shown,
            Text(),
            *map(Text, guarantee(method)),
            Text(),
        ]
    return Group(*parts[:-1])


def guarantee(method: Method) -> list[str]:
    """The whole guarantee of a method's run in plain sentences; empty if no client takes a step."""
    (privacy, noise), rounds = _given(method), method.protocol.rounds
    if method.mechanism is not None:
        return statement(method.mechanism, rounds)
    worst, _ = _worst([Spent(method, seed) for seed in method.protocol.seeds], rounds)
    return [] if worst is None else statement_of_steps(privacy, noise, worst, rounds)


def _given(method: Method) -> tuple[Privacy, float]:
    """The privacy of a method that has it, and its noise."""
    privacy, noise = method.protocol.privacy, noise_of(method)
    assert privacy is not None
    assert noise is not None
    return privacy, noise


def _target(privacy: Privacy) -> str:
    """Where the noise comes from."""
    return "given" if privacy.epsilon is None else f"for epsilon = {privacy.epsilon:g}"


def _worst(seeds: Sequence[Spent], rounds: int) -> tuple[Steps | None, float]:
    """As `Spent.worst`, of several seeds."""
    return max((each.worst(rounds) for each in seeds), key=lambda one: one[1])


def _tenths(rounds: int) -> list[int]:
    """Each tenth of the rounds."""
    return sorted({math.ceil(rounds * i / 10) for i in range(1, 11)})


def _facts(plan: Plan, mechanism: Mechanism) -> TextTable:
    """The noise, the largest cohort, and what its limit costs."""
    privacy, noise = plan.privacy, mechanism.noise_multiplier
    rows = [("noise multiplier", f"{noise:.5g}", _target(privacy))]
    first = ""
    if privacy.adaptive_clip is not None:
        messages, first = privacy.update_noise(noise), "at first"
        rows.append(("of the messages", f"{messages:.5g}", "the rest hides who was clipped"))
    rows.append(("noise in the mean", f"{_in_mean(plan, mechanism):.5g}", first))
    if mechanism.cut:
        mean = f"mean {mechanism.clients_per_round:,}"
        rows.append(("largest cohort", f"{mechanism.capacity:,}", mean))
    if mechanism.cut and noise:
        free = mechanism._replace(capacity=None)
        cost = [epsilons(each, [plan.rounds])[0] for each in (mechanism, free)]
        shown = " with the limit, and without ".join(f"{epsilon:.4f}" for epsilon in cost)
        rows.append(("cost of the limit", f"{max(0.0, cost[0] - cost[1]):.4f}", shown))
    return facts(rows)


def _in_mean(plan: Plan, mechanism: Mechanism) -> float:
    """The standard deviation of the noise in each coordinate of the mean."""
    noise = mechanism.noise_multiplier
    return noise * plan.privacy.clip / mechanism.clients_per_round if noise else 0.0


def _by_rounds(plan: Plan, mechanism: Mechanism) -> TextTable:
    """Epsilon after each tenth of the rounds, with each accountant."""
    tenths, unlimited = _tenths(plan.rounds), mechanism._replace(capacity=None)
    shown = grid(["rounds"])
    columns = []
    for name, each in _accountants(plan, mechanism):
        this = each == (mechanism if mechanism.cut else unlimited)
        shown.add_column(name, justify="right", style="bold" if this else "")
        known = [] if each is None else map(rounded_up, epsilons(each, tenths))
        columns.append(list(known) or ["not accounted"] * len(tenths))
    for rounds, *cells in zip(tenths, *columns, strict=True):
        shown.add_row(f"{rounds:,}", *cells)
    return shown


def _accountants(plan: Plan, mechanism: Mechanism) -> Iterator[tuple[str, Mechanism | None]]:
    """The accountants in words, and the mechanism as each accounts for it; None if it cannot."""
    if mechanism.replaces:
        yield "rdp", mechanism._replace(accountant="rdp")
        yield "pld", None
        return
    if mechanism.everybody:
        yield "pld", mechanism._replace(accountant="pld")
        yield "rdp", mechanism._replace(accountant="rdp")
        return
    noise = mechanism.noise_multiplier
    given = replace(plan.privacy, accountant="pld", epsilon=None, noise_multiplier=noise)
    limited = plan._replace(privacy=given).mechanism(mechanism.releases)
    if limited.cut:
        yield f"pld, at most {limited.capacity:,} clients", limited
    yield "pld, no limit", mechanism._replace(accountant="pld", capacity=None)
    yield "rdp, no limit", mechanism._replace(accountant="rdp", capacity=None)


def _alternatives(plan: Plan, mechanism: Mechanism) -> TextTable:
    """What larger cohorts and fewer rounds give."""
    headers = "clients a round", "rounds", "noise multiplier", "noise in the mean", "epsilon"
    shown = grid(headers)
    for other in _plans(plan):
        changed = other.mechanism(mechanism.releases)
        (epsilon,) = epsilons(changed, [other.rounds])
        cells = (
            f"{other.cohort.clients_per_round:,}",
            f"{other.rounds:,}",
            f"{changed.noise_multiplier:.5g}",
            f"{_in_mean(other, changed):.5g}",
            rounded_up(epsilon),
        )
        shown.add_row(*cells, style="bold" if other == plan else "")
    return shown


def _plans(plan: Plan) -> Iterator[Plan]:
    """The plan, with larger cohorts, and with fewer rounds."""
    yield plan
    privacy, mean = plan.privacy, plan.cohort.clients_per_round
    for factor in LARGER:
        if factor * mean > plan.clients:
            continue
        scaled: dict[str, Any] = {
            name: factor * value
            for name, value in (
                ("capacity", privacy.capacity),
                ("noise_multiplier", privacy.noise_multiplier),
            )
            if value is not None
        }
        cohort = replace(plan.cohort, clients_per_round=factor * mean)
        yield plan._replace(privacy=replace(privacy, **scaled), cohort=cohort)
    for divisor in FEWER:
        if plan.rounds >= divisor:
            yield plan._replace(rounds=plan.rounds // divisor)
