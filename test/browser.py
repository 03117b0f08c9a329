"""A real browser for tests of pages: Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 240.0


class Page:
    """One page of the browser. ``faults`` holds what the console heard: exceptions, errors, refused requests."""

    def __init__(self, socket: Any) -> None:
        self.faults: list[str] = []
        self._socket, self._numbers, self._session = socket, itertools.count(1), None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, file: Path) -> None:
        self._loaded = False
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def width(self, pixels: int) -> None:
        """Make the screen so wide."""
        self.call("Emulation.setDeviceMetricsOverride", width=pixels, height=800, deviceScaleFactor=1, mobile=True)

    def scheme(self, name: str) -> None:
        """Ask for a light or a dark page."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=PATIENCE_S))
        parameters = message.get("params", {})
        kind = message.get("method")
        if kind == "Page.loadEventFired":
            self._loaded = True
        elif kind == "Runtime.exceptionThrown" or (
            kind == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert")
        ):
            self.faults.append(json.dumps(parameters))
        elif kind == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.faults.append(parameters["entry"]["text"])
        return message


@contextmanager
def browser_page(profile: Path) -> Iterator[Page]:
    """A page of a fresh browser whose profile lies in an empty folder; skips the test where none is installed."""
    command = next(filter(None, map(shutil.which, NAMES)), None)
    if command is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    connect = pytest.importorskip("websockets.sync.client").connect
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    arguments += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen([command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            port = profile / "DevToolsActivePort"
            end = time.monotonic() + PATIENCE_S
            while not (port.is_file() and port.read_text().count("\n")):
                assert process.poll() is None, "the browser ended at its start"
                assert time.monotonic() < end, "the browser did not start"
                time.sleep(0.05)
            number, path = port.read_text().split("\n")[:2]
            with connect(
                f"ws://127.0.0.1:{number}{path}", max_size=None, open_timeout=PATIENCE_S, proxy=None
            ) as socket:
                page = Page(socket)
                yield page
                page.call("Page.close")
        finally:
            process.terminate()
            process.wait(timeout=60)
