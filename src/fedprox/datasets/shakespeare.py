"""Shakespeare's plays by speaking role, for predicting the next character."""

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from fedprox.datasets import partition as partitions
from fedprox.datasets.labelled import Options, options_of
from fedprox.datasets.partition import Indices
from fedprox.datasets.sources import (
    SHAKESPEARE,
    Arrays,
    find,
    pack_strings,
    prepared,
    unpack_strings,
)
from fedprox.datasets.text import unroll
from fedprox.errors import require, require_one_of, require_whole
from fedprox.features import Windows
from fedprox.federation import Federation, Rows, offsets_of
from fedprox.files.packed import reading, text_lines
from fedprox.streams import Purpose, generator

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 symbols, by class. Any other character is -1 in LEAF, which as a label is the last
class; here it is the last class everywhere. The plays have no other character, and no "\\n"."""

READ = 80
"""Characters that a model reads."""

LINE_BEGIN, LINE_END = 256, 257
"""Symbols of a line's begin and end, beside its bytes."""

SHAKESPEARE_PARTITIONS: Options = {
    "roles": {"clients": 143, "split": "random"},
    "roles-2000": {"clients": 100},
    "iid-2000": {"clients": 100},
    "lines": {"clients": None},
    "lines-iid": {"clients": None},
}
"""The options of each partition, and the papers' values; None for as many as there are roles."""


def shakespeare(
    partition: Literal["roles", "roles-2000", "iid-2000", "lines", "lines-iid"] = "roles",
    *,
    clients: int | None = None,
    split: Literal["random", "time"] | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Shakespeare's plays by speaking role, for predicting the next character.

    A client is a role of a play. Roles and lines follow LEAF's rules; see `read_roles`. The text
    has 1,130 roles of more than 80 characters with 4,226,206 windows; LEAF counts 1,129 with
    4,226,158.

    "roles", "roles-2000" and "iid-2000" predict the character after 80 characters, one of LEAF's 80
    symbols. A role's lines are joined by spaces. Rows are overlapping `fedprox.Windows` of one
    text.

    * "roles" (Li et al.): 143 roles drawn at random; their Table 1 has 143 roles with 517,106
      windows, mean 3,616 and standard deviation 6,808. The authors' drawing has no seed, so the
      table is met in distribution. Each role's windows are split 80/20 at random, so that most test
      windows overlap with training windows; `split="time"` avoids that.
    * "roles-2000" (Acar et al.): 100 roles with 2,000 consecutive training windows and 400 test
      windows each. The windows start at random in the role's first 80 % and in the rest, which
      share no character.
    * "iid-2000" (Acar et al.): the same numbers, with windows drawn from the same parts of all
      roles.

    "lines" and "lines-iid" predict the next character after every character of a line: 258 symbols
    (bytes, begin and end of a line) in rows of 80. Labels have shape (rows, 80), with -1 after the
    end of a line.

    * "lines" (McMahan et al.): roles of at least three lines, the first 80 % of a role's lines for
      training and the rest, at least one line, for testing. The text has 1,145 such roles, the
      paper 1,146; roles of at least two lines, as the paper says, are 1,202. Training lines have
      3,577,551 characters and test lines 872,906; in the paper 3,564,579 and 870,014.
    * "lines-iid" (McMahan et al.): the same lines, dealt out evenly to as many clients.

    Args:
        partition: One of the five above.
        clients: Number of clients; None for the paper's. With "roles", "roles-2000" and "lines"
            that many roles are drawn at random; 1,130 are all of "roles".
        split: How "roles" divides a role's windows: "random", also if None, or "time". The latter
            has the first 80 % to train on and those that share no character with them to test on,
            as later versions of LEAF do. Not with other partitions.
        seed: Seed of the drawing and of the split.
        data_dir: Folder with `shakespeare/100.txt.gz`, `100.txt` or `1994-01-100.zip`; None for
            `FEDPROX_DATA`, or else the cache, to which `fedprox data fetch` downloads the last. Its
            terms of use allow personal, non-commercial use.

    Returns:
        A federation with 80 classes and int32 features of shape (80,); 258 classes for lines.

    Raises:
        InputError: If the text is missing, damaged or another one, or an argument is out of range.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.shakespeare("roles", split="time")  # doctest: +SKIP

    References:
        Caldas et al., `LEAF: A Benchmark for Federated Settings
        <https://arxiv.org/abs/1812.01097>`_, 2018. Partitions:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3;
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix C; and
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2.
    """
    options = options_of(partition, SHAKESPEARE_PARTITIONS, clients=clients, split=split)
    require_one_of("data.split", split, ("random", "time"), optional=True)
    require_whole("data.clients", clients, optional=True)
    read, divide = WAYS[partition]
    text = read(find(SHAKESPEARE, data_dir))
    *parts, roles = divide(text, seed=seed, **options)
    names = unpack_strings(text, "names", roles) or map(str, range(len(parts[0])))
    of_lines = "lines" in text
    train, test = (_line_rows(text, part) if of_lines else _windows(text, part) for part in parts)
    return Federation(train, test, LINE_END + 1 if of_lines else len(ALPHABET), tuple(names))


Divided = tuple[list[Indices], list[Indices], Indices]
"""Each client's windows or lines for training and for testing, and its role; none for no roles."""

NO_ROLES = np.arange(0)


def _roles(text: Arrays, clients: int, split: str, seed: int) -> Divided:
    windows = _all_windows(text)
    chosen = _draw(np.flatnonzero([len(part) > 0 for part in windows]), clients, seed)
    parts = [windows[r] for r in chosen]
    if split == "time":
        train, test = _by_time(parts)
    else:
        train, test = (
            [np.sort(part) for part in half]
            for half in partitions.split(parts, train_share=0.8, seed=seed)
        )
    return train, test, chosen


def _roles_2000(text: Arrays, clients: int, seed: int) -> Divided:
    train, test = _by_time(_all_windows(text))
    enough = [len(a) > 2000 and len(b) > 400 for a, b in zip(train, test, strict=True)]
    chosen = _draw(np.flatnonzero(enough), clients, seed)

    def stretch(windows: Indices, size: int, k: int) -> Indices:
        begin = generator(seed, Purpose.SPLIT, size, k).integers(len(windows) - size)
        return windows[begin : begin + size]

    train = [stretch(train[r], 2000, k) for k, r in enumerate(chosen)]
    return train, [stretch(test[r], 400, k) for k, r in enumerate(chosen)], chosen


def _iid_2000(text: Arrays, clients: int, seed: int) -> Divided:
    pools = [np.concatenate(half) for half in _by_time(_all_windows(text))]
    most = min(len(pools[0]) // 2000, len(pools[1]) // 400)
    require(clients <= most, f"data.clients = {clients}; the text has windows for {most}")
    stream = generator(seed, Purpose.PARTITION)
    train, test = (
        np.split(stream.permutation(pool)[: clients * size], clients)
        for pool, size in zip(pools, (2000, 400), strict=True)
    )
    return train, test, NO_ROLES


def _lines_by_role(text: Arrays, clients: int | None, seed: int) -> Divided:
    everyone = np.arange(len(text["offsets"]) - 1)
    chosen = _draw(everyone, clients or len(everyone), seed)
    train, test = _first_lines(text)
    return [train[r] for r in chosen], [test[r] for r in chosen], chosen


def _lines_iid(text: Arrays, clients: int | None, seed: int) -> Divided:
    count = clients or len(text["offsets"]) - 1
    train, test = (
        [half[rows] for rows in partitions.iid(half, clients=count, seed=seed)]
        for half in map(np.concatenate, _first_lines(text))
    )
    return train, test, NO_ROLES


def _draw(among: Indices, count: int, seed: int) -> Indices:
    """Some of the roles at random, in order."""
    require(count <= len(among), f"data.clients = {count}; the text has {len(among)} such roles")
    return np.sort(generator(seed, Purpose.PARTITION).permutation(among)[:count])


def _all_windows(text: Arrays) -> list[Indices]:
    """The starts of each role's windows: all that a character of the role follows."""
    return [np.arange(begin, end - READ) for begin, end in pairwise(text["offsets"])]


def _by_time(parts: list[Indices]) -> tuple[list[Indices], list[Indices]]:
    """The first 80 % of consecutive windows, and those that share no character with them."""
    cuts = [max(1, int(0.8 * len(part))) for part in parts]
    # the last training window and its label end at the character before cut + 80
    return _cut(parts, cuts, apart=READ)


def _first_lines(text: Arrays) -> tuple[list[Indices], list[Indices]]:
    """Each role's first 80 % of lines, and the rest, at least one."""
    parts = [np.arange(begin, end) for begin, end in pairwise(text["offsets"])]
    return _cut(parts, [len(part) - max(1, int(0.2 * len(part))) for part in parts])


def _cut(
    parts: list[Indices], cuts: list[int], apart: int = 0
) -> tuple[list[Indices], list[Indices]]:
    """The rows of each part before its cut, and those from `apart` rows after it."""
    pairs = list(zip(parts, cuts, strict=True))
    return [part[:cut] for part, cut in pairs], [part[cut + apart :] for part, cut in pairs]


def _windows(text: Arrays, parts: list[Indices]) -> Rows:
    """Rows whose label is the character after a window."""
    starts = np.concatenate(parts).astype(np.int32)
    y = text["text"][starts + READ].astype(np.int32)
    return Rows(Windows(text["text"], starts, READ), y, offsets_of(map(len, parts)))


def _line_rows(text: Arrays, parts: list[Indices]) -> Rows:
    """Rows of lines with the next character after each as labels."""
    chosen, lines = np.concatenate(parts), text["lines"]
    x, y, counts = unroll(text["text"], lines[chosen], lines[chosen + 1], READ)
    return Rows(x, y, offsets_of(counts)[offsets_of(map(len, parts))])


def _characters(path: Path) -> Arrays:
    """The roles' "names", sorted, and the "text" of all, one role after another, uint8 (length,).

    The text is in LEAF's symbols. "offsets" are each role's first symbol, int64 (roles + 1,).
    """

    def build() -> Arrays:
        roles = _read_text(path)
        symbols = np.full(256, len(ALPHABET) - 1, np.uint8)
        symbols[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
        texts = [
            re.sub("  +", " ", " ".join(lines) + " ").encode("latin-1") for lines in roles.values()
        ]
        return {
            **pack_strings("names", roles),
            "text": symbols[np.frombuffer(b"".join(texts), np.uint8)],
            "offsets": offsets_of(map(len, texts)),
        }

    return prepared("shakespeare-characters", [path], {}, build)


def _lines(path: Path) -> Arrays:
    """The roles' "names", sorted, and the "text" of all their lines, uint16 (length,).

    A line is its bytes between a begin and an end symbol. "lines" are each line's first symbol,
    int64 (lines + 1,), and "offsets" each role's first line, int64 (roles + 1,).
    """

    def build() -> Arrays:
        roles = _read_text(path)
        lines = [line.encode("latin-1") for lines in roles.values() for line in lines]
        offsets = offsets_of(len(line) + 2 for line in lines)
        text = np.empty(offsets[-1], np.uint16)
        inner = np.ones(len(text), bool)
        inner[offsets[:-1]] = inner[offsets[1:] - 1] = False
        text[offsets[:-1]], text[offsets[1:] - 1] = LINE_BEGIN, LINE_END
        text[inner] = np.frombuffer(b"".join(lines), np.uint8)
        return {
            **pack_strings("names", roles),
            "text": text,
            "offsets": offsets_of(map(len, roles.values())),
            "lines": offsets,
        }

    return prepared("shakespeare-lines", [path], {}, build)


WAYS: dict[str, tuple[Callable[[Path], Arrays], Callable[..., Divided]]] = {
    "roles": (_characters, _roles),
    "roles-2000": (_characters, _roles_2000),
    "iid-2000": (_characters, _iid_2000),
    "lines": (_lines, _lines_by_role),
    "lines-iid": (_lines, _lines_iid),
}
"""How each partition reads the text, and divides it."""


def _read_text(path: Path) -> dict[str, list[str]]:
    """Roles of at least three lines, by name."""
    with reading(path, "100.txt") as file:
        roles = read_roles(line.decode("latin-1") for line in text_lines(file, path))
    long_enough = {name: roles[name] for name in sorted(roles) if len(roles[name]) >= 3}
    require(
        long_enough, f"{path}: no roles found; it must be Project Gutenberg's etext 100 of 1994"
    )
    return long_enough


def read_roles(lines: Iterable[str]) -> dict[str, list[str]]:
    r"""Each role's lines, {play_ROLE: lines} in the order of first speeches, by LEAF's rules.

    A work begins with "by William Shakespeare"; its title is the last line above that is not empty.
    A speech begins at a line of two spaces, a name of letters and spaces, a full stop and a space;
    lines indented by four spaces continue it. Names are not case-sensitive. The Comedy of Errors is
    not indented: there any line continues a speech, except stage directions ("<...") and headings
    of acts, which end it. The first work (the sonnets) and works with fewer than two roles (poems)
    are left out.

    >>> text = ["by William Shakespeare", "A PLAY", "", "by William Shakespeare", "  Ghost. Boo!"]
    >>> read_roles([*text, "    Adieu.", "  PRINCE. O God!", "  Exeunt"])
    {'A_PLAY_GHOST': ['Boo!', 'Adieu.'], 'A_PLAY_PRINCE': ['O God!']}
    """
    works: list[dict[str, list[str]]] = []
    title, above, indented = "", "", True
    speaking: list[str] | None = None
    for line in lines:
        line = line.rstrip("\r\n")
        if "by William Shakespeare" in line:
            works.append({})
            title, speaking = above.strip(), None
            indented = title != "THE COMEDY OF ERRORS"
        elif works:
            begin = re.match(f"{'  ' * indented}([a-zA-Z][a-zA-Z ]*)\\. (.*)", line)
            if begin and not indented and begin[1].upper().startswith("ACT "):
                speaking = None
            elif begin:
                name = re.sub(r"\W+", "_", f"{title}_{begin[1].upper()}")
                speaking = works[-1].setdefault(name, [])
                speaking.append(begin[2])
            elif speaking is not None and not indented and line.startswith("<"):
                speaking = None
            elif speaking is not None and line.startswith("    " * indented):
                speaking.append(line[4 * indented :])
        if line.strip():
            above = line
    roles: dict[str, list[str]] = {}
    for work in works[1:]:
        if len(work) > 1:
            for name, spoken in work.items():
                roles.setdefault(name, []).extend(spoken)
    return roles
