"""The HTML report in a real browser: headless Chromium, driven over its debugging pipe, where one is installed."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditor import results
from auditor.report import html
from auditor.results import Report

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.skipif(os.name != "posix", reason="the debugging pipe is passed as file descriptors 3 and 4"),
]
PATIENCE = 60.0
"""Seconds after which a browser that says nothing is given up; nothing is measured by it."""


class Browser:
    """Just enough of the DevTools protocol: commands, their answers, and the events between."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        arguments = f"--headless --no-sandbox --disable-gpu --no-first-run --user-data-dir={profile} about:blank"
        command = f'exec "{CHROMIUM}" --remote-debugging-pipe {arguments} 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._count = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Load a page from disk in a window of that width, and forget the events before."""
        self.events = []
        self("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def said(self, *methods: str) -> list[dict[str, Any]]:
        """The parameters of the events of these names since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)  # the browser ends when its pipe does
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read)

    def _next(self) -> dict[str, Any]:
        limit = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, limit - time.monotonic()))
            data = os.read(self._read, 1 << 16) if ready else b""
            if not data:
                raise TimeoutError("the browser says nothing")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(params=["violated", "conforming", "wordy"])
def page(request: pytest.FixtureRequest, violated: Report, conforming: Report, tmp_path: Path) -> Path:
    """A report on disk; the wordy one has names and numbers that are long, and many modes."""
    path = tmp_path / "report.html"
    mode = violated.modes[0]
    wide = results.CaseData("x" * 120, 1000, 20, "d", p=[[0.001] * 1000] * 21, q=[[0.001] * 1000] * 20)
    finding = replace(mode.findings[0], title="word" * 40, smallest=wide, replay="audit replay " + "f" * 300)
    incident = results.Incident("raised", "E" * 200, "m", "verify", wide, traceback="line " * 200)
    wordy = replace(
        violated,
        adapter=replace(violated.adapter, name="adapter_" * 20),
        modes=[replace(mode, name=f"mode{k}" * 6, findings=[finding], incidents=[incident]) for k in range(8)],
    )
    path.write_text(html.render({"violated": violated, "conforming": conforming, "wordy": wordy}[request.param]))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_is_quiet_whole_and_fits(browser: Browser, page: Path, width: int, scheme: str) -> None:
    browser.open(page, width, scheme)
    assert not browser.said("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    asked = [said["request"]["url"] for said in browser.said("Network.requestWillBeSent")]
    assert all(url == page.as_uri() or url.startswith("data:") for url in asked)
    assert browser.value("document.documentElement.scrollWidth") <= width
    outside = (
        "[...document.querySelectorAll('main > *, .card')].filter(e => e.getBoundingClientRect().right > innerWidth)"
    )
    assert browser.value(f"{outside}.length") == 0
    drawn = "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect()).map(r => [r.width, r.height])"
    sizes = browser.value(drawn)
    assert len(sizes) >= 4
    assert all(across >= 250 and down >= 150 for across, down in sizes)


def test_dark_is_dark_and_light_is_light(browser: Browser, page: Path) -> None:
    brightness = "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number))"
    browser.open(page, 1400, "light")
    assert browser.value(brightness) > 200
    browser.open(page, 1400, "dark")
    assert browser.value(brightness) < 60


def test_every_figure_has_a_name_that_assistive_software_reads(browser: Browser, page: Path) -> None:
    browser.open(page, 1400)
    browser("Accessibility.enable")
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    figures = [node for node in nodes if node.get("role", {}).get("value") in ("image", "img", "graphics-document")]
    assert len(figures) == browser.value("document.querySelectorAll('svg').length")
    assert all(node["name"]["value"] for node in figures)
