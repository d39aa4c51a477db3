"""`fedprox superlink`: the nodes whose public keys lie in its folder may join, and no others."""

import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from fedprox.deployment import flower
from fedprox.deployment.certificates import (
    der,
    host_names,
    make_node_key,
    new_authority,
    read_certificates,
    superlink_files,
)
from fedprox.deployment.crypto import read_public_key
from fedprox.deployment.flower_operator import operator_network
from fedprox.deployment.network import Network, Parcel
from fedprox.deployment.processes import Child, running
from fedprox.deployment.trial import VALID, free_port
from fedprox.files.whole import replace_private
from tests.deployment.machines import left_over

ECHO = f"{Path(__file__).with_name('echo_node.py')}:main"

pytestmark = pytest.mark.slow


@contextmanager
def superlink(folder: Path, port: int, *options: str) -> Iterator[str]:
    """Run the command until SIGTERM, and yield what it says when it listens."""
    log = folder.with_name("log")
    log.write_bytes(b"")
    arguments = ["superlink", str(folder), "--port", str(port), *options]
    program = Child("fedprox.cli:main", arguments, log)
    with running([program]) as [process]:
        deadline = time.monotonic() + 120
        while "listening" not in log.read_text() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield log.read_text()
        process.send_signal(signal.SIGTERM)
        ended = process.wait(30)
    assert ended == (2 if "listening" not in log.read_text() else 0), log.read_text()
    assert "Traceback" not in log.read_text()
    assert left_over(folder) == []


def test_the_folder_says_who_may_join(tmp_path: Path) -> None:
    """Also with the certificate of another authority, which is not for the loopback."""
    folder, port = tmp_path / "superlink", free_port()
    nodes = folder / "nodes"
    nodes.mkdir(parents=True)
    replace_private(folder, superlink_files(new_authority(VALID), ["fl.example.org"], VALID))
    for name in ("a", "b", "c"):
        make_node_key(tmp_path / name)[1].rename(nodes / f"{name}.pub")
    keys = {name: read_public_key(nodes / f"{name}.pub") for name in ("a", "b", "c")}

    def known() -> dict[bytes, bool]:
        certificate = der(read_certificates(folder / "server.pem")[0])
        with closing(flower.own_control_link(f"127.0.0.1:{port}", certificate)) as control:
            return {node.key: node.removed for node in flower.registered_nodes(control)}

    given = (nodes / "c.pub").rename(tmp_path / "c.pub")
    with superlink(folder, port) as said:
        assert "SuperLink: certificate for fl.example.org, until 20" in said
        assert "SuperLink: node a may join" in said
        assert f"SuperLink: listening at 0.0.0.0:{port} for a, b" in said
        assert known() == {keys["a"]: False, keys["b"]: False}

    given.rename(nodes / "c.pub")
    removed = (nodes / "a.pub").rename(tmp_path / "a.pub")
    with superlink(folder, port) as said:
        assert "node a may join" not in said
        assert "node b may join" not in said
        assert "SuperLink: node c may join" in said
        assert ", whose key is not in nodes/, was removed" in said
        assert known() == {keys["a"]: True, keys["b"]: False, keys["c"]: False}

    with superlink(folder, port) as said:  # nothing is to be done
        assert "may join" not in said
        assert "removed" not in said
        assert known() == {keys["a"]: True, keys["b"]: False, keys["c"]: False}

    removed.rename(nodes / "a.pub")
    with superlink(folder, port) as said:
        assert "fedprox: nodes/a.pub: this key was removed before and cannot come back; the" in said


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    folders = [tmp_path / each / "superlink" for each in ("first", "second")]
    for folder in folders:
        (folder / "nodes").mkdir(parents=True)
        replace_private(folder, superlink_files(new_authority(VALID), ["localhost"], VALID))
        make_node_key(tmp_path / "key")[1].rename(folder / "nodes" / "a.pub")
    port = free_port()
    with superlink(folders[0], port), superlink(folders[1], port) as said:
        assert "fedprox: the SuperLink did not start; end of " in said
        assert "address already in use" in said


@pytest.mark.skipif(not socket.has_ipv6, reason="listens at an address of IPv6")
def test_a_run_goes_on_when_the_superlink_is_started_again(tmp_path: Path) -> None:
    folder, port = tmp_path / "superlink", free_port()
    (folder / "nodes").mkdir(parents=True)
    replace_private(folder, superlink_files(new_authority(VALID), host_names("::1"), VALID))
    key, public = make_node_key(tmp_path / "node")
    public.rename(folder / "nodes" / "a.pub")
    shutil.copy(folder / "ca.pem", key.parent)  # the folder tells the SuperLink's processes
    reached = f"[::1]:{port}", key.with_name("ca.pem")
    echo = Child(ECHO, [*map(str, (*reached, key, key.parent))], tmp_path / "node.log")

    def answered(network: Network, head: bytes) -> Parcel | None:
        while not (nodes := network.nodes()):
            time.sleep(0.1)
        sent = network.send(dict.fromkeys(nodes, Parcel(head)))
        while not (received := network.receive(1.0)):
            pass
        assert [each.request for each in received] == [*sent.values()], received
        return received[0].parcel

    with ExitStack() as stack:
        first = ExitStack()
        first.enter_context(superlink(folder, port, "--host", "::1"))
        stack.enter_context(running([echo]))
        network = stack.enter_context(operator_network(*reached, folder / "secret"))
        assert answered(network, b"1") == Parcel(b"answer to 1")
        first.close()
        stack.enter_context(superlink(folder, port, "--host", "::1"))
        assert answered(network, b"2") == Parcel(b"answer to 2")
