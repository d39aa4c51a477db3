"""The secure sums of a node: the requests of their stages, one sum at a time."""

from pathlib import Path

from fedprox.deployment.messages import (
    Advert,
    Answer,
    Array,
    Claims,
    Request,
    Secret,
    Securing,
    Setup,
)
from fedprox.deployment.round_part import RoundPart
from fedprox.deployment.secure.fixed_point import FixedPoint
from fedprox.deployment.secure.keys import Identity
from fedprox.deployment.secure.ledger import Place, read_revealed, write_revealed
from fedprox.deployment.secure.node_sum import NodeSum, context_of, equal
from fedprox.errors import require
from fedprox.simulation.planning.jobs import Jobs

MASKED = "masked"
"""The array of an answer that holds the masked message."""


class Sums:
    """The secure sums of a node.

    Args:
        identity: The node, and the nodes that it knows.
        folder: Where it stores which sums it has helped to reveal.
    """

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.identity, self.folder = identity, folder
        self.revealed = read_revealed(folder)
        self.current: NodeSum | None = None
        self.place: Place = ("", 0)

    def check(self, securing: Securing) -> None:
        """Raise `InputError` unless the nodes of a run are this one and those that it knows."""
        unknown = sorted(set(securing.nodes) - {self.identity.name, *self.identity.peers})
        require(not unknown, f"nodes {', '.join(unknown)}: not in policy.secure.peers")
        require(self.identity.name in securing.nodes, "the node is not among those of the run")

    def advertise(self, request: Request, setup: Setup, jobs: Jobs) -> Answer:
        """Begin a sum, with new keys; secrets of an earlier one are forgotten.

        Raises:
            InputError: If the node has helped to reveal the sum of this round, or has no work in
                it.
        """
        secret, securing = _secret(request), setup.secure
        require(securing is not None, "advertise: the run has no secure sums")
        assert securing is not None
        place = _place(request, setup)
        self.revealed.check(place)
        advert = Advert(
            node=self.identity.name,
            sum=secret.sum,
            context=secret.context,
            work=_claims(secret, jobs),
        )
        self.current, self.place = NodeSum(self.identity, securing, advert), place
        return Answer(id="", advert=self.current.advert)

    def answer(self, request: Request) -> Answer:
        """Answer "share", "confirm" and "reveal"."""
        secret = _secret(request)
        current = self._current(secret)
        if request.kind == "share":
            return Answer(id="", shares=current.share(secret.roster))
        if request.kind == "confirm":
            signature = current.confirm(secret.included)
            revealed = self.revealed.after(self.place)
            write_revealed(self.folder, revealed)  # before the signature leaves the node
            self.revealed = revealed
            return Answer(id="", signature=signature)
        shares = current.reveal(secret.signatures)
        self.current = None
        return Answer(id="", shares=shares)

    def accept(self, request: Request, setup: Setup, jobs: Jobs) -> None:
        """Take the shares of other nodes, before the node computes its message.

        Raises:
            InputError: If the request is another one than the node has signed.
        """
        secret = _secret(request)
        current = self._current(secret)
        signed = current.advert
        require(
            secret.of == request.kind
            and _place(request, setup) == self.place
            and context_of(request) == signed.context,
            f"{request.kind}: another request than the nodes of the sum have signed",
        )
        require(
            _claims(secret, jobs) == signed.work,
            f"{request.kind}: other work than the node has signed",
        )
        current.accept(secret.shares)

    def masked(self, securing: Securing, part: RoundPart) -> dict[str, Array]:
        """A node's part of a round with its message under masks.

        Raises:
            InputError: If no update counts at a sweep point, so that the node's part of the sum
                would be known and hide nobody's.
        """
        require(part.counts.any(axis=0).all(), "no update counts, and a sum without any hides less")
        assert self.current is not None  # `accept` comes before
        fixed = FixedPoint(securing.bound, securing.bits, len(securing.nodes))
        vector = fixed.quantized(part.message, part.counted)
        self.current.mask(vector)
        return {**part._replace(message=None).arrays(), MASKED: vector}

    def _current(self, secret: Secret) -> NodeSum:
        current = self.current
        require(
            current is not None and current.advert.sum == secret.sum,
            "a sum that is over, or from before the node was restarted",
        )
        assert current is not None
        return current


def _secret(request: Request) -> Secret:
    secret = request.secret
    require(secret is not None, f"{request.kind}: messages are summed in secret only")
    assert secret is not None
    return secret


def _place(request: Request, setup: Setup) -> Place:
    """The run, kind and round of a request's sum."""
    return f"{setup.run}/{setup.number}-{setup.seed}/{_secret(request).of}", request.round


def _claims(secret: Secret, jobs: Jobs) -> Claims:
    """How a node's clients weigh.

    Raises:
        InputError: If a client has no work, so that its part of a sum would be known, or has a
            weight of its own.
    """
    has_work = (jobs.weight > 0) & ((jobs.steps > 0) | (secret.of == "gradients"))
    require(len(has_work) and has_work.all(), "a client without work, whose part of a sum is known")
    rates = jobs.weight / (jobs.size if secret.by == "rows" else 1)
    require(equal(rates), f"weights {jobs.weight.tolist()}; they must be equal or those of rows")
    return Claims(by=secret.by, rate=float(rates[0]))
