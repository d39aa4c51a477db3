"""Functions by name, and optimizers among their parameters."""

import sys
from pathlib import Path
from typing import Any

import optax
import pytest

import fedprox as fp
from fedprox.algorithms import ALGORITHMS, Algorithm
from fedprox.experiment.resolved import _model, model_of
from fedprox.experiment.schema import is_optimizer, keys_of, named
from fedprox.losses import top_1
from fedprox.solver import Solver, name_of

MODULE = '''
from collections.abc import Callable
import fedprox as fp
import optax

Optimizer = Callable[..., optax.GradientTransformationExtraArgs]

def usual(second: Optimizer = optax.fromage) -> fp.Algorithm:
    return fp.fedopt(second)

def mine(first: Optimizer, rate: float = 1.0, second: Optimizer | None = None) -> fp.Algorithm:
    """The variant says which optimizers have come."""
    made = fp.fedopt(first, server_learning_rate=rate)
    return made if second is None else fp.fedopt(second, server_learning_rate=rate)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A method of one's own that takes two optimizers."""
    (tmp_path / "own_optimizers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_optimizers", raising=False)
    return "own_optimizers:mine"


def method(**table: Any) -> Algorithm:
    build, _ = named(table, ALGORITHMS, "method.0", Algorithm)
    made: Algorithm = build()
    return made


def test_an_optimizer_has_two_keys() -> None:
    assert list(keys_of(fp.fedopt)) == [
        "optimizer",
        "optimizer_options",
        "server_learning_rate",
    ]


@pytest.mark.parametrize("field", ["optimizer"])
def test_the_solvers_optimizer_is_one_by_its_annotation(field: str) -> None:
    assert is_optimizer(Solver.__annotations__[field])
    assert not is_optimizer(optax.GradientTransformation)  # one that is built has its rate


def test_fedopt_gets_its_optimizer_with_its_options() -> None:
    made = method(name="fedopt", optimizer="sgd", optimizer_options={"momentum": 0.9})
    assert made.variant == "sgd momentum=0.9"
    assert method(name="fedopt", optimizer="yogi").variant == "yogi"


def test_the_section_is_shown_with_every_default() -> None:
    given = {"name": "fedopt", "optimizer": "adam"}
    _, shown = named(given, ALGORITHMS, "method.0", Algorithm)
    assert shown == given | {"optimizer_options": {}, "server_learning_rate": 1.0}


def test_an_optimizer_of_ones_own_method_is_resolved_wherever_it_stands(mine: str) -> None:
    assert method(name=mine, first="adam").variant == "adam"
    both = method(name=mine, first="adam", second="sgd", second_options={"momentum": 0.5}, rate=0.1)
    assert both.variant == name_of(optax.sgd) + " momentum=0.5"
    assert both.hparams == {"server_learning_rate": (0.1,)}


def test_a_default_that_no_file_can_name_is_left_to_the_function(mine: str) -> None:
    name = mine.replace(":mine", ":usual")
    assert method(name=name).variant == name_of(optax.fromage)
    assert method(name=name, second="adam").variant == "adam"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "method.0: the key 'first' is missing; allowed: adagrad, "),
        ({"first": "adm"}, "method.0.first = 'adm'; did you mean 'adam'? allowed: "),
        ({"first": 5}, "method.0.first = 5; allowed: adagrad, "),
        (
            {"first": "sgd", "first_options": {"momentun": 0.9}},
            "method.0.first_options: unknown key 'momentun'; did you mean 'momentum'? ",
        ),
        (
            {"first": "sgd", "first_options": 3},
            "method.0.first_options = 3; it must be a table",
        ),
        (
            {"first": "sgd", "second_options": {"momentum": 0.9}},
            "method.0.second_options: give second beside it",
        ),
        (
            {"first": "sgd", "third": "sgd"},
            "method.0: unknown key 'third'; allowed: first, first_options, "
            "rate, second, second_options",
        ),
    ],
    ids=str,
)
def test_mistakes_are_named_in_one_line(mine: str, given: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        method(name=mine, **given)
    assert str(refused.value).startswith(line)


FEDERATION = fp.Federation.from_arrays([([[0.0], [1.0]], [0, 1])])


def test_a_file_names_the_loss_of_a_model_with_its_arguments() -> None:
    section: Any = {"name": "logistic", "loss": {"name": "cross_entropy", "weights": [1.0, 3.0]}}
    make, shown = _model(section)
    model = make(FEDERATION)
    assert model.loss == fp.losses.cross_entropy(weights=[1, 3])
    assert model.correct is top_1
    assert shown["loss"] == section["loss"] | {"smoothing": 0.0}
    assert model_of(shown, FEDERATION).loss == model.loss
    assert "loss" not in _model({"name": "logistic"})[1]
    assert model_of({"name": "logistic", "loss": {"name": "huber"}}, FEDERATION).correct is None
    low = model_of(section | {"mixed_precision": True}, FEDERATION)
    assert low.loss == model.loss


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        ("huber", "model.loss = 'huber'; it must be a table"),
        ({"name": "hubert"}, "model.loss.name = 'hubert'; did you mean 'huber'? allowed: cross_en"),
        ({"name": "huber", "gamma": 1.0}, "model.loss: unknown key 'gamma'; allowed: delta"),
        ({"delta": 1.0}, "model.loss: the key 'name' is missing"),
        ({"name": "huber", "delta": 0.0}, "losses.huber: delta = 0.0; it must be"),
    ],
    ids=str,
)
def test_mistakes_in_a_loss_are_named(loss: Any, line: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        _model({"name": "logistic", "loss": loss})
    assert str(refused.value).startswith(line)
