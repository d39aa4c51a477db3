"""A headless Chromium through the WebDriver protocol (W3C), with nothing but the standard library.

Only what the report's tests need: open a page, run a script, move a mouse, read the console and the
network's log.
"""

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # a container's root has no other way
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """A session of a running driver."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.address + path, data, method=method)
        with _direct.open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def post(self, path: str, **body: Any) -> Any:
        return self.call("POST", path, body)

    def open(self, page: Path) -> None:
        self.post("/url", url=page.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript, the body of a function of `arguments`."""
        return self.post("/execute/sync", script=script, args=list(arguments))

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        for _ in range(600):
            if self.run(f"return Boolean({condition})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {condition}")

    def resize(self, width: int, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.post("/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=metrics)

    def mouse(self, *steps: tuple[int, int] | str) -> None:
        """Move to points of the window, and press ("down") and release ("up") the left button."""
        actions: list[dict[str, Any]] = []
        for step in steps:
            if isinstance(step, str):
                actions.append({"type": f"pointer{step.title()}", "button": 0})
            else:
                x, y = step
                actions.append({"type": "pointerMove", "duration": 60, "x": x, "y": y})
        pointer = {"type": "pointer", "id": "mouse", "actions": actions}
        self.post("/actions", actions=[pointer | {"parameters": {"pointerType": "mouse"}}])

    def console(self) -> list[str]:
        """Errors and warnings since the last call."""
        return [entry["message"] for entry in self.post("/se/log", type="browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        entries = [
            json.loads(entry["message"])["message"]
            for entry in self.post("/se/log", type="performance")
        ]
        sent = [e["params"] for e in entries if e["method"] == "Network.requestWillBeSent"]
        return [str(params["request"]["url"]) for params in sent]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    assert DRIVER is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([DRIVER, f"--port={port}"], **quiet) as driver:  # type: ignore[call-overload]
        session = Browser(f"http://127.0.0.1:{port}")
        try:
            _wait_for(session)
            options = {
                "binary": CHROMIUM,
                "args": [*ARGUMENTS, f"--user-data-dir={profile}", "--window-size=1400,900"],
            }
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            begun = session.post("/session", capabilities={"alwaysMatch": wanted})
            session.address += f"/session/{begun['sessionId']}"
            try:
                yield session
            finally:
                session.call("DELETE", "")
        finally:
            driver.terminate()


def _wait_for(session: Browser) -> None:
    for _ in range(200):
        try:
            if session.call("GET", "/status")["ready"]:
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("chromedriver does not answer")
