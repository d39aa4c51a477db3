"""The cost of secure sums.

    python -m benchmarks.secure [--flower]

Processor seconds of one core: a node makes whole numbers of a message and adds its masks, the
operator adds the masked messages and removes the self masks, and the pairwise masks of a node that
dropped out after keys were shared. Keys, shares and signatures of a node. The fastest of three.
Bytes of a node are those of all stages, and of the message alone.

With --flower: seconds of rounds of federations on this machine, with secure sums and without.
"""

import argparse
import json
import secrets
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.deployment import BIG, Case, ours, scratch, write_data
from fedprox.deployment.crypto import Identity
from fedprox.deployment.fixed_point import FixedPoint
from fedprox.deployment.secure_sum import NodeSum, OperatorSum
from fedprox.deployment.wire import Advert, Answer, Claims, Secret, Securing, SumStage

TURNS = 3


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, and what it returns."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def turn(parameters: int, count: int, bits: int) -> dict[str, float]:
    """The costs of one sum, whose last node of more than three drops out after sharing."""
    names = [f"node-{i:03}" for i in range(count)]
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    public = {name: key.public_key() for name, key in keys.items()}
    least, left = max(3, count // 2 + 1), max(3, count - 1)
    securing = Securing(threshold=least, bound=1.0, bits=bits, honest=1, nodes=names)  # type: ignore[arg-type]
    number, work = secrets.token_hex(16), Claims(by="clients", rate=1 / count)

    def begin(name: str) -> NodeSum:
        peers = {other: key for other, key in public.items() if other != name}
        advert = Advert(node=name, sum=number, context="", work=work)
        return NodeSum(Identity(name, keys[name], peers), securing, advert)

    nodes = {name: begin(name) for name in names}
    secret = Secret(sum=number, of="train", by="clients")
    operator = OperatorSum(securing, secret, {}, lambda name: b"")  # noqa: ARG005

    def ask(stage: SumStage, among: Iterable[str]) -> tuple[float, int, int]:
        """Seconds of the first node in a stage, and its bytes down and up."""
        answers, costs = {}, []
        for name in among:
            fields = operator.asked(stage, name)
            spent, answer = seconds(partial(getattr(nodes[name], stage), **fields))
            answers[name] = Answer(id="", **answer)
            costs.append((spent, size_of(fields), size_of(answer)))
        operator.take(stage, answers)
        return costs[0]

    operator.take(
        "advertise", {name: Answer(id="", advert=node.advert) for name, node in nodes.items()}
    )
    took = {}
    sharing, accepting = ask("share", names), ask("accept", names)
    took["node: keys and shares"] = sharing[0]
    fixed = FixedPoint(1.0, bits, count)
    message = np.random.default_rng(0).normal(0, 1e-3, (1, parameters)).astype(np.float32)
    one = np.ones(1, np.float32)
    took["node: whole numbers"], vector = seconds(lambda: fixed.quantized([message], one))
    took["node: masks"], _ = seconds(lambda: nodes[names[0]].mask(vector))
    operator.masked = {names[0]: vector}
    for name in names[1:left]:
        operator.masked[name] = vector.copy()  # as large as the node's own would be
        nodes[name].mask(np.zeros(1, fixed.word))
    stages = [sharing, accepting, ask("confirm", names[:left]), ask("reveal", names[:left])]
    took["operator, one node of more than three dropped out"], _ = seconds(operator.unmasked)
    down = sum(each[1] for each in stages)
    up = size_of({"advert": nodes[names[0]].advert}) + sum(each[2] for each in stages)
    took |= {"kB down beside the model": down / 1e3, "kB up beside the message": up / 1e3}
    return took | {"MB of the message": vector.nbytes / 1e6}


def size_of(fields: Any) -> int:
    """Bytes of fields of a head, about."""
    return len(json.dumps(fields, default=lambda each: each.model_dump(mode="json")))


def flower() -> None:
    """Print the rounds of federations with secure sums and without, in turns."""
    models: list[dict[str, Any]] = [{"name": "mlp", "hidden": [100]}, BIG]
    for model, nodes in ((models[0], 3), (models[0], 10), (models[1], 3)):
        for secure in (False, True) * TURNS:
            case = Case(model, nodes, evaluated=False, secure=secure)
            with scratch() as data, scratch() as folder:
                done = ours(case, folder, write_data(case, data))
            kind = "secure" if secure else "plain"
            print(
                f"{model}, {nodes} nodes, {kind}: {done.warm:.2f} s a round, {done.work:.2f} "
                f"processor s, {done.down:.3f} down, {done.up:.3f} up",
                flush=True,
            )


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flower", action="store_true", help="rounds of federations instead")
    if parser.parse_args().flower:
        flower()
        return
    cases = [(8_000, n, 32) for n in (3, 10, 50)] + [(25_000_000, n, 32) for n in (3, 10, 50)]
    for parameters, nodes, bits in [*cases, (25_000_000, 10, 64)]:
        turns = [turn(parameters, nodes, bits) for _ in range(TURNS)]
        found = {what: min(each[what] for each in turns) for what in turns[0]}
        print(f"{parameters:,} parameters, {nodes} nodes, {bits} bits")
        for what, value in found.items():
            print(f"    {what}: {value:.4g}")


if __name__ == "__main__":
    main()
