"""McMahan et al. 2017, "Communication-Efficient Learning ... from Decentralized Data"."""

from experiments.fedavg import averages, tables, unbalanced

ITEMS = {
    "table-1": tables.TABLE_1,
    "table-1-cnn": tables.TABLE_1_CNN,
    "table-2": tables.TABLE_2,
    "table-4": tables.TABLE_4,
    "figure-1": averages.FIGURE_1,
    "unbalanced": unbalanced.UNBALANCED,
}
