"""Take the pictures of docs/viewer/: each view in light, in dark and on a narrow screen.

    python tests/viewer/take_pictures.py

Look at them before they are committed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME), str(HOME / "tests"), str(HOME / "tests" / "viewer")]

from browsing import CHROMIUM, FLAGS, STEP, VIEWS, Tab, start_viewer  # noqa: E402 -- after the paths
from making_views import make_views  # noqa: E402

PLACE = HOME / "docs" / "viewer"
SIZES = {"light": (1100, 820), "dark": (1100, 820), "narrow": (390, 844)}
# What shows more of a view than its plain address, and what is scrolled to.
QUERIES = {
    "step": {"verdict": "right"},
    "group": {"a": "0", "b": "1"},
    "tokens": {"tab": "tokens", "signal": "entropy", "token": "38"},
    "compare": {"run": ["first", "faster"], "task": "maths/sampled"},
    "suspects": {"kind": "repetition"},
}
SCROLLED = {"group": ".difference", "tokens": "[role=tablist]"}
NAMES = (
    *("runs", "run", "step", "group", "answer", "tokens"),
    *("problem", "compare", "suspects", "evaluations", "evaluation"),
)


def main() -> None:
    """Write all pictures."""
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        runs, cache = Path(name) / "runs", Path(name) / "cache"
        runs.mkdir()
        make_views(runs)
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with start_viewer([runs], cache) as viewer:
            for look, (width, height) in SIZES.items():
                scheme = "dark" if look == "dark" else "light"
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                tab = Tab(context.new_page(), viewer.url)
                for view in NAMES:
                    _take(tab, view, PLACE / f"{view}-{look}.png")
                context.close()
        browser.close()


def _take(tab: Tab, view: str, path: Path) -> None:
    parts, query = VIEWS[view]
    tab.open(*((*STEP, "group", 1) if view == "group" else parts), **{**query, **QUERIES.get(view, {})})
    tab.page.wait_for_timeout(700)  # charts are drawn when they are seen
    if view in SCROLLED:
        tab.page.evaluate("name => document.querySelector(`main ${name}`)?.scrollIntoView()", SCROLLED[view])
        tab.page.wait_for_timeout(200)
    tab.page.screenshot(path=path)


if __name__ == "__main__":
    main()
