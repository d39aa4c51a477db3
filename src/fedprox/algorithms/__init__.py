"""The algorithms, one file each. Experiment files name those of `ALGORITHMS`."""

from collections.abc import Callable

from fedprox.algorithms import server
from fedprox.algorithms.base import Algorithm, First, OnClient, OnServer
from fedprox.algorithms.ditto import ditto
from fedprox.algorithms.fedadmm import fedadmm
from fedprox.algorithms.fedavg import centralised, fedavg, fedexp, fedopt, fedsgd
from fedprox.algorithms.fedbn import fedbn, silobn
from fedprox.algorithms.fedcm import fedcm
from fedprox.algorithms.feddane import feddane
from fedprox.algorithms.feddc import feddc
from fedprox.algorithms.feddyn import feddyn
from fedprox.algorithms.fedgkd import fedgkd
from fedprox.algorithms.fedlc import fedlc
from fedprox.algorithms.fednova import fednova
from fedprox.algorithms.fedprox import fedprox
from fedprox.algorithms.fedsam import fedsam
from fedprox.algorithms.fedsplit import fedsplit
from fedprox.algorithms.ifca import ifca
from fedprox.algorithms.mime import mime
from fedprox.algorithms.moon import moon
from fedprox.algorithms.parts import fedper, fedrep, personal_parts
from fedprox.algorithms.pfedme import pfedme
from fedprox.algorithms.qffl import qffl
from fedprox.algorithms.scaffnew import scaffnew
from fedprox.algorithms.scaffold import scaffold

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "feddane": feddane,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fedsplit": fedsplit,
    "fedopt": fedopt,
    "ditto": ditto,
    "pfedme": pfedme,
    "fedadmm": fedadmm,
    "fedexp": fedexp,
    "fednova": fednova,
    "qffl": qffl,
    "mime": mime,
    "scaffnew": scaffnew,
    "fedcm": fedcm,
    "fedsam": fedsam,
    "moon": moon,
    "feddc": feddc,
    "fedlc": fedlc,
    "fedgkd": fedgkd,
    "silobn": silobn,
    "fedbn": fedbn,
    "fedper": fedper,
    "fedrep": fedrep,
    "ifca": ifca,
    "centralised": centralised,
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "First",
    "OnClient",
    "OnServer",
    "centralised",
    "ditto",
    "fedadmm",
    "fedavg",
    "fedbn",
    "fedcm",
    "feddane",
    "feddc",
    "feddyn",
    "fedexp",
    "fedgkd",
    "fedlc",
    "fednova",
    "fedopt",
    "fedper",
    "fedprox",
    "fedrep",
    "fedsam",
    "fedsgd",
    "fedsplit",
    "ifca",
    "mime",
    "moon",
    "personal_parts",
    "pfedme",
    "qffl",
    "scaffnew",
    "scaffold",
    "server",
    "silobn",
]
