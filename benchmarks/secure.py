"""The cost of secure sums.

    python -m benchmarks.secure [--flower [--nodes 4 10] [--turns 3]]

Processor milliseconds of one core, the fastest of three. A node makes keys, shares and signatures,
whole numbers of a message, and masks. The operator adds the masked messages and removes the self
masks. It also removes the pairwise masks of a node that dropped out after keys were shared, if
there are more than three. A node's kilobytes are those of the keys and of a sum beside the message,
and of the message alone.

With --flower: seconds of rounds of federations on this machine, with secure sums and without, and
how often each node is asked in a round.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.deployment import Case, Turn, ours, scratch, write_data
from benchmarks.page import add, show, table
from fedprox.deployment.crypto import Identity
from fedprox.deployment.fixed_point import FixedPoint
from fedprox.deployment.secure_sum import NodeSum, OperatorSum
from fedprox.deployment.sum_keys import NodeKeys, OperatorKeys
from fedprox.deployment.wire import SUMS, Advert, Answer, Secret, Securing, SumStage

TURNS = 3
LIMIT = 2.2
"""What a round with secure sums may take of one in the clear."""


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, and what it returns."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def turn(parameters: int, count: int, bits: int) -> dict[str, float]:
    """The costs of one sum, whose last node of more than three drops out before its message."""
    names = [f"node-{i:03}" for i in range(count)]
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    public = {name: key.public_key() for name, key in keys.items()}
    least, left = max(3, count // 2 + 1), max(3, count - 1)
    securing = Securing(threshold=least, bound=1.0, bits=bits, honest=1, nodes=names)  # type: ignore[arg-type]
    operator = OperatorKeys(securing, "", lambda name: b"")  # noqa: ARG005

    def begin(name: str) -> NodeKeys:
        peers = {other: key for other, key in public.items() if other != name}
        advert = Advert(node=name, keys=operator.name, context="", measures=[])
        return NodeKeys(Identity(name, keys[name], peers), securing, advert)

    def ask(
        part: OperatorKeys | OperatorSum,
        nodes: Mapping[str, NodeKeys | NodeSum],
        stage: SumStage,
        among: Iterable[str],
    ) -> tuple[float, int, int]:
        """Seconds of the first node in a stage, and its bytes down and up."""
        answers, costs = {}, []
        for name in among:
            fields = part.asked(stage, name)
            spent, answer = seconds(partial(getattr(nodes[name], stage), **fields))
            answers[name] = Answer(id="", **answer)
            costs.append((spent, size_of(fields), size_of(answer)))
        part.take(stage, answers)
        return costs[0]

    nodes = {name: begin(name) for name in names}
    adverts = {name: Answer(id="", advert=node.advert) for name, node in nodes.items()}
    operator.take("advertise", adverts)
    setting_up = [ask(operator, nodes, stage, names) for stage in ("share", "accept")]
    took = {f"node: keys for {SUMS} sums": sum(each[0] for each in setting_up)}
    fixed = FixedPoint(1.0, bits, count)
    message = np.random.default_rng(0).normal(0, 1e-3, (1, parameters)).astype(np.float32)
    one = np.ones(1, np.float32)
    took["node: whole numbers"], vector = seconds(lambda: fixed.quantized([message], one))
    secret = Secret(keys=operator.name, of="train", asked=names)
    summing = OperatorSum(operator, secret, "")
    sums = {name: NodeSum(nodes[name], 0, "", names) for name in names[:left]}
    took["node: masks"], _ = seconds(lambda: sums[names[0]].mask(vector))
    summing.masked = {names[0]: vector}
    for name in names[1:left]:
        summing.masked[name] = vector.copy()  # as large as the node's own would be
        sums[name].mask(np.zeros(1, fixed.word))
    stages = [ask(summing, sums, stage, names[:left]) for stage in summing.stages]
    took["node: confirm and reveal"] = sum(each[0] for each in stages)
    took["operator"], _ = seconds(summing.unmasked)
    took = {what: 1e3 * each for what, each in took.items()}
    advert = size_of({"advert": nodes[names[0]].advert})
    took["keys, down"] = sum(each[1] for each in setting_up) / 1e3
    took["keys, up"] = (advert + sum(each[2] for each in setting_up)) / 1e3
    took["sum, down"] = sum(each[1] for each in stages) / 1e3
    took["sum, up"] = sum(each[2] for each in stages) / 1e3
    return took | {"message": vector.nbytes / 1e3}


def size_of(fields: Any) -> int:
    """Bytes of fields of a head, about."""
    return len(json.dumps(fields, default=lambda each: each.model_dump(mode="json")))


def flower(counts: Sequence[int], turns: int) -> None:
    """Show rounds of federations in the clear and with secure sums, turn about, and their ratio.

    There are so many rounds that nodes agree on keys once within them.
    """
    model: dict[str, Any] = {"name": "mlp", "hidden": [100]}
    shown = table(
        "nodes", "", "sums", "requests to a node", "seconds a round, median", "mean",
        "processor seconds", "load", "of in the clear, median", "mean",
        title=f"values of each turn; asked: {LIMIT} times in the clear", left=3,
    )  # fmt: skip
    for nodes, evaluated in itertools.product(counts, (False, True)):
        found: dict[bool, list[Turn]] = {False: [], True: []}
        loads: dict[bool, list[float]] = {False: [], True: []}
        for secure in (False, True) * turns:
            case = Case(model, nodes, evaluated=evaluated, secure=secure, many=True)
            loads[secure].append(os.getloadavg()[0])
            with scratch() as data, scratch() as folder:
                done = ours(case, folder, write_data(case, data))
            found[secure].append(done)
            kind = "secure" if secure else "in the clear"
            print(f"{nodes} nodes, {kind}: {done.warm:.2f} s a round", flush=True)
        clear = [(done.warm, mean(done)) for done in found[False]]
        for secure, dones in found.items():
            ratios = [
                (done.warm / a, mean(done) / b) for done, (a, b) in zip(dones, clear, strict=True)
            ]
            add(
                shown,
                str(nodes),
                "trained and evaluated" if evaluated else "trained",
                "secure" if secure else "in the clear",
                f"{dones[0].asked:.2f}",
                each(done.warm for done in dones),
                each(map(mean, dones)),
                each(done.work for done in dones),
                each(loads[secure]),
                *(each(ratio[i] for ratio in ratios) if secure else "" for i in (0, 1)),
            )
    show(shown)


def mean(done: Turn) -> float:
    """The mean seconds of the rounds after the first."""
    return float(np.mean(done.seconds[1:]))


def each(values: Iterable[float]) -> str:
    return "; ".join(f"{value:.2f}" for value in values)


def significant(number: float) -> str:
    """A number with two significant digits, and all of its whole ones."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def main() -> None:
    """Measure sums, or rounds of federations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flower", action="store_true", help="rounds of federations instead")
    parser.add_argument("--nodes", type=int, nargs="*", default=[4, 10], help="with --flower")
    parser.add_argument("--turns", type=int, default=TURNS, help="with --flower")
    given = parser.parse_args()
    if given.flower:
        flower(given.nodes, given.turns)
        return
    cases = [(8_000, n, 32) for n in (3, 10, 50, 100)] + [(25_000_000, n, 32) for n in (3, 10, 50)]
    shown = None
    for parameters, nodes, bits in [*cases, (25_000_000, 10, 64)]:
        turns = [turn(parameters, nodes, bits) for _ in range(TURNS)]
        found = {what: min(one[what] for one in turns) for what in turns[0]}
        shown = shown or table("numbers", "nodes", "bits", *found, left=0)
        cells = map(significant, found.values())
        add(shown, f"{parameters:,}", str(nodes), str(bits), *cells)
    assert shown
    show(shown)


if __name__ == "__main__":
    main()
