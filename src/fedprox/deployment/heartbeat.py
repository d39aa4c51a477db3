"""Keeps a node connected while it is busy, and signs it off when it has ended or was killed.

Run by `fedprox.deployment.flower_node` as a process of its own: a killed process cannot sign itself
off, and a computation may hold up all threads of its process.
"""

import signal
import sys
import threading
from pathlib import Path

SOON = 5.0
"""Seconds until the next heartbeat after one that failed."""


def keep_connected() -> str | None:
    """Send heartbeats until SIGTERM, which also comes when the node's process has ended.

    The command line has the SuperLink's address, the certificate of its authority, the node's
    private key and its identifier. Returns why the node is no longer connected, or did not sign
    off.
    """
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    # imported here, since a signal may come while this takes a second
    import httpx

    from fedprox.deployment.crypto import read_private_key
    from fedprox.deployment.flower import NODE_HEARTBEAT, Retry, fleet_link, sign_off, stay

    address, ca_certificate, key, number = sys.argv[1:]
    node = int(number)
    fleet = fleet_link(address, Path(ca_certificate), read_private_key(Path(key)), Retry(0.0))
    pause = 0.8 * NODE_HEARTBEAT
    while not ended.wait(pause):
        try:
            if not stay(fleet, node):
                return "the SuperLink no longer knows the node"
            pause = 0.8 * NODE_HEARTBEAT
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                return "the SuperLink refuses the node's key"
            pause = SOON
        except (httpx.TransportError, ValueError):  # a proxy may send what is no message
            pause = SOON
    try:
        sign_off(fleet, node)
    except (httpx.HTTPError, ValueError) as error:
        return f"the node did not sign off: {error}"
    return None
