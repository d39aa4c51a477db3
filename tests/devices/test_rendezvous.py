"""Processes that do not meet, or meet strangers, before JAX connects them."""

import socket
import socketserver
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedprox import InputError
from fedprox.devices.processes import REFUSED, join_processes, meet
from tests.commands import start, status
from tests.variants import mostly_slow

EXPERIMENT = """
rounds = 1
data = {name = "synthetic", clients = 4}
cohort = {clients_per_round = 2}
solver = {learning_rate = 0.01, batch_size = 10, epochs = 1}
method = [{name = "fedavg"}]
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def said(where: tuple[str, int], processes: int, process: int, seconds: float = 5) -> str:
    """What `meet` says; empty if the processes have met."""
    try:
        meet(where, processes, process, seconds=seconds)
    except InputError as error:
        return str(error)
    return ""


def listening(port: int, seconds: float = 10) -> None:
    """Wait until a program listens, without a connection to it."""
    line = f":{port:04X} 00000000:0000 0A"
    end = time.monotonic() + seconds
    while line not in Path("/proc/net/tcp").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


def short_patience(seconds: int) -> None:
    from fedprox.devices import processes

    processes.PATIENCE = seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "line"),
    [
        (0, "process 1 of 2 did not come to 127.0.0.1 within 1 s"),
        (1, "process 1 does not reach process 0 within 1 s: Connection refused"),
    ],
)
def test_a_process_that_stays_alone_ends_in_one_line(
    process: int, line: str, port: int, tmp_path: Path
) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = ["run", str(tmp_path / "experiment.toml"), "--out", str(tmp_path / "out")]
    command += ["--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--process", str(process)]
    assert status(start(tmp_path / "output", command, short_patience, 1)) == 2
    (line_said,) = (tmp_path / "output").read_text().splitlines()
    meant = f"fedprox: --coordinator 127.0.0.1:{port}: the processes do not meet: "
    assert line_said == meant + line
    assert not (tmp_path / "out").exists()


def test_processes_meet_in_spite_of_strangers_and_of_one_that_was_restarted(port: int) -> None:
    where = ("127.0.0.1", port)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(said, where, 3, 0, 60)
        listening(port)
        with socket.create_connection(where), socket.create_connection(where) as loud:
            loud.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with socket.create_connection(where) as killed:
                killed.sendall(b"fedprox 3 1\n")
            assert said(where, 4, 2) == "--processes 4: process 0 was started with --processes 3"
            with socket.create_connection(where) as twice:
                twice.sendall(b"fedprox 3 1\n")
                again = threads.submit(said, where, 3, 1, 60)
                line = b"--process 1: another process has this number too"
                with twice.makefile("rb") as answer:
                    assert answer.read() == REFUSED + line
            last = threads.submit(said, where, 3, 2, 60)
            assert [each.result() for each in (first, again, last)] == [""] * 3


@pytest.mark.slow
def test_all_hear_which_process_is_missing(port: int) -> None:
    with ThreadPoolExecutor() as threads:
        met = [threads.submit(said, ("127.0.0.1", port), 4, i, 1) for i in (0, 2)]
        line = "process 1, 3 of 4 did not come to 127.0.0.1 within 1 s"
        assert {each.result() for each in met} == {line}


@pytest.mark.slow
def test_process_0_listens_at_the_given_address_alone(port: int) -> None:
    with ThreadPoolExecutor() as threads:
        first = threads.submit(said, ("localhost", port), 2, 0, 1)
        listening(port)
        lines = Path("/proc/net/tcp").read_text().splitlines()
        assert any(f"0100007F:{port:04X} " in line for line in lines)
        assert not any(f"00000000:{port:04X} " in line for line in lines)
        assert "did not come" in first.result()


@pytest.mark.slow
def test_an_address_where_process_0_cannot_listen_is_named(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = pytest.raises(InputError, match="cannot listen there: Address already in use")
    with socket.create_server(("127.0.0.1", port)), taken:
        join_processes(f"127.0.0.1:{port}", 2, 0)
    elsewhere = f"203.0.113.7:{port}"  # reserved for documentation, so no machine has it
    with pytest.raises(InputError, match="cannot listen there: Cannot assign requested address"):
        join_processes(elsewhere, 2, 0)
    monkeypatch.setattr("fedprox.devices.processes.PATIENCE", 1)
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(InputError, match=r"process 1 of 2 did not come to 127.0.0.1"):
        join_processes(elsewhere, 2, 0)


@pytest.mark.parametrize("process", [0, 1])
def test_an_unknown_host_is_named(process: int, port: int) -> None:
    assert "not known" in said(("no-such-host.invalid", port), 2, process, 0)


@pytest.mark.parametrize(
    "sent", mostly_slow([b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 5000, b"fedprox: go\n"], b"")
)
def test_another_program_at_the_port_is_no_process_0(sent: bytes, port: int) -> None:
    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(64)
            self.request.sendall(sent)

    with socketserver.TCPServer(("127.0.0.1", port), Other) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever, 0.01)
        line = said(("127.0.0.1", port), 2, 1, 0.4)
        server.shutdown()
    assert line.endswith(
        "within 0.4 s: what answers there is not a process 0 that waits for others"
    )
