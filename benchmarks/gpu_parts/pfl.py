"""The CIFAR-10 benchmark of pfl-research: IID, without differential privacy.

The setting is that of its `benchmarks/image_classification/configs/baseline.yaml`: 1,000 users of
50 images, 50 of them an iteration, one local epoch with batches of 10 and rate 0.1, plain means,
1,500 iterations, an evaluation on the 10,000 test images every tenth. The model is its
`simple_cnn`. The figures to compare with are in the paper (Granqvist et al., `pfl-research:
simulation framework for accelerating research in Private Federated Learning
<https://arxiv.org/abs/2404.06430>`_, 2024, section 4.1), where one A100 was used.

What differs: our evaluations read ten training images of each user too.
"""

import jax
from flax import nnx

import fedprox as fp
from benchmarks.gpu_parts.cifar import follow, images, speed
from benchmarks.gpu_parts.part import Part
from fedprox.models.layers import Conv, Dense, max_pool

USERS, COHORT, ITERATIONS, EVERY = 1000, 50, 1500, 10
SOLVER = fp.Solver(learning_rate=0.1, batch_size=10, epochs=1)


class SimpleCNN(nnx.Module):
    """Two 3x3 convolutions of 32 and 64 channels, a pooling, dropout, and a layer of 128."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        glorot = nnx.initializers.glorot_uniform()
        # dense kernels are stored as (outputs, inputs), whose bound is the same
        self.conv1 = Conv(3, 32, 3, kernel_init=glorot, rngs=rngs)
        self.conv2 = Conv(32, 64, 3, kernel_init=glorot, rngs=rngs)
        self.dense1 = Dense(14 * 14 * 64, 128, kernel_init=glorot, rngs=rngs)
        self.dense2 = Dense(128, 10, kernel_init=glorot, rngs=rngs)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 32, 32, 3) -> (B, 10)."""
        x = nnx.relu(self.conv1(x))
        x = self.dropout1(nnx.relu(self.conv2(x, max_pool)))
        x = self.dropout2(nnx.relu(self.dense1(x.reshape(len(x), -1))))
        return self.dense2(x)


def simple_cnn() -> fp.Model:
    """The model, 1,626,442 parameters.

    >>> sum(a.size for a in jax.tree.leaves(simple_cnn().shapes))
    1626442
    """
    return fp.Model.from_nnx(lambda rngs: SimpleCNN(rngs=rngs))


def main(part: Part) -> None:
    """Run it, and write seconds and accuracy as it goes."""
    rounds, every = (2, 1) if part.tiny else (ITERATIONS, EVERY)
    data = images(part, 20 if part.tiny else USERS, "none")
    (run,) = fp.simulate(
        data.federation,
        simple_cnn(),
        fp.fedavg(),
        solver=SOLVER,
        cohort=fp.Cohort(4 if part.tiny else COHORT),
        rounds=rounds,
        evaluation=fp.Evaluation(every=every, rows=10, gradients=False),
        callbacks=[follow(part, f"Rounds on {data.name}", rounds)],
        progress=False,
    )
    part.write("pfl-research's baseline, 50 of 1,000 users", **speed(run, data.name))
