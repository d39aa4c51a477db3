"""A node's part of secure sums: the protocol, and the requests of its stages.

Its stages are advertise, share, accept, mask, confirm, reveal, each passed once and in this order.
What is asked a second time is refused, so of each node of a sum it reveals a share of one secret:
of its self mask if its message is in the sum, else of its key for pairwise masks.
"""

import contextlib
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox.deployment.combine import SHARED, Measured, summable
from fedprox.deployment.crypto import (
    KEY_BYTES,
    SHARE_BYTES,
    Identity,
    Words,
    add_mask,
    agreed,
    seal,
    split_secret,
    unseal,
)
from fedprox.deployment.fixed_point import fixed_point_of, secured
from fedprox.deployment.kept import Revealed, SumPlace, read_kept, write_kept
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.wire import (
    STAGES,
    Advert,
    Array,
    Claims,
    Request,
    Secret,
    Securing,
    Setup,
    required,
)
from fedprox.engine.planning.jobs import Jobs
from fedprox.errors import InputError, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


REACHED = "advertised", "shared", "accepted", "masked", "confirmed", "revealed"
"""How far a node's part of a sum is, in order."""

EQUAL = 1e-6
"""Relative difference of weights that are equal but for rounding."""


def context_of(request: Request) -> str:
    """A digest of what all nodes of a sum are asked alike: setup, round, settings and arrays.

    Nodes that sign the same one compute from the same model.
    """
    alike = {"version", "kind", "setup", "round", "participation", "initial", "arrays"}
    return hash_of(request.model_dump_json(include=alike).encode())


def roster_digest(roster: Sequence[Advert]) -> str:
    """A digest of the advertisements of a sum."""
    return hash_of("\n".join(each.model_dump_json() for each in roster).encode())


def pairwise_purpose(roster: str, first: str, second: str) -> bytes:
    """The purpose of the key for the mask of two nodes."""
    return f"mask {roster} {json.dumps(sorted((first, second)))}".encode()


def hash_of(content: bytes) -> str:
    """A digest in hexadecimal."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


HASH_LENGTH = 64
"""Hexadecimal digits of a digest."""


def commitment_of(share: bytes) -> str:
    """The digests of a share's two halves, that of the seed and that of the key.

    They tell nothing of it: each half is a number of 256 bits that is uniform for all who have
    fewer than `threshold` shares.
    """
    half = SHARE_BYTES
    return hash_of(share[:half]) + hash_of(share[half:])


def confirmation(roster: str, asked: Collection[str], included: Collection[str]) -> bytes:
    """What a node signs of a sum: its roster, whose messages were asked for, and whose came."""
    return b"included " + json.dumps([roster, sorted(asked), sorted(included)]).encode()


def public_of(key: bytes) -> str:
    """The public part of a key for masks or shares."""
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw().hex()


class NodeSum:
    """A node's part of one secure sum: each stage takes fields of `Secret`, and answers others."""

    def __init__(self, identity: Identity, securing: Securing, advert: Advert) -> None:
        self.identity, self.securing = identity, securing
        self.sharing, self.masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self.seed = secrets.token_bytes(KEY_BYTES)
        unsigned = advert.model_copy(
            update={
                "sharing": public_of(self.sharing.private_bytes_raw()),
                "masking": public_of(self.masking.private_bytes_raw()),
                "seed": hash_of(self.seed),
            }
        )
        signature = identity.sign(unsigned.signed).hex()
        self.advert = unsigned.model_copy(update={"signature": signature})
        self.stage = "advertised"
        self.roster: dict[str, Advert] = {}
        self.measures: set[str] = set()
        self.digest = ""
        self.shares: dict[str, bytes] = {}
        self.asked: set[str] = set()
        self.included: list[str] = []

    def share(self, roster: Sequence[Advert]) -> dict[str, Any]:
        """Share the node's secrets: what each other node alone can open, and digests of all."""
        self._require_next("shared")
        names, own = [each.node for each in roster], self.identity.name
        require(names == sorted(set(names)), "advertisements that are not in order")
        require(self.advert in roster, "the node's own advertisement is not there as it made it")
        self._require_sum_of(names)
        for each in roster:
            who = f"advertisement of node {each.node!r}: "
            require(each.node in self.securing.nodes, f"{who}it is not of this run")
            same = each.sum == self.advert.sum and each.context == self.advert.context
            require(same, f"{who}it is asked for something else than this node")
            self.identity.check(each.node, bytes.fromhex(each.signature), each.signed)
        rates = [each.work.rate for each in roster]
        # with weights of the operator's choice, a sum could be one message but for rounding
        require(
            len({each.work.by for each in roster}) == 1 and equal(rates),
            f"weights of {rates} in different nodes; they must be equal or those of rows",
        )
        self.stage = "shared"
        self.measures = common_measures(roster, self.securing.threshold)
        self.roster, self.digest = dict(zip(names, roster, strict=True)), roster_digest(roster)
        halves = (
            split_secret(secret, self.securing.threshold, len(names))
            for secret in (self.seed, self.masking.private_bytes_raw())
        )
        both = {name: seed + key for name, seed, key in zip(names, *halves, strict=True)}
        self.shares = {own: both[own]}
        return {
            "shares": {
                name: seal(self._sealing(own, name), share).hex()
                for name, share in both.items()
                if name != own
            },
            "commitments": {name: commitment_of(share) for name, share in both.items()},
        }

    def accept(self, shares: Mapping[str, str], commitments: Mapping[str, str]) -> dict[str, Any]:
        """Take the shares of the nodes that are left; the nodes whose shares cannot be used."""
        self._require_next("accepted")
        own = self.identity.name
        self._require_sum_of({own, *shares})
        require(
            shares.keys() <= self.roster.keys() - {own}, "shares of nodes that are not in the sum"
        )
        self.stage, self.asked = "accepted", {own, *shares}
        for name, share in shares.items():
            with contextlib.suppress(InputError):
                opened = unseal(self._sealing(name, own), bytes.fromhex(share))
                fits = len(opened) == 2 * SHARE_BYTES
                if fits and commitment_of(opened) == commitments.get(name):
                    self.shares[name] = opened
        return {"unusable": sorted(self.asked - self.shares.keys())}

    def mask(self, vector: Words) -> None:
        """Add the node's masks to its message in place."""
        self._require_next("masked")
        self.stage = "masked"
        add_mask(vector, self.seed)
        own = self.identity.name
        for name in self.asked - {own}:
            purpose = pairwise_purpose(self.digest, own, name)
            key = agreed(self.masking, bytes.fromhex(self.roster[name].masking), purpose)
            add_mask(vector, key, subtract=own > name)

    def confirm(self, included: Collection[str]) -> dict[str, Any]:
        """Sign which nodes' messages are in the sum."""
        self._require_next("confirmed")
        require(
            self.identity.name in included and set(included) <= self.asked,
            "a sum of other nodes' messages than those that were asked for",
        )
        self._require_sum_of(included)
        self.stage, self.included = "confirmed", sorted(included)
        return {"signature": self.identity.sign(self._confirmed()).hex()}

    def reveal(self, signatures: Mapping[str, str]) -> dict[str, Any]:
        """A share of each node's self mask if it is in the sum, else of its key.

        Those of nodes whose shares could not be used are missing.
        """
        self._require_next("revealed")
        require(set(signatures) <= set(self.included), "signatures of nodes outside of the sum")
        self._require_enough(signatures)
        for name, signature in signatures.items():
            self.identity.check(name, bytes.fromhex(signature), self._confirmed())
        self.stage = "revealed"
        seed, key = slice(SHARE_BYTES), slice(SHARE_BYTES, None)
        chosen = {
            name: share[seed if name in self.included else key].hex()
            for name, share in self.shares.items()
        }
        self.shares, self.seed = {}, b""
        return {"shares": chosen}

    def _require_enough(self, names: Collection[str]) -> None:
        least = self.securing.threshold
        require(len(names) >= least, f"a sum over {len(names)} nodes; at least {least} are needed")

    def _require_sum_of(self, names: Collection[str]) -> None:
        """Raise `InputError` if a sum is over too few nodes, or one of measures not over all.

        With two sums of a model, over all nodes and over all but one, anybody could subtract.
        """
        self._require_enough(names)
        missing = sorted({self.identity.name, *self.identity.peers} - set(names))
        require(
            self.advert.work.measures is None or not missing,
            f"measures without node {', '.join(missing)}; they are summed over all of "
            "policy.secure.peers and this node",
        )

    def _require_next(self, stage: str) -> None:
        """Raise `InputError` unless a stage is the next one."""
        require(
            REACHED.index(stage) == REACHED.index(self.stage) + 1,
            f"the node has {self.stage} already, and goes on from there alone",
        )

    def _sealing(self, sender: str, receiver: str) -> bytes:
        """The key that seals the shares of one node for another, one of which is this node."""
        other = receiver if sender == self.identity.name else sender
        purpose = f"shares {self.digest} {json.dumps([sender, receiver])}".encode()
        return agreed(self.sharing, bytes.fromhex(self.roster[other].sharing), purpose)

    def _confirmed(self) -> bytes:
        return confirmation(self.digest, self.asked, self.included)


def common_measures(roster: Iterable[Advert], threshold: int) -> set[str]:
    """The measures that enough nodes report; the sum has zeros for others."""
    reported = Counter(measure for each in roster for measure in set(each.work.measures or ()))
    return {measure for measure, nodes in reported.items() if nodes >= threshold}


def equal(numbers: Any) -> bool:
    """Whether positive numbers are equal but for rounding."""
    return bool(np.ptp(numbers) <= EQUAL * np.min(numbers))


MASKED = "masked"
"""The array of an answer that holds the masked message."""


class Sums:
    """The secure sums of a node."""

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.identity, self.folder = identity, folder
        self.revealed = read_kept(Revealed, folder)
        self.current: NodeSum | None = None
        self.place: SumPlace = ("", 0)

    def check(self, setup: Setup) -> None:
        """Raise `InputError` unless the nodes of a run are this one and those that it knows.

        With privacy, the noise of the nodes must be what the run is accounted for.
        """
        securing = secured(setup)
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

    def advertise(self, request: Request, setup: Setup, claims: Claims) -> dict[str, Any]:
        """Begin a sum, with new keys; secrets of an earlier one are forgotten."""
        secret, place = secret_of(request), _place(request, setup)
        self.revealed.check(place, secret.context if secret.of == "evaluate" else "")
        advert = Advert(
            node=self.identity.name, sum=secret.sum, context=secret.context, work=claims
        )
        self.current, self.place = NodeSum(self.identity, secured(setup), advert), place
        return {"advert": self.current.advert}

    def answer(self, request: Request) -> dict[str, Any]:
        """Answer "share", "accept", "confirm" and "reveal"."""
        secret, stage = secret_of(request), request.kind
        current = self._current(secret)
        fields = {name: getattr(secret, name) for name in STAGES[stage]}
        answered: dict[str, Any] = getattr(current, stage)(**fields)
        if stage == "confirm":
            measures = current.advert.work.measures is not None
            revealed = self.revealed.after(self.place, current.advert.context if measures else "")
            write_kept(self.folder, revealed)  # before the signature leaves the node
            self.revealed = revealed
        elif stage == "reveal":
            self.current = None
        return answered

    def check_signed(self, request: Request, setup: Setup, claims: Claims) -> None:
        """Check what a node is asked, before it computes its message."""
        secret, kind = secret_of(request), request.kind
        signed = self._current(secret).advert
        same = secret.of == kind and _place(request, setup) == self.place
        require(
            same and context_of(request) == signed.context,
            f"{kind}: another request than the nodes of the sum have signed",
        )
        require(claims == signed.work, f"{kind}: other work than the node has signed")

    def masked(self, request: Request, setup: Setup, part: RoundPart) -> dict[str, Array]:
        """A node's part of a round with its message under masks."""
        require(part.counts.any(axis=0).all(), "no update counts, and a sum without any hides less")
        secret = secret_of(request)
        current, fixed = self._current(secret), fixed_point_of(setup, secret.of)
        vector = fixed.quantized(part.message, part.counted)
        current.mask(vector)
        return {**part._replace(message=None).arrays(), MASKED: vector}

    def masked_measures(
        self, request: Request, setup: Setup, shapes: Measured, shown: Measured
    ) -> dict[str, Array]:
        """A node's measures under masks, all of which must be finite.

        Else the sum would show the others', and whoever chooses the model would choose whose are
        left out.
        """
        secret = secret_of(request)
        current, fixed = self._current(secret), fixed_point_of(setup, "evaluate")
        message = jax.tree.map(lambda a: np.zeros(a.shape), summable(shapes))
        for measure in [each for each in message if each in current.measures and each in shown]:
            message[measure] = shown[measure]
            finite = all(np.isfinite(a).all() for a in jax.tree.leaves(message[measure]))
            require(finite, f"evaluate: its {measure} is not finite")
        for measure in SHARED:
            message[measure] = message[measure] * secret.share
        vector = fixed.quantized(message, np.ones(len(message["loss"]), np.float32))
        current.mask(vector)
        return {MASKED: vector}

    def _current(self, secret: Secret) -> NodeSum:
        line = "a sum that is over, or from before the node was restarted"
        current = required(self.current, line)
        require(current.advert.sum == secret.sum, line)
        return current


def secret_of(request: Request) -> Secret:
    """A request's part of a secure sum."""
    return required(request.secret, f"{request.kind}: messages are summed in secret only")


def _place(request: Request, setup: Setup) -> SumPlace:
    """The run, kind and round of a request's sum."""
    return f"{setup.name}/{secret_of(request).of}", request.round


def claims_of(secret: Secret, jobs: Jobs) -> Claims:
    """How a node's clients weigh in a round."""
    has_work = (jobs.weight > 0) & ((jobs.steps > 0) | (secret.of == "gradients"))
    require(len(has_work) and has_work.all(), "a client without work, whose part of a sum is known")
    rates = jobs.weight / (jobs.size if secret.by == "rows" else 1)
    require(equal(rates), f"weights {jobs.weight.tolist()}; they must be equal or those of rows")
    return Claims(by=secret.by, rate=float(rates[0]))


def measured_claims_of(secret: Secret, rows: int, measures: Sequence[str]) -> Claims:
    """How a node's clients weigh in an evaluation."""
    require(secret.share > 0, f"share = {secret.share}; a node has some of the rows")
    return Claims(by="rows", rate=secret.share / rows, measures=sorted(measures))
