"""FedDyn on CIFAR-10, 10 % of 100 IID clients, for 100 rounds.

The setting is that of the paper's Table 1 (Acar et al. 2021, appendix A.2) as `experiments` has
it: the CNN, five epochs, batches of 50. alpha is 0.1; the mean of all clients' last models is
evaluated every ten rounds.
"""

from dataclasses import replace

import fedprox as fp
from benchmarks.gpu_parts.cifar import follow, images, speed
from benchmarks.gpu_parts.part import Part
from experiments.feddyn.cifar import FAST, TABLE_2_IID

RUN = TABLE_2_IID.runs[FAST]

ALPHA = 0.1


def main(part: Part) -> None:
    """Run it, and write seconds and accuracy as it goes."""
    rounds = 2 if part.tiny else 100
    data = images(part, RUN["data"]["clients"], "feddyn")
    solver, cohort = fp.Solver(**RUN["solver"]), fp.Cohort(**RUN["cohort"])
    if part.tiny:
        solver = replace(solver, epochs=None, steps=1)
    evaluation = fp.Evaluation(**RUN["evaluation"] | {"every": 1 if part.tiny else 10})
    (run,) = fp.simulate(
        data.federation,
        fp.models.wide_lenet(data.federation),
        fp.feddyn(alpha=ALPHA),
        solver=solver,
        cohort=cohort,
        rounds=rounds,
        evaluation=evaluation,
        callbacks=[follow(part, f"Rounds on {data.name}", rounds)],
        progress=False,
    )
    part.write("FedDyn, 10 % of 100 clients, IID, alpha = 0.1", **speed(run, data.name))
