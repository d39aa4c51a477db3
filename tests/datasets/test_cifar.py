"""CIFAR-10 and CIFAR-100: their archives, safely read, and their partitions."""

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox import Federation, InputError
from fedprox.datasets import cifar
from fedprox.datasets.cifar import cifar_10, cifar_100


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path_factory.mktemp("cache")))


def python_2(value: Any) -> bytes:
    """What Python 2 pickles of a value by protocol 2, without its marker and end."""
    if isinstance(value, dict):
        return b"}(" + b"".join(python_2(k) + python_2(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python_2, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    shape = b"(" + b"".join(map(python_2, value.shape)) + b"t"
    none = b"J\xff\xff\xff\xff"
    kind = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN" + none + none + b"K\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    order = b"\x88" if np.isfortran(value) else b"\x89"
    return empty + b"(K\x01" + shape + kind + order + python_2(value.tobytes("A")) + b"tb"


def batch(count: int, classes: int, seed: int = 0, **changes: Any) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    content = {
        "data": rng.integers(0, 256, (count, 3072), np.uint8),
        "labels": (np.arange(count) % classes).tolist(),
        "fine_labels": (np.arange(count) % classes).tolist(),
    } | changes
    return {key.encode(): value for key, value in content.items() if value is not None}


def old(content: Any) -> bytes:
    return b"\x80\x02" + python_2(content) + b"."


def archive(path: Path, folder: str, files: dict[str, bytes], mode: str = "w:gz") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def ten(**changes: bytes) -> dict[str, bytes]:
    files = {f"data_batch_{i}": old(batch(20, 10, i)) for i in range(1, 6)}
    return {"batches.meta": b"ignored"} | files | {"test_batch": old(batch(30, 10, 9))} | changes


def sorted_rows(federation: Federation, part: str) -> Any:
    rows = getattr(federation, part).x.raw
    return rows[np.lexsort(rows.reshape(len(rows), -1).T[:8])]


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "unpacked"])
def test_cifar_10_from_archives_and_folders(mode: str, tmp_path: Path) -> None:
    home, files = tmp_path / "cifar-10", ten()
    if mode == "unpacked":
        (home / "cifar-10-batches-py").mkdir(parents=True)
        for name, content in files.items():
            (home / "cifar-10-batches-py" / name).write_bytes(content)
    else:
        name = {"w:gz": "cifar-10-python.tar.gz", "w:xz": "cifar-10-batches-py.tar.xz"}[mode]
        archive(home / name, "cifar-10-batches-py", files, mode)
    federation = cifar_10(clients=4, data_dir=tmp_path)
    assert (len(federation), federation.classes) == (4, 10)
    assert federation.train.sizes.tolist() == [25] * 4
    assert len(federation.test) == 30
    assert federation.features.shape == (32, 32, 3)
    raw = np.concatenate([batch(20, 10, i)[b"data"] for i in range(1, 6)])
    images = raw.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    expected = images[np.lexsort(images.reshape(100, -1).T[:8])]
    np.testing.assert_array_equal(sorted_rows(federation, "train"), expected)
    # the second time from the cache
    again = cifar_10(clients=4, data_dir=tmp_path)
    np.testing.assert_array_equal(again.train.x.raw, federation.train.x.raw)


def test_cifar_100_has_its_fine_labels(tmp_path: Path) -> None:
    files = {"train": old(batch(200, 100, labels=None)), "test": old(batch(100, 100, 1))}
    archive(tmp_path / "cifar-100" / "cifar-100-python.tar.gz", "cifar-100-python", files)
    federation = cifar_100("dirichlet", clients=5, concentration=0.3, data_dir=tmp_path)
    assert federation.classes == 100
    assert np.bincount(federation.train.y).tolist() == [2] * 100
    assert np.bincount(federation.test.y).tolist() == [1] * 100
    # a test image goes to a client that trains on its class
    for k in range(5):
        assert set(federation.test.client(k)[1]) <= set(federation.train.client(k)[1])


def test_a_pickle_calls_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    call = b"cos\nmkdir\n(U" + bytes([len(str(made))]) + str(made).encode() + b"tR0"
    whole = old(batch(2, 10))
    images, labels = cifar._batch(cifar.CIFAR_10, "here", io.BytesIO(call + whole))
    assert len(images) == 2
    assert labels.tolist() == [0, 1]
    assert not made.exists()


@pytest.mark.parametrize("cut", [0, 1, 100, -10, -1])
def test_a_pickle_cut_short_is_named(cut: int) -> None:
    content = old(batch(2, 10))[:cut]
    with pytest.raises(InputError, match=r"^here: not "):
        cifar._batch(cifar.CIFAR_10, "here", io.BytesIO(content))


@pytest.mark.parametrize(
    "changes",
    [
        {"data": None},
        {"data": np.zeros((20, 3071), np.uint8)},
        {"data": np.zeros((0, 3072), np.uint8), "labels": []},
        {"data": [1, 2]},
        {"labels": None},
        {"labels": [0] * 19},
        {"labels": [10] * 20},
        {"labels": [-1] * 20},
        {"labels": [b"a"] * 20},
    ],
)
def test_batches_that_are_no_cifar_are_named(changes: dict[str, Any], tmp_path: Path) -> None:
    files = ten(data_batch_3=old(batch(20, 10, **changes)))
    archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    with pytest.raises(
        InputError, match=r"data_batch_3: not a batch of cifar-10: it needs n images"
    ):
        cifar_10(data_dir=tmp_path)


def test_archives_cut_short_or_of_other_things_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    archive(path, "cifar-10-batches-py", ten())
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[: len(whole) // 2], whole[:50]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cifar-10-python\.tar\.gz") as error:
            cifar_10(data_dir=tmp_path)
        assert "\n" not in str(error.value)
    tar = gzip.decompress(whole) + bytes(4 << 20)  # records longer than a reader's buffer
    packed = bytearray(gzip.compress(tar))
    packed[-8] ^= 1  # of its checksum
    path.write_bytes(packed)
    with pytest.raises(InputError, match=r"tar\.gz: cannot be read: CRC check failed"):
        cifar_10(data_dir=tmp_path)
    archive(path, "other", {"readme": b""})
    with pytest.raises(InputError, match="data_batch_1 is missing in this archive"):
        cifar_10(data_dir=tmp_path)
    path.unlink()
    with pytest.raises(InputError) as error:
        cifar_10(data_dir=tmp_path)
    assert str(error.value) == (
        "cifar-10: cifar-10-python.tar.gz is missing; put it, packed or unpacked, in "
        f"{tmp_path / 'cifar-10'}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "shards"}, r"data\.partition = 'shards'; it must be one of iid, dirichlet"),
        ({"augmentation": "x"}, r"data\.augmentation = 'x'; it must be one of none, fedavg"),
        ({"concentration": 0.3}, r'data\.concentration = 0\.3; partition "iid" has none'),
        ({"clients": 101}, r"data\.clients = 101; it must be from 1 to 100"),
        ({"clients": 31}, r"data\.clients = 31; it must be from 1 to 30"),  # test images
        ({"size_spread": -1}, r"data\.size_spread = -1; it must be from 0 to 10"),
    ],
)
def test_cifar_refuses_bad_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", ten())
    with pytest.raises(InputError, match=message):
        cifar_10(data_dir=tmp_path, **options)


@pytest.fixture(scope="module")
def real(data_dir: Path, tmp_path_factory: Any) -> Path:
    """The real CIFAR-10, unpacked once: reading the archive takes ten seconds."""
    path = data_dir / "cifar-10" / "cifar-10-batches-py.tar.xz"
    if not path.is_file():
        pytest.skip("no CIFAR-10: set FEDPROX_DATA to a folder that has cifar-10/")
    folder: Path = tmp_path_factory.mktemp("cifar")
    with tarfile.open(path) as packed:
        packed.extractall(folder, filter="data")
    return folder


@pytest.mark.slow
def test_the_real_cifar_10(real: Path) -> None:
    federation = cifar_10(data_dir=real)
    # McMahan et al. 2017, section 3: 500 training and 100 testing examples each
    assert federation.train.sizes.tolist() == [500] * 100
    assert federation.test.sizes.tolist() == [100] * 100
    assert np.bincount(federation.train.y).tolist() == [5000] * 10
    # FedDyn's means and deviations are this set's
    seen = np.asarray(federation.train.x[:3_000])
    np.testing.assert_allclose(seen.mean(axis=(0, 1, 2)), 0, atol=0.04)
    np.testing.assert_allclose(seen.std(axis=(0, 1, 2)), 1, atol=0.04)
    # pictures are smooth both ways, which they would not be with rows or planes mixed up
    for axis in (1, 2):
        assert np.abs(np.diff(seen[:500], axis=axis)).mean() < 0.35


@pytest.mark.slow
def test_feddyns_unbalanced_cifar_10(real: Path) -> None:
    federation = cifar_10(
        *("dirichlet",), concentration=0.3, size_spread=0.3, augmentation="feddyn", data_dir=real
    )
    sizes = federation.train.sizes
    assert sizes.sum() == 50_000
    assert np.log(sizes).std() == pytest.approx(0.3, abs=0.06)
    shares = np.array(
        [np.bincount(federation.train.client(k)[1], minlength=10) for k in range(100)]
    )
    largest = -np.sort(-shares / sizes[:, None], axis=1)
    assert 3 <= ((largest.cumsum(axis=1) < 0.8).sum(axis=1) + 1).mean() <= 4
    tests = np.array([np.bincount(federation.test.client(k)[1], minlength=10) for k in range(100)])
    np.testing.assert_allclose(tests, shares / 5, atol=1)
