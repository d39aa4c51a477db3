"""Secure sums without a network: nodes, an honest operator, and keys."""

import contextlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedprox.deployment.crypto import Identity, Words
from fedprox.deployment.secure_sum import NodeSum, OperatorSum
from fedprox.deployment.sum_keys import NodeKeys, OperatorKeys, require_enough
from fedprox.deployment.wire import STAGES, Advert, Answer, Secret, Securing, SumStage

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
    """The nodes of some keys, which sum in secret.

    Attributes:
        securing: What the run declares.
        keys: The keys of each node.
        roster: The advertisements of all nodes.
    """

    securing: Securing
    keys: dict[str, NodeKeys]
    roster: list[Advert]


def begun(
    known: dict[str, Identity],
    threshold: int,
    context: Callable[[str], str] = lambda name: "context",  # noqa: ARG005
    measures: Callable[[str], list[str]] = lambda name: [],  # noqa: ARG005
) -> Nodes:
    """Nodes that have advertised."""
    securing = Securing(threshold=threshold, bound=1.0, bits=32, honest=1, nodes=sorted(known))
    number = secrets.token_hex(16)
    keys = {
        name: NodeKeys(
            identity,
            securing,
            Advert(node=name, keys=number, context=context(name), measures=measures(name)),
        )
        for name, identity in known.items()
    }
    return Nodes(securing, keys, [keys[name].advert for name in sorted(keys)])


Dealt = Mapping[str, Mapping[str, Mapping[str, str]]]
"""What nodes answer to "share", by their names."""


def dealt_by(nodes: Nodes) -> dict[str, Any]:
    """The shares that nodes give each other."""
    return {name: each.share(nodes.roster) for name, each in nodes.keys.items()}


def shared(nodes: Nodes) -> None:
    """Let all nodes share and accept."""
    dealt = dealt_by(nodes)
    for name, each in nodes.keys.items():
        assert each.accept(*given_to(name, dealt)) == {"unusable": []}


def given_to(name: str, dealt: Dealt) -> tuple[dict[str, str], dict[str, str]]:
    """The shares that nodes have dealt to one of them, and their digests, by sender."""
    others = {other: each for other, each in dealt.items() if other != name}
    return (
        {other: each["shares"][name] for other, each in others.items()},
        {other: each["commitments"][name] for other, each in others.items()},
    )


def operator_of(nodes: Nodes) -> OperatorKeys:
    """The operator of nodes that have advertised."""
    operator = OperatorKeys(nodes.securing, nodes.roster[0].context, lambda name: b"")  # noqa: ARG005
    operator.name = nodes.roster[0].keys
    advertised = {each.node: Answer(id="", advert=each) for each in nodes.roster}
    operator.take("advertise", advertised)
    return operator


def agreed(
    nodes: Nodes, share: Collection[str] | None = None, accept: Collection[str] | None = None
) -> OperatorKeys:
    """The operator of nodes of which some share, and some of these accept; all if not told."""
    operator = operator_of(nodes)
    ask(operator, nodes.keys, "share", nodes.keys if share is None else share)
    ask(operator, nodes.keys, "accept", operator.answers["share"] if accept is None else accept)
    return operator


def ask(
    operator: OperatorKeys | OperatorSum,
    nodes: Mapping[str, NodeKeys | NodeSum],
    stage: SumStage,
    names: Collection[str],
) -> None:
    """Let nodes answer a stage."""
    answers = {}
    for name in names:
        fields = operator.asked(stage, name)
        assert fields.keys() == set(STAGES[stage])
        answers[name] = Answer(id="", **getattr(nodes[name], stage)(**fields))
        operator.check(stage, name, answers[name])
    operator.take(stage, answers)


def sum_of(
    operator: OperatorKeys, nodes: Nodes, messages: Mapping[str, Words], came: Collection[str]
) -> tuple[OperatorSum, dict[str, NodeSum]]:
    """The next sum of some nodes' messages, of which some came: operator and nodes."""
    number, context = operator.begun[False], secrets.token_hex(8)
    operator.begun[False] += 1
    asked = sorted(messages)
    secret = Secret(keys=operator.name, of="train", number=number, asked=asked)
    one, sums = OperatorSum(operator, secret, context), dict[str, NodeSum]()
    for name in came:
        nodes.keys[name].require_next(number, asked, everyone=False)
        sums[name] = NodeSum(nodes.keys[name], number, context, asked)
        one.masked[name] = messages[name].copy()
        sums[name].mask(one.masked[name])
        assert (one.masked[name] != messages[name]).any()
    return one, sums


Gone = Mapping[str, Collection[str]]
"""The nodes that drop out before each stage: share, mask, confirm, reveal."""


def summed(
    operator: OperatorKeys, nodes: Nodes, messages: Mapping[str, Words], gone: Gone
) -> Words:
    """The sum as an honest operator computes it."""
    left = set(messages) - {*gone.get("mask", ())}
    one, sums = sum_of(operator, nodes, messages, sorted(left))
    require_enough(one.securing, one.masked)
    for stage in one.stages:
        left.difference_update(gone.get(stage, ()))
        ask(one, sums, stage, sorted(left))
    return one.unmasked()


def some_messages(names: Collection[str], size: int = 50, seed: int = 5) -> dict[str, Words]:
    """Whole numbers of each node."""
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 2**32, size, np.uint32) for name in sorted(names)}
