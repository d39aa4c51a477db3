"""Studies of this library's own, whose claims no paper makes."""

from experiments.studies import (
    adapters,
    composition,
    compression,
    correlated,
    normalization,
    robust,
)
from experiments.studies.time import ITEMS as TIME

ITEMS = {
    **TIME,
    **composition.ITEMS,
    **normalization.ITEMS,
    **correlated.ITEMS,
    "robust-mnist": robust.MNIST,
    "robust-femnist": robust.FEMNIST,
    "compression-femnist": compression.FEMNIST,
    "adapters": adapters.ITEM,
}
