"""Secure sums without a network: nodes, an honest operator, and keys."""

import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedprox.deployment.crypto import Identity, Words
from fedprox.deployment.node_sum import Dealt, NodeSum
from fedprox.deployment.operator_sum import OperatorSum
from fedprox.deployment.wire import Advert, Claims, Securing

with contextlib.suppress(ImportError):  # the tests that need it are skipped
    from cryptography.hazmat.primitives.asymmetric import ec


def identities(names: Sequence[str]) -> dict[str, Identity]:
    """Nodes that know each other."""
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in names}
    public = {name: key.public_key() for name, key in keys.items()}
    return {
        name: Identity(name, key, {other: public[other] for other in names if other != name})
        for name, key in keys.items()
    }


class Nodes(NamedTuple):
    """The nodes of one sum.

    Attributes:
        securing: What the run declares.
        sums: The part of each node.
        roster: The advertisements of all nodes.
    """

    securing: Securing
    sums: dict[str, NodeSum]
    roster: list[Advert]


def begun(
    known: dict[str, Identity],
    threshold: int,
    context: Callable[[str], str] = lambda name: "context",  # noqa: ARG005
    work: Callable[[str], Claims] = lambda name: Claims(by="rows", rate=0.02),  # noqa: ARG005
) -> Nodes:
    """Nodes that have advertised."""
    securing = Securing(threshold=threshold, bound=1.0, bits=32, honest=1, nodes=sorted(known))
    number = secrets.token_hex(16)
    sums = {
        name: NodeSum(
            identity,
            securing,
            Advert(node=name, sum=number, context=context(name), work=work(name)),
        )
        for name, identity in known.items()
    }
    return Nodes(securing, sums, [sums[name].advert for name in sorted(sums)])


def shared(nodes: Nodes) -> None:
    """Let all nodes share and accept."""
    dealt = {name: each.share(nodes.roster) for name, each in nodes.sums.items()}
    for name, each in nodes.sums.items():
        assert each.accept(*given_to(name, dealt)) == []


def given_to(name: str, dealt: Mapping[str, Dealt]) -> Dealt:
    """The shares that nodes have dealt to one of them, by sender."""
    others = {other: each for other, each in dealt.items() if other != name}
    return Dealt(
        {other: each.sealed[name] for other, each in others.items()},
        {other: each.commitments[name] for other, each in others.items()},
    )


Gone = Mapping[str, Collection[str]]
"""The nodes that drop out before each stage: advertise, share, mask, confirm, reveal."""


def summed(
    known: dict[str, Identity], threshold: int, messages: dict[str, Words], gone: Gone
) -> Words:
    """The sum as an honest operator computes it."""
    left = set(known)

    def stage(name: str) -> list[str]:
        left.difference_update(gone.get(name, ()))
        return sorted(left)

    nodes = begun({name: known[name] for name in stage("advertise")}, threshold)
    nodes.securing.nodes[:] = sorted(known)
    operator = OperatorSum(nodes.securing)
    roster = operator.advertised({each.node: each for each in nodes.roster})
    given = operator.shared({name: nodes.sums[name].share(roster) for name in stage("share")})
    masked = {}
    operator.accepted({name: nodes.sums[name].accept(*given[name]) for name in given})
    for name in stage("mask"):
        masked[name] = messages[name].copy()
        nodes.sums[name].mask(masked[name])
        assert (masked[name] != messages[name]).any()
    operator.require_enough(masked)
    signatures = {name: nodes.sums[name].confirm(masked) for name in stage("confirm")}
    operator.require_enough(signatures)
    return operator.unmasked(
        masked, {name: nodes.sums[name].reveal(signatures) for name in stage("reveal")}
    )


def some_messages(names: Sequence[str], size: int = 50) -> dict[str, Words]:
    """Whole numbers of each node."""
    generator = np.random.default_rng(5)
    return {name: generator.integers(0, 2**32, size, np.uint32) for name in names}
