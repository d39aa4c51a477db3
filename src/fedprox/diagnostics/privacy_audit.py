"""An audit of privacy: canaries through the real program, and a lower bound of epsilon.

The bound is that of `fedprox.parts.privacy.one_run`, for an auditor who knows everything but the
canaries' coins.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.errors import require, require_whole, shown
from fedprox.features import Features, arrays_at, map_leaves
from fedprox.federation import Federation, Rows, no_rows
from fedprox.loop.simulate import rounds
from fedprox.loop.snapshot import Stage
from fedprox.model import Model, Params, trainable
from fedprox.model.model import losses_of
from fedprox.model.variables import Variables
from fedprox.parts.privacy import Privacy
from fedprox.parts.privacy.accounting import rounded_up
from fedprox.parts.privacy.canaries import Audited, no_label, released_of
from fedprox.parts.privacy.one_run import bound_of, guessed
from fedprox.parts.privacy.setting import check_delta
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.protocol import Evaluation
from fedprox.streams import Purpose, check_seed, generator

FEWEST = 20
"""Fewest canaries: with fewer no bound is above a usual epsilon."""

PAIRED = 4
"""One of so many canaries is in a pair that cancels; as many rows have huge features."""

HUGE = 1e3
"""Factor of the features of these rows."""

AT_ONCE = 16
"""Rows whose gradients are computed together."""

NOT_AUDITED = ("stop_at_target", "target", "selection", "stop", "checkpoints", "callbacks")
"""Arguments of `simulate` that choose among rounds, or follow a run."""


@dataclass(frozen=True)
class PrivacyAudit:
    """What `audit_privacy` finds.

    Attributes:
        unit: "client" or "example", which the canaries are.
        epsilon: The epsilon that the run prints, an upper bound by accounting.
        delta: Its delta.
        lower_bound: The lower confidence bound of epsilon, by the canaries.
        most: The lower bound if all guesses had been right. If it is below `epsilon`, so many
            canaries cannot refute the guarantee.
        confidence: Confidence of the lower bound.
        canaries: How many canaries there were.
        guesses: For how many of them the auditor guessed whether they took part.
        right: How many of these guesses are right.
        p: Probability of such guesses, at most, if the guarantee holds.
        rounds: Rounds of the run.
    """

    unit: str
    epsilon: float
    delta: float
    lower_bound: float
    most: float
    confidence: float
    canaries: int
    guesses: int
    right: int
    p: float
    rounds: int

    @property
    def refuted(self) -> bool:
        """Whether the run reveals more than it prints."""
        return self.p <= 1 - self.confidence

    def __str__(self) -> str:
        unit = {"client": "clients", "example": "rows"}[self.unit]
        sure = f"{100 * self.confidence:g} %"
        if self.refuted:
            verdict = (
                f"The guarantee does not hold: the run reveals more than it prints (p = "
                f"{self.p:.1g})."
            )
        elif self.most < self.epsilon:
            verdict = (
                f"This says nothing: {self.canaries:,} canaries show at most "
                f"{self.most:.3f}. Take more canaries, or fewer rounds."
            )
        else:
            verdict = "Nothing was found. That proves nothing: a stronger attack may find more."
        return "\n".join(
            [
                f"epsilon as printed (at most)    {rounded_up(self.epsilon)}   delta = "
                f"{self.delta:g}, {self.rounds:,} rounds",
                f"epsilon by canaries (at least)  {self.lower_bound:.3f}   with confidence {sure}",
                f"canaries                        {self.canaries:,} {unit}: "
                f"{self.right:,} of {self.guesses:,} guesses right",
                verdict,
            ]
        )


def audit_privacy(
    federation: Federation,
    model: Model,
    method: Algorithm,
    *,
    privacy: Privacy,
    cohort: Cohort,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    **settings: Any,
) -> PrivacyAudit:
    r"""Audit a private run: train with canaries, and bound epsilon from below.

    The run is that of :func:`fedprox.simulate`, with its compiled programs, so that a mistake in
    the method, in a setting or in the library itself can show. Each canary takes part or not, by a
    fair coin. An auditor who knows all but the coins sees what the run releases and guesses them.
    Many right guesses refute a small epsilon.

    * With the unit "client", canaries are clients beside those of the federation, and cohorts grow
      so that each client comes as often as before. A canary sends one number, a thousand times the
      clipping norm, where other clients send zero; a quarter of them are in pairs that cancel. The
      auditor sees the noised sums.
    * With the unit "example", canaries are the rows of one client that is alone, since the
      guarantee of a row is that of its client. Features are drawn anew from those of the
      federation, each on its own; a quarter have features a thousand times as large, and a quarter
      are in pairs with opposite features. The auditor sees the model after each round, and scores a
      row by the model's movement along its gradient.

    A lower bound above the printed epsilon refutes the guarantee. A small one proves nothing.

    Args:
        federation: The clients and their data.
        model: The model to train.
        method: An algorithm with one value for each hyperparameter.
        privacy: The setting to audit, with noise.
        cohort: How each round's clients are sampled.
        canaries: Number of canaries, at least 20; as many of them are used as a message has
            numbers. More canaries can refute a larger epsilon: 1,000 show at most about 5.5.
        confidence: Confidence of the lower bound, above 0.5 and below 1.
        seed: Seed of the run and of the coins.
        settings: The other arguments of :func:`fedprox.simulate`. A run is audited as a whole, so
            it has no targets, selection, checkpoints or callbacks, and evaluations are few.

    Returns:
        The lower bound beside the printed epsilon.

    Raises:
        InputError: As in :func:`fedprox.simulate`, or if there is no noise, or an argument does not
            go with an audit.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=20)
        >>> audit = fp.audit_privacy(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, steps=1),
        ...     cohort=fp.Cohort(20),
        ...     rounds=1,
        ...     privacy=fp.Privacy(clip=1.0, noise_multiplier=3.0, delta=1e-3),
        ...     canaries=100,
        ...     progress=False,
        ... )
        >>> audit.lower_bound < audit.epsilon, audit.refuted
        (True, False)

    References:
        Steinke, Nasr and Jagielski, `Privacy Auditing with One (1) Training Run
        <https://arxiv.org/abs/2305.08846>`_, NeurIPS 2023, Algorithm 1 and Theorem 5.2.
    """
    for name, given, kind in (
        ("federation", federation, Federation),
        ("model", model, Model),
        ("method", method, Algorithm),
        ("privacy", privacy, Privacy),
        ("cohort", cohort, Cohort),
    ):
        require(
            isinstance(given, kind),
            f"{name} = {shown(given)}; an audit needs a fedprox.{kind.__name__}",
        )
    require(
        privacy.noise_multiplier != 0,
        "privacy.noise_multiplier = 0; without noise there is no guarantee to audit",
    )
    require_whole("canaries", canaries, least=FEWEST)
    require(
        isinstance(confidence, float) and 0.5 < confidence < 1,
        f"confidence = {shown(confidence)}; it must be above 0.5 and below 1",
    )
    check_seed(seed)
    for name in NOT_AUDITED:
        require(name not in settings, f"{name}: an audit has none; leave it out")
    check_delta(privacy, federation.train.sizes)
    plan = _of_clients if privacy.of_clients else _of_rows
    planned = plan(federation, model, privacy, cohort, canaries, generator(seed, Purpose.CANARIES))
    every = 1 if privacy.unit == "example" else settings.get("rounds", 1)
    settings["evaluation"] = Evaluation(every=every, rows=1, gradients=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of delta and labels, with canaries
        loop = rounds(
            planned.federation,
            model,
            method,
            privacy=planned.privacy,
            cohort=planned.cohort,
            seed=seed,
            **settings,
        )
        scores, final = planned.scores(loop)
    record = final.record
    assert record.epsilon is not None
    bound = bound_of(guessed(scores, planned.present), record.epsilon, privacy.delta, confidence)
    return PrivacyAudit(
        privacy.unit,
        record.epsilon,
        privacy.delta,
        bound.epsilon,
        bound.most,
        confidence,
        *bound.guesses,
        bound.p,
        record.round,
    )


class _Planned(NamedTuple):
    """A run with canaries, which of them take part, and how they are scored."""

    federation: Federation
    privacy: Audited
    cohort: Cohort
    present: NDArray[np.bool_]
    scores: Callable[[Iterator[Stage]], tuple[NDArray[np.float64], Stage]]


def _of_clients(
    federation: Federation,
    model: Model,
    privacy: Privacy,
    cohort: Cohort,
    canaries: int,
    draws: np.random.Generator,
) -> _Planned:
    """Canary clients beside those of the federation, each with a copy of the smallest's rows."""
    size = sum(leaf.size for leaf in jax.tree.leaves(trainable(model.shapes)))
    canaries = min(canaries, max(size, FEWEST))
    pairs = canaries // PAIRED // 2
    singles = canaries - 2 * pairs
    shared = np.arange(singles, singles + pairs) + 1
    places = np.concatenate([np.arange(singles) + 1, shared, -shared])
    present = draws.random(canaries) < 0.5
    own = len(federation)
    growth = (own + canaries) / own
    smallest = np.full(canaries, np.argmin(federation.train.sizes))
    train = federation.train.of_clients(np.concatenate([np.arange(own), smallest]))
    names = [*federation.names, *(f"canary {i}" for i in range(canaries))]
    return _Planned(
        replace(federation, train=train, test=no_rows(train), names=names, validation=None),
        _audited(
            privacy,
            capacity=privacy.capacity and round(growth * privacy.capacity),
            places=tuple(places.tolist()),
            present=tuple(present.tolist()),
        ),
        replace(cohort, clients_per_round=round(growth * cohort.clients_per_round)),
        present,
        partial(_seen_in_sums, places),
    )


def _seen_in_sums(
    places: NDArray[np.int64], stages: Iterator[Stage]
) -> tuple[NDArray[np.float64], Stage]:
    """The released sums at the canaries' places, and the end of the run."""
    *_, final = stages
    return np.sign(places) * released_of(final.state)[np.abs(places) - 1], final


def _of_rows(
    federation: Federation,
    model: Model,
    privacy: Privacy,
    cohort: Cohort,
    canaries: int,
    draws: np.random.Generator,
) -> _Planned:
    """A client whose rows are canaries; those that do not take part have no label."""
    train = federation.train
    at = draws.integers(len(train), size=canaries)
    part, pairs = canaries // PAIRED, canaries // PAIRED // 2
    huge, first, second = (
        slice(part),
        slice(part, part + pairs),
        slice(part + pairs, part + 2 * pairs),
    )

    def drawn(leaf: NDArray[Any]) -> NDArray[Any]:
        leaf = draws.permuted(leaf, axis=0)
        if np.issubdtype(leaf.dtype, np.floating):
            leaf[huge] *= HUGE
            leaf[second] = -leaf[first]
        return leaf

    x = map_leaves(drawn, arrays_at(train.x, at))
    y = train.y[draws.integers(len(train), size=canaries)]
    if not np.issubdtype(y.dtype, np.floating):
        y = y.astype(np.int32)
    y[second] = y[first]
    present = draws.random(canaries) < 0.5
    given = np.where(present.reshape(-1, *[1] * (y.ndim - 1)), y, no_label(y)).astype(y.dtype)
    rows = Rows(x, given, np.array([0, canaries]))
    alone = replace(
        federation,
        train=rows,
        test=no_rows(rows),
        names=["canaries"],
        augment=None,
        validation=None,
    )
    return _Planned(
        alone,
        _audited(privacy),
        replace(cohort, clients_per_round=1),
        present,
        partial(_seen_in_models, model, x, y),
    )


def _audited(privacy: Privacy, **more: Any) -> Audited:
    """The setting in a run with canaries."""
    return Audited(**{f.name: getattr(privacy, f.name) for f in fields(privacy)} | more)


def _seen_in_models(
    model: Model, x: Features, y: NDArray[Any], stages: Iterator[Stage]
) -> tuple[NDArray[np.float64], Stage]:
    """How far models moved along each row's gradient, which takes a step down it."""

    @jax.jit
    def along(params: Params, after: Params) -> jax.Array:
        moved = jax.tree.map(jnp.subtract, trainable(after), trainable(params))

        def of_row(row: Any) -> jax.Array:
            features, label = jax.tree.map(lambda a: a[None], row)

            def loss(w: Params) -> jax.Array:
                whole = params._replace(params=w) if isinstance(params, Variables) else w
                return losses_of(model, model.apply(whole, features), label)[0]

            gradient = jax.grad(loss)(trainable(params))
            return -optax.tree.vdot(gradient, moved) / optax.tree.norm(gradient)

        return jnp.nan_to_num(jax.lax.map(of_row, (x, y), batch_size=AT_ONCE), posinf=0, neginf=0)

    scores, before = np.zeros(len(y)), None
    for stage in stages:
        if before is not None:
            scores += np.asarray(along(before, stage.params), np.float64)
        before = stage.params
    return scores, stage
