"""Data sets and partitions."""

import gzip
import hashlib
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Examples, Federation, InputError, Prepared, Rows, datasets
from fedprox.datasets import partition, sources
from fedprox.files.packed import read_idx


@pytest.fixture(scope="module")
def many() -> Federation:
    """Two hundred clients, whose means deviate by 3."""
    return datasets.synthetic(0.0, 3.0, clients=200)


def test_synthetic_has_the_papers_shape_and_the_authors_sizes(many: Federation) -> None:
    whole = many.train.sizes + many.test.sizes
    assert many.train.x.shape[1:] == (60,)
    assert whole.min() >= 50
    # the median of LogNormal(4, 2) is exp(4)
    assert np.median(whole) == pytest.approx(50 + np.exp(4), rel=0.15)
    # and a standard deviation above it exp(6)
    assert np.quantile(whole, 0.841) == pytest.approx(50 + np.exp(6), rel=0.3)
    np.testing.assert_allclose(many.train.sizes / whole, 0.8, atol=0.02)


def test_beta_is_the_standard_deviation_of_the_clients_means(many: Federation) -> None:
    means = np.array([many.train.client(k)[0].mean() for k in range(len(many))])
    # mean of 60 features: N(B_k, 1/60) + sampling noise, B_k ~ N(0, 3^2)
    assert means.std() == pytest.approx(3.0, rel=0.1)


@given(alpha=st.floats(0, 50), seed=st.integers(0, 99))
@settings(max_examples=3)
def test_no_label_depends_on_the_mean_of_a_clients_parameters(alpha: float, seed: int) -> None:
    plain, moved = (datasets.synthetic(a, 1.0, seed=seed).train for a in (0.0, alpha))
    np.testing.assert_array_equal(moved.x, plain.x)
    np.testing.assert_array_equal(moved.y, plain.y)
    plain, moved = (
        datasets.synthetic_feddyn("type1", gamma=gamma, seed=seed).train for gamma in (0.0, alpha)
    )
    np.testing.assert_array_equal(moved.y, plain.y)


def test_iid_clients_share_features_and_labelling_and_others_do_not() -> None:
    def label_skew(federation: Federation) -> float:
        """Mean total variation between a client's labels and everyone's."""
        mixes = [
            np.bincount(federation.train.client(k)[1], minlength=10) / n
            for k, n in enumerate(federation.train.sizes)
        ]
        everyone = np.bincount(federation.train.y, minlength=10) / len(federation.train)
        return float(np.mean([abs(mix - everyone).sum() / 2 for mix in mixes]))

    iid, other = datasets.synthetic(iid=True), datasets.synthetic(1.0, 1.0)
    assert label_skew(iid) < 0.25 < 0.5 < label_skew(other)
    means = [iid.train.client(k)[0].mean() for k in range(30)]
    assert np.abs(means).max() < 0.1


def test_the_drafts_iid_set_moves_the_features_of_all_clients_by_one_normal_vector() -> None:
    """The draft of Li et al. 2020, appendix C.1: each element of v is drawn from N(0, 1)."""
    means = []
    for seed in range(2):
        plain = datasets.synthetic(iid=True, seed=seed).train
        moved = datasets.synthetic(iid=True, random_mean=True, seed=seed).train
        np.testing.assert_array_equal(moved.sizes, plain.sizes)
        apart = moved.x - plain.x
        np.testing.assert_allclose(apart, np.broadcast_to(apart[0], apart.shape), atol=1e-5)
        assert not np.array_equal(moved.y, plain.y)
        means.append(apart[0])
    drawn = np.concatenate(means)  # 120 numbers
    assert abs(drawn.mean()) < 0.2
    assert 0.85 < drawn.std() < 1.15
    assert len(np.unique(drawn)) == drawn.size


def test_a_random_mean_is_of_the_iid_set() -> None:
    with pytest.raises(InputError, match=r"data\.random_mean: given without data\.iid = true"):
        datasets.synthetic(random_mean=True)


def test_a_data_seed_names_the_data() -> None:
    first, again, other = (datasets.synthetic(seed=s).train for s in (0, 0, 1))
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not np.array_equal(first.sizes, other.sizes)


def test_gamma_needs_something_that_differs() -> None:
    with pytest.raises(InputError, match=r"data\.gamma: given"):
        datasets.synthetic_feddyn("none", gamma=0.5)


@pytest.mark.parametrize("kind", ["none", "type1", "type2", "type3"])
def test_feddyns_synthetic_turns_on_one_kind_of_heterogeneity(kind: Any) -> None:
    federation = datasets.synthetic_feddyn(kind, clients=60)
    sizes = federation.train.sizes
    assert federation.train.x.shape[1:] == (30,)
    assert federation.classes == 5
    assert sizes.mean() == pytest.approx(200, rel=0.3)
    assert (sizes.std() > 0) == (kind == "type3")
    means = np.array([federation.train.client(k)[0].mean(axis=0) for k in range(60)])
    assert (means.std() > 0.5) == (kind == "type2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "data.alpha = -1.0; it must be at least 0"),
        ({"beta": float("inf")}, "data.beta = inf; it must be finite and at least 0"),
        ({"clients": 0}, "data.clients = 0; it must be a whole number of at least 1"),
        ({"train_share": 1.0}, "data.train_share = 1.0; it must be between 0 and 1"),
    ],
)
def test_synthetic_refuses_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        datasets.synthetic(**options)


def test_feddyns_synthetic_refuses_sizes_that_no_computer_counts() -> None:
    with pytest.raises(InputError, match=r"data\.gamma = 60; a client would have .* examples"):
        datasets.synthetic_feddyn("type3", gamma=60)


@settings(max_examples=25)
@given(rows=st.integers(1, 500), clients=st.integers(1, 50), seed=st.integers(0, 99))
def test_iid_deals_out_every_row_once_and_evenly(rows: int, clients: int, seed: int) -> None:
    if clients > rows:
        with pytest.raises(InputError, match=r"data\.clients"):
            partition.iid(np.zeros(rows), clients=clients, seed=seed)
        return
    parts = partition.iid(np.zeros(rows), clients=clients, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(max_examples=25)
@given(clients=st.integers(1, 20), seed=st.integers(0, 99))
def test_shards_deal_out_every_row_once_with_few_labels_each(clients: int, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(10), 40))
    parts = partition.shards(labels, clients=clients, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(400))
    most = max(len(np.unique(labels[part])) for part in parts)
    # a shard of s rows touches at most ceil(s / 40) + 1 labels
    assert most <= 2 * (-(-400 // (2 * clients) // 40) + 1)


@settings(max_examples=25)
@given(clients=st.integers(1, 20), seed=st.integers(0, 99))
def test_shards_of_spread_sizes_are_cut_alike_in_both_sets(clients: int, seed: int) -> None:
    labels, others = (np.repeat(np.arange(10), rows) for rows in (400, 40))
    parts, tests = (
        partition.shards(rows, clients=clients, spread=1.0, seed=seed) for rows in (labels, others)
    )
    assert sorted(np.concatenate(parts)) == list(range(4000))
    assert sorted(np.concatenate(tests)) == list(range(400))
    # two shards each: of at most as many labels as their rows span, and test rows in proportion
    for part, test in zip(parts, tests, strict=True):
        assert len(np.unique(labels[part])) <= len(part) // 400 + 4
        assert len(test) == pytest.approx(len(part) / 10, rel=0.25, abs=4)
    sizes = np.array([len(part) for part in parts])
    assert clients == 1 or np.ptp(sizes) > 1


@settings(max_examples=25)
@given(seed=st.integers(0, 99))
def test_two_class_power_law_uses_no_row_twice_and_two_classes_each(seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), 300))
    parts = partition.two_class_power_law(labels, clients=40, seed=seed)
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    for u, part in enumerate(parts):
        assert set(labels[part]) == {u % 4, (u + 1) % 4}
        assert len(part) >= 10


def test_two_class_power_law_says_what_it_needs() -> None:
    labels = np.repeat(np.arange(4), 30)
    with pytest.raises(InputError, match="multiple of the 4 classes"):
        partition.two_class_power_law(labels, clients=41, seed=0)
    with pytest.raises(InputError, match="the smallest class has 30 rows"):
        partition.two_class_power_law(labels, clients=40, seed=0)


@pytest.mark.slow
def test_mnist_power_law_has_the_papers_statistics(data_dir: Path) -> None:
    federation = datasets.mnist(data_dir=data_dir)
    whole = federation.train.sizes + federation.test.sizes
    assert len(federation) == 1000
    assert 68_000 < whole.sum() <= 70_000  # the paper: 69,035
    assert whole.mean() == pytest.approx(69, abs=1)  # 69
    assert whole.std() == pytest.approx(106, rel=0.35)  # 106; a heavy tail, another for each seed
    for k in range(0, 1000, 97):
        assert set(federation.train.client(k)[1]) <= {k % 10, (k + 1) % 10}
    pixels = np.concatenate([federation.train.x, federation.test.x]).reshape(-1, 784)
    varied = pixels.std(axis=0) > 0
    assert abs(pixels.mean()) < 0.05
    np.testing.assert_allclose(np.median(pixels.std(axis=0)[varied]), 1, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iid", "shards"])
def test_mnist_of_mcmahan_has_600_images_each_and_the_official_test_set(
    kind: Any, data_dir: Path
) -> None:
    federation = datasets.mnist(kind, data_dir=data_dir)
    assert (federation.train.sizes == 600).all()
    assert len(federation.test) == 10_000
    assert np.asarray(federation.train.x).max() == 1
    labels = [len(np.unique(federation.train.client(k)[1])) for k in range(100)]
    if kind == "iid":
        assert min(labels) == 10
    else:
        # shards of 300 sorted images: two digits, and a third or fourth at class boundaries
        assert np.median(labels) == 2
        assert max(labels) <= 4


@pytest.mark.slow
def test_unbalanced_shards_of_mnist_are_of_few_digits_and_spread_sizes(data_dir: Path) -> None:
    federation = datasets.mnist("shards", size_spread=1.0, data_dir=data_dir)
    sizes = federation.train.sizes
    assert (len(federation), sizes.sum(), len(federation.test)) == (100, 60_000, 10_000)
    assert sizes.max() > 5 * sizes.min()
    digits = [np.unique(federation.train.client(k)[1], return_counts=True) for k in range(100)]
    assert np.median([len(kinds) for kinds, _ in digits]) == 2
    # a client is tested on the digits that it trains on
    shared = [
        np.isin(federation.test.client(k)[1], kinds).mean() for k, (kinds, _) in enumerate(digits)
    ]
    assert np.mean(shared) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_mnist_of_acar_has_their_sizes_mixes_and_the_official_test_set(
    spread: float, data_dir: Path
) -> None:
    federation = datasets.mnist("dirichlet", size_spread=spread, data_dir=data_dir)
    sizes = federation.train.sizes
    assert (len(federation), sizes.sum(), len(federation.test)) == (100, 60_000, 10_000)
    assert np.log(sizes).std() == pytest.approx(spread, abs=0.06)
    pixels = np.asarray(federation.train.x)
    assert pixels.mean() == pytest.approx(0, abs=0.001)
    assert pixels.std() == pytest.approx(1, abs=0.001)
    counts, tests = (
        np.array([np.bincount(rows.client(k)[1], minlength=10) for k in range(100)])
        for rows in (federation.train, federation.test)
    )
    np.testing.assert_allclose(tests, counts * tests.sum(axis=0) / counts.sum(axis=0), atol=1)


@pytest.mark.slow
def test_mnist_by_writer(data_dir: Path) -> None:
    if not (data_dir / "mnist" / "qmnist-train-labels-idx2-int.gz").is_file():
        pytest.skip("no QMNIST labels: put them in mnist/ of FEDPROX_DATA")
    federation = datasets.mnist("writers", data_dir=data_dir)
    sizes = federation.train.sizes + federation.test.sizes
    assert sizes.sum() == 70_000
    assert len(federation) == 539 + 297
    assert np.mean(federation.train.sizes / sizes) == pytest.approx(0.8, abs=0.01)
    # nearly everyone wrote nearly every digit
    assert np.mean([len(set(federation.train.client(k)[1])) for k in range(836)]) > 9


def idx_of(array: Any) -> bytes:
    kind, stored = {"u": (8, "u1"), "i": (12, ">i4")}[array.dtype.kind]
    return idx(array.shape, array.astype(stored).tobytes(), kind)


def small_mnist(folder: Path, writers: Any = None) -> None:
    """Three clients' worth of training images and as many test images, unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.arange(30, dtype=np.uint8) % 3
    for part in ("train", "t10k"):
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_of(labels))
        images = np.repeat(labels, 784).reshape(30, 28, 28) * np.uint8(100)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_of(images))
    table = np.zeros((40, 8), np.int32)
    table[:, 0] = np.arange(40) % 30 % 3
    table[:, 2] = 5 + np.arange(40) % 4
    for part, rows in (("train", table[:30]), ("test", table)):
        content = rows if writers is None else writers(rows)
        (folder / f"qmnist-{part}-labels-idx2-int").write_bytes(idx_of(content))


def test_mnist_by_writer_of_a_small_set(tmp_path: Path) -> None:
    small_mnist(tmp_path / "mnist")
    federation = datasets.mnist("writers", pixels="standardised", data_dir=tmp_path)
    assert federation.names == ("5", "6", "7", "8")
    sizes = federation.train.sizes + federation.test.sizes
    assert sizes.tolist() == [16, 16, 14, 14]
    for k in range(4):
        x, y = federation.train.client(k)
        expected = (y * 100 / 255 - 0.1307) / 0.3081
        np.testing.assert_allclose(np.asarray(x)[:, 3, 4], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:, :7], r"qmnist-train-.*needs 8 numbers for each image"),
        (lambda rows: rows[:10], "QMNIST's labels are not those of MNIST's 60 images"),
        (lambda rows: rows + 1, "QMNIST's labels are not those of MNIST's 60 images"),
        (lambda rows: rows.astype(np.uint8), "not an idx file of 32-bit numbers"),
    ],
)
def test_labels_of_writers_that_do_not_fit_are_refused(
    change: Any, message: str, tmp_path: Path
) -> None:
    small_mnist(tmp_path / "mnist", change)
    with pytest.raises(InputError, match=message):
        datasets.mnist("writers", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "x"}, r"data\.partition = 'x'; it must be one of power-law, iid"),
        (
            {"partition": "iid", "train_share": 0.9},
            r"data\.train_share = 0\.9; it belongs to partition power-law or writers, not 'iid'",
        ),
        ({"partition": "writers", "size_spread": 0.3}, r"data\.size_spread = 0\.3; it belongs to"),
        ({"pixels": "unit"}, r"data\.pixels = unit; it belongs to partition iid or shards or"),
        ({"partition": "iid", "pixels": "x"}, r"data\.pixels = 'x'; it must be one of unit"),
        ({"partition": "writers", "clients": 5}, r"data\.clients = 5; it belongs to"),
        ({"partition": "iid", "clients": 31}, r"data\.clients = 31; it must be from 1 to 30"),
    ],
)
def test_mnist_refuses_bad_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    small_mnist(tmp_path / "mnist")
    with pytest.raises(InputError, match=message):
        datasets.mnist(data_dir=tmp_path, **options)


@pytest.mark.parametrize("kind", ["power-law", "iid", "shards", "dirichlet"])
def test_too_many_clients_are_refused_before_they_take_room(kind: Any, tmp_path: Path) -> None:
    small_mnist(tmp_path / "mnist")
    tracemalloc.start()
    with pytest.raises(InputError, match=r"data\.clients = 200000; "):
        datasets.mnist(kind, clients=200_000, data_dir=tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6


def test_a_label_that_is_no_digit_is_named(tmp_path: Path) -> None:
    small_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx((30,), bytes([77] * 30)))
    with pytest.raises(InputError, match=r"mnist: train: needs .* labels from 0 to 9"):
        datasets.mnist("iid", data_dir=tmp_path)


def test_a_data_folder_without_the_files_names_the_first_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        datasets.mnist(data_dir=tmp_path)
    assert str(error.value) == (
        f"mnist: train-images-idx3-ubyte.gz is missing; put it, packed or unpacked, in "
        f"{tmp_path / 'mnist'}"
    )


def test_a_failed_download_says_where_to_put_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path))
    folders = ("http://127.0.0.1:9/", "http://127.0.0.1:9/b/")
    source = sources.Source("mnist", "a.gz", 0, "md5:00", folders)
    with pytest.raises(InputError, match=r"a\.gz is missing and could not be downloaded") as error:
        sources.find(source, None)
    assert "--data-dir or FEDPROX_DATA" in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_download_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPROX_CACHE", str(tmp_path))
    content = b"kept"
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.gz").write_bytes(content)
    checksum = f"md5:{hashlib.md5(content).hexdigest()}"
    source = sources.Source("mnist", "a.gz", 0, checksum, ("http://127.0.0.1:9/",))
    assert sources.find(source, None).read_bytes() == content


def idx(shape: tuple[int, ...], data: bytes, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + data


def test_idx_files_packed_and_not(tmp_path: Path) -> None:
    content = idx((2, 3), bytes(range(6)))
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    for name in ("a", "a.gz"):
        assert read_idx(tmp_path / name).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08", idx((2, 3), b"12345"), idx((2, 3), b"1234567"), idx((4,), b"1234", kind=9)],
)
def test_broken_idx_files_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(content)
    with pytest.raises(InputError, match="broken"):
        read_idx(tmp_path / "broken")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(content)[:-6])
    with pytest.raises(InputError, match=r"broken\.gz"):
        read_idx(tmp_path / "broken.gz")


def leaf_file(clients: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {
        "users": list(clients),
        "num_samples": [len(y) for _, y in clients.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in clients.items()},
    }


GOOD: dict[str, tuple[Any, Any]] = {
    "b": ([[0.0, 1.0], [1.0, 0.0]], [0, 1]),
    "a": ([[2.0, 2.0]], [2.0]),
}


def write_leaf(folder: Path, train: Any, test: Any) -> Path:
    for part, content in (("train", train), ("test", test)):
        (folder / part).mkdir(parents=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / part / "all_data.json").write_text(text)
    return folder


def test_leaf_reads_users_in_order_of_name(tmp_path: Path) -> None:
    folder = write_leaf(tmp_path / "set", leaf_file(GOOD), leaf_file(GOOD))
    federation = datasets.leaf(str(folder))
    assert federation.names == ("a", "b")
    assert federation.train.sizes.tolist() == [1, 2]
    assert federation.classes == 3
    same = datasets.leaf("set", data_dir=tmp_path)
    np.testing.assert_array_equal(same.train.x, federation.train.x)


def with_user(x: Any, y: Any) -> dict[str, Any]:
    return leaf_file(GOOD | {"a": (x, y)})


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("{", "not JSON"),
        ('{"users":' + "[" * 100_000, "not JSON"),
        ("[]", "the object 'user_data' is missing"),
        ({"users": []}, "the object 'user_data' is missing"),
        (leaf_file(GOOD) | {"users": 3}, "'users' is not a list of names"),
        (leaf_file(GOOD) | {"users": ["b", 7]}, "'users' is not a list of names"),
        (leaf_file(GOOD) | {"users": ["b", "b"]}, "users: 'b' appears twice"),
        (leaf_file(GOOD) | {"users": ["b", "z"]}, "user 'z': it is in 'users' but not in 'user_d"),
        (leaf_file(GOOD) | {"num_samples": [2]}, "1 numbers in 'num_samples' for 2 names in 'us"),
        (leaf_file(GOOD) | {"num_samples": [2, True]}, "'num_samples' is not a list of whole n"),
        (leaf_file(GOOD) | {"num_samples": [1, 1]}, "user 'b': 2 rows in 'user_data'; 'num_samp"),
        ({k: v for k, v in leaf_file(GOOD).items() if k != "users"}, "'num_samples' without 'us"),
        ({"user_data": {"b": 3}}, "user 'b': user_data must hold lists 'x' and 'y'"),
        ({"user_data": {"b": {"x": []}}}, "user 'b': user_data must hold lists 'x' and 'y'"),
        (with_user(3, [0]), "user 'a': 'x' is not a list of numbers"),
        (with_user([[1.0, 2.0], [3.0]], [0, 1]), "user 'a': rows are not of one length"),
        (with_user([["one", "two"]], [0]), "user 'a': 'x' is not a list of numbers"),
        (with_user([["1.5", "2"]], [0]), "user 'a': 'x' is not a list of numbers"),
        (with_user([[]], [0]), "client 'a', train: .* one feature is needed"),
        (with_user([[1e39, 1.0]], [0]), "client 'a', train: a feature is NaN or infinite"),
        (with_user([[float("nan"), 1.0]], [0]), "client 'a', train: a feature is NaN or"),
        (with_user([[10**400, 1.0]], [0]), "user 'a': .* a number is too large"),
        (with_user([[1.0, 1.0]], [7]), "client 'a', train: label 7; labels are 0 to 2"),
        (with_user([[1.0, 1.0]], [-1]), "client 'a', train: label -1; labels are 0 to 2"),
        (with_user([[1.0, 1.0]], [0.5]), "user 'a': label 0.5; labels are whole numbers"),
        (with_user([[1.0, 1.0]], [float("nan")]), "user 'a': label nan; labels are whole"),
        (with_user([[1.0, 1.0]], [1e300]), r"user 'a': label 1e\+300; labels are whole"),
        (with_user([[1.0, 1.0]], ["x"]), "user 'a': 'y' is not a list of numbers"),
        (with_user([[1.0, 1.0]], [0, 1]), "client 'a', train: .* one label for each row"),
        (with_user([], []), "client 'a', train: no rows"),
        (with_user([[1.0, 1.0, 1.0]], [0]), r"client 'b', train: rows of shape \(2,\); other"),
        (leaf_file(GOOD | {"c": GOOD["a"]}), "user 'c' is in train/ but not in test/"),
        ('{"user_data": {"a": {"x": [], "y": []}, "a": 1}}', "the key 'a' appears twice"),
        ('{"user_data": {}, "user_data": {}}', "the key 'user_data' appears twice"),
    ],
)
def test_broken_leaf_files_are_named_with_the_user(
    train: Any, message: str, tmp_path: Path
) -> None:
    folder = write_leaf(tmp_path / "set", train, leaf_file(GOOD))
    with pytest.raises(InputError, match=message) as error:
        datasets.leaf(str(folder), classes=3)
    assert str(error.value).startswith(str(folder))
    assert "\n" not in str(error.value)


def test_the_list_of_users_says_who_takes_part(tmp_path: Path, caplog: Any) -> None:
    given = leaf_file(GOOD | {"c": ([["no numbers"]], [0])})
    given |= {"users": ["b", "a"], "num_samples": [2, 1]}
    folder = write_leaf(tmp_path / "set", given, leaf_file(GOOD))
    federation = datasets.leaf(str(folder))
    assert federation.names == ("a", "b")
    assert federation.train.sizes.tolist() == [1, 2]
    (message,) = caplog.messages
    assert message == (
        f"{folder}/train/all_data.json: data of 1 user that 'users' does not name are left out"
    )


def test_a_leaf_folder_of_another_machine_is_read(tmp_path: Path) -> None:
    plain = {"user_data": {"a": {"x": [[True, 0.5], [False, 2]], "y": [True, False]}}}
    folder = write_leaf(tmp_path / "set", plain, plain)
    for part in ("train", "test"):
        (folder / part / "._all_data.json").write_bytes(b"\0\5\x16\7")
    federation = datasets.leaf(str(folder))
    assert federation.train.x.tolist() == [[1.0, 0.5], [0.0, 2.0]]
    assert federation.train.y.tolist() == [1, 0]
    assert federation.classes == 2


def test_leaf_checks_the_number_of_classes_itself(tmp_path: Path) -> None:
    folder = write_leaf(tmp_path / "set", leaf_file(GOOD), leaf_file(GOOD))
    with pytest.raises(InputError, match=r"data\.classes = '3'; it must be a whole number"):
        datasets.leaf(str(folder), classes="3")  # type: ignore[arg-type]


def test_a_leaf_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folders train/ and test/ in"):
        datasets.leaf(str(tmp_path))
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(InputError, match=r"no \.json files"):
        datasets.leaf(str(tmp_path))


X, Y = np.zeros((2, 3)), np.array([0, 1])


class Sparse:
    """As a sparse matrix of SciPy, which NumPy takes for a single object."""

    def toarray(self) -> Any:
        return X


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "no clients"),
        ([(X[:0], Y[:0])], "no rows; at least one is needed"),
        ([(X, Y[:1])], r"features of shape \(2, 3\) and labels of shape \(1,\)"),
        ([(X, Y), (X[:, :2], Y)], r"client '1', train: rows of shape \(2,\); other clients' have"),
        ([(X + np.inf, Y)], "a feature is NaN or infinite"),
        ([((0 * X).astype(int) + 2**40, Y)], "a feature is a whole number beyond 32 bits"),
        ([((0 * X).astype(np.uint64) + 2**31, Y)], "a feature is a whole number beyond 32 bits"),
        ([(X, Y - 1)], "client '0', train: label -1; labels are 0 to"),
        ([([[1.0], [1.0, 2.0]], Y)], "ragged rows"),
        ([(np.array([["a"], ["b"]]), Y)], "features of type <U1; they must be numbers$"),
        ([(X, np.array(["no", "yes"]))], "labels of type <U3; they must be numbers; number the"),
        ([(X, np.array(["no", "yes"], object))], "labels of type object; they must be numbers"),
        ([(X + 1e39, Y)], "a feature is NaN or infinite as a 32-bit number"),
        ([(X, Y + 2**32)], "labels are 32-bit"),
        ([(X[:, :0], Y)], "one feature is needed"),
        ([(X, Y[:, None][:, :0])], "one label is needed"),
        ([(1.0, Y)], "features: an object of type float; an array of numbers with a row for each"),
        ([(X, 1)], "client '0', train: labels: an object of type int; an array of numbers with a"),
        ([(X, {"a": Y})], "client '0', train: labels: an object of type dict; an array of numbers"),
        (
            [(Sparse(), Y)],
            r"features: an object of type Sparse; .* a sparse matrix's toarray\(\) make",
        ),
        ([(np.ma.array(X), Y)], "client '0', train: features: a masked array, whose mask would be"),
        ([([np.ma.array(x) for x in X], Y)], "features: a masked array, whose mask would be lost"),
        (
            [(X, np.ma.array(Y, mask=[False, True]))],
            r"labels: a masked array, .* a value by its filled\(",
        ),
        ([(X, [[0, -1], [1, -100]])], "label -100; labels are 0 to 9999, and -1 where a row"),
        ([(X, Y + 10_000)], "client '0', train: label 10000; labels are 0 to 9999; for more, give"),
    ],
)
def test_arrays_that_are_no_federation_are_refused(clients: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Federation.from_arrays(clients)


MASKED = np.ma.array(X, mask=X > 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rows(MASKED, Y, np.array([0, 2])),
        lambda: Rows(X, np.ma.array(Y), np.array([0, 2])),
        lambda: Rows(Prepared(MASKED, lambda x: x), Y, np.array([0, 2])),
        lambda: Examples(X, np.ma.array(Y)),
        lambda: Federation.from_arrays([(X, Y)]).with_validation(MASKED, Y),
        lambda: partition.iid(np.ma.array(Y), clients=1, seed=0),
        lambda: partition.natural(np.ma.array(Y)),
    ],
)
def test_masked_arrays_are_refused_everywhere(make: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match="a masked array, whose mask would be lost"):
        make()


@pytest.mark.parametrize(
    ("labels", "options", "classes"),
    [
        ([0.0, 2.0], {}, 3),
        ([0.0, 2.0], {"classes": 5}, 5),
        ([0.0, 2.0], {"classes": 0}, 0),
        ([0, 2], {"classes": 0}, 0),
        ([0.0, 20.0], {}, 0),
        ([0.0, 20.0], {"classes": 21}, 21),
        ([0.0, -1.0], {}, 0),
        ([0.0, 0.5], {}, 0),
        ([[0.0], [1.0]], {}, 0),
        ([[0.0], [1.0]], {"classes": 2}, 2),
    ],
)
def test_few_whole_numbers_are_classes(labels: Any, options: Any, classes: int) -> None:
    federation = Federation.from_arrays([(X, np.array(labels))], **options)
    assert federation.classes == classes
    kind = "i" if classes or isinstance(labels[1], int) else "f"
    assert federation.train.y.dtype.kind == kind
    with_test = Federation.from_arrays([(X, np.array([0.0, 1.0]))], [(X, np.array([0.0, 0.5]))])
    assert with_test.classes == 0
    with pytest.raises(InputError, match="classes: given, but labels are not whole numbers"):
        Federation.from_arrays([(X, np.array([0.0, 0.5]))], classes=2)


def test_clients_may_come_from_a_generator() -> None:
    given = [(X, Y), (X + 1, Y)]
    names = (name for name in ("one", "two"))
    federation = Federation.from_arrays(iter(given), iter(given), names=names)
    assert federation.names == ("one", "two")
    for rows in (federation.train, federation.test):
        assert [rows.client(k)[0].tolist() for k in range(2)] == [X.tolist(), (X + 1).tolist()]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (3, "train: an argument of type int; it must be a list of clients' (x, y)"),
        ({"a": (X, Y)}, "train: an argument of type dict; it must be a list of clients' (x, y)"),
        (
            [None],
            "client '0', train: an object of type NoneType; each client must be a pair (x, y)",
        ),
        (
            [(X, Y, Y)],
            "client '0', train: an object of type tuple of length 3; each client must be",
        ),
    ],
)
def test_what_holds_no_clients_is_refused(train: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Federation.from_arrays(train)


@pytest.mark.parametrize(("train", "test"), [(Y, Y / 2), (Y / 2, Y)])
def test_labels_of_another_kind_in_the_test_rows_are_refused(train: Any, test: Any) -> None:
    with pytest.raises(InputError, match="labels of train and test differ in kind"):
        Federation.from_arrays([(X, train)], [(X, test)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["a", "a"]}, "names: 'a' appears twice"),
        ({"names": ["a", 1]}, "names: 1 is not a string"),
        ({"classes": -1}, "classes = -1; it must be a whole number of at least 0"),
        ({"classes": 1}, "client '0', train: label 1; labels are 0 to 0"),
        ({"test": [(X[:0], Y[:0]), (X + 0.5, Y)]}, "test: features of type float32; those to"),
    ],
)
def test_names_classes_and_test_rows_that_do_not_fit_are_refused(
    options: dict[str, Any], message: str
) -> None:
    whole = X.astype(np.int32)
    with pytest.raises(InputError, match=message):
        Federation.from_arrays([(whole, Y), (whole, Y)], **options)


def test_clients_with_whole_numbers_beside_others_make_numbers_of_32_bits() -> None:
    whole, half = (X + 1).astype(int), X + 0.5
    federation = Federation.from_arrays(
        [(whole, Y), (half, Y / 2)], [(whole, Y / 2), (whole, Y / 2)]
    )
    for array in (federation.train.x, federation.train.y, federation.test.x, federation.test.y):
        assert array.dtype == np.float32
    assert np.asarray(federation.train.x).tolist() == np.concatenate([whole, half]).tolist()
    assert federation.train.y.tolist() == [0, 1, 0, 0.5]
    assert Federation.from_arrays([(X, Y + 10_000)], classes=20_000).classes == 20_000


def test_from_arrays_keeps_order_names_and_clients_without_test_rows() -> None:
    federation = Federation.from_arrays(
        [(X, Y), (X + 1, Y)], [(X[:0], Y[:0]), (X + 2, Y)], names=["one", "two"]
    )
    assert federation.test.sizes.tolist() == [0, 2]
    assert federation.train.client(1)[0].tolist() == (X + 1).tolist()
    np.testing.assert_allclose(federation.shares, 0.5)
