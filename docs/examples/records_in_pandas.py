r"""
Records in pandas
=================

How do I get the numbers? :func:`fedprox.records` returns a row for each evaluation; its keys are those of the files in
a run directory. The figure shows how steady training is: the largest rise of the loss in each run. More in
:doc:`/howto/results`.
"""

import pandas as pd

import fedprox as fp

federation = fp.datasets.synthetic()
runs = fp.simulate(
    federation,
    fp.models.logistic(federation),
    [fp.fedavg(), fp.fedprox(mu=[0.0, 1.0])],
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=10),
    cohort=fp.Cohort(clients_per_round=10),
    systems=fp.Systems(stragglers=0.9),
    rounds=40,
    seed=[0, 1, 2],
    evaluation=fp.Evaluation(gradients=False),
    progress=False,
)
frame = pd.DataFrame(fp.records(runs))
rises = frame.groupby(["label", "seed"])["train_loss"].agg(lambda loss: loss.diff().max())
print(rises.unstack().round(3))

# %%
loss = frame.pivot_table("train_loss", "round", "label")
axes = loss.plot(ylabel="training loss")
