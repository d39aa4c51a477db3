"""Studies of this library's own, whose claims no paper makes."""

from experiments.studies.compression import FEMNIST
from experiments.studies.time import ITEMS as TIME

ITEMS = {**TIME, "compression-femnist": FEMNIST}
