"""A headless Chromium, controlled through pipes: no port is opened, and no client library is needed."""

import json
import os
import select
import shutil
import subprocess
import time
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
DEADLINE = 120.0  # Seconds for one response.


def find() -> str | None:
    """Find a browser on this host."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """An open page, with the requests and messages that it caused."""

    def __init__(self, path: str, profile: str, url: str):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The shell gives the pipes the file descriptors that the browser expects.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, path, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to the browser and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"]["value"]

    def wait_for(self, method: str) -> None:
        """Wait until the page has caused an event."""
        while not any(event["method"] == method for event in self.events):
            self._receive()

    def requests(self) -> list[str]:
        """Addresses that the page requested."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Return the messages on the browser's console, such as violations of the page's policy."""
        return [e["params"]["entry"]["text"] for e in self.events if e["method"] == "Log.entryAdded"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE
        while b"\0" not in self._buffer:
            readable, *_ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if readable else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        event = json.loads(message)
        if "method" in event:
            self.events.append(event)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
