"""How the processes of a run meet before JAX connects them.

If a process is missing, or two have the same number, JAX's client ends with a C++ stack trace and
status 134, which Python cannot catch, once `initialization_timeout` is over. So all processes first
greet process 0 in this module, at the address that JAX uses afterwards, where such a mistake raises
an `InputError`. Like JAX's own service, this exchange is neither secret nor authenticated.
"""

import re
import socket
import time
from contextlib import ExitStack, suppress

from fedprox.errors import InputError, reason, require

PAUSE = 0.1
"""Seconds between two attempts to reach process 0."""


ATTEMPT = 5.0
"""Seconds that one attempt to connect may take."""


GREETING = 1.0
"""Seconds in which a process greets process 0 once it has connected."""


GO = b"fedprox: go"


REFUSED = b"fedprox: no: "


Address = tuple[str, int]
"""Host and port."""


def meet(address: Address, processes: int, process: int, *, seconds: float) -> None:
    """Wait until all processes have greeted process 0."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if process:
                return _greet(address, processes, process, seconds)
            return _gather(address, processes, seconds)
        except OSError as error:
            # a cluster may publish the name of process 0 a little later
            if time.monotonic() > deadline or not (process or isinstance(error, socket.gaierror)):
                problem = f"process {process} does not reach process 0 within {seconds:g} s"
                if not process:
                    problem = "process 0 cannot listen there"
                raise InputError(f"{problem}: {error.strerror or reason(error)}") from None
        time.sleep(PAUSE)


def _greet(address: Address, processes: int, process: int, seconds: float) -> None:
    """Greet process 0, and wait for its answer."""
    with socket.create_connection(address, timeout=ATTEMPT) as connection:
        connection.settimeout(seconds + ATTEMPT)  # process 0 may have started just now
        connection.sendall(f"fedprox {processes} {process}\n".encode())
        answer = connection.makefile("rb").read(1000)
    require(not answer.startswith(REFUSED), answer[len(REFUSED) :].decode(errors="replace"))
    if answer != GO:
        raise OSError("what answers there is not a process 0 that waits for others")


def _gather(address: Address, processes: int, seconds: float) -> None:
    """Wait for the greetings of all other processes, and let them go on."""
    deadline = time.monotonic() + seconds
    family, *_, found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    waiting = dict[int, socket.socket]()
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(found[:2], family=family))
        while len(waiting) < processes - 1 and time.monotonic() < deadline:
            listener.settimeout(max(deadline - time.monotonic(), PAUSE))
            with suppress(OSError):  # nobody comes, or a stranger says nothing
                connection = opened.enter_context(listener.accept()[0])
                connection.settimeout(GREETING)
                greeting = re.fullmatch(rb"fedprox (\d+) (\d+)\n", connection.recv(64))
                if greeting is None:
                    continue
                count, number = map(int, greeting.groups())
                if count != processes or not 0 < number < processes:
                    known = f"process 0 was started with --processes {processes}"
                    _refuse(connection, f"--processes {count}: {known}")
                    continue
                before = waiting.get(number)
                waiting[number] = connection
                if before is not None:
                    _refuse(before, f"--process {number}: another process has this number too")
        missing = [str(i) for i in range(1, processes) if i not in waiting]
        which = f"process {', '.join(missing)} of {processes}"
        problem = f"{which} did not come to {found[0]} within {seconds:g} s"
        listener.close()  # before the others try to reach JAX's service at this address
        for connection in waiting.values():
            with suppress(OSError):
                if missing:
                    _refuse(connection, problem)
                else:
                    connection.sendall(GO)
    require(not missing, problem)


def _refuse(connection: socket.socket, problem: str) -> None:
    with connection:
        connection.sendall(REFUSED + problem.encode())
