"""Texts as numbers: words and their vectors, tokens, and sequences cut into rows."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.partition import Indices
from fedprox.datasets.sources import GLOVE, Arrays, find, path_candidates, prepared
from fedprox.errors import InputError, installing, require, require_whole
from fedprox.files.packed import reading, refusing, text_lines

GLOVES = tuple(f"glove.6B.{d}d" for d in (50, 100, 200, 300))
"""The members of GloVe's archive (Pennington et al. 2014)."""

_WORD = re.compile(r"[\w']+|[.,!?;]")


def split_words(text: str) -> list[str]:
    """Runs of letters, digits, underscores and apostrophes, and single marks of punctuation.

    LEAF's rule (Caldas et al. 2018), which Li et al. 2020 use for Sentiment140.

    >>> split_words("@you I'm sorry... :)")
    ['you', "I'm", 'sorry', '.', '.', '.']
    """
    return _WORD.findall(text)


def word_vectors(
    name: str, words: Sequence[str], data_dir: str | Path | None
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The vectors of some words, all different, from a file of word vectors.

    The file is one of `GLOVES`, in the data folder as `glove/glove.6B.300d.txt` or
    `glove/glove.6B.zip`. Or it is the path of a UTF-8 text file, packed (.gz) or not, with a word
    and its numbers in each line, separated by spaces. A first line of two whole numbers, as
    word2vec and fastText write it, is skipped. The file is read as a stream, and only the requested
    vectors are stored, in the cache.

    The table, float32 (known words + 1, d), has a zero row 0 for unknown words; the other result is
    the row of each word, int32 (words,).
    """
    path, member = _file(name, data_dir), f"{name}.txt" if name in GLOVES else None
    asked = hashlib.sha256(json.dumps(words).encode()).hexdigest()

    def build() -> Arrays:
        return read_vectors(path, member, words)

    arrays = prepared("vectors", [path], {"member": member, "words": asked}, build)
    return arrays["table"], arrays["rows"]


def _file(name: str, data_dir: str | Path | None) -> Path:
    """The file of vectors, or GloVe's archive with it."""
    if name in GLOVES:
        return find(GLOVE._replace(instead=(f"{name}.txt",)), data_dir)
    for path in filter(Path.is_file, path_candidates(name, data_dir)):
        return path
    raise InputError(
        f"data.vectors = {name!r}; it must be a file of word vectors or one of {', '.join(GLOVES)}"
    )


def read_vectors(path: Path, member: str | None, words: Sequence[str]) -> Arrays:
    """`word_vectors` of a file, or of an archive's member, without the cache: "table", "rows"."""
    numbers_of = {word.encode("utf-8", "surrogatepass"): k for k, word in enumerate(words)}
    rows = np.zeros(len(words), np.int32)
    vectors: list[NDArray[np.float32]] = []
    width = 0
    with reading(path, member) as file:
        for number, line in enumerate(text_lines(file, path), 1):
            word, _, numbers = line.rstrip().partition(b" ")
            if not width:
                fields = numbers.split()
                if number == 1 and len(fields) == 1 and word.isdigit() and fields[0].isdigit():
                    continue
                width = len(fields)
                require(width, f"{path}: line {number}: a word and its numbers are needed")
                _numbers(fields, width, path, number)
            place, fields = numbers_of.get(word, -1), numbers.split()
            # more fields: a word with spaces whose first part is one of `words`
            if place >= 0 and not rows[place] and len(fields) <= width:
                vectors.append(_numbers(fields, width, path, number))
                rows[place] = len(vectors)
    require(width, f"{path}: no word vectors; a word and its numbers a line are needed")
    table = np.zeros((len(vectors) + 1, width), np.float32)
    for row, vector in enumerate(vectors, 1):
        table[row] = vector
    return {"table": table, "rows": rows}


def _numbers(fields: list[bytes], width: int, path: Path, number: int) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            values = np.array([float(field) for field in fields], np.float32)
    except ValueError:
        values = np.zeros(0, np.float32)
    require(
        len(values) == width and np.isfinite(values).all(),
        f"{path}: line {number}: {width} finite numbers are needed after the word",
    )
    return values


TEXTS_AT_A_TIME = 10_000
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
        for begin in range(0, len(texts), TEXTS_AT_A_TIME):
            encodings = encoder.encode_batch_fast(texts[begin : begin + TEXTS_AT_A_TIME])
            for row, encoding in enumerate(encodings, begin):
                ids[row, : len(encoding.ids)] = encoding.ids
                count += len(encoding.ids)
        require(
            np.count_nonzero(ids) == count,
            f"{path}: token 0 is {encoder.id_to_token(0)!r}; it must be padding",
        )
        return ids

    return tokens


Symbols = NDArray[np.int32]


def spans(begins: Indices, lengths: Indices) -> Indices:
    """The indices of some stretches of a text, one stretch after another.

    >>> spans(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(begins - before, lengths) + np.arange(lengths.sum())


def unroll(
    text: NDArray[np.integer], begins: Indices, ends: Indices, width: int
) -> tuple[Symbols, Symbols, Indices]:
    """Cut sequences into rows whose labels are the next symbols.

    A sequence of n + 1 symbols, at least two, has n labels and takes ceil(n / width) rows, which do
    not overlap. A model reads each row from its initial state.

    The symbols to read are 0 after the end, those to predict -1, both int32 (rows, width); the last
    result is the number of rows of each sequence.

    >>> x, y, rows = unroll(np.arange(10, 20), np.array([0, 5]), np.array([4, 7]), width=2)
    >>> x.tolist(), y.tolist(), rows.tolist()
    ([[10, 11], [12, 0], [15, 0]], [[11, 12], [13, -1], [16, -1]], [2, 1])
    """
    labels = ends - begins - 1
    rows = -(-labels // width)
    first = np.repeat(np.cumsum(rows) - rows, rows)
    done = width * (np.arange(len(first)) - first)
    starts, left = np.repeat(begins, rows) + done, np.repeat(labels, rows) - done
    place = np.arange(width)
    x = np.zeros((len(starts), width), np.int32)
    y = np.full((len(starts), width), -1, np.int32)
    inside = place < left[:, None]
    at = (starts[:, None] + place)[inside]
    x[inside], y[inside] = text[at], text[at + 1]
    return x, y, rows
