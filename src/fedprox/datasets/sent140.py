"""Sentiment140 (Go et al. 2009): tweets by user, labelled glad or sad."""

import csv
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets.leaf import by_user
from fedprox.datasets.partition import Indices
from fedprox.datasets.sources import (
    SENT140,
    SENT140_CSV,
    Arrays,
    find,
    pack_strings,
    path_candidates,
    prepared,
    unpack_strings,
    without_hidden,
)
from fedprox.datasets.text import split_words, word_vectors
from fedprox.datasets.text import tokenizer as tokenizer_of
from fedprox.errors import InputError, require, require_one_of, require_whole
from fedprox.features import Features, Vectors
from fedprox.federation import Federation, Rows, offsets_of
from fedprox.files.packed import reading, text_lines
from fedprox.streams import Purpose, generator

Tweet = tuple[str, int, str]
"""User, label and text."""


def sent140(
    tokens: Literal["words", "characters"] = "words",
    *,
    vectors: str | None = None,
    vocabulary: int = 10_000,
    keep_capitals: bool = False,
    tokenizer: str | None = None,
    length: int = 25,
    least: int | None = None,
    clients: int = 772,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Sentiment140: tweets by user, labelled glad (1) or sad (0) by their emoticons.

    A client is a user. As in the paper (Table 1: 772 users, 40,783 tweets, mean 53, standard
    deviation 32), users are drawn at random among those with more than 30 tweets. Each user's
    tweets are split 80/20 at random. The authors' drawing has no seed, so the table is met in
    distribution. A tweet is its first 25 tokens; a shorter one is padded with unknown tokens, id 0
    or the zero vector.

    The data are the 1,600,000 tweets of the original training file, or files in LEAF's layout. The
    latter may hold only some of each user's tweets. LEAF's test part with `-k 30` has a tenth,
    16,025 tweets of 2,875 users; there `least=5` leaves 1,473 users with 10,625 tweets.

    Args:
        tokens: "words" splits tweets by `words.split_words`, as the authors' code; "characters"
            splits them into characters, as the paper says.
        vectors: Word vectors that are not trained: "glove.6B.300d" (the paper's) or the path of a
            file, see `words.word_vectors`. Features are then `fedprox.Vectors`. None for word ids,
            for a model that trains an embedding.
        vocabulary: Number of ids without `vectors`: 0 for unknown tokens, the others for the most
            frequent tokens of the training tweets.
        keep_capitals: Whether to keep capital letters. GloVe has lower-case words only, so words
            with a capital are then unknown, as in the authors' code.
        tokenizer: A tokenizer's file or its folder, see `fedprox.datasets.tokenizer`, for a model
            with its weights. Features are then its ids, and no option above counts.
        length: Tokens of a tweet; longer tweets are cut.
        least: Fewest tweets of a user. None for 31 with the original file, and for 5 with files in
            LEAF's layout, whose users were selected before.
        clients: Number of users to draw.
        seed: Seed of the drawing and of the split.
        data_dir: Folder with `sent140/trainingandtestdata.zip`, the training file from it, or
            `sent140/*.json` or `*.json.gz` in LEAF's layout, in this order of preference; None for
            `FEDPROX_DATA`, or else a download to the cache. The first reading takes 310 MB of
            memory and leaves 150 MB in the cache.

    Returns:
        A federation with 2 classes whose features are int32 ids of shape (length,), or float32
        vectors of shape (length, d).

    Raises:
        InputError: If a file is missing or damaged, or an argument is out of range.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.sent140(vectors="glove.6B.300d")  # doctest: +SKIP

    References:
        Go et al., `Twitter Sentiment Classification using Distant Supervision
        <https://cs.stanford.edu/people/alecmgo/papers/TwitterDistantSupervision09.pdf>`_, 2009.
        Federation: Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix C.1. Vectors:
        Pennington et al., `GloVe: Global Vectors for Word Representation
        <https://aclanthology.org/D14-1162/>`_, EMNLP 2014.
    """
    require_one_of("data.tokens", tokens, ("words", "characters"))
    require_whole("data.vocabulary", vocabulary, least=2)
    require_whole("data.length", length)
    if tokenizer:
        path = next(filter(Path.exists, path_candidates(tokenizer, data_dir)), Path(tokenizer))
        encode = tokenizer_of(path, length=length)
    require_whole("data.least", least, optional=True)
    require_whole("data.clients", clients)
    paths, in_leafs_layout = _files(data_dir)
    tweets = _tweets(paths, read_leaf if in_leafs_layout else read_csv)
    names, parts = _users(tweets, least or (5 if in_leafs_layout else 31), clients, seed)
    train, test = (
        [np.sort(part) for part in half]
        for half in partitions.split(parts, train_share=0.8, seed=seed)
    )

    def split(tweet: str) -> list[str]:
        tweet = tweet if keep_capitals else tweet.lower()
        return (split_words(tweet) if tokens == "words" else list(tweet))[:length]

    texts = [unpack_strings(tweets, "text", np.concatenate(half)) for half in (train, test)]
    features: Callable[[NDArray[np.int32]], Features] = np.asarray
    if tokenizer:
        found = [encode(half) for half in texts]
    else:
        read = [list(map(split, half)) for half in texts]
        if vectors:
            words = sorted(set(chain.from_iterable(chain(*read))))
            table, ids = word_vectors(vectors, words, data_dir)
            known, features = (
                dict(zip(words, ids.tolist(), strict=True)),
                partial(Vectors, table=table),
            )
        else:  # of words with equal counts, the first to appear
            frequent = Counter(chain.from_iterable(read[0])).most_common(vocabulary - 1)
            known = {word: k for k, (word, _) in enumerate(frequent, 1)}
        found = [_padded(half, known, length) for half in read]

    def rows(parts: list[Indices], ids: NDArray[np.int32]) -> Rows:
        y = tweets["labels"][np.concatenate(parts)].astype(np.int32)
        return Rows(features(ids), y, offsets_of(map(len, parts)))

    return Federation(rows(train, found[0]), rows(test, found[1]), 2, names)


def _padded(read: list[list[str]], known: dict[str, int], length: int) -> NDArray[np.int32]:
    """The ids of the words of some tweets, (tweets, length)."""
    ids = np.zeros((len(read), length), np.int32)
    for row, words in zip(ids, read, strict=True):
        row[: len(words)] = [known.get(word, 0) for word in words]
    return ids


def _users(
    tweets: Arrays, least: int, clients: int, seed: int
) -> tuple[tuple[str, ...], list[Indices]]:
    """The names of the drawn users, sorted, and the tweets of each."""
    counts = np.bincount(tweets["user"])
    enough = np.flatnonzero(counts >= least)
    require(
        clients <= len(enough),
        f"data.clients = {clients}; {len(enough)} users have at least {least} tweets (data.least)",
    )
    names = unpack_strings(tweets, "names", enough)
    by_name = sorted(range(len(enough)), key=lambda k: names[k])
    drawn = np.sort(generator(seed, Purpose.PARTITION).permutation(len(enough))[:clients])
    users = [by_name[k] for k in drawn]
    order = np.argsort(tweets["user"], kind="stable")
    ends = np.cumsum(counts)
    parts = [order[ends[k] - counts[k] : ends[k]] for k in enough[users]]
    return tuple(names[k] for k in users), parts


def _tweets(paths: list[Path], read: Callable[[Path], Iterator[Tweet]]) -> Arrays:
    """All tweets: each one's user, label (1 glad, 0 sad) and text, and the names of the users."""

    def build() -> Arrays:
        numbers: dict[str, int] = {}
        user, labels = array("i"), array("b")

        def texts() -> Iterator[str]:
            for name, label, text in chain.from_iterable(map(read, paths)):
                user.append(numbers.setdefault(name, len(numbers)))
                labels.append(label)
                yield text

        text = pack_strings("text", texts())
        require(len(user), f"{paths[0]}: no tweets")
        tweets: Arrays = {
            "user": np.frombuffer(user, np.int32),
            "labels": np.frombuffer(labels, np.int8),
        }
        return text | pack_strings("names", numbers) | tweets

    return prepared("sent140", paths, {}, build, version=2)


def _files(data_dir: str | Path | None) -> tuple[list[Path], bool]:
    """The files of tweets, and whether they are in LEAF's layout."""
    path = find(SENT140, data_dir)
    if ".json" not in path.suffixes:
        return [path], False
    paths = [
        each for end in ("*.json.gz", "*.json") for each in without_hidden(path.parent.glob(end))
    ]
    # not both of one name
    files = {each.name.removesuffix(".gz"): each for each in paths}
    return [files[name] for name in sorted(files)], True


def read_csv(path: Path) -> Iterator[Tweet]:
    """Yield the tweets of Sentiment140's own file, or of the archive with it."""
    with reading(path, SENT140_CSV) as file:
        table = csv.reader(line.decode("latin-1") for line in text_lines(file, path))
        try:
            for row in table:
                require(
                    len(row) == 6 and row[0] in ("0", "4"),
                    f"{path}: line {table.line_num}: polarity (0 or 4), id, date, query, user and "
                    "text are needed",
                )
                yield row[4], int(row[0] == "4"), row[5]
        except csv.Error as error:
            raise InputError(f"{path}: line {table.line_num}: {error}") from None


def read_leaf(path: Path) -> Iterator[Tweet]:
    """Yield the tweets of a JSON file in LEAF's layout: rows of id, date, query, user, text, part.

    Labels are 0 and 1, or 0 and 4.
    """
    for name, tweets in by_user(path, _labelled).items():
        for label, text in tweets:
            yield name, label, text


def _labelled(data: dict[str, Any]) -> tuple[tuple[int, str], ...]:
    """The labels and texts of a user."""
    x, y = data["x"], data["y"]
    whole = isinstance(x, list) and isinstance(y, list) and len(x) == len(y)
    require(whole, "lists 'x' and 'y' of one length are needed")
    for row, label in zip(x, y, strict=True):
        require(
            isinstance(row, list) and len(row) >= 5 and isinstance(row[4], str),
            "a row of 'x' is not id, date, query, user, text",
        )
        known = label in (0, 1, 4, "0", "1", "4")  # a boolean is 0 or 1
        require(known, f"label {label!r}; it must be 0, 1 or 4")
    return tuple((int(label not in (0, "0")), row[4]) for row, label in zip(x, y, strict=True))
