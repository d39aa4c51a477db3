"""What loggers wrote, read back with each tool's own library."""

import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Logged(NamedTuple):
    """A run as a tool stores it.

    Attributes:
        numbers: Its numbers by step and name.
        parameters: Its parameters; values may be text.
        status: How the tool says that it ended: "finished", "failed" or "running".
    """

    numbers: dict[int, dict[str, float]]
    parameters: dict[str, Any]
    status: str


def read_tensorboard(folder: Path) -> dict[str, Logged]:
    """The runs of TensorBoard's folder, by its names of them."""
    reading = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(reading, reason="needs tensorboard, which reads the files")
    plugin: Any = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    runs = {}
    for own in (folder / "tensorboard").iterdir():
        if not own.is_dir():
            continue
        events = accumulator.EventAccumulator(str(own), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        numbers: dict[int, dict[str, float]] = defaultdict(dict)
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                assert tag not in numbers[event.step], "written twice"
                numbers[event.step][tag] = event.value
        stored = events.PluginTagToContent("hparams")
        begin = plugin.HParamsPluginData.FromString(stored["_hparams_/session_start_info"])
        hparams = begin.session_start_info.hparams
        parameters = {key: getattr(v, str(v.WhichOneof("kind"))) for key, v in hparams.items()}
        (text,) = events.Tensors("experiment/text_summary")
        parameters["text"] = text.tensor_proto.string_val[0].decode()
        ended = "_hparams_/session_end_info" in stored
        runs[own.name] = Logged(dict(numbers), parameters, "finished" if ended else "running")
    return runs


def read_mlflow(folder: Path) -> dict[str, Logged]:
    """The runs of MLflow's local store, by their names."""
    library = pytest.importorskip("mlflow", reason="needs mlflow-skinny")
    client = library.MlflowClient(f"sqlite:///{folder.absolute() / 'mlflow' / 'mlflow.db'}")
    experiments = {e.name: e.experiment_id for e in client.search_experiments()}
    runs = {}
    for run in client.search_runs([experiments[folder.name]]):
        numbers: dict[int, dict[str, float]] = defaultdict(dict)
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                assert name not in numbers[metric.step], "written twice"
                numbers[metric.step][name] = metric.value
        assert run.info.run_name not in runs
        parameters = run.data.params | {"rounds": run.data.tags["rounds"]}
        runs[run.info.run_name] = Logged(dict(numbers), parameters, run.info.status.lower())
    return runs


def read_wandb(folder: Path) -> dict[str, Logged]:
    """The ended runs of offline folders of Weights & Biases, by their names.

    A process of wandb writes the files, and may still do so after it has told that a run ended.
    """
    until = time.monotonic() + 30
    while True:
        runs = _read_wandb(folder)
        if all(run.status != "running" for run in runs.values()) or time.monotonic() > until:
            return runs
        time.sleep(0.1)


def _read_wandb(folder: Path) -> dict[str, Logged]:
    messages: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="needs wandb")
    runs: dict[str, Logged] = {}
    for file in (folder / "wandb").glob("offline-run-*/run-*.wandb"):
        numbers: dict[int, dict[str, float]] = {}
        parameters: dict[str, Any] = {}
        name, status = "", "running"
        for content in _contents(file.read_bytes()):
            message = messages.Record.FromString(content)
            kind = message.WhichOneof("record_type")
            if kind == "run":
                name = message.run.display_name
                updates = message.run.config.update
                parameters |= {update.key: json.loads(update.value_json) for update in updates}
            elif kind == "history":
                items = message.history.item
                line = {(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items}
                step = line.pop("_step")
                assert step not in numbers, "written twice"
                numbers[step] = {key: v for key, v in line.items() if not key.startswith("_")}
            elif kind == "exit":
                status = "failed" if message.exit.exit_code else "finished"
        assert name not in runs or not name
        runs[name] = Logged(numbers, parameters, status)
    return runs


BLOCK, HEAD = 32768, 7
"""Bytes of a block of LevelDB's log format, in which wandb stores messages, and of a head in it."""


def _contents(data: bytes) -> Iterator[bytes]:
    """The messages in a file of wandb, after its own head; wandb has no reader in Python."""
    at, parts = HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK  # the rest of a block is empty
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEAD])
        if not kind or at + HEAD + size > len(data):
            return
        parts += data[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


READERS = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}
LIBRARIES = {"tensorboard": "tensorboardX", "mlflow": "mlflow", "wandb": "wandb"}
