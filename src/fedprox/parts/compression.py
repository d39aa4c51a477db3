r"""Compression of what clients send, as a transformation of a method.

The message of a client becomes what arrives after its codec. With error feedback, the client keeps
what has not arrived and adds it to its next message, so that over all rounds

    sum of what arrived + what is kept = sum of the messages.

The server keeps its state in full and sends a rounded model. In rows of n numbers, which share one
scale, a number :math:`x` is sent as

.. math:: q = \operatorname{round}(x / s), \qquad s = \max_i |x_i| / (2^{b-1} - 1),

so that it arrives with an error of at most :math:`s / 2` (Caldas et al., `Expanding the Reach of
Federated Learning by Reducing Client Resource Requirements <https://arxiv.org/abs/1812.07210>`_,
2018, section 3.1, without its random transform). Clients start from what arrives and send their
change from there, which the server adds to its model in full: errors do not add up over rounds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
    add_scaled,
)
from fedprox.algorithms.check import message_shape
from fedprox.algorithms.lift import lift
from fedprox.errors import Within, check_fields, require
from fedprox.federation import Federation
from fedprox.jax_internals import inputs_returned
from fedprox.model import Params
from fedprox.parts.codecs import (
    Codec,
    code_bytes,
    code_of_bytes,
    code_shapes,
    contraction,
    full,
    quantize,
    random_k,
    sign,
    top_k,
)
from fedprox.parts.part import Coding, Columns, Part, Setting, random_key

CodecName = Literal["full", "top-k", "random-k", "quantize", "sign"]
"""How a message travels."""


@dataclass(frozen=True)
class Compression(Part):
    r"""Compression of the clients' messages, and of the model that they receive.

    A message of d numbers is coded as a whole. Records count the bits, and clients' devices send
    that many.

    Attributes:
        codec: "full": all numbers, to count their bits. "top-k": the largest numbers and their
            places (Stich et al. 2018). "random-k": numbers at random places, scaled so that it is
            unbiased. "quantize": each number randomly rounded to one of :math:`2^b - 1` levels of a
            norm, unbiased (Alistarh et al. 2017, Reisizadeh et al. 2020). "sign": signs and a mean
            magnitude, which is biased (Karimireddy et al. 2019).
        share: k / d of "top-k" and "random-k", above 0 and at most 1; k is rounded up.
        bits: b of "quantize", from 2 to 16.
        bucket: Numbers that share a norm in "quantize" or a magnitude in "sign", at least 2.
        rotate: Whether each bucket is randomly rotated before, so that its numbers are alike in
            size. "quantize" then has a smaller error (Suresh et al. 2017). "sign" is DRIVE
            (Vargaftik et al. 2021) with two rotations; in buckets of 64 numbers or more its bias is
            at most 2 % of the message's norm. `bucket` must be a power of two.
        error_feedback: Whether a client keeps the error of its code and adds it to its next
            message. Unbiased codecs are then scaled down to contractions.
        download: Bits of a number of the model that the server sends, 8 or 16, with a scale for
            each `bucket`; None sends it in full. The server keeps it in full, so that rounding
            errors do not add up (Caldas et al. 2018).

    Raises:
        InputError: If a setting is unknown or out of range.

    Example:
        >>> import fedprox as fp
        >>> fp.Compression("quantize", bits=4).message_bits(1000)  # two norms, 4 bits a number
        4064

    References:
        Alistarh et al., `QSGD <https://arxiv.org/abs/1610.02132>`_, NeurIPS 2017; Reisizadeh et
        al., `FedPAQ <https://arxiv.org/abs/1909.13014>`_, AISTATS 2020; Stich et al., `Sparsified
        SGD with Memory <https://arxiv.org/abs/1809.07599>`_, NeurIPS 2018; Karimireddy et al.,
        `Error Feedback Fixes SignSGD <https://arxiv.org/abs/1901.09847>`_, ICML 2019; Suresh et
        al., `Distributed Mean Estimation with Limited Communication
        <https://arxiv.org/abs/1611.00429>`_, ICML 2017; Vargaftik et al., `DRIVE
        <https://arxiv.org/abs/2105.08339>`_, NeurIPS 2021; Caldas et al., `Expanding the Reach of
        Federated Learning <https://arxiv.org/abs/1812.07210>`_, 2018, section 3.1.
    """

    codec: CodecName
    share: Annotated[float, Within(positive=True, most=1)] = 0.01
    bits: Annotated[int, Within(2, 16)] = 8
    bucket: Annotated[int, Within(2)] = 512
    rotate: bool = False
    error_feedback: bool = False
    download: Literal[8, 16] | None = None

    def __post_init__(self) -> None:
        check_fields("compression", self)
        require(
            not self.rotate or self.codec in ("quantize", "sign"),
            f'compression.rotate = True; it is for "quantize" and "sign", not for "{self.codec}"',
        )
        require(
            not self.rotate or self.bucket & (self.bucket - 1) == 0,
            f"compression.bucket = {self.bucket}; with rotate = True it must be a power of two",
        )
        require(
            not self.error_feedback or self.codec != "full",
            'compression.error_feedback = True; "full" has no error',
        )

    @property
    def random(self) -> bool:
        """Whether what arrives depends on a random key."""
        return self.rotate or self.codec in ("random-k", "quantize")

    def codec_of(self, size: int, word: int = 32) -> Codec:
        """The codec of messages of a length.

        Args:
            size: Numbers of a message.
            word: Bits of a number in full.
        """
        kept = max(1, math.ceil(self.share * size - SHARE_ROUNDING))
        if self.codec == "full":
            return full(size, word)
        if self.codec == "top-k":
            return top_k(size, word, kept)
        if self.codec == "sign":
            unbiased = self.rotate and not self.error_feedback
            return sign(size, word, self.bucket, rotate=self.rotate, unbiased=unbiased)
        codec = (
            random_k(size, word, kept)
            if self.codec == "random-k"
            else quantize(size, word, self.bits, self.bucket, rotate=self.rotate)
        )
        return contraction(codec) if self.error_feedback else codec

    def message_bits(self, size: int, word: int = 32) -> int:
        """Bits of a message, see `codec_of`."""
        return self.codec_of(size, word).bits

    def update_bits(self, params: Params) -> int:
        """Bits of a message like some parameters, which may be shapes and types."""
        flat = jax.eval_shape(lambda tree: ravel_pytree(tree)[0], params)
        return self.message_bits(flat.size, word_of(flat))

    def download_bits(self, params: Params) -> int:
        """Bits of the model that a client receives, given shapes and types of the parameters."""
        flat = jax.eval_shape(lambda tree: ravel_pytree(tree)[0], params)
        word = word_of(flat)
        if self.download is None:
            return flat.size * word
        return sent_bits(flat.size, self.download, self.bucket, word)

    def coding(self, params: Params) -> Coding:
        """The codec's numbers travel, those of few bits side by side."""
        flat, restore = ravel_pytree(jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), params))
        codec = self.codec_of(flat.size, word_of(flat))
        like = jax.eval_shape(lambda: codec.encode(flat, jax.random.key(0)))

        def message(code: Any, round_key: jax.Array, client: Any) -> Message:
            return restore(codec.decode(code, random_key(client_key(round_key, client))))

        return Coding(
            shapes=partial(code_shapes, like, codec.widths),
            packed=lambda codes: code_bytes(codes, codec.widths),
            codes=lambda arrays: code_of_bytes(arrays, like, codec.widths),
            message=message,
        )

    @property
    def keyed(self) -> bool:
        """Whether rounds need a random key for the codec."""
        return self.random

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """The clients' numbers, from which their keys follow."""
        del federation
        return {"client": clients} if self.random else {}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """The clients' keys, two words each, which only messages read."""
        if not self.random or key is None:
            return {}
        return {"key": jax.vmap(client_key, in_axes=(None, 0))(key, numbers["client"])}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method whose models and messages travel in fewer bits."""
        if self.download is not None:
            method = downloaded(method, self.download, self.bucket, setting.params)
        if setting.sent == "message":
            return method
        return compressed(method, self, coded=setting.sent == "code")


def sends_more(algorithm: Algorithm, params: Params) -> bool:
    """Whether a method's clients send anything but an update of the whole model."""

    def like(tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return structure, [leaf.shape for leaf in leaves]

    return bool(like(message_shape(algorithm, params)) != like(params))


def sends_number(algorithm: Algorithm, params: Params) -> bool:
    """Whether a method's clients send a number beside their update.

    >>> from fedprox.algorithms import fednova, scaffold
    >>> shapes = jax.ShapeDtypeStruct((2,), jnp.float32)
    >>> sends_number(fednova(), shapes), sends_number(scaffold(), shapes)
    (True, False)
    """
    sent = message_shape(algorithm, params)
    return type(sent) is tuple and getattr(sent[-1], "shape", None) == ()


SHARE_ROUNDING = 1e-6
"""By how much a share of a message may be more than a whole number and count as that."""


class Owing(NamedTuple):
    """A client's state of its method, and what has not arrived, shape (d,)."""

    state: ClientState
    error: jax.Array


CODEC_KEY = 0x636F6465
"""Number folded into a round's random key for the codecs of messages."""


def client_key(round_key: jax.Array, client: jax.Array) -> jax.Array:
    """Random key for the message of a client, two words, from that of the round."""
    key = jax.random.fold_in(random_key(round_key), CODEC_KEY)
    return jax.random.key_data(jax.random.fold_in(key, client))


def compressed(algorithm: Algorithm, setting: Compression, *, coded: bool = False) -> Algorithm:
    """The same method, whose messages arrive as their codec leaves them."""

    def arrives(
        message: Message, error: Any, words: jax.Array | None
    ) -> tuple[Message, Any, jax.Array]:
        """The message as it arrives, its code, and the error that remains."""
        flat, restore = ravel_pytree(message)
        flat = flat + error
        codec, key = setting.codec_of(flat.size, word_of(flat)), random_key(words)
        code = codec.encode(flat, key)
        arrived = codec.decode(code, key)
        return restore(arrived), code, flat - arrived

    def send(
        method: Algorithm, state: State, hparams: HParams, context: ClientContext, found: Solution
    ) -> tuple[Message, ClientState, jax.Array]:
        """The message as it arrives, or its code; the client's state; the error that remains."""
        sent, own_state = method.client.message(state, hparams, context, found)
        owed = context.state.error if setting.error_feedback else 0
        arrived, code, error = arrives(sent, owed, context.columns.get("key"))
        if algorithm.client.keeps_sent:
            reached = found._replace(params=add_scaled(found.problem.start, 1, arrived))
            _, own_state = method.client.message(state, hparams, context, reached)
        return code if coded else arrived, own_state, error

    if not setting.error_feedback:

        def message(
            state: State, hparams: HParams, context: ClientContext, solution: Solution
        ) -> tuple[Message, ClientState]:
            return send(algorithm, state, hparams, context, solution)[:2]

        return algorithm._replace(client=algorithm.client._replace(message=message, possible=None))

    def owing(state: ClientState, params: Params) -> Owing:
        return Owing(state, jnp.zeros_like(ravel_pytree(params)[0]))

    inner = lift(algorithm, client=owing)

    def with_feedback(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, Owing]:
        sent, own_state, error = send(inner, state, hparams, context, solution)
        return sent, own_state._replace(error=error)

    return inner._replace(client=inner.client._replace(message=with_feedback, possible=None))


def word_of(numbers: Any) -> int:
    """Bits of a number of an array, in full."""
    return 8 * numbers.dtype.itemsize


class SentModel(NamedTuple):
    """The server's state, and the model as it is sent.

    Attributes:
        state: The method's state.
        whole: q, whole numbers (d,).
        scale: s of each row, (rows, 1).
    """

    state: State
    whole: jax.Array
    scale: jax.Array


def sent_bits(size: int, bits: int, row: int, word: int = 32) -> int:
    """Bits of a model of so many numbers on its way.

    >>> sent_bits(1000, 8, 512)
    8064
    """
    return size * bits + math.ceil(size / row) * word


def rounded(flat: jax.Array, bits: int, row: int) -> tuple[jax.Array, jax.Array]:
    """The whole numbers and scales of some numbers (d,).

    >>> whole, scale = rounded(jnp.array([0.5, -1.0, 0.25]), 8, 2)
    >>> whole.tolist(), arrived(whole, scale, 2).round(2).tolist()
    ([64, -127, 127], [0.5, -1.0, 0.25])
    """
    most, rows = 2 ** (bits - 1) - 1, _rows(flat, row)
    scale = jnp.abs(rows).max(axis=1, keepdims=True) / most
    whole = jnp.round(jnp.where(scale > 0, rows / scale, 0.0))
    return whole.reshape(-1)[: flat.size].astype(f"int{bits}"), scale


def arrived(whole: jax.Array, scale: jax.Array, row: int) -> jax.Array:
    """The numbers (d,) that arrive."""
    return (_rows(whole.astype(scale.dtype), row) * scale).reshape(-1)[: whole.size]


def _rows(flat: jax.Array, row: int) -> jax.Array:
    return jnp.pad(flat, (0, -flat.size % row)).reshape(-1, row)


def downloaded(algorithm: Algorithm, bits: int, row: int, params: Params) -> Algorithm:
    """The same method, whose clients receive the model in 8 or 16 bits a number."""
    at = sent_leaves(algorithm, params)
    restore = ravel_pytree(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), params))[1]

    def received(state: SentModel) -> Params:
        return restore(arrived(state.whole, state.scale, row))

    def seen(state: SentModel, _: ClientContext) -> State:
        """The state as clients have it, with the model that has arrived."""
        leaves, structure = jax.tree.flatten(state.state)
        for place, leaf in zip(at, jax.tree.leaves(received(state)), strict=True):
            leaves[place] = leaf
        return jax.tree.unflatten(structure, leaves)

    def sent(state: State, _: Params) -> SentModel:
        return SentModel(
            state, *rounded(ravel_pytree(algorithm.server.params(state))[0], bits, row)
        )

    inner = lift(algorithm, server=sent, seen=seen)

    def update(state: SentModel, mean: Message, hparams: HParams) -> SentModel:
        return sent(inner.server.update(state, mean, hparams).state, None)

    return inner._replace(
        server=inner.server._replace(
            params=received, evaluated=inner.server.evaluated or inner.server.params, update=update
        )
    )


def sent_leaves(algorithm: Algorithm, params: Params) -> list[int]:
    """Which leaves of a method's state are the parameters that it sends; -1 for none of them."""
    return inputs_returned(algorithm.server.params, algorithm.state_like(params))
