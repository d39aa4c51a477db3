"""Centralised SGD on the pooled data: the baseline a federation gives up.

All training rows lie in one place. A round takes as many mini-batch steps as the round's cohort
would take together, so that equal rounds mean equal work.
"""

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.fedavg import local_loss


def centralised() -> Algorithm:
    """SGD on all clients' rows together, with the cohort's number of steps a round."""
    return Algorithm("centralised", local_loss, hparams={}, stragglers="keep", pooled=True)
