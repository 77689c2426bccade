"""Headless Chromium, driven through the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one tab."""

    def __init__(self, read: int, write: int) -> None:
        self._in, self._out = os.fdopen(read, "rb"), os.fdopen(write, "wb")
        self._calls = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            if not byte:
                raise EOFError("the browser has ended")
            text += byte
        return json.loads(text)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._message()).get("id") != self._calls:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, page: Path, width: int, height: int, scheme: str) -> None:
        """Open a file in a window of this size, in a "light" or a "dark" color scheme."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def screenshot(self) -> bytes:
        """Return a PNG of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with its profile in `folder`, and end it."""
    assert CHROMIUM is not None
    commands, answers = os.pipe(), os.pipe()
    # the protocol is read from file descriptor 3 and written to 4
    script = f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}'
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
    profile = f"--user-data-dir={folder}"
    process = subprocess.Popen(
        ["bash", "-c", script, "browser", CHROMIUM, *options, profile],
        pass_fds=(commands[0], answers[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands[0])
    os.close(answers[1])
    try:
        yield Browser(answers[0], commands[1])
    finally:
        process.terminate()
        process.wait(20)
