"""Files made to do harm: any bytes are a result or one line, in memory and time like the file's."""

import gzip
import io
import json
import lzma
import random
import sqlite3
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgpack
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import InputError, datasets
from fedprox.datasets import cifar
from fedprox.datasets.posts import read_posts
from fedprox.datasets.sent140 import read_csv
from fedprox.datasets.sources import SENT140_CSV as CSV
from fedprox.datasets.text import read_vectors
from fedprox.experiment import read_experiment
from fedprox.files.packed import read_idx, reading
from fedprox.files.toml import parse_toml
from tests.datasets.test_cifar import batch, old
from tests.datasets.test_datasets import idx, idx_of
from tests.datasets.test_femnist import IDS, WRITERS, writer
from tests.fuzz import mutated, verdict
from tests.readers import READERS, archived, saved, tarred

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


@pytest.mark.parametrize("name", READERS)
def test_valid_files_are_read(name: str, folder: Path) -> None:
    reader = READERS[name]
    path = folder / name / reader.file
    path.parent.mkdir(parents=True)
    path.write_bytes(reader.pack(reader.seeds[0]))
    assert reader.read(path) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@given(seed=st.integers(0, 2**32), times=st.integers(1, 3))
@settings(max_examples=15)
def test_any_bytes_are_a_result_or_one_line(name: str, seed: int, times: int, folder: Path) -> None:
    """The short form of `tests/fuzz.py`, which is guided by coverage."""
    reader, draw = READERS[name], random.Random(seed)
    content = draw.choice(reader.seeds)
    for _ in range(times):
        content = mutated(draw, content, reader.words)
    place = folder / f"any-{name}"
    (place / reader.file).parent.mkdir(parents=True, exist_ok=True)
    assert verdict(reader, content, place) == ""


def refused(read: Callable[[], object], most: int = 16 * MIB) -> str:
    """The one line with which a file is refused, in so many bytes of memory."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    with pytest.raises(InputError) as error:
        read()
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < most
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_a_message_is_one_short_line_whatever_it_quotes() -> None:
    nasty = "a\n\x1b[2J\u2028\ud800" + "b" * 10**6
    message = str(InputError(f"file: {nasty}: a name is needed"))
    assert message.isprintable()
    assert message.startswith(r"file: a\n\x1b[2J\u2028\ud800bb")
    assert message.endswith("bb: a name is needed")
    assert len(message) < 1100


# What unpacks to a thousand times its size


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """64 MiB of zeros, packed in 64 KiB or less."""
    folder = tmp_path_factory.mktemp("bombs")
    zeros = bytes(64 * MIB)
    whole = {
        "a.gz": gzip.compress(zeros),
        "a.xz": lzma.compress(zeros, preset=0),
        "a.zip": archived({CSV: zeros, "glove.txt": zeros}),
    }
    for name, content in whole.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in whole}


@pytest.mark.parametrize("name", ["a.gz", "a.xz", "a.zip"])
def test_what_unpacks_to_too_much_for_its_size_is_refused(
    name: str, bombs: dict[str, Path]
) -> None:
    def read() -> None:
        with reading(bombs[name], CSV) as file:
            while file.read(MIB):
                pass

    assert "it unpacks to more than" in refused(read)


@pytest.mark.parametrize(
    ("name", "read", "message"),
    [
        ("a.gz", lambda path: list(read_posts(path)), "line 1: more than 16,777,216 bytes"),
        ("a.gz", lambda path: read_vectors(path, None, ["a"]), "line 1: more than 16,777,216"),
        ("a.zip", lambda path: list(read_csv(path)), "line 1: more than 16,777,216 bytes"),
        ("a.zip", lambda path: read_vectors(path, "glove.txt", ["a"]), "line 1: more than"),
        ("a.gz", read_idx, "not an idx file"),
    ],
)
def test_no_more_is_held_than_a_line(
    name: str, read: Callable[[Path], object], message: str, bombs: dict[str, Path]
) -> None:
    assert message in refused(lambda: read(bombs[name]), 64 * MIB)


@pytest.mark.slow
def test_numbers_are_not_held_as_pythons(tmp_path: Path) -> None:
    """A file of LEAF's takes twice its size and the result, however many numbers it has."""
    rows = [[0.125] * 100] * 50
    users = {str(k): {"x": rows, "y": [0] * 50} for k in range(20)}
    content = {"users": list(users), "num_samples": [50] * 20, "user_data": users}
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "all.json").write_text(json.dumps(content))
    size = (tmp_path / "train" / "all.json").stat().st_size
    tracemalloc.reset_peak()
    federation = datasets.leaf(str(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    assert federation.train.x.shape == (1000, 100)
    result = federation.train.x.nbytes + federation.test.x.nbytes
    assert peak < 2 * size + 2 * result + 2 * MIB


@pytest.mark.slow
def test_one_long_word_among_numbers_is_not_made_an_array(tmp_path: Path) -> None:
    user = {"x": [[1] * 20_000 + ["a" * 100_000]], "y": [0]}
    content = {"users": ["a"], "num_samples": [1], "user_data": {"a": user}}
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "all.json").write_text(json.dumps(content))
    assert "'x' is not a list of numbers" in refused(lambda: datasets.leaf(str(tmp_path)))
    user |= {"x": [[1.0]] * 20_001, "y": [0] * 20_000 + ["a" * 100_000]}
    (tmp_path / "train" / "all.json").write_text(json.dumps(content))
    assert "'y' is not a list of numbers" in refused(lambda: datasets.leaf(str(tmp_path)))


# Headers that announce what is not there


@pytest.mark.parametrize("shape", [(2**32 - 1, 1), (2**20, 2**20), (2**31, 2**31, 2**31, 2**31)])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_headers_are_not_believed(shape: tuple[int, ...], packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    content = idx(shape, b"12345")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert "5 bytes of data where its header says" in refused(lambda: read_idx(path))


def test_an_idx_file_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(idx((2**24, 98 << 16, 2**24, 0), b""))
    assert "holds nothing" in refused(lambda: read_idx(tmp_path / "a"))


def test_an_idx_file_takes_its_size_and_the_result(tmp_path: Path) -> None:
    array = np.ones((8, 1000, 1000), np.uint8)
    (tmp_path / "a").write_bytes(idx_of(array))
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    read = read_idx(tmp_path / "a")
    _, peak = tracemalloc.get_traced_memory()
    np.testing.assert_array_equal(read, array)
    assert peak - before < 1.5 * array.nbytes + 3 * MIB


def test_a_packed_idx_file_in_an_archive_is_no_bomb_either(tmp_path: Path) -> None:
    inner = gzip.compress(idx((64, MIB), bytes(64 * MIB)))
    outer = archived({"a/emnist-letters-train-images-idx3-ubyte.gz": inner})
    (tmp_path / "gzip.zip").write_bytes(outer)
    message = refused(lambda: datasets.emnist_l(data_dir=tmp_path), 64 * MIB)
    assert "images-idx3-ubyte.gz: " in message


NPY_HEADERS = [
    (
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776,), }",
        "bytes of data where",
    ),
    ("{'descr': '|V99999999999', 'fortran_order': False, 'shape': (1,), }", "not"),
    ("{'descr': '<U999999999', 'fortran_order': False, 'shape': (1,), }", "not a whole npy file"),
    ("{'descr': '|O', 'fortran_order': False, 'shape': (6,), }", "holds object; not numbers"),
    ("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -6), }", "not a whole npy file"),
    ("{'descr': '<U0', 'fortran_order': False, 'shape': (-1,), }", "not a whole npy file"),
    ("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "(" * 5000, "not a whole npy file"),
    ("{'descr': ", "not a whole npy file"),
]


@pytest.mark.parametrize(("header", "message"), NPY_HEADERS)
def test_npy_headers_are_not_believed(header: str, message: str, tmp_path: Path) -> None:
    text = header.encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 6
    path = tmp_path / "femnist_300writers.npz"
    arrays = {f"{name}.npy": saved(array) for name, array in WRITERS.items()}
    path.write_bytes(archived(arrays | {"labels.npy": content}))
    assert message in refused(lambda: datasets.femnist("writers", data_dir=tmp_path))
    # mapped by numpy, an array of no bytes and of -1 words would end the process
    datasets.write_mapped(tmp_path / "few", [([[1.0]], [0])])
    (tmp_path / "few" / "names.npy").write_bytes(content)
    message = refused(lambda: datasets.mapped(str(tmp_path / "few")))
    assert "names.npy: not an array that can be mapped" in message


LONG_HEADER = b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{'descr': "


def test_npy_headers_are_short(tmp_path: Path) -> None:
    """Of version 2 they may be of 4 GB, for which numpy makes room before it reads."""
    arrays = {f"{name}.npy": saved(array) for name, array in WRITERS.items()}
    path = tmp_path / "femnist_300writers.npz"
    path.write_bytes(archived(arrays | {"labels.npy": LONG_HEADER}))
    assert "not a whole npy file" in refused(lambda: datasets.femnist("writers", data_dir=tmp_path))
    datasets.write_mapped(tmp_path / "few", [([[1.0]], [0])])
    (tmp_path / "few" / "x.npy").write_bytes(LONG_HEADER)
    message = refused(lambda: datasets.mapped(str(tmp_path / "few")))
    assert "x.npy: not an array that can be mapped: a header of version 2.0" in message


LONG_KEYS = [
    ".".join("a" * 8000) + " = 1",
    "[solver]\nepochs = 1\n[" + " . ".join("a" * 8000) + "]",
    r".".join([r'"a\"."'] * 8000) + " = 1",
    "data = {" + ".".join(["'a b'"] * 8000) + " = 1}",
]


@pytest.mark.parametrize("text", LONG_KEYS)
def test_keys_of_many_parts_are_refused_in_little_memory(text: str, tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    line = text.count("\n") + 1
    assert f"a key of more than 16 parts (at line {line})" in refused(
        lambda: read_experiment(path), MIB
    )


def test_a_long_text_with_points_is_no_key() -> None:
    numbers = ", ".join(f"{k}.5" for k in range(1000))
    word = ".".join("abcdefghijklmnopqrstuvw")
    text = f"step_seconds = [{numbers}]\npath = '/x/{word}'  # see {word}\n" + f"# {word} " * 1000
    assert len(parse_toml(text)["step_seconds"]) == 1000
    assert parse_toml(" . ".join("abcdefghijklmnop") + " = 1")["a"]["b"]
    # each of these would take hours in a search that goes back
    for word in ("a" * 10**5, '"' * 10**5, "a." * 15 + "!" * 10**5, "'a' . " * 10**4 + "\n"):
        with pytest.raises(ValueError, match=r"\(at "):
            parse_toml(word)


def test_a_size_in_an_archives_directory_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "tweets.zip"
    content = bytearray(archived({CSV: b"0" * 1000}, zipfile.ZIP_STORED))
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    path.write_bytes(content)
    refused(lambda: list(read_csv(path)))


# Pickles, MessagePack and databases


def pickled(program: bytes) -> Callable[[], object]:
    return lambda: cifar._batch(cifar.CIFAR_10, "here", io.BytesIO(b"\x80\x04" + program))


HARM = {
    "a memo for four thousand million": b"Nr\xff\xff\xff\xff.",
    "a string of 2^31 bytes": b"T" + struct.pack("<i", 2**31 - 1) + b"abc.",
    "a string of 2^40 bytes": b"\x8e" + struct.pack("<Q", 2**40) + b"abc.",
    "a frame of 2^62 bytes": b"\x95" + struct.pack("<Q", 2**62) + b"N.",
    "a number of 2^31 bytes": b"\x8b" + struct.pack("<i", 2**31 - 1) + b"a.",
    "a number of many digits": b"I" + b"9" * 5000 + b"\n.",
    "an operation that is none": b"\xff.",
    "an end that is missing": b"}",
}


@pytest.mark.parametrize("name", HARM)
def test_pickles_that_do_harm_are_refused(name: str) -> None:
    assert refused(pickled(HARM[name])).startswith("here: not a ")


def test_a_pickle_takes_twice_its_size_and_the_result() -> None:
    content = old(batch(2000, 10))
    stream = io.BytesIO(content)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    images, _ = cifar._batch(cifar.CIFAR_10, "here", stream)
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < 2 * len(content) + images.nbytes + 3 * MIB


def database(path: Path, script: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in script.split(";"):
            connection.execute(statement, values if "?" in statement else ())


TABLE = (
    "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL, "
    "num_examples INTEGER NOT NULL)"
)

FOR_EVER = """CREATE VIEW federated_data AS WITH RECURSIVE row(n) AS
(SELECT 1 UNION ALL SELECT n + 1 FROM row WHERE n > 0)
SELECT n AS client_id, zeroblob(100000000) AS data, 1 AS num_examples FROM row WHERE n < 0"""

COMPUTED = """CREATE TABLE federated_data (client_id, num_examples,
data BLOB GENERATED ALWAYS AS (zeroblob(900000000)));
INSERT INTO federated_data VALUES ('a', 1)"""


@pytest.mark.parametrize("script", [FOR_EVER, COMPUTED, TABLE.replace("data BLOB", "other BLOB")])
def test_a_database_computes_nothing(script: str, tmp_path: Path) -> None:
    for part in ("train", "test"):
        database(tmp_path / f"federated_emnist_{part}.sqlite", script)
    message = refused(lambda: datasets.femnist("writers", data_dir=tmp_path))
    assert "it needs a table federated_data with columns client_id, data, num_ex" in message


def nested(depth: int, count: int) -> bytes:
    """Lists of so many things in one another, of which only the first is there."""
    return (b"\xdd" + struct.pack(">I", count)) * depth + b"\xc0"


EXAMPLES = {
    "zeros": bytes(64 * MIB),
    "lists that announce too much": nested(900, MIB) + b"\0" * MIB,
    "a table that announces too much": b"\xdf\x00\x10\x00\x00" + b"\0" * MIB,
    "an array of objects": msgpack.packb(
        {"pixels": msgpack.ExtType(1, msgpack.packb(((1,), "object", b"12345678"))), "label": 1}
    ),
    "an array of another shape": msgpack.packb(
        {"pixels": msgpack.ExtType(1, msgpack.packb(((2**40,), "uint8", b"1"))), "label": 1}
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_that_announce_too_much_are_refused(name: str, tmp_path: Path) -> None:
    packed = zlib.compress(EXAMPLES[name])
    whole = zlib.compress(msgpack_serialize(writer(1)))
    for part, data in (("train", packed), ("test", whole)):
        path = tmp_path / f"federated_emnist_{part}.sqlite"
        database(path, f"{TABLE}; INSERT INTO federated_data VALUES (?, ?, 1)", IDS[0], data)
    tracemalloc.reset_peak()
    message = refused(lambda: datasets.femnist("writers", data_dir=tmp_path), 64 * MIB)
    assert "writer 'f0001_02': examples cannot be read" in message


# Archives that lead elsewhere


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def holes() -> tarfile.TarInfo:
    """2^60 zeros in a file of a kilobyte."""
    info = tarfile.TarInfo("a/data_batch_1")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    info.pax_headers |= {"GNU.sparse.realsize": str(2**60), "GNU.sparse.name": info.name}
    info.size = 512
    return info


ELSEWHERE = {
    "a symbolic link": entry("a/data_batch_1", tarfile.SYMTYPE, "/etc/passwd"),
    "a link": entry("a/data_batch_1", tarfile.LNKTYPE, "../../etc/passwd"),
    "a device": entry("a/data_batch_1", tarfile.CHRTYPE),
    "a pipe": entry("a/data_batch_1", tarfile.FIFOTYPE),
    "a file with holes": entry("a/data_batch_1", tarfile.GNUTYPE_SPARSE),
    "holes by its header": holes(),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_no_file_of_an_archive_is_not_read(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as file:
        content = io.BytesIO(b"0\n".ljust(512, b"\0"))
        file.addfile(ELSEWHERE[name], content if ELSEWHERE[name].size else None)
    assert "data_batch_1 is missing" in refused(lambda: datasets.cifar_10(data_dir=tmp_path))


def test_archives_that_lead_out_of_their_folder_write_nothing(tmp_path: Path) -> None:
    home = tmp_path / "data"
    home.mkdir()
    members = {f"../../{name}": old(batch(3, 100)) for name in ("train", "test")}
    (home / "cifar-100-python.tar.gz").write_bytes(tarred(members, "w:gz"))
    assert len(datasets.cifar_100(clients=1, data_dir=home).train) == 3
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["cifar-100-python.tar.gz"]


def test_long_names_one_in_another_are_refused(tmp_path: Path) -> None:
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 1
    raw = (long.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 2000
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(gzip.compress(raw))
    message = refused(lambda: datasets.cifar_100(data_dir=tmp_path))
    assert "cifar-100-python.tar.gz: " in message
