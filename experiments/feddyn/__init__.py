"""Acar et al. 2021, "Federated Learning Based on Dynamic Regularization"."""

from experiments.feddyn import cifar, data, digits, distributed_sgd, figures, search, synthetic

ITEMS = {
    **cifar.TABLES,
    **digits.TABLES,
    "table-3": data.TABLE_3,
    "table-3-cifar-100": data.TABLE_3_CIFAR_100,
    "table-6": synthetic.TABLE_6,
    "figure-1": figures.FIGURE_1,
    "figure-2": figures.FIGURE_2,
    "figure-3": data.FIGURE_3,
    **cifar.FIGURES,
    **digits.FIGURES,
    "figure-11": figures.FIGURE_11,
    "distributed-sgd": distributed_sgd.DISTRIBUTED_SGD,
    "search-alpha": search.SEARCH_ALPHA,
}
