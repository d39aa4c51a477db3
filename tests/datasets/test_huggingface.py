"""Data sets of the Hugging Face library, made and saved here; and what is said without it."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedprox import Federation, InputError
from fedprox.datasets.huggingface import hugging_face


@pytest.fixture(scope="module")
def library() -> Any:
    """The library, an optional extra."""
    pytest.importorskip("pyarrow", reason="an optional extra: pip install datasets")
    return pytest.importorskip("datasets", reason="an optional extra: pip install datasets")


def save(library: Any, folder: Path, features: dict[str, Any], **splits: dict[str, Any]) -> str:
    """Save splits of columns, with the types of some columns; the folder."""
    made = {}
    for name, columns in splits.items():
        types = library.Dataset.from_dict(columns).features if columns else library.Features()
        given = library.Features({c: features.get(c, types.get(c)) for c in columns})
        made[name] = library.Dataset.from_dict(columns, features=given)
    one = next(iter(made.values()))
    (one if len(made) == 1 else library.DatasetDict(made)).save_to_disk(str(folder))
    return str(folder)


def rows(federation: Federation) -> list[tuple[str, str, Any, int]]:
    """Every row: client, part, features, label."""
    found = []
    for part, those in (("train", federation.train), ("test", federation.test)):
        for k, name in enumerate(federation.names):
            x, y = those.client(k)
            found += [(name, part, a, int(b)) for a, b in zip(np.asarray(x), y, strict=True)]
    return found


def test_a_client_for_each_value_of_a_column(library: Any, tmp_path: Path) -> None:
    n = 60
    who = [f"w{i % 3}" for i in range(n)]
    columns = {"x": [[float(i), 0.5] for i in range(n)], "kind": ["no", "yes"] * 30, "who": who}
    path = save(library, tmp_path / "set", {}, train=columns)
    federation = hugging_face(path, features="x", label="kind", client="who", seed=3)
    assert federation.names == ("w0", "w1", "w2")
    assert federation.classes == 2
    assert federation.train.sizes.tolist() == [16, 16, 16]
    assert federation.test.sizes.tolist() == [4, 4, 4]
    assert federation.train.x.dtype == np.float32
    seen = rows(federation)
    assert sorted(int(x[0]) for _, _, x, _ in seen) == list(range(n))
    for name, _, x, y in seen:
        assert (name, x[1], y) == (who[int(x[0])], 0.5, int(x[0]) % 2)
    again = hugging_face("set", features="x", label="kind", client="who", seed=3, data_dir=tmp_path)
    assert np.array_equal(again.train.x, federation.train.x)


def test_a_data_set_that_is_loaded_already_is_taken(library: Any, tmp_path: Path) -> None:
    columns = {"x": [[float(i)] for i in range(30)], "y": [0, 1] * 15, "who": ["a", "b", "c"] * 10}
    given = library.Dataset.from_dict(columns)
    options: dict[str, Any] = {"features": "x", "label": "y", "client": "who"}
    path = save(library, tmp_path / "set", {}, train=columns)
    expected = rows(hugging_face(path, **options))
    assert rows(hugging_face(given, **options)) == expected
    assert rows(hugging_face(Path(path), **options)) == expected
    both = library.DatasetDict(train=given, test=given.select(range(3)))
    assert len(hugging_face(both, **options).test) == 3
    with pytest.raises(InputError, match="Dataset: no column 'z'; it has x, y, who"):
        hugging_face(given, **options | {"features": "z"})
    with pytest.raises(InputError, match=r"data\.subset = 'a'; the data set is loaded already"):
        hugging_face(given, **options, subset="a")
    for other, kind in ((given.to_iterable_dataset(), "IterableDataset"), (3, "int")):
        with pytest.raises(InputError, match=f"data.path: an object of type {kind}; it must be a"):
            hugging_face(other, **options)


def test_the_sets_own_test_rows_stay_test_rows(library: Any, tmp_path: Path) -> None:
    def part(numbers: range) -> dict[str, Any]:
        ids = [i % 4 for i in numbers]
        return {"x": [[i] for i in numbers], "y": [i % 2 for i in numbers], "id": ids}

    path = save(library, tmp_path, {}, train=part(range(40)), test=part(range(40, 60)))
    federation = hugging_face(path, features="x", label="y", client="id")
    assert federation.names == ("0", "1", "2", "3")
    for name, which, x, _ in rows(federation):
        assert (which == "train") == (x[0] < 40)
        assert int(name) == x[0] % 4
    anew = hugging_face(path, features="x", label="y", client="id", train_share=0.5)
    assert (anew.train.sizes == 7).all()
    assert (anew.test.sizes == 8).all()
    assert len({float(x[0]) for _, _, x, _ in rows(anew)}) == 60


def test_any_partition_of_images(library: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 5, 4), dtype=np.uint8)
    kinds = library.ClassLabel(names=["a", "b", "c"])
    columns = {"image": [Image.fromarray(p) for p in pixels], "y": [i % 3 for i in range(120)]}
    types = {"image": library.Image(), "y": kinds}
    path = save(library, tmp_path, types, train=columns)
    federation = hugging_face(
        *(path,),
        features="image",
        label="y",
        partition="classes-per-client",
        clients=6,
        classes_per_client=1,
    )
    assert (len(federation), federation.classes) == (6, 3)
    assert federation.train.x.index.dtype == np.uint8
    assert federation.features.shape == (5, 4)
    assert federation.features.dtype == np.float32
    assert (len(federation.train), len(federation.test)) == (96, 24)
    for k in range(6):
        labels = np.concatenate([part.client(k)[1] for part in (federation.train, federation.test)])
        assert len(set(labels.tolist())) == 1
    kept = np.concatenate([federation.train.x.index, federation.test.x.index])
    labels = np.concatenate([federation.train.y, federation.test.y])
    place = {p.tobytes(): i for i, p in enumerate(pixels)}
    assert [place[p.tobytes()] % 3 for p in kept] == labels.tolist()
    np.testing.assert_allclose(
        np.asarray(federation.train.x), federation.train.x.index / 255, atol=1e-6
    )


def test_images_are_grey_only_if_all_are(library: Any) -> None:
    grey = Image.fromarray(np.full((2, 2), 7, np.uint8))
    colour = Image.fromarray(np.full((2, 2, 3), [9, 0, 200], np.uint8))
    types = library.Features(im=library.Image(), y=library.Value("int64"))
    options: dict[str, Any] = {"features": "im", "label": "y", "partition": "iid", "clients": 1}
    for images, shape in (
        ((grey, grey, grey), (2, 2)),
        ((grey, colour, grey), (2, 2, 3)),
        ((colour, grey, grey), (2, 2, 3)),
        ((grey, grey, colour), (2, 2, 3)),
    ):
        made = library.Dataset.from_dict({"im": list(images), "y": [0, 1, 0]}, features=types)
        both = library.DatasetDict(train=made.select([0, 1]), test=made.select([2]))
        federation = hugging_face(both, **options)
        assert federation.features.shape == shape
        pixels = np.concatenate([federation.train.x.index, federation.test.x.index])
        stored = {tuple(np.ravel(image[0, 0]).tolist()) for image in pixels}
        alike = {(7,)} if len(shape) == 2 else {(7, 7, 7), (9, 0, 200)}
        assert stored == alike


def test_a_transform_that_would_be_discarded_is_refused(library: Any) -> None:
    made = library.Dataset.from_dict({"x": [[1.0], [2.0]], "y": [0, 1]})
    options: dict[str, Any] = {"features": "x", "label": "y", "partition": "iid", "clients": 1}
    doubled = made.with_transform(lambda rows: {"x": [[2 * x[0]] for x in rows["x"]]})
    for given in (doubled, library.DatasetDict(train=made, test=doubled)):
        with pytest.raises(InputError, match=r"it has a transform .* remove it with reset_format"):
            hugging_face(given, **options)
    assert len(hugging_face(made.with_format("numpy"), **options).train) == 1
    doubled.reset_format()
    assert len(hugging_face(doubled, **options).train) == 1


def test_splits_that_are_not_used_are_counted(library: Any, caplog: Any) -> None:
    made = library.Dataset.from_dict({"x": [[1.0], [2.0]], "y": [0, 1]})
    given = library.DatasetDict(
        train=made, test=made.select([0]), validation=made, unsupervised=made.select([1])
    )
    federation = hugging_face(given, features="x", label="y", partition="iid", clients=1)
    assert (len(federation.train), len(federation.test)) == (2, 1)
    assert caplog.messages == [
        'DatasetDict: the split "validation" of 2 rows is not used',
        'DatasetDict: the split "unsupervised" of 1 row is not used',
    ]


def test_images_that_cannot_be_used_are_one_line(library: Any, tmp_path: Path) -> None:
    def png(pixels: Any) -> dict[str, Any]:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        return {"bytes": file.getvalue(), "path": None}

    good, deep = png(np.full((2, 2), 7, np.uint8)), png(np.full((2, 2), 60_000, np.uint16))
    damaged = good | {"bytes": good["bytes"][:20]}
    for first, second, message in (
        (None, good, "has rows of different shape, or without a value"),
        (good, None, "has rows of different shape, or without a value"),
        (damaged, good, "column 'im' cannot be read"),
        (good, damaged, "column 'im' cannot be read"),
        (deep, good, "images of mode I;16, beyond bytes; give them as arrays of numbers"),
        (good, deep, "images of mode I;16, beyond bytes; give them as arrays of numbers"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        columns = {"im": [first, second], "y": [0, 1]}
        path = save(library, folder, {"im": library.Image()}, train=columns)
        with pytest.raises(InputError, match=message) as error:
            hugging_face(path, features="im", label="y", partition="iid", clients=1)
        assert "\n" not in str(error.value)


def test_classes_in_another_order_are_refused(library: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"features": "x", "label": "y", "partition": "iid", "clients": 1}
    for names in (["cat", "dog"], ["dog", "cat"]):
        parts = {
            part: library.Dataset.from_dict(
                {"x": [[0.0], [1.0]], "y": [0, 1]},
                features=library.Features(
                    x=library.Sequence(library.Value("float32")), y=library.ClassLabel(names=words)
                ),
            )
            for part, words in (("train", ["cat", "dog"]), ("test", names))
        }
        path = str(tmp_path / names[0])
        library.DatasetDict(parts).save_to_disk(path)
        if names[0] == "cat":
            assert hugging_face(path, **options).classes == 2
        else:
            with pytest.raises(InputError, match="classes are not the same in training and test"):
                hugging_face(path, **options)


def test_columns_of_numbers_side_by_side_and_a_number_as_label(
    library: Any, tmp_path: Path
) -> None:
    columns = {"age": [30, 40, 50, 60], "tall": [True, False, True, False], "y": [0.1, 0.2, 0.3, 4]}
    path = save(library, tmp_path, {}, train=columns)
    options: dict[str, Any] = {"label": "y", "clients": 2, "train_share": 0.5}
    federation = hugging_face(path, features=["age", "tall"], partition="iid", **options)
    assert federation.classes == 0
    assert federation.features.shape == (2,)
    of_age = {30: 0.1, 40: 0.2, 50: 0.3, 60: 4.0}
    for part in (federation.train, federation.test):
        assert part.y.dtype == np.float32
        for x, y in zip(part.x, part.y, strict=True):
            assert y == pytest.approx(of_age[int(x[0])])
            assert x[1] == (x[0] in (30, 50))
    ages = np.concatenate([federation.train.x, federation.test.x])[:, 0]
    assert sorted(ages.tolist()) == sorted(of_age)
    message = 'labels are not classes, which leaves "iid"'
    with pytest.raises(InputError, match=message):
        hugging_face(path, features="age", partition="shards", **options)


def test_arrays_of_bytes_are_kept_as_bytes(library: Any, tmp_path: Path) -> None:
    pixels = np.arange(4 * 6).reshape(4, 2, 3).astype(np.uint8)
    columns = {"a": list(pixels), "y": [0, 1, 0, 1]}
    path = save(library, tmp_path, {"a": library.Array2D((2, 3), "uint8")}, train=columns)
    federation = hugging_face(path, features="a", label="y", partition="iid", clients=1)
    assert federation.train.x.index.dtype == np.uint8
    assert np.asarray(federation.train.x).max() <= 23 / 255 + 1e-6


BAD: list[tuple[dict[str, Any], str]] = [
    ({"features": "z"}, r"no column 'z'; it has x, ragged, text, none, who, y, minus, long"),
    ({"label": "z"}, "no column 'z'"),
    ({"client": "z"}, "no column 'z'"),
    ({"features": []}, r"data\.features = \[\]; at least one column is needed"),
    ({"features": "text"}, "column 'text' holds text; it must be images or numbers"),
    ({"features": "ragged"}, "column 'ragged' has rows of different shape"),
    ({"features": "long"}, "column 'long': a whole number beyond 32 bits, which float32 would"),
    ({"features": "none"}, "column 'none': a value is missing, or not finite"),
    ({"features": ["x", "y"]}, "column 'x' holds arrays; only columns of numbers can stand side"),
    ({"label": "x"}, "column 'x' cannot be the label; each row needs a number or a word"),
    ({"label": "none"}, "column 'none': a label is missing, or not finite"),
    ({"label": "minus"}, r"column 'minus': label -1; labels are 0 to 9999"),
    ({"client": "none"}, "column 'none' cannot name clients; each row needs a word or"),
    ({"client": None}, "data: give either client, the column that names the clients, or partition"),
    ({"partition": "iid"}, "data: give either client, .* or partition"),
    ({"clients": 2}, r"data\.clients = 2; it needs a partition"),
    ({"train_share": 1.5}, r"data\.train_share = 1\.5; it must be between 0 and 1"),
    ({"client": None, "partition": "iid"}, r"data\.clients: missing; partition 'iid' needs it"),
    (
        {"client": None, "partition": "iid", "clients": 2, "concentration": 0.1},
        r"data\.concentration = 0\.1; it belongs to partition dirichlet-by-client or",
    ),
    (
        {"client": None, "partition": "dirichlet-by-class", "clients": 2},
        r"data\.concentration: missing; partition 'dirichlet-by-class' needs it",
    ),
    ({"client": None, "partition": "lots", "clients": 2}, r"data\.partition = 'lots'; it must be"),
    ({"client": None, "partition": "iid", "clients": 99}, r"data\.clients = 99"),
]


@pytest.fixture(scope="module")
def saved(library: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    columns = {
        "x": [[0.0], [1.0], [2.0], [3.0]],
        "ragged": [[0.0], [1.0, 2.0], [], [0.5]],
        "text": ["a", "b", "c", "d"],
        "none": [1.0, None, 2.0, 3.0],
        "who": ["a", "a", "b", "b"],
        "y": [0, 1, 0, 1],
        "minus": [-1, 0, 1, 0],
        "long": [0, 1, 2**40 + 1, 2],
    }
    return save(library, tmp_path_factory.mktemp("bad") / "set", {}, train=columns)


@pytest.mark.parametrize(("options", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_options_are_one_line(saved: str, options: dict[str, Any], message: str) -> None:
    given = {"features": "x", "label": "y", "client": "who"} | options
    with pytest.raises(InputError, match=message) as error:
        hugging_face(saved, **given)
    assert "\n" not in str(error.value)


def test_clients_with_test_rows_alone_are_named(library: Any, tmp_path: Path) -> None:
    def part(*who: str) -> dict[str, Any]:
        return {"x": [[0.0]] * len(who), "y": [0] * len(who), "who": list(who)}

    path = save(library, tmp_path, {}, train=part("ann"), test=part("ann", "bob"))
    with pytest.raises(InputError, match=r"client 'bob' has no training rows; data\.train_share"):
        hugging_face(path, features="x", label="y", client="who")


def test_splits_that_cannot_be_used_are_named(library: Any, tmp_path: Path) -> None:
    columns = {"x": [[0.0]], "y": [0], "who": ["a"]}
    path = save(library, tmp_path / "a", {}, one=columns, two=columns)
    options: dict[str, Any] = {"features": "x", "label": "y", "client": "who"}
    with pytest.raises(InputError, match='no split "train"; it has one, two'):
        hugging_face(path, **options)


def test_broken_folders_are_one_line(library: Any, tmp_path: Path) -> None:
    columns = {"x": [[0.0]], "y": [0], "who": ["a"]}
    for name, content in {
        "state.json": b"{",
        "dataset_info.json": b"[]",
        "data-00000-of-00001.arrow": b"cut short",
    }.items():
        path = Path(save(library, tmp_path / name, {}, train=columns))
        (path / name).write_bytes(content)
        with pytest.raises(InputError, match="cannot be loaded") as error:
            hugging_face(str(path), features="x", label="y", client="who")
        assert "\n" not in str(error.value)


def test_a_local_folder_of_tables_is_read_by_the_library(library: Any, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(
        "a,b,who\n" + "".join(f"{i},{i % 2},u{i % 3}\n" for i in range(30))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        federation = hugging_face(str(tmp_path), features="a", label="b", client="who")
    assert (len(federation), len(federation.train), federation.classes) == (3, 24, 2)


def test_without_the_library_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="not installed: in a clone of fedprox, pip"):
        hugging_face("name", features="x", label="y", partition="iid", clients=2)
