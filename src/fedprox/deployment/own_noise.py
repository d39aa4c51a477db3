r"""A site's own guarantee: what a node clips, noises and counts itself, whatever a run asks.

A node with `own` in `[policy.privacy]` scales the message of each of its clients to a norm of at
most :math:`C`, and adds noise to their weighted sum. A secure sum or the run's own privacy come
after that:

.. math:: \sum_k w_k m_k \min(1, C / \|m_k\|) + \mathcal N(0, (z C \max_k w_k)^2 I).

A client moves the sum by at most :math:`C \max_k w_k`, so each sum is a Gaussian mechanism with the
multiplier :math:`z`. Sums of a client are Gaussian mechanisms one after the other, also if runs,
rounds and cohorts are chosen by what earlier ones released. Together they are one of multiplier

.. math:: \Big( \sum_t z_t^{-2} \Big)^{-1/2}

over the sums :math:`t` in which the client took part (Smith and Thakurta 2022, "Fully Adaptive
Composition for Gaussian Differential Privacy"; Koskela et al. 2023, "Individual Privacy Accounting
with Gaussian Differential Privacy"). So the node keeps one number for each client,
:math:`\sum_t z_t^{-2}`, and refuses a sum that would make it too large. Who takes part is public,
and no amplification by sampling is counted.

The noise is of the system's entropy, other noise each time. So a request that is computed anew is
counted anew.
"""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np
from pydantic import Field

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
)
from fedprox.deployment.entropy import system_normals
from fedprox.deployment.kept import NodeMemory, read_kept, write_kept
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.policy import OwnPrivacy
from fedprox.deployment.wire import Finite, Setup, SiteNoise
from fedprox.engine.planning.jobs import Jobs
from fedprox.errors import InputError, plural, require, require_number, require_whole
from fedprox.model import Params
from fedprox.parts.compatible import Case, check_case
from fedprox.parts.privacy import Privacy
from fedprox.parts.privacy.accounting import (
    NOISES,
    Hidden,
    Mechanism,
    calibrated_mechanism,
    epsilon_of,
    rounded_up,
)
from fedprox.parts.privacy.setting import CLIPS, clip_to, releases, sound_or_silent

ROUNDING = 1e-9
"""Relative rounding error of a sum of many numbers, below the margin of a calibrated noise."""


class OwnSpent(NodeMemory):
    r"""The cost of a node's sums to each of its clients.

    Attributes:
        clients: :math:`\sum_t z_t^{-2}` of each client, over all runs.
    """

    FILE: ClassVar = "own.json"
    DAMAGED: ClassVar = (
        "it counts what the node's own guarantee has spent: restore it from a copy, or remove it "
        "to count from 0"
    )
    clients: dict[str, Finite] = Field(default_factory=dict)


def gaussian(noise_multiplier: float, delta: float) -> Mechanism:
    """A sum in which a client takes part for certain."""
    return Mechanism(1, 1, "bernoulli", None, noise_multiplier, 1, delta, "pld")


class SiteGuarantee:
    """The noise that a node adds itself, and what it has spent.

    Args:
        given: The setting in the node's file.
        folder: The node's folder.
        clients: The number of the node's clients.
    """

    def __init__(self, given: OwnPrivacy, folder: Path, clients: int) -> None:
        place = "policy.privacy.own"
        require_number(f"{place}.epsilon", given.epsilon, most=1e5, positive=True)
        require_number(f"{place}.delta", given.delta, most=1, positive=True)
        Hidden(clients, f"{plural(clients, 'client')} of the node").require_delta(
            f"{place}.delta", given.delta
        )
        least, most = CLIPS
        require_number(f"{place}.clip", given.clip, positive=True)
        require(
            least <= given.clip <= most,
            f"{place}.clip = {given.clip!r}; it must be from {least:g} to {most:g}",
        )
        require_whole(f"{place}.rounds", given.rounds, optional=True)
        self.given, self.folder = given, folder
        one = calibrated_mechanism(gaussian(0.0, given.delta), given.epsilon, 1)
        self.declared = SiteNoise(
            clip=given.clip, noise_multiplier=one.noise_multiplier, rounds=given.rounds
        )
        self.spent = read_kept(OwnSpent, folder)

    def multiplier(self, setup: Setup, method: Algorithm, points: int) -> float:
        """The noise multiplier of each sum of a run."""
        return self.declared.multiplier(setup.rounds, points, releases(method))

    def epsilon(self, clients: Iterable[str]) -> float:
        """The epsilon spent by the client that has spent most, among some clients."""
        return self._epsilon(max(self.spent.clients.get(name, 0.0) for name in clients))

    def _epsilon(self, spent: float) -> float:
        """An upper bound of epsilon of so much."""
        if not spent:
            return 0.0
        noise = min(NOISES[1], max(NOISES[0], spent**-0.5))
        return epsilon_of(gaussian(noise, self.given.delta), 1)

    def paid(self, clients: Iterable[str], noise_multiplier: float, points: int) -> OwnSpent:
        """The spending after a sum at each sweep point; `InputError` if too little is left."""
        more, most = points * noise_multiplier**-2, self.declared.noise_multiplier**-2
        after = dict(self.spent.clients)
        for name in clients:
            before = after.get(name, 0.0)
            after[name] = before + more
            if after[name] > most * (1 + ROUNDING):
                raise InputError(
                    f"policy.privacy.own: client {name!r} has spent epsilon = "
                    f"{rounded_up(self._epsilon(before))} over all runs; with this round it would "
                    f"be above {self.given.epsilon:g} with delta = {self.given.delta:g}"
                )
        return OwnSpent(clients=after)

    def pay(self, clients: Iterable[str], noise_multiplier: float, points: int) -> None:
        """Count a sum on disk, before it is computed."""
        after = self.paid(clients, noise_multiplier, points)
        write_kept(self.folder, after)
        self.spent = after

    def noised(self, part: RoundPart, jobs: Jobs, noise_multiplier: float) -> RoundPart:
        """A node's part of a round with noise in its sum."""
        deviation = noise_multiplier * self.given.clip * jobs.weight.max(initial=0.0)

        def one(sums: Any, normals: Any) -> Any:
            return (np.asarray(sums, np.float64) + deviation * normals).astype(sums.dtype)

        message = jax.tree.map(one, part.message, system_normals(part.message))
        return part._replace(message=message)


def check_noised(setup: Setup, case: Case) -> None:
    """Raise `InputError` if a run cannot have noise in its messages, whoever adds it.

    Settings that exclude the unit "client" of `fedprox.Privacy` exclude such noise too.
    """
    place = "policy.privacy.own"
    adaptive = setup.privacy is not None and setup.privacy.adaptive_clip is not None
    require(not adaptive, f"{place}: privacy.adaptive_clip reads bits that would have noise")
    settings = {field.name: getattr(case.settings, field.name) for field in fields(case.settings)}
    noised = Privacy(1.0, noise_multiplier=1.0)
    try:
        check_case(case._replace(settings=SimpleNamespace(**settings | {"privacy": noised})))
    except InputError as error:
        raise InputError(f'{place} is as [privacy] with unit = "client": {error}') from None


def clipped(algorithm: Algorithm, clip: float) -> Algorithm:
    """A method whose clients send at most a norm, in training and in a first exchange."""

    def message(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, ClientState]:
        sent, after = algorithm.client.message(state, hparams, context, solution)
        return sound_or_silent(clip_to(clip, sent)[0], after, context.state)

    def gradient(given: Params) -> Params:
        sent, _ = clip_to(clip, algorithm.first.sent(given))
        return sound_or_silent(sent, None, None)[0]

    return algorithm._replace(
        client=algorithm.client._replace(message=message, possible=None),
        first=algorithm.first._replace(sent=gradient),
    )
