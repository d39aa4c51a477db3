"""Text data sets: the papers' counts, the rules by hand, and files that are not whole."""

import gzip
import json
import string
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Federation, InputError, datasets
from fedprox.datasets.posts import read_posts
from fedprox.datasets.shakespeare import ALPHABET, read_roles
from fedprox.datasets.sources import SENT140_CSV as CSV
from fedprox.datasets.text import read_vectors, split_words, unroll, word_vectors
from fedprox.features import Vectors, Windows
from tests.datasets.test_tokenizer import file_of


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("FEDPROX_CACHE", str(folder))
        yield folder


def here(data_dir: Path, name: str) -> Path:
    if not (data_dir / name).is_dir():
        pytest.skip(f"no {name}: set FEDPROX_DATA to a folder that has {name}/")
    return data_dir


@pytest.fixture(scope="module")
def plays(data_dir: Path) -> Path:
    return here(data_dir, "shakespeare")


@pytest.fixture(scope="module")
def tweets(data_dir: Path) -> Path:
    return here(data_dir, "sent140")


@pytest.fixture(scope="module")
def messages(data_dir: Path) -> Path:
    return here(data_dir, "ubuntu-irc")


def whole(federation: Federation) -> Any:
    return federation.train.sizes + federation.test.sizes


def text_of(windows: Any, row: int) -> str:
    return "".join(ALPHABET[c] for c in np.asarray(windows[[row]])[0])


# Shakespeare by role


@pytest.mark.slow
def test_all_roles_have_leafs_windows(plays: Path) -> None:
    federation = datasets.shakespeare(clients=1130, data_dir=plays)
    sizes = whole(federation)
    # LEAF: 1,129 roles, 4,226,158 windows, mean 3,743, standard deviation 6,212
    assert (len(federation), sizes.sum(), federation.classes) == (1130, 4_226_206, 80)
    assert 48 in sizes
    assert (sizes.sum() - 48) == 4_226_158
    others = np.delete(sizes, np.flatnonzero(sizes == 48)[0])
    assert (round(others.mean()), round(others.std())) == (3743, 6212)
    assert list(federation.names) == sorted(federation.names)
    assert federation.features.shape == (80,)


@pytest.mark.slow
def test_143_roles_are_a_draw_like_the_papers(plays: Path) -> None:
    draws = [datasets.shakespeare(seed=seed, data_dir=plays) for seed in range(8)]
    means = [whole(federation).mean() for federation in draws]
    assert all(len(federation) == 143 for federation in draws)
    # the paper: mean 3,616 and standard deviation 6,808; a mean of 143 scatters by 520
    assert np.std(means, ddof=1) == pytest.approx(6210 / np.sqrt(143), rel=0.6)
    assert abs(np.mean(means) - 3740) < 3 * 520 / np.sqrt(8)
    first, again = (datasets.shakespeare(data_dir=plays) for _ in range(2))
    assert first.names == again.names != draws[1].names
    np.testing.assert_array_equal(first.train.x.starts, again.train.x.starts)
    shares = first.train.sizes.sum() / whole(first).sum()
    assert shares == pytest.approx(0.8, abs=0.001)


@pytest.mark.slow
def test_a_window_is_followed_by_its_label(plays: Path) -> None:
    federation = datasets.shakespeare(clients=1130, split="time", data_dir=plays)
    hamlet = federation.names.index("THE_TRAGEDY_OF_HAMLET_PRINCE_OF_DENMARK_HAM")
    x, y = federation.train.client(hamlet)
    assert isinstance(x, Windows)
    assert text_of(x, 0).startswith(
        "[aside] A little more than kin, and less than kind! Not so, my"
    )
    for row in range(100):
        assert text_of(x, row + 1) == text_of(x, row)[1:] + ALPHABET[y[row]]
    assert x.text is federation.test.x.text  # one text, however many windows
    assert x.text.nbytes < 4.4e6


@pytest.mark.slow
@pytest.mark.parametrize("split", ["random", "time"])
def test_a_random_split_overlaps_and_one_by_time_does_not(split: Any, plays: Path) -> None:
    federation = datasets.shakespeare(split=split, data_dir=plays)
    for k in range(len(federation)):
        train, test = federation.train.client(k)[0].starts, federation.test.client(k)[0].starts
        assert len(np.intersect1d(train, test)) == 0
        if len(test) > 50:
            # a window with its label takes 81 characters
            apart = train.max() + 80 < test.min()
            assert apart == (split == "time")


@pytest.mark.slow
def test_feddyns_roles_have_2000_consecutive_windows(plays: Path) -> None:
    federation = datasets.shakespeare("roles-2000", data_dir=plays)
    assert (len(federation), set(federation.train.sizes)) == (100, {2000})
    assert set(federation.test.sizes) == {400}  # the paper's Table 3: 200,000 and 40,000
    for k in range(100):
        train, test = federation.train.client(k)[0].starts, federation.test.client(k)[0].starts
        assert (np.diff(train) == 1).all()
        assert (np.diff(test) == 1).all()
        assert train[-1] + 80 < test[0]


@pytest.mark.slow
def test_feddyns_iid_clients_share_no_window(plays: Path) -> None:
    federation = datasets.shakespeare("iid-2000", data_dir=plays)
    starts = np.concatenate([federation.train.x.starts, federation.test.x.starts])
    assert len(np.unique(starts)) == len(starts) == 240_000
    assert (np.abs(np.diff(federation.train.x.starts)) > 1).mean() > 0.99


@pytest.mark.slow
def test_lines_have_the_papers_characters(plays: Path) -> None:
    federation = datasets.shakespeare("lines", data_dir=plays)
    assert (len(federation), federation.classes) == (1145, 258)  # the paper: 1,146
    train, test = federation.train.labels.sum(), federation.test.labels.sum()
    assert (train, test) == (3_577_551, 872_906)
    assert train == pytest.approx(3_564_579, rel=0.005)
    assert test == pytest.approx(870_014, rel=0.005)
    # Table 2: u = E n / (K B) is 7.4 at E = 1, B = 10, and 37.1 at E = 5
    lines_per_role = len(federation.train) / len(federation)
    assert lines_per_role / 10 == pytest.approx(7.4, abs=0.06)
    assert federation.test.sizes.min() >= 1


@pytest.mark.slow
def test_lines_are_spelled_out(plays: Path) -> None:
    federation = datasets.shakespeare("lines", data_dir=plays)
    hamlet = federation.names.index("THE_TRAGEDY_OF_HAMLET_PRINCE_OF_DENMARK_HAM")
    x, y = (part[0] for part in federation.train.client(hamlet))
    line = "[aside] A little more than kin, and less than kind!"
    assert x[0] == 256
    assert bytes(x[1 : len(line) + 1].tolist()).decode() == line
    assert y[len(line)] == 257
    np.testing.assert_array_equal(y[: len(line)], x[1 : len(line) + 1])
    assert (y[len(line) + 1 :] == -1).all()


@pytest.mark.slow
def test_lines_iid_are_the_same_lines_dealt_evenly(plays: Path) -> None:
    by_role, iid = (datasets.shakespeare(p, data_dir=plays) for p in ("lines", "lines-iid"))
    assert len(iid) == len(by_role)
    for part in ("train", "test"):
        a, b = getattr(by_role, part), getattr(iid, part)
        assert b.sizes.max() - b.sizes.min() <= 2  # one line in two rows
        assert Counter(map(bytes, a.x)) == Counter(map(bytes, b.x))


PLAY = """THE SONNETS

by William Shakespeare

  Of verse. Not a role
    in a poem

A PLAY, OF SORTS



by William Shakespeare

  Ghost. Adieu,   adieu!
    Remember me.
  Exit
    Never.
  GHOST. Swear.
    Here's %s
  PRINCE. O day and night, but this
    is wondrous strange!

    There are more things

THE COMEDY OF ERRORS

by William Shakespeare

DUKE. Well, Syracusian;
say in brief
<Exit>
nobody says this
ACT I. SCENE 1. A hall
nor this
AEGEON. A heavier task
could not have been imposed
"""


def test_rules_by_hand() -> None:
    roles = read_roles((PLAY % "*").splitlines())
    assert roles == {
        "A_PLAY_OF_SORTS_GHOST": [
            "Adieu,   adieu!",
            "Remember me.",
            "Never.",
            "Swear.",
            "Here's *",
        ],
        "A_PLAY_OF_SORTS_PRINCE": [
            "O day and night, but this",
            "is wondrous strange!",
            "There are more things",
        ],
        "THE_COMEDY_OF_ERRORS_DUKE": ["Well, Syracusian;", "say in brief"],
        "THE_COMEDY_OF_ERRORS_AEGEON": ["A heavier task", "could not have been imposed"],
    }


@pytest.mark.parametrize("kind", ["100.txt", "100.txt.gz", "1994-01-100.zip"])
def test_a_small_text_in_all_packings(kind: str, tmp_path: Path) -> None:
    words = "x" * 100 + "é"
    content = (PLAY % words).replace("\n", "\r\n").encode("latin-1")
    (tmp_path / "shakespeare").mkdir()
    path = tmp_path / "shakespeare" / kind
    if kind.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("100.txt", content)
    else:
        path.write_bytes(gzip.compress(content) if kind.endswith(".gz") else content)
    federation = datasets.shakespeare(clients=1, data_dir=tmp_path)
    text = f"Adieu, adieu! Remember me. Never. Swear. Here's {words} "
    assert whole(federation).tolist() == [len(text) - 80]
    starts = np.concatenate([federation.train.x.starts, federation.test.x.starts])
    y = np.concatenate([federation.train.y, federation.test.y])
    shown = "".join(ALPHABET[c] for c in y[np.argsort(starts)])
    assert shown == text[80:].replace("é", "}")  # not in the alphabet: the last class
    lines = datasets.shakespeare("lines", data_dir=tmp_path)
    assert lines.names == ("A_PLAY_OF_SORTS_GHOST", "A_PLAY_OF_SORTS_PRINCE")
    assert lines.train.sizes.tolist() == [4, 2]
    assert lines.test.sizes.tolist() == [2, 1]  # 109 characters take two rows
    assert 0xE9 in lines.test.x


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "role"}, r"data\.partition = 'role'; it must be one of roles, "),
        ({"split": "half"}, r"data\.split = 'half'; it must be one of random, time"),
        ({"partition": "lines", "split": "time"}, r"split = time; it belongs to partition roles"),
        ({"clients": 0}, r"data\.clients = 0; it must be a whole number of at least 1"),
        ({"clients": 2}, r"data\.clients = 2; the text has 1 such roles"),
        ({"partition": "roles-2000"}, r"data\.clients = 100; the text has 0 such roles"),
        ({"partition": "iid-2000"}, r"data\.clients = 100; the text has windows for 0"),
        ({"partition": "lines", "clients": 3}, r"data\.clients = 3; the text has 2 such roles"),
        ({"partition": "lines-iid", "clients": 9}, r"data\.clients = 9; it must be from 1 to"),
    ],
)
def test_shakespeare_refuses(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "100.txt").write_text(PLAY % ("x" * 100))
    with pytest.raises(InputError, match=message):
        datasets.shakespeare(**options, data_dir=tmp_path)


def test_another_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"shakespeare: 1994-01-100\.zip is missing; put it in"):
        datasets.shakespeare(data_dir=tmp_path)
    (tmp_path / "100.txt").write_text("Call me Ishmael.\n" * 100)
    with pytest.raises(InputError, match=r"100\.txt: no roles found; it must be Project Gut"):
        datasets.shakespeare(data_dir=tmp_path)
    (tmp_path / "100.txt.gz").write_bytes(b"\x1f\x8b not gzip")
    with pytest.raises(InputError, match=r"100\.txt\.gz: cannot be read"):
        datasets.shakespeare(data_dir=tmp_path)


LINE = st.one_of(
    st.just("by William Shakespeare"),
    st.text(max_size=40),
    st.builds("  {}. {}".format, st.text(string.ascii_letters + " ", max_size=9), st.text()),
    st.builds("    {}".format, st.text()),
)


@settings(max_examples=25)
@given(lines=st.lists(LINE, max_size=30))
def test_any_text_has_roles_or_none(lines: list[str]) -> None:
    roles = read_roles(lines)
    text = "\n".join(lines)
    assert all(line in text for spoken in roles.values() for line in spoken)
    assert sum(map(len, roles.values())) <= len(lines)


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=6),
    width=st.integers(1, 12),
)
def test_unrolled_rows_hold_every_pair_once_and_in_order(lengths: list[int], width: int) -> None:
    ends = np.cumsum([n + 1 for n in lengths], dtype=np.int64)
    begins = ends - np.array(lengths, np.int64) - 1
    text = np.arange(100, 100 + sum(lengths) + len(lengths))
    x, y, rows = unroll(text, begins, ends, width)
    assert rows.tolist() == [-(-n // width) for n in lengths]
    pairs = list(zip(x[y >= 0], y[y >= 0], strict=True))
    expected = [(i, i + 1) for b, e in zip(begins, ends, strict=True) for i in text[b : e - 1]]
    assert pairs == expected
    assert (x[y < 0] == 0).all()


# Sentiment140


@pytest.mark.slow
def test_leafs_tweets_by_user(tweets: Path) -> None:
    everyone = datasets.sent140(least=1, clients=2875, data_dir=tweets)
    assert (len(everyone), whole(everyone).sum()) == (2875, 16_025)
    assert whole(everyone).min() == 3
    federation = datasets.sent140(clients=1473, data_dir=tweets)
    assert (len(federation), whole(federation).sum()) == (1473, 10_625)
    assert federation.train.sizes.min() == 4
    assert federation.features.shape == (25,)
    assert federation.features.dtype == np.int32
    assert list(federation.names) == sorted(federation.names)
    assert set(federation.train.y) == {0, 1}
    assert federation.train.x.max() < 10_000
    few = datasets.sent140(least=10, clients=100, vocabulary=50, data_dir=tweets)
    assert len(few) == 100
    assert whole(few).min() >= 10
    assert few.train.x.max() == 49
    with pytest.raises(InputError, match="772; 3 users have at least 31 tweets"):
        datasets.sent140(least=31, data_dir=tweets)


@pytest.mark.slow
def test_frequent_words_have_low_ids(tweets: Path) -> None:
    federation = datasets.sent140(least=5, clients=1473, data_dir=tweets)
    counts = np.bincount(federation.train.x[federation.train.x > 0], minlength=10_000)[1:]
    assert (np.diff(counts) <= 0).all()


@pytest.mark.slow
def test_capitals_are_unknown_to_glove_if_kept(tweets: Path, tmp_path: Path) -> None:
    words = tmp_path / "vectors.txt"
    words.write_text("".join(f"{w} {i} 1\n" for i, w in enumerate(["i", "the", "to", "!"], 1)))
    known = {}
    for keep in (False, True):
        federation = datasets.sent140(
            least=5, clients=500, vectors=str(words), keep_capitals=keep, data_dir=tweets
        )
        assert isinstance(federation.train.x, Vectors)
        assert federation.features.shape == (25, 2)
        assert federation.train.x.table.shape == (5, 2)
        x = np.asarray(federation.train.x)
        known[keep] = (x[..., 1] == 1).mean()
        assert set(np.unique(x[..., 0])) == {0, 1, 2, 3, 4}
    assert known[True] < known[False]  # "I" for one


ROWS = [
    ("0", "ann", "oh no, rain"),
    ("4", "ann", 'Sun! she said "hi", \xe9t\xe9'),
    ("4", "ann", "a line\nand another"),
    ("0", "bob", ""),
    ("0", "bob", "w " * 40),
]


def csv_of(rows: list[tuple[str, str, str]]) -> bytes:
    lines = [
        ",".join(
            '"{}"'.format(field.replace('"', '""'))
            for field in (polarity, "1", "Mon", "NO_QUERY", user, text)
        )
        for polarity, user, text in rows
    ]
    return "\n".join(lines).encode("latin-1")


def leaf_of(rows: list[tuple[str, str, str]]) -> dict[str, Any]:
    users: dict[str, Any] = {}
    for polarity, user, text in rows:
        data = users.setdefault(user, {"x": [], "y": []})
        data["x"].append(["1", "Mon", "NO_QUERY", user, text, "training"])
        data["y"].append(int(polarity != "0"))
    counts = [len(data["y"]) for data in users.values()]
    return {"users": list(users), "num_samples": counts, "user_data": users}


@pytest.mark.parametrize("kind", ["csv", "zip", "json", "json.gz", "two json"])
def test_small_files_in_all_formats(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "sent140"
    folder.mkdir()
    if kind == "csv":
        (folder / CSV).write_bytes(csv_of(ROWS))
    elif kind == "zip":
        with zipfile.ZipFile(folder / "trainingandtestdata.zip", "w") as file:
            file.writestr(CSV, csv_of(ROWS))
            file.writestr("testdata.manual.2009.06.14.csv", "other")
    elif kind == "two json":
        (folder / "a.json").write_text(json.dumps(leaf_of(ROWS[:2])))
        (folder / "b.json").write_text(json.dumps(leaf_of(ROWS[2:])))
    else:
        content = json.dumps(leaf_of(ROWS)).encode()
        path = folder / f"all.{kind}"
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    least = 5 if "json" in kind else 31
    with pytest.raises(InputError, match=f"1; 0 users have at least {least} tweets"):
        datasets.sent140(clients=1, data_dir=tmp_path)
    federation = datasets.sent140(least=2, clients=2, data_dir=tmp_path)
    assert federation.names == ("ann", "bob")
    assert (federation.train.sizes.tolist(), federation.test.sizes.tolist()) == ([2, 1], [1, 1])
    characters = datasets.sent140("characters", least=3, clients=1, data_dir=tmp_path)
    x = np.concatenate([characters.train.x, characters.test.x])
    lengths = sorted(np.flatnonzero(row)[-1] + 1 for row in characters.train.x)
    assert x.shape == (3, 25)
    assert lengths[0] in (11, 18, 25)
    assert np.sort(np.concatenate([characters.train.y, characters.test.y])).tolist() == [0, 1, 1]


def test_a_tokenizer_makes_the_features(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="an optional extra")
    (tmp_path / CSV).write_bytes(csv_of(ROWS))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abc"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(file_of(words)))
    options: dict[str, Any] = {"least": 2, "clients": 2, "data_dir": tmp_path}
    for path in (str(tmp_path), "tokenizer.json"):
        federation = datasets.sent140(tokenizer=path, length=7, **options)
        assert federation.features.shape == (7,)
        assert (federation.train.x[:, 0] == 2).all()
        assert np.isin(federation.train.x, range(len(words))).all()
    assert datasets.sent140(length=3, **options).features.shape == (3,)
    with pytest.raises(InputError, match=r"none: no such file"):
        datasets.sent140(tokenizer="none", **options)


def test_a_file_of_tweets_is_read_once(tmp_path: Path) -> None:
    folder = tmp_path / "sent140"
    folder.mkdir()
    content = json.dumps(leaf_of(ROWS))
    for name in ("all.json", "all.json~", "all.json.bak"):
        (folder / name).write_text(content)
    (folder / "._all.json").write_bytes(b"\0\5\x16\7")
    (folder / "all.json.gz").write_bytes(gzip.compress(content.encode()))
    federation = datasets.sent140(least=2, clients=2, data_dir=tmp_path)
    assert len(federation.train) + len(federation.test) == len(ROWS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"csv: no tweets"),
        (b'"0","1","Mon","NO_QUERY","ann"', "line 1: polarity"),
        (csv_of([*ROWS, ("2", "ann", "so-so")]), r"line 7: polarity \(0 or 4\), id, date, query,"),
        (b'"0","1","Mon","NO_QUERY","ann","' + b"x" * 200_000, "line 1: field larger than"),
    ],
)
def test_broken_csv_files_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / CSV).write_bytes(content)
    with pytest.raises(InputError, match=message):
        datasets.sent140(data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ('{"a": ' + "[" * 100_000, "not JSON: maximum recursion"),
        ('{"user_data": {"a": ' + '{"x":' * 100_000, "not JSON: maximum recursion"),
        ('{"user_data": {}} 1', "not JSON: Extra data"),
        ('{"user_data": {"a" 3}}', "not JSON: Expecting ':'"),
        ("[]", "the object 'user_data' is missing"),
        ('{"user_data": []}', "the object 'user_data' is missing"),
        ('{"user_data": {"a": 3}}', "user 'a': user_data must hold lists 'x' and 'y'"),
        ('{"user_data": {"a": {"x": 3, "y": []}}}', "user 'a': lists 'x' and 'y' of one length"),
        ('{"user_data": {"a": {"x": [[]], "y": []}}}', "user 'a': lists 'x' and 'y' of one"),
        ('{"user_data": {"a": {"x": [[1]], "y": [0]}}}', "user 'a': a row of 'x' is not id, date"),
        ('{"user_data": {"a": {"x": [["","","","","t"]], "y": [3]}}}', "user 'a': label 3; it"),
        ('{"user_data": {}}', "no tweets"),
    ],
)
def test_broken_leaf_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "sent140").mkdir()
    (tmp_path / "sent140" / "all.json").write_text(content)
    with pytest.raises(InputError, match=message):
        datasets.sent140(data_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "bytes"}, r"data\.tokens = 'bytes'; it must be one of words, characters"),
        ({"vocabulary": 1}, r"data\.vocabulary = 1; it must be a whole number of at least 2"),
        ({"least": 0}, r"data\.least = 0; it must be a whole number of at least 1"),
        ({"least": 1, "clients": 3}, r"3; 2 users have at least 1 tweets \(data\.least\)"),
        ({"vectors": "none", "clients": 1, "least": 1}, r"data\.vectors = 'none'; it must be a"),
        ({"length": 0}, r"data\.length = 0; it must be a whole number of at least 1"),
    ],
)
def test_sent140_refuses(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / CSV).write_bytes(csv_of(ROWS))
    with pytest.raises(InputError, match=message):
        datasets.sent140(**options, data_dir=tmp_path)


# Word vectors


def test_glove_is_read_from_its_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "glove.6B.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for d in (50, 300):
            lines = [f"{word} {' '.join([str(v)] * d)}" for word, v in (("sun", 1.5), ("é", -2))]
            file.writestr(f"glove.6B.{d}d.txt", "\n".join(lines))
    for d in (50, 300):
        table, rows = word_vectors(f"glove.6B.{d}d", ["rain", "é", "sun"], tmp_path)
        assert rows.tolist() == [0, 2, 1]
        np.testing.assert_array_equal(table, np.repeat([[0], [1.5], [-2]], d, axis=1))
    with pytest.raises(InputError, match=r"glove\.6B\.100d\.txt is missing in this archive"):
        word_vectors("glove.6B.100d", ["sun"], tmp_path)


def test_only_words_asked_for_are_kept_and_the_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("3 2\na 1 2\n. . 3 4\n. 5 6\na 7 8\nb x y\n")
    read = read_vectors(path, None, [".", "a", "c"])
    assert read["table"].tolist() == [[0, 0], [1, 2], [5, 6]]
    assert read["rows"].tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no word vectors"),
        ("2 3\n", "no word vectors"),
        ("word\n", "line 1: a word and its numbers are needed"),
        ("a 1 2\nb 1\n", "line 2: 2 finite numbers are needed after the word"),
        ("a 1 2\nb 1 x\n", "line 2: 2 finite numbers"),
        ("a 1 nan\n", "line 1: 2 finite numbers"),
        ("a 1 1e39\n", "line 1: 2 finite numbers"),
        ("a 1 2\nb", "line 2: 2 finite numbers"),
    ],
)
def test_damaged_vectors_are_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        word_vectors("vectors.txt", ["a", "b"], tmp_path)


# Posts


@pytest.mark.slow
def test_posts_of_real_authors(messages: Path) -> None:
    federation = datasets.posts("ubuntu-irc/messages.tsv.gz", data_dir=messages)
    assert federation.classes == 10_000
    assert federation.train.x.max() == federation.train.y.max() == 9_999
    assert federation.features.shape == (10,)
    assert 14_000 < len(federation) < 15_729 * 0.9
    # at most 5,000 words of an author: a row holds up to ten
    assert federation.train.labels.max() <= 5_000
    assert federation.train.labels.min() >= 1
    assert federation.test.sizes.max() - federation.test.sizes.min() <= 1
    assert (federation.train.y != 0).all()


def posts_file(folder: Path, lines: list[str]) -> Path:
    path = folder / "posts.tsv"
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    return path


def test_posts_by_hand(tmp_path: Path) -> None:
    path = posts_file(
        tmp_path, ["ann\tThe sun, the sea.", "bob\tthe moon", "", "ann\t" + "the " * 11, "cy\t?"]
    )
    federation = datasets.posts(str(path), vocabulary=4, test_share=0)
    assert federation.names == ("ann", "bob")  # cy has no word of the vocabulary
    # ids: 0 others, 1 begin, 2 "the", 3 "sun"
    x, y = federation.train.client(0)
    assert x.tolist() == [
        [1, 2, 3, 0, 2, 0, 0, 0, 0, 0],
        [1, *[2] * 9],
        [2, *[0] * 9],
    ]
    assert y.tolist() == [
        [2, 3, -1, 2, -1, -1, -1, -1, -1, -1],
        [2] * 10,
        [2, *[-1] * 9],
    ]
    x, y = federation.train.client(1)
    assert (x.tolist(), y.tolist()) == ([[1, 2, *[0] * 8]], [[2, *[-1] * 9]])
    assert len(federation.test) == 0


def test_an_author_has_at_most_5000_words(tmp_path: Path) -> None:
    path = posts_file(tmp_path, ["ann\t" + "a " * 3000, "bob\tb", "ann\t" + "c " * 2500, "ann\td"])
    federation = datasets.posts(str(path), test_share=0)
    assert federation.train.labels.tolist() == [5000, 1]
    assert Counter(federation.train.y[federation.train.y > 0].tolist()) == {2: 3000, 3: 2000, 4: 1}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_test_authors_are_apart_and_their_posts_dealt_out(
    seed: int, share: float, tmp_path: Path
) -> None:
    # every author has a word of their own; "the" is everyone's
    posts_file(tmp_path, [f"{k}\tthe w{k} the" for k in range(30)] * 2)
    federation = datasets.posts("posts.tsv", test_share=share, seed=seed, data_dir=tmp_path)
    apart = round(share * 30)
    assert len(federation) == 30 - apart
    assert set(federation.train.sizes) == {2}
    assert federation.train.y.max() == 2 + len(federation)
    # of a test author's words only "the" is in the vocabulary
    assert federation.test.y.tolist() == [[2, -1, 2, *[-1] * 7]] * (2 * apart)
    assert federation.test.sizes.max() - federation.test.sizes.min() <= 1
    other = datasets.posts("posts.tsv", test_share=share, seed=seed + 2, data_dir=tmp_path)
    assert other.names != federation.names


def test_clients_are_drawn(tmp_path: Path) -> None:
    posts_file(tmp_path, [f"{k}\tthe sun" for k in range(30)])
    federation = datasets.posts("posts.tsv", clients=7, data_dir=tmp_path)
    assert (len(federation), len(federation.test)) == (7, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "absent.tsv"}, r"data\.path: no file absent\.tsv or .*absent\.tsv"),
        ({"vocabulary": 2}, r"data\.vocabulary = 2; it must be a whole number of at least 3"),
        ({"test_share": 1.2}, r"data\.test_share = 1\.2; it must be from 0 to 1"),
        ({"test_share": 1.0}, r"data\.test_share = 1\.0; of 2 authors none is left"),
        ({"clients": 3}, r"data\.clients = 3; there are 2"),
    ],
)
def test_posts_refuses(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    posts_file(tmp_path, ["ann\tthe sun", "bob\tthe moon"])
    with pytest.raises(InputError, match=message):
        datasets.posts(**{"path": "posts.tsv", **options}, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no posts"),
        (["ann\t...", "no tab"], "line 2: an author, a tab and a post are needed"),
        (["\tanonymous"], "line 1: an author, a tab"),
        (["ann\t@", "bob\t"], "no posts"),
        (["bob\tthe sun", "\udce9\tthe moon"], "line 2: the author .* is not UTF-8"),
    ],
)
def test_broken_posts_are_named(lines: list[str], message: str, tmp_path: Path) -> None:
    posts_file(tmp_path, lines)
    with pytest.raises(InputError, match=message):
        datasets.posts("posts.tsv", data_dir=tmp_path)


def test_a_byte_order_mark_belongs_to_no_author(tmp_path: Path) -> None:
    path = posts_file(tmp_path, ["\ufeffann\tthe sun", "ann\t\ufeffthe \udce9"])
    assert list(read_posts(path)) == [("ann", "the sun"), ("ann", "\ufeffthe \ufffd")]


@given(text=st.text(max_size=60))
def test_words_are_stretches_of_the_text(text: str) -> None:
    words = split_words(text)
    place = 0
    for word in words:
        place = text.index(word, place) + len(word)
    assert all(word.strip() for word in words)
