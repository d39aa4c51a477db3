"""`fedprox data`: the catalogue, downloads, and a data set beside the papers' figures."""

import gc
import hashlib
import re
import resource
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import StepPatch
from rich.console import Console

from fedprox import Column, Columns, Federation, InputError, datasets
from fedprox.datasets import CATALOGUE, PAPERS, DataSet
from fedprox.datasets.labelled import PARTITIONS, AnyPartition
from fedprox.datasets.sources import (
    FEMNIST_SQLITE,
    MNIST,
    QMNIST,
    SHAKESPEARE,
    SOURCES,
    Source,
    find,
)
from fedprox.federation import Rows
from fedprox.report.data import (
    classes_for,
    columns_table,
    data_figure,
    statistics,
    statistics_table,
    where,
)
from tests.commands import line_of
from tests.test_cli import status

# a download that fails leaves its connection to the garbage collector (requests, under pooch)
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

CONTENT = b"what the data set is made of" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no data folder."""
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder; a file called `cut` breaks off half-way."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.endswith("/cut"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2])
        return None


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a folder on this machine with the file `a` of CONTENT."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a").write_bytes(CONTENT)
    gc.freeze()  # so that the collection below sees what the test leaves, and no more
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()
    gc.collect()  # here, where what is left unclosed is expected
    gc.unfreeze()


def source(name: str, *folders: str, content: bytes = CONTENT) -> Source:
    checksum = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Source("folder", name, len(content), checksum, folders)


def enter(patch: pytest.MonkeyPatch, *files: Source) -> None:
    """Put a data set called `made` into the catalogue."""
    patch.setitem(CATALOGUE, "made", DataSet(datasets.synthetic, (), files))


@pytest.fixture
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are empty, which saves most of the time of a test that reads what is said."""
    for name in ("data_figure", "population_figure"):
        monkeypatch.setattr(f"fedprox.commands.data.{name}", lambda *_: Figure(figsize=(1, 1)))


def one_line(capsys: Any) -> str:
    return line_of(capsys.readouterr().err)


NOWHERE = "http://127.0.0.1:9/"


def test_a_file_is_downloaded_once_and_checked(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    enter(monkeypatch, source("a", NOWHERE, address))
    assert status("data", "fetch", "made") == 0
    kept = cache / "folder" / "a"
    assert capsys.readouterr().out == f"{kept}\n"
    assert kept.read_bytes() == CONTENT
    enter(monkeypatch, source("a", NOWHERE))
    assert status("data", "fetch", "made") == 0
    assert capsys.readouterr().out == f"{kept}\n"
    kept.write_bytes(b"damaged")
    assert status("data", "fetch", "made") == 2
    assert "could not be downloaded (127.0.0.1:9: ConnectionError)" in one_line(capsys)
    enter(monkeypatch, source("a", address))
    assert status("data", "fetch", "made") == 0
    assert kept.read_bytes() == CONTENT


def test_a_file_with_a_wrong_checksum_is_not_kept(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    enter(monkeypatch, source("a", address, content=b"other"))
    assert status("data", "fetch", "made") == 2
    error = one_line(capsys)
    assert "a is missing and could not be downloaded" in error
    assert "wrong checksum); put it in a folder folder/" in error
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_file_without_a_checksum_is_downloaded_on_request_alone(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    unpublished = Source("folder", "a", 0, "", (address,))
    enter(monkeypatch, unpublished)
    assert status("data", "fetch", "made") == 2
    error = one_line(capsys)
    assert error.startswith("fedprox: folder: a is missing, and no checksum for a download is publ")
    assert "fedprox data fetch folder --all --unverified" in error
    with pytest.raises(InputError, match=r"no checksum for a download is published"):
        find(unpublished, None)
    assert not cache.exists()
    assert status("data", "fetch", "made", "--unverified") == 0
    assert find(unpublished, None) == cache / "folder" / "a"


def test_downloads_without_a_checksum_are_these_and_none_is_over_plain_http() -> None:
    files = {file._replace(use="", instead=()) for e in CATALOGUE.values() for file in e.files}
    assert files == set(SOURCES.values())
    without = {source for source in files if not source.hash}
    assert {source.name for source in without} == {s.name for s in (SHAKESPEARE, *FEMNIST_SQLITE)}
    for source in files:
        assert all(folder.startswith("https://") for folder in source.folders) or source.hash
        assert re.fullmatch("(|md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})", source.hash)
        assert source.folders
        assert source.subfolder in CATALOGUE or source.hash  # the message names the data set


def test_pinned_files_are_those_of_the_data_folder(data_dir: Path) -> None:
    for source in (*MNIST, *QMNIST):
        with (data_dir / "mnist" / source.name).open("rb") as file:
            assert source.hash == f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@pytest.mark.parametrize("name", ["cut", "none"])
def test_a_download_that_fails_leaves_nothing(
    name: str, address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    enter(monkeypatch, source(name, address))
    assert status("data", "fetch", "made") == 2
    error = one_line(capsys)
    assert error.startswith(f"fedprox: folder: {name} is missing and could not be downloaded")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_full_disk_while_downloading_is_one_line_and_leaves_nothing(
    address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    enter(monkeypatch, source("a", address, address))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(CONTENT) // 2, hard))
    try:
        assert status("data", "fetch", "made") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert one_line(capsys) == "fedprox: File too large"
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("")
    assert status("data", "fetch", "mnist") == 2
    assert f"{tmp_path / 'file'}" in one_line(capsys)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bcut", b"\0\0\x08\x03"])
def test_a_broken_file_of_the_data_folder_is_named(
    content: bytes, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for mnist_file in MNIST:
        (folder / mnist_file.name).write_bytes(content)
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path / "data"))
    assert status("data", "describe", "mnist", "--out", tmp_path / "out") == 2
    assert f"{folder / 'train-images-idx3-ubyte.gz'}: " in one_line(capsys)
    assert not (tmp_path / "out").exists()


def test_files_for_some_options_are_fetched_on_request(
    cache: Path, monkeypatch: pytest.MonkeyPatch, address: str, capsys: Any
) -> None:
    enter(monkeypatch, source("a", address), source("b", NOWHERE)._replace(use="vectors"))
    assert status("data", "fetch", "made") == 0
    assert (cache / "folder" / "a").is_file()
    assert "b: not fetched, for vectors alone; --all fetches it too" in capsys.readouterr().out
    assert status("data", "fetch", "made", "--all") == 2
    assert "folder: b is missing and could not be downloaded" in capsys.readouterr().err


def test_what_is_in_the_data_folder_is_not_downloaded(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    enter(
        monkeypatch,
        source("a.gz", NOWHERE),
        source("b", NOWHERE)._replace(instead=("b.npz",)),
        source("c", NOWHERE)._replace(instead=("b.npz",)),
        source("d", NOWHERE)._replace(instead=("part/*.json",)),
    )
    (tmp_path / "data" / "folder" / "part").mkdir(parents=True)
    mine = [tmp_path / "data" / name for name in ("folder/a", "b.npz", "folder/part/x.json")]
    for path in mine:
        path.write_bytes(b"")
    assert status("data", "fetch", "made", "--data-dir", tmp_path / "data") == 0
    assert capsys.readouterr().out.split() == [str(path) for path in mine]
    assert not cache.exists()


def test_a_fetched_file_is_found_beside_a_data_folder_that_lacks_it(
    address: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = source("a", address)
    enter(monkeypatch, file)
    (tmp_path / "data").mkdir()
    assert status("data", "fetch", "made", "--data-dir", tmp_path / "data") == 0
    found = find(file, tmp_path / "data")
    assert found == cache / "folder" / "a"


def test_where_a_data_set_is(
    address: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del address
    a, b = source("a", "https://example.org/x/"), source("b", "https://example.org/y/")
    entry = DataSet(datasets.mnist, (), (a, b._replace(use="labels")))
    assert where(entry) == "to be downloaded from example.org (0.056 MB)"
    unknown = DataSet(datasets.mnist, (), (a._replace(size=0), b))
    assert where(unknown) == "to be downloaded from example.org"
    (cache / "folder").mkdir(parents=True)
    (cache / "folder" / "a").write_bytes(b"")
    assert where(entry) == "in the cache: a; to be downloaded from example.org (0.028 MB): labels"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "b").write_bytes(b"")
    assert where(entry, tmp_path / "data") == "in the cache: a; in the data folder: labels"
    (cache / "folder" / "b").write_bytes(b"")
    assert where(entry) == "in the cache"
    assert where(CATALOGUE["synthetic"]) == "generated"
    assert where(CATALOGUE["hugging-face"]) == "yours: data.path"
    monkeypatch.setenv("FEDPROX_DATA", str(tmp_path / "data"))
    assert where(entry) == "in the cache: a; in the data folder: labels"


def test_the_list_has_every_data_set(cache: Path, tmp_path: Path, capsys: Any) -> None:
    del cache
    assert status("data", "list") == 0
    printed = capsys.readouterr().out
    for name, entry in CATALOGUE.items():
        assert f"\n{name} " in printed
        assert entry.what.split()[0] in printed
    assert "power-law" in printed
    assert status("data", "list", "--data-dir", tmp_path / "no") == 2
    assert "no is not a folder" in one_line(capsys)


def test_every_data_set_is_described_and_has_a_name_for_experiments() -> None:
    for name, entry in CATALOGUE.items():
        assert datasets.DATASETS[name] is entry.load
        assert 10 < len(entry.what) < 100
    for name, partition in PAPERS:
        assert (partition in CATALOGUE[name].partitions) if partition else name in CATALOGUE
    assert set(AnyPartition.__args__) == set(PARTITIONS)  # type: ignore[attr-defined]
    assert CATALOGUE["leaf"].partitions == tuple(PARTITIONS)
    assert CATALOGUE["synthetic"].partitions == ()


BAD = [
    (["fetch", "mnst"], "'mnst' is not a data set; did you mean 'mnist'? allowed: synthetic"),
    (["fetch", "mnist", "--data-dir", "no"], "--data-dir: no is not a folder"),
    (["fetch"], "NAME"),
    (["fetch", "mnist", "more"], "more"),
    (["lst"], "lst"),
    (["describe"], "NAME"),
    (["describe", "sythetic"], "data.name = 'sythetic'; did you mean 'synthetic'? allowed: "),
    (["describe", "synthetic", "--set", "alhpa=1"], "unknown key 'alhpa'; did you mean 'alpha'?"),
    (["describe", "synthetic", "--set", "alpha=one"], "data.alpha = 'one'; it must be a number"),
    (["describe", "synthetic", "--set", "alpha=-1"], "data.alpha = -1.0; it must be at least 0"),
    (["describe", "synthetic", "--set", "clients=0"], "data.clients = 0; it must be a whole"),
    (["describe", "synthetic", "--set", "clients"], "--set clients: it must be KEY=VALUE"),
    (["describe", "synthetic", "--set", "=1"], "--set =1: it must be KEY=VALUE"),
    (["describe", "synthetic", "--set", "name=mnist"], "the name is 'synthetic' already"),
    (["describe", "synthetic", "--set", "data.alpha=1"], "unknown key 'data'"),
    (["describe", "synthetic", "--set", "seed=-1"], "seed = -1; it must be a whole number"),
    (
        ["describe", "mnist", "--set", "partition=power"],
        "data.partition = 'power'; it must be one of",
    ),
    (["describe", "leaf"], "data: the key 'path' is missing"),
    (["describe", "leaf", "--set", "path=no"], "data.path: no folders train/ and test/ in no"),
    (["describe", "mnist", "--data-dir", "."], "mnist: train-images-idx3-ubyte.gz is missing"),
    (["describe", "mnist", "--data-dir", "no"], "--data-dir: no is not a folder"),
    (["describe", "hugging-face", "--set", "path=x"], "data: the key 'features' is missing"),
    (["describe", "synthetic", "--figure"], "--figure"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: str(value)[-40:])
def test_bad_input_is_one_line_and_leaves_nothing(
    *,
    arguments: list[str],
    message: str,
    cache: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del cache
    monkeypatch.chdir(tmp_path)
    assert status("data", *arguments) == 2
    assert message in one_line(capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_empty")
def test_folders_that_cannot_be_written_are_one_line(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("kept")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert status("data", "describe", "synthetic", "--out", out) == 2
        assert str(out) in one_line(capsys)
    assert (tmp_path / "file").read_text() == "kept"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert status("data", "describe", "synthetic", "--out", tmp_path / "out") == 2
    assert "No space left on device" in one_line(capsys)
    assert not list((tmp_path / "out").iterdir())


def test_describe_prints_both_and_draws(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert status("data", "describe", "synthetic", "--set", "clients=12", "--out", out) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("synthetic: alpha = 1.0, beta = 1.0, iid = False, random_mean = ")
    assert ", clients = 12, " in printed.splitlines()[0]
    federation = datasets.synthetic(clients=12)
    n = federation.train.sizes + federation.test.sizes
    ours = f"train and test 12 {n.sum():,} {n.mean():,.1f} {n.std():,.1f}"
    assert ours in " ".join(printed.split())
    assert "Li et al. 2020, appendix C.1" in printed
    assert {path.name for path in out.iterdir()} == {"data.png", "data.svg"}
    picture = imread(out / "data.png")[..., :3]
    colours = (255 * picture).astype(int) @ [1, 256, 256**2]
    height, width, _ = picture.shape
    assert min(height, width) > 400
    for half in (slice(0, width // 2), slice(width // 2, width)):
        assert len(np.unique(colours[:, half])) > 20
        assert 0.01 < (picture[:, half].min(axis=2) < 0.9).mean() < 0.9
    drawn = [
        element.tag.rpartition("}")[2] for element in ElementTree.parse(out / "data.svg").iter()
    ]
    assert drawn.count("image") >= 2  # the label mixes; the rest are lines and letters
    assert drawn.count("path") > 50


@pytest.mark.usefixtures("_empty")
def test_describe_draws_the_devices_of_an_experiment(tmp_path: Path, capsys: Any) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(
        """
        rounds = 1
        data = { name = "synthetic", clients = 4 }
        cohort = { clients_per_round = 2 }
        solver = { learning_rate = 0.1, steps = 5, batch_size = 10 }
        method = [{ name = "scaffold" }]

        [population]
        step_seconds = [1.0, 2.0, 4.0, 8.0]
        latency = 0.5
        dropout = 0.25
        available = { hours = 6.0, zones = 1 }
        """
    )
    assert status("data", "describe", file, "--out", out) == 0
    # five steps, and a message there and back
    assert (
        "a client's round: 16 s in the median, from 6 s to 41 s; on for 26 % of the time; "
        "25 % of them are lost"
    ) in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        *("data.png", "data.svg"),
        *("population.png", "population.svg"),
    }


@pytest.mark.usefixtures("_empty")
def test_describe_prints_the_columns_of_a_table(tmp_path: Path, capsys: Any) -> None:
    csv, out = tmp_path / "a.csv", tmp_path / "out"
    csv.write_text("ward,age,stage,sex,ill\na,40,II,f,no\na,,I,m,yes\nb,50,III,,no\nb,60,I,f,no\n")
    options = {"table": csv, "client": "ward", "label": "ill", "test": 0.5}
    options |= {"missing": '{age = "column", sex = "m"}', "kinds": '{age = {unit = "years"}}'}
    settings = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    assert status("data", "describe", "table", *settings, "--out", out) == 0
    _, _, table = capsys.readouterr().out.partition("column ")
    assert [line.split() for line in table.splitlines()[:5]] == [
        ["kind", "values", "for", "a", "missing", "value", "unit"],
        ["age", "number", "-", "column", "years"],
        ["stage", "category", "3", "-"],
        ["sex", "category", "2", "m"],
        ["ill,", "the", "label", "category", "2", "-"],
    ]
    features = tuple(Column(f"x{i}", "number") for i in range(100))
    many = columns_table(Columns(features, Column("y", "number")))
    assert many.row_count == 42
    assert list(many.columns[0].cells)[-2:] == ["60 more", "y, the label"]


@pytest.mark.usefixtures("_empty")
def test_a_run_directory_keeps_its_own_figure(tmp_path: Path) -> None:
    (tmp_path / "figure.png").write_bytes(b"of the run")
    assert status("data", "describe", "synthetic", "--out", tmp_path) == 0
    assert (tmp_path / "figure.png").read_bytes() == b"of the run"


@pytest.mark.slow
def test_mnist_stands_beside_the_papers_table(data_dir: Path, tmp_path: Path, capsys: Any) -> None:
    flags = ("--data-dir", data_dir, "--out", tmp_path)
    assert status("data", "describe", "mnist", *flags) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "Li et al. 2020, Table 1 train and test 1,000 69,035 69 106 2 -" in lines
    (ours,) = [line.split() for line in lines if line.startswith("here train and test")]
    assert ours[4] == "1,000"
    assert ours[8] == "2"
    assert status("data", "describe", "mnist", "--set", "partition=shards", *flags) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "here train 100 60,000 600.0 0.0 2 (" in printed
    assert "McMahan et al. 2017, section 3 train 100 60,000 600 0 2 -" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({"partition": "iid"}, 8, 8),  # Acar et al. 2021, Figure 3: 8 classes make 80 %
        ({"partition": "dirichlet", "concentration": 0.6}, 4, 5.5),  # about 5
        ({"partition": "dirichlet", "concentration": 0.3}, 2.5, 3.5),  # about 3
    ],
)
def test_feddyns_federations_are_as_skewed_as_the_paper_says(
    options: dict[str, Any], low: float, high: float, data_dir: Path
) -> None:
    found = statistics(datasets.mnist(**options, data_dir=data_dir), "train")
    assert low <= found.most.mean() <= high


def made(labels: list[list[int]], test: list[list[int]], classes: int) -> Federation:
    """A federation of given labels."""

    def rows(parts: list[list[int]]) -> Rows:
        y = np.array([c for part in parts for c in part], np.int32)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        return Rows(np.zeros((len(y), 1), np.float32), y, offsets.astype(np.int64))

    return Federation(rows(labels), rows(test), classes, tuple(map(str, range(len(labels)))))


parts = st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1), st.lists(st.integers(0, 4))))


@settings(max_examples=30)
@given(parts.filter(len))
def test_statistics_are_those_of_a_plain_loop(drawn: list[tuple[list[int], list[int]]]) -> None:
    train, test = [a for a, _ in drawn], [b for _, b in drawn]
    federation = made(train, test, 5)
    for which, whole in (("train", train), ("all", [a + b for a, b in drawn])):
        found = statistics(federation, which)  # type: ignore[arg-type]
        assert found.clients == len(whole)
        assert found.samples == sum(map(len, whole))
        assert found.mean == pytest.approx(np.mean([len(part) for part in whole]))
        assert found.deviation == pytest.approx(np.std([len(part) for part in whole]))
        assert found.classes.tolist() == [len(set(part)) for part in whole]
        for part, most in zip(whole, found.most, strict=True):
            counts = sorted((part.count(c) for c in set(part)), reverse=True)
            assert sum(counts[:most]) >= 0.8 * len(part) > sum(counts[: most - 1])
        for tenths in (4, 6, 8, 10):
            needed = classes_for(federation, tenths / 10, which)  # type: ignore[arg-type]
            for part, most in zip(whole, needed, strict=True):
                counts = sorted((part.count(c) for c in set(part)), reverse=True)
                held, before = sum(counts[:most]), sum(counts[: most - 1])
                assert 10 * held >= tenths * len(part) > 10 * before


def test_the_figure_counts_clients_by_the_classes_that_make_up_their_labels() -> None:
    # for 40, 60 and 80 %, the clients need 1, 1, 1; 1, 2, 2; and 2, 3, 4 classes
    labels = [[0] * 10, [0] * 5 + [1] * 3 + [2] * 2, [0, 1, 2, 3, 4]]
    axis = data_figure(made(labels, [[], [], []], 5), "made").axes[2]
    steps = [patch for patch in axis.patches if isinstance(patch, StepPatch)]
    heights = [patch.get_data()[0] for patch in steps]
    found = [np.asarray(one, int).tolist() for one in heights]
    assert found == [[0, 2, 1, 0, 0], [0, 1, 1, 1, 0], [0, 1, 1, 0, 1]]
    assert [patch.get_label() for patch in steps] == [
        f"{share} % of the labels" for share in (40, 60, 80)
    ]


def printed_table(federation: Federation, name: str, partition: str = "") -> list[str]:
    console = Console(width=120, record=True, file=StringIO())
    console.print(statistics_table(federation, name, partition))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_labels_of_sequences_count_where_there_are_some() -> None:
    y = np.array([[0, 1, -1], [0, 0, 0], [2, -1, -1]], np.int32)
    rows = Rows(np.zeros((3, 3), np.int32), y, np.array([0, 2, 3]))
    none = Rows(rows.x[:0], y[:0], np.zeros(3, np.int64))
    federation = Federation(rows, none, 3, ("a", "b"))
    found = statistics(federation, "all")
    assert found.classes.tolist() == [2, 1]
    assert found.most.tolist() == [1, 1]
    assert (found.samples, found.mean) == (3, 1.5)
    lines = printed_table(federation, "shakespeare", "lines")
    assert "here train, labels 2 6 3.0 2.0 1.5 (1 to 2) 1" in lines
    assert any(line.startswith("McMahan et al. 2017, section 3") for line in lines)


def test_numbers_as_labels_have_no_classes(tmp_path: Path) -> None:
    clients = [(np.zeros((k + 1, 2)), np.linspace(0, 1, k + 1)) for k in range(3)]
    federation = Federation.from_arrays(clients)
    found = statistics(federation, "all")
    assert not found.classes.any()
    assert printed_table(federation, "mine")[1:] == [
        "here train and test 3 6 2.0 0.8 - -",
        "here train 3 6 2.0 0.8 - -",
    ]
    drawn = data_figure(federation, "mine")
    drawn.savefig(tmp_path / "a.png")
    assert [text.get_text() for text in drawn.axes[1].texts] == ["labels are not classes"]


def test_the_figure_draws_what_is_there() -> None:
    stream = np.random.default_rng(0)
    train = [stream.integers(0, 7, n).tolist() for n in stream.integers(1, 300, 90)]
    train[7] = [3] * 500
    test: list[list[int]] = [[] for _ in train]
    drawn = data_figure(made(train, test, 7), "title")
    sizes, mixes, *_ = drawn.axes
    (steps,) = (patch.get_data() for patch in sizes.patches if isinstance(patch, StepPatch))
    assert np.asarray(steps[0]).tolist() == sorted(map(len, train), reverse=True)
    assert np.asarray(steps[1]).tolist() == [k + 0.5 for k in range(91)]
    assert sizes.get_yscale() == "log"
    picture = np.asarray(mixes.images[0].get_array())
    assert picture.shape == (1 + 60, 7)
    assert picture[1].tolist() == [0, 0, 0, 1, 0, 0, 0]
    np.testing.assert_allclose(picture.sum(axis=1), 1)
    everyone = np.bincount([c for part in train for c in part]) / sum(map(len, train))
    np.testing.assert_allclose(picture[0], everyone)


def test_one_client_and_any_title_can_be_drawn(tmp_path: Path) -> None:
    drawn = data_figure(made([[0, 1]], [[0]], 2), r'mine: path = "$HOME/$\nothing"')
    drawn.savefig(tmp_path / "a.png")
    assert [text.get_text() for text in drawn.axes[1].get_yticklabels()] == ["all", "largest"]


@pytest.mark.slow
def test_clients_without_labels_are_drawn(tmp_path: Path) -> None:
    x, labels, nothing = np.zeros((2, 3)), np.zeros((2, 3), int), np.full((2, 3), -1)
    for clients in ([labels, nothing], [nothing, nothing]):
        drawn = data_figure(Federation.from_arrays([(x, y) for y in clients], classes=2), "few")
        drawn.savefig(tmp_path / "a.png")
        assert drawn.axes[1].get_title() == "labels of all and of the 2 clients"


def test_equal_sizes_and_many_classes_can_be_drawn(tmp_path: Path) -> None:
    train = [list(range(k, k + 150)) for k in range(2)]
    drawn = data_figure(made(train, train, 200), "title")
    drawn.savefig(tmp_path / "a.png")
    sizes, mixes, *_ = drawn.axes
    assert sizes.get_yscale() == "linear"
    assert np.asarray(mixes.images[0].get_array()).shape == (1 + 2, 100)
    assert mixes.get_xlabel() == "class, the 100 most frequent of 200"
