"""Acar et al. 2021, "Federated Learning Based on Dynamic Regularization"."""

from experiments.feddyn import cifar, data, digits, distributed_sgd, search, synthetic

ITEMS = {
    "table-2-cifar-10-iid": cifar.TABLE_2_IID,
    **digits.TABLES,
    "table-3": data.TABLE_3,
    "table-6": synthetic.TABLE_6,
    "figure-3": data.FIGURE_3,
    "distributed-sgd": distributed_sgd.DISTRIBUTED_SGD,
    "search-alpha": search.SEARCH_ALPHA,
}
