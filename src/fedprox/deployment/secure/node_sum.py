"""A node's part of one secure sum.

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
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedprox.deployment.messages import Advert, Request, Securing
from fedprox.deployment.secure import shamir
from fedprox.deployment.secure.keys import Identity, agreed, seal, unseal
from fedprox.deployment.secure.masks import KEY_BYTES, Whole, add_mask
from fedprox.errors import InputError, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Stage = Literal["advertised", "shared", "accepted", "masked", "confirmed", "revealed"]

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
    half = shamir.SHARE_BYTES
    return hash_of(share[:half]) + hash_of(share[half:])


def confirmation(roster: str, asked: Collection[str], included: Collection[str]) -> bytes:
    """What a node signs of a sum: its roster, whose messages were asked for, and whose came."""
    return b"included " + json.dumps([roster, sorted(asked), sorted(included)]).encode()


class Dealt(NamedTuple):
    """The shares of a node's secrets.

    Attributes:
        sealed: The share of each other node, which it alone can open.
        commitments: The digests of each node's share, its own included.
    """

    sealed: Mapping[str, str]
    commitments: Mapping[str, str]


class NodeSum:
    """A node's part of one secure sum.

    Args:
        identity: The node, and the nodes that it knows.
        securing: What the run declares.
        advert: What the node says of itself, without keys and signature.
    """

    def __init__(self, identity: Identity, securing: Securing, advert: Advert) -> None:
        self.identity, self.securing = identity, securing
        self.sharing, self.masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self.seed = secrets.token_bytes(KEY_BYTES)
        unsigned = advert.model_copy(
            update={
                "sharing": self.sharing.public_key().public_bytes_raw().hex(),
                "masking": self.masking.public_key().public_bytes_raw().hex(),
                "seed": hash_of(self.seed),
            }
        )
        signature = identity.sign(unsigned.signed)
        self.advert = unsigned.model_copy(update={"signature": signature.hex()})
        self.stage: Stage = "advertised"
        self.roster: dict[str, Advert] = {}
        self.measures: set[str] = set()
        self.digest = ""
        self.shares: dict[str, bytes] = {}
        self.asked: set[str] = set()
        self.included: list[str] = []

    def share(self, roster: Sequence[Advert]) -> Dealt:
        """Share the node's secrets among the nodes of the sum.

        Args:
            roster: The advertisements of the nodes that are left.

        Raises:
            InputError: If an advertisement is not that of a node that this one knows, is of another
                sum, or asks for a sum that hides less than it must.
        """
        self._require_next("shared")
        names = [each.node for each in roster]
        require(names == sorted(set(names)), "advertisements that are not in order")
        require(self.advert in roster, "the node's own advertisement is not there as it made it")
        self._require_enough(names)
        self._require_everyone(names)
        for each in roster:
            who = f"advertisement of node {each.node!r}: "
            require(each.node in self.securing.nodes, f"{who}it is not of this run")
            same = each.sum == self.advert.sum and each.context == self.advert.context
            require(same, f"{who}it is asked for something else than this node")
            self.identity.check(each.node, bytes.fromhex(each.signature), each.signed)
        _check_weights(roster)
        self.stage = "shared"
        self.measures = common_measures(roster, self.securing.threshold)
        self.roster, self.digest = dict(zip(names, roster, strict=True)), roster_digest(roster)
        secret = self.masking.private_bytes_raw()
        both = [
            seed + key
            for seed, key in zip(
                shamir.split(self.seed, self.securing.threshold, len(names)),
                shamir.split(secret, self.securing.threshold, len(names)),
                strict=True,
            )
        ]
        self.shares = {self.identity.name: both[names.index(self.identity.name)]}
        sealed = {
            name: seal(self._sealing(self.identity.name, name), share).hex()
            for name, share in zip(names, both, strict=True)
            if name != self.identity.name
        }
        return Dealt(sealed, dict(zip(names, map(commitment_of, both), strict=True)))

    def accept(self, sealed: Mapping[str, str], commitments: Mapping[str, str]) -> list[str]:
        """Take the shares of the nodes that are left.

        Args:
            sealed: The shares, by sender.
            commitments: Their digests, as the senders have stated them.

        Returns:
            The nodes whose shares cannot be opened, or are others than they have stated. The sum
            can do without these shares.

        Raises:
            InputError: If a share is of a node outside of the sum, or too few nodes are left.
        """
        self._require_next("accepted")
        self._require_enough([self.identity.name, *sealed])
        self._require_everyone([self.identity.name, *sealed])
        known = self.roster.keys() - {self.identity.name}
        require(sealed.keys() <= known, "shares of nodes that are not in the sum")
        self.stage = "accepted"
        self.asked = {self.identity.name, *sealed}
        for name, share in sealed.items():
            with contextlib.suppress(InputError):
                opened = unseal(self._sealing(name, self.identity.name), bytes.fromhex(share))
                fits = len(opened) == 2 * shamir.SHARE_BYTES
                if fits and commitment_of(opened) == commitments.get(name):
                    self.shares[name] = opened
        return sorted(self.asked - self.shares.keys())

    def mask(self, vector: Whole) -> None:
        """Add the node's masks to its message in place."""
        self._require_next("masked")
        self.stage = "masked"
        add_mask(vector, self.seed)
        own = self.identity.name
        for name in self.asked - {own}:
            purpose = pairwise_purpose(self.digest, own, name)
            key = agreed(self.masking, bytes.fromhex(self.roster[name].masking), purpose)
            add_mask(vector, key, subtract=own > name)

    def confirm(self, included: Collection[str]) -> str:
        """Sign which nodes' messages are in the sum.

        Raises:
            InputError: If the sum hides less than it must.
        """
        self._require_next("confirmed")
        self._require_enough(included)
        require(
            self.identity.name in included and set(included) <= self.asked,
            "a sum of other nodes' messages than those that were asked for",
        )
        self._require_everyone(included)
        self.stage = "confirmed"
        self.included = sorted(included)
        return self.identity.sign(self._confirmed()).hex()

    def reveal(self, signatures: Mapping[str, str]) -> dict[str, str]:
        """A share of each node's self mask if it is in the sum, else of its key.

        Those of nodes whose shares could not be used are missing.

        Args:
            signatures: Those of nodes in the sum, of what they confirm.

        Raises:
            InputError: If too few have confirmed the same sum.
        """
        self._require_next("revealed")
        require(set(signatures) <= set(self.included), "signatures of nodes outside of the sum")
        self._require_enough(signatures)
        for name, signature in signatures.items():
            self.identity.check(name, bytes.fromhex(signature), self._confirmed())
        self.stage = "revealed"
        half, chosen = shamir.SHARE_BYTES, {}
        for name, share in self.shares.items():
            chosen[name] = (share[:half] if name in self.included else share[half:]).hex()
        self.shares, self.seed = {}, b""
        return chosen

    def _require_enough(self, names: Collection[str]) -> None:
        least = self.securing.threshold
        require(len(names) >= least, f"a sum over {len(names)} nodes; at least {least} are needed")

    def _require_everyone(self, names: Collection[str]) -> None:
        """Raise `InputError` if measures are summed over other nodes than always.

        With two sums of a model, over all nodes and over all but one, anybody could subtract.
        """
        known = {self.identity.name, *self.identity.peers}
        missing = sorted(known - set(names))
        require(
            self.advert.work.measures is None or not missing,
            f"measures without node {', '.join(missing)}; they are summed over all of "
            "policy.secure.peers and this node",
        )

    def _require_next(self, stage: Stage) -> None:
        """Raise `InputError` unless a stage is the next one."""
        stages: Sequence[Stage] = get_args(Stage)
        require(
            stages.index(stage) == stages.index(self.stage) + 1,
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


def _check_weights(roster: Sequence[Advert]) -> None:
    """Raise `InputError` unless the clients of all nodes weigh the same, or as their rows.

    With weights of the operator's choice, a sum could be one node's message but for rounding.
    """
    rates = [each.work.rate for each in roster]
    require(
        len({each.work.by for each in roster}) == 1 and equal(rates),
        f"weights of {rates} in different nodes; they must be equal or those of rows",
    )


def equal(numbers: Any) -> bool:
    """Whether positive numbers are equal but for rounding."""
    return bool(np.ptp(numbers) <= EQUAL * np.min(numbers))
