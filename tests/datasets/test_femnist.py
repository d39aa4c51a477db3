"""FEMNIST: its partitions, its files, and the papers' statistics."""

import gzip
import json
import sqlite3
import zipfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import InputError, datasets
from fedprox.datasets import partition


def letters(each: int, classes: int = 10) -> Any:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path_factory.mktemp("cache")))


@settings(max_examples=25)
@given(
    each=st.integers(60, 4000),
    clients=st.integers(1, 60),
    held=st.integers(1, 10),
    seed=st.integers(0, 99),
)
def test_every_client_has_its_classes_and_no_row_goes_to_two(
    each: int, clients: int, held: int, seed: int
) -> None:
    labels = letters(each)
    parts = partition.rotating_classes(labels, clients=clients, classes_per_client=held, seed=seed)
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    for u, part in enumerate(parts):
        assert set(labels[part]) == {(u + j) % 10 for j in range(held)}


def test_with_rows_enough_sizes_are_the_papers() -> None:
    labels = letters(200_000)
    parts = partition.rotating_classes(labels, clients=5000, seed=0)
    sizes = np.array([len(part) for part in parts])
    # n_u is LogNormal(4, 1) + 5, of which up to four are lost by division and the least is 10
    assert sizes.min() == 10
    assert np.median(sizes) == pytest.approx(np.exp(4) + 5, abs=5)
    assert sizes.mean() == pytest.approx(np.exp(4.5) + 2.5, abs=5)
    for part in parts[:50]:
        counts = np.bincount(labels[part])
        assert len(set(counts[counts > 0])) == 1


def test_a_scarce_class_is_divided_in_proportion_and_others_are_not() -> None:
    def counts(rows_of_last_class: int) -> Any:
        """Rows of each class given to each client."""
        labels = np.append(letters(100_000), np.full(rows_of_last_class, 10))
        parts = partition.rotating_classes(labels, clients=110, seed=3)
        return np.array([np.bincount(labels[part], minlength=11) for part in parts])

    plenty, scarce = counts(100_000), counts(300)
    np.testing.assert_array_equal(plenty[:, :10], scarce[:, :10])
    asked, given = plenty[:, 10][plenty[:, 10] > 0], scarce[:, 10][plenty[:, 10] > 0]
    assert len(asked) == 50
    # one row each, and of the 250 that are left in proportion
    np.testing.assert_array_equal(given, 1 + (asked - 1) * 250 // (asked - 1).sum())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, r"data\.clients = 0; it must be a whole number of at least 1"),
        ({"classes_per_client": 11}, r"data\.classes_per_client = 11; there are 10 classes"),
        ({"clients": 400}, r"class 0 has 100 rows for 200 clients"),
    ],
)
def test_partitions_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        partition.rotating_classes(letters(100), **options, seed=0)


@pytest.fixture(scope="module")
def emnist(data_dir: Path) -> Path:
    if not (data_dir / "emnist" / "emnist_lowercase.npz").is_file():
        pytest.skip("no EMNIST: set FEDPROX_DATA to a folder that has emnist/")
    return data_dir


@pytest.mark.slow
def test_letters_have_the_papers_clients_and_classes(emnist: Path) -> None:
    federation = datasets.femnist(data_dir=emnist)
    whole = federation.train.sizes + federation.test.sizes
    assert (len(federation), federation.classes) == (200, 10)  # Table 1: 200
    assert 8_000 < whole.sum() < 11_916  # 18,345; fewer images are at hand
    assert whole.std() > whole.mean() > 40  # 92 and 159
    assert max(len(set(federation.train.client(k)[1])) for k in range(200)) == 5
    assert len(federation.train) == pytest.approx(0.8 * whole.sum(), rel=0.03)
    # dark on white
    pixels = np.asarray(federation.train.x)
    assert np.median(pixels) == pixels.max() == 1
    assert pixels.min() == 0


@pytest.mark.slow
def test_letters_26_have_twenty_classes_and_heavier_tails(emnist: Path) -> None:
    federation = datasets.femnist("letters-26", data_dir=emnist)
    whole = federation.train.sizes + federation.test.sizes
    assert (len(federation), federation.classes) == (200, 26)
    assert whole.sum() < 27_059  # the draft: 79,059, mean 395, standard deviation 873
    assert whole.std() > 1.5 * whole.mean()
    most = [len(set(federation.train.client(k)[1])) for k in range(200)]
    assert max(most) == 20


@pytest.mark.slow
def test_writers_keep_their_rows_and_their_files_split(emnist: Path) -> None:
    federation = datasets.femnist("writers", data_dir=emnist)
    assert (len(federation), federation.classes) == (300, 62)  # the draft: 900
    assert (len(federation.train), len(federation.test)) == (41_495, 4_763)
    assert federation.names[0].startswith("f")
    assert np.median(np.asarray(federation.train.x)) == 1
    assert np.asarray(federation.train.x).max() == 1


@pytest.mark.slow
def test_some_writers_are_chosen_at_random_and_keep_their_rows(emnist: Path) -> None:
    whole = datasets.femnist("writers", data_dir=emnist)
    some, again, others = (
        datasets.femnist("writers", clients=90, seed=seed, data_dir=emnist) for seed in (1, 1, 2)
    )
    assert len(some) == len(set(some.names)) == 90
    assert some.names == again.names != others.names
    for k in (0, 50, 89):
        j = whole.names.index(some.names[k])
        for mine, theirs in ((some.train, whole.train), (some.test, whole.test)):
            np.testing.assert_array_equal(mine.client(k)[0].raw, theirs.client(j)[0].raw)
            np.testing.assert_array_equal(mine.client(k)[1], theirs.client(j)[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "digits"}, "data.partition = 'digits'; it must be one of letters,"),
        ({"partition": "writers", "clients": 0}, "data.clients = 0; it must be a whole number"),
        ({"partition": "writers", "clients": 999}, "data.clients = 999; there are 300 writers"),
        ({"partition": "writers", "train_share": 0.9}, "data.train_share = 0.9"),
        ({"train_share": 1.5}, "data.train_share = 1.5; it must be between 0 and 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str, emnist: Path) -> None:
    with pytest.raises(InputError, match=message):
        datasets.femnist(**options, data_dir=emnist)


def idx(array: Any) -> bytes:
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes())


def archive(path: Path, **changes: bytes) -> None:
    """A small file in the format of EMNIST's archive: 12 of every class in train, 3 in test."""
    path.parent.mkdir(parents=True, exist_ok=True)
    classes = {"byclass": np.arange(62), "letters": np.arange(1, 27)}
    with zipfile.ZipFile(path, "w") as file:
        for part, copies in (("train", 12), ("test", 3)):
            for kind, of_kind in classes.items():
                labels = np.repeat(of_kind, copies)
                images = np.zeros((len(labels), 28, 28))
                images[:, 20, 5] = 255  # kept transposed: column 20, row 5
                members = {"images-idx3": idx(images), "labels-idx1": idx(labels)}
                for what, content in members.items():
                    name = f"emnist-{kind}-{part}-{what}-ubyte.gz"
                    key = f"{part}_{what[:6]}"
                    file.writestr(f"gzip/{name}", changes.get(key, content))


def test_emnists_own_archive_is_read(tmp_path: Path) -> None:
    archive(tmp_path / "emnist" / "gzip.zip")
    federation = datasets.femnist(clients=4, data_dir=tmp_path)
    rows = np.concatenate([federation.train.x, federation.test.x])
    assert federation.classes == 10
    assert (rows[:, 5, 20] == 0).all()
    assert rows.sum() == len(rows) * (28 * 28 - 1)
    assert len(rows) <= 150
    again = datasets.femnist(clients=4, data_dir=tmp_path)
    np.testing.assert_array_equal(again.train.y, federation.train.y)


def test_emnist_l_of_emnists_own_archive(tmp_path: Path) -> None:
    archive(tmp_path / "gzip.zip")
    for _ in range(2):  # the second time from the cache
        federation = datasets.emnist_l(clients=4, data_dir=tmp_path)
        assert (len(federation), federation.classes) == (4, 10)
        assert np.bincount(federation.train.y).tolist() == [12] * 10
        assert np.bincount(federation.test.y).tolist() == [3] * 10
        pixels = np.asarray(federation.train.x)
        assert pixels.mean() == pytest.approx(0, abs=1e-4)
        assert pixels.std() == pytest.approx(1, abs=1e-4)
        assert (pixels.argmax(axis=1).max(axis=1) == 5).all()
        assert (pixels.argmax(axis=2).max(axis=1) == 20).all()


def test_broken_archives_are_named(tmp_path: Path) -> None:
    place = tmp_path / "emnist" / "gzip.zip"
    archive(place, train_images=b"none")
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        datasets.femnist(data_dir=tmp_path)
    with pytest.raises(InputError, match=r"letters-train-images-idx3-ubyte\.gz: cannot be read"):
        datasets.emnist_l(data_dir=tmp_path)
    archive(place, train_labels=idx(np.full(26 * 12, 26)))
    with pytest.raises(InputError, match="no letters a to j in letters-train"):
        datasets.emnist_l(data_dir=tmp_path)
    archive(place, test_labels=idx(np.zeros(5)))
    with pytest.raises(InputError, match=r"needs \(n, 28, 28\) bytes and n labels"):
        datasets.femnist(data_dir=tmp_path)
    place.write_bytes(place.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"gzip\.zip: cannot be read"):
        datasets.femnist(data_dir=tmp_path)
    with zipfile.ZipFile(place, "w") as file:
        file.writestr("other", "")
    with pytest.raises(InputError, match=r"images-idx3-ubyte\.gz is missing in this archive"):
        datasets.femnist(data_dir=tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    first = "federated_emnist_train.sqlite"
    where = {"letters": ("gzip.zip", "emnist"), "writers": (first, "femnist")}
    for kind, (name, folder) in where.items():
        with pytest.raises(InputError) as error:
            datasets.femnist(kind, data_dir=tmp_path)  # type: ignore[arg-type]
        assert str(error.value) == f"{folder}: {name} is missing; put it in {tmp_path / folder}"


WRITERS: dict[str, Any] = {
    "images": np.zeros((6, 28, 28), np.uint8),
    "labels": np.arange(6),
    "writer": np.array([0, 0, 0, 1, 1, 1]),
    "split": np.array([0, 0, 1, 0, 0, 1]),
    "writer_ids": np.array(["ann", "bob"]),
}


def test_a_small_file_of_writers(tmp_path: Path) -> None:
    content = WRITERS | {"writer_ids": np.array(["\ud800", "\u00e9"])}
    np.savez(tmp_path / "femnist_300writers.npz", **content)
    federation = datasets.femnist("writers", data_dir=tmp_path)
    assert federation.names == ("\ud800", "\u00e9")
    assert federation.train.client(1)[1].tolist() == [3, 4]
    assert federation.test.client(0)[1].tolist() == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.arange(5)}, r"needs \(n, 28, 28\) bytes and n labels from 0 to 61"),
        ({"labels": np.arange(6) + 60}, "labels from 0 to 61"),
        ({"images": np.zeros((6, 28, 28))}, "it holds float64"),
        ({"writer": np.array([0, 0, 0, 1, 1, 2])}, "'writer' and 'split' do not match"),
        ({"split": np.array([0, 0, 1, 0, 0, 3])}, "'writer' and 'split' do not match"),
        ({"split": np.array([0, 0, 1, 1, 1, 1])}, "client 'bob': no training rows"),
        ({"labels": np.array([None] * 6)}, "labels.npy: holds object; not numbers or words"),
        ({"writer": None}, "writer.npy is missing in this archive"),
        ({"writer_ids": np.array(["ann", "ann"])}, "'split' do not match 6 images of 2 different"),
    ],
)
def test_broken_files_of_writers_are_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    content = {key: value for key, value in (WRITERS | changes).items() if value is not None}
    np.savez(tmp_path / "femnist_300writers.npz", **content)
    with pytest.raises(InputError, match=message) as error:
        datasets.femnist("writers", data_dir=tmp_path)
    assert "\n" not in str(error.value)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "femnist_300writers.npz"
    np.savez(path, **WRITERS)
    for content in (path.read_bytes()[:-100], b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"writers\.npz: cannot be read: File is not a zip"):
            datasets.femnist("writers", data_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_emnist_l_of_the_file_without_a_split(partition: Any, emnist: Path) -> None:
    if not (emnist / "emnist" / "emnist_letters_a_to_j.npz").is_file():
        pytest.skip("no EMNIST-L: put emnist_letters_a_to_j.npz in emnist/ of FEDPROX_DATA")
    first, second = (datasets.emnist_l(partition, seed=seed, data_dir=emnist) for seed in (0, 1))
    # all 50,489 images, a seventh of each letter's for testing, as 48,000 and 8,000 are
    assert len(first.train) + len(first.test) == 50_489
    counts = [np.bincount(rows.y, minlength=10) for rows in (first.train, first.test)]
    np.testing.assert_array_equal(counts[1], (counts[0] + counts[1]) // 7)
    # which images these are is no matter of the seed
    totals = [federation.test.x.raw.sum(dtype=np.int64) for federation in (first, second)]
    assert totals[0] == totals[1]
    assert np.ptp(first.train.sizes) <= 1
    pixels = np.asarray(first.train.x)
    assert pixels.mean() == pytest.approx(0, abs=1e-3)
    assert pixels.std() == pytest.approx(1, abs=1e-3)


def letters_file(folder: Path, **changes: Any) -> None:
    """The file of letters without a split, with fourteen images of each letter."""
    (folder / "emnist").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (140, 28, 28), np.uint8)
    content = {"images": images, "labels": np.arange(140) % 10} | changes
    np.savez(folder / "emnist" / "emnist_letters_a_to_j.npz", **content)


def test_a_small_file_of_letters(tmp_path: Path) -> None:
    letters_file(tmp_path)
    federation = datasets.emnist_l(clients=2, data_dir=tmp_path)
    assert len(federation.train) == 120
    assert sorted(federation.test.y) == sorted([*range(10)] * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.ones((140, 28, 28))}, r"needs \(n, 28, 28\) bytes.*it holds float64"),
        ({"images": np.full((140, 28, 28), 256)}, "it holds int64"),
        ({"labels": np.arange(140) % 10 + 256}, "n labels from 0 to 9"),
        ({"labels": np.arange(140) % 10 + 0.7}, "labels of float64"),
        ({"labels": np.array([*"abcdefghij"] * 14)}, "labels of <U1"),
        ({"images": np.zeros((140, 28, 28), np.uint8)}, "all pixels .* are equal"),
    ],
)
def test_broken_files_of_letters_are_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    letters_file(tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        datasets.emnist_l(clients=2, data_dir=tmp_path)


IDS = [b"0123456789abcdef:f0001_02", b"fedcba9876543210:f0000_14"]


def writer(count: int, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """One writer's examples as FedJAX's files hold them."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (count, 28, 28))
    return {
        "pixels": (raw / 255).astype(np.float32),
        "label": np.arange(count, dtype=np.int32) % 62,
    } | changes


def table(path: Path, rows: Any, *, packed: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, "
            "data BLOB NOT NULL, num_examples INTEGER NOT NULL)"
        )
        for client, content, count in rows:
            data = zlib.compress(msgpack_serialize(content)) if packed else content
            connection.execute("INSERT INTO federated_data VALUES (?, ?, ?)", (client, data, count))


def tables(folder: Path, train: Any = None, test: Any = None) -> None:
    sizes = {"train": (70, 3), "test": (2, 1)}
    for part, own in (("train", train), ("test", test)):
        rows = [(c, writer(n, n), n) for c, n in zip(IDS, sizes[part], strict=True)]
        table(folder / f"federated_emnist_{part}.sqlite", own or rows)


def test_the_databases_of_writers_are_read(tmp_path: Path) -> None:
    tables(tmp_path / "femnist")
    # beside a sample the whole set is taken
    np.savez(tmp_path / "femnist" / "femnist_300writers.npz", **WRITERS)
    for _ in range(2):  # the second time from the cache
        federation = datasets.femnist("writers", data_dir=tmp_path)
        assert federation.names == ("f0000_14", "f0001_02")
        assert federation.train.sizes.tolist() == [3, 70]
        assert federation.test.sizes.tolist() == [1, 2]
        assert federation.classes == 62
        given = writer(70, 70)
        x, y = federation.train.client(1)
        np.testing.assert_allclose(np.asarray(x), given["pixels"], atol=1e-6)
        np.testing.assert_array_equal(y, given["label"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": np.zeros((3, 784), np.float32)}, r"it holds float32 \(3, 784\)"),
        ({"pixels": np.full((3, 28, 28), 1.5, np.float32)}, "needs n = 3 images of 28 x 28"),
        ({"pixels": np.full((3, 28, 28), np.nan, np.float32)}, "needs n = 3 images of 28 x 28"),
        ({"pixels": np.zeros((3, 28, 28), np.uint8)}, "it holds uint8"),
        ({"pixels": np.zeros((2, 28, 28), np.float32)}, "needs n = 3 images"),
        ({"label": np.array([0, 1, 62])}, "labels from 0 to 61"),
        ({"label": np.array([0.0, 1.0, 2.0])}, "labels from 0 to 61"),
    ],
)
def test_writers_that_are_no_femnist_are_named(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tables(tmp_path, train=[(IDS[0], writer(3), 3), (IDS[1], writer(3, **change), 3)])
    with pytest.raises(InputError, match=message) as error:
        datasets.femnist("writers", data_dir=tmp_path)
    assert "federated_emnist_train.sqlite: writer 'f0000_14': needs n = 3" in str(error.value)
    assert "\n" not in str(error.value)


WHOLE = zlib.compress(msgpack_serialize(writer(3)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"none",
        WHOLE[:-20],
        zlib.compress(b""),
        zlib.compress(b"\x93"),
        zlib.compress(zlib.decompress(WHOLE)[:-9]),
        zlib.compress(msgpack_serialize({"pixels": np.zeros(3)})),
        zlib.compress(msgpack_serialize([1, 2])),
        zlib.compress(msgpack_serialize(writer(3, label=3))),
        zlib.compress(msgpack_serialize(writer(3, label=None))),
        zlib.compress(msgpack_serialize(writer(3, label={"a": 1}))),
        zlib.compress(msgpack_serialize(writer(3, label=np.array(["a"] * 3)))),
        None,
        7,
    ],
)
def test_damaged_examples_are_named(data: Any, tmp_path: Path) -> None:
    tables(tmp_path)
    with closing(sqlite3.connect(tmp_path / "federated_emnist_test.sqlite")) as file, file:
        file.execute("ALTER TABLE federated_data RENAME TO old")
        file.execute("CREATE TABLE federated_data AS SELECT * FROM old")
        file.execute("UPDATE federated_data SET data = ? WHERE client_id = ?", (data, IDS[0]))
    with pytest.raises(InputError, match="writer 'f0001_02': examples cannot be read") as error:
        datasets.femnist("writers", data_dir=tmp_path)
    assert "\n" not in str(error.value)


def test_databases_that_are_none_are_named(tmp_path: Path) -> None:
    tables(tmp_path, test=[(IDS[0], writer(3), 3)])
    with pytest.raises(
        InputError, match=r"writer 'f0000_14' is not in federated_emnist_test\.sqlite"
    ):
        datasets.femnist("writers", data_dir=tmp_path)
    path = tmp_path / "federated_emnist_train.sqlite"
    whole = path.read_bytes()
    for content in (b"nothing", whole[:5000], whole[:100]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"train\.sqlite: not a database of writers"):
            datasets.femnist("writers", data_dir=tmp_path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="it needs a table federated_data with columns client_id"):
        datasets.femnist("writers", data_dir=tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"federated_emnist_train\.sqlite is missing; put it in"):
        datasets.femnist("writers", data_dir=tmp_path)


def leaf_folder(folder: Path, image: Any = None) -> None:
    """LEAF's FEMNIST of two writers; all images alike where one is given."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 3), ("test", 1)):
        data = {}
        for name in ("f0000_14", "f0001_41"):
            x = (rng.integers(0, 256, (count, 784)) / 255).tolist()
            data[name] = {"x": [image] * count if image else x, "y": [61] * count}
        content = {"users": list(data), "num_samples": [count] * 2, "user_data": data}
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "all_data_0.json").write_text(json.dumps(content))


def test_leafs_folders_of_writers_are_read(tmp_path: Path) -> None:
    leaf_folder(tmp_path / "femnist")
    federation = datasets.femnist("writers", data_dir=tmp_path)
    assert federation.names == ("f0000_14", "f0001_41")
    assert (len(federation.train), len(federation.test)) == (6, 2)
    as_leaf = datasets.leaf("femnist", data_dir=tmp_path)
    for mine, theirs in ((federation.train, as_leaf.train), (federation.test, as_leaf.test)):
        np.testing.assert_allclose(
            np.asarray(mine.x).reshape(-1, 784), np.asarray(theirs.x), atol=1e-6
        )
        np.testing.assert_array_equal(mine.y, theirs.y)
    for image in ([0.0, 0.5], [2.0] * 784):
        leaf_folder(tmp_path / "femnist", image)
        with pytest.raises(InputError, match="not FEMNIST: an image is 784 numbers from 0 to 1"):
            datasets.femnist("writers", data_dir=tmp_path)
