"""The papers' tables and figures: `ITEMS` are those that `fedprox reproduce` can run."""

import difflib

from fedprox.errors import InputError
from fedprox.papers import fedavg, feddyn, fedprox, models
from fedprox.reproduce.item import Item

ITEMS: dict[str, Item] = {
    f"{paper}/{name}": item
    for paper, items in (
        ("fedprox", fedprox.ITEMS),
        ("fedprox-draft", fedprox.DRAFT_ITEMS),
        ("feddyn", feddyn.ITEMS),
        ("fedavg", fedavg.ITEMS),
        ("models", models.ITEMS),
    )
    for name, item in items.items()
}


def select(name: str) -> dict[str, Item]:
    """The items of a name: one, those of a paper ("fedprox/"), or "all".

    Raises:
        InputError: There is no item of this name.

    >>> list(select("fedprox/table-1"))
    ['fedprox/table-1']
    """
    if name == "all":
        return ITEMS
    chosen = {
        key: item
        for key, item in ITEMS.items()
        if key == name or (name.endswith("/") and key.startswith(name))
    }
    if not chosen:
        near = difflib.get_close_matches(name, ITEMS, 3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "`fedprox reproduce` lists them"
        raise InputError(f"reproduce: no item {name!r}; {hint}")
    return chosen
