"""A node that sends back what it gets, run as a process by test_flower.py."""

import logging
import sys
import threading
import time
from pathlib import Path

from fedprox.deployment.flower_node import NodeConnection, serve
from fedprox.deployment.network import Parcel


def answer(parcel: Parcel) -> Parcel:
    if parcel.head == b"who":
        return Parcel(parcel.sender.encode())
    if parcel.head == b"fail":
        raise ValueError("no rows\nhere")
    if parcel.head.startswith(b"wait "):
        Path(parcel.head[5:].decode()).touch()
        time.sleep(3600)
    return Parcel(b"answer to " + parcel.head, parcel.body[::-1])


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    address, ca_certificate, key, folder = sys.argv[1:]
    connection = NodeConnection(address, Path(ca_certificate), Path(key), Path(folder))
    serve(answer, connection, threading.Event())
