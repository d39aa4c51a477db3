"""Every reader of files from outside: how to call it, small valid files, and words to try."""

import functools
import gzip
import io
import json
import sqlite3
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from flax.serialization import msgpack_serialize

from fedprox import Federation, datasets, models
from fedprox.datasets import DATASETS, cifar, handwriting
from fedprox.datasets.handwriting import _from_npz, _table
from fedprox.datasets.sent140 import read_csv, read_leaf
from fedprox.datasets.shakespeare import _characters, _lines
from fedprox.datasets.sources import SENT140_CSV as CSV
from fedprox.datasets.text import read_vectors
from fedprox.experiment import read_experiment, resolved
from fedprox.files.packed import read_idx, tar_members
from fedprox.models import MODELS
from fedprox.report.archive import read_archive
from fedprox.report.figure import styles
from fedprox.report.page import section
from fedprox.report.saved import NUMBERS, _tensors, encode_params, load_model
from fedprox.studies.results import Study
from tests import test_cli
from tests.datasets import test_cifar, test_femnist
from tests.datasets.test_datasets import GOOD, idx_of, leaf_file
from tests.datasets.test_text import PLAY, ROWS, csv_of, leaf_of
from tests.report import test_report

TOML_FACTOR = 200
"""Bytes of memory for each byte of TOML: tomllib makes four tables of `[a]`."""


class Reader(NamedTuple):
    """A reader of files.

    Attributes:
        file: Name of the file that it reads.
        read: Reads it.
        seeds: Contents that it accepts.
        words: Pieces of contents that mean something to it.
        pack: Makes the file of a content: identity, or an archive around it.
        factor: Bytes of memory that it may take for each byte of content, beside the result.
        room: Bytes of memory that it may take for any content: buffers, and what packed files are.
    """

    file: str
    read: Callable[[Path], object]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    pack: Callable[[bytes], bytes] = lambda content: content
    factor: int = 2
    room: int = 6 << 20


def fresh(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a data set's function with nothing kept in the cache."""

    def prepared(
        name: str,  # noqa: ARG001
        sources: object,  # noqa: ARG001
        options: object,  # noqa: ARG001
        build: Callable[[], Any],
        *,
        version: int = 1,  # noqa: ARG001
    ) -> Any:
        return build()

    with mock.patch.object(sys.modules[function.__module__], "prepared", prepared):
        return function(*arguments, **options)


def archived(members: Mapping[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", how) as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content, how)
    return raw.getvalue()


def tarred(members: Mapping[str, bytes], mode: str, form: int = tarfile.PAX_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode, format=form) as file:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def saved(array: Any) -> bytes:
    raw = io.BytesIO()
    np.save(raw, array)
    return raw.getvalue()


def database(rows: Iterable[tuple[bytes, bytes, int]]) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute(
            "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, "
            "data BLOB NOT NULL, num_examples INTEGER NOT NULL)"
        )
        connection.executemany("INSERT INTO federated_data VALUES (?, ?, ?)", rows)
        connection.commit()
        return connection.serialize()


# what each of them reads

COLOURS = (test_cifar.old(test_cifar.batch(1, 10)), test_cifar.old(test_cifar.batch(2, 10)))

PICKLED = (
    *(b"cnumpy\ndtype\n", b"cos\nsystem\n", b"\x80\x05", b"R", b"b", b"r\xff\xff\xff\x7f"),
    *(b"\x8e" + 7 * b"\xff" + b"\x7f", b"\x95" + 7 * b"\xff" + b"\x7f", b"U\x06labels"),
    *(b"J\xff\xff\xff\xff", b"\x8a\xff", b"I99999\n", b"T\xff\xff\xff\x7f", b"."),
)


def colours(path: Path) -> object:
    with path.open("rb") as file:
        return cifar._batch(cifar.CIFAR_10, str(path), file)


HUNDRED = {
    f"cifar-100-python/{name}": test_cifar.old(test_cifar.batch(1, 100))
    for name in ("train", "test")
}


def colour_archive(path: Path) -> object:
    return cifar._parse(cifar.CIFAR_100, path, tar_members(path, cifar.CIFAR_100.files))


LABELS = np.arange(1, 4, dtype=np.uint8)
IMAGES = gzip.compress(idx_of(np.zeros((3, 28, 28), np.uint8)))


def letters(content: bytes) -> bytes:
    """EMNIST's archive with a content as its labels."""
    members = {"images-idx3": IMAGES, "labels-idx1": gzip.compress(content, 1)}
    return archived(
        {f"gzip/emnist-letters-train-{what}-ubyte.gz": each for what, each in members.items()},
        zipfile.ZIP_STORED,
    )


SAMPLE = {
    "images": np.zeros((2, 28, 28), np.uint8),
    "labels": np.arange(2),
    "writer": np.array([0, 1]),
    "split": np.array([0, 0]),
    "writer_ids": np.array(["ann", "bob"]),
}


def sample(content: bytes, name: str = "labels") -> bytes:
    """A file of writers with a content as one of its arrays."""
    members = {f"{name}.npy": saved(array) for name, array in SAMPLE.items()}
    return archived(members | {f"{name}.npy": content}, zipfile.ZIP_STORED)


WRITER = msgpack_serialize(test_femnist.writer(1, pixels=np.zeros((1, 28, 28), np.float32)))


def writers(content: bytes) -> bytes:
    """A database of one writer with a content as its examples, unpacked."""
    return database([(test_femnist.IDS[0], zlib.compress(content, 1), 1)])


def leaf_folder(path: Path) -> object:
    """LEAF's folder with the same file in both of its parts."""
    test = path.parents[1] / "test" / path.name
    test.parent.mkdir(exist_ok=True)
    test.write_bytes(path.read_bytes())
    return datasets.leaf(str(path.parents[1]))


LEAF = (
    json.dumps(leaf_file(GOOD)).encode(),
    json.dumps(leaf_file({"a": ([[0.0]], [0])}), indent=1).encode(),
)

JSON = (
    *(b"NaN", b"Infinity", b"-1", b"1e999", b"1e-999", b"99999999999999999999", b"null", b"true"),
    *(b'"\\ud800"', b'"\\u0000"', b'""', b"[]", b"{}", b"[[", b"]]", b",", b":", b"\xef\xbb\xbf"),
    *(b'"users":', b'"num_samples":', b'"user_data":', b'"x":', b'"y":', b"[0]", b"0.5", b"\xff"),
)

TEXT = (b"\n", b"\r", b"\t", b" ", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"', b",")


def play_lines(path: Path) -> object:
    return fresh(_lines, path), fresh(_characters, path)


def any_posts(path: Path) -> object:
    return fresh(datasets.posts, str(path), vocabulary=5, test_share=0.3)


EXPERIMENTS = (
    test_cli.SMALL.encode(),
    *(path.read_bytes() for path in test_cli.EXAMPLES),
    b'rounds=1\nseed=[0,1]\ntarget_loss=0.5\n[data]\nname="leaf"\npath="a"\n[model]\nname="mlp"\n'
    b"hidden=[3]\n[cohort]\nclients_per_round=1\nsampling='bernoulli'\n[systems]\ndeadline=2.0\n"
    b'[population]\nstep_seconds=[0.1]\ndownload={median=1e6,spread=1.0}\n[solver]\nlearning_rate=[0.1]\nbatch_size="all"\nsteps=3\ngamma=0.1\n'
    b'optimizer="adam"\noptimizer_options={b1=0.8}\n[[method]]\nname="fedopt"\n'
    b'optimizer="yogi"\n[[method]]\nname="feddyn"\nalpha=[0.1]\nsolver={epochs=2}\n',
)

TOML = (
    *(b"nan", b"inf", b"-inf", b"99999999999999999999", b"-1", b"0", b"1e999", b"true", b'""'),
    *(b"[", b"]", b"{", b"}", b"=", b"#", b"\n", b'"""', b"'''", b"\\ud800", b"\\u0000", b"."),
    *(b"1979-05-27T07:32:00Z", b"0x", b"[[method]]\n", b'name="fedprox"', b'name="scaffold"'),
    *(b'name="feddane"', b"mu=[0.0]", b'optimizer="lbfgs"', b'batch_size="all"', b"\xff"),
)

CLIENTS = Federation.from_arrays([(np.zeros((3, 2)), [0, 1, 1]), (np.ones((1, 2)), [0])])


def stub(catalogue: Mapping[str, Callable[..., Any]], result: object) -> dict[str, Any]:
    """The same names and signatures, with nothing behind them: no data are read, none made."""

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def nothing(*_: object, **__: object) -> object:
            return result

        return nothing

    return {name: of(function) for name, function in catalogue.items()}


def an_experiment(path: Path) -> object:
    with (
        mock.patch.object(resolved, "DATASETS", stub(DATASETS, CLIENTS)),
        mock.patch.object(resolved, "MODELS", stub(MODELS, models.logistic(CLIENTS))),
    ):
        return resolved.resolve(read_experiment(path))


def report(path: Path) -> object:
    archive = read_archive(path.parent)
    return section(archive, styles(run.label for run in archive.runs))


@functools.cache
def run_directory() -> dict[str, bytes]:
    """The files of a run directory with all there can be."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [test_report.make_run(label, seed) for label in ("a", "b") for seed in (0, 1)]
        made = test_report.write_run(Path(folder) / "run", runs)
        found = [{"label": r.label, "seed": r.seed, "test_accuracy": [0.5, None]} for r in runs]
        test_report.write_json(made / "clients.json", found)
        test_report.write_json(made / "diagnosis.json", test_report.DIAGNOSIS)
        return {path.name: path.read_bytes() for path in made.iterdir()}


STUDY = json.dumps(
    {
        "measure": "test_accuracy",
        "against": None,
        "chosen": "",
        "lower_is_better": None,
        "first_seeds": [0],
        "cells": [
            {"levels": {"method": name}, "label": name, "tried": 1, "folders": ["run"]}
            for name in ("a", "b")
        ],
    }
).encode()


def a_study(path: Path) -> object:
    run = path.parent / "run"
    run.mkdir(exist_ok=True)
    for name, content in run_directory().items():
        (run / name).write_bytes(content)
    return str(Study.read(path.parent))


def report_of(file: str) -> Reader:
    """The reader of one file of a run directory, beside the others."""

    def read(path: Path) -> object:
        for name, content in run_directory().items():
            if name != file:
                (path.parent / name).write_bytes(content)
        return report(path)

    words, factor = (TOML, TOML_FACTOR) if file.endswith(".toml") else (JSON, 60)
    return Reader(file, read, (run_directory()[file],), words, factor=factor)


PARAMETERS = encode_params(
    {"layers": [{0: np.ones((2, 3), np.float32)}, (np.zeros(2), None)], "b": [0.5]}
)

SAFETENSORS = (
    *(b'"F16"', b'"I64"', b'"structure"', b'"__metadata__"', b'"data_offsets":[0,4]', b'"shape":'),
    *(b'{\\"dict\\":[', b'{\\"tuple\\":[', b"[0,", b'\\"b.0\\"', b"null", b"}", b"]"),
)

MAPPED = {
    "x.npy": saved(np.zeros((3, 2), np.float32)),
    "y.npy": saved(np.array([0, 1, 1], np.int32)),
    "offsets.npy": saved(np.array([0, 1, 3])),
    "names.npy": saved(np.array(["ann", "bob"])),
}

NPY = (
    *(b"'O'", b"'|O'", b"'<U9'", b"'<i8'", b"'>f4'", b"True", b"(2,)", b"(99999999999,)", b"()"),
    *(b"(-1,)", b"(", b"[", b"'descr'", b"\x93NUMPY\x02\x00"),
)


def mapped_folder(path: Path) -> object:
    for name, content in MAPPED.items():
        if name != path.name:
            (path.parent / name).write_bytes(content)
    federation = datasets.mapped(str(path.parent))
    return [*federation.names], federation.train.client(0)


READERS: dict[str, Reader] = {
    "idx": Reader(
        "labels-ubyte", read_idx, (idx_of(LABELS), idx_of(np.zeros((2, 3, 4), np.uint8)))
    ),
    "idx-numbers": Reader(
        "labels-int",
        lambda path: read_idx(path, kind=np.int32),
        (idx_of(np.arange(6, dtype=np.int32).reshape(2, 3)),),
    ),
    "idx-gz": Reader("labels.gz", read_idx, (gzip.compress(idx_of(LABELS)),)),
    "emnist-zip": Reader(
        "gzip.zip",
        lambda path: handwriting.read_split(path, "letters-train", 27),
        (letters(idx_of(LABELS)),),
    ),
    "emnist-labels": Reader(
        "gzip.zip",
        lambda path: handwriting.read_split(path, "letters-train", 27),
        (idx_of(LABELS),),
        pack=letters,
    ),
    "npz": Reader(
        "writers.npz",
        _from_npz,
        (sample(saved(SAMPLE["labels"])), archived({"labels.npy": saved(np.arange(2))})),
    ),
    "npy": Reader(
        "writers.npz",
        _from_npz,
        (saved(SAMPLE["labels"]), saved(np.arange(2, dtype=">i2"))),
        NPY,
        pack=sample,
    ),
    "npy-words": Reader(
        "writers.npz",
        _from_npz,
        (saved(SAMPLE["writer_ids"]),),
        NPY,
        pack=lambda content: sample(content, "writer_ids"),
    ),
    **{
        f"mapped-{name.partition('.')[0]}": Reader(name, mapped_folder, (content,), NPY)
        for name, content in MAPPED.items()
    },
    "fedjax": Reader("train.sqlite", _table, (writers(WRITER),)),
    "fedjax-examples": Reader(
        "train.sqlite",
        _table,
        (WRITER,),
        (b"\xdd\x00\x10\x00\x00", b"\xc9\x7f\xff\xff\xff", b"\xa7float32", b"\xa6object", b"\xd9"),
        pack=writers,
    ),
    "cifar-batch": Reader("data_batch_1", colours, COLOURS, PICKLED, factor=3),
    "cifar-archive": Reader(
        "cifar-100-python.tar.gz",
        colour_archive,
        (
            tarred(HUNDRED, "w"),
            tarred(HUNDRED, "w", tarfile.GNU_FORMAT),
            tarred(HUNDRED | {"x" * 200: b""}, "w"),
        ),
        (b"ustar\x0000", b"ustar  \0", b"x", b"g", b"L", b"S", b"22 GNU.sparse.major=1\n"),
        pack=lambda content: gzip.compress(content, 1),
    ),
    "cifar-xz": Reader(
        "cifar-100-python.tar.xz", colour_archive, (tarred(HUNDRED, "w:xz"),), room=1 << 28
    ),
    "leaf": Reader("train/all.json", leaf_folder, LEAF, JSON, factor=60),
    "posts": Reader(
        "posts.tsv", any_posts, (b"ann\tThe sun, the sea.\nbob\tthe moon\n\nann\tthe the\n",), TEXT
    ),
    "posts-gz": Reader("posts.gz", any_posts, (gzip.compress(b"ann\tthe sun\nbob\tthe moon\n"),)),
    "tweets": Reader("tweets.csv", lambda path: list(read_csv(path)), (csv_of(ROWS),), TEXT),
    "tweets-zip": Reader(
        "tweets.zip",
        lambda path: list(read_csv(path)),
        tuple(
            archived({f"a/{CSV}": csv_of(ROWS[:2])}, how)
            for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
        ),
    ),
    "tweets-leaf": Reader(
        "tweets.json",
        lambda path: list(read_leaf(path)),
        (json.dumps(leaf_of(ROWS)).encode(),),
        JSON,
        factor=60,
    ),
    "vectors": Reader(
        "vectors.txt",
        lambda path: read_vectors(path, None, ["a", "1", "é"]),
        ("3 2\na 1 2\n. . 3 4\né 5 6\na 7 8\nb x y\n".encode(),),
        (*TEXT, b"nan", b"inf", b"1e99", b"1_0", b"a 1 2\n"),
    ),
    "vectors-zip": Reader(
        "glove.zip",
        lambda path: read_vectors(path, "glove.txt", ["a"]),
        (archived({"glove.txt": b"a 1 2\nb 3 4\n" * 20}),),
    ),
    "shakespeare": Reader(
        "100.txt",
        play_lines,
        ((PLAY % ("x" * 100)).encode("latin-1"),),
        (*TEXT, b"by William Shakespeare", b"  Ghost. Boo!", b"    Adieu.", b"ACT I."),
    ),
    "experiment": Reader("experiment.toml", an_experiment, EXPERIMENTS, TOML, factor=TOML_FACTOR),
    **{
        f"report-{file.partition('.')[0]}": report_of(file)
        for file in (
            *("experiment.toml", "metrics.jsonl", "summary.json"),
            *("clients.json", "diagnosis.json"),
        )
    },
    "study": Reader(
        "study.json", a_study, (STUDY,), (*JSON, b'"train_loss"', b'"../run"', b'"seed"'), factor=60
    ),
    "parameters": Reader("model.safetensors", load_model, (PARAMETERS,), SAFETENSORS, factor=60),
    "weights": Reader(
        "model.safetensors",
        lambda path: [np.array(tensor) for tensor in _tensors(path, NUMBERS).values()],
        (PARAMETERS,),
        SAFETENSORS,
        factor=60,
    ),
}
"""By name. Two of them for one format are of the file as it is and of what is packed in it."""
