"""The report as a browser draws it: nothing runs, nothing is loaded, and it fits a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run_folders import make_run, make_whole_run

from qed.report.page import POLICY
from qed.report.write import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
HOSTILE = "<script>document.title='ran'</script> $\\frac{1}{2}$ <img src=http://evil.example/x onerror=alert(1)>"
# What sticks out on the right, measured by a script that the report itself would never let run.
MEASURE = """<script>
const wide = [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
  && !e.closest('.formula') && !e.closest('svg'));
document.title = JSON.stringify({width: innerWidth, page: document.documentElement.scrollWidth,
  wide: wide.slice(0, 5).map(e => e.outerHTML.slice(0, 120))});
</script>"""
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The report of a run that has everything, with hostile answers."""
    run = make_whole_run(tmp_path, text=HOSTILE)
    return write_report([run], tmp_path / "report.html")


@pytest.fixture
def dump(tmp_path: Path) -> Callable[[Path, int], str]:
    """The document as Chromium has it when it has drawn it."""

    def call(page: Path, width: int) -> str:
        command = [str(CHROMIUM), *QUIET.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        command += [f"--window-size={width},900", page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    return call


def test_a_browser_draws_it_and_runs_nothing(whole: Path, dump: Callable[[Path, int], str]) -> None:
    dom = dump(whole, 1280)
    assert "<title>ran" not in dom
    assert not re.search(r"<(script|img|iframe|link|object|a)\b", dom)
    assert "<mfrac>" in dom
    captions = re.findall(r"<caption>(.*?)</caption>", dom)
    assert {"Greedy answers", "Sampled answers"} <= set(captions)
    assert any("by level" in caption for caption in captions)
    assert dom.count("<table") == whole.read_text(encoding="utf-8").count("<table")


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("width", [1280, 820, 500, 375])
def test_nothing_sticks_out(
    tmp_path: Path, whole: Path, dump: Callable[[Path, int], str], width: int, several: bool
) -> None:
    """Drawn in a frame of its own width, because a browser's window may have a least one."""
    page = whole
    if several:
        runs = [make_whole_run(tmp_path / name, name="a-run-with-a-long-name-" + "x" * 40) for name in "ab"]
        page = write_report([*runs, make_run(tmp_path / "c")], tmp_path / "several.html")
    content = page.read_text(encoding="utf-8").replace(html.escape(POLICY, quote=True), "").replace(POLICY, "")
    framed = html.escape(
        content.replace("</body>", MEASURE.replace("document.title", "parent.document.title") + "</body>")
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f'<title>nothing</title><iframe width="{width}" height="900" srcdoc="{framed}"></iframe>', "utf-8")
    found = re.search(r"<title>(.*?)</title>", dump(outer, 1400))
    assert found is not None
    told = json.loads(html.unescape(found[1]))
    assert told["width"] in range(width - 20, width + 1)
    assert told["wide"] == []
    assert told["page"] <= told["width"]


def test_playwright_agrees(whole: Path) -> None:
    """The same by way of Playwright, which also sees requests, dialogs and errors.

    In a thread of its own: a thread has one Playwright, and that of this one may belong to tests of the viewer.
    """
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_look, whole).result()


def _look(whole: Path) -> None:
    from playwright import sync_api as playwright  # noqa: PLC0415 -- of the development group

    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 375, "height": 800})
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.goto(whole.as_uri())
        assert asked == [whole.as_uri()]
        assert not said
        assert page.title() != "ran"
        assert page.locator("script").count() == 0
        assert page.locator("math").count() > 0
        assert page.locator("main table").first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") not in ("", "rgba(0, 0, 0, 0)")
        browser.close()
