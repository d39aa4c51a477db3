"""Each model's step in a round of 10 and of 50 clients, beside torch, in three precisions.

float32 is full single precision; TF32 rounds the factors of products to 10 bits of mantissa, JAX's
default on GPUs that have it; bfloat16 casts parameters and features of a step, and keeps the
parameters that are averaged in float32. torch's loop runs in the same precision, where the
measurement has one. The share is that of the rate of a product of two large matrices in the same
precision. Models are measured in TF32 first, the others if time is left. MiniLM's step is also
measured with adapters, beside that in full.
"""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

import fedprox as fp
from benchmarks.gpu_parts.part import Part
from benchmarks.models import (
    HAS_TORCH,
    ROWS,
    Convert,
    Row,
    measure,
    product_rate,
    row_named,
    unchanged,
)

ORDER = (
    "FedDyn CNN",
    "2NN",
    "character LSTM 2x100",
    "MNIST CNN",
    "logistic",
    "ResNet-18",
    "CIFAR CNN 24x24",
    "character LSTM 2x256",
    "sentiment LSTM 2x256",
    "word LSTM",
    "FedAvg's character LSTM",
    "MiniLM",
)
"""The models, in the order in which they are measured."""

ADAPTED = {"MiniLM": ["*.query.weight", "*.value.weight"], "logistic": ["*.weight"]}
"""By model, which of its matrices get adapters; the second is for rehearsals."""

PRECISIONS = ("TF32", "bfloat16", "float32")

MATMUL = {"TF32": None, "bfloat16": None, "float32": "highest"}
"""JAX's setting for products of float32: None is its default. bfloat16 has its own arrays."""


def in_bfloat16(model: fp.Model) -> fp.Model:
    """The same model with bfloat16 inside; its parameters and outputs stay float32."""

    def low(a: Any) -> Any:
        return a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return model.apply(jax.tree.map(low, params), low(x)).astype(jnp.float32)

    return dataclasses.replace(model, apply=apply)


def with_adapters(name: str) -> Convert:
    """The change of a model of `ADAPTED` to one whose adapters are trained."""

    def convert(model: fp.Model) -> fp.Model:
        return fp.lora(model, model.init(jax.random.key(0)), rank=8, targets=ADAPTED[name])

    return convert


@contextmanager
def precision(name: str) -> Iterator[Convert]:
    """Compute products of JAX and torch in a precision; gives the change of a model."""
    if HAS_TORCH:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = name != "float32"
        torch.backends.cudnn.allow_tf32 = name != "float32"
    with jax.default_matmul_precision(MATMUL[name]):
        yield in_bfloat16 if name == "bfloat16" else unchanged


def start_jax() -> None:
    """Load JAX's CUDA libraries before torch loads its own, which may be other versions."""
    image = jnp.ones((1, 8, 8, 3))
    kernel = jnp.ones((3, 3, 3, 4))
    layout = ("NHWC", "HWIO", "NHWC")
    found = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=layout)
    jax.block_until_ready(found.reshape(64, 4) @ jnp.ones((4, 4)))


def main(part: Part) -> None:
    """Measure the models, as many as the time allows."""
    start_jax()
    size = 512 if part.tiny else 8192
    rates = {}
    for name in PRECISIONS:
        with precision(name):
            dtype = jnp.bfloat16 if name == "bfloat16" else jnp.float32
            rates[name] = product_rate(size, dtype)
        rate = {"precision": name, "size": size, "TFLOP/s": 1e-12 * rates[name]}
        part.write("Products of two large matrices", **rate)
    remark = "torch is not installed; only our times are measured"
    if HAS_TORCH:
        import torch

        where = (
            "the GPU" if torch.cuda.is_available() else "the CPU, so ratios say nothing of a GPU"
        )
        remark = f"torch {torch.__version__} computes on {where}"
    part.write("Remarks", remark=remark)
    assert {row.name for row in ROWS} == set(ORDER)
    for which in PRECISIONS:
        for name in ("logistic",) if part.tiny else ORDER:
            for clients in (4,) if part.tiny else (10, 50) if which == "TF32" else (50,):
                compare(part, row_named(name), clients, which, rates[which])
        if which == "TF32":
            name = "logistic" if part.tiny else "MiniLM"
            for clients in (4,) if part.tiny else (10, 50):
                adapt(part, name, clients)


def adapt(part: Part, name: str, clients: int) -> None:
    """Measure steps of a model in full and with adapters, beside each other."""
    for what, convert in (("all", unchanged), ("adapters", with_adapters(name))):
        key = {"model": name, "trained": what, "B": row_named(name).batch, "clients": clients}
        try:
            timing = measure(
                row_named(name),
                clients,
                repeats=2 if part.tiny else 3,
                seconds=0.02 if part.tiny else 0.4,
                torch=False,
                convert=convert,
            )
        except Exception as error:  # such as too little memory
            part.write("Models that failed", **key, error=f"{type(error).__name__}: {error}"[:300])
            continue
        part.write(
            "Steps in full and with adapters",
            **key,
            **{
                "parameters": timing.parameters,
                "step ms": 1e3 * timing.step,
                "in a round ms": 1e3 * timing.in_round,
                "compile s": timing.compile_seconds,
                "memory MiB": timing.memory / 2**20,
            },
        )


def compare(part: Part, row: Row, clients: int, name: str, best: float) -> None:
    """Measure a model and write its figures, or why it cannot be measured."""
    key = {"model": row.name, "precision": name, "B": row.batch, "clients": clients}
    with_torch = HAS_TORCH and name != "bfloat16"  # its loop has no bfloat16
    try:
        with precision(name) as convert:
            timing = measure(
                row,
                clients,
                repeats=2 if part.tiny else 3,
                seconds=0.02 if part.tiny else 0.4,
                torch=with_torch,
                convert=convert,
            )
    except Exception as error:  # such as too little memory, or a layer without bfloat16
        part.write("Models that failed", **key, error=f"{type(error).__name__}: {error}"[:300])
        return
    ratio = timing.torch_in_round / timing.in_round
    part.write(
        "Steps of models",
        **key,
        **{
            "step ms": 1e3 * timing.step,
            "in a round ms": 1e3 * timing.in_round,
            "torch in a round ms": 1e3 * timing.torch_in_round,
            "torch / ours": None if math.isnan(ratio) else ratio,
            "TFLOP/s": 1e-12 * timing.rate,
            "of the product's rate, %": 100 * timing.rate / best,
            "compile s": timing.compile_seconds,
            "memory MiB": timing.memory / 2**20,
        },
    )
