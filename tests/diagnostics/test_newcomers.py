"""Newcomers against a NumPy loop, and what is refused."""

import sys
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.protocol.protocol import initial_params
from fedprox.streams import Purpose, generator
from tests import objectives
from tests.objectives import MODEL

STEPS, RATE, LAM = 4, 0.3, 0.7
NUMBERS = (0, 1, 3)


def clients(rows: int = 6) -> fp.Federation:
    rng = np.random.default_rng(0)
    both = []
    for k in range(4):
        y = rng.integers(objectives.CLASSES, size=rows + k)
        both.append((rng.normal(size=(rows + k, objectives.FEATURES)) + y[:, None], y))
    tests = [both[k] if k != 2 else ([], []) for k in range(4)]
    return fp.Federation.from_arrays(both, test=tests)  # type: ignore[arg-type]


FEDERATION = clients()
PARAMS, *OTHERS = (jax.device_get(initial_params(MODEL, 0, start)) for start in range(4))
MODELS = {name: np.stack([other[name] for other in OTHERS]) for name in PARAMS}
ALONE = jax.device_get(initial_params(MODEL, 7))


def descended(start: Any, k: int, r: int, lam: float) -> Any:
    """Gradient descent on the first r of the client's rows in their random order."""
    oracle = objectives.Method(start, FEDERATION.train)
    x, y = map(np.asarray, FEDERATION.train.client(k))
    taken = generator(5, Purpose.NEWCOMERS, client=k).permutation(len(y))[:r]
    w = dict(oracle.params)
    for _ in range(STEPS if r else 0):
        g = oracle.gradient(w, x[taken].astype(float), y[taken], k)
        w = {name: w[name] - RATE * (g[name] + lam * (w[name] - start[name])) for name in w}
    return w


def outputs(w: Any, x: Any) -> Any:
    w = {name: np.asarray(a, float) for name, a in w.items()}
    return objectives.represented(w, np.asarray(x, float)) @ w["head"]


def loss(w: Any, x: Any, y: Any) -> float:
    p = objectives.probabilities(outputs(w, x))
    return float(-np.log(p[np.arange(len(y)), y]).sum())


def nearest(k: int, r: int) -> int:
    x, y = map(np.asarray, FEDERATION.train.client(k))
    taken = generator(5, Purpose.NEWCOMERS, client=k).permutation(len(y))[:r]
    return int(np.argmin([loss(w, x[taken], y[taken]) for w in OTHERS]))


@pytest.mark.slow
def test_each_way_is_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few clients are in memory together."""
    whole = measured()
    ways = {
        "global": lambda *_: PARAMS,
        "fine-tuned": lambda k, r: descended(PARAMS, k, r, 0.0),
        "ditto": lambda k, r: descended(PARAMS, k, r, LAM),
        "cluster": lambda k, r: OTHERS[nearest(k, r)] if r else PARAMS,
        "cluster, fine-tuned": lambda k, r: descended(
            OTHERS[nearest(k, r)] if r else PARAMS, k, r, 0.0
        ),
        "alone": lambda k, r: descended(ALONE, k, r, 0.0),
    }
    assert list(whole.accuracy) == list(whole.loss) == list(whole.by_client) == list(ways)
    tested = [k for k in range(4) if FEDERATION.test.sizes[k]]
    for way, model_of in ways.items():
        for i, r in enumerate(NUMBERS):
            summed, met = 0.0, 0
            for k in tested:
                x, y = map(np.asarray, FEDERATION.test.client(k))
                w = model_of(k, r)
                summed += loss(w, x, y)
                right = int((outputs(w, x).argmax(axis=1) == y).sum())
                met += right
                assert whole.by_client[way][i, k] == pytest.approx(right / len(y))
            rows = len(FEDERATION.test)
            assert whole.loss[way][i] == pytest.approx(summed / rows, rel=1e-3), (way, r)
            assert whole.accuracy[way][i] == pytest.approx(met / rows)
            assert np.isnan(whole.by_client[way][i, 2])
    assert whole.nearest is not None
    assert whole.nearest.tolist() == [
        [nearest(k, r) if r else -1 for k in range(4)] for r in NUMBERS
    ]
    monkeypatch.setattr(sys.modules["fedprox.diagnostics.newcomers"], "MODEL_BYTES", 300)
    again = measured()
    for way in ways:
        np.testing.assert_allclose(again.loss[way], whole.loss[way], rtol=1e-5)


def measured(**options: Any) -> fp.Newcomers:
    given: dict[str, Any] = {
        "models": MODELS,
        "alone": ALONE,
        "rows": NUMBERS,
        "steps": STEPS,
        "learning_rate": RATE,
        "lam": LAM,
        "seed": 5,
    }
    return fp.newcomers(MODEL, PARAMS, FEDERATION, **(given | options))


def test_without_models_there_are_no_clusters() -> None:
    found = measured(models=None, alone=None)
    assert found.nearest is None
    assert list(found.accuracy) == ["global", "fine-tuned", "ditto"]


def test_a_model_without_accuracy_has_losses() -> None:
    squared = fp.Model(MODEL.init, MODEL.apply, lambda z, y: (z[:, 0] - y) ** 2, correct=None)
    found = fp.newcomers(squared, PARAMS, FEDERATION, rows=[0, 2], steps=2, learning_rate=0.01)
    assert np.isnan(found.accuracy["global"]).all()
    assert found.loss["fine-tuned"][1] < found.loss["fine-tuned"][0] == found.loss["global"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": []}, r"rows = \[\]; it must be one or several whole numbers"),
        ({"rows": [0, -1]}, r"rows = \[0, -1\]; it must be one or several whole numbers"),
        ({"rows": [0.5]}, r"rows = \[0.5\]; it must be one or several whole numbers"),
        ({"rows": [7]}, "client '0': 6 training rows; newcomers need 7, the largest of rows"),
        ({"steps": 0}, "steps = 0; it must be a whole number"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0; it must be"),
        ({"lam": -1.0}, "lam = -1.0; it must be"),
        ({"models": {"body": MODELS["body"]}}, "models"),
        ({"alone": {"body": ALONE["body"]}}, "alone"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        measured(**options)


def test_newcomers_without_test_rows_are_refused() -> None:
    untested = fp.Federation.from_arrays([FEDERATION.train.client(0)])
    with pytest.raises(fp.InputError, match="federation: no test rows"):
        fp.newcomers(MODEL, PARAMS, untested, rows=[1])
