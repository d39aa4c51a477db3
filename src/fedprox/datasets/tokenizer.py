"""Token ids of texts, by a tokenizer's own file."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, installing, require, require_whole
from fedprox.files.packed import refusing

BATCH = 10_000
"""Texts that are encoded at a time."""


def tokenizer(path: str | Path, *, length: int) -> Callable[[Iterable[str]], NDArray[np.int32]]:
    """Read a tokenizer's file: a function of texts that returns their token ids.

    Args:
        path: A file `tokenizer.json` as Hugging Face's repositories have it, or its folder.
        length: Tokens of a row, special tokens included. Longer texts are cut, shorter ones padded
            with 0.

    Returns:
        (texts) -> int32 (texts, length), features for `fedprox.Federation.from_arrays` and
        :func:`fedprox.models.bert`.

    Raises:
        InputError: If the library `tokenizers` is not installed, the file is missing or damaged, or
            `length` is out of range. Later, if something is not a text, or the tokenizer has a
            token 0 that is not padding.

    Example:
        >>> import fedprox as fp
        >>> tokens = fp.datasets.tokenizer("all-MiniLM-L6-v2", length=8)  # doctest: +SKIP
        >>> tokens(["Hello world!"])  # doctest: +SKIP
        array([[ 101, 7592, 2088,  999,  102,    0,    0,    0]], dtype=int32)
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError(
            f"tokenizer: the package tokenizers is not installed: {installing('tokenizers')}"
        ) from None
    path = Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    require(path.is_file(), f"{path}: no such file")
    require_whole("tokenizer.length", length)
    with refusing(f"{path}: not a tokenizer's file"):
        encoder = Tokenizer.from_file(str(path))
        encoder.no_padding()
        encoder.enable_truncation(length)

    def tokens(texts: Iterable[str]) -> NDArray[np.int32]:
        require(not isinstance(texts, str), "tokenizer: one text; give a list of texts")
        texts = list(texts)
        for text in texts:
            require(isinstance(text, str), f"tokenizer: {type(text).__name__} where a text is due")
        ids, count = np.zeros((len(texts), length), np.int32), 0
        for begin in range(0, len(texts), BATCH):
            encodings = encoder.encode_batch_fast(texts[begin : begin + BATCH])
            for row, encoding in enumerate(encodings, begin):
                ids[row, : len(encoding.ids)] = encoding.ids
                count += len(encoding.ids)
        require(
            np.count_nonzero(ids) == count,
            f"{path}: token 0 is {encoder.id_to_token(0)!r}; it must be padding",
        )
        return ids

    return tokens
