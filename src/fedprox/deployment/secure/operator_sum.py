"""The operator's part of one secure sum: it passes on what is sealed, adds, and removes masks.

Nodes may lie. Each node states digests of the shares that it gives the others, so a share that is
revealed is checked alone, and any `threshold` that are right give the secret. A secret is checked
against what its node has advertised. What is sealed the operator cannot read: a node that cannot
use a share says so, and either of the two lies. At most n - t of n nodes may drop out or lie, and
an honest one disagrees with liars alone, so a node that disagrees with more than that lies.
"""

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence

from fedprox.deployment.messages import Advert, Securing
from fedprox.deployment.secure import shamir
from fedprox.deployment.secure.keys import agreed
from fedprox.deployment.secure.masks import Whole, add_mask
from fedprox.deployment.secure.node_sum import (
    HASH_LENGTH,
    Dealt,
    confirmation,
    hash_of,
    pairwise_purpose,
    roster_digest,
)
from fedprox.errors import InputError, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

TRIES = 200
"""Sets of shares that are tried at most if the first do not give what their node advertised."""


class OperatorSum:
    """The operator's part of one secure sum.

    Args:
        securing: What the run declares.
        everyone: Whether the sum is over all nodes or none, as sums of measures are.

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
        """The roster of the nodes that have advertised, by name.

        Raises:
            InputError: If they are too few, as in the functions below.
        """
        self.require_messages(adverts)
        self.roster = [adverts[name] for name in sorted(adverts)]
        return self.roster

    def shared(self, dealt: Mapping[str, Dealt]) -> dict[str, Dealt]:
        """What each of the nodes that have shared is sent: the shares that are for it, by sender.

        Args:
            dealt: What each node has shared, by receiver.
        """
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
        """Note the nodes whose shares each node cannot use, and find those that lie.

        Raises:
            InputError: If a share is missing, and it cannot be told who lies.
        """
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

    def revealing(self, name: str) -> Collection[str]:
        """The nodes of whose secrets a node has a share."""
        return self.dealt.keys() - self.unusable[name]

    def unmasked(
        self, masked: Mapping[str, Whole], revealed: Mapping[str, Mapping[str, str]]
    ) -> Whole:
        """The sum of the nodes' messages.

        Args:
            masked: The masked message of each node in the sum. The first array becomes the sum.
            revealed: The shares that nodes reveal, by the node whose secret is shared.

        Raises:
            InputError: If too few shares are right, or a node has not shared its secret.
        """
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
        total = add_in_place(list(masked.values()))
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
        for some in itertools.islice(sets, TRIES):
            with contextlib.suppress(InputError):
                secret = shamir.join(dict(some))
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


def add_in_place(vectors: Sequence[Whole]) -> Whole:
    """The sum of some arrays, in the first."""
    total = vectors[0]
    for vector in vectors[1:]:
        total += vector
    return total
