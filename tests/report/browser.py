"""A real browser, driven over the DevTools protocol: what a reader of the page sees and presses."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_KEYS = {"Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, " ": 32}
_TIMEOUT_SECONDS = 90.0
_LEAVING = ("Inspected target navigated or closed", "Not attached to an active page")
"""What the browser answers while a page gives way to another."""


def executable() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class LeavingPageError(Exception):
    """The page is on its way to another."""


class Page:
    """One page, and everything it complained about or asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if message.get("error", {}).get("message") in _LEAVING:
                    raise LeavingPageError(method)
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])

    def open(self, path: Path) -> None:
        self.visit(path.resolve().as_uri())

    def visit(self, address: str) -> None:
        self.send("Page.navigate", url=address)
        while self._receive().get("method") != "Page.loadEventFired":
            pass
        self.settle()

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, on this page or the one that it leads to."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._is_true(condition):
            assert time.monotonic() < deadline, f"never: {condition}"
            time.sleep(0.05)

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.run(f"Boolean({condition})"))
        except LeavingPageError:
            return False

    def settle(self) -> None:
        """Let the page draw what is due."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression: str) -> Any:
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def press(self, key: str, times: int = 1) -> None:
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=_KEYS[key])
        self.settle()

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.settle()

    def screenshot(self, path: Path) -> None:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=_TIMEOUT_SECONDS))
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        if message.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(str(parameters["entry"]["text"]))
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        return message


@contextmanager
def browser(program: str, profile: Path) -> Iterator[str]:
    """Start a browser without a window; yield the address of its DevTools."""
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    arguments += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    environment = {**os.environ, "HOME": str(profile)}
    process = subprocess.Popen(
        [program, *arguments, "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    try:
        port = profile / "DevToolsActivePort"
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not (port.is_file() and port.read_text().strip()):
            assert process.poll() is None, f"{program} ended with code {process.returncode}"
            assert time.monotonic() < deadline, f"{program} did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def new_page(devtools: str) -> Iterator[Page]:
    """Open an empty page in the browser and close it in the end."""
    with urllib.request.urlopen(urllib.request.Request(f"{devtools}/json/new", method="PUT")) as answer:
        target = json.load(answer)
    with connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
        page = Page(socket)
        yield page
        page.send("Page.close")
