"""What a frozen base costs as an argument of the compiled programs, and as a constant in them.

    python -m benchmarks.bases [--matrices 24]

A network of square matrices of 2,048 rows on Synthetic(0,0), of which a head is trained, or
adapters. One round of 2 clients with one step each, an evaluation before and after it, in a fresh
process with an empty compilation cache, so nearly all of the time is tracing, compilation and the
cache. *user* is processor time, *cached* what the cache then holds. A *constant* is closed over by
the model's function, as `fp.freeze` did before version 0.2.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import fedprox as fp
from benchmarks.page import show, table

VARIANTS = "argument", "constant", "adapters"
SIDE = 2048


def network(matrices: int) -> fp.Model:
    """The whole network."""

    def init(key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, matrices + 1)
        body = {
            f"{i:02}": jax.random.normal(each, (SIDE, SIDE)) / SIDE**0.5
            for i, each in enumerate(keys[1:])
        }
        first = jax.random.normal(keys[0], (60, SIDE)) / 8
        return {"first": first, "body": body, "head": jnp.zeros((SIDE, 10))}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ params["first"])
        for each in params["body"].values():
            hidden = jnp.tanh(hidden @ each)
        return hidden @ params["head"]

    return fp.Model(init, apply)


def measure(variant: str, matrices: int, cache: str) -> dict[str, float]:
    """The costs of one variant, in this process."""
    fp.use_compilation_cache(cache)
    whole = network(matrices)
    params = jax.block_until_ready(whole.init(jax.random.key(0)))
    if variant == "adapters":
        model = fp.lora(whole, params, targets=["body"], trained=["head"])
    else:
        model = fp.freeze(whole, params, ["first", "body"])
    if variant == "constant":
        frozen = model
        model = fp.Model(frozen.init, lambda trained, x: frozen.apply(trained, x))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    fp.simulate(
        fp.datasets.synthetic(clients=3),
        model,
        fp.fedavg(),
        solver=fp.Solver(0.01, 10, steps=1),
        cohort=fp.Cohort(2),
        rounds=1,
        evaluation=fp.Evaluation(rows=10, gradients=False),
        progress=False,
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user": used.ru_utime - before,
        "memory": used.ru_maxrss / 1e3,
        "cached": sum(each.stat().st_size for each in Path(cache).iterdir()) / 1e6,
        "base": sum(leaf.nbytes for leaf in jax.tree.leaves(model.base or params)) / 1e6,
        "trained": model.size_bytes / 1e6,
    }


def main() -> None:
    """Measure each variant in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=int, default=24)
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--cache")
    given = parser.parse_args()
    if given.variant:
        print(json.dumps(measure(given.variant, given.matrices, given.cache)))
        return
    shown = table("base", "MB", "trained, MB", "user, s", "most memory, MB", "cached, MB")
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as cache:
            options = ["--variant", variant, "--matrices", str(given.matrices), "--cache", cache]
            command = [sys.executable, "-m", "benchmarks.bases", *options]
            ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ)
        found = json.loads(ran.stdout)
        columns = ("base", "trained", "user", "memory", "cached")
        shown.add_row(variant, *(f"{found[name]:,.1f}" for name in columns))
    show(shown)


if __name__ == "__main__":
    main()
