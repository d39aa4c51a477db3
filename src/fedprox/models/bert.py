"""BERT's encoder with a head for classes, the architecture of MiniLM too."""

import jax
import jax.numpy as jnp

from fedprox.errors import require, require_whole
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, greatest_symbol, sequence_length
from fedprox.models.layers import affine

Weights = dict[str, jax.Array]


def bert(
    federation: Federation,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 30_522,
    positions: int = 512,
) -> Model:
    """A transformer encoder with a linear head on the mean of its outputs, such as BERT or MiniLM.

    Embeddings of tokens, positions and the first type are added and normalized. Each layer is
    attention and a perceptron of 4 `width` units with GELU, each added to its input, with layer
    normalization after the sum. Id 0 is padding: no token attends to it, and the mean is over the
    other tokens. There is no dropout.

    The parameters have the names and shapes of Hugging Face's BERT files, so that
    :func:`fedprox.load_weights` needs no renaming; the head is `classifier`. The defaults are those
    of BERT-base, 109 million parameters; MiniLM-L6 has `layers=6` and `width=384`, 22.6 million.
    Without loaded weights, matrices start normal with standard deviation 0.02.

    Args:
        federation: Clients whose features are token ids, int (length,), padded with 0, such as
            those of :func:`fedprox.datasets.tokenizer`; and classes.
        layers: Number of layers, at least 1.
        width: Dimensions of a token's vector.
        heads: Attention heads of each layer, a divisor of `width`.
        vocabulary: Number of token ids.
        positions: Most tokens of a text.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features are not token ids, are too long or beyond the vocabulary, the
            labels are not classes, or an option is out of range.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.Federation.from_arrays([(np.array([[5, 7, 0]]), [1])])
        >>> model = fp.models.bert(federation, layers=6, width=384)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        22566146

    References:
        Devlin et al., `BERT: Pre-training of Deep Bidirectional Transformers for Language
        Understanding <https://arxiv.org/abs/1810.04805>`_, NAACL 2019; and
        Wang et al., `MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of
        Pre-Trained Transformers <https://arxiv.org/abs/2002.10957>`_, NeurIPS 2020.
    """
    classes, length = class_count("bert", federation), sequence_length("bert", federation)
    numbers = {"layers": layers, "width": width, "heads": heads}
    for name, value in (numbers | {"vocabulary": vocabulary, "positions": positions}).items():
        require_whole(f"model.{name}", value)
    require(width % heads == 0, f"model.heads = {heads}; it must divide width, {width}")
    require(length <= positions, f"model.positions = {positions}; texts have {length} tokens")
    greatest = max(greatest_symbol("bert", rows) for rows in federation.parts)
    require(greatest < vocabulary, f"model.vocabulary = {vocabulary}; there is a token {greatest}")
    shapes = {
        "embeddings.word_embeddings": (vocabulary, width),
        "embeddings.position_embeddings": (positions, width),
        "embeddings.token_type_embeddings": (2, width),
        "embeddings.LayerNorm": (width,),
    }
    for layer in (f"encoder.layer.{i}" for i in range(layers)):
        for part in ("query", "key", "value"):
            shapes[f"{layer}.attention.self.{part}"] = (width, width)
        shapes[f"{layer}.attention.output.dense"] = (width, width)
        shapes[f"{layer}.attention.output.LayerNorm"] = (width,)
        shapes[f"{layer}.intermediate.dense"] = (4 * width, width)
        shapes[f"{layer}.output.dense"] = (width, 4 * width)
        shapes[f"{layer}.output.LayerNorm"] = (width,)
    shapes["classifier"] = (classes, width)

    def init(key: jax.Array) -> Weights:
        params = {}
        keys = jax.random.split(key, len(shapes))
        for (name, shape), own in zip(shapes.items(), keys, strict=True):
            matrix = len(shape) == 2
            weight = 0.02 * jax.random.normal(own, shape) if matrix else jnp.ones(shape)
            params[f"{name}.weight"] = weight
            if not name.endswith("_embeddings"):
                params[f"{name}.bias"] = jnp.zeros(shape[:1])
        return params

    def BERT(params: Weights, ids: jax.Array) -> jax.Array:  # noqa: N802 (run directories show it)
        mask = ids > 0
        x = encoder_outputs(params, ids, mask, layers, heads) * mask[..., None]
        mean = x.sum(axis=1) / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
        return _affine(params, "classifier", mean)

    return Model(init, BERT)


def encoder_outputs(
    params: Weights, ids: jax.Array, mask: jax.Array, layers: int, heads: int
) -> jax.Array:
    """The last layer's outputs (B, length, width) for token ids and a mask, (B, length)."""
    batch, length = ids.shape

    def by_head(x: jax.Array) -> jax.Array:
        return x.reshape(batch, length, heads, -1)

    x = params["embeddings.word_embeddings.weight"][ids]
    x += params["embeddings.position_embeddings.weight"][:length]
    x += params["embeddings.token_type_embeddings.weight"][0]
    x = _normalized(params, "embeddings.LayerNorm", x.reshape(batch * length, -1))
    hidden = jnp.where(mask, 0, jnp.finfo(x.dtype).min)[:, None, None]
    for layer in (f"encoder.layer.{i}" for i in range(layers)):
        query, key, value = (
            by_head(_affine(params, f"{layer}.attention.self.{part}", x))
            for part in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhe,bkhe->bhqk", query, key) * query.shape[-1] ** -0.5
        shares = jax.nn.softmax(scores + hidden)
        mixed = jnp.einsum("bhqk,bkhe->bqhe", shares, value).reshape(x.shape)
        x += _affine(params, f"{layer}.attention.output.dense", mixed)
        x = _normalized(params, f"{layer}.attention.output.LayerNorm", x)
        y = jax.nn.gelu(_affine(params, f"{layer}.intermediate.dense", x), approximate=False)
        x += _affine(params, f"{layer}.output.dense", y)
        x = _normalized(params, f"{layer}.output.LayerNorm", x)
    return x.reshape(batch, length, -1)


def _affine(params: Weights, name: str, x: jax.Array) -> jax.Array:
    return affine(x, params[f"{name}.weight"], params[f"{name}.bias"])


def _normalized(params: Weights, name: str, x: jax.Array) -> jax.Array:
    """Layer normalization of the last axis."""
    x = x - x.mean(axis=-1, keepdims=True)
    scale = jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12)
    return x * scale * params[f"{name}.weight"] + params[f"{name}.bias"]
