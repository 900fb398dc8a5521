"""A viewer in a process of its own, and tabs of a browser that notice whatever must not happen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
WAIT = 60_000  # milliseconds for a page to be there; nothing waits that long unless it is broken, on any machine
SERIOUS = {"serious", "critical"}
# Counts what only hostile text could bring into a page.
STRANGERS = """() => {
  const found = [];
  const own = document.querySelector('#qed-data') ? 'script[src]' : 'script:not([src])';
  const kinds = 'img, iframe, object, embed, base, form[action], video, audio, marquee, template, foreignObject, '
    + 'meta[http-equiv=refresh], style, mglyph, use, animate, body ';
  for (const node of document.querySelectorAll(kinds + own)) {
    if (node.id !== 'qed-data' && !node.dataset.qed) found.push(node.outerHTML.slice(0, 160));
  }
  for (const node of document.querySelectorAll('*')) {
    for (const one of node.attributes) {
      const value = one.value.replace(/[\\s\\x00-\\x20]/g, '').toLowerCase();
      const leads = ['href', 'src', 'action', 'xlink:href', 'formaction'].includes(one.name);
      const runs = leads && /^(javascript|data|vbscript):/.test(value) && node.tagName !== 'LINK';
      if (one.name.startsWith('on') || runs) {
        found.push(`${node.tagName} ${one.name}=${one.value.slice(0, 120)}`);
      }
      if (leads && node.tagName === 'A' && /^(https?:)?\\/\\//.test(value) && !value.startsWith(location.origin)) {
        found.push(`${node.tagName} ${one.name}=${one.value.slice(0, 120)}`);
      }
    }
  }
  return found;
}"""
# What sticks out on the right of the page, unless it stands in a box that scrolls or cuts.
WIDE = """() => {
  const inside = node => {
    for (let box = node.parentElement; box && box !== document.body; box = box.parentElement) {
      if (getComputedStyle(box).overflowX !== 'visible') return true;
    }
    return false;
  };
  const width = document.documentElement.clientWidth;
  const wide = [...document.body.querySelectorAll('*')].filter(node => {
    const box = node.getBoundingClientRect();
    return box.width && box.right > width + 1 && !node.closest('svg, math') && !inside(node);
  });
  const told = wide.slice(0, 5).map(node => node.outerHTML.slice(0, 160));
  return {page: document.documentElement.scrollWidth, width, wide: told};
}"""

# Two frames later a new address has been noticed, and so has what stands in the window: only there charts are drawn.
NEXT_FRAMES = "() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(go))))"
IS_THERE = """() => {
  const seen = node => {
    const box = node.getBoundingClientRect();
    return box.bottom >= 0 && box.top <= innerHeight && node.offsetParent !== null;
  };
  const waiting = [...document.querySelectorAll('.chart-place:empty, .visit .signs:empty')];
  return document.querySelector('main h1') && !document.querySelector('[aria-busy=true]') && !waiting.some(seen);
}"""


# Each view of the table in docs/viewer.md: the parts of its address, and its query.
STEP = ("run", "first", "step", 8)
EVALUATED = (12, "maths", "sampled")
VIEWS: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "runs": ((), {}),
    "run": (("run", "first"), {}),
    "settings": (("run", "first", "settings"), {}),
    "events": (("run", "first", "events"), {}),
    "logs": (("run", "first", "logs"), {}),
    "step": (STEP, {}),
    "group": ((*STEP, "group", 0), {}),
    "answer": ((*STEP, "group", 0, "answer", 0), {}),
    "tokens": ((*STEP, "group", 0, "answer", 0), {"tab": "tokens"}),
    "answers of an evaluation": (("run", "first", "eval", *EVALUATED), {}),
    "answer of an evaluation": (("run", "first", "eval", *EVALUATED, "group", 13, "answer", 2), {}),
    "problems": (("run", "first", "problems"), {}),
    "problem": (("run", "first", "problem", "train-002"), {}),
    "compare": (("compare",), {"run": ["first", "faster"]}),
    "suspects": (("run", "first", "suspects"), {}),
    "evaluations": (("run", "first", "evaluations"), {}),
    "evaluation": (("run", "first", "evaluation", *EVALUATED), {}),
}


def build_hash(*parts: object, **query: object) -> str:
    """The address of a view within the page; a list in the query stands for several values."""
    path = "/".join(quote(str(part), safe="") for part in parts)
    pairs = [(name, each) for name, one in query.items() for each in (one if isinstance(one, list) else [one])]
    rest = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in pairs)
    return f"#/{path}{'?' + rest if rest else ''}"


@dataclass
class Viewer:
    """A running `qed view`."""

    url: str
    process: subprocess.Popen[str]

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self.process.terminate()
        self.process.wait(timeout=20)


def build_command(*words: object) -> list[str]:
    """The command line of qed in this checkout."""
    return [sys.executable, "-c", "from qed.cli.main import main; main()", *map(str, words)]


def build_environment(cache: Path) -> dict[str, str]:
    """Where a viewer finds this checkout, and a cache of its own."""
    home = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": home, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}


def export_runs(places: Sequence[Path], out: Path, cache: Path, *options: object) -> None:
    """Write a static copy of runs."""
    command = build_command("view", *places, "--export", out, *options)
    subprocess.run(command, env=build_environment(cache), check=True, timeout=120, capture_output=True)


@contextmanager
def start_viewer(places: Sequence[Path], cache: Path, port: int = 0) -> Iterator[Viewer]:
    """A viewer of runs, until the block ends."""
    command = build_command("view", *places, "--port", port, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=build_environment(cache)) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"qed view ended with {process.wait()}"
            yield Viewer(json.loads(line)["url"].rstrip("/"), process)
        finally:
            process.terminate()
            process.wait(timeout=20)


@dataclass
class Tab:
    """A page of a browser that remembers errors, violations of the policy, dialogs, and requests to other places."""

    page: Any
    home: str
    faults: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of messages that a test provokes

    def __post_init__(self) -> None:
        own = urlsplit(self.home)[:2]
        page, note = self.page, self.faults.append
        page.set_default_timeout(WAIT)
        page.on("console", lambda said: note(f"console: {said.text}") if said.type == "error" else None)
        page.on("pageerror", lambda error: note(f"error: {error}"))
        page.on("dialog", lambda dialog: (note(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda other: note(f"popup: {other.url}"))
        page.on("download", lambda file: None)
        page.on(
            "request",
            lambda asked: (
                None
                if urlsplit(asked.url)[:2] == own or asked.url.startswith(("data:", "blob:"))
                else note(f"request to another place: {asked.url}")
            ),
        )
        page.add_init_script(
            "addEventListener('securitypolicyviolation', event => console.error('policy: '"
            " + event.violatedDirective + ' ' + event.blockedURI + ' ' + event.sourceFile + ':' + event.lineNumber));"
        )

    def open(self, *parts: object, **query: object) -> Tab:
        """Open a view by the parts of its address, and wait until it is there."""
        self.page.goto(f"{self.home}/{build_hash(*parts, **query)}")
        return self.wait()

    def wait(self) -> Tab:
        """Wait until the view is there: a heading, nothing that loads, and all charts in the window."""
        self.page.evaluate(NEXT_FRAMES)
        self.page.wait_for_function(IS_THERE, timeout=WAIT)
        return self

    def text(self) -> str:
        """What the view says, with plain spaces."""
        return " ".join(str(self.page.inner_text("main")).replace("\u00a0", " ").split())

    def hash(self) -> str:
        """The state of the view in the address."""
        return "#" + str(self.page.url).partition("#")[2]

    def press(self, *keys: str) -> Tab:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
        return self

    def read(self, name: str, **params: object) -> Any:
        """What an endpoint answers, asked by the page."""
        query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in params.items())
        return self.page.evaluate("path => fetch(path).then(reply => reply.json())", f"/api/{name}?{query}")

    def rows(self) -> Any:
        """The rows of the first table that lists something."""
        return self.page.locator("main table:has(thead) tbody tr:not([aria-hidden])")

    def sort(self, label: str) -> Tab:
        """Press the head of a column."""
        self.page.locator("main th button").filter(has_text=label).first.click()
        return self

    def leads(self, part: str) -> Tab:
        """Wait until the address has a part."""
        self.page.wait_for_function("part => decodeURIComponent(location.hash).includes(part)", arg=part)
        return self

    def check(self) -> None:
        """Fail if anything happened that must not."""
        faults = [fault for fault in self.faults if not any(part in fault for part in self.expected)]
        assert not faults, "\n".join(faults)

    def check_harmless(self) -> None:
        """Fail if a text became more than text."""
        assert self.page.evaluate("() => window.hacked") is None
        assert self.page.evaluate(STRANGERS) == []

    def check_fits(self) -> None:
        """Fail if anything sticks out on the right."""
        found = self.page.evaluate(WIDE)
        assert found["wide"] == []
        assert found["page"] <= found["width"] + 1

    def check_accessible(self, axe: str) -> None:
        """Fail if axe-core finds something serious."""
        self.page.evaluate(axe)
        found = self.page.evaluate(
            "() => axe.run(document, {resultTypes: ['violations'],"
            " runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
        )
        told = [
            f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:140] for node in one['nodes'][:3]]}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
        ]
        assert not told, "\n".join(told)


OpenTab = Callable[..., Tab]  # takes the address of a viewer, and what a tab of the browser takes
