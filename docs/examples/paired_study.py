r"""
A study with paired differences
===============================

Is the difference between two methods more than noise? With the same seed all methods see the same data, cohorts and
mini-batches, so their difference is compared seed by seed. Each tries equally many hyperparameters, chosen on
validation rows. More in :doc:`/howto/studies`.
"""

import fedprox as fp

study = fp.study(
    {
        "FedAvg": fp.fedavg().with_solver(learning_rate=[0.003, 0.01, 0.03, 0.1]),
        "FedProx": fp.fedprox(mu=[0.1, 1.0]),
    },
    data=fp.datasets.synthetic().hold_out(0.2),
    vary={"stragglers": {"none": fp.Systems(), "90 %": fp.Systems(0.9)}},
    model=fp.models.logistic,
    solver=fp.Solver(learning_rate=[0.01, 0.03], batch_size=10, epochs=10),
    cohort=fp.Cohort(clients_per_round=10),
    rounds=40,
    seeds=range(6),
    evaluation=fp.Evaluation(every=4, gradients=False),
    progress=False,
)
print(study)

# %%
# The table is LaTeX, Markdown and HTML as well, and the figure a PDF.
figure = study.figure()
