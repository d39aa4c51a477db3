"""Every method beside every feature: what must hold does, or the library's table refuses both."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedprox.engine.compiled import layout
from fedprox.errors import InputError
from tests.catalogue import OF_STATE, VARIANTS, Variant
from tests.crossings.features import METHOD_NAME, TABLE_OF_FEATURES, with_state
from tests.variants import mostly_slow

STATEFUL = {f"{name} of a state": each for name, each in OF_STATE.items()}
"""Methods whose model has a state."""

METHODS = VARIANTS | STATEFUL | {"everything": Variant("everything", METHOD_NAME)}

NO_CLIENTS = ("centralised", "fault"), ("centralised", "empty round")
"""One client holds all rows."""


RECORDED = "fedbn of a state", "privacy"
"""A server that records what is released has another update, to which layers of clients do not fit
before the table is asked."""


CROSSINGS = [
    (name, feature)
    for name in METHODS
    for feature in TABLE_OF_FEATURES
    if (name, feature) not in (*NO_CLIENTS, RECORDED)
]
FAST = [
    *(each for each in CROSSINGS if each[0] == "everything"),
    ("fedavg", "codec"),
]
"""Those of one method that has all that is kept, and of others what does not fit it."""


@pytest.fixture(autouse=True)
def _shapes_of_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs have the shapes of the first round, in which all take part, whatever comes later."""
    monkeypatch.setattr(layout, "SAMPLE_ROUNDS", (1, 1))


@pytest.mark.parametrize("crossing", mostly_slow(CROSSINGS, *FAST), ids=" beside ".join)
def test_a_method_beside_a_feature(crossing: tuple[str, str], tmp_path: Path) -> None:
    variant, feature = METHODS[crossing[0]], TABLE_OF_FEATURES[crossing[1]]
    with with_state() if crossing[0] in STATEFUL else nullcontext():
        line = feature.refusal(variant.method)
        with pytest.raises(InputError, match=f"^{re.escape(line)}$") if line else nullcontext():
            feature.check(variant, tmp_path)
