"""Secure sums without a network: nodes, an honest operator, and keys."""

import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedprox.deployment.crypto import Identity, Words
from fedprox.deployment.secure_sum import NodeSum, OperatorSum
from fedprox.deployment.wire import STAGES, Advert, Answer, Claims, Secret, Securing, SumStage

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


Dealt = Mapping[str, Mapping[str, Mapping[str, str]]]
"""What nodes answer to "share", by their names."""


def dealt_by(nodes: Nodes) -> dict[str, Any]:
    """The shares that nodes give each other."""
    return {name: each.share(nodes.roster) for name, each in nodes.sums.items()}


def shared(nodes: Nodes) -> None:
    """Let all nodes share and accept."""
    dealt = dealt_by(nodes)
    for name, each in nodes.sums.items():
        assert each.accept(*given_to(name, dealt)) == {"unusable": []}


def given_to(name: str, dealt: Dealt) -> tuple[dict[str, str], dict[str, str]]:
    """The shares that nodes have dealt to one of them, and their digests, by sender."""
    others = {other: each for other, each in dealt.items() if other != name}
    return (
        {other: each["shares"][name] for other, each in others.items()},
        {other: each["commitments"][name] for other, each in others.items()},
    )


def operator_of(nodes: Nodes) -> OperatorSum:
    """The operator of nodes that have advertised."""
    secret = Secret(sum="0" * 32, of="train", by="rows")
    operator = OperatorSum(nodes.securing, secret, {}, lambda name: b"")  # noqa: ARG005
    advertised = {each.node: Answer(id="", advert=each) for each in nodes.roster}
    operator.take("advertise", advertised)
    return operator


def ask(operator: OperatorSum, nodes: Nodes, stage: SumStage, names: Collection[str]) -> None:
    """Let nodes answer a stage."""
    answers = {}
    for name in names:
        fields = operator.asked(stage, name)
        assert fields.keys() == set(STAGES[stage])
        answers[name] = Answer(id="", **getattr(nodes.sums[name], stage)(**fields))
        operator.check(stage, name, answers[name])
    operator.take(stage, answers)


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
    operator = operator_of(nodes)
    ask(operator, nodes, "share", stage("share"))
    ask(operator, nodes, "accept", left)
    for name in stage("mask"):
        operator.masked[name] = messages[name].copy()
        nodes.sums[name].mask(operator.masked[name])
        assert (operator.masked[name] != messages[name]).any()
    operator.require_enough(operator.masked)
    ask(operator, nodes, "confirm", stage("confirm"))
    ask(operator, nodes, "reveal", stage("reveal"))
    return operator.unmasked()


def some_messages(names: Sequence[str], size: int = 50) -> dict[str, Words]:
    """Whole numbers of each node."""
    generator = np.random.default_rng(5)
    return {name: generator.integers(0, 2**32, size, np.uint32) for name in names}
