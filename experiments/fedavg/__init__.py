"""McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data".

Items that take hours on two cores are included at the paper's size, for a GPU; their short scale
only shows that they run, and the notes of their rows say what it leaves out.
"""

from experiments.fedavg import (
    accuracies,
    averages,
    cifar_10,
    curves,
    local_epochs,
    posts,
    tables,
)

ITEMS = {
    "table-1": tables.TABLE_1_ITEM,
    "table-1-cnn": tables.TABLE_1_CNN_ITEM,
    "table-1-cnn-whole": tables.TABLE_1_CNN_WHOLE_ITEM,
    "table-2": tables.TABLE_2_ITEM,
    "table-2-whole": tables.TABLE_2_WHOLE_ITEM,
    "table-3": cifar_10.TABLE_3_ITEM,
    "table-4": tables.TABLE_4_ITEM,
    "figure-1": averages.FIGURE_1,
    "figure-2": curves.FIGURE_2,
    "figure-3": local_epochs.FIGURE_3,
    "figure-4": cifar_10.FIGURE_4,
    "figure-5": posts.FIGURE_5,
    "figure-5-chat": posts.on_chat(posts.FIGURE_5),
    "figure-6": curves.FIGURE_6,
    "figure-7": curves.FIGURE_7,
    "figure-8": local_epochs.FIGURE_8,
    "figure-9": cifar_10.FIGURE_9,
    "figure-10": posts.FIGURE_10,
    "figure-10-chat": posts.on_chat(posts.FIGURE_10),
    "section-3-accuracies": accuracies.ACCURACIES,
    "unbalanced": tables.UNBALANCED,
}
