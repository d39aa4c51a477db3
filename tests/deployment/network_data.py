"""Data sets of nodes in tests of real processes, named by "tests.deployment.network_data:..."."""

import numpy as np

import fedprox as fp


def hostile(clients: int = 2) -> fp.Federation:
    """Clients whose features are so large that a model trained on them is not finite."""
    x = np.full((20, 60), 1e30, np.float32)
    rows = [(x, np.arange(20) % 10) for _ in range(clients)]
    return fp.Federation.from_arrays(rows, classes=10, names=[f"bad-{k}" for k in range(clients)])
