"""Sentiment140 (Go et al. 2009): tweets by user, labelled glad or sad."""

import csv
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets.cache import Arrays, packed, prepared, unpacked
from fedprox.datasets.sources import SENT140, data_folder, find, present
from fedprox.datasets.users import by_user
from fedprox.datasets.words import most_frequent, split_words, word_vectors
from fedprox.errors import InputError, require, require_one_of, require_whole
from fedprox.features import Vectors
from fedprox.federation import Federation, Rows, offsets_of
from fedprox.files.packed import LINE, reading, text_lines
from fedprox.streams import Purpose, generator

LENGTH = 25
"""Tokens of a tweet that a model reads; a longer tweet is cut."""

CSV = "training.1600000.processed.noemoticon.csv"

Tweet = tuple[str, int, str]
"""User, label and text."""


class Source(NamedTuple):
    """The files with the tweets.

    Attributes:
        paths: The files.
        read: The function that reads one.
        least: The default of the fewest tweets of a user.
    """

    paths: list[Path]
    read: Callable[[Path], Iterator[Tweet]]
    least: int


def sent140(
    tokens: Literal["words", "characters"] = "words",
    *,
    vectors: str | None = None,
    vocabulary: int = 10_000,
    keep_capitals: bool = False,
    least: int | None = None,
    clients: int = 772,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Sentiment140: tweets by user, labelled glad (1) or sad (0) by their emoticons.

    A client is a user. As in the paper (Table 1: 772 users, 40,783 tweets, mean 53, standard
    deviation 32), users are drawn at random among those with more than 30 tweets, and each user's
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
        least: Fewest tweets of a user. None for 31 with the original file, and for 5 with files in
            LEAF's layout, whose users were selected before.
        clients: Number of users to draw.
        seed: Seed of the drawing and of the split.
        data_dir: Folder with `sent140/trainingandtestdata.zip`, the training file from it, or
            `sent140/*.json` or `*.json.gz` in LEAF's layout, in this order of preference; None for
            `FEDPROX_DATA`, or else a download to the cache. The first reading takes 310 MB of
            memory and leaves 150 MB in the cache.

    Returns:
        A federation with 2 classes whose features are int32 ids of shape (25,), or float32 vectors
        of shape (25, d).

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
    if least is not None:
        require_whole("data.least", least)
    require_whole("data.clients", clients)
    source = _source(data_dir)
    tweets = _tweets(source)
    names, parts = _users(tweets, least or source.least, clients, seed)
    train, test = (
        [np.sort(part) for part in half]
        for half in partitions.split(parts, train_share=0.8, seed=seed)
    )

    def split(tweet: str) -> list[str]:
        tweet = tweet if keep_capitals else tweet.lower()
        return (split_words(tweet) if tokens == "words" else list(tweet))[:LENGTH]

    read = [
        [split(tweet) for tweet in unpacked(tweets.text, tweets.offsets, np.concatenate(half))]
        for half in (train, test)
    ]
    table, known = _ids(read[0], read[1], vectors, vocabulary, data_dir)

    def rows(parts: list[NDArray[np.int64]], read: list[list[str]]) -> Rows:
        ids = np.zeros((len(read), LENGTH), np.int32)
        for row, words in zip(ids, read, strict=True):
            row[: len(words)] = [known.get(word, 0) for word in words]
        x = ids if table is None else Vectors(ids, table)
        y = tweets.labels[np.concatenate(parts)].astype(np.int32)
        return Rows(x, y, offsets_of(map(len, parts)))

    return Federation(rows(train, read[0]), rows(test, read[1]), 2, names)


class Tweets(NamedTuple):
    """All tweets.

    Attributes:
        user: Each tweet's user, int32 (tweets,).
        labels: 1 glad, 0 sad; int8 (tweets,).
        text: All texts; see `cache.packed`.
        offsets: Their offsets.
        names: The names of all users, packed likewise.
        names_offsets: Their offsets.
    """

    user: NDArray[np.int32]
    labels: NDArray[np.int8]
    text: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    names: NDArray[np.uint8]
    names_offsets: NDArray[np.int64]


def _users(
    tweets: Tweets, least: int, clients: int, seed: int
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """The names of the drawn users, sorted, and the tweets of each."""
    counts = np.bincount(tweets.user)
    enough = np.flatnonzero(counts >= least)
    require(
        clients <= len(enough),
        f"data.clients = {clients}; {len(enough)} users have at least {least} tweets (data.least)",
    )
    names = unpacked(tweets.names, tweets.names_offsets, enough)
    by_name = sorted(range(len(enough)), key=lambda k: names[k])
    drawn = np.sort(generator(seed, Purpose.PARTITION).permutation(len(enough))[:clients])
    users = [by_name[k] for k in drawn]
    order = np.argsort(tweets.user, kind="stable")
    ends = np.cumsum(counts)
    parts = [order[ends[k] - counts[k] : ends[k]] for k in enough[users]]
    return tuple(names[k] for k in users), parts


def _ids(
    train: list[list[str]],
    test: list[list[str]],
    vectors: str | None,
    vocabulary: int,
    data_dir: str | Path | None,
) -> tuple[NDArray[np.float32] | None, dict[str, int]]:
    """The table of vectors, or None, and the id of each known token."""
    if vectors is None:
        words = most_frequent(chain.from_iterable(train), vocabulary - 1)
        return None, {word: k for k, word in enumerate(words, 1)}
    words = sorted(set(chain.from_iterable(chain(train, test))))
    table, ids = word_vectors(vectors, words, data_dir)
    return table, dict(zip(words, ids.tolist(), strict=True))


def _tweets(source: Source) -> Tweets:
    def build() -> Arrays:
        numbers: dict[str, int] = {}
        user, labels = array("i"), array("b")

        def texts() -> Iterator[str]:
            for path in source.paths:
                for name, label, text in source.read(path):
                    user.append(numbers.setdefault(name, len(numbers)))
                    labels.append(label)
                    yield text

        text, offsets = packed(texts())
        require(len(user), f"{source.paths[0]}: no tweets")
        names, ends = packed(numbers)
        return {
            "user": np.frombuffer(user, np.int32),
            "labels": np.frombuffer(labels, np.int8),
            "text": text,
            "offsets": offsets,
            "names": names,
            "names_offsets": ends,
        }

    arrays = prepared("sent140", source.paths, {}, build)
    return Tweets(**arrays)


def _source(data_dir: str | Path | None) -> Source:
    file = present(SENT140.name, "sent140", data_dir) or present(CSV, "sent140", data_dir)
    folder = data_folder(data_dir)
    if not file and folder is not None:
        home = folder / "sent140"
        json_files = sorted([*home.glob("*.json"), *home.glob("*.json.gz")])
        for path in json_files:
            require(
                path.with_suffix(".json.gz") not in json_files,
                f"{path}: {path.name}.gz is there too, and tweets must not be read twice; "
                "keep one of them",
            )
        if json_files:
            return Source(json_files, read_leaf, 5)
    return Source([file or find(SENT140, "sent140", data_dir)], read_csv, 31)


def read_csv(path: Path) -> Iterator[Tweet]:
    """Yield the tweets of Sentiment140's own file, or of the archive with it.

    Raises:
        InputError: If the file cannot be read, or a row is not polarity (0 or 4), id, date, query,
            user and text. The message names the line.
    """
    with reading(path, CSV) as file:
        held = 0

        def rows() -> Iterator[str]:
            nonlocal held
            for line in text_lines(file, path):
                held += len(line)
                if held > LINE:
                    raise InputError(f"{path}: line {table.line_num}: a row that does not end")
                yield line.decode("latin-1")

        table = csv.reader(rows())
        try:
            for row in table:
                held = 0
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

    Raises:
        InputError: If the file is not JSON or not in this layout. The message names the user.
    """

    def convert(name: str, data: Any) -> list[Tweet]:
        where = f"{path}: user {name!r}"
        x, y = (data.get("x"), data.get("y")) if isinstance(data, dict) else (None, None)
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
            raise InputError(f"{where}: lists 'x' and 'y' of one length are needed")
        return [_tweet(where, name, *pair) for pair in zip(x, y, strict=True)]

    for tweets in by_user(path, convert)[1].values():
        yield from tweets


def _tweet(where: str, name: str, row: Any, label: Any) -> Tweet:
    require(
        isinstance(row, list) and len(row) >= 5 and isinstance(row[4], str),
        f"{where}: a row of 'x' is not id, date, query, user, text",
    )
    known = label in (0, 1, 4, "0", "1", "4") and not isinstance(label, bool)
    require(known, f"{where}: label {label!r}; it must be 0, 1 or 4")
    return name, int(label not in (0, "0")), row[4]
