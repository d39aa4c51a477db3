"""Which sums a node has taken part in, in a file of its folder.

A node helps to reveal one sum of messages of each kind in each round of a run. With two sums of the
same messages, over all nodes and over all but one, anybody could subtract. A run that is resumed
measures its last model again, so the last evaluation of a run may be repeated, but with no other
model. Secrets of a sum are in the node's memory alone: a node that was restarted has none of
earlier sums, and can reveal nothing.
"""

from pathlib import Path

from pydantic import Field

from fedprox.deployment.kept import read_kept, write_kept
from fedprox.deployment.messages import Message, Round
from fedprox.errors import require

FILE = "sums.json"

NO_ROUND = -1

Place = tuple[str, int]
"""The run and kind of a sum, and its round."""


class Revealed(Message):
    """The sums that a node has helped to reveal.

    Attributes:
        rounds: The last such round, by run and kind of sum. Earlier ones count as revealed.
        measured: What was asked in this round, by run, of sums of measures.
    """

    rounds: dict[str, Round] = Field(default_factory=dict)
    measured: dict[str, str] = Field(default_factory=dict)

    def check(self, place: Place, measured: str | None = None) -> None:
        """Raise `InputError` if a node has helped to reveal the sum of a round.

        Args:
            place: The run, kind and round.
            measured: What is asked, of a sum of measures; else None.
        """
        name, round_ = place
        last = self.rounds.get(name, NO_ROUND)
        again = round_ == last and measured is not None and measured == self.measured.get(name)
        which = f"round {round_ + 1}" if measured is None else f"evaluation after round {round_}"
        require(
            round_ > last or again,
            f"{which}: this node has helped to reveal its sum, and does so once",
        )

    def after(self, place: Place, measured: str | None = None) -> "Revealed":
        """The same and one more sum, as in `check`."""
        name, round_ = place
        asked = {} if measured is None else {name: measured}
        return Revealed(rounds=self.rounds | {name: round_}, measured=self.measured | asked)


def read_revealed(folder: Path) -> Revealed:
    """The sums that the node of a folder has helped to reveal; none if the folder has no file.

    Raises:
        InputError: If the file is damaged.
    """
    return read_kept(
        folder / FILE,
        Revealed(),
        "it says which sums the node has helped to reveal: restore it from a copy, or remove it if "
        "the operator begins all runs anew",
    )


def write_revealed(folder: Path, revealed: Revealed) -> None:
    """Write the file, before the node helps to reveal a sum.

    Raises:
        OSError: If it cannot be written.
    """
    write_kept(folder / FILE, revealed)
