"""Every method, in each variant that the tests of all methods try. A new method is entered here."""

from functools import cached_property
from typing import Any

from fedprox.algorithms import Algorithm
from fedprox.experiment.resolved import method_named


class Variant:
    """A variant of a method.

    Attributes:
        keys: Its section in an experiment file.
        label: What records call it.
    """

    def __init__(self, label: str, name: str, **hparams: Any) -> None:
        self.label, self.keys = label, {"name": name, **hparams}

    @cached_property
    def method(self) -> Algorithm:
        """The variant, built as an experiment file builds it."""
        return method_named(self.keys, "method.0")[0]


VARIANTS = {
    "fedsgd": Variant("fedsgd", "fedsgd"),
    "fedavg": Variant("fedavg", "fedavg"),
    "fedprox": Variant("fedprox mu=0.5", "fedprox", mu=0.5),
    "adaptive mu": Variant("fedprox mu=0.5 adaptive", "fedprox", mu=0.5, adapt=True),
    "feddane": Variant("feddane mu=1", "feddane", mu=1.0),
    "scaffold": Variant("scaffold", "scaffold"),
    "option 1": Variant("scaffold option 1", "scaffold", option=1),
    "feddyn": Variant("feddyn alpha=0.1", "feddyn", alpha=0.1),
    "balanced": Variant("feddyn balanced alpha=0.1", "feddyn", alpha=0.1, balance=True),
    "fedsplit": Variant("fedsplit active step_size=0.5", "fedsplit", step_size=0.5),
    "fedopt": Variant(
        "fedopt adam server_learning_rate=0.1",
        "fedopt",
        optimizer="adam",
        server_learning_rate=0.1,
    ),
    "ditto": Variant("ditto lam=0.5", "ditto", lam=0.5),
    "pfedme": Variant("pfedme K=3 lam=1 eta=0.5 beta=1", "pfedme", lam=1.0, eta=0.5, inner_steps=3),
    "fednova": Variant("fednova mu=1", "fednova", mu=1.0),
    "fedexp": Variant("fedexp epsilon=0.001", "fedexp"),
    "fedadmm": Variant(
        "fedadmm rho=0.5 server_learning_rate=0.75",
        "fedadmm",
        rho=0.5,
        server_learning_rate=0.75,
    ),
    "mime": Variant("mime beta=0.5", "mime", beta=0.5),
    "mimelite": Variant("mime lite beta=0.9", "mime", lite=True),
    "qffl": Variant("qffl q=1", "qffl", q=1.0),
    "fedcm": Variant("fedcm alpha=0.5", "fedcm", alpha=0.5),
    "ruled": Variant(
        "fedprox adam drop mu=0.5 server_learning_rate=0.1",
        "fedprox",
        mu=0.5,
        server={"name": "adam", "learning_rate": 0.1},
        stragglers="drop",
    ),
    "extrapolated": Variant(
        "scaffold extrapolated epsilon=0.001", "scaffold", server={"name": "extrapolate"}
    ),
    "scaffnew": Variant("scaffnew p=0.5", "scaffnew", p=0.5),
    "fedsam": Variant("fedsam rho=0.05", "fedsam", rho=0.05),
    "moon": Variant("moon mu=1 tau=0.5", "moon", mu=1.0),
    "feddc": Variant("feddc alpha=0.1", "feddc", alpha=0.1),
    "fedlc": Variant("fedlc tau=1", "fedlc", tau=1.0),
    "fedgkd": Variant("fedgkd M=3 gamma=0.2", "fedgkd", gamma=0.2, models=3),
    "fedper": Variant("fedper own head", "fedper", parts=["head"]),
    "fedrep": Variant("fedrep own head", "fedrep", parts=["head"]),
    "ifca": Variant("ifca k=2", "ifca", k=2),
    "ifca local": Variant(
        "ifca k=2 feddyn alpha=0.1", "ifca", k=2, local={"name": "feddyn", "alpha": 0.1}
    ),
    "centralised": Variant("centralised", "centralised"),
}
"""The variants by a short name."""

OF_STATE = {
    "silobn": Variant("silobn", "silobn"),
    "fedbn": Variant("fedbn", "fedbn"),
    "scaffold": Variant("scaffold", "scaffold"),
    "ditto": Variant("ditto lam=0.5", "ditto", lam=0.5),
    "fedrep": Variant(
        "fedrep own head own model state", "fedrep", parts=["head"], model_state="own"
    ),
    "ifca": Variant("ifca k=2", "ifca", k=2),
}
"""Those that are tried with a model that has state: methods for such models, and of others those
whose clients have models of their own."""

SAMPLED = {name: each for name, each in VARIANTS.items() if not each.method.everyone}
"""Those whose rounds need only a part of the clients."""

DEPLOYED = {
    name: each
    for name, each in SAMPLED.items()
    if not each.method.pooled and each.method.first.probe is None
}
"""Those that can be deployed."""
