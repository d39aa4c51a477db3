"""The papers' figures for their data sets: clients, samples, sizes and classes, as printed."""

from typing import Literal, NamedTuple

FEDAVG = "McMahan et al. 2017"
DRAFT = "Li et al., draft of 2018"
FEDPROX = "Li et al. 2020"
FEDDYN = "Acar et al. 2021"


class Paper(NamedTuple):
    """A paper's figures for a partition of a data set; None for what the paper does not give.

    Attributes:
        clients: Number of clients.
        samples: Number of examples, of all clients together.
        mean: Mean examples per client.
        deviation: Their standard deviation.
        classes_per_client: Classes that a client holds (most clients, for shards).
        source: The paper and its table or section.
        rows: Which examples `samples`, `mean` and `deviation` count: training and test rows, or
            training rows alone.
        note: What a reader must know to compare; empty if nothing.
    """

    clients: int | None
    samples: int | None
    mean: float | None
    deviation: float | None
    classes_per_client: int | None
    source: str
    rows: Literal["all", "train"] = "all"
    note: str = ""


_DRAFT_TABLE = f"{DRAFT}, Table 1"
_FEDPROX_TABLE = f"{FEDPROX}, Table 1"
_FEDDYN_TEXT = f"{FEDDYN}, appendix A.2"
_MIX = (
    "5 and 3 classes make 80 % of an MNIST client's rows at concentration 0.6 and 0.3 (section 3)"
)


def _feddyn(size: int, classes: int | None) -> Paper:
    """FedDyn's setting of 100 clients of equal size."""
    note = "" if classes else _MIX
    return Paper(100, 100 * size, size, 0, classes, _FEDDYN_TEXT, "train", note)


PAPERS: dict[tuple[str, str], tuple[Paper, ...]] = {
    ("synthetic", ""): (
        Paper(30, None, None, None, None, f"{FEDPROX}, appendix C.1", note="sizes: a power law"),
    ),
    ("synthetic-feddyn", ""): (
        Paper(20, None, 200, None, None, f"{FEDDYN}, appendix A.1", "train"),
    ),
    ("mnist", "power-law"): (
        Paper(1000, 69_035, 69, 106, 2, _FEDPROX_TABLE),
        Paper(1000, 69_035, 69, 106, 2, _DRAFT_TABLE),
    ),
    ("mnist", "iid"): (
        Paper(100, 60_000, 600, 0, 10, f"{FEDAVG}, section 3", "train"),
        _feddyn(600, 10),
    ),
    ("mnist", "shards"): (Paper(100, 60_000, 600, 0, 2, f"{FEDAVG}, section 3", "train"),),
    ("mnist", "dirichlet"): (_feddyn(600, None),),
    ("femnist", "letters"): (Paper(200, 18_345, 92, 159, 5, _FEDPROX_TABLE),),
    ("femnist", "letters-26"): (Paper(200, 79_059, 395, 873, 20, f"{_DRAFT_TABLE}, EMNIST*"),),
    ("femnist", "writers"): (Paper(900, 305_654, 340, 107, None, f"{_DRAFT_TABLE}, EMNIST"),),
    ("emnist-l", "iid"): (_feddyn(480, 10),),
    ("emnist-l", "dirichlet"): (_feddyn(480, None),),
    ("cifar-10", "iid"): (
        Paper(100, 50_000, 500, 0, 10, f"{FEDAVG}, section 3", "train"),
        _feddyn(500, 10),
    ),
    ("cifar-10", "dirichlet"): (_feddyn(500, None),),
    ("cifar-100", "iid"): (_feddyn(500, 100),),
    ("cifar-100", "dirichlet"): (_feddyn(500, None),),
    ("shakespeare", "roles"): (
        Paper(143, 517_106, 3_616, 6_808, None, _FEDPROX_TABLE),
        Paper(143, 517_706, 3_620, 4_115, None, _DRAFT_TABLE),
    ),
    ("shakespeare", "roles-2000"): (
        Paper(
            100, 200_000, 2_000, 0, None, _FEDDYN_TEXT, "train", "2,000 is the most a client has"
        ),
    ),
    ("shakespeare", "lines"): (
        Paper(
            *(1_146, 3_564_579, None, None, None, f"{FEDAVG}, section 3"),
            rows="train",
            note="samples are characters; the test lines have 870,014 more",
        ),
    ),
    ("sent140", ""): (
        Paper(772, 40_783, 53, 32, None, _FEDPROX_TABLE),
        Paper(5_726, 215_829, 38, 19, None, _DRAFT_TABLE),
    ),
    ("posts", ""): (
        Paper(
            *(500_000, 10_000_000, None, None, None, f"{FEDAVG}, section 3"),
            rows="train",
            note="samples are posts; over 500,000 authors of at most 5,000 words each",
        ),
    ),
}
"""The papers' figures by data set and partition, the final paper before its draft."""
