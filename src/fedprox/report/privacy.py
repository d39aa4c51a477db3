"""The privacy of an experiment as a page in the terminal, before anything is trained."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from fedprox.epsilon import Spent, noise_of
from fedprox.parts.privacy.accounting import (
    Mechanism,
    Releases,
    as_one,
    epsilon_beside,
    epsilon_of,
    rounded_up,
    statement,
)
from fedprox.parts.privacy.correlated import (
    CORRELATIONS,
    Strategy,
    error,
    last_deviation,
    reach,
)
from fedprox.parts.privacy.measures import evaluations_of
from fedprox.parts.privacy.setting import Privacy, mechanism_of, releases
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.released import deviations
from fedprox.report.table import TextTable, facts, grid

LARGER, FEWER = (2, 4), (2, 4)
"""Factors of the cohorts, and divisors of the rounds, that the page compares."""

RELEASES = {1: "one noised sum a round", 2: "two noised sums a round"}


def privacy_page(privacy: Privacy, methods: Sequence[Method]) -> Group:
    """The noise, its epsilon and the guarantee of each method, without training."""
    if privacy.unit == "example":
        sections = [_of_examples(privacy, method) for method in methods]
    else:
        alike: dict[int, list[Method]] = {}
        for method in methods:
            alike.setdefault(releases(method.algorithm), []).append(method)
        sections = [_of_clients(privacy, alike[count], count) for count in sorted(alike)]
    parts = [part for section in sections for part in (*section, Text())]
    return Group(*parts[:-1])


def _of_clients(
    privacy: Privacy, methods: Sequence[Method], releases: int
) -> Iterator[RenderableType]:
    """The section of methods with as many noised sums a round."""
    protocol = methods[0].protocol
    rounds = protocol.rounds
    mechanism = _mechanism(protocol, releases, privacy, protocol.cohort.clients_per_round, rounds)
    names = ", ".join(dict.fromkeys(method.algorithm.name for method in methods))
    what = RELEASES[releases] if privacy.of_server else "a noised message of each client a round"
    beside = privacy.of_measures(protocol.evaluations)
    yield Text(f"{names}: {what}", style="bold")
    yield _facts(privacy, mechanism, rounds, protocol.cohort.clients_per_round, beside)
    yield Text()
    yield Text(f"Epsilon after a number of rounds, with delta = {mechanism.delta:g}")
    yield _by_rounds(protocol, privacy, mechanism)
    yield Text()
    if mechanism.noise_multiplier and mechanism.strategy is None and privacy.of_server:
        kept = "epsilon" if privacy.epsilon else "noise in the mean"
        yield Text(f"Larger cohorts and fewer rounds, with the same {kept}")
        yield _alternatives(protocol, privacy, releases)
        yield Text()
    yield from _plans(privacy, methods[0])
    trusted = privacy.of_server
    yield from map(Text, statement(mechanism, rounds, beside=beside, trusted=trusted))


def _of_examples(privacy: Privacy, method: Method) -> Iterator[RenderableType]:
    """The section of a method with privacy of examples."""
    tenths, noise = _tenths(method.protocol.rounds), noise_of(method) or 0.0
    seeds = [Spent(method, seed) for seed in method.protocol.seeds]
    spent = [_worst(seeds, t) for t in tenths]
    yield Text(f"{method.name}: a noised sum in each local step", style="bold")
    worst, _ = spent[-1]
    if not worst:
        yield Text("No client takes a step.")
        return
    yield facts(
        [
            ("noise multiplier", f"{noise:.5g}", _target(privacy)),
            (
                "noise in a gradient",
                _deviation(privacy, noise, worst[0].clients_per_round),
                "of the worst client",
            ),
        ]
    )
    shown = grid(("rounds", "epsilon", "steps", "rows"))
    for t, (steps, epsilon) in zip(tenths, spent, strict=True):
        of = (f"{steps[1]:,}", f"{steps[0].clients:,}") if steps else ("0", "")
        shown.add_row(f"{t:,}", rounded_up(epsilon), *of)
    yield Text()
    yield Text(f"Epsilon of the worst client, with delta = {privacy.delta:g}")
    yield shown
    yield Text()
    yield from _plans(privacy, method)
    yield from map(Text, _of_worst(method, worst))


def _of_worst(method: Method, worst: Releases) -> list[str]:
    """The guarantee for the rows of the worst client."""
    protocol = method.protocol
    assert protocol.privacy is not None
    beside = protocol.privacy.of_measures(protocol.evaluations)
    return statement(worst[0], protocol.rounds, taken=worst[1], beside=beside)


SELDOMER = 1, 2, 5
"""Factors of the rounds between evaluations that the page compares."""


def _plans(privacy: Privacy, method: Method) -> Iterator[RenderableType]:
    """The costs of plans of evaluations, and the noise of their measures."""
    if privacy.measures is None:
        return
    protocol = method.protocol
    rounds, every = protocol.rounds, protocol.evaluation.every
    plans = sorted({min(factor * every, rounds) for factor in SELDOMER} | {rounds})
    names = list(deviations(protocol, 0.0))
    header = ("evaluations", "every", "noise multiplier", "epsilon of measures alone")
    shown = grid((*header, *(f"noise in {name}" for name in names)))
    for each in plans:
        one, count = privacy.of_measures(evaluations_of(rounds, each, rounds)) or (None, 0)
        assert one is not None
        noise = deviations(protocol, one.noise_multiplier)
        cells = f"{count:,}", f"{each:,}", f"{one.noise_multiplier:.5g}"
        numbers = (f"{noise[name]:.3g}" for name in names)
        style = "bold" if each == every else ""
        shown.add_row(*cells, rounded_up(epsilon_of(one, count)), *numbers, style=style)
    yield Text("Measures with noise, which is smaller for fewer evaluations")
    yield shown
    yield Text()


def guarantee(method: Method) -> list[str]:
    """The whole guarantee of a method's run in plain sentences; empty if no client takes a step."""
    rounds = method.protocol.rounds
    privacy, evaluations = method.protocol.privacy, method.protocol.evaluations
    if method.mechanism and privacy:
        beside, trusted = privacy.of_measures(evaluations), privacy.of_server
        return statement(method.mechanism, rounds, beside=beside, trusted=trusted)
    worst, _ = _worst([Spent(method, seed) for seed in method.protocol.seeds], rounds)
    return _of_worst(method, worst) if worst else []


def _target(privacy: Privacy) -> str:
    """Where the noise comes from."""
    return f"for epsilon = {privacy.epsilon:g}" if privacy.epsilon else "given"


def _worst(seeds: Iterable[Spent], rounds: int) -> tuple[Releases | None, float]:
    """As `Spent.worst`, of several seeds."""
    return max((each.worst(rounds) for each in seeds), key=lambda one: one[1])


def _tenths(rounds: int) -> list[int]:
    """Each tenth of the rounds."""
    return sorted({math.ceil(rounds * i / 10) for i in range(1, 11)})


def _mechanism(
    protocol: Protocol, releases: int, privacy: Privacy, clients_per_round: int, rounds: int
) -> Mechanism:
    """The mechanism of the protocol's runs with other privacy, cohorts and rounds."""
    clients, sampling = len(protocol.federation), protocol.cohort.sampling
    given = clients, clients_per_round, sampling, rounds
    beside = _evaluated(protocol, privacy, rounds, rounds)
    return mechanism_of(privacy, *given, releases, privacy.strategy(protocol.setting), beside)


def _evaluated(protocol: Protocol, privacy: Privacy, rounds: int, done: int) -> Releases | None:
    """The evaluations of a run of so many rounds, up to one of them; None without noise."""
    every = protocol.evaluation.every
    planned = privacy.of_measures(evaluations_of(rounds, every, rounds))
    return planned and (planned[0], evaluations_of(rounds, every, done))


def _deviation(privacy: Privacy, noise: float, count: int) -> str:
    """The standard deviation of the noise in each coordinate of a mean, as text."""
    noises = 1 if privacy.of_server else math.sqrt(count)
    return f"{noise * privacy.clip / count * noises if noise else 0.0:.5g}"


def _facts(
    privacy: Privacy, mechanism: Mechanism, rounds: int, mean: int, beside: Releases | None
) -> TextTable:
    """The noise, the largest cohort, and what its limit costs."""
    noise = mechanism.noise_multiplier
    rows = [("noise multiplier", f"{noise:.5g}", _target(privacy))]
    if privacy.adaptive_clip:
        of_messages = f"{privacy.update_noise(noise):.5g}"
        rows.append(("of the messages", of_messages, "the rest hides who was clipped"))
    if mechanism.strategy is not None:
        return facts([*rows, *_of_rounds_apart(privacy, mechanism, mechanism.strategy)])
    first = "at first" if privacy.adaptive_clip else ""
    rows.append(("noise in the mean", _deviation(privacy, noise, mean), first))
    if mechanism.cut:
        rows.append(("largest cohort", f"{mechanism.capacity:,}", f"mean {mean:,}"))
    if mechanism.cut and noise:
        free = mechanism._replace(capacity=None)
        cost = [epsilon_beside(each, rounds, beside) for each in (mechanism, free)]
        shown = " with the limit, and without ".join(f"{epsilon:.4f}" for epsilon in cost)
        rows.append(("cost of the limit", f"{max(0.0, cost[0] - cost[1]):.4f}", shown))
    return facts(rows)


def _of_rounds_apart(
    privacy: Privacy, mechanism: Mechanism, strategy: Strategy
) -> list[tuple[str, str, str]]:
    """How noise is correlated, and how much of it a model has."""
    rounds, noise, count = strategy.rounds, mechanism.noise_multiplier, mechanism.clients_per_round
    times = strategy.participations(rounds)
    one, _ = as_one(mechanism, rounds)
    rows = [
        ("mechanism", strategy.kind, CORRELATIONS[strategy.kind]),
        ("rounds of a client", f"{times:,}", f"at most, at least {strategy.separation:,} apart"),
        ("of one mechanism", f"{one.noise_multiplier:.5g}", "over all that a client moves"),
        (
            "noise in the mean",
            _deviation(privacy, noise * last_deviation(strategy), count),
            "of the last round",
        ),
        (
            "noise in a model",
            _deviation(privacy, noise * error(strategy), count),
            "sum of the noise so far, root mean square over rounds",
        ),
    ]
    if strategy.correlates:
        plain = Strategy("independent", strategy.separation, rounds)
        less = [error(each) * reach(each, rounds).all for each in (plain, strategy)]
        rows.append(
            ("gain", f"{less[0] / less[1]:.3g}", "times less of it than with independent noise")
        )
    return rows


def _by_rounds(protocol: Protocol, privacy: Privacy, mechanism: Mechanism) -> TextTable:
    """Epsilon after each tenth of the rounds, with each accountant."""
    tenths, unlimited = _tenths(protocol.rounds), mechanism._replace(capacity=None)
    shown, columns = grid(["rounds"]), []
    for name, each in _accountants(protocol, privacy, mechanism).items():
        this = each == (mechanism if mechanism.cut else unlimited)
        shown.add_column(name, justify="right", style="bold" if this else "")
        beside = {t: _evaluated(protocol, privacy, protocol.rounds, t) for t in tenths}
        known = [rounded_up(epsilon_beside(each, t, beside[t])) for t in tenths] if each else []
        columns.append(known or ["not accounted"] * len(tenths))
    for rounds, *cells in zip(tenths, *columns, strict=True):
        shown.add_row(f"{rounds:,}", *cells)
    return shown


def _accountants(
    protocol: Protocol, privacy: Privacy, mechanism: Mechanism
) -> dict[str, Mechanism | None]:
    """The accountants in words, and the mechanism as each accounts for it; None if it cannot."""
    if mechanism.replaces:
        return {"rdp": mechanism._replace(accountant="rdp"), "pld": None}
    if mechanism.everybody or mechanism.strategy is not None:
        return {name: mechanism._replace(accountant=name) for name in ("pld", "rdp")}
    noise = mechanism.noise_multiplier
    given = replace(privacy, accountant="pld", epsilon=None, noise_multiplier=noise, measures=None)
    count = protocol.cohort.clients_per_round
    limited = _mechanism(protocol, mechanism.releases, given, count, protocol.rounds)
    return {
        **({f"pld, at most {limited.capacity:,} clients": limited} if limited.cut else {}),
        "pld, no limit": mechanism._replace(accountant="pld", capacity=None),
        "rdp, no limit": mechanism._replace(accountant="rdp", capacity=None),
    }


def _alternatives(protocol: Protocol, privacy: Privacy, releases: int) -> TextTable:
    """A table of the plan and, below it, of larger cohorts and fewer rounds."""
    mean, rounds = protocol.cohort.clients_per_round, protocol.rounds
    plans = [(privacy, mean, rounds)]
    for factor in LARGER:
        if factor * mean <= len(protocol.federation):
            names = ("capacity", "noise_multiplier")
            scaled = {name: factor * value for name in names if (value := getattr(privacy, name))}
            plans.append((replace(privacy, **scaled), factor * mean, rounds))
    plans += [(privacy, mean, rounds // divisor) for divisor in FEWER if rounds >= divisor]
    shown = grid(("clients a round", "rounds", "noise multiplier", "noise in the mean", "epsilon"))
    for each, count, t in plans:
        changed = _mechanism(protocol, releases, each, count, t)
        beside, noise = _evaluated(protocol, each, t, t), changed.noise_multiplier
        epsilon = epsilon_beside(changed, t, beside)
        cells = f"{count:,}", f"{t:,}", f"{noise:.5g}", _deviation(each, noise, count)
        style = "bold" if (count, t) == (mean, rounds) else ""
        shown.add_row(*cells, rounded_up(epsilon), style=style)
    return shown
