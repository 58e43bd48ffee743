"""Controls a headless Chromium over its DevTools protocol; takes pictures and collects console messages.

For pictures of our own pages and for their tests. Needs only Chromium itself.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.sync.client import ClientConnection, connect

PROGRAM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
"""Path of Chromium on this machine; None if not installed."""
PATIENCE_S = 30.0


class Page:
    """One tab. complaints: console errors and warnings, exceptions, content security policy violations."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._calls = 0
        self._answer = (b"", "")
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Sends a protocol command and returns its result; records events meanwhile. Raises RuntimeError."""
        self._calls += 1
        call = self._calls
        self._connection.send(json.dumps({"id": call, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(PATIENCE_S))
            if message.get("id") == call:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def open(self, url: str) -> None:
        """Loads a page and waits until its scripts have run."""
        self.call("Page.navigate", url=url)
        self.run("new Promise(r => document.readyState === 'complete' ? r() : addEventListener('load', r))")

    def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, awaiting promises. Raises RuntimeError."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, condition: str, seconds: float = PATIENCE_S) -> None:
        """Waits until a JavaScript condition holds. Raises RuntimeError on timeout."""
        self.run(
            f"new Promise((yes, no) => {{ const began = Date.now(); (function ask() {{ if ({condition})"
            f" yes(); else if (Date.now() - began > {1000 * seconds}) no(new Error('not in time'));"
            " else setTimeout(ask, 50); })(); })"
        )

    def size(self, width: int, height: int, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone},
        )

    def prefer(self, scheme: str) -> None:
        """Sets the preferred color scheme, `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def answer(self, pattern: str, body: bytes, media_type: str = "application/json") -> None:
        """Answers later requests of pages for URLs that match `pattern` with `body`."""
        self._answer = (body, media_type)
        self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])

    def point(self, x: float, y: float) -> None:
        """Moves the mouse to a point, in CSS pixels of the view."""
        self._mouse("mouseMoved", x, y)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Drags the mouse from `begin` to `end`."""
        self._mouse("mouseMoved", *begin)
        self._mouse("mousePressed", *begin, button="left", clickCount=1)
        self._mouse("mouseMoved", *end, button="left")
        self._mouse("mouseReleased", *end, button="left", clickCount=1)

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, file: Path, whole: bool = True) -> None:
        """Writes a PNG of the whole page or of its visible part."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        what, said = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.complaints.append(str(said["exceptionDetails"]))
        elif what == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(said["args"]))
        elif what == "Fetch.requestPaused":
            self._fulfill(said["requestId"])
        elif what == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")

    def _fulfill(self, request: str) -> None:
        # sent without waiting for its result, since a call may be waiting for its own
        self._calls += 1
        body, media_type = self._answer
        parameters = {
            "requestId": request,
            "responseCode": 200,
            "responseHeaders": [{"name": "content-type", "value": media_type}],
            "body": base64.b64encode(body).decode(),
        }
        command = {"id": self._calls, "method": "Fetch.fulfillRequest", "params": parameters}
        self._connection.send(json.dumps(command))


@contextmanager
def browser() -> Iterator[Page]:
    """Yields a tab of a fresh browser, which is ended afterwards. Raises RuntimeError without Chromium."""
    if PROGRAM is None:
        raise RuntimeError("no Chromium on this machine (Debian: apt-get install chromium)")
    flags = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        # letters look the same on every machine
        "--font-render-hinting=none",
        # asks nobody but the pages that are opened
        *(
            "--disable-quic",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ),
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [PROGRAM, *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert process.stderr is not None
        try:
            found = next((m for line in process.stderr if (m := re.search(r"ws://\S+", line))), None)
            if found is None:
                raise RuntimeError("Chromium ended before it listened")
            new_tab = f"http://{urlsplit(found[0]).netloc}/json/new"
            tab = httpx.put(new_tab, timeout=PATIENCE_S, trust_env=False).raise_for_status().json()
            with connect(tab["webSocketDebuggerUrl"], max_size=None, proxy=None) as connection:
                yield Page(connection)
        finally:
            process.terminate()
            process.wait(10)
            process.stderr.close()
