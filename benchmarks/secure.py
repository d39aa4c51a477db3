"""The cost of secure sums.

    python -m benchmarks.secure [--parameters N] [--nodes N]

Processor seconds of one core: a node makes whole numbers of a message and adds its masks, the
operator adds the masked messages and removes the self masks, and the pairwise masks of a node that
dropped out after keys were shared. Keys, shares and signatures of a node. The fastest of three.
"""

import argparse
import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedprox.deployment.messages import Advert, Claims, Securing
from fedprox.deployment.secure.fixed_point import FixedPoint
from fedprox.deployment.secure.keys import Identity
from fedprox.deployment.secure.node_sum import NodeSum
from fedprox.deployment.secure.operator_sum import OperatorSum

TURNS = 3


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, and what it returns."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def turn(parameters: int, count: int, bits: int) -> dict[str, float]:
    """The costs of one sum, whose last node drops out after it has shared its keys."""
    names = [f"node-{i:03}" for i in range(count)]
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    public = {name: key.public_key() for name, key in keys.items()}
    securing = Securing(threshold=count // 2 + 1, bound=1.0, bits=bits, honest=1, nodes=names)  # type: ignore[arg-type]
    number, work = secrets.token_hex(16), Claims(by="clients", rate=1 / count)

    def begin(name: str) -> NodeSum:
        peers = {other: key for other, key in public.items() if other != name}
        advert = Advert(node=name, sum=number, context="", work=work)
        return NodeSum(Identity(name, keys[name], peers), securing, advert)

    nodes = {name: begin(name) for name in names}
    operator = OperatorSum(securing)
    roster = operator.advertised({name: node.advert for name, node in nodes.items()})
    took = {}
    took["node: keys and shares"], first = seconds(lambda: nodes[names[0]].share(roster))
    sealed = {name: nodes[name].share(roster) for name in names[1:]} | {names[0]: first}
    for name, given in operator.shared(sealed).items():
        nodes[name].accept(given)
    fixed = FixedPoint(1.0, bits, count)
    message = np.random.default_rng(0).normal(0, 1e-3, (1, parameters)).astype(np.float32)
    one = np.ones(1, np.float32)
    took["node: whole numbers"], vector = seconds(lambda: fixed.quantized([message], one))
    took["node: masks"], _ = seconds(lambda: nodes[names[0]].mask(vector))
    masked = {names[0]: vector}
    for name in names[1:-1]:
        masked[name] = vector.copy()  # as large as the node's own would be
        nodes[name].mask(np.zeros(1, fixed.word))
    signatures = {name: nodes[name].confirm(masked) for name in masked}
    revealed = {name: nodes[name].reveal(signatures) for name in masked}
    took["operator, one node dropped out"], _ = seconds(lambda: operator.unmasked(masked, revealed))
    return took


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--nodes", type=int, default=10)
    arguments = parser.parse_args()
    for bits in (32, 64):
        turns = [turn(arguments.parameters, arguments.nodes, bits) for _ in range(TURNS)]
        for what in turns[0]:
            print(f"{bits} bits, {what}: {min(each[what] for each in turns):.3f} s")


if __name__ == "__main__":
    main()
