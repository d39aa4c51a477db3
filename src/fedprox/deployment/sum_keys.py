"""Keys for the sums that follow: a node's part and the operator's, in three exchanges.

Nodes advertise public keys, share the secrets that belong to them, and accept each other's shares.
All is done at once for the next `SUMS` sums of messages. Each of them has secrets of its own, the
seed of a self mask and a key for pairwise masks, drawn and shared independently of all others. So
a secret that is revealed for one sum tells nothing of another, and what holds for one sum with keys
of its own holds for each of them. One key serves all: by it two nodes seal shares for each other,
and mask sums over all nodes. It is never shared, and nothing reveals it.

The operator cannot read sealed shares. Each node states digests of the shares that it gives the
others. A node that cannot use a share says so, and either of the two lies. At most n - t of n nodes
may lie, and an honest one disagrees with liars alone, so a node that disagrees with more than that
lies. No node has sent a message by then, and keys are made anew without it.
"""

import contextlib
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from fedprox.deployment.combine import OF_LOSS
from fedprox.deployment.conversation import Failed
from fedprox.deployment.crypto import (
    KEY_BYTES,
    SHARE_BYTES,
    Identity,
    agreed,
    decoded,
    has_signed,
    require_public,
    seal,
    split_secret,
    unseal,
)
from fedprox.deployment.wire import SUMS, Advert, Answer, Securing, Setup, SumStage
from fedprox.errors import InputError, plural, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


BOTH = 2 * SHARE_BYTES
"""Bytes of the shares of both secrets of a sum, that of the seed before that of the key."""


def hash_of(content: bytes) -> str:
    """A digest in hexadecimal."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


HASH_LENGTH = 64
"""Hexadecimal digits of a digest."""


def digest_of_setup(setup: Setup) -> str:
    """The text that nodes sign for a run: its method, seed and settings."""
    return hash_of(setup.model_dump_json().encode())


def roster_digest(roster: Sequence[Advert]) -> str:
    """A digest of some advertisements."""
    return hash_of("\n".join(each.model_dump_json() for each in roster).encode())


def commitments_of(shares: bytes) -> str:
    """The digests of shares, two for each sum, one after the other.

    They tell nothing of them: each share is a number of 256 bits that is uniform for all who have
    fewer than `threshold` shares.
    """
    pieces = range(0, len(shares), SHARE_BYTES)
    return "".join(hash_of(shares[i : i + SHARE_BYTES]) for i in pieces)


def public_of(key: bytes) -> str:
    """The public part of a key for masks or shares."""
    return _public(X25519PrivateKey.from_private_bytes(key))


def _public(key: "X25519PrivateKey") -> str:
    return key.public_key().public_bytes_raw().hex()


def common_measures(roster: Iterable[Advert], threshold: int) -> set[str]:
    """The measures that enough nodes report; a sum has zeros for others."""
    reported = Counter(measure for each in roster for measure in set(each.measures))
    return {measure for measure, nodes in reported.items() if nodes >= threshold}


class NodeKeys:
    """A node's keys: each stage takes fields of `Secret`, and answers others.

    Attributes:
        secrets: The seed of the self mask and the key for pairwise masks of each sum of messages
            that was not begun, by its number.
        shares: The node's shares of both secrets of each of these sums, by the node whose they are.
        members: The nodes with which it can sum: those whose shares it was given, and itself.
        measures: The measures that enough nodes report.
        begun: Numbers of the next sum of messages (False) and of the next one over all (True).
    """

    def __init__(self, identity: Identity, securing: Securing, advert: Advert) -> None:
        self.identity, self.securing = identity, securing
        self.pairing = X25519PrivateKey.generate()
        self.secrets = {
            number: (secrets.token_bytes(KEY_BYTES), X25519PrivateKey.generate())
            for number in range(SUMS)
        }
        unsigned = advert.model_copy(
            update={
                "pairing": _public(self.pairing),
                "masking": [_public(key) for _, key in self.secrets.values()],
                "seeds": [hash_of(seed) for seed, _ in self.secrets.values()],
            }
        )
        signature = identity.sign(unsigned.signed).hex()
        self.advert = unsigned.model_copy(update={"signature": signature})
        self.stage = "advertised"
        self.roster: dict[str, Advert] = {}
        self.digest = ""
        self.measures, self.members = set[str](), set[str]()
        self.shares: dict[int, dict[str, bytes]] = {number: {} for number in range(SUMS)}
        self.begun = {False: 0, True: 0}

    def share(self, roster: Sequence[Advert]) -> dict[str, Any]:
        """Share the node's secrets: what each other node alone can open, and digests of all."""
        self._require("advertised")
        names, own = [each.node for each in roster], self.identity.name
        require(names == sorted(set(names)), "advertisements that are not in order")
        require(self.advert in roster, "the node's own advertisement is not there as it made it")
        self.require_enough(names)
        for each in roster:
            who = f"advertisement of node {each.node!r}: "
            require(each.node in self.securing.nodes, f"{who}it is not of this run")
            same = each.keys == self.advert.keys and each.context == self.advert.context
            require(same, f"{who}it is asked for something else than this node")
            require(len(each.masking) == len(each.seeds) == SUMS, f"{who}it is not for {SUMS} sums")
            self.identity.check(each.node, bytes.fromhex(each.signature), each.signed)
        self.stage = "shared"
        self.measures = common_measures(roster, self.securing.threshold)
        self.roster, self.digest = dict(zip(names, roster, strict=True)), roster_digest(roster)
        least, count = self.securing.threshold, len(names)
        of_sums = [
            split_secret(secret, least, count)
            for seed, key in self.secrets.values()
            for secret in (seed, key.private_bytes_raw())
        ]
        by_name = {name: b"".join(each[i] for each in of_sums) for i, name in enumerate(names)}
        self._keep(own, by_name[own])
        return {
            "shares": {
                name: seal(self._sealing(own, name), shares).hex()
                for name, shares in by_name.items()
                if name != own
            },
            "commitments": {name: commitments_of(each) for name, each in by_name.items()},
        }

    def accept(self, shares: Mapping[str, str], commitments: Mapping[str, str]) -> dict[str, Any]:
        """Take the shares of the nodes that are left; the nodes whose shares cannot be used."""
        self._require("shared")
        own = self.identity.name
        self.require_enough({own, *shares})
        require(shares.keys() <= self.roster.keys() - {own}, "shares of nodes that advertised none")
        self.stage, self.members = "accepted", {own, *shares}
        used = {own}
        for name, share in shares.items():
            with contextlib.suppress(InputError):
                opened = unseal(self._sealing(name, own), bytes.fromhex(share))
                if commitments_of(opened) == commitments.get(name):
                    self._keep(name, opened)
                    used.add(name)
        return {"unusable": sorted(self.members - used)}

    def require_next(self, number: int, asked: Sequence[str], *, everyone: bool) -> None:
        """Raise `InputError` unless a sum of some nodes' messages can be begun.

        One of measures is over all nodes: with two sums of a model, over all and over all but one,
        anybody could subtract.
        """
        require(self.stage == "accepted", f"the node's keys are {self.stage}, and not accepted")
        require(
            self.begun[everyone] <= number and (everyone or number < SUMS),
            f"sum {number}: the node has begun it or a later one, or its keys are not for so many",
        )
        require(
            [*asked] == sorted(set(asked)) and self.identity.name in asked,
            "the nodes of the sum are not in order, or this one is not among them",
        )
        self.require_enough(asked)
        missing = sorted({self.identity.name, *self.identity.peers} - set(asked))
        require(
            not (everyone and missing),
            f"measures without node {', '.join(missing)}; they are summed over all of "
            "policy.secure.peers and this node",
        )
        others = sorted(set(asked) - self.members)
        require(not others, f"nodes {', '.join(others)}: the node was not given their shares")

    def taken(self, number: int) -> "tuple[bytes, X25519PrivateKey, dict[str, bytes]]":
        """Seed, key and shares of a sum, which are forgotten here with those of all before it."""
        seed, key = self.secrets[number]
        shares = self.shares[number]
        for earlier in range(self.begun[False], number + 1):
            del self.secrets[earlier], self.shares[earlier]
        self.begun[False] = number + 1
        return seed, key, shares

    def require_enough(self, names: Collection[str]) -> None:
        """Raise `InputError` if a sum is over too few nodes."""
        least = self.securing.threshold
        require(len(names) >= least, f"a sum over {len(names)} nodes; at least {least} are needed")

    def _keep(self, name: str, shares: bytes) -> None:
        """Keep the shares of a node, which are as many as sums."""
        require(len(shares) == BOTH * SUMS, "shares of another number of sums")
        for number, kept in self.shares.items():
            kept[name] = shares[number * BOTH : (number + 1) * BOTH]

    def _require(self, stage: str) -> None:
        """Raise `InputError` unless a stage was the last one."""
        require(self.stage == stage, f"the node's keys are {self.stage} already")

    def _sealing(self, sender: str, receiver: str) -> bytes:
        """The key that seals the shares of one node for another, one of which is this node."""
        other = receiver if sender == self.identity.name else sender
        purpose = f"shares {self.digest} {json.dumps([sender, receiver])}".encode()
        return agreed(self.pairing, bytes.fromhex(self.roster[other].pairing), purpose)


class OperatorKeys:
    """The operator's part of keys: what nodes are sent, and what they may answer.

    Args:
        context: The text that the nodes sign for the run.
        key_of: (name) -> the public key by which the network knows a node; empty if it does not.

    Attributes:
        name: Identifier of the keys.
        answers: The nodes' answers, by stage and name.
        roster: The advertisements, by name.
        members: The nodes whose messages can be summed.
        problems: Why other nodes have no keys, by name.
        dishonest: Why the keys of nodes cannot be used, by name.
        begun: Numbers of the next sums, as in `NodeKeys`.
    """

    def __init__(self, securing: Securing, context: str, key_of: Callable[[str], bytes]) -> None:
        self.securing, self.context, self.key_of = securing, context, key_of
        self.name = secrets.token_hex(16)
        self.answers: dict[SumStage, Mapping[str, Answer]] = {}
        self.roster: dict[str, Advert] = {}
        self.digest = ""
        self.members = set[str]()
        self.problems: dict[str, Failed] = {}
        self.dishonest: dict[str, str] = {}
        self.begun = {False: 0, True: 0}

    def asked(self, stage: SumStage, name: str) -> dict[str, Any]:
        """The fields of `Secret` that a node is sent in a stage."""
        if stage == "share":
            return {"roster": [*self.roster.values()]}
        if stage == "accept":
            others = {each: a for each, a in self.answers["share"].items() if each != name}
            return {
                "shares": {each: a.shares[name] for each, a in others.items()},
                "commitments": {each: a.commitments[name] for each, a in others.items()},
            }
        return {}

    def check(self, stage: SumStage, name: str, answer: Answer) -> None:
        """Raise `InputError` if a node's answer to a stage is of no use, whatever others answer."""
        if stage == "advertise":
            self._check_advert(name, answer.advert)
        elif stage == "share":
            names, length = self.answers["advertise"].keys(), 2 * HASH_LENGTH * SUMS
            require(
                answer.shares.keys() == names - {name}
                and answer.commitments.keys() == names
                and all(len(each) == length for each in answer.commitments.values()),
                "its shares are not for the nodes of the sum",
            )
        else:
            others = self.answers["share"].keys() - {name}
            require(set(answer.unusable) <= others, "it names shares that it was not given")

    def take(self, stage: SumStage, answers: Mapping[str, Answer]) -> None:
        """Keep the answers to a stage; `InputError` if too few nodes are left."""
        require_enough(self.securing, answers)
        self.answers[stage] = answers
        if stage == "advertise":
            adverts = {name: answers[name].advert for name in sorted(answers)}
            self.roster = {name: each for name, each in adverts.items() if each}
            self.digest = roster_digest([*self.roster.values()])
        if stage == "accept":
            self.members = {*answers}
            self._judge()

    @property
    def disagreements(self) -> list[tuple[str, str]]:
        """Pairs of nodes of which one cannot use the other's shares."""
        given = self.answers["accept"].items()
        return sorted({(min(a, b), max(a, b)) for a, answer in given for b in answer.unusable})

    def _judge(self) -> None:
        """Find the nodes that lie about shares."""
        pairs, spare = self.disagreements, len(self.answers["accept"]) - self.securing.threshold
        for name in sorted({name for pair in pairs for name in pair}):
            others = sum(name in pair for pair in pairs)
            if others > spare > 0:
                self.dishonest[name] = (
                    f"it disagrees with {plural(others, 'node')} about a share, and at most "
                    f"{spare} may lie"
                )
        for first, second in pairs:
            require(
                spare > 0,
                f"nodes {first!r} and {second!r} disagree about a share, and no node is to spare: "
                "which of the two lies cannot be told",
            )

    def _check_advert(self, name: str, advert: Advert | None) -> None:
        given = advert and (advert.node, advert.keys, advert.context)
        if advert is None or given != (name, self.name, self.context):
            raise InputError("it advertises something else than it was asked")
        of_loss = set(OF_LOSS) & set(advert.measures)
        whole = len(of_loss) in (0, len(OF_LOSS))
        require(whole, f"it reports {', '.join(sorted(of_loss))}, a part of what losses need")
        require(len(advert.masking) == len(advert.seeds) == SUMS, f"it is not for {SUMS} sums")
        for key in (advert.pairing, *advert.masking):
            require_public(bytes.fromhex(key))
        self.require_signed(name, advert.signature, advert.signed)

    def require_signed(self, name: str, signature: str, content: bytes) -> None:
        """Raise `InputError` unless a node has signed something, as far as its key is known."""
        key = self.key_of(name)
        require(
            not key or has_signed(decoded(key), bytes.fromhex(signature), content),
            "its signature is not by the key that the network knows it by",
        )


def require_enough(securing: Securing, names: Collection[str]) -> None:
    """Raise `InputError` if fewer nodes than the threshold are left."""
    least = securing.threshold
    require(
        len(names) >= least,
        f"{len(names)} of {len(securing.nodes)} nodes are left, and a secure sum needs {least}",
    )
