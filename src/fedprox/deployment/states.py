"""Client state on a node's disk: one file for each client and round, written whole or not at all.

An update counts only once the coordinator has used it. The node does not know whether an answer
arrived in time, so it keeps the state after each round as a file of its own, and each request names
the round whose state the client continues from. A late or lost answer therefore changes neither
side. Earlier files are removed, unless they belong to a checkpoint of the coordinator. Later files
are kept: the request may be a repetition of an old one.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, require
from fedprox.files.arrays import Damaged, check_arrays, read_arrays, write_arrays

HEAD = "fedprox client state 2"
"""Beginning of the first line of a file, before what the state belongs to."""

NEW = -1
"""The round of a client that has no state yet."""


class LostStateError(InputError):
    """Client state that a request names is not there, or not whole."""


class States:
    """The states of the clients of one run on a node.

    Args:
        folder: The folder of the run's method and seed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, client: str, round_: int, like: Any) -> Any:
        """The state of a client after a round.

        Args:
            client: The client's name.
            round_: The round.
            like: Shapes and types of the state.

        Returns:
            A tree of NumPy arrays.

        Raises:
            LostStateError: If there is no whole file of that round, or it has other shapes.
        """
        path = self._of(client) / f"{round_}.state"
        where = f"state of client {client!r} after round {round_ + 1}"
        try:
            head, _ = check_arrays(path)
            require(
                head == self._head(client, round_),
                f"{path} is not its file, but of another run, client or round",
            )
            arrays = [array for _, array in read_arrays(path)]
        except (Damaged, InputError) as error:
            raise LostStateError(f"{where}: {error}; begin the run anew") from None
        leaves, structure = jax.tree.flatten(like)
        have = [(a.shape, a.dtype) for a in arrays]
        if have != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise LostStateError(
                f"{where}: {path} holds arrays of other shapes; begin the run anew"
            )
        return jax.tree.unflatten(structure, arrays)

    def read_points(self, client: str, rounds: Sequence[int], like: Any, fresh: Any) -> Any:
        """The state of a client, at each sweep point after the round given there.

        Args:
            client: The client's name.
            rounds: A round for each sweep point; `NEW` for none.
            like: Shapes and types of the state, leaves (points, ...).
            fresh: The state before the first round.

        Raises:
            LostStateError: As `read`.
        """
        after = {r: fresh if r == NEW else self.read(client, r, like) for r in {*rounds}}
        if len(after) == 1:
            return after[rounds[0]]

        def at_points(*leaves: Any) -> NDArray[Any]:
            return np.stack([leaf[point] for point, leaf in enumerate(leaves)])

        return jax.tree.map(at_points, *(after[r] for r in rounds))

    def write(self, client: str, round_: int, state: Any) -> None:
        """Write the state of a client after a round.

        Raises:
            OSError: If it cannot be written.
        """
        leaves = jax.tree.leaves(state)
        path = self._of(client) / f"{round_}.state"
        head = self._head(client, round_)
        write_arrays(path, head, ((["state", str(i)], leaf) for i, leaf in enumerate(leaves)))

    def _head(self, client: str, round_: int) -> str:
        """The first line of a file: what it is, and which run, method, seed, client and round."""
        place = [self.folder.parent.name, self.folder.name, client, round_]
        return f"{HEAD} {json.dumps(place)}"

    def forget(self, client: str, used: Collection[int], kept: Collection[int]) -> None:
        """Remove the files of rounds before the last one of `used`, except these and `kept`."""
        for path in self._files(client):
            if int(path.stem) < max(used) and int(path.stem) not in {*used, *kept}:
                path.unlink(missing_ok=True)

    def rounds(self, client: str) -> list[int]:
        """The rounds of which the state of a client is stored, ascending."""
        return sorted(int(path.stem) for path in self._files(client))

    def _files(self, client: str) -> list[Path]:
        folder = self._of(client)
        files = folder.iterdir() if folder.is_dir() else ()
        return [path for path in files if re.fullmatch(r"\d+\.state", path.name)]

    def _of(self, client: str) -> Path:
        """The folder of a client. Its name may have characters that file names cannot."""
        readable = re.sub(r"[^A-Za-z0-9-]", "_", client)[:40]
        return self.folder / f"{readable}-{hashlib.sha256(client.encode()).hexdigest()[:12]}"


def keep_last_runs(folder: Path, run: str, keep: int) -> None:
    """Remove the states of all runs but the last `keep`, of which `run` is one.

    The time of a run is that of its folder, which is set to now for `run`.
    """
    (folder / run).mkdir(parents=True, exist_ok=True)
    (folder / run).touch()
    runs = sorted(
        (path for path in folder.iterdir() if path.is_dir()),
        key=lambda path: (path.name == run, path.stat().st_mtime_ns),
    )
    for path in runs[: max(0, len(runs) - keep)]:
        shutil.rmtree(path, ignore_errors=True)
