"""An audit of privacy: canaries through the real program, and a lower bound of epsilon.

The canaries are those of `fedprox.parts.privacy.canaries`, and the bound is that of
`fedprox.parts.privacy.one_run`, for an auditor who knows everything but the canaries' coins.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.check import message_shape
from fedprox.errors import plural, require, require_whole, shown
from fedprox.features import rows_at
from fedprox.federation import Federation, Rows, no_rows
from fedprox.loop.simulate import rounds
from fedprox.loop.snapshot import Stage
from fedprox.model import Model, opened, trainable
from fedprox.parts.privacy import Privacy
from fedprox.parts.privacy.accounting import rounded_up
from fedprox.parts.privacy.canaries import (
    EMPTY,
    Audited,
    joined,
    numbers_of_rows,
    scores_of,
    standardized,
    with_places,
)
from fedprox.parts.privacy.one_run import auditing, bound_of, guessed
from fedprox.parts.privacy.setting import check_delta
from fedprox.protocol.cohort import Cohort
from fedprox.protocol.method import label, sweep_points
from fedprox.protocol.protocol import Evaluation
from fedprox.solver import Solver
from fedprox.streams import Purpose, check_seed, generator

FEWEST = 20
"""Fewest canaries: with fewer no bound is above a usual epsilon."""

NOT_AUDITED = ("stop_at_target", "target", "selection", "stop", "checkpoints", "callbacks")
"""Arguments of `simulate` that choose among rounds, or follow a run."""


@dataclass(frozen=True)
class PrivacyAudit:
    """The findings of `audit_privacy`.

    Attributes:
        unit: "client" or "example": the unit of the guarantee, and of the canaries.
        epsilon: The epsilon that the run with canaries prints, an upper bound by accounting.
        delta: The delta of the guarantee.
        lower_bound: The lower confidence bound of epsilon, by the canaries.
        most: The lower bound if all guesses had been right. If it is below `epsilon`, so many
            canaries cannot refute the guarantee.
        confidence: Confidence of the lower bound.
        canaries: How many canaries there were.
        guesses: For how many of them the auditor guessed whether they took part.
        right: How many of these guesses are right.
        rounds: Rounds of the run.

    Example:
        An audit of 400 rows in a run that adds too little noise:

        >>> import fedprox as fp
        >>> audit = fp.PrivacyAudit("example", 0.93, 1e-5, 2.87, 4.27, 0.95, 400, 100, 100, 1)
        >>> print(audit)
        epsilon as printed (at most)    0.930   delta = 1e-05, 1 round
        epsilon by canaries (at least)  2.870   with confidence 95 %
        canaries                        400 rows: 100 of 100 guesses right
        The guarantee does not hold: the run reveals more than it prints.
        >>> audit.refuted
        True
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
    rounds: int

    @property
    def refuted(self) -> bool:
        """Whether the run reveals more than it prints."""
        return self.lower_bound > self.epsilon

    def __str__(self) -> str:
        unit = {"client": "clients", "example": "rows"}[self.unit]
        sure = f"{100 * self.confidence:g} %"
        if self.refuted:
            verdict = "The guarantee does not hold: the run reveals more than it prints."
        elif self.most < self.epsilon:
            verdict = (
                f"This says nothing: {self.canaries:,} canaries show at most {self.most:.3f}. Take "
                "more canaries, fewer rounds or a smaller delta."
            )
        else:
            verdict = "Nothing was found. That proves nothing: a stronger audit may find more."
        return "\n".join(
            [
                f"epsilon as printed (at most)    {rounded_up(self.epsilon)}   delta = "
                f"{self.delta:g}, {plural(self.rounds, 'round')}",
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
    fair coin. An auditor who knows all but the coins sees what each round releases at places that
    only one canary moves, and guesses the coins. Many right guesses refute a small epsilon.

    * With the unit "client", canaries are clients beside those of the federation, and cohorts grow
      so that each client comes as often as before. A canary sends one number, a thousand times the
      clipping norm. The auditor sees the noised means of messages.
    * With the unit "example", there is one client, which takes part in each round, since the
      guarantee of a row is that of its client. Its rows are the canaries: rows of the federation
      that also move a parameter of their own, added to the model. Mini-batches grow so that a row
      is drawn as often as one of the client with fewest rows. The auditor sees the model after each
      round.

    One canary client of eight sends a number so large that the norm overflows. One canary row of
    eight has large numbers at two positions, which cancel.

    A lower bound above the printed epsilon refutes the guarantee. A small one proves nothing. It
    needs the extra jax-privacy.

    Args:
        federation: The clients and their data.
        model: The model to train.
        method: An algorithm with one value for each hyperparameter.
        privacy: The setting to audit, with noise.
        cohort: How each round's clients are sampled.
        canaries: Number of canaries, at least 20. With the unit "client" no more of them are used
            than a message has numbers beside 64. With a delta of 1e-5, 100 show an epsilon of at
            most 2.9, 1,000 of at most 5.1 and 5,000 of at most 5.9. With a delta of 1e-3 no number
            shows more than 1.
        confidence: Confidence of the lower bound, above 0.5 and below 1.
        seed: Seed of the run and of the coins.
        settings: The other arguments of :func:`fedprox.simulate`. A run is audited as a whole, so
            it has no targets, selection, checkpoints or callbacks, and evaluations are few.

    Returns:
        The lower bound beside the printed epsilon.

    Raises:
        InputError: As in :func:`fedprox.simulate`, if there is no noise, an argument does not go
            with an audit, or jax-privacy is not installed.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> audit = fp.audit_privacy(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, steps=1),
        ...     cohort=fp.Cohort(4),
        ...     rounds=1,
        ...     privacy=fp.Privacy(clip=1.0, noise_multiplier=3.0),
        ...     canaries=50,
        ...     progress=False,
        ... )
        >>> audit.lower_bound < audit.epsilon, audit.refuted
        (True, False)

    References:
        Steinke, Nasr and Jagielski, `Privacy Auditing with One (1) Training Run
        <https://arxiv.org/abs/2305.08846>`_, NeurIPS 2023.
    """
    auditing()
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
    require(
        isinstance(settings.get("solver"), Solver),
        f"solver = {shown(settings.get('solver'))}; an audit needs a fedprox.Solver",
    )
    require_whole("rounds", settings.get("rounds"))
    points = len(sweep_points(method, method.solver(settings["solver"])))
    require(points == 1, f"{method.name}: {points} sweep points; an audit has one")
    check_delta(privacy, federation.train.sizes)
    draws = generator(seed, Purpose.CANARIES)
    if privacy.of_clients:
        message = jax.tree.leaves(message_shape(method, trainable(model.shapes)))
        numbers = sum(leaf.size for leaf in message)
        canaries = min(canaries, max(FEWEST, numbers - EMPTY))
    present = draws.random(canaries) < 0.5
    run = _Run(federation, model, method, privacy, cohort, settings)
    run = _of_clients(run, present) if privacy.of_clients else _of_rows(run, present, draws)
    every = settings["rounds"] if privacy.of_clients else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of delta and labels, with canaries
        loop = rounds(
            run.federation,
            run.model,
            run.method,
            privacy=run.privacy,
            cohort=run.cohort,
            seed=seed,
            **run.settings | {"evaluation": Evaluation(every=every, rows=1, gradients=False)},
        )
        seen = _seen_by_server if privacy.of_clients else _seen_in_models
        scores, final = seen(loop, canaries)
    record = final.record
    assert record.epsilon is not None
    bound = bound_of(guessed(scores, present), privacy.delta, confidence)
    return PrivacyAudit(
        privacy.unit,
        record.epsilon,
        privacy.delta,
        bound.epsilon,
        bound.most,
        confidence,
        *bound.guesses,
        record.round,
    )


def at_points(method: Algorithm, solver: Solver) -> Iterator[tuple[str, Algorithm]]:
    """The label of each sweep point of a method, and the method at it.

    >>> from fedprox.algorithms import fedprox
    >>> [name for name, _ in at_points(fedprox(mu=[0.0, 1.0]), Solver(0.1, 10, steps=1))]
    ['fedprox mu=0', 'fedprox mu=1']
    """
    solver = method.solver(solver)
    for point in sweep_points(method, solver):
        chosen = method._replace(hparams={name: point[name] for name in method.hparams})
        if len(solver.rates) > 1:
            chosen = chosen.with_solver(learning_rate=point["learning_rate"])
        yield label(method, solver, point), chosen


class _Run(NamedTuple):
    """Arguments of a run."""

    federation: Federation
    model: Model
    method: Algorithm
    privacy: Privacy
    cohort: Cohort
    settings: dict[str, Any]


def _of_clients(run: _Run, present: NDArray[np.bool_]) -> _Run:
    """A run with canary clients, each with a copy of the smallest client's rows."""
    federation, privacy, cohort = run.federation, run.privacy, run.cohort
    own, canaries = len(federation), len(present)
    growth = (own + canaries) / own
    smallest = np.full(canaries, np.argmin(federation.train.sizes))
    train = federation.train.of_clients(np.concatenate([np.arange(own), smallest]))
    names = [*federation.names, *(f"canary {i}" for i in range(canaries))]
    return run._replace(
        federation=replace(
            federation, train=train, test=no_rows(train), names=names, validation=None
        ),
        privacy=_audited(
            privacy,
            capacity=privacy.capacity and round(growth * privacy.capacity),
            present=tuple(present.tolist()),
        ),
        cohort=replace(cohort, clients_per_round=round(growth * cohort.clients_per_round)),
    )


def _seen_by_server(stages: Iterator[Stage], canaries: int) -> tuple[NDArray[np.float64], Stage]:
    """The canaries' scores in the released means, and the end of the run."""
    del canaries
    *_, final = stages
    return scores_of(final.state), final


def _of_rows(run: _Run, present: NDArray[np.bool_], draws: np.random.Generator) -> _Run:
    """A run of one client whose rows are canaries."""
    train, canaries = run.federation.train, len(present)
    at = draws.integers(len(train), size=canaries)
    x = {
        "numbers": numbers_of_rows(canaries, run.privacy.clip),
        "place": np.arange(canaries, dtype=np.int32),
        "present": present,
        "x": rows_at(train.x, at),
    }
    rows = Rows(x, train.y[at], np.array([0, canaries]))
    augment = run.federation.augment
    alone = replace(
        run.federation,
        train=rows,
        test=no_rows(rows),
        names=["canaries"],
        augment=augment and (lambda key, rows: {**rows, "x": augment(key, rows["x"])}),
        validation=None,
    )
    method, settings = run.method, dict(run.settings)
    size = method.solver(settings["solver"]).batch_size
    if not isinstance(size, str):
        grown = round(size * canaries / int(train.sizes.min()))
        method = method.with_solver(batch_size=max(1, grown))
    if settings.get("initial") is not None:
        first, around = opened(settings["initial"])
        like = trainable(with_places(run.model, canaries).shapes)["canaries"]
        settings["initial"] = around(joined(first, jnp.zeros(like.shape)))
    return _Run(
        alone, with_places(run.model, canaries), method, _audited(run.privacy), Cohort(1), settings
    )


def _audited(privacy: Privacy, **more: Any) -> Audited:
    """The setting in a run with canaries."""
    return Audited(**{f.name: getattr(privacy, f.name) for f in fields(privacy)} | more)


def _seen_in_models(stages: Iterator[Stage], canaries: int) -> tuple[NDArray[np.float64], Stage]:
    """How far models moved along each row's gradient, which takes a step down it."""
    scores, before = np.zeros(canaries), None
    for stage in stages:
        after = np.ravel(trainable(stage.params)["canaries"])
        if before is not None:
            scores += np.asarray(standardized(jnp.asarray(before - after), canaries), np.float64)
        before = after
    return scores, stage
