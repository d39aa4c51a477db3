"""McMahan et al. 2017, "Communication-Efficient Learning ... from Decentralized Data"."""

from experiments.fedavg import averages, tables

ITEMS = {
    "table-1": tables.TABLE_1_ITEM,
    "table-1-cnn": tables.TABLE_1_CNN_ITEM,
    "table-2": tables.TABLE_2_ITEM,
    "table-4": tables.TABLE_4_ITEM,
    "figure-1": averages.FIGURE_1,
    "unbalanced": tables.UNBALANCED,
}
