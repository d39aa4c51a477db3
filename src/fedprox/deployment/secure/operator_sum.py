"""The operator's part of one secure sum: it passes on what is sealed, adds, and removes masks."""

import contextlib
from collections.abc import Mapping, Sequence

from fedprox.deployment.messages import Advert, Securing
from fedprox.deployment.secure import shamir
from fedprox.deployment.secure.keys import agreed
from fedprox.deployment.secure.masks import Whole, add_mask
from fedprox.deployment.secure.node_sum import hash_of, pairwise_purpose, roster_digest
from fedprox.errors import require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


class OperatorSum:
    """The operator's part of one secure sum.

    Args:
        securing: What the run declares.
        everyone: Whether the sum is over all nodes or none, as sums of measures are.
    """

    def __init__(self, securing: Securing, *, everyone: bool = False) -> None:
        self.securing, self.everyone = securing, everyone
        self.roster: list[Advert] = []
        self.sealed: dict[str, Mapping[str, str]] = {}

    def advertised(self, adverts: Mapping[str, Advert]) -> list[Advert]:
        """The roster of the nodes that have advertised, by name.

        Raises:
            InputError: If they are too few, as in the functions below.
        """
        self.require_messages(adverts)
        self.roster = [adverts[name] for name in sorted(adverts)]
        return self.roster

    def shared(self, sealed: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
        """What each of the nodes that have shared is sent: the shares that are for it, by sender.

        Args:
            sealed: What each node has sealed, by receiver.
        """
        self.require_messages(sealed)
        self.sealed = dict(sealed)
        return {
            receiver: {
                sender: shares[receiver] for sender, shares in sealed.items() if sender != receiver
            }
            for receiver in sealed
        }

    def unmasked(
        self, masked: Mapping[str, Whole], revealed: Mapping[str, Mapping[str, str]]
    ) -> Whole:
        """The sum of the nodes' messages.

        Args:
            masked: The masked message of each node in the sum. The first array becomes the sum.
            revealed: The shares that nodes reveal, by the node whose secret is shared.
        """
        self.require_enough(revealed)
        total = add_in_place(list(masked.values()))
        places = {each.node: place for place, each in enumerate(self.roster, 1)}
        adverts, digest = {each.node: each for each in self.roster}, roster_digest(self.roster)
        for name in self.sealed:
            shares = {places[node]: bytes.fromhex(own[name]) for node, own in revealed.items()}
            secret = shamir.join(dict(list(shares.items())[: self.securing.threshold]))
            wrong = f"node {name!r}: the shares of its secret do not fit"
            if name in masked:
                require(hash_of(secret) == adverts[name].seed, wrong)
                add_mask(total, secret, subtract=True)
                continue
            key = X25519PrivateKey.from_private_bytes(secret)
            public = key.public_key().public_bytes_raw().hex()
            require(public == adverts[name].masking, wrong)
            for other in masked:
                purpose = pairwise_purpose(digest, name, other)
                pairwise = agreed(key, bytes.fromhex(adverts[other].masking), purpose)
                add_mask(total, pairwise, subtract=other < name)
        return total

    def require_messages(self, names: Mapping[str, object]) -> None:
        """Raise `InputError` if there is no sum of the messages of some nodes."""
        self.require_enough(names)
        nodes = self.securing.nodes
        require(
            not self.everyone or len(names) == len(nodes),
            f"{len(names)} of {len(nodes)} nodes are left, and measures are summed over all",
        )

    def require_enough(self, names: Mapping[str, object]) -> None:
        """Raise `InputError` if fewer nodes than the threshold are left."""
        least = self.securing.threshold
        require(
            len(names) >= least,
            f"{len(names)} of {len(self.securing.nodes)} nodes are left, and a secure sum needs "
            f"{least}",
        )


def add_in_place(vectors: Sequence[Whole]) -> Whole:
    """The sum of some arrays, in the first."""
    total = vectors[0]
    for vector in vectors[1:]:
        total += vector
    return total
