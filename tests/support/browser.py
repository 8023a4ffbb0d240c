"""Debian's Chromium without a screen, driven by its own chromedriver over the WebDriver protocol (W3C)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest

from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from zkrebalancer.localcluster.ports import HOST, free_ports

PACKAGES = ("chromium", "chromium-driver")
INSTALL = ("apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", *PACKAGES)
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of a reference to an element
NETWORK_CHANGED = "ERR_NETWORK_CHANGED"  # a test beside this one has made or removed a network of containers
ENTER, TAB = "\ue007", "\ue004"


def require_browser() -> None:
    """Skip the test without a browser; install it as root, where packages can be installed."""
    if _is_missing() and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(INSTALL, capture_output=True, check=False)
    if _is_missing():
        pytest.skip(f"no browser: apt-get install {' '.join(PACKAGES)}")


def _is_missing() -> bool:
    return shutil.which("chromedriver") is None or shutil.which("chromium") is None


class Browser:
    """One window."""

    def __init__(self, address: str) -> None:
        self._address = address
        options = {"args": FLAGS, "binary": shutil.which("chromium")}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = ""
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{answer['sessionId']}"

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script in the page returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": arguments})

    def wait(self, script: str, *arguments: object, what: str | None = None) -> Any:
        """Run a script until it returns something true; return that."""
        began = time.monotonic()
        while not (found := self.run(script, *arguments)):
            waited_s = time.monotonic() - began
            if waited_s > WITHIN_S:
                raise AssertionError(f"{what or script}\n{self.text()}\n{self.complaints()}")
            if NETWORK_CHANGED in self.text():
                self._call("POST", "/refresh", {})
            gevent.sleep(max(0.05, min(0.5, waited_s / 10)))  # each question costs the browser more than a moment
        return found

    def wait_for_text(self, text: str) -> None:
        self.wait("return document.body.innerText.includes(arguments[0])", text, what=f"the page lacks {text!r}")

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def press(self, *keys: str) -> None:
        """Press keys one after another, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def click(self, selector: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[ELEMENT]}/click", {})

    def look(self, width: int, height: int, scheme: str, *, is_phone: bool = False) -> None:
        """Show the page at a size, in the colour scheme `light` or `dark`."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self._devtools("Emulation.setDeviceMetricsOverride", size)
        self._devtools("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def complaints(self) -> list[str]:
        """Return what the browser has logged since the last call: errors of programs, what the policy forbids."""
        messages = [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]
        return [message for message in messages if NETWORK_CHANGED not in message]

    def close(self) -> None:
        self._call("DELETE", "", None)

    def _devtools(self, command: str, arguments: object) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": arguments})

    def _call(self, method: str, path: str, content: object) -> Any:
        return gevent.get_hub().threadpool.apply(self._call_blocking, (method, path, content))

    def _call_blocking(self, method: str, path: str, content: object) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self._address}{self._session}{path}", data, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:  # noqa: S310  # our own driver
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser; end it and its driver afterwards."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HOME": folder, "TMPDIR": folder}
        command = ["chromedriver", f"--port={port}", "--log-level=OFF"]
        driver = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            address = f"http://{HOST}:{port}"
            wait_until(lambda: _answers(address), "chromedriver does not answer")
            window = Browser(address)
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()
            driver.wait()
            # The browser's processes end later, and until then write into the folder.
            wait_until(lambda: not _has_processes(driver.pid), "the browser does not end")


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/status", timeout=1) as answer:  # noqa: S310  # our own driver
            return bool(json.load(answer)["value"]["ready"])
    except OSError:
        return False


def _has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
