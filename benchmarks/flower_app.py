"""A plain Flower app: FedAvg of a perceptron in NumPy. `benchmarks.deployment` copies it.

It does not import the library.
"""

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

Array = NDArray[Any]

client_app = ClientApp()
server_app = ServerApp()


@server_app.main()  # type: ignore[untyped-decorator]
def run_rounds(grid: Grid, context: Context) -> None:
    """Train, and write the time after each round, the final model and the clients' peak memory."""
    config = context.run_config
    nodes, evaluated = int(config["nodes"]), bool(config["evaluated"])
    folder = Path(str(config["folder"]))
    with np.load(folder / "initial.npz") as file:
        initial = [file[name] for name in file.files]
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.1)

    def note_time(round_: int, arrays: ArrayRecord) -> None:
        del round_, arrays
        with (folder / "times").open("a") as file:
            print(time.perf_counter(), file=file)

    strategy = FedAvg(
        fraction_evaluate=1.0 if evaluated else 0.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial),
        num_rounds=int(config["rounds"]),
        evaluate_fn=note_time,
    )
    final = result.arrays.to_numpy_ndarrays()
    np.savez(folder / "final.npz", *final)
    peak = max(float(str(each["peak"])) for each in result.train_metrics_clientapp.values())
    (folder / "peak.partial").write_text(str(peak))
    (folder / "peak.partial").rename(folder / "peak")


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Take one gradient step on all rows."""
    layers = layers_of(message)
    with np.load(str(context.node_config["rows"])) as file:
        x, y = file["x"], file["y"]
    rate = np.float32(context.run_config["learning_rate"])
    outputs = forward(layers, x)
    slope = softmax(outputs[-1])
    slope[np.arange(len(y)), y] -= 1
    slope /= len(y)
    for i in reversed(range(len(layers))):
        bias, kernel = layers[i]
        below = slope @ kernel if i else slope
        kernel -= rate * (slope.T @ outputs[i])
        bias -= rate * slope.sum(axis=0)
        if i:
            slope = below * (outputs[i] > 0)
    peak = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arrays = ArrayRecord([array for layer in layers for array in layer])
    metrics = MetricRecord({"num-examples": len(y), "peak": peak})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client_app.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Message, context: Context) -> Message:
    """The loss on training rows and the accuracy on test rows."""
    layers = layers_of(message)
    with np.load(str(context.node_config["rows"])) as file:
        x, y, test_x, test_y = (file[name] for name in ("x", "y", "test_x", "test_y"))
    right = softmax(forward(layers, x)[-1])[np.arange(len(y)), y]
    correct = forward(layers, test_x)[-1].argmax(axis=1) == test_y
    metrics = {
        "num-examples": len(y),
        "loss": float(-np.log(right).mean()),
        "accuracy": float(correct.mean()),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def layers_of(message: Message) -> list[tuple[Array, Array]]:
    """Bias (outputs,) and kernel (outputs, inputs) of each layer, writable."""
    arrays = [np.array(a) for a in message.content["arrays"].to_numpy_ndarrays()]
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def forward(layers: list[tuple[Array, Array]], x: Array) -> list[Array]:
    """The rows, and the outputs of each layer; a ReLU follows all but the last."""
    outputs = [x]
    for i, (bias, kernel) in enumerate(layers):
        y = outputs[-1] @ kernel.T + bias
        outputs.append(np.maximum(y, 0) if i < len(layers) - 1 else y)
    return outputs


def softmax(scores: Array) -> Array:
    """Probabilities of classes."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    normalized: Array = powers / powers.sum(axis=1, keepdims=True)
    return normalized
