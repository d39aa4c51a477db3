"""Words of a text, and their vectors from GloVe or any other file of word vectors."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.cache import Arrays, prepared
from fedprox.datasets.sources import GLOVE, find, places, present
from fedprox.errors import InputError, require
from fedprox.files.packed import reading, text_lines

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
    `glove/glove.6B.zip`; or the path of a UTF-8 text file, packed (.gz) or not, with a word and its
    numbers in each line, separated by spaces. A first line of two whole numbers, as word2vec and
    fastText write it, is skipped. The file is read as a stream, and only the requested vectors are
    stored, in the cache.

    Returns:
        A table float32 (known words + 1, d), whose row 0 is zero, for unknown words; and the row of
        each word, int32 (words,).

    Raises:
        InputError: If the file is missing or damaged. The message names the line.
    """
    path, member = _file(name, data_dir)
    asked = hashlib.sha256(json.dumps(words).encode()).hexdigest()

    def build() -> Arrays:
        return read_vectors(path, member, words)

    arrays = prepared("vectors", [path], {"member": member, "words": asked}, build)
    return arrays["table"], arrays["rows"]


def _file(name: str, data_dir: str | Path | None) -> tuple[Path, str | None]:
    """The file of vectors, and the name of its member if it is an archive."""
    if name in GLOVES:
        member = f"{name}.txt"
        unpacked = present(member, "glove", data_dir)
        return (unpacked, None) if unpacked else (find(GLOVE, data_dir), member)
    for place in places(name, data_dir):
        if place.is_file():
            return place, None
    raise InputError(
        f"data.vectors = {name!r}; it must be a file of word vectors or one of {', '.join(GLOVES)}"
    )


def read_vectors(path: Path, member: str | None, words: Sequence[str]) -> Arrays:
    """`word_vectors` of a file without the cache: "table" and "rows"."""
    places = {word.encode("utf-8", "surrogatepass"): k for k, word in enumerate(words)}
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
            place = places.get(word)
            if place is None or rows[place]:
                continue
            fields = numbers.split()
            if len(fields) > width:
                continue  # a word with spaces whose first part is one of `words`
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
