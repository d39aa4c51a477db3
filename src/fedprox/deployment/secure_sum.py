"""Secure sums: a node's part, the operator's part, and the requests of their stages.

A node's stages are advertise, share, accept, mask, confirm, reveal, each passed once and in this
order. What is asked a second time is refused, so of each node of a sum it reveals a share of one
secret: of its self mask if its message is in the sum, else of its key for pairwise masks.

The operator passes on what is sealed, adds, and removes masks. Nodes may lie. Each node states
digests of the shares that it gives the others, so a share that is revealed is checked alone, and
any `threshold` that are right give the secret. A secret is checked against what its node has
advertised. What is sealed the operator cannot read: a node that cannot use a share says so, and
either of the two lies. At most n - t of n nodes may drop out or lie, and an honest one disagrees
with liars alone, so a node that disagrees with more than that lies.
"""

import contextlib
import hashlib
import itertools
import json
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.deployment.combine import OF_LOSS, SHARED, NodeMeasures, summable
from fedprox.deployment.conversation import Answered, Failed
from fedprox.deployment.coordinator import Coordinator
from fedprox.deployment.crypto import (
    KEY_BYTES,
    SHARE_BYTES,
    Identity,
    Words,
    add_mask,
    agreed,
    decoded,
    has_signed,
    joined_secret,
    require_public,
    seal,
    split_secret,
    unseal,
)
from fedprox.deployment.fixed_point import fixed_point_of, secured, size_of
from fedprox.deployment.kept import Revealed, SumPlace, read_kept, write_kept
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.wire import (
    OF_ALL,
    STAGES,
    Advert,
    Answer,
    Array,
    Claims,
    Request,
    Secret,
    Securing,
    Setup,
    Summed,
    SumStage,
    WeightsBy,
    digest_of,
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
        self.revealed.check(place, secret.context if secret.of in OF_ALL else "")
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
        self, request: Request, setup: Setup, shapes: NodeMeasures, shown: NodeMeasures
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

    def masked_moments(self, request: Request, setup: Setup, message: Any) -> dict[str, Array]:
        """A node's part of the moments of all nodes' columns under masks."""
        secret = secret_of(request)
        current, fixed = self._current(secret), fixed_point_of(setup, secret.of)
        vector = fixed.quantized(message, np.ones(1, np.float32))
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


AFTER_MASKS: tuple[SumStage, ...] = "confirm", "reveal"
"""The stages after all messages of the sum have come, so that it goes on without a node."""

SHARE_SETS = 200
"""Sets of shares that are tried at most if the first do not give what their node advertised."""


class OperatorSum:
    """The operator's part of one secure sum: what nodes are sent, and what they may answer.

    Args:
        secret: What all requests of the sum have.
        rates: The weight that each node must advertise, by name.
        key_of: (name) -> the public key by which the network knows a node; empty if it does not.

    Attributes:
        answers: What nodes have answered, by stage and name.
        roster: The advertisements, by name.
        masked: The masked messages, by name.
        liars: What nodes have revealed wrongly, by name. The sum does without it.
        dishonest: What makes the secrets of nodes useless, by name. There is no sum with them.
    """

    def __init__(
        self,
        securing: Securing,
        secret: Secret,
        rates: Mapping[str, float],
        key_of: Callable[[str], bytes],
    ) -> None:
        self.securing, self.secret, self.rates, self.key_of = securing, secret, rates, key_of
        self.everyone = secret.of in OF_ALL
        self.answers: dict[SumStage, Mapping[str, Answer]] = {}
        self.roster: list[Advert] = []
        self.digest = ""
        self.masked: dict[str, Words] = {}
        self.liars: dict[str, str] = {}
        self.dishonest: dict[str, str] = {}

    def asked(self, stage: SumStage, name: str) -> dict[str, Any]:
        """What a node is sent in a stage, as fields of `Secret`."""
        if stage == "share":
            return {"roster": self.roster}
        if stage == "accept":
            others = {each: a for each, a in self.answers["share"].items() if each != name}
            return {
                "shares": {each: a.shares[name] for each, a in others.items()},
                "commitments": {each: a.commitments[name] for each, a in others.items()},
            }
        if stage == "confirm":
            return {"included": sorted(self.masked)}
        if stage == "reveal":
            signed = self.answers["confirm"].items()
            return {"signatures": {each: answer.signature for each, answer in signed}}
        return {}

    def check(self, stage: SumStage, name: str, answer: Answer) -> None:
        """Raise `InputError` if a node's answer to a stage is of no use, whatever others answer."""
        if stage == "advertise":
            self._check_advert(name, answer.advert)
        elif stage == "share":
            names = self.answers["advertise"].keys()
            require(
                answer.shares.keys() == names - {name}
                and answer.commitments.keys() == names
                and all(len(each) == 2 * HASH_LENGTH for each in answer.commitments.values()),
                "its shares are not for the nodes of the sum",
            )
        elif stage == "accept":
            others = self.answers["share"].keys() - {name}
            require(set(answer.unusable) <= others, "it names shares that it was not given")
        elif stage == "confirm":
            shared = self.answers["share"].keys()
            content = confirmation(self.digest, shared, self.masked)
            self._require_signed(name, answer.signature, content)
        else:
            usable = self.answers["share"].keys() - set(self.answers["accept"][name].unusable)
            require(
                answer.shares.keys() == usable
                and all(len(share) == 2 * SHARE_BYTES for share in answer.shares.values()),
                "its shares are not those of the nodes of the sum",
            )

    def take(self, stage: SumStage, answers: Mapping[str, Answer]) -> None:
        """Keep the answers to a stage; `InputError` if there is no sum of the nodes left."""
        if stage in AFTER_MASKS:
            self.require_enough(answers)
        else:
            self.require_messages(answers)
        self.answers[stage] = answers
        if stage == "advertise":
            adverts = [answers[name].advert for name in sorted(answers)]
            self.roster = [each for each in adverts if each]
            self.digest = roster_digest(self.roster)
        if stage == "accept":
            self._judge()

    @property
    def disagreements(self) -> list[tuple[str, str]]:
        """Pairs of nodes of which one cannot use the other's share."""
        given = self.answers["accept"].items()
        return sorted({(min(a, b), max(a, b)) for a, answer in given for b in answer.unusable})

    def _judge(self) -> None:
        """Find the nodes that lie about shares."""
        pairs, spare = self.disagreements, len(self.answers["accept"]) - self.securing.threshold
        for name in sorted({name for pair in pairs for name in pair}):
            others = sum(name in pair for pair in pairs)
            if others > spare > 0:
                self.dishonest[name] = (
                    f"it disagrees with {others} nodes about a share, and at most {spare} may lie"
                )
        for first, second in pairs:
            require(
                spare > 0,
                f"nodes {first!r} and {second!r} disagree about a share, and no node is to spare: "
                "which of the two lies cannot be told",
            )

    def unmasked(self) -> Words:
        """The sum of the nodes' messages, in the first of their arrays."""
        adverts = {each.node: each for each in self.roster}
        right = {name: self._right_shares(name) for name in self.answers["share"]}
        least = min(map(len, right.values()))
        require(
            least >= self.securing.threshold,
            f"{least} right shares of a secret, and a secure sum needs {self.securing.threshold}",
        )
        secrets = {name: self._secret_of(adverts[name], each) for name, each in right.items()}
        for name in [name for name, secret in secrets.items() if not secret]:
            self.dishonest[name] = "its shares are not of the secret that it has advertised"
        require(
            not self.dishonest,
            "; ".join(f"node {name!r}: {why}" for name, why in self.dishonest.items()),
        )
        total, *others = self.masked.values()
        for vector in others:
            total += vector
        for name, secret in secrets.items():
            if name in self.masked:
                add_mask(total, secret, subtract=True)
                continue
            key = X25519PrivateKey.from_private_bytes(secret)
            for other in self.masked:
                purpose = pairwise_purpose(self.digest, name, other)
                pairwise = agreed(key, bytes.fromhex(adverts[other].masking), purpose)
                add_mask(total, pairwise, subtract=other < name)
        return total

    def _right_shares(self, name: str) -> dict[int, bytes]:
        """The shares of a node's secret that are those it has stated, by their places."""
        right, stated = {}, self.answers["share"][name].commitments
        half = slice(HASH_LENGTH) if name in self.masked else slice(HASH_LENGTH, None)
        for place, advert in enumerate(self.roster, 1):
            answer = self.answers["reveal"].get(advert.node)
            share = bytes.fromhex(answer.shares.get(name, "")) if answer else b""
            if hash_of(share) == stated[advert.node][half]:
                right[place] = share
            elif share:
                self.liars[advert.node] = "it reveals another share than it was given"
        return right

    def _secret_of(self, advert: Advert, shares: Mapping[int, bytes]) -> bytes:
        """The secret of some shares if it is what the node has advertised; else empty."""
        of_seed = advert.node in self.masked
        sets = itertools.combinations(shares.items(), self.securing.threshold)
        for some in itertools.islice(sets, SHARE_SETS):
            with contextlib.suppress(InputError):
                secret = joined_secret(dict(some))
                right = (
                    hash_of(secret) == advert.seed
                    if of_seed
                    else public_of(secret) == advert.masking
                )
                if right:
                    return secret
        return b""

    def require_messages(self, names: Collection[str]) -> None:
        """Raise `InputError` if there is no sum of the messages of some nodes."""
        self.require_enough(names)
        nodes = self.securing.nodes
        require(
            not self.everyone or len(names) == len(nodes),
            f"{len(names)} of {len(nodes)} nodes are left, and measures are summed over all",
        )

    def require_enough(self, names: Collection[str]) -> None:
        """Raise `InputError` if fewer nodes than the threshold are left."""
        least = self.securing.threshold
        require(
            len(names) >= least,
            f"{len(names)} of {len(self.securing.nodes)} nodes are left, and a secure sum needs "
            f"{least}",
        )

    def _check_advert(self, name: str, advert: Advert | None) -> None:
        secret = self.secret
        if advert is None or (
            *(advert.node, advert.sum, advert.context, advert.work.by),
            advert.work.measures is not None,
        ) != (name, secret.sum, secret.context, secret.by, self.everyone):
            raise InputError("it advertises something else than it was asked")
        of_loss = set(OF_LOSS) & set(advert.work.measures or ())
        whole = len(of_loss) in (0, len(OF_LOSS))
        require(whole, f"it reports {', '.join(sorted(of_loss))}, a part of what losses need")
        rate = self.rates[name]
        require(
            abs(advert.work.rate - rate) <= EQUAL / 2 * rate,
            f"it advertises the weight {advert.work.rate:g}, and was asked for {rate:g}",
        )
        for key in (advert.sharing, advert.masking):
            require_public(bytes.fromhex(key))
        self._require_signed(name, advert.signature, advert.signed)

    def _require_signed(self, name: str, signature: str, content: bytes) -> None:
        """Raise `InputError` unless a node has signed something, as far as its key is known."""
        key = self.key_of(name)
        require(
            not key or has_signed(decoded(key), bytes.fromhex(signature), content),
            "its signature is not by the key that the network knows it by",
        )


@contextlib.contextmanager
def unknown_liar() -> Iterator[None]:
    """Raise an `InputError` as that of a sum that cannot be, whose messages nobody can look at."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"the sum cannot be: {error}; a node lies, and under masks it cannot be told which"
        ) from None


class SecureSum:
    """One secure sum: the requests of its stages, around those whose answers are summed.

    Attributes:
        operator: The sum, once it is prepared.
        problems: Why nodes have dropped out, by index.
        bytes: Bytes of the stages' messages down and up, by index.
        clipped: Numbers that were clipped, once there is a sum.
    """

    operator: OperatorSum

    def __init__(
        self,
        server: Coordinator,
        setup: Setup,
        of: Summed,
        message: Any,
        warn: Callable[[str], None],
    ) -> None:
        self.server, self.setup, self.of, self.warn = server, setup, of, warn
        self.message, self.fixed, self.securing = message, fixed_point_of(setup, of), secured(setup)
        self.index = {server.name(i): i for i in range(len(server.nodes))}
        self.requests: Mapping[int, Request] = {}
        self.problems: dict[int, Failed] = {}
        self.bytes: dict[int, tuple[int, int]] = {}
        self.round = self.clipped = 0

    @property
    def measures(self) -> set[str]:
        """The measures in the sum of an evaluation."""
        return common_measures(self.operator.roster, self.securing.threshold)

    @property
    def allowed(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The array of an answer that holds a masked message, in shape."""
        size = size_of(jax.tree.leaves(self.message))
        return {MASKED: jax.ShapeDtypeStruct((size,), self.fixed.word)}

    def require_masked(self, answered: Answered) -> None:
        """Raise `InputError` unless an answer has what is summed."""
        require(MASKED in answered.arrays, f"the array {MASKED!r} is missing")

    def prepared(
        self, requests: Mapping[int, Request], arrays: Sequence[Array]
    ) -> dict[int, Request]:
        """Agree on keys; the same requests with what each node needs for its masks.

        If a node lies about its shares, all begin anew without it, since no node has sent a message
        yet. It is left out of later sums too.
        """
        server, first = self.server, next(iter(requests.values()))
        self.requests, self.round = requests, first.round
        works = [each.work for each in requests.values() if each.work]
        rates = [w / n for work in works for w, n in zip(work.weight, work.rows, strict=True)]
        by: WeightsBy = "rows" if not works or equal(rates) else "clients"
        rate_of = {server.name(i): self._rate(i, each, by) for i, each in requests.items()}
        context = context_of(first.model_copy(update={"arrays": [*map(digest_of, arrays)]}))
        while True:
            left = [server.name(i) for i in requests if i not in server.dishonest]
            self.problems = {i: Failed(why) for i, why in server.dishonest.items() if i in requests}
            secret = Secret(sum=secrets.token_hex(16), of=self.of, by=by, context=context)
            self.operator = OperatorSum(self.securing, secret, rate_of, self._key_of)
            self.operator.require_messages(left)
            agreed_on = self._ask("accept", self._ask("share", self._ask("advertise", left)))
            if not self._condemned():
                break
        for one, two in self.operator.disagreements:
            self._note(
                f"nodes {one!r} and {two!r} disagree about a share, and one of them lies; the sum "
                "does without it"
            )
        ready = [self.index[name] for name in agreed_on]
        return {i: requests[i].model_copy(update={"secret": self._secret(i)}) for i in ready}

    def total(self, answers: Mapping[int, Answered], counted: NDArray[np.float32]) -> Any:
        """The sum over some nodes, leaves (points, ...), bounded by the sum of their weights.

        All other nodes have dropped out.
        """
        operator = self.operator
        masked = {self.server.name(i): each.arrays[MASKED] for i, each in answers.items()}
        operator.require_messages(masked)
        operator.masked = masked
        self._ask("reveal", self._ask("confirm", masked))
        try:
            total = operator.unmasked()
        finally:
            self._condemned()
            for name, why in operator.liars.items():
                self._note(f"node {name!r}: reveal: {why}")
        with unknown_liar():
            self.fixed.check(total, self.message, counted, len(answers))
        message, self.clipped = self.fixed.values(total, self.message)
        if self.clipped:
            bound = f"{self.fixed.bound:g}"
            what = bound if operator.everyone else f"deployment.secure.bound = {bound}"
            self._note(f"{self.clipped:,} numbers beyond {what} were clipped")
        return message

    def counted(self, index: int, answered: Answered) -> Answered:
        """A node's answer, whose bytes include those of the stages."""
        down, up = self.bytes[index]
        return answered._replace(
            bytes_down=answered.bytes_down + down, bytes_up=answered.bytes_up + up
        )

    def _ask(self, stage: SumStage, names: Iterable[str]) -> Iterable[str]:
        """Ask nodes for a stage; those that answer. `problems` says why others have not."""
        server, operator = self.server, self.operator
        requests = {}
        for index in (self.index[name] for name in names):
            given = self.requests[index]
            requests[index] = server.request(
                stage,
                self.setup,
                round=self.round,
                secret=self._secret(index, **operator.asked(stage, server.name(index))),
                work=given.work if stage == "advertise" else None,
                participation=given.participation if stage == "advertise" else 0.0,
            )

        def read(index: int, answered: Answered) -> Answer:
            down, up = self.bytes.get(index, (0, 0))
            self.bytes[index] = down + answered.bytes_down, up + answered.bytes_up
            operator.check(stage, server.name(index), answered.head)
            return answered.head

        answers, failed = server.gather(server.begin(requests), read)
        self.problems |= failed
        if stage in AFTER_MASKS:
            for index, each in failed.items():
                self._note(f"node {server.name(index)!r}: {stage}: {each.why}")
        operator.take(stage, {server.name(index): answer for index, answer in answers.items()})
        return operator.answers[stage]

    def _secret(self, index: int, **fields: Any) -> Secret:
        """A node's part of a request, with its share of all rows, by which its measures count."""
        share = {"share": float(self.server.shares[index])} if self.operator.everyone else {}
        return self.operator.secret.model_copy(update=share | fields)

    def _rate(self, index: int, request: Request, by: WeightsBy) -> float:
        """The weight of a node's clients, or of their rows, as it must advertise it."""
        if request.work is None:
            return float(self.server.shares[index]) / self.server.rows[index]
        return request.work.weight[0] / (request.work.rows[0] if by == "rows" else 1)

    def _key_of(self, name: str) -> bytes:
        """The key by which the network knows a node; empty if it knows none."""
        return self.server.conversation.network.key_of(self.server.nodes[self.index[name]])

    def _condemned(self) -> bool:
        """Leave nodes out of later sums whose secrets are useless; whether there are some."""
        for name, why in self.operator.dishonest.items():
            self.server.dishonest[self.index[name]] = f"{why}; left out of secure sums from now on"
        return bool(self.operator.dishonest)

    def _note(self, line: str) -> None:
        """Warn of something in this sum."""
        when = f"round {self.round + 1}"
        if self.operator.everyone:
            when = self.of if self.of == "moments" else f"evaluation after round {self.round}"
        self.warn(f"{when}: {line}")
