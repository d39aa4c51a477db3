"""The operator's part of one secure sum: it passes on what is sealed, adds, and removes masks.

Nodes may lie. Each node states digests of the shares that it gives the others, so a share that is
revealed is checked alone, and any `threshold` that are right give the secret. A secret is checked
against what its node has advertised. What is sealed the operator cannot read: a node that cannot
use a share says so, and either of the two lies. At most n - t of n nodes may drop out or lie, and
an honest one disagrees with liars alone, so a node that disagrees with more than that lies.
"""

import contextlib
import itertools
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.deployment.conversation import Answered, Failed
from fedprox.deployment.coordinator import Coordinator
from fedprox.deployment.crypto import (
    SHARE_BYTES,
    Words,
    add_mask,
    agreed,
    decoded,
    has_signed,
    joined_secret,
    require_public,
)
from fedprox.deployment.fixed_point import fixed_point_of, secured, size_of
from fedprox.deployment.node_sum import (
    EQUAL,
    HASH_LENGTH,
    MASKED,
    common_measures,
    confirmation,
    context_of,
    equal,
    hash_of,
    pairwise_purpose,
    public_of,
    roster_digest,
)
from fedprox.deployment.wire import (
    Advert,
    Answer,
    Array,
    Request,
    Secret,
    Securing,
    Setup,
    Stage,
    Summed,
    WeightsBy,
    digest_of,
)
from fedprox.errors import InputError, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


AFTER_MASKS: tuple[Stage, ...] = "confirm", "reveal"
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
        self.everyone = secret.of == "evaluate"
        self.answers: dict[Stage, Mapping[str, Answer]] = {}
        self.masked: dict[str, Words] = {}
        self.liars: dict[str, str] = {}
        self.dishonest: dict[str, str] = {}

    def asked(self, stage: Stage, name: str) -> dict[str, Any]:
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

    def check(self, stage: Stage, name: str, answer: Answer) -> None:
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
            content = confirmation(roster_digest(self.roster), shared, self.masked)
            self._require_signed(name, answer.signature, content)
        else:
            usable = self.answers["share"].keys() - set(self.answers["accept"][name].unusable)
            require(
                answer.shares.keys() == usable
                and all(len(share) == 2 * SHARE_BYTES for share in answer.shares.values()),
                "its shares are not those of the nodes of the sum",
            )

    def take(self, stage: Stage, answers: Mapping[str, Answer]) -> None:
        """Keep the answers to a stage; `InputError` if there is no sum of the nodes left."""
        if stage in AFTER_MASKS:
            self.require_enough(answers)
        else:
            self.require_messages(answers)
        self.answers[stage] = answers
        if stage == "accept":
            self._judge()

    @property
    def roster(self) -> list[Advert]:
        """The advertisements, by name."""
        answers = sorted(self.answers["advertise"].items())
        return [answer.advert for _, answer in answers if answer.advert]

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
        digest = roster_digest(self.roster)
        for name, secret in secrets.items():
            if name in self.masked:
                add_mask(total, secret, subtract=True)
                continue
            key = X25519PrivateKey.from_private_bytes(secret)
            for other in self.masked:
                purpose = pairwise_purpose(digest, name, other)
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
        self.round = 0

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
        message, clipped = self.fixed.values(total, self.message)
        if clipped:
            bound = f"{self.fixed.bound:g}"
            what = bound if operator.everyone else f"deployment.secure.bound = {bound}"
            self._note(f"{clipped:,} numbers beyond {what} were clipped")
        return message

    def counted(self, index: int, answered: Answered) -> Answered:
        """A node's answer, whose bytes include those of the stages."""
        down, up = self.bytes[index]
        return answered._replace(
            bytes_down=answered.bytes_down + down, bytes_up=answered.bytes_up + up
        )

    def _ask(self, stage: Stage, names: Iterable[str]) -> Iterable[str]:
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
        after = f"evaluation after round {self.round}"
        self.warn(f"{after if self.operator.everyone else f'round {self.round + 1}'}: {line}")
