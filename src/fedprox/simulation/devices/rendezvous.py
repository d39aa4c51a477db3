"""How the processes of a run meet before JAX connects them.

If a process is missing, or two have the same number, JAX's client ends with a C++ stack trace and
status 134, which Python cannot catch. So the processes first connect in this module, at the address
that JAX uses afterwards, where such a mistake raises an `InputError`. Like JAX's own service, this
exchange is neither secret nor authenticated.
"""

import errno
import re
import selectors
import socket
import time
from contextlib import ExitStack, suppress
from typing import Any, cast

from fedprox.errors import InputError, reason, require

PAUSE = 0.1
"""Seconds between two attempts to reach process 0."""


ATTEMPT = 5.0
"""Seconds that one attempt to connect may take."""


BIND = "JAX_COORDINATOR_BIND_ADDRESS"
"""JAX's variable for the address at which process 0 listens, if it is not the coordinator's."""


GO = b"fedprox: go"


REFUSED = b"fedprox: no: "


Address = tuple[str, int]
"""Host and port."""


def meet(
    coordinator: Address,
    processes: int,
    process: int,
    *,
    seconds: float,
    listen: Address | None = None,
) -> str:
    """Wait until all processes have connected.

    Args:
        coordinator: Address of process 0.
        processes: Number of processes.
        process: Number of this process.
        seconds: Longest time to wait.
        listen: Address at which process 0 listens. None means `coordinator`.

    Returns:
        HOST:PORT of process 0 with a numeric host, for JAX's service.

    Raises:
        InputError: If process 0 cannot listen or be reached, a process is missing, two processes
            have the same number, or processes expect different numbers of processes.
    """
    deadline = time.monotonic() + seconds
    if process:
        return _join(coordinator, processes, process, seconds, deadline)
    with ExitStack() as opened:
        listener = opened.enter_context(_listen(listen or coordinator, deadline))
        address = _text(listener.getsockname())
        waiting = _gather(listener, processes, seconds, deadline, opened)
        listener.close()  # before the others try to reach JAX's service at this address
        for connection in waiting:
            with suppress(OSError):
                connection.sendall(GO)
    return address


def _listen(address: Address, deadline: float) -> socket.socket:
    host, port = address
    while True:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            break
        except socket.gaierror as error:  # a cluster may publish the name a little later
            _pause(deadline, f"{host} is not known", error)
    failed = OSError()
    for family, _, _, _, numeric in addresses:
        try:
            return socket.create_server((str(numeric[0]), port), family=family)
        except OSError as error:
            failed = error
            if error.errno == errno.EADDRINUSE:  # the others would connect to that program
                break
    hint = ""
    if failed.errno == errno.EADDRNOTAVAIL:
        hint = f"; set {BIND}=HOST:PORT to an address of this machine"
    raise InputError(f"process 0 cannot listen there: {_why(failed)}{hint}")


def _gather(
    listener: socket.socket, processes: int, seconds: float, deadline: float, opened: ExitStack
) -> dict[socket.socket, int]:
    """The connections of all other processes, with their numbers."""
    waiting: dict[socket.socket, int] = {}
    selector = opened.enter_context(selectors.DefaultSelector())
    selector.register(listener, selectors.EVENT_READ)
    while len(waiting) < processes - 1:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            text = _missing(listener, processes, seconds, waiting)
            for connection in waiting:
                with suppress(OSError):
                    connection.sendall(REFUSED + text.encode())
            raise InputError(text)
        for key, _ in selector.select(remaining):
            if key.fileobj is listener:
                connection = opened.enter_context(listener.accept()[0])
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
                continue
            connection = cast("socket.socket", key.fileobj)
            if not _admit(connection, processes, waiting):
                selector.unregister(connection)
                connection.close()
    return waiting


def _admit(connection: socket.socket, processes: int, waiting: dict[socket.socket, int]) -> bool:
    """Read a greeting; if it is valid, add the connection to `waiting` and return True."""
    if waiting.pop(connection, None):  # a waiting process sends nothing, so it has ended
        return False
    try:
        greeting = re.fullmatch(rb"fedprox (\d+) (\d+)\n", connection.recv(64))
    except OSError:
        return False
    if greeting is None:  # not a process of fedprox
        return False
    count, number = map(int, greeting.groups())
    if count != processes:
        refusal = f"--processes {count}: process 0 was started with --processes {processes}"
    elif number in waiting.values() or not 0 < number < processes:
        refusal = f"--process {number}: another process with this number is there already"
    else:
        waiting[connection] = number
        return True
    with suppress(OSError):
        connection.sendall(REFUSED + refusal.encode())
    return False


def _missing(
    listener: socket.socket, processes: int, seconds: float, waiting: dict[socket.socket, int]
) -> str:
    absent = sorted(set(range(1, processes)) - set(waiting.values()))
    names = f"process{'es' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
    address = listener.getsockname()
    local = address[0].startswith("127.") or address[0] == "::1"
    reach = ", which only this machine reaches," if local else ""
    return f"{names} of {processes} did not come to {_text(address)}{reach} within {seconds:g} s"


def _join(
    coordinator: Address, processes: int, process: int, seconds: float, deadline: float
) -> str:
    """Greet process 0, and wait for its answer."""
    while True:
        failed: str | OSError = "what answers there is not a process 0 that waits for others"
        try:
            with socket.create_connection(coordinator, timeout=ATTEMPT) as connection:
                connection.settimeout(seconds + ATTEMPT)  # process 0 may have started just now
                connection.sendall(f"fedprox {processes} {process}\n".encode())
                answer = connection.makefile("rb").read(1000)
                host, port, *_ = connection.getpeername()
            require(not answer.startswith(REFUSED), answer[len(REFUSED) :].decode(errors="replace"))
            if answer == GO:
                break
        except OSError as error:
            failed = error
        _pause(deadline, f"process {process} does not reach process 0 within {seconds:g} s", failed)
    deadline = time.monotonic() + seconds
    while True:  # JAX's client would wait a second or more if its first attempt failed
        try:
            socket.create_connection((host, port), timeout=ATTEMPT).close()
            return _text((host, port))
        except OSError as error:
            _pause(deadline, "process 0 has ended", error)


def _pause(deadline: float, what: str, why: str | OSError) -> None:
    """Wait before the next attempt; after the deadline raise `InputError`."""
    require(time.monotonic() < deadline, f"{what}: {why if isinstance(why, str) else _why(why)}")
    time.sleep(PAUSE)


def _why(error: OSError) -> str:
    return error.strerror or reason(error)


def _text(address: tuple[Any, ...]) -> str:
    host, port, *_ = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
