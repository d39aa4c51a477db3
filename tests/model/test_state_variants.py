"""Models made of a model with state: parts of it are frozen or adapted, and its state moves."""

from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.model_state import layers_with_state
from tests.model import batch_norm
from tests.model.batch_norm import MODEL, START, federated
from tests.model.test_state import SOLVER, everyone, require_like
from tests.objectives import CLASSES, FEATURES, HIDDEN
from tests.settings import FEDERATION

GIVEN = START._replace(state={"norm": {"mean": np.full(4, 0.5, "f"), "var": np.full(4, 2.0, "f")}})
"""A state that is not the model's initial one."""

PART = fp.freeze(MODEL, GIVEN, ["body", "norm.shift"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("mean", ()),
        ("own layers", ("state", "scale", "shift")),
    ],
)
def test_frozen_parts_stay_and_the_given_state_moves(kind: Any, kept: tuple[str, ...]) -> None:
    (run,) = everyone(fp.fedavg().with_model_state(kind), model=PART, initial=None)
    assert list(run.params.params) == ["head", "norm.scale"]
    run.params = PART.whole(run.params)
    frozen = "body", "shift"
    expected = federated(FEDERATION, SOLVER, 3, start=GIVEN, frozen=frozen, kept=kept)
    require_like(run, expected.server)


def test_adapters_begin_as_the_given_model_with_its_state() -> None:
    model = fp.lora(MODEL, GIVEN, rank=2, targets=["body"], trained=["norm", "head"])
    start = jax.device_get(jax.jit(model.init)(jax.random.key(4)))
    assert {name: leaf.shape for name, leaf in start.params.items()} == {
        "body.A": (FEATURES, 2),
        "body.B": (2, HIDDEN),
        "head": (HIDDEN, CLASSES),
        "norm.scale": (HIDDEN,),
        "norm.shift": (HIDDEN,),
    }
    assert layers_with_state(model.shapes) == ("norm",)
    jax.tree.map(np.testing.assert_array_equal, start.state, GIVEN.state)
    jax.tree.map(np.testing.assert_array_equal, model.whole(start), GIVEN)
    x, ones = FEDERATION.train.x[:7], np.ones(7, bool)
    train: Any = model.train
    base: Any = model.base

    def both(whole: Any) -> Any:
        trained = train(base(whole.params), whole.state, x, None, mask=ones)
        return model.apply(whole, x), trained

    def by_hand(whole: Any) -> Any:
        return MODEL.apply(whole, x), batch_norm.train(whole.params, whole.state, x, None, ones)

    jax.tree.map(np.testing.assert_array_equal, jax.jit(both)(start), jax.jit(by_hand)(GIVEN))


def test_variables_that_lack_a_state_are_refused() -> None:
    with pytest.raises(fp.InputError, match=r"frozen: parameters have 'body', .* where "):
        fp.freeze(MODEL, START.params, ["body"])
