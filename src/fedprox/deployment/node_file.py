"""The files of a node and of an operator: addresses, keys, data and policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import Field

from fedprox.deployment.crypto import read_identity
from fedprox.deployment.flower import require_flower
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from fedprox.errors import InputError, require, require_whole
from fedprox.experiment.resolved import limited, load_data
from fedprox.experiment.schema import Section, Table, checked
from fedprox.federation import Federation
from fedprox.files.toml import read_toml

NODE_HEADERS = {
    name: f"[{name}]"
    for name in ("data", "deal", "keys", "policy", "policy.privacy", "policy.secure")
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
        description="Folder for client state, logs, the count of what was answered "
        "(`spent.json`) and of secure sums (`sums.json`), which should be backed up.",
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
        default_factory=Policy, description="What the node computes for others and reports."
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
    """Load a node's data."""
    federation, _ = load_data(file.data, data_dir)
    federation = limited(federation, file.client_rows, file.validation_share)
    if file.deal is not None:
        federation = part_of_clients(federation, file.deal)
    identity = None
    if file.policy.secure is not None:
        require_flower()
        peers = {name: Path(each) for name, each in file.policy.secure.peers.items()}
        identity = read_identity(file.name, Path(file.key), peers)
    return Node(file.name, federation, Path(file.folder), file.policy, identity)


def part_of_clients(federation: Federation, deal: Deal) -> Federation:
    """The clients of one part, consecutive in the federation's order."""
    require_whole("deal.parts", deal.parts, most=len(federation))
    require_whole("deal.part", deal.part, least=0, most=deal.parts - 1)
    return federation.of_clients(np.array_split(np.arange(len(federation)), deal.parts)[deal.part])
