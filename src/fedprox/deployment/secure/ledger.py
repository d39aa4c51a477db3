"""Which sums a node has taken part in, in a file of its folder.

A node helps to reveal one sum of messages of each kind in each round of a run. With two sums of the
same messages, over all nodes and over all but one, anybody could subtract. A run that is resumed
measures a model again, so an evaluation may be repeated, with the same nodes. Secrets of a sum are
in the node's memory alone: a node that was restarted has none of earlier sums, and can reveal
nothing.
"""

from pathlib import Path

from pydantic import Field

from fedprox.deployment.kept import read_kept, write_kept
from fedprox.deployment.messages import Message, Round
from fedprox.errors import require

FILE = "sums.json"

Place = tuple[str, int]
"""The run and kind of a sum, and its round."""


class Revealed(Message):
    """The sums that a node has helped to reveal.

    Attributes:
        rounds: The last such round, by run and kind of sum. Earlier ones count as revealed.
        evaluated: The nodes in the sums of measures, by what was asked.
    """

    rounds: dict[str, Round] = Field(default_factory=dict)
    evaluated: dict[str, list[str]] = Field(default_factory=dict)

    def check(self, place: Place) -> None:
        """Raise `InputError` if a node has helped to reveal the sum of a round."""
        name, round_ = place
        require(
            round_ > self.rounds.get(name, -1),
            f"round {round_ + 1}: this node has helped to reveal its sum, and does so once",
        )

    def after(self, place: Place) -> "Revealed":
        """The same and one more round."""
        name, round_ = place
        return self.model_copy(update={"rounds": self.rounds | {name: round_}})

    def after_evaluation(self, context: str, included: list[str]) -> "Revealed":
        """The same and an evaluation.

        Args:
            context: Digest of what was asked, with the model.
            included: The nodes in the sum.

        Raises:
            InputError: If the node has helped to reveal that of the same model with other nodes.
        """
        before = self.evaluated.get(context, included)
        require(
            before == included,
            "this node has helped to reveal the measures of this model with the nodes "
            f"{', '.join(before)}, and does so with these alone",
        )
        return self.model_copy(update={"evaluated": self.evaluated | {context: included}})


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
