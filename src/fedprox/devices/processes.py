"""Several processes that run one comparison together, through `jax.distributed`.

Every process runs the same program on the same experiment, on its own devices. Each owns a block of
clients with about n / P of the rows, reads only their rows, does their work and stores their state.
Once per round, the processes exchange one sum. Cohorts do not depend on ownership, so a round waits
for the process whose clients have the most work.

If a process is missing, or two have the same number, JAX's client ends with a C++ stack trace and
status 134, which Python cannot catch, once `initialization_timeout` is over. So all processes first
greet process 0 (`meet`), at the address that JAX uses afterwards, where such a mistake raises an
`InputError`. Like JAX's own service, this exchange is neither secret nor authenticated.
"""

import logging
import os
import re
import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, reason, require, require_whole
from fedprox.jax_internals import gather_processes

BIND = "JAX_COORDINATOR_BIND_ADDRESS"
"""JAX's variable for the address at which process 0 listens, if it is not the coordinator's."""


class Ownership(NamedTuple):
    """Which process owns which clients.

    Attributes:
        bounds: First client of each process, and the number of clients, shape (processes + 1,).
        process_index: Index of this process, from 0.
    """

    bounds: NDArray[np.int64]
    process_index: int

    @property
    def processes(self) -> int:
        """Number of processes."""
        return len(self.bounds) - 1

    @property
    def clients(self) -> range:
        """The clients of this process."""
        return range(int(self.bounds[self.process_index]), int(self.bounds[self.process_index + 1]))

    def of(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The process that owns each client."""
        return np.searchsorted(self.bounds, clients, side="right") - 1

    def first_rows(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """First row of each process, and the number of rows, shape (processes + 1,)."""
        return offsets[self.bounds]


def find_ownership(offsets: NDArray[np.int64], processes: int, process_index: int = 0) -> Ownership:
    """Divide clients into consecutive blocks with about equal numbers of rows.

    >>> find_ownership(np.array([0, 5, 10, 20, 30, 40]), processes=2).bounds.tolist()
    [0, 3, 5]
    """
    ideal = np.arange(1, processes) * (offsets[-1] / processes)
    bounds = np.concatenate([[0], np.searchsorted(offsets, ideal), [len(offsets) - 1]])
    return Ownership(bounds.astype(np.int64), process_index)


def ownership_of_processes(offsets: NDArray[np.int64]) -> Ownership:
    """Ownership among the JAX processes of this run."""
    return find_ownership(offsets, jax.process_count(), jax.process_index())


PATIENCE = 120
"""Seconds that a process waits for the others at the start."""


NOTICE = 10
"""Seconds after which a process logs that it waits for the others."""


HEARTBEAT = 30
"""Seconds without a sign of life after which a process counts as lost."""


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


CLUSTERS = (
    ("processes", ("SLURM_NTASKS",)),
    ("process", ("SLURM_PROCID", "JOB_COMPLETION_INDEX")),
)
"""Options, and the variables of SLURM and of Kubernetes indexed jobs that replace them."""


def join_processes(
    coordinator: str, processes: int | None = None, process: int | None = None
) -> None:
    """Join the other processes of a run, before JAX starts."""
    options = {"processes": processes, "process": process}
    for name, variables in CLUSTERS:
        for variable in variables:
            if options[name] is None and variable in os.environ:
                options[name] = _number(variable, os.environ[variable])
        require(
            options[name] is not None,
            f"--{name}: not given, and neither {' nor '.join(variables)} is set",
        )
    count, number = options["processes"], options["process"]
    require_whole("--processes", count)
    require_whole("--process", number, least=0)
    assert count is not None
    assert number is not None
    require(number < count, f"--process {number}: it must be below --processes, {count}")
    if coordinator == "slurm":
        coordinator = slurm_coordinator()
    address = _address(f"--coordinator {coordinator}: it must be HOST:PORT or slurm", coordinator)
    service = coordinator
    if number == 0 and os.environ.get(BIND):  # process 0 itself may not reach the coordinator's
        service = os.environ[BIND]
        address = _address(f"{BIND} = {service!r}; it must be HOST:PORT", service)
    notice = f"process {number}: waiting for the others at {coordinator}, up to {PATIENCE:g} s"
    timer = threading.Timer(NOTICE, logging.getLogger(__name__).warning, [notice])
    timer.start()
    try:
        meet(address, count, number, seconds=PATIENCE)
        # one program at a time: the sums of two concurrent programs could be mixed up
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        jax.distributed.initialize(
            service,
            count,
            number,
            heartbeat_timeout_seconds=HEARTBEAT,
            initialization_timeout=PATIENCE,
            coordinator_bind_address=service,
        )
    except (RuntimeError, ValueError) as error:
        problem = str(error).partition("\n")[0]
        raise InputError(
            f"--coordinator {coordinator}: the processes do not meet: {problem}"
        ) from None
    finally:
        timer.cancel()


def _address(message: str, text: str) -> Address:
    """Parse HOST:PORT, with brackets around an IPv6 address."""
    host, _, port = text.rpartition(":")
    valid = bool(host) and port.isdecimal() and 0 < int(port) < 2**16
    require(valid, message)
    return host.removeprefix("[").removesuffix("]"), int(port)


def slurm_coordinator() -> str:
    """The first host of the job step, and a port that depends on the job, chosen as in JAX."""
    values = []
    for name in ("SLURM_JOB_ID", "SLURM_STEP_NODELIST"):
        require(name in os.environ, f"--coordinator slurm: {name} is not set")
        values.append(os.environ[name])
    job, nodes = values
    first = re.match(r"([^,\[]+)(?:\[(\w+)[^]]*\])?([^,\[]*)", nodes)  # node[01-04,07],other
    require(first, f"SLURM_STEP_NODELIST = {nodes!r}; it must be a list of hosts")
    assert first is not None
    port = 61440 + _number("SLURM_JOB_ID", job) % 4096
    return f"{''.join(part or '' for part in first.groups())}:{port}"


def _number(name: str, text: str) -> int:
    require(text.isdecimal(), f"{name} = {text!r}; it must be a whole number")
    return int(text)


def allgather(value: int) -> NDArray[np.int64]:
    """Gather the values of all processes, shape (processes,), once all of them have called this."""
    if jax.process_count() == 1:
        return np.array([value], np.int64)
    return np.asarray(gather_processes(np.int64(value))).reshape(-1)


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
