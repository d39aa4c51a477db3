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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
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
from fedprox.deployment.fixed_point import fixed_point_of, size_of
from fedprox.deployment.node_sum import (
    EQUAL,
    HASH_LENGTH,
    MASKED,
    Dealt,
    common_measures,
    confirmation,
    context_of,
    equal,
    hash_of,
    pairwise_purpose,
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
    Summed,
    SumRequest,
    WeightsBy,
    digest_of,
)
from fedprox.errors import InputError, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


SHARE_SETS = 200
"""Sets of shares that are tried at most if the first do not give what their node advertised."""


class OperatorSum:
    """The operator's part of one secure sum.

    Attributes:
        liars: What nodes have revealed wrongly, by name. The sum does without it.
        dishonest: What makes the secrets of nodes useless, by name. There is no sum with them.
    """

    def __init__(self, securing: Securing, *, everyone: bool = False) -> None:
        self.securing, self.everyone = securing, everyone
        self.roster: list[Advert] = []
        self.dealt: dict[str, Dealt] = {}
        self.unusable: dict[str, set[str]] = {}
        self.liars: dict[str, str] = {}
        self.dishonest: dict[str, str] = {}

    def advertised(self, adverts: Mapping[str, Advert]) -> list[Advert]:
        """The roster of the nodes that have advertised, by name."""
        self.require_messages(adverts)
        self.roster = [adverts[name] for name in sorted(adverts)]
        return self.roster

    def shared(self, dealt: Mapping[str, Dealt]) -> dict[str, Dealt]:
        """What each node that has shared is sent: the shares that are for it, by sender."""
        self.require_messages(dealt)
        self.dealt = dict(dealt)
        given = {}
        for receiver in dealt:
            others = {name: each for name, each in dealt.items() if name != receiver}
            given[receiver] = Dealt(
                {name: each.sealed[receiver] for name, each in others.items()},
                {name: each.commitments[receiver] for name, each in others.items()},
            )
        return given

    def accepted(self, unusable: Mapping[str, Collection[str]]) -> None:
        """Note the nodes whose shares each node cannot use, and find those that lie."""
        self.require_messages(unusable)
        self.unusable = {name: set(others) for name, others in unusable.items()}
        pairs, spare = self.disagreements, len(unusable) - self.securing.threshold
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

    @property
    def disagreements(self) -> list[tuple[str, str]]:
        """Pairs of nodes of which one cannot use the other's share."""
        return sorted({(min(a, b), max(a, b)) for a, given in self.unusable.items() for b in given})

    def confirmed(self, included: Collection[str]) -> bytes:
        """What nodes sign of a sum of some nodes' messages."""
        return confirmation(roster_digest(self.roster), self.dealt.keys(), included)

    def unmasked(
        self, masked: Mapping[str, Words], revealed: Mapping[str, Mapping[str, str]]
    ) -> Words:
        """The sum of the nodes' messages, in the first of their arrays."""
        self.require_enough(revealed)
        right = {
            name: self._right_shares(name, revealed, of_seed=name in masked) for name in self.dealt
        }
        least = min(map(len, right.values()))
        require(
            least >= self.securing.threshold,
            f"{least} right shares of a secret, and a secure sum needs {self.securing.threshold}",
        )
        secrets = {
            name: self._secret_of(name, shares, of_seed=name in masked)
            for name, shares in right.items()
        }
        for name in [name for name, secret in secrets.items() if secret is None]:
            self.dishonest[name] = "its shares are not of the secret that it has advertised"
        require(
            not self.dishonest,
            "; ".join(f"node {name!r}: {why}" for name, why in self.dishonest.items()),
        )
        total, *others = masked.values()
        for vector in others:
            total += vector
        adverts, digest = {each.node: each for each in self.roster}, roster_digest(self.roster)
        for name, secret in secrets.items():
            assert secret is not None
            if name in masked:
                add_mask(total, secret, subtract=True)
                continue
            key = X25519PrivateKey.from_private_bytes(secret)
            for other in masked:
                purpose = pairwise_purpose(digest, name, other)
                pairwise = agreed(key, bytes.fromhex(adverts[other].masking), purpose)
                add_mask(total, pairwise, subtract=other < name)
        return total

    def require_messages(self, names: Collection[str]) -> None:
        """Raise `InputError` if there is no sum of the messages of some nodes."""
        self.require_enough(names)
        nodes = self.securing.nodes
        require(
            not self.everyone or len(names) == len(nodes),
            f"{len(names)} of {len(nodes)} nodes are left, and measures are summed over all",
        )

    def _right_shares(
        self, name: str, revealed: Mapping[str, Mapping[str, str]], *, of_seed: bool
    ) -> dict[int, bytes]:
        """The shares of a node's secret that are those it has stated, by their places."""
        right, stated = {}, self.dealt[name].commitments
        half = slice(HASH_LENGTH) if of_seed else slice(HASH_LENGTH, None)
        for place, advert in enumerate(self.roster, 1):
            share = bytes.fromhex(revealed.get(advert.node, {}).get(name, ""))
            if hash_of(share) == stated[advert.node][half]:
                right[place] = share
            elif share:
                self.liars[advert.node] = "it reveals another share than it was given"
        return right

    def _secret_of(self, name: str, shares: Mapping[int, bytes], *, of_seed: bool) -> bytes | None:
        """The secret of some shares if it is what the node has advertised, else None."""
        (advert,) = (each for each in self.roster if each.node == name)
        sets = itertools.combinations(shares.items(), self.securing.threshold)
        for some in itertools.islice(sets, SHARE_SETS):
            with contextlib.suppress(InputError):
                secret = joined_secret(dict(some))
                if of_seed and hash_of(secret) == advert.seed:
                    return secret
                if not of_seed and public_of(secret) == advert.masking:
                    return secret
        return None

    def require_enough(self, names: Collection[str]) -> None:
        """Raise `InputError` if fewer nodes than the threshold are left."""
        least = self.securing.threshold
        require(
            len(names) >= least,
            f"{len(names)} of {len(self.securing.nodes)} nodes are left, and a secure sum needs "
            f"{least}",
        )


def public_of(key: bytes) -> str:
    """The public part of a key for masks."""
    return X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw().hex()


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
        problems: Why nodes have dropped out, by index.
        bytes: Bytes of the stages' messages down and up, by index.
    """

    def __init__(
        self,
        server: Coordinator,
        setup: Setup,
        of: Summed,
        message: Any,
        warn: Callable[[str], None],
    ) -> None:
        assert setup.secure is not None
        self.server, self.setup, self.message, self.warn = server, setup, message, warn
        self.index = {server.name(i): i for i in range(len(server.nodes))}
        self.fixed = fixed_point_of(setup, of)
        self.securing, self.everyone = setup.secure, of == "evaluate"
        self.operator = OperatorSum(self.securing, everyone=self.everyone)
        self.problems: dict[int, Failed] = {}
        self.bytes: dict[int, tuple[int, int]] = {}
        self.secret = Secret(sum=secrets.token_hex(16), of=of, by="rows")
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
        first = next(iter(requests.values()))
        self.round = first.round
        works = [each.work for each in requests.values() if each.work is not None]
        weights, rows = (
            np.array([n for work in works for n in getattr(work, name)])
            for name in ("weight", "rows")
        )
        by: WeightsBy = "rows" if not works or equal(weights / rows) else "clients"
        context = context_of(first.model_copy(update={"arrays": [*map(digest_of, arrays)]}))
        dishonest = self.server.dishonest
        while True:
            self.problems.clear()
            self.problems |= {i: Failed(dishonest[i]) for i in requests.keys() & dishonest.keys()}
            left = {self.server.name(i): each for i, each in requests.items() if i not in dishonest}
            self.operator = OperatorSum(self.securing, everyone=self.everyone)
            self.operator.require_messages(left)
            self.secret = self._secret(sum=secrets.token_hex(16), by=by, context=context)
            accepted = [self.index[name] for name in self._agreed(left)]
            if not self._condemned():
                break
        return {
            index: requests[index].model_copy(update={"secret": self._secret(**self._share(index))})
            for index in accepted
        }

    def _condemned(self) -> bool:
        """Leave nodes out of later sums whose secrets are useless; whether there are some."""
        for name, why in self.operator.dishonest.items():
            self.server.dishonest[self.index[name]] = f"{why}; left out of secure sums from now on"
        return bool(self.operator.dishonest)

    def _agreed(self, requests: Mapping[str, Request]) -> Collection[str]:
        """Let nodes agree on keys, and share their secrets; those that are ready to mask."""
        operator = self.operator
        adverts = self._ask(
            "advertise",
            {name: self._share(self.index[name]) for name in requests},
            lambda name, answer: self._check_advert(name, answer, requests[name]),
            {
                name: {"work": each.work, "participation": each.participation}
                for name, each in requests.items()
            },
        )
        roster = operator.advertised(
            {name: each.advert for name, each in adverts.items() if each.advert}
        )
        shared = self._ask(
            "share", {name: {"roster": roster} for name in adverts}, self._check_shared
        )
        given = operator.shared(
            {name: Dealt(each.shares, each.commitments) for name, each in shared.items()}
        )
        accepted = self._ask(
            "accept",
            {
                name: {"shares": each.sealed, "commitments": each.commitments}
                for name, each in given.items()
            },
            self._check_accepted,
        )
        operator.accepted({name: each.unusable for name, each in accepted.items()})
        for first, second in [] if operator.dishonest else operator.disagreements:
            self.warn(
                f"{self._when}: nodes {first!r} and {second!r} disagree about a share, and one of "
                "them lies; the sum does without it"
            )
        return accepted

    def total(self, answers: Mapping[int, Answered], counted: NDArray[np.float32]) -> Any:
        """The sum over some nodes, leaves (points, ...), bounded by the sum of their weights.

        All other nodes have dropped out.
        """
        operator = self.operator
        masked = {self.server.name(i): each.arrays[MASKED] for i, each in answers.items()}
        operator.require_messages(masked)
        content = operator.confirmed(masked)
        confirmed = self._ask(
            "confirm",
            {name: {"included": sorted(masked)} for name in masked},
            lambda name, answer: self._require_signed(name, answer.signature, content),
        )
        signatures = {name: answer.signature for name, answer in confirmed.items()}
        operator.require_enough(signatures)
        revealed = self._ask(
            "reveal", {name: {"signatures": signatures} for name in confirmed}, self._check_revealed
        )
        try:
            total = operator.unmasked(masked, {name: a.shares for name, a in revealed.items()})
        finally:
            self._condemned()
            for name, why in operator.liars.items():
                self.warn(f"{self._when}: node {name!r}: reveal: {why}")
        with unknown_liar():
            self.fixed.check(total, self.message, counted, len(answers))
        message, clipped = self.fixed.values(total, self.message)
        if clipped:
            bound = f"{self.fixed.bound:g}"
            what = bound if self.everyone else f"deployment.secure.bound = {bound}"
            self.warn(f"{self._when}: {clipped:,} numbers beyond {what} were clipped")
        return message

    @property
    def _when(self) -> str:
        """Which sum it is, in words."""
        measured = self.everyone
        return f"evaluation after round {self.round}" if measured else f"round {self.round + 1}"

    def _share(self, index: int) -> dict[str, float]:
        """A node's share of all rows, by which its measures count."""
        return {"share": float(self.server.shares[index])} if self.everyone else {}

    def counted(self, index: int, answered: Answered) -> Answered:
        """A node's answer, whose bytes include those of the stages."""
        down, up = self.bytes[index]
        return answered._replace(
            bytes_down=answered.bytes_down + down, bytes_up=answered.bytes_up + up
        )

    def _ask(
        self,
        kind: SumRequest,
        secret: Mapping[str, Mapping[str, Any]],
        check: Callable[[str, Answer], None],
        others: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> dict[str, Answer]:
        """Ask nodes for a stage; those that fail are missing, and `problems` says why.

        Nodes have fields of their own in `Request.secret`, and others beside it.
        """
        server = self.server
        requests = {
            self.index[name]: server.request(
                kind,
                self.setup,
                round=self.round,
                secret=self._secret(**fields),
                **others.get(name, {}),
            )
            for name, fields in secret.items()
        }

        def read(index: int, answered: Answered) -> Answer:
            down, up = self.bytes.get(index, (0, 0))
            self.bytes[index] = down + answered.bytes_down, up + answered.bytes_up
            check(server.name(index), answered.head)
            return answered.head

        answers, failed = server.gather(server.begin(requests), read)
        self.problems |= failed
        if kind in ("confirm", "reveal"):  # their messages are in the sum, if there is one
            for index, each in failed.items():
                self.warn(f"{self._when}: node {server.name(index)!r}: {kind}: {each.why}")
        return {server.name(index): answer for index, answer in answers.items()}

    def _secret(self, **fields: Any) -> Secret:
        return self.secret.model_copy(update=fields)

    def _require_signed(self, name: str, signature: str, content: bytes) -> None:
        """Raise `InputError` unless a node has signed something, as far as its key is known."""
        key = self.server.conversation.network.key_of(self.server.nodes[self.index[name]])
        require(
            not key or has_signed(decoded(key), bytes.fromhex(signature), content),
            "its signature is not by the key that the network knows it by",
        )

    def _check_advert(self, name: str, answer: Answer, request: Request) -> None:
        advert, secret = answer.advert, self.secret
        if advert is None or (
            *(advert.node, advert.sum, advert.context, advert.work.by),
            advert.work.measures is not None,
        ) != (name, secret.sum, secret.context, secret.by, self.everyone):
            raise InputError("it advertises something else than it was asked")
        rate = self._rate(self.index[name], request)
        require(
            abs(advert.work.rate - rate) <= EQUAL / 2 * rate,
            f"it advertises the weight {advert.work.rate:g}, and was asked for {rate:g}",
        )
        for key in (advert.sharing, advert.masking):
            require_public(bytes.fromhex(key))
        self._require_signed(name, advert.signature, advert.signed)

    def _rate(self, index: int, request: Request) -> float:
        """The weight of a node's clients, or of their rows, as it must advertise it."""
        if request.work is None:
            return float(self.server.shares[index]) / self.server.rows[index]
        rows = request.work.rows[0] if self.secret.by == "rows" else 1
        return request.work.weight[0] / rows

    def _check_shared(self, name: str, answer: Answer) -> None:
        names = {each.node for each in self.operator.roster}
        require(
            answer.shares.keys() == names - {name}
            and answer.commitments.keys() == names
            and all(len(each) == 2 * HASH_LENGTH for each in answer.commitments.values()),
            "its shares are not for the nodes of the sum",
        )

    def _check_accepted(self, name: str, answer: Answer) -> None:
        others = self.operator.dealt.keys() - {name}
        require(set(answer.unusable) <= others, "it names shares that it was not given")

    def _check_revealed(self, name: str, answer: Answer) -> None:
        require(
            answer.shares.keys() == self.operator.dealt.keys() - self.operator.unusable[name]
            and all(len(share) == 2 * SHARE_BYTES for share in answer.shares.values()),
            "its shares are not those of the nodes of the sum",
        )
