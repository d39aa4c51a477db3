r"""Secure sums: a node's part, the operator's part, and the requests of their stages.

Nodes have agreed on keys for the next sums (`sum_keys`). A sum of **messages** has self masks and
pairwise masks. Nodes answer with masked messages. If all that were asked have answered, the next
exchange is the last: a node reveals a share of each node's seed. Else the nodes left first confirm
by signatures whose messages came; then each reveals a share of the seed of those, and of the key of
the others. Each node reveals its shares once for a sum, so of each other node a share of one of its
two secrets.

**One sum, of at least t nodes.** Let n nodes have keys, of which c collude with an operator who
does anything, and :math:`2t > n + c`. A node that is honest reveals its shares for one set S of the
nodes A that it was asked with. S is all of A, or a set that t nodes have signed. So t - c honest
nodes at least reveal what gives a secret.

* Not both secrets of a node: that would take :math:`2 (t - c)` of :math:`n - c` honest nodes.
* Not two sets that are signed, for the same reason. If one is, only keys of nodes that it leaves
  out are known, and at most n - t honest nodes have not signed it. With the c others these are
  fewer than t: their shares give no seed of a node that was left out, and they are not all nodes of
  another sum.
* If none is signed, no key is known. A message stays masked unless all honest nodes of its A
  were asked with the same A and their seeds are known. No two such A have t nodes each.

A sum over **all nodes or none**, of measures or moments, has pairwise masks alone, from keys that
nothing reveals. They cancel in the sum of all messages and in no other, so there is nothing to
confirm, and a node's answer is its last word.

The masks bind the sum to its request. A pairwise mask depends on a digest of all that nodes are
asked alike, the setup, round, arrays, weights and the names of the nodes. The masks of nodes that
are asked different things do not cancel. No mask is used twice: each node begins the sums of its
keys in their order, and forgets the secrets of those before.

Nodes may lie. Each has stated digests of the shares that it gave the others, so a share that is
revealed is checked alone, and any `threshold` that are right give the secret. A secret is checked
against what its node has advertised. At most n - t of n nodes may drop out or lie.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.deployment.combine import SHARED, NodeMeasures, summable
from fedprox.deployment.conversation import NOT_CONNECTED, Answered, Failed
from fedprox.deployment.coordinator import Coordinator
from fedprox.deployment.crypto import (
    SHARE_BYTES,
    Identity,
    Words,
    add_mask,
    agreed,
    joined_secret,
)
from fedprox.deployment.fixed_point import fixed_point_of, secured, size_of
from fedprox.deployment.kept import Revealed, SumPlace, read_kept, write_kept
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.sum_keys import (
    HASH_LENGTH,
    NodeKeys,
    OperatorKeys,
    common_measures,
    digest_of_setup,
    hash_of,
    public_of,
    require_enough,
)
from fedprox.deployment.wire import (
    OF_ALL,
    STAGES,
    SUMS,
    Advert,
    Answer,
    Array,
    Request,
    Secret,
    Setup,
    Summed,
    SumStage,
    WeightsBy,
    digest_of,
    required,
)
from fedprox.engine.planning.jobs import Jobs
from fedprox.errors import InputError, plural, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


EQUAL = 1e-6
"""Relative difference of weights that are equal but for rounding."""


def context_of(request: Request) -> str:
    """A digest of what all nodes of a sum are asked alike: setup, round, arrays, weights, nodes.

    The masks of nodes with the same one cancel.
    """
    alike = {"version", "kind", "setup", "round", "participation", "initial", "arrays"}
    secret = secret_of(request).model_dump_json(include={"by", "rate", "asked"})
    return hash_of((request.model_dump_json(include=alike) + secret).encode())


def pairwise_purpose(roster: str, number: int, context: str, nodes: Iterable[str]) -> bytes:
    """The purpose of the key for the mask of two nodes in a sum of messages."""
    return f"mask {json.dumps([roster, number, context, *sorted(nodes)])}".encode()


def of_all_purpose(roster: str, number: int, context: str, nodes: Iterable[str]) -> bytes:
    """The purpose of the key for the mask of two nodes in a sum over all nodes."""
    return f"mask over all {json.dumps([roster, number, context, *sorted(nodes)])}".encode()


def confirmation(
    roster: str, number: int, context: str, asked: Iterable[str], included: Iterable[str]
) -> bytes:
    """The text that a node signs for a sum: its keys, the requests, and whose messages came."""
    said = [roster, number, context, sorted(asked), sorted(included)]
    return b"included " + json.dumps(said).encode()


class NodeSum:
    """A node's part of one sum of messages, which begins when it masks its own.

    Attributes:
        asked: The nodes whose messages are asked for.
        shares: The node's shares of both secrets of each.
        included: The nodes whose messages are in the sum, as it has confirmed; empty before.
    """

    def __init__(self, keys: NodeKeys, number: int, context: str, asked: Collection[str]) -> None:
        self.keys, self.number, self.context, self.asked = keys, number, context, set(asked)
        self.seed, self.masking, shares = keys.taken(number)
        self.shares = {name: share for name, share in shares.items() if name in self.asked}
        self.included: list[str] = []
        self.revealed = False

    def mask(self, vector: Words) -> None:
        """Add the node's masks to its message in place, once."""
        keys, own = self.keys, self.keys.identity.name
        require(self.seed, "the node has masked its message already")
        add_mask(vector, self.seed)
        self.seed = b""
        for name in sorted(self.asked - {own}):
            purpose = pairwise_purpose(keys.digest, self.number, self.context, (own, name))
            public = bytes.fromhex(keys.roster[name].masking[self.number])
            add_mask(vector, agreed(self.masking, public, purpose), subtract=own > name)

    def confirm(self, number: int, included: Collection[str]) -> dict[str, Any]:
        """Sign which nodes' messages are in the sum."""
        self._require_open(number)
        require(not self.included, "the node has confirmed already")
        require(
            self.keys.identity.name in included and set(included) <= self.asked,
            "a sum of other nodes' messages than those that were asked for",
        )
        self.keys.require_enough(included)
        self.included = sorted(included)
        return {"signature": self.keys.identity.sign(self._confirmed()).hex()}

    def reveal(
        self, number: int, included: Collection[str], signatures: Mapping[str, str]
    ) -> dict[str, Any]:
        """A share of each node's seed if its message is in the sum, else of its key.

        Those of nodes whose shares could not be used are missing.
        """
        self._require_open(number)
        if self.included:
            require(sorted(included) == self.included, "another sum than the node has confirmed")
            require(set(signatures) <= {*included}, "signatures of nodes outside of the sum")
            self.keys.require_enough(signatures)
            for name, signature in signatures.items():
                self.keys.identity.check(name, bytes.fromhex(signature), self._confirmed())
        else:
            every = set(included) == self.asked
            require(every, "a sum without some nodes' messages, which the node has not confirmed")
        self.revealed = True
        seed, key = slice(SHARE_BYTES), slice(SHARE_BYTES, None)
        chosen = {
            name: share[seed if name in included else key].hex()
            for name, share in self.shares.items()
        }
        self.shares = {}
        return {"shares": chosen}

    def _require_open(self, number: int) -> None:
        require(number == self.number, "a sum that is over, or was not begun")
        require(not self.revealed, "the node has revealed already")

    def _confirmed(self) -> bytes:
        said = self.keys.digest, self.number, self.context, self.asked, self.included
        return confirmation(*said)


def mask_by_all(keys: NodeKeys, secret: Secret, context: str, vector: Words) -> None:
    """Add the masks of a sum over all nodes to a node's message in place."""
    own, keys.begun[True] = keys.identity.name, secret.number + 1
    for name in [name for name in secret.asked if name != own]:
        purpose = of_all_purpose(keys.digest, secret.number, context, (own, name))
        public = bytes.fromhex(keys.roster[name].pairing)
        add_mask(vector, agreed(keys.pairing, public, purpose), subtract=own > name)


def equal(numbers: Any) -> bool:
    """Whether positive numbers are equal but for rounding."""
    return bool(np.ptp(numbers) <= EQUAL * np.min(numbers))


MASKED = "masked"
"""The array of an answer that holds the masked message."""

NO_KEYS = "keys that are replaced, or from before the node was restarted"


class Sums:
    """The secure sums of a node.

    Attributes:
        keys: The keys that it has; None before it was asked for some.
        current: The last sum of messages that it has begun with them, and its place.
    """

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.identity, self.folder = identity, folder
        self.revealed = read_kept(Revealed, folder)
        self.keys: NodeKeys | None = None
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
        hiding, given = setup.privacy, (securing.bound, securing.norm)
        require(
            given.count(None) == (1 if hiding is None else 2),
            "deployment.secure.bound follows from privacy.clip or deployment.secure.norm, and is "
            "given without them",
        )
        if hiding is not None:
            require(
                hiding.mechanism.everybody and hiding.adaptive_clip is None,
                "deployment.secure with privacy: all clients take part, clipped to one norm",
            )

    def advertise(
        self, request: Request, setup: Setup, measures: Collection[str]
    ) -> dict[str, Any]:
        """Make keys; the secrets of earlier ones are forgotten."""
        advert = Advert(
            node=self.identity.name,
            keys=secret_of(request).keys,
            context=digest_of_setup(setup),
            measures=sorted(measures),
        )
        self.keys, self.current = NodeKeys(self.identity, secured(setup), advert), None
        return {"advert": self.keys.advert}

    def answer(self, request: Request) -> dict[str, Any]:
        """Answer "share", "accept", "confirm" and "reveal"."""
        secret, stage = secret_of(request), request.kind
        keys = self._keys_of(secret)
        fields = {name: getattr(secret, name) for name in STAGES[stage]}
        if stage in ("share", "accept"):
            made: dict[str, Any] = getattr(keys, stage)(**fields)
            return made
        answered: dict[str, Any] = getattr(required(self.current, NO_KEYS), stage)(**fields)
        self._count(self.place)
        return answered

    def check_next(self, request: Request, setup: Setup) -> Secret:
        """Check what a node is asked, before it computes its message."""
        secret, kind = secret_of(request), request.kind
        everyone, keys = secret.of in OF_ALL, self._keys_of(secret)
        same = keys.advert.context == digest_of_setup(setup)
        require(same and secret.of == kind, f"{kind}: the node's keys are for another run")
        keys.require_next(secret.number, secret.asked, everyone=everyone)
        self.revealed.check(_place(request, setup), context_of(request) if everyone else "")
        return secret

    def masked(self, request: Request, setup: Setup, part: RoundPart) -> dict[str, Array]:
        """A node's part of a round with its message under masks."""
        require(part.counts_at_each_point, "no update counts, and a sum without any hides less")
        secret = self.check_next(request, setup)
        vector = fixed_point_of(setup, secret.of).quantized(part.message, part.counted)
        keys = self._keys_of(secret)
        self.current = NodeSum(keys, secret.number, context_of(request), secret.asked)
        self.place = _place(request, setup)
        self.current.mask(vector)
        return {**part._replace(message=None).arrays(), MASKED: vector}

    def masked_measures(
        self,
        request: Request,
        setup: Setup,
        shapes: NodeMeasures,
        shown: NodeMeasures,
        share: float,
    ) -> dict[str, Array]:
        """A node's measures under masks, all of which must be finite; `share` is that of its rows.

        Else the sum would show the others', and whoever chooses the model would choose whose are
        left out.
        """
        message = jax.tree.map(lambda a: np.zeros(a.shape), summable(shapes))
        common = self._keys_of(secret_of(request)).measures
        for measure in [each for each in message if each in common and each in shown]:
            message[measure] = shown[measure]
            finite = all(np.isfinite(a).all() for a in jax.tree.leaves(message[measure]))
            require(finite, f"evaluate: its {measure} is not finite")
        for measure in SHARED:
            message[measure] = message[measure] * share
        return self.masked_by_all(request, setup, message)

    def masked_by_all(self, request: Request, setup: Setup, message: Any) -> dict[str, Array]:
        """A node's part of a sum over all nodes or none, with what is measured first.

        The answer is the node's last word, so it is counted before it leaves.
        """
        secret = self.check_next(request, setup)
        keys, context = self._keys_of(secret), context_of(request)
        points = len(jax.tree.leaves(message)[0])
        vector = fixed_point_of(setup, secret.of).quantized(message, np.ones(points, np.float32))
        self._count(_place(request, setup), context)
        mask_by_all(keys, secret, context, vector)
        return {MASKED: vector}

    def _count(self, place: SumPlace, measured: str = "") -> None:
        """Count a sum whose shares the node reveals, on disk."""
        revealed = self.revealed.after(place, measured)
        if revealed != self.revealed:
            write_kept(self.folder, revealed)
            self.revealed = revealed

    def _keys_of(self, secret: Secret) -> NodeKeys:
        keys = required(self.keys, NO_KEYS)
        require(keys.advert.keys == secret.keys, NO_KEYS)
        return keys


def secret_of(request: Request) -> Secret:
    """A request's part of a secure sum."""
    return required(request.secret, f"{request.kind}: messages are summed in secret only")


def _place(request: Request, setup: Setup) -> SumPlace:
    """The run, kind and round of a request's sum."""
    return f"{setup.name}/{secret_of(request).of}", request.round


def check_weights(secret: Secret, jobs: Jobs) -> None:
    """Raise `InputError` unless a node's clients have work, and weigh as all in the sum do.

    With weights of the operator's choice, a sum could be one message but for rounding.
    """
    has_work = (jobs.weight > 0) & ((jobs.steps > 0) | (secret.of == "gradients"))
    require(len(has_work) and has_work.all(), "a client without work, whose part of a sum is known")
    rates = jobs.weight / (jobs.size if secret.by == "rows" else 1)
    require(
        equal([*rates, secret.rate]),
        f"weights {jobs.weight.tolist()}; they must be {secret.rate:g} for each of the {secret.by}",
    )


def share_of(secret: Secret, rows: int) -> float:
    """The share that a node's rows are of all rows."""
    share = secret.rate * rows
    require(secret.by == "rows" and 0 < share <= 1, f"rate = {secret.rate:g} with {rows:,} rows")
    return share


SETTING_UP: tuple[SumStage, ...] = "advertise", "share", "accept"
"""The stages in which nodes agree on keys."""

SHARE_SETS = 200
"""Sets of shares that are tried at most if the first do not give what their node advertised."""


class OperatorSum:
    """The operator's part of one secure sum.

    Args:
        secret: The fields that all requests of the sum have.
        context: The digest of what all nodes are asked alike.

    Attributes:
        masked: The masked messages, by name.
        answers: The nodes' answers to "confirm" and "reveal", by stage and name.
        liars: The wrong secrets that nodes have revealed, by name. The sum does without them.
        dishonest: Why the secrets of nodes cannot be used, by name. There is no sum with them.
    """

    def __init__(self, keys: OperatorKeys, secret: Secret, context: str) -> None:
        self.keys, self.secret, self.context = keys, secret, context
        self.securing, self.everyone = keys.securing, secret.of in OF_ALL
        self.masked: dict[str, Words] = {}
        self.answers: dict[SumStage, Mapping[str, Answer]] = {}
        self.liars: dict[str, str] = {}
        self.dishonest: dict[str, str] = {}

    @property
    def stages(self) -> tuple[SumStage, ...]:
        """The stages that are left once masked messages have come."""
        if self.everyone:
            return ()
        whole = self.masked.keys() == {*self.secret.asked}
        return ("reveal",) if whole else ("confirm", "reveal")

    def asked(self, stage: SumStage, name: str) -> dict[str, Any]:
        """The fields of `Secret` that a node is sent in a stage."""
        del name
        included = {"number": self.secret.number, "included": sorted(self.masked)}
        if stage == "confirm":
            return included
        signed = self.answers.get("confirm", {}).items()
        return included | {"signatures": {each: answer.signature for each, answer in signed}}

    def check(self, stage: SumStage, name: str, answer: Answer) -> None:
        """Raise `InputError` if a node's answer to a stage is of no use, whatever others answer."""
        number, asked = self.secret.number, {*self.secret.asked}
        if stage == "confirm":
            said = self.keys.digest, number, self.context, asked, self.masked
            self.keys.require_signed(name, answer.signature, confirmation(*said))
            return
        usable = asked - set(self.keys.answers["accept"][name].unusable)
        require(
            answer.shares.keys() == usable
            and all(len(share) == 2 * SHARE_BYTES for share in answer.shares.values()),
            "its shares are not those of the nodes of the sum",
        )

    def take(self, stage: SumStage, answers: Mapping[str, Answer]) -> None:
        """Keep the answers to a stage; `InputError` if too few nodes are left."""
        require_enough(self.securing, answers)
        self.answers[stage] = answers

    def unmasked(self) -> Words:
        """The sum of the nodes' messages, in the first of their arrays."""
        secrets = dict[str, bytes]()
        if not self.everyone:
            right = {name: self._right_shares(name) for name in self.secret.asked}
            least = min(map(len, right.values()))
            require(
                least >= self.securing.threshold,
                f"{least} right shares of a secret, and a secure sum needs "
                f"{self.securing.threshold}",
            )
            secrets = {name: self._secret_of(name, each) for name, each in right.items()}
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
            key, number = X25519PrivateKey.from_private_bytes(secret), self.secret.number
            for other in self.masked:
                purpose = pairwise_purpose(self.keys.digest, number, self.context, (name, other))
                public = bytes.fromhex(self.keys.roster[other].masking[number])
                add_mask(total, agreed(key, public, purpose), subtract=other < name)
        return total

    def _right_shares(self, name: str) -> dict[int, bytes]:
        """The shares of a node's secret that are those it has stated, by their places."""
        right, stated = {}, self.keys.answers["share"][name].commitments
        begin = HASH_LENGTH * (2 * self.secret.number + (name not in self.masked))
        for place, holder in enumerate(self.keys.roster, 1):
            answer = self.answers["reveal"].get(holder)
            share = bytes.fromhex(answer.shares.get(name, "")) if answer else b""
            if hash_of(share) == stated[holder][begin : begin + HASH_LENGTH]:
                right[place] = share
            elif share:
                self.liars[holder] = "it reveals another share than it was given"
        return right

    def _secret_of(self, name: str, shares: Mapping[int, bytes]) -> bytes:
        """The secret of some shares if it is what the node has advertised; else empty."""
        advert, number = self.keys.roster[name], self.secret.number
        sets = itertools.combinations(shares.items(), self.securing.threshold)
        for some in itertools.islice(sets, SHARE_SETS):
            with contextlib.suppress(InputError):
                secret = joined_secret(dict(some))
                right = (
                    hash_of(secret) == advert.seeds[number]
                    if name in self.masked
                    else public_of(secret) == advert.masking[number]
                )
                if right:
                    return secret
        return b""


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
    """One secure sum: keys if there are none, and the stages after its masked messages.

    Attributes:
        operator: The sum, once it is prepared.
        wanted: The nodes whose messages should be in the sum, and their indices.
        problems: Why some of them have dropped out, by index.
        bytes: Bytes of the stages' messages down and up, by index.
        clipped: Numbers that were clipped, or with a norm messages that were scaled, once there is
            a sum.
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
        self.everyone = of in OF_ALL
        self.wanted: Mapping[str, int] = {}
        self.problems: dict[int, Failed] = {}
        self.bytes: dict[int, tuple[int, int]] = {}
        self.round = self.clipped = 0

    @property
    def measures(self) -> set[str]:
        """The measures in the sum of an evaluation."""
        return common_measures(self.operator.keys.roster.values(), self.securing.threshold)

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
        """The same requests with what nodes need for their masks; keys are made if there are none.

        `total` gives the keys back. After a sum that is given up, new ones are made.
        """
        server, first = self.server, next(iter(requests.values()))
        self.round, self.wanted = first.round, {server.name(i): i for i in requests}
        self.problems = {i: Failed(why) for i, why in server.dishonest.items() if i in requests}
        by, rate = self._weights(requests)
        self._require_messages(requests.keys() - server.dishonest.keys())
        keys = server.keys = self._keys()
        known = self._of_wanted(keys.problems) | self.problems
        without = [self.wanted[name] for name in self.wanted.keys() - keys.members]
        self.problems = {i: known.get(i, Failed(NOT_CONNECTED)) for i in without}
        asked = sorted(self.wanted.keys() & keys.members)
        self._require_messages(asked)
        server.keys = None
        number = keys.begun[self.everyone]
        keys.begun[self.everyone] += 1
        secret = Secret(keys=keys.name, of=self.of, number=number, by=by, rate=rate, asked=asked)
        alike = {"arrays": [*map(digest_of, arrays)], "secret": secret}
        self.operator = OperatorSum(keys, secret, context_of(first.model_copy(update=alike)))
        ready = [self.index[name] for name in asked]
        return {i: requests[i].model_copy(update={"secret": secret}) for i in ready}

    def total(self, answers: Mapping[int, Answered], counted: NDArray[np.float32]) -> Any:
        """The sum over some nodes, leaves (points, ...), bounded by the sum of their weights.

        All other nodes have dropped out.
        """
        operator, keys = self.operator, self.operator.keys
        self._require_messages(answers)
        masked = {self.server.name(i): each.arrays[MASKED] for i, each in answers.items()}
        operator.masked = masked
        left: Collection[str] = masked.keys()
        for stage in operator.stages:
            left = self._ask(stage, keys, operator, left)
        try:
            total = operator.unmasked()
        finally:
            self._condemned(operator.dishonest)
            for name, why in operator.liars.items():
                self._note(f"node {name!r}: reveal: {why}")
        with unknown_liar():
            self.fixed.check(total, self.message, counted, len(answers))
        keys.members -= set(operator.secret.asked) - set(left)  # nodes that have failed
        self.server.keys = keys
        message, self.clipped = self.fixed.values(total, self.message)
        were = "was" if self.clipped == 1 else "were"
        if self.clipped and self.fixed.scales:
            norm = f"deployment.secure.norm = {self.fixed.norm:g}"
            messages = plural(self.clipped, "message")
            self._note(f"{messages} of nodes longer than {norm} {were} scaled to it")
        elif self.clipped:
            bound = f"{self.fixed.bound:g}"
            what = bound if self.everyone else f"deployment.secure.bound = {bound}"
            self._note(f"{plural(self.clipped, 'number')} beyond {what} {were} clipped")
        return message

    def counted(self, index: int, answered: Answered) -> Answered:
        """A node's answer, whose bytes include those of the stages."""
        down, up = self.bytes.get(index, (0, 0))
        return answered._replace(
            bytes_down=answered.bytes_down + down, bytes_up=answered.bytes_up + up
        )

    def _weights(self, requests: Mapping[int, Request]) -> tuple[WeightsBy, float]:
        """How the clients of a sum weigh, and how much; nodes refuse if theirs do not."""
        works = [each.work for each in requests.values() if each.work]
        if not works:
            return "rows", 1 / float(self.server.rows.sum())
        rates = [w / n for work in works for w, n in zip(work.weight, work.rows, strict=True)]
        return ("rows", rates[0]) if equal(rates) else ("clients", works[0].weight[0])

    def _require_messages(self, nodes: Collection[Any]) -> None:
        """Raise `InputError` if there is no sum of the messages of some nodes."""
        require_enough(self.securing, nodes)
        count = len(self.securing.nodes)
        require(
            not self.everyone or len(nodes) == count,
            f"{len(nodes)} of {count} nodes are left, and measures are summed over all",
        )

    def _keys(self) -> OperatorKeys:
        """Keys for the nodes of the sum that are connected: the last ones, or new ones.

        If a node lies about its shares, all begin anew without it, since no node has sent a message
        yet. It is left out of later sums too.
        """
        server, context = self.server, digest_of_setup(self.setup)
        keys, server.keys = server.keys, None
        if keys is not None and keys.context == context:
            online = {*server.conversation.network.nodes()}
            able = {i for i, node in enumerate(server.nodes) if node in online} - {
                *server.dishonest
            }
            there = {name for name, i in self.wanted.items() if i in able}
            if there <= keys.members and (self.everyone or keys.begun[False] < SUMS):
                return keys
        while True:
            keys = OperatorKeys(self.securing, context, self._key_of)
            left: Collection[str] = [n for n, i in self.index.items() if i not in server.dishonest]
            for stage in SETTING_UP:
                left = self._ask(stage, keys, keys, left)
            if not self._condemned(keys.dishonest):
                break
        for one, two in keys.disagreements:
            self._note(
                f"nodes {one!r} and {two!r} disagree about a share, and one of them lies; the sums "
                "do without it"
            )
        return keys

    def _ask(
        self,
        stage: SumStage,
        keys: OperatorKeys,
        part: OperatorKeys | OperatorSum,
        names: Collection[str],
    ) -> Collection[str]:
        """Ask nodes for a stage; those that answer."""
        server, requests = self.server, {}
        for name in names:
            secret = Secret(keys=keys.name, of=self.of, **part.asked(stage, name))
            requests[self.index[name]] = server.request(stage, self.setup, secret=secret)

        def read(index: int, answered: Answered) -> Answer:
            down, up = self.bytes.get(index, (0, 0))
            self.bytes[index] = down + answered.bytes_down, up + answered.bytes_up
            part.check(stage, server.name(index), answered.head)
            return answered.head

        answers, failed = server.gather(server.begin(requests), read)
        problems = {server.name(index): each for index, each in failed.items()}
        if part is keys:
            keys.problems |= problems
            self.problems |= self._of_wanted(problems)
        else:
            for name, each in problems.items():
                self._note(f"node {name!r}: {stage}: {each.why}")
        part.take(stage, {server.name(index): answer for index, answer in answers.items()})
        return part.answers[stage].keys()

    def _of_wanted(self, problems: Mapping[str, Failed]) -> dict[int, Failed]:
        """The problems of the nodes of the sum, by index."""
        return {i: problems[name] for name, i in self.wanted.items() if name in problems}

    def _key_of(self, name: str) -> bytes:
        """The key by which the network knows a node; empty if it knows none."""
        return self.server.conversation.network.key_of(self.server.nodes[self.index[name]])

    def _condemned(self, dishonest: Mapping[str, str]) -> bool:
        """Leave nodes out of later sums whose secrets are useless; whether there are some."""
        for name, why in dishonest.items():
            line = f"{why}; left out of secure sums from now on"
            self.server.dishonest[self.index[name]] = line
            if name in self.wanted:
                self.problems[self.wanted[name]] = Failed(line)
        return bool(dishonest)

    def _note(self, line: str) -> None:
        """Warn of something in this sum."""
        when = f"round {self.round + 1}"
        if self.everyone:
            when = self.of if self.of == "moments" else f"evaluation after round {self.round}"
        self.warn(f"{when}: {line}")
