r"""
Stragglers
==========

What is partial work worth when 90 % of each cohort do not finish? FedAvg drops stragglers; FedProx keeps their
partial work, and ``mu`` holds them near the server's model. More in :doc:`/howto/stragglers`.
"""

import fedprox as fp

federation = fp.datasets.synthetic()
runs = fp.simulate(
    federation,
    fp.models.logistic(federation),
    [fp.fedavg(), fp.fedprox(mu=[0.0, 1.0])],
    solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=20),
    cohort=fp.Cohort(clients_per_round=10),
    systems=fp.Systems(stragglers=0.9),
    rounds=40,
    seed=[0, 1, 2],
    progress=False,
)
print(fp.table(runs))

# %%
# Bands are one standard deviation over three seeds.
figure = fp.figure(runs)
