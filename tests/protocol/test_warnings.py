"""Warnings about settings and data that make results say less than they seem to."""

import re
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox import Federation
from fedprox.datasets import mapped, write_mapped
from fedprox.losses import by_labels
from fedprox.protocol import method
from fedprox.protocol.protocol import initial_params
from tests.outputs import losses
from tests.test_cli import LOSSES, status


def clients(*labels: list[int]) -> list[Any]:
    """A client for each list of labels; features tell the labels apart."""
    return [(np.array(y, np.float32)[:, None], np.array(y)) for y in labels]


class Begun(BaseException):
    """The first method's rounds would begin now."""


def stop(_: object) -> None:
    raise Begun


def warned(federation: Federation, model: fp.Model | None = None, **options: Any) -> list[str]:
    """What a comparison of two methods with two seeds warns of."""
    defaults: dict[str, Any] = {"cohort": fp.Cohort(1), "rounds": 2, "on_progress": stop}
    with warnings.catch_warnings(record=True) as caught, suppress(Begun):
        warnings.simplefilter("always")
        fp.simulate(
            federation,
            model or fp.models.logistic(federation),
            [fp.fedavg(), fp.fedprox(mu=[0.0, 1.0])],
            solver=fp.Solver(0.1, 5, epochs=1),
            seed=[0, 1],
            **(defaults | options),
        )
    assert all(one.filename == __file__ for one in caught)  # the caller's line is shown
    assert all(one.category is UserWarning for one in caught)
    return [str(one.message) for one in caught]


PLAIN = clients([0, 1, 0], [1, 1])


def test_evaluating_less_often_than_there_are_rounds_warns() -> None:
    federation = Federation.from_arrays(PLAIN, PLAIN)
    assert warned(federation, evaluation=fp.Evaluation(every=2)) == []
    (line,) = warned(federation, evaluation=fp.Evaluation(every=3))
    assert line == (
        "evaluation.every = 3 is more than rounds = 2: only the initial and the final model are "
        "evaluated"
    )


def test_labels_of_one_class_warn() -> None:
    same = clients([2, 2], [2])
    (line,) = warned(Federation.from_arrays(same, same, classes=4))
    assert line == (
        "all training labels that evaluations read are of class 2: a model that always answers 2 "
        "fits them, so losses and accuracies do not tell methods apart"
    )


def test_classes_that_are_numbered_from_1_warn() -> None:
    rows = clients([1, 2, 2], [3, 1])
    (line,) = warned(Federation.from_arrays(rows, rows))
    assert line == (
        "labels are 1 to 3, which are 4 classes with class 0, of which there are no rows; number "
        "classes from 0"
    )
    few = clients([1, 3], [1])  # a few rows of those with more classes
    assert warned(Federation.from_arrays(few, few)) == []


def test_a_test_label_that_nobody_trains_on_warns() -> None:
    test = clients([0, 3, 2], [3])
    federation = Federation.from_arrays(PLAIN, test, classes=5)
    (line,) = warned(federation)
    assert line == (
        "3 of the 4 test labels that evaluations read are of classes that no client has in "
        "training (2, 3): a model does not learn to predict them, and test accuracy counts them as "
        "errors"
    )
    # rows that are not evaluated are trained on all the same
    many = [([[0.0]] * 50, [0] * 48 + [1, 2]), ([[0.0]], [1])]
    federation = Federation.from_arrays(many, clients([2], [1]))
    assert warned(federation, evaluation=fp.Evaluation(rows=1)) == []
    # an ellipsis after the first few
    federation = Federation.from_arrays(PLAIN, clients(list(range(2, 40)), []))
    (line,) = warned(federation)
    assert "(2, 3, 4, 5, 6, ...)" in line


def test_positions_without_a_label_are_not_a_class() -> None:
    x, y = np.zeros((2, 3), np.int32), np.array([[0, 1, -1], [1, -1, -1]])
    federation = Federation.from_arrays([(x, y)], [(x, y)])

    def apply(params: Any, x: Any) -> Any:
        return params[x]

    model = fp.Model(lambda _: np.zeros((3, 2), np.float32), apply)
    assert warned(federation, model) == []


def test_labels_that_are_not_classes_do_not_warn() -> None:
    same = clients([1, 1], [1])

    def apply(params: Any, x: Any) -> Any:
        return x @ params

    def squared(outputs: Any, y: Any) -> Any:
        return (outputs - y) ** 2

    model = fp.Model(lambda _: np.zeros(1, np.float32), apply, squared, correct=None)
    assert warned(Federation.from_arrays(same, same), model) == []
    real = [(x, y.astype(float)) for x, y in same]
    assert warned(Federation.from_arrays(real, real), model) == []


def test_labels_in_files_are_not_read_for_a_warning(tmp_path: Path) -> None:
    train, test = clients([0] * 9, [1, 2], [0]), clients([0], [2], [3])
    write_mapped(tmp_path / "folder", train, test)
    federation = mapped(str(tmp_path / "folder"), classes=4)
    # classes that the evaluated rows lack may be in the others, which stay with the host
    assert warned(federation, evaluation=fp.Evaluation(clients=2)) == []
    memory = [
        replace(r, x=np.array(r.x), y=np.array(r.y)) for r in (federation.train, federation.test)
    ]
    (line,) = warned(replace(federation, train=memory[0], test=memory[1]))
    assert "(3)" in line


@pytest.mark.slow
def test_the_command_prints_each_once(tmp_path: Path, capsys: Any) -> None:
    """Once to the end of a run."""
    (tmp_path / "small.toml").write_text(LOSSES)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        settings = [
            p
            for s in ("evaluation.every=9", "seed=0", 'method=[{name="fedavg"}]')
            for p in ("--set", s)
        ]
        arguments = (tmp_path / "small.toml", *settings, "--out", tmp_path / "out")
        assert status("run", *arguments) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "fedprox: evaluation.every = 9 is more than rounds = 4: only the initial and the final "
        "model are evaluated"
    )


def test_a_diagnosis_of_a_short_run_does_not_warn() -> None:
    federation = fp.datasets.synthetic(clients=5)
    with suppress(Begun):
        fp.diagnose(
            federation,
            fp.models.logistic(federation),
            solver=fp.Solver(0.01, 10, epochs=1),
            cohort=fp.Cohort(2),
            rounds=1,
            on_progress=stop,
        )


def linear(change: Any = lambda outputs: outputs) -> fp.Model:
    """A linear model of two classes whose outputs are changed."""

    def init(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (4, 2))

    return fp.Model(init, lambda w, x: change(x.astype(jnp.float32) @ w))


def pixels(scale: Any) -> Federation:
    """Two clients' images of four pixels."""
    rng = np.random.default_rng(0)
    return Federation.from_arrays(
        [(scale(rng.integers(0, 256, (4, 4))), np.array([0, 1, 1, 0])) for _ in range(2)]
    )


SCALED = pixels(lambda x: x / 255)
PROBABILITIES = (
    "model.apply returns probabilities, since no output is negative and those of a label add up to "
    "one, but cross-entropy takes logits: leave the last softmax out"
)


def test_probabilities_given_to_cross_entropy_warn_once() -> None:
    for loss in (by_labels, fp.losses.cross_entropy(weights=[1, 2])):
        model = replace(linear(jax.nn.softmax), loss=loss)
        assert warned(SCALED, model) == [PROBABILITIES]
        assert warned(SCALED, model) == []  # it has been looked at


@pytest.mark.slow
def test_what_takes_probabilities_does_not_warn() -> None:
    def likelihood(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return -jnp.log(jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0])

    assert warned(SCALED, replace(linear(jax.nn.softmax), loss=likelihood)) == []
    for change in (jax.nn.log_softmax, jax.nn.sigmoid, lambda outputs: outputs):
        assert warned(SCALED, linear(change)) == []


def test_raw_pixels_warn_whatever_their_type_is() -> None:
    for kind in (np.uint8, np.int32, np.float32):
        raw = pixels(lambda x, kind=kind: x.astype(kind))
        (line,) = warned(raw, linear())
        found = re.fullmatch(
            r"features are as large as (\d+), and the initial loss is ([\d.]+), where guessing "
            r"among 2 classes gives 0.693: scale the features, such as pixels from 0 to 255 by x / "
            "255",
            line,
        )
        assert found
        params = np.asarray(initial_params(linear(), 0), float)
        outputs = raw.train.x.astype(float) @ params
        assert float(found[1]) == raw.train.x.max()
        expected = losses(outputs, raw.train.y).mean()
        assert float(found[2]) == pytest.approx(expected, rel=0.01)


def test_a_model_of_the_librarys_warns_of_ones_own_raw_pixels() -> None:
    raw = pixels(lambda x: x.astype(np.float32))
    (line,) = warned(raw, fp.models.mlp(raw, hidden=[8]))
    assert line.startswith("features are as large as 2")


def test_what_does_not_hurt_is_no_raw_feature() -> None:
    raw = pixels(lambda x: x)
    assert warned(raw, linear(lambda outputs: outputs / 255)) == []  # it scales them itself
    given = np.zeros((4, 2), np.float32)
    assert warned(raw, linear(), initial=given) == []
    assert warned(raw, replace(linear(), loss=lambda o, y: (o[:, 0] - y) ** 2)) == []
    ids = pixels(lambda x: 40 * x)
    assert warned(ids, linear()) == []


def test_ids_and_small_features_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is made for words, characters and scaled pixels."""
    monkeypatch.delattr(method, "_mean_loss")
    outlier = np.zeros((4, 4))
    outlier[0, 0] = 30
    for of in (lambda x: 40 * x, lambda x: x // 4, lambda x: -x, lambda x: x / 255 + outlier):
        assert warned(pixels(of), linear()) == []


def test_the_librarys_own_data_and_models_do_not_warn() -> None:
    federation = fp.datasets.synthetic(clients=4)
    for model in (fp.models.logistic(federation), fp.models.mlp(federation, hidden=[8])):
        assert warned(federation, model) == []
