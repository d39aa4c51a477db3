"""The commands that set up a federation: `fedprox certificates` and `fedprox superlink`."""

import datetime
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedprox.deployment import flower
from fedprox.deployment.certificates import (
    address_of,
    federation_files,
    host_names,
    named_nodes,
    renew_node,
    renew_server,
)
from fedprox.deployment.processes import tail
from fedprox.deployment.superlink import PORT, check_folder, hold_to, keys_in, running_superlink
from fedprox.errors import InputError, printable, require, require_whole
from fedprox.files.whole import locked, write_private_folder
from fedprox.terminal import answering, say, setting_once

LONGEST = 36_500
"""Days, at most."""

Port = Annotated[int, typer.Option(metavar="N", help="Port of the SuperLink.")]


def certificates(
    host: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST]",
            help="DNS name or IP address at which nodes and the operator reach the SuperLink.",
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE...]",
            help="Name of each node; or NAME.pub, the public key of one that has made its own.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="New folder, or with --renew the one to change.")
    ] = Path("federation"),
    port: Port = PORT,
    days: Annotated[
        int, typer.Option(metavar="N", help="Days that the SuperLink's certificate is valid.")
    ] = 365,
    ca_days: Annotated[
        int, typer.Option(metavar="N", help="Days that the authority is valid.")
    ] = 3650,
    renew: Annotated[
        str | None,
        typer.Option(
            metavar="superlink|NODE",
            help="Replace the SuperLink's key and certificate, or a node's key; all else stays.",
        ),
    ] = None,
    ca_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The authority's key, for --renew superlink. [default: DIR/ca/ca.key]",
        ),
    ] = None,
) -> None:
    """Make the keys and certificates of a federation, a folder for each of its hosts.

    DIR/superlink is for the SuperLink, DIR/operator for who runs experiments, DIR/NODE for each
    node, and DIR/ca has the key of the authority, to be moved offline. Only the owner may read
    them. A node whose key is made here trusts whoever made it; with secure sums, nodes make their
    own by ssh-keygen and are given as NAME.pub.

    Bad input is reported in one line, with exit status 2; nothing is written then.
    """
    flower.require_flower()
    require_whole("--days", days, most=LONGEST)
    require_whole("--ca-days", ca_days, most=LONGEST)
    require_whole("--port", port, most=65_535)
    valid = datetime.timedelta(days=days)
    if renew is not None:
        require(host is None, "--renew keeps the host and all nodes; leave out HOST and NODE")
        require(out.is_dir(), f"--out {out}: no such folder")
        _renew(out, renew, ca_key, valid)
        return
    require(ca_key is None, "--ca-key: only with --renew superlink")
    if host is None:
        raise InputError("HOST is missing: the DNS name or IP address of the SuperLink")
    require(days <= ca_days, f"--days {days}; the authority has {ca_days} (--ca-days)")
    require(
        not out.exists() and not out.is_symlink(),
        f"--out {out}: it exists already; name a new folder, or --renew superlink or a node",
    )
    known, names = named_nodes(nodes or ()), host_names(host)
    files = federation_files(
        host, known, port=port, valid=valid, ca_valid=datetime.timedelta(days=ca_days)
    )
    write_private_folder(out, files)
    where = printable(out)
    _print(
        [
            (f"{where}/ca", f"authority, until {_last(ca_days)}; move ca.key offline"),
            (f"{where}/superlink", f"for {', '.join(names)}, until {_last(days)}"),
            (f"{where}/operator", f"superlink.toml, for {address_of(names[0], port)}"),
            *((f"{where}/{name}", _of_node(own)) for name, own in known.items()),
        ]
    )


def _of_node(own: Path | None) -> str:
    key = (
        "node.key, which does not expire" if own is None else "without node.key, which the node has"
    )
    return f"{key}; fill in [data] of node.toml"


def _renew(out: Path, name: str, ca_key: Path | None, valid: datetime.timedelta) -> None:
    """Replace one key of a federation."""
    where = printable(out)
    if name == "superlink":
        names = renew_server(out, ca_key or out / "ca" / "ca.key", valid)
        _print(
            [
                (
                    f"{where}/superlink",
                    f"server.pem and server.key for {', '.join(names)}, until "
                    f"{_last(valid.days)}; restart the SuperLink with them",
                )
            ]
        )
        return
    require(ca_key is None, "--ca-key: only with --renew superlink")
    ((node, own),) = named_nodes([name]).items()
    renew_node(out, node, own)
    _print(
        [
            (f"{where}/{node}", "node.key, for its host" if own is None else "its public key"),
            (f"{where}/superlink", f"nodes/{node}.pub; restart the SuperLink with it"),
            (
                f"{where}/operator",
                f"{node}.pub, for the operator, and for each peer in secure sums",
            ),
        ]
    )


def _last(days: int) -> str:
    return f"{datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days):%Y-%m-%d}"


def _print(rows: Sequence[tuple[str, str]]) -> None:
    """Print folders and what is in them."""
    width = max(len(folder) for folder, _ in rows)
    for folder, text in rows:
        print(f"{folder:<{width}}  {text}")


def superlink(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder superlink of `fedprox certificates`.")
    ],
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where it listens: ::, or 127.0.0.1 behind a proxy."),
    ] = "0.0.0.0",
    port: Port = PORT,
) -> None:
    """Run the SuperLink of a federation, which passes messages on between nodes and operator.

    DIR has server.pem, server.key, ca.pem, secret, and in nodes/ the public key of each node. Only
    these nodes may join: a key that is new is registered when the command starts, and one whose
    file is gone is removed for good. DIR also keeps what the SuperLink must remember,
    superlink.db, and its log, superlink.log.

    It runs until it gets Ctrl-C or SIGTERM. Bad input is reported in one line, with exit status 2.
    """
    flower.require_flower()
    require_whole("--port", port, most=65_535)
    require(folder.is_dir(), f"{folder}: no such folder; `fedprox certificates` makes it")
    folder = folder.absolute()
    logging.basicConfig(format="fedprox: %(message)s", level=logging.WARNING)
    level, stop = os.environ.get("FLWR_LOG_LEVEL", "WARNING"), threading.Event()

    with locked(folder, mode=0o700):
        shown, keys = check_folder(folder), keys_in(folder)
        with (
            answering(setting_once(stop, "the SuperLink ends")),
            running_superlink(folder, host, port, database=True, level=level) as running,
        ):
            lines = [shown, *hold_to(running.control, keys)]
            for line in [*lines, f"listening at {address_of(host, port)} for {', '.join(keys)}"]:
                say(f"SuperLink: {line}")
            while not stop.wait(0.5):
                if running.process.poll() is not None:
                    text = f"the SuperLink has ended; end of {running.log}:"
                    raise ConnectionError(f"{text}\n{tail(running.log)}")
