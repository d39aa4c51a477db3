"""The ends of a connection: addresses and certificates, and calls that are repeated."""

import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedprox.errors import InputError, reason, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx


def require_address(address: str) -> None:
    """Raise `InputError` unless the address is `host:port`."""
    host, _, port = address.rpartition(":")
    require(
        host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536,
        f"SuperLink {address!r}: an address is host:port, for instance fl.example.org:9092",
    )


def require_certificates(file: Path) -> None:
    """Raise `InputError` unless a file holds certificates."""
    require(file.is_file(), f"{file}: no such file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        raise InputError(f"{file}: no certificates in PEM") from None


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port() -> int:
    """A port of the loopback that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Retry:
    """Repeats a call while the other side does not answer, for at most so many seconds."""

    def __init__(
        self,
        seconds: float,
        wait: Callable[[float, Exception], None] = lambda seconds, _: time.sleep(seconds),
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self.seconds, self.wait, self.answered = seconds, wait, answered

    def invoke(self, call: Callable[[], Any]) -> Any:
        """Call until there is a result."""
        deadline, pause = time.monotonic() + self.seconds, 0.1
        while True:
            try:
                result = call()
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if not _may_pass(error) or time.monotonic() + pause > deadline:
                    raise
                self.wait(pause, error)
            else:
                self.answered()
                return result
            pause = min(2 * pause, 5.0)


def _may_pass(error: Exception) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (502, 503, 504)
    return not is_tls(error)


def is_tls(error: Exception) -> bool:
    """Whether two sides could not agree on an encrypted connection."""
    return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))


NOT_THE_AUTHORITY = ("expired", "not yet valid", "not valid for", "mismatch")
"""In words of OpenSSL, what is wrong with a certificate whoever signed it."""


def tls_in_words(error: Exception, ca_certificate: Path) -> str:
    """Why two sides could not agree on an encrypted connection, in one line."""
    text = reason(error)
    if "certificate" not in text or any(each in text for each in NOT_THE_AUTHORITY):
        return text
    return f"{text}; is {ca_certificate} the certificate of its authority?"
