"""Posts by author, for predicting the next word."""

from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.partition import Indices
from fedprox.datasets.sources import Arrays, locate, pack_strings, prepared, unpack_strings
from fedprox.datasets.text import spans, split_words, unroll
from fedprox.errors import InputError, require, require_number, require_whole
from fedprox.federation import Federation, Rows, offsets_of
from fedprox.files.packed import reading, text_lines
from fedprox.streams import Purpose, generator

UNKNOWN, POST_BEGIN = 0, 1
"""The first two ids; the vocabulary's words follow."""

Words = NDArray[np.int32]

UNROLL = 10
WORDS_PER_AUTHOR = 5_000
TEST_POSTS = 100_000


def posts(
    path: str,
    *,
    vocabulary: int = 10_000,
    test_share: float = 0.1,
    clients: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    r"""Posts of a file by author, for predicting the next word.

    This is FedAvg's large-scale experiment on any posts; the paper's 10 million posts of a social
    network are not public. It has a vocabulary of 10,000 words, rows of 10 words, at most 5,000
    words of an author, and at most 100,000 test posts, of other authors. Test posts are dealt to
    the clients evenly and at random, because a federation's test rows belong to clients. So
    accuracy over all clients is accuracy over the test posts, and a client's test rows say nothing
    about it.

    Words are in lower case and split by `words.split_words`. The vocabulary has the most frequent
    words of the training posts. Id 0 is any other word, 1 the begin of a post, and the words
    follow; ids are also the classes. The labels of a row are the words that follow each of its
    words, or -1 after the end of a post and before a word outside the vocabulary. Rows without
    labels are left out, and then authors without rows.

    Args:
        path: A UTF-8 text file, packed (.gz) or not, with an author, a tab and a post in each line;
            relative to the current folder or the data folder. The first reading needs memory for
            four bytes a word, and for each author and distinct word once.
        vocabulary: Number of ids, at least 3.
        test_share: Share of the authors whose posts are for testing, from 0 to 1.
        clients: Number of training authors, drawn at random; None for all.
        seed: Seed of the drawing.
        data_dir: The data folder; None for `FEDPROX_DATA`.

    Returns:
        A federation with `vocabulary` classes whose features and labels are int32 of shape (10,).

    Raises:
        InputError: If the file is missing or damaged, or an argument is out of range. The message
            names the line.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import fedprox as fp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "posts.txt")
        ...     _ = file.write_text("ann\thow are you\nbob\twho are you\n")
        ...     federation = fp.datasets.posts(str(file), vocabulary=6, test_share=0)
        >>> federation.names, federation.train.y[0, :5].tolist()
        (('ann', 'bob'), [4, 2, 3, -1, -1])

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3 (the
        large-scale LSTM experiments).
    """
    require_whole("data.vocabulary", vocabulary, least=3)
    require_number("data.test_share", test_share, most=1)
    require_whole("data.clients", clients, optional=True)
    file = locate(path, data_dir, Path.is_file, "file")
    content = _posts(file)
    authors = unpack_strings(content, "authors")
    stream = generator(seed, Purpose.PARTITION)
    order = stream.permutation(len(authors))
    count = round(test_share * len(order))
    testing, training = order[:count], order[count:]
    most = len(training)
    require(most, f"data.test_share = {test_share}; of {count} authors none is left to train on")
    require((clients or 0) <= most, f"data.clients = {clients}; there are {most}")
    training = training[:clients]
    train = _of_authors(content, training)
    test = _of_authors(content, testing)
    test = test[np.sort(stream.permutation(len(test))[:TEST_POSTS])]

    words = content["ids"]
    ids = _ids(words, train, vocabulary)
    x, y, owners = _rows(words, ids, train)
    test_x, test_y, _ = _rows(words, ids, test)
    names = np.unique(owners)
    require(len(names), f"{file}: no author has a post with a word of the vocabulary")
    sizes = np.bincount(np.searchsorted(names, owners), minlength=len(names))
    deal = stream.permutation(len(test_x))
    bounds = np.linspace(0, len(deal), len(names) + 1).astype(np.int64)
    return Federation(
        Rows(x, y, offsets_of(sizes)),
        Rows(test_x[deal], test_y[deal], bounds),
        vocabulary,
        tuple(authors[k] for k in names),
    )


def _posts(path: Path) -> Arrays:
    """All posts of a file: "authors", their names in order of appearance, as `pack_strings` has it.

    Each post's "author", int32 (posts,); "ids", the words of all posts as numbers, int32 (words,),
    in order of first appearance. Also "offsets", the first word of each post, int64 (posts + 1,).
    """

    def build() -> Arrays:
        authors: dict[str, int] = {}
        words: dict[str, int] = {}
        author, ids, offsets = array("i"), array("i"), array("q", [0])
        for name, post in read_posts(path):
            author.append(authors.setdefault(name, len(authors)))
            ids.extend(words.setdefault(word, len(words)) for word in split_words(post.lower()))
            offsets.append(len(ids))
        require(len(ids), f"{path}: no posts")
        return pack_strings("authors", authors) | {
            "author": np.frombuffer(author, np.int32),
            "ids": np.frombuffer(ids, np.int32),
            "offsets": np.frombuffer(offsets, np.int64),
        }

    return prepared("posts", [path], {}, build)


def _of_authors(posts: Arrays, authors: Indices) -> Indices:
    """The posts of some authors, author by author, up to each author's limit of words.

    Each is a stretch of the words: its begin, its length and its author, (posts, 3).
    """
    chosen = np.flatnonzero(np.isin(posts["author"], authors))
    chosen = chosen[np.argsort(posts["author"][chosen], kind="stable")]
    author = posts["author"][chosen].astype(np.int64)
    begins = posts["offsets"][chosen]
    lengths = posts["offsets"][chosen + 1] - begins
    before = np.cumsum(lengths) - lengths
    first = np.searchsorted(author, author)  # the author's first post
    lengths = np.clip(WORDS_PER_AUTHOR - (before - before[first]), 0, lengths)
    return np.stack([begins, lengths, author], axis=1)[lengths > 0]


def _ids(words: Words, train: Indices, vocabulary: int) -> Words:
    """The id of each word, by its frequency in the training posts."""
    distinct = int(words.max()) + 1
    counts = np.bincount(words[spans(train[:, 0], train[:, 1])], minlength=distinct)
    frequent = np.argsort(-counts, kind="stable")[: vocabulary - 2]
    frequent = frequent[counts[frequent] > 0]
    ids = np.full(distinct, UNKNOWN, np.int32)
    ids[frequent] = np.arange(2, 2 + len(frequent))
    return ids


def _rows(words: Words, ids: Words, chosen: Indices) -> tuple[Words, Words, Indices]:
    """The words to read, the words to predict, and the author of each row."""
    begins, lengths, authors = chosen.T
    bounds = offsets_of(lengths + 1)
    text = np.full(bounds[-1], POST_BEGIN, np.int32)
    text[spans(bounds[:-1] + 1, lengths)] = ids[words[spans(begins, lengths)]]
    x, y, rows = unroll(text, bounds[:-1], bounds[1:], UNROLL)
    y[y == UNKNOWN] = -1
    labelled = (y >= 0).any(axis=1)
    return x[labelled], y[labelled], np.repeat(authors, rows)[labelled]


def read_posts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the author and the post of each line; empty lines are skipped."""
    with reading(path) as file:
        for number, line in enumerate(text_lines(file, path), 1):
            where = f"{path}: line {number}"
            text = line.rstrip(b"\r\n").removeprefix(BOM_UTF8 if number == 1 else b"")
            if text:
                author, tab, post = text.partition(b"\t")
                require(tab and author, f"{where}: an author, a tab and a post are needed")
                try:
                    name = author.decode()  # two authors must not become one
                except UnicodeDecodeError:
                    raise InputError(f"{where}: the author {author!r} is not UTF-8") from None
                yield name, post.decode("utf-8", "replace")
