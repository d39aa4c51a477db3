"""Features that are a dict or a tuple of arrays: the numbers of one array that holds them all."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox import InputError
from fedprox.datasets.labelled import divide
from fedprox.deployment.combine import evaluation_shapes
from fedprox.deployment.joining import check_fits, description_of, one_client, stand_in
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from fedprox.deployment.wire import Description
from fedprox.devices.mesh import lane_mesh
from fedprox.diagnostics.curvature import curvature
from fedprox.diagnostics.grouping import gradients
from fedprox.engine.storage import training_data
from fedprox.features import (
    Features,
    Windows,
    arrays_at,
    formed,
    index_of,
    look_up,
    named_leaves,
    row_count,
    row_shapes,
    rows_at,
    rows_like,
    tree_from,
    with_index,
)
from fedprox.federation import with_rows
from tests.commands import start, status
from tests.deployment.federations import apart, deployed, nodes_of, simulated, table_of
from tests.devices import test_hosts as hosts
from tests.objectives import MODEL, first
from tests.objectives import apply as apply_to_one
from tests.objectives import represent as represent_one
from tests.settings import BASE, FEDERATION, GROUPS
from tests.variants import mostly_slow

COUNT = 4
TEXT = np.arange(9, dtype=np.uint8)


def leaf(shape: tuple[int, ...], kind: str) -> Features:
    """An array of some rows, or windows of a text."""
    if kind == "windows":
        return Windows(TEXT, np.arange(COUNT, dtype=np.int32), 2)
    return np.arange(COUNT * int(np.prod(shape))).reshape(COUNT, *shape).astype(kind)


LEAVES = st.builds(
    leaf,
    st.sampled_from([(), (2,), (3, 1)]),
    st.sampled_from(["float32", "int32", "uint8", "windows"]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=11).map(tuple)
        | st.dictionaries(st.sampled_from(["b", "_a", "a1", "z"]), inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


@given(x=TREES)
def test_a_tree_is_its_leaves_by_name(x: Features) -> None:
    leaves = named_leaves(x)
    again = tree_from(dict(reversed(leaves.items())), "features")
    assert str(jax.tree.structure(again)) == str(jax.tree.structure(x))
    for name, found in named_leaves(again).items():
        assert found is leaves[name]
    names = formed(x, lambda found, name: name[9:] if found is leaves[name[9:]] else "another")
    assert named_leaves(names) == dict(zip(leaves, leaves, strict=True))


@settings(max_examples=40)
@given(x=TREES, rows=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=3))
def test_what_reads_rows_reads_those_of_each_leaf(x: Features, rows: list[int]) -> None:
    at = np.array(rows)
    assert row_count(x) == COUNT
    shapes, like, some, arrays, index, whole = map(
        named_leaves,
        (
            row_shapes(x),
            rows_like(x),
            rows_at(x, at),
            arrays_at(x, at) if not has_windows(x) else rows_at(x, at),
            index_of(x),
            with_index(x, index_of(x)),
        ),
    )
    for name, each in named_leaves(x).items():
        plain = isinstance(each, np.ndarray)
        stored = each if plain else each.starts
        shape = each.shape[1:] if plain else (2,)
        assert shapes[name].shape == shape
        assert like[name].shape == (2, *shape)
        np.testing.assert_array_equal(index_of(some[name]), stored[at])
        assert type(some[name]) is type(each)
        np.testing.assert_array_equal(index_of(arrays[name]), stored[at])
        assert index[name] is stored
        assert type(whole[name]) is type(each)
        assert index_of(whole[name]) is stored


def has_windows(x: Features) -> bool:
    """Whether a look-up would compile a program."""
    return any(isinstance(each, Windows) for each in named_leaves(x).values())


def test_compact_features_in_a_tree_are_looked_up() -> None:
    x = {"text": leaf((), "windows"), "pair": (leaf((2,), "int32"),)}
    found = look_up(x, index_of(rows_at(x, np.array([3, 1]))))
    assert np.asarray(found["text"]).tolist() == [[3, 4], [1, 2]]
    assert np.asarray(found["pair"][0]).tolist() == [[6, 7], [2, 3]]


TABLE = np.unique(FEDERATION.train.x[:, 3:], axis=0)
"""A vector for each row's last two features."""


def divided(x: Any) -> Features:
    """The five features of a row as three inputs, one of which is looked up in a table."""
    ids = [[int(np.flatnonzero((row == TABLE).all(axis=1))[0])] for row in x[:, 3:]]
    vectors = fp.Vectors(np.array(ids, np.int32).reshape(-1, 1), TABLE)
    return {"pair": (x[:, 0], x[:, 1:3]), "looked_up": vectors}


def joined(x: Any) -> jax.Array:
    """The five features of a row as one array."""
    one, two = x["pair"]
    return jnp.concatenate([one[:, None], two, x["looked_up"][:, 0]], axis=1)


def apply(w: Any, x: Any) -> jax.Array:
    return apply_to_one(w, joined(x))


def represent(w: Any, x: Any) -> jax.Array:
    return represent_one(w, joined(x))


SEVERAL = with_rows(FEDERATION, lambda _, rows: dataclasses.replace(rows, x=divided(rows.x)))
OF_SEVERAL = fp.Model(first, apply, representation=represent)


def runs(federation: fp.Federation, model: fp.Model, **changes: Any) -> list[fp.Run]:
    return fp.simulate(**BASE | changes | {"federation": federation, "model": model})


def same(ours: list[fp.Run], theirs: list[fp.Run]) -> None:
    """Assert that runs have the same bits."""
    for a, b in zip(ours, theirs, strict=True):
        assert a.label == b.label
        for one, other in zip(*map(jax.tree.leaves, (a.params, b.params)), strict=True):
            np.testing.assert_array_equal(one, other)
        for record, expected in zip(a.history, b.history, strict=True):
            assert repr(record) == repr(expected)  # with repr NaN is NaN


def on_devices(federation: fp.Federation, folder: Path) -> fp.Federation:
    del folder
    return federation


def on_host(federation: fp.Federation, folder: Path) -> fp.Federation:
    """Training rows whose arrays are views of mapped files, which are not copied to devices."""

    def mapped(a: Any) -> Any:
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        np.save(path, a)
        return np.load(path, mmap_mode="r")

    train = federation.train
    index = jax.tree.map(mapped, index_of(train.x))
    rows = dataclasses.replace(train, x=with_index(train.x, index), y=mapped(train.y))
    return dataclasses.replace(federation, train=rows)


def on_disk(federation: fp.Federation, folder: Path) -> fp.Federation:
    """The same rows from files that `write_mapped` wrote, without compact features."""
    plain = with_rows(
        federation, lambda _, rows: dataclasses.replace(rows, x=arrays_at(rows.x, slice(None)))
    )
    fp.datasets.write_mapped(folder / "several", plain)
    return fp.datasets.mapped(str(folder / "several"))


Place = Callable[[fp.Federation, Path], fp.Federation]


@pytest.mark.parametrize("place", mostly_slow([on_devices, on_host, on_disk], on_disk))
def test_several_inputs_train_like_one_wherever_rows_are(place: Place, tmp_path: Path) -> None:
    several = place(SEVERAL, tmp_path)
    stay = training_data.stays_with_host(lane_mesh(), several.train)
    assert stay == (place is not on_devices)
    same(runs(several, OF_SEVERAL), runs(FEDERATION, MODEL))


TWO = {"two methods": {"methods": [fp.fedprox(mu=[0.0, 0.5]), fp.scaffold()]}}
SETTINGS = TWO | GROUPS


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SETTINGS if "model" not in SETTINGS[name]])
def test_several_inputs_train_like_one_in_every_setting(name: str) -> None:
    case = SETTINGS[name]
    same(runs(SEVERAL, OF_SEVERAL, **case), runs(FEDERATION, MODEL, **case))


def noisy(key: jax.Array, rows: Any) -> Any:
    """Noise for the third feature alone; vectors are looked up by whoever augments."""
    one, two = rows["pair"]
    moved = two.at[:, 1].add(jax.random.normal(key, one.shape))
    return {"pair": (one, moved), "looked_up": jnp.asarray(TABLE)[rows["looked_up"]]}


def noisy_one(key: jax.Array, x: jax.Array) -> jax.Array:
    return x.at[:, 2].add(jax.random.normal(key, x.shape[:1]))


@pytest.mark.slow
def test_augmentation_gets_and_returns_all_inputs() -> None:
    several, one = (
        dataclasses.replace(federation, augment=augment)
        for federation, augment in ((SEVERAL, noisy), (FEDERATION, noisy_one))
    )
    augmented = runs(several, OF_SEVERAL)
    same(augmented, runs(one, MODEL))
    assert augmented[0].final.train_loss != runs(FEDERATION, MODEL)[0].final.train_loss


def lacking(key: jax.Array, rows: Any) -> Any:
    del key
    return {"pair": rows["pair"]}


def test_augmentation_must_return_all_inputs() -> None:
    message = (
        r"federation.augment\(key, rows\) returns pair.0 float32\[2\], pair.1 float32\[2,2\] for "
        r"looked_up int32\[2,1\], pair.0 .*; it must return features of shape {'looked_up': \(2, 1,"
    )
    with pytest.raises(InputError, match=message):
        runs(dataclasses.replace(SEVERAL, augment=lacking), OF_SEVERAL)


FEW = np.array([1, 3])
READERS: dict[str, Callable[[fp.Model, Any, fp.Federation], Any]] = {
    "evaluation": lambda model, params, federation: (
        fp.evaluate(model, params, federation).by_client
    ),
    "the nearest of several models": lambda model, params, federation: fp.nearest_models(
        model, stacked(params), federation
    ),
    "gradients": gradients,
    "curvature": lambda model, params, federation: curvature(
        federation.of_clients(FEW), model, params, iterations=2
    ),
    "newcomers": lambda model, params, federation: (
        fp.newcomers(
            *(model, params, federation.of_clients(FEW)),
            rows=[0, 2],
            steps=2,
            models=stacked(params),
        ).loss
    ),
}


@pytest.mark.parametrize("reader", mostly_slow(READERS, "evaluation", "gradients"))
def test_what_reads_a_federation_reads_several_inputs(reader: str) -> None:
    found = [
        jax.tree.leaves(READERS[reader](model, model.init(jax.random.key(0)), federation))
        for model, federation in ((OF_SEVERAL, SEVERAL), (MODEL, FEDERATION))
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def stacked(params: Any) -> Any:
    """Two models."""
    return jax.tree.map(lambda a: np.stack([a, -a]), params)


def pooled(federation: fp.Federation) -> fp.Federation:
    """The same rows, divided anew."""
    train, test = (fp.Examples(rows.x, rows.y) for rows in federation.parts)
    return divide(train, test, "dirichlet-by-client", DRAWN, classes=3, seed=0)


DRAWN = {"clients": 3, "concentration": 0.5}


def test_rows_are_taken_of_every_input() -> None:
    for change in (
        pooled,
        lambda federation: federation.sample(3),
        lambda federation: federation.hold_out(0.3),
        lambda federation: federation.sample_clients(2),
    ):
        several, one = change(SEVERAL), change(FEDERATION)
        for rows, expected in zip(several.parts, one.parts, strict=True):
            found = np.asarray(joined(arrays_at(rows.x, slice(None))))
            np.testing.assert_array_equal(found, expected.x)
            np.testing.assert_array_equal(rows.y, expected.y)


IMAGE, AGE = np.zeros((2, 4, 4), np.uint8), np.array([0.5, 1.5])
FIRST = {"image": IMAGE, "age": AGE}


def clients(second: Any) -> list[Any]:
    return [(FIRST, [0, 1]), (second, [1, 0])]


def test_inputs_of_any_order_and_mapping_are_one_kind() -> None:
    federation = fp.Federation.from_arrays(clients({"age": [1, 2], "image": IMAGE}))
    assert list(federation.train.x) == ["age", "image"]
    assert [a.dtype.name for a in federation.train.x.values()] == ["float32", "uint8"]
    assert federation.train.x["age"].tolist() == [0.5, 1.5, 1.0, 2.0]
    assert repr(federation).endswith("2 classes, features age float32[], image uint8[4,4]")
    assert federation.features["image"].shape == (4, 4)
    # a client without test rows needs no inputs
    tested = fp.Federation.from_arrays(clients(FIRST), [([], []), (FIRST, [0, 1])])
    assert tested.test.x["image"].shape == (2, 4, 4)
    validation = tested.with_validation(FIRST, [0, 1]).validation
    assert validation is not None
    assert validation.x["age"].tolist() == [0.5, 1.5]


def test_a_tuple_of_numbers_is_one_array() -> None:
    federation = fp.Federation.from_arrays([(((0.0, 1.0), (2.0, 3.0)), (0, 1)), ([(1, 1)], [1])])
    assert federation.train.x.tolist() == [[0, 1], [2, 3], [1, 1]]
    views = fp.Federation.from_arrays([((AGE, AGE), [0, 1])])
    assert [a.tolist() for a in views.train.x] == [[0.5, 1.5]] * 2


class Pair(NamedTuple):
    image: Any
    age: Any


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (IMAGE, "client '1', train: features are one array; other clients' are age, image"),
        ({"image": IMAGE}, "client '1', train: features are image; other clients' are age, image"),
        ((IMAGE, AGE), "client '1', train: features are 0, 1; other clients' are age, image"),
        (
            FIRST | {"image": IMAGE[:1]},
            r"client '1', train, features.image: features of shape \(1, 4, 4\) and labels of shape "
            r"\(2,\); one label for each row",
        ),
        (
            FIRST | {"image": IMAGE[:, :2]},
            r"client '1', train, features.image: rows of shape \(2, 4\); other clients' have \(4,",
        ),
        (FIRST | {"age": None}, "client '1', train: features.age: an object of type NoneType; an"),
        (
            FIRST | {"age": {}},
            "client '1', train: features.age: an empty dict; it must have an arr",
        ),
        ({}, "client '1', train: features: an empty dict; it must have an array at least"),
        (
            FIRST | {"age": ["a", "b"]},
            "client '1', train, features.age: features of type <U1; they",
        ),
        (
            FIRST | {"age": [0.5, np.nan]},
            "client '1', train, features.age: a feature is NaN or inf",
        ),
        (
            FIRST | {"age": np.ma.array(AGE)},
            "client '1', train: features.age: a masked array, whos",
        ),
        (
            FIRST | {"the age": AGE},
            "client '1', train: features: the key 'the age'; keys must be n",
        ),
        (FIRST | {0: AGE}, "client '1', train: features: the key 0; keys must be names as in Pyth"),
        (Pair(IMAGE, AGE), "client '1', train: features: a Pair; several arrays must be a dict or"),
    ],
)
def test_inputs_that_do_not_fit_are_named(second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        fp.Federation.from_arrays(clients(second))
    assert "\n" not in str(refused.value)


def test_rows_and_parts_that_do_not_fit_are_named() -> None:
    y, offsets = np.array([0, 1]), np.array([0, 1, 2])
    rows = fp.Rows(FIRST, y, offsets)
    wrong = fp.Vectors(np.array([[5], [0]], np.int32), np.zeros((2, 1), np.float32))
    for make, message in (
        (lambda: fp.Rows({"age": AGE[:1]}, y, offsets), "rows, features.age: 1 features, 2 labels"),
        (lambda: fp.Rows({"a": (AGE, 3)}, y, offsets), "rows: features.a.1: an object of type int"),
        (
            lambda: fp.Rows({"a": wrong}, y, offsets),
            "rows, features.a: ids 0 to 5; the table has 2",
        ),
        (
            lambda: fp.Examples((AGE, AGE[:1]), y),
            "examples, features.1: 1 features and 2 labels; b",
        ),
        (
            lambda: fp.Federation(rows, fp.Rows(AGE, y, offsets), 2, ("a", "b")),
            "test: features are one array; those to train on are age, image",
        ),
        (
            lambda: fp.Federation.from_arrays(clients(FIRST)).with_validation(IMAGE, y),
            "validation: features are one array; the clients' are age, image",
        ),
        (
            lambda: SEVERAL.with_validation(arrays_at(SEVERAL.train.x, slice(2)), y),
            "validation, features.looked_up: the clients' features are fedprox.Vectors; give",
        ),
        (
            lambda: fp.models.logistic(fp.Federation(rows, rows, 2, ("a", "b"))),
            r"model logistic: features are age float64\[\], image uint8\[4,4\]; .* numpy\.stack\(l",
        ),
        (
            lambda: fp.datasets.rotated(fp.Federation(rows, rows, 2, ("a", "b"))),
            "rotated: features are age, image; they must be one array of images",
        ),
    ):
        with pytest.raises(InputError, match=message):
            make()


def two_inputs(clients: int = 4) -> fp.Federation:
    """Data of nodes, named by an experiment."""
    federation = fp.datasets.synthetic(clients=clients, seed=337)

    def change(_: str, rows: fp.Rows) -> fp.Rows:
        return dataclasses.replace(rows, x={"left": rows.x[:, :20], "right": (rows.x[:, 20:],)})

    return with_rows(federation, change)


def of_two_inputs(federation: fp.Federation) -> fp.Model:
    """A logistic model of `two_inputs`."""
    width = sum(leaf.shape[0] for leaf in jax.tree.leaves(federation.features))

    def init(key: jax.Array) -> Any:
        return jax.random.normal(key, (width, federation.classes)) / 8

    def outputs(w: Any, x: Any) -> jax.Array:
        return jnp.concatenate([x["left"], *x["right"]], axis=1) @ w

    return fp.Model(init, outputs)


OF_TWO: dict[str, dict[str, Any]] = {
    "data": {"name": f"{__name__}:two_inputs", "clients": 4},
    "model": {"name": f"{__name__}:of_two_inputs"},
}


def test_a_coordinator_stands_in_for_several_inputs(tmp_path: Path) -> None:
    ids = np.array([[3, 9]], np.int32)
    images = fp.Prepared(np.zeros((1, 2, 2), np.uint8), jnp.float32)
    rows = fp.Rows({"ids": ids, "image": (images,)}, np.array([1]), np.array([0, 1]))
    federation = fp.Federation(rows, rows, 2, ("a",))
    described = description_of("n", "", federation, [], sampled=False)
    sent = Description.model_validate_json(described.model_dump_json())
    assert sent.kind.arrays == {"features.ids": "int32[2]", "features.image.0": "float32[2,2]"}
    for like in (one_client(sent.kind), stand_in(sent.kind, [sent])):
        assert like.features == federation.features
        # so that a model of symbols has an embedding for each of them
        assert like.train.x["ids"].max() == 9
    shapes = evaluation_shapes(OF_SYMBOLS, sent.kind, 1)
    assert shapes["train/first"]["sum"].shape == (1, 2)
    image, symbols = sent.kind.features[::-1]
    fewer = sent.kind.model_copy(
        update={"features": [symbols.model_copy(update={"greatest": 8}), image]}
    )
    node = Node("n", federation, tmp_path, Policy())
    run: Any = SimpleNamespace(data=sent.kind)
    node._check_kind(run)
    run.data = fewer
    with pytest.raises(
        InputError, match=r"data\.features: 8 is the greatest; the node's data have 9"
    ):
        node._check_kind(run)


def of_symbols(w: Any, x: Any) -> jax.Array:
    return w + x["image"][0].reshape(-1, 4)[:, :2] + x["ids"]


def summed(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    del y
    return {"sum": outputs}


OF_SYMBOLS = fp.Model(
    lambda _: jnp.zeros(2),
    of_symbols,
    metrics={"first": fp.Metric(summed, lambda sums: sums["sum"][0])},
)


@pytest.mark.slow
def test_nodes_have_several_inputs(tmp_path: Path) -> None:
    table = {**table_of({"name": "scaffold"}, cohort={"clients_per_round": 4}), **OF_TWO}
    nodes = nodes_of(table, tmp_path, policy=Policy(models=[OF_TWO["model"]["name"]]))
    ours, theirs = deployed(table, [each.answer for each in nodes]), simulated(table)
    assert apart(theirs[0].params, ours[0].params) < 1e-5
    for a, b in zip(theirs[0].history, ours[0].history, strict=True):
        assert math.isclose(a.train_loss, b.train_loss, rel_tol=1e-5)
        assert a.test_accuracy == b.test_accuracy


@pytest.mark.slow
def test_nodes_whose_inputs_differ_do_not_join() -> None:
    def lacks(_: str, rows: fp.Rows) -> fp.Rows:
        return dataclasses.replace(rows, x={"left": rows.x["left"]})

    def narrow(_: str, rows: fp.Rows) -> fp.Rows:
        return dataclasses.replace(rows, x=rows.x | {"right": (rows.x["right"][0][:, :3],)})

    whole = two_inputs()
    for change, line in (
        (lacks, "features.right.0: it has no such array, and node 'm' has float32[40]; all nodes "),
        (
            narrow,
            "features.right.0: it has float32[3], and node 'm' has float32[40]; all nodes nee",
        ),
    ):
        other = with_rows(whole, change)
        names = [tuple(f"{part}{k}" for k in range(4)) for part in "mn"]
        mine, theirs = (
            description_of(name, "", dataclasses.replace(each, names=of), [], sampled=False)
            for name, each, of in zip("mn", (whole, other), names, strict=True)
        )
        with pytest.raises(InputError, match=re.escape(line)):
            check_fits(theirs, [mine])


EXPERIMENT = f"""
rounds = 4
evaluation.every = 2
data = {{name = "{__name__}:two_inputs", clients = 6}}
model = {{name = "{__name__}:of_two_inputs"}}
cohort = {{clients_per_round = 4}}
solver = {{learning_rate = 0.01, batch_size = 10, epochs = 1}}
method = [{{name = "scaffold"}}]
"""


@pytest.mark.slow
def test_processes_share_several_inputs(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = ["run", str(tmp_path / "experiment.toml"), "--out"]
    one, two = (tmp_path / name for name in ("one", "two"))
    assert status(start(tmp_path / "output", [*command, str(one), "--devices", "1"])) == 0
    processes = hosts.together(tmp_path, 2, [*command, str(two)])
    assert [status(process) for process in processes] == [0, 0]
    (numbers, model), (alone, alone_model) = map(hosts.found, (two, one))
    assert numbers == pytest.approx(alone, rel=1e-4, abs=1e-5)
    for name, array in alone_model.items():
        np.testing.assert_allclose(model[name], array, rtol=1e-4, atol=1e-5)
