"""The papers' tables and figures: `ITEMS` are run, of `PRINTED` there is what the paper printed."""

import difflib

from experiments import fedavg, feddyn, fedprox, independent, models, studies
from experiments.engine.item import Item
from experiments.printed import PRINTED, Printed
from fedprox.errors import InputError

ITEMS: dict[str, Item] = {
    f"{paper}/{name}": item
    for paper, items in (
        ("fedprox", fedprox.ITEMS),
        ("fedprox-draft", fedprox.DRAFT_ITEMS),
        ("feddyn", feddyn.ITEMS),
        ("fedavg", fedavg.ITEMS),
        ("models", models.ITEMS),
        ("independent", independent.ITEMS),
        ("studies", studies.ITEMS),
    )
    for name, item in items.items()
}

LONG = (
    "fedprox/distributed-sgd",
    "fedprox/search-mu",
    "models/centralised",
    "feddyn/distributed-sgd",
    "fedavg/unbalanced",
    "feddyn/table-2-cifar-10-iid",
    "fedprox/headline-shakespeare",
    "fedavg/table-1-cnn",
)
"""Items that take from half an hour to ten at the paper's scale, to be run beside other work."""


def select(name: str) -> dict[str, Item | Printed]:
    """The items of a name: one, those of a paper ("fedprox/"), those of `LONG` ("long"), or "all".

    Raises:
        InputError: There is no item of this name.

    >>> list(select("fedprox/table-1"))
    ['fedprox/table-1']
    """
    if name == "all":
        return dict(ITEMS)
    if name == "long":
        return {key: ITEMS[key] for key in LONG}
    known: dict[str, Item | Printed] = ITEMS | PRINTED
    chosen = {
        key: item
        for key, item in known.items()
        if key == name or (name.endswith("/") and key.startswith(name) and key in ITEMS)
    }
    if not chosen:
        near = difflib.get_close_matches(name, known, 3, cutoff=0.6)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else "`python -m experiments` lists them"
        )
        raise InputError(f"experiments: no item {name!r}; {hint}")
    return chosen
