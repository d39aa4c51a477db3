"""What a run with privacy of clients releases: the clipped means of its rounds, without noise."""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

import fedprox as fp

MEANS: list[NDArray[np.float64]] = []
"""The releases of the run that is under way, as vectors."""


def note(mean: Any) -> None:
    MEANS.append(np.concatenate([np.ravel(a) for a in jax.tree.leaves(mean)]))


def unmoved(state: Any, mean: Any, hparams: Any) -> Any:
    """The server's state as it is.

    So a release depends on earlier ones through the clients' states alone, as a guarantee of
    composed releases has it. A function of the module, so that runs share programs.
    """
    del hparams
    jax.debug.callback(note, mean)
    return state


def begin(_: Any) -> None:
    """Forget what checks of the method have released."""
    jax.effects_barrier()
    MEANS.clear()


def released(method: fp.Algorithm, clients: int, **options: Any) -> list[NDArray[np.float64]]:
    """The clipped sums of all rounds and seeds, over so many clients of an expected cohort."""
    first = method.first
    fp.simulate(
        methods=method._replace(
            server=method.server._replace(update=unmoved),
            first=first if first.exchange is None else first._replace(exchange=unmoved),
        ),
        devices=1,
        callbacks=[fp.Callback(on_start=begin)],
        **options | {"progress": False},
    )
    jax.effects_barrier()
    return [clients * each for each in MEANS]


def require_bounded(
    less: list[NDArray[np.float64]], more: list[NDArray[np.float64]], clip: float, releases: int
) -> None:
    """Assert that no sum moves by more than the clipping norm, and that one moves by about it."""
    assert len(less) == len(more) == releases
    moved = [float(np.linalg.norm(a - b)) for a, b in zip(less, more, strict=True)]
    assert 0.5 * clip < max(moved) <= clip * (1 + 1e-5)


def per_round(method: fp.Algorithm) -> int:
    """How many releases a round has."""
    return 1 + (method.first.exchange is not None)
