"""Checks of a checkpoint's contents: of this comparison, of their place, and of the right shapes.

A checksum finds damage. These checks find valid files in another's place, and files that somebody
else wrote with a valid checksum: whatever they hold is used, or refused in one line.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedprox.errors import require
from fedprox.files.arrays import malformed
from fedprox.measures import KINDS
from fedprox.precision import real_type
from fedprox.simulation.compiled.compile import evaluated
from fedprox.simulation.compiled.layout import Capacity
from fedprox.simulation.config.method import Method
from fedprox.simulation.loop.snapshot import Fingerprint, numbered_shapes
from fedprox.simulation.results.run import Run

ELSEWHERE = "a file of another place; put the right one back, or begin anew, without resuming"
"""What is wrong with a valid file that belongs elsewhere, and what to do."""

MOST = 2**63
"""Bound of whole numbers, which have 64 bits."""


class Position(BaseModel):
    """The position in the comparison, as JSON.

    Attributes:
        comparison: The comparison's settings.
        every: Rounds between checkpoints.
        interval: Seconds between checkpoints.
        round: Rounds done of the seed run under way.
        finished: The finished runs.
        under_way: The runs under way.
        clients: Checksum of each process's file of client state; None without client state.
    """

    model_config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)

    comparison: dict[str, Any]
    every: Annotated[int, Field(ge=1)] | None
    interval: Annotated[float, Field(ge=0)] | None
    round: Annotated[int, Field(ge=0)]
    finished: list[Run]
    under_way: list[Run]
    clients: list[str] | None


def read_position(path: Path, arrays: dict[str, Any]) -> Position:
    """Take the position out of a state's arrays.

    Raises:
        Damaged: If there is none, or it is not as this version writes it.
    """
    try:
        text = arrays.pop("position").tobytes()
        json.loads(text, parse_int=_whole)
        return Position.model_validate_json(text)
    except (AttributeError, KeyError, ValueError, RecursionError):
        raise malformed(path, "its position is not as it should be") from None


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) >= MOST:
        raise ValueError(f"{text}: a whole number beyond 64 bits")
    return number


def check_runs(path: Path, position: Position, comparison: Fingerprint, first: int = 0) -> None:
    """Check that a state holds runs of its comparison, in their order.

    Args:
        path: The file.
        position: Its position.
        comparison: The comparison.
        first: Number of the first seed run in it.

    Raises:
        InputError: If it holds other runs.
        Damaged: If the records of a run are not such as a run can have.
    """
    planned = comparison.runs[first:]
    done = 0
    while done < len(planned) and sum(map(len, planned[:done])) < len(position.finished):
        done += 1
    under_way = planned[done] if done < len(planned) and position.under_way else ()
    belong = [run for runs in (*planned[:done], under_way) for run in runs]
    found = [*position.finished, *position.under_way]
    for run, other in zip(found, [*belong, *[None] * len(found)], strict=False):
        require(
            other is not None and _identity(run) == _identity(other),
            f"{path}: holds {run.label!r}, seed {run.seed}, where "
            f"{f'{other.label!r}, seed {other.seed}, belongs' if other else 'no run belongs'}: "
            f"{ELSEWHERE}",
        )
    whole = len(found) == len(belong) and bool(position.under_way) == (position.round > 0)
    if not whole or position.round > position.comparison["rounds"]:
        raise malformed(path, "its position is none of the comparison")
    for runs in (*_grouped(position.finished), position.under_way):
        histories = {tuple(record.round for record in run.history) for run in runs}
        last = position.round if runs is position.under_way else position.comparison["rounds"]
        if len(histories) > 1 or not all(_is_history(run, last, comparison) for run in runs):
            raise malformed(path, f"the records of {runs[0].label!r} are not such as it can have")


def _grouped(runs: Sequence[Run]) -> list[Sequence[Run]]:
    """Runs by seed run, whose runs know how many there are."""
    groups, begin = list[Sequence[Run]](), 0
    while begin < len(runs):
        end = begin + runs[begin].sweep_points
        groups.append(runs[begin:end])
        begin = end
    return groups


def _identity(run: Run) -> tuple[Any, ...]:
    """What tells a run from all others of its comparison, and follows from its settings."""
    return (
        *(run.label, run.seed, run.method, run.hparams, run.learning_rate),
        *(run.sweep_points, run.evaluated),
    )


def _is_history(run: Run, last: int, comparison: Fingerprint) -> bool:
    """Whether a run has records that it can have after `last` rounds."""
    rounds = [record.round for record in run.history]
    if not rounds or rounds[0] != 0 or rounds != sorted(set(rounds)) or rounds[-1] > last:
        return False
    if run.model_round is not None and run.model_round not in rounds:
        return False
    kept = {(r.label, r.seed, r.method, *sorted(r.hparams)) for r in run.history}
    if kept != {(run.label, run.seed, run.method, *sorted(run.hparams))}:
        return False
    try:
        for record in run.history:
            for name in comparison.protocol.measures:
                record.value(name)
    except KeyError:
        return False
    known = {f"{kind}_{name}" for kind in KINDS for name in comparison.protocol.model.metrics}
    return all(record.metrics.keys() <= known for record in run.history)


def check_arrays_of(
    path: Path, position: Position, arrays: Mapping[str, Any], comparison: Fingerprint, first: int
) -> None:
    """Check the names, shapes, types and ranges of a state's arrays.

    Args:
        path: The file.
        position: Its position, which is checked.
        arrays: Its arrays, nested by name.
        comparison: The comparison.
        first: Number of the first seed run in it.

    Raises:
        Damaged: If one is not as it should be.
    """
    params = numbered_shapes(comparison.protocol.model.shapes)
    expected: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    if position.finished:
        expected["params"] = {str(i): params for i in range(len(position.finished))}
    if position.under_way:
        seed_run = first + len(_grouped(position.finished))
        expected |= _state_shapes(comparison.methods[seed_run])
        optional = _optional_shapes(comparison.methods[seed_run])
    present = {name: shape for name, shape in optional.items() if name in arrays}
    known = expected | present
    if "faulty" in known and isinstance(arrays["faulty"], np.ndarray):
        count = len(arrays["faulty"]) if arrays["faulty"].ndim else 0
        known["faulty"] = jax.ShapeDtypeStruct((count, 3), np.int64)
    found, wanted = (
        {
            jax.tree_util.keystr(key): (tuple(leaf.shape), np.dtype(leaf.dtype))
            for key, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (dict(arrays), known)
    )
    for name in dict.fromkeys([*wanted, *found]):
        if found.get(name) != wanted.get(name):
            raise malformed(path, f"its array {name} is not as it should be")
    if position.under_way:
        _check_ranges(path, position.round, arrays, comparison.methods[seed_run])


def _state_shapes(method: Method) -> dict[str, Any]:
    """The shapes of the arrays that every state of a method's seed run has."""
    algorithm, protocol = method.algorithm, method.protocol
    points = len(method.points)

    def at_points(shapes: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((points, *a.shape), a.dtype), shapes)

    state = at_points(jax.eval_shape(algorithm.init, protocol.model.shapes))
    number = jax.ShapeDtypeStruct((), real_type())
    hparams = at_points(dict.fromkeys(method.points[0], number))
    if protocol.privacy is not None:
        hparams["noise_words"] = jax.ShapeDtypeStruct((points, 2), np.dtype(np.uint32))
    shapes: dict[str, Any] = {
        "state": numbered_shapes(state),
        "hparams": hparams,
        "taken": jax.ShapeDtypeStruct((points,), np.dtype(np.int64)),
        "empty": jax.ShapeDtypeStruct((), np.dtype(np.int64)),
    }
    if protocol.selection.keep == "best":
        best = jax.eval_shape(partial(evaluated, algorithm), state)
        shapes["best"] = numbered_shapes(best)
    if algorithm.adapt is not None:
        loss = jax.eval_shape(lambda: jnp.full(points, jnp.nan))
        shapes["memory"] = numbered_shapes(jax.eval_shape(algorithm.adapt.init, hparams, loss))
    return shapes


def _optional_shapes(method: Method) -> dict[str, Any]:
    """The shapes of arrays that only some states have; that of the faulty updates is open."""
    clients, points = len(method.protocol.federation), len(method.points)
    whole = np.dtype(np.int64)
    return {
        "capacity": jax.ShapeDtypeStruct((len(Capacity._fields),), whole),
        "trained": {
            "rounds": jax.ShapeDtypeStruct((clients,), whole),
            "steps": jax.ShapeDtypeStruct((clients, points), whole),
        },
        "faulty": jax.ShapeDtypeStruct((0, 3), whole),
    }


def _check_ranges(path: Path, done: int, arrays: Mapping[str, Any], method: Method) -> None:
    """Raise `Damaged` if a count or an index in a state's arrays is out of range."""
    protocol = method.protocol
    clients, rows = len(protocol.federation), len(protocol.federation.train)
    # no round has more work than if each client of the cohort had all rows, with some reserve
    work = 4 * (clients + 1) * max(rows, int(method.solver.steps_for(rows)), 1)
    most = {
        "taken": MOST,
        "empty": done + 1,
        "capacity": work * protocol.rounds,
        "faulty": (done, len(method.points), clients),
    }
    for name, bound in most.items():
        values = np.asarray(arrays.get(name, 0))
        if not ((values >= 0) & (values < np.asarray(bound, float))).all():
            raise malformed(path, f"its array {name!r} has a number out of range")
    for values in arrays.get("trained", {}).values():
        if not (values >= 0).all():
            raise malformed(path, "its array 'trained' has a number out of range")
