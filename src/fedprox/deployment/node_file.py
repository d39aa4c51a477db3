"""The files of a node and of an operator: addresses, keys, data and policy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprox.columns import Columns, Moments
from fedprox.deployment.crypto import read_identity
from fedprox.deployment.flower import require_flower
from fedprox.deployment.node import FromTable, Node
from fedprox.deployment.policy import Policy
from fedprox.errors import InputError, require, require_whole
from fedprox.experiment.resolved import limited, load_data, waiting_table
from fedprox.experiment.schema import Section, Table, checked
from fedprox.federation import Federation, of_layout
from fedprox.files.toml import read_toml
from fedprox.table_layout import Layout, training_moments

NODE_HEADERS = {
    name: f"[{name}]"
    for name in (
        *("data", "deal", "keys", "policy", "policy.privacy", "policy.privacy.own"),
        "policy.secure",
    )
}

S = TypeVar("S", bound=Section)


class Deal(Section):
    """`[deal]`: the part of a data set's clients that a node holds."""

    part: int = Field(description="Which part, counted from 0.")
    parts: int = Field(description="In how many parts the clients are dealt, in their order.")


class NodeFile(Section):
    """A node's file."""

    name: str = Field(
        description="Name of the node, by which the operator knows it; names must differ.",
        examples=["hospital-a"],
    )
    superlink: str = Field(
        description="Address of the SuperLink, host:port.", examples=["superlink.example.org:9092"]
    )
    ca_certificate: str = Field(
        description="Certificate (PEM) of the authority that signed the SuperLink's.",
        examples=["ca.pem"],
    )
    key: str = Field(
        description="Private key of the node; the operator registers its public key.",
        examples=["node.key"],
    )
    folder: str = Field(
        description="Folder for client state, logs, the audit of requests (`audit.jsonl`), and the "
        "counts of what was answered (`spent.json`) and of secure sums (`sums.json`), which should "
        "be backed up.",
        examples=["state"],
    )
    client_rows: int | None = Field(
        default=None,
        description="Rows of each client that are used at most, as in an experiment file.",
        examples=[100],
    )
    validation_share: float | None = Field(
        default=None,
        description="Fraction of each client's training rows that is held out for validation.",
        examples=[0.1],
    )
    data: Table = Field(
        description="The clients: a data set of the library, or a function of your own, "
        '"package.module:function", that returns a `Federation`.'
    )
    deal: Deal | None = Field(
        default=None, description="A part of these clients, for trials; all if left out."
    )
    policy: Policy = Field(
        default_factory=Policy,
        description="The requests that the node answers, and the measures it reports.",
    )


class SuperLinkFile(Section):
    """An operator's file: how to reach the SuperLink."""

    address: str = Field(
        description="Address of the SuperLink, host:port.", examples=["superlink.example.org:9092"]
    )
    ca_certificate: str = Field(
        description="Certificate (PEM) of the authority that signed the SuperLink's.",
        examples=["ca.pem"],
    )
    secret: str = Field(
        description="File with the secret that the SuperLink has too; whoever has it can run "
        "experiments.",
        examples=["secret"],
    )
    keys: dict[str, str] = Field(
        default_factory=dict,
        description="The public key of each node, a file by the node's name. A node takes part "
        "only under a name whose key it has; without this section a node has the name that it "
        "gives itself.",
        examples=[{"hospital-a": "hospital-a.pub"}],
    )


def read_node_file(path: Path) -> NodeFile:
    """Read a node's file. Paths in it are relative to its folder."""
    file = _read(path, NodeFile, ("ca_certificate", "key", "folder"))
    require(file.name.isprintable() and file.name, f"{path}: name = {file.name!r}; give a name")
    base, secure = file.policy.base, file.policy.secure
    if base is not None:
        base = _beside(path, {"base": base})["base"]
    if secure is not None:
        secure = secure.model_copy(update={"peers": _beside(path, secure.peers)})
    policy = file.policy.model_copy(update={"base": base, "secure": secure})
    return file.model_copy(update={"policy": policy})


def read_superlink_file(path: Path) -> SuperLinkFile:
    """Read an operator's file. Paths in it are relative to its folder."""
    file = _read(path, SuperLinkFile, ("ca_certificate", "secret"))
    return file.model_copy(update={"keys": _beside(path, file.keys)})


def _beside(path: Path, files: Mapping[str, str]) -> dict[str, str]:
    """The paths of files by name, which are relative to the folder of another."""
    folder = path.absolute().parent
    return {name: str(folder / each) for name, each in files.items()}


def _read(path: Path, kind: type[S], paths: Sequence[str]) -> S:
    """Read a file, and make some of its values paths."""
    table = read_toml(path)
    try:
        file = checked(kind, table, headers=NODE_HEADERS)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    absolute = {key: str(path.absolute().parent / getattr(file, key)) for key in paths}
    return file.model_copy(update=absolute)


def load_node(file: NodeFile, data_dir: Path | None = None) -> Node:
    """Load a node's data.

    A table without clients has one, with the node's name.
    """
    data, table = file.data, None
    if "table" in data and not {"client", "client_name"} & data.keys():
        data = data | {"client_name": file.name}
    layout = waiting_table(data, data_dir)
    if layout is None:
        federation = _own_part(file, load_data(data, data_dir)[0])
    else:
        moments = training_moments(layout, by_client=True)
        if file.deal is not None:
            own = _dealt(len(layout.names), file.deal)
            moments = Moments(*(each[own] for each in moments))
        table = FromTable(moments, partial(_standardized, file, layout))
        count = len(layout.columns.numeric)
        plain = replace(layout.columns, mean=(0.0,) * count, scale=(1.0,) * count)
        federation = replace(table.standardized(plain), columns=layout.columns)
    if "table" in data and file.deal is None and federation.columns is not None:
        _require_stated(federation.columns, data.get("kinds", {}))
    identity = None
    if file.policy.secure is not None:
        require_flower()
        peers = {name: Path(each) for name, each in file.policy.secure.peers.items()}
        identity = read_identity(file.name, Path(file.key), peers)
    return Node(file.name, federation, Path(file.folder), file.policy, identity, table)


def _require_stated(columns: Columns, kinds: Mapping[str, Any]) -> None:
    """Raise `InputError` unless vocabularies are stated, since a node sends them on."""
    of_label = [columns.label] if any(isinstance(v, str) for v in columns.label.values) else []
    for column in (*columns.features, *of_label):
        stated, name = kinds.get(column.name), column.name
        if not column.values or (isinstance(stated, Mapping) and stated.get("values")):
            continue
        raise InputError(
            f"column {name!r}: its values are not stated. A node sends them to the operator, and "
            f"no value of its own rows: kinds = {{ {name} = {{ kind = {column.kind!r}, values = "
            "[...] } }"
        )


def _standardized(file: NodeFile, layout: Layout, columns: Columns) -> Federation:
    """A node's rows of a table, standardized."""
    return _own_part(file, of_layout(replace(layout, columns=columns)))


def _own_part(file: NodeFile, federation: Federation) -> Federation:
    """The rows and clients of a federation that are the node's."""
    federation = limited(federation, file.client_rows, file.validation_share)
    if file.deal is None:
        return federation
    return federation.of_clients(_dealt(len(federation), file.deal))


def _dealt(clients: int, deal: Deal) -> NDArray[np.int64]:
    """Which of some clients are in a part."""
    require_whole("deal.parts", deal.parts, most=clients)
    require_whole("deal.part", deal.part, least=0, most=deal.parts - 1)
    return np.array_split(np.arange(clients), deal.parts)[deal.part]
