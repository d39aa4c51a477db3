"""The secure sums of a node: the requests of their stages, one sum at a time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedprox.deployment.measured import Shapes, summable, summed_arrays
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
from fedprox.deployment.secure.fixed_point import fixed_point_of
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

    def check(self, setup: Setup) -> None:
        """Raise `InputError` unless the nodes of a run are this one and those that it knows.

        With privacy, the noise of the nodes must be what the run is accounted for.
        """
        securing = _securing(setup)
        unknown = sorted(set(securing.nodes) - {self.identity.name, *self.identity.peers})
        require(not unknown, f"nodes {', '.join(unknown)}: not in policy.secure.peers")
        require(self.identity.name in securing.nodes, "the node is not among those of the run")
        hiding = setup.privacy
        require(
            (securing.bound is None) == (hiding is not None),
            "deployment.secure.bound follows from privacy.clip, and is given without it",
        )
        if hiding is not None:
            require(
                hiding.mechanism.everybody and hiding.adaptive_clip is None,
                "deployment.secure with privacy: all clients take part, clipped to one norm",
            )

    def advertise(self, request: Request, setup: Setup, claims: Claims) -> Answer:
        """Begin a sum, with new keys; secrets of an earlier one are forgotten.

        Args:
            request: The request.
            setup: The method.
            claims: How the node's clients weigh.

        Raises:
            InputError: If the node has helped to reveal the sum of this round.
        """
        secret, place = secret_of(request), _place(request, setup)
        self.revealed.check(place, secret.context if secret.of == "evaluate" else None)
        advert = Advert(
            node=self.identity.name, sum=secret.sum, context=secret.context, work=claims
        )
        self.current, self.place = NodeSum(self.identity, _securing(setup), advert), place
        return Answer(id="", advert=self.current.advert)

    def answer(self, request: Request) -> Answer:
        """Answer "share", "accept", "confirm" and "reveal"."""
        secret = secret_of(request)
        current = self._current(secret)
        if request.kind == "share":
            dealt = current.share(secret.roster)
            return Answer(id="", shares=dict(dealt.sealed), commitments=dict(dealt.commitments))
        if request.kind == "accept":
            return Answer(id="", unusable=current.accept(secret.shares, secret.commitments))
        if request.kind == "confirm":
            signature = current.confirm(secret.included)
            measures = current.advert.work.measures is not None
            revealed = self.revealed.after(self.place, current.advert.context if measures else None)
            write_revealed(self.folder, revealed)  # before the signature leaves the node
            self.revealed = revealed
            return Answer(id="", signature=signature)
        shares = current.reveal(secret.signatures)
        self.current = None
        return Answer(id="", shares=shares)

    def check_signed(self, request: Request, setup: Setup, claims: Claims) -> None:
        """Check what a node is asked, before it computes its message.

        Args:
            request: The request.
            setup: The method.
            claims: How the node's clients weigh.

        Raises:
            InputError: If the request is another one than the node has signed.
        """
        secret = secret_of(request)
        current = self._current(secret)
        signed = current.advert
        require(
            secret.of == request.kind
            and _place(request, setup) == self.place
            and context_of(request) == signed.context,
            f"{request.kind}: another request than the nodes of the sum have signed",
        )
        require(
            claims == signed.work,
            f"{request.kind}: other work than the node has signed",
        )

    def masked(self, request: Request, setup: Setup, part: RoundPart) -> dict[str, Array]:
        """A node's part of a round with its message under masks.

        Raises:
            InputError: If no update counts at a sweep point, so that the node's part of the sum
                would be known and hide nobody's.
        """
        require(part.counts.any(axis=0).all(), "no update counts, and a sum without any hides less")
        secret = secret_of(request)
        current, fixed = self._current(secret), fixed_point_of(setup, secret.of)
        vector = fixed.quantized(part.message, part.counted)
        current.mask(vector)
        return {**part._replace(message=None).arrays(), MASKED: vector}

    def masked_measures(
        self, request: Request, setup: Setup, shapes: Shapes, shown: Mapping[str, Array]
    ) -> dict[str, Array]:
        """A node's measures under masks.

        Args:
            request: The request.
            setup: The method.
            shapes: What nodes answer to an evaluation.
            shown: What this one answers without masks.

        Raises:
            InputError: If a measure is not finite. Without it the sum would show the others', and
                whoever chooses the model would choose whose are left out.
        """
        secret = secret_of(request)
        current, fixed = self._current(secret), fixed_point_of(setup, "evaluate")
        message = {name: np.zeros(like.shape) for name, like in summed_arrays(shapes).items()}
        for measure, arrays in summable(shapes).items():
            own = {name: shown[name] for name in arrays if name in shown}
            if measure in current.measures:
                finite = all(np.isfinite(each).all() for each in own.values())
                require(finite, f"evaluate: its {measure} is not finite")
                message |= own
        for name in ("loss", "weight"):
            message[name] = message[name] * secret.share
        vector = fixed.quantized(message, np.ones(shapes.points, np.float32))
        current.mask(vector)
        return {MASKED: vector}

    def _current(self, secret: Secret) -> NodeSum:
        current = self.current
        require(
            current is not None and current.advert.sum == secret.sum,
            "a sum that is over, or from before the node was restarted",
        )
        assert current is not None
        return current


def _securing(setup: Setup) -> Securing:
    require(setup.secure is not None, "the run has no secure sums")
    assert setup.secure is not None
    return setup.secure


def secret_of(request: Request) -> Secret:
    """A request's part of a secure sum."""
    secret = request.secret
    require(secret is not None, f"{request.kind}: messages are summed in secret only")
    assert secret is not None
    return secret


def _place(request: Request, setup: Setup) -> Place:
    """The run, kind and round of a request's sum."""
    return f"{setup.run}/{setup.number}-{setup.seed}/{secret_of(request).of}", request.round


def claims_of(secret: Secret, jobs: Jobs) -> Claims:
    """How a node's clients weigh in a round.

    Raises:
        InputError: If a client has no work, so that its part of a sum would be known, or has a
            weight of its own.
    """
    has_work = (jobs.weight > 0) & ((jobs.steps > 0) | (secret.of == "gradients"))
    require(len(has_work) and has_work.all(), "a client without work, whose part of a sum is known")
    rates = jobs.weight / (jobs.size if secret.by == "rows" else 1)
    require(equal(rates), f"weights {jobs.weight.tolist()}; they must be equal or those of rows")
    return Claims(by=secret.by, rate=float(rates[0]))


def measured_claims_of(secret: Secret, rows: int, measures: Sequence[str]) -> Claims:
    """How a node's clients weigh in an evaluation.

    Args:
        secret: The request's part of the sum.
        rows: The node's training rows.
        measures: The measures that it reports.

    Raises:
        InputError: If it has no share.
    """
    require(secret.share > 0, f"share = {secret.share}; a node has some of the rows")
    return Claims(by="rows", rate=secret.share / rows, measures=sorted(measures))
