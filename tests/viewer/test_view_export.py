"""Static copies: one page or a folder, without a server, with nothing in them that a page could run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from making_views import Plan, make_view
from run_folders import make_evaluation, make_run

from qed.errors import QedError, UsageError
from qed.viewer import assets, copying, export
from qed.viewer.app import ENDPOINTS
from qed.viewer.bundle import bundle_modules, parse_module
from qed.viewer.copying import canonical_key, choose_steps
from qed.viewer.export import export_site
from qed.viewer.library import Library
from qed.viewer.params import Params

PLAN = Plan("first", steps=8, groups=3, answers=3, stats=False)
HOSTILE = "</script><script>window.hacked = 1</script><!--\u2028 & ' \" \\"
INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>qed</title>
<link rel="stylesheet" href="/style.css">
</head><body><main id="main"></main>
<script type="module" src="/static/entry.js"></script></body></html>
"""
ENTRY = """import { get, isStatic, listNotes } from "./api.js";

/** Show a reply. */
export async function start() {
  const reply = await get("runs", {});
  document.getElementById("main").textContent = `${isStatic()} ${reply.runs.length} ${listNotes().length} </script>`;
}

start();
"""


class Page(HTMLParser):
    """The scripts, styles and policy of a page, read as a browser reads them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.style = self.policy = ""
        self.open: tuple[str, dict[str, Any]] | None = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        found = dict(attrs)
        if tag == "script":
            self.scripts.append((found, ""))
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        self.open = tag, found

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        self.open = None

    def handle_data(self, data: str) -> None:
        """Add a text to its element."""
        if self.open and self.open[0] == "script":
            self.scripts[-1] = self.open[1], self.scripts[-1][1] + data
        if self.open and self.open[0] == "style":
            self.style += data


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small client in the place of the viewer's own."""
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text(INDEX)
    (static / "entry.js").write_text(ENTRY)
    for module in assets.STATIC.glob("*.js"):  # what api.js imports among them
        shutil.copy(module, static)
    for module in (assets, export):
        monkeypatch.setattr(module, "STATIC", static)
    for name in ("PAGE", "FOLDER"):
        monkeypatch.setattr(export, name, copying.Bounds(steps=4, groups=2, answers=1, problems=3, size=10_000_000))
    return static


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A run with hostile texts, and an evaluation."""
    home = tmp_path_factory.mktemp("home")
    folder = make_view(home / "runs", PLAN)
    (folder / "command.txt").write_text(HOSTILE)
    make_evaluation(home / "runs", "alone", share=0.5)
    return Library([home / "runs"], home / "cache")


def read_data(page: Path) -> dict[str, Any]:
    """What the element of the data holds."""
    (data,) = (text for found, text in Page(page).scripts if found.get("id") == "qed-data")
    content: dict[str, Any] = json.loads(data)
    return content


def read_page(out: Path) -> dict[str, Any]:
    """The replies of a page."""
    replies: dict[str, Any] = read_data(out)["replies"]
    return replies


def read_folder(out: Path) -> dict[str, Any]:
    """The replies of a folder, by way of its list of files."""
    files = read_data(out / "index.html")["files"]
    replies: dict[str, Any] = {}
    for path in (out / "data").iterdir():
        content = path.read_text(encoding="utf-8")
        assert "<" not in content
        for line in content.splitlines():
            call = re.fullmatch(r'qedReply\((".*"), JSON\.parse\((".*")\)\);', line)
            assert call is not None
            key = json.loads(call[1])
            assert out / files[key] == path
            replies[key] = json.loads(json.loads(call[2]))
    assert set(replies) == set(files)
    return replies


def test_what_a_list_names_first_can_be_opened(library: Library, tmp_path: Path, client: Path) -> None:
    export_site(library, tmp_path / "copy.html", [6], say_nothing)
    data = read_page(tmp_path / "copy.html")
    for kind in data["suspects?run=first"]["kinds"]:
        for item in [item for item in kind["items"][:2] if item["step"] == 6]:
            assert canonical_key("group", {"run": "first", "step": 6, "group": item["group"]}) in data
    (task, *_) = data["compare?a=first&b=first"]["tasks"]
    for change in (*task["gained"][:2], *task["lost"][:2]):
        where = {"run": "first", "step": task["step_b"], "task": task["task"], "decoding": task["decoding"]}
        assert canonical_key("group", {**where, "group": change["group_b"]}) in data


def say_nothing(line: str) -> None:
    """Print no line."""


def hash_text(text: str) -> str:
    """The source of a policy that allows a text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.usefixtures("client")
def test_a_page_allows_its_own_script_and_style_and_nothing_else(library: Library, tmp_path: Path) -> None:
    out = tmp_path / "copy.html"
    export_site(library, out, None, say_nothing)
    page = Page(out)
    (script,) = (text for found, text in page.scripts if "id" not in found)
    assert [sorted(found) for found, _ in page.scripts] == [["id", "type"], ["data-qed"]]
    parts = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert parts["default-src"] == "'none'"
    assert parts["script-src"] == hash_text(script)
    assert parts["style-src"] == hash_text(page.style)
    assert "unsafe" not in page.policy
    content = out.read_text(encoding="utf-8")
    assert "/style.css" not in content
    assert "window.hacked = 1</script>" not in content
    assert read_page(out)["run?run=first"]["command"] == HOSTILE


@pytest.mark.usefixtures("client")
def test_a_copy_holds_what_the_server_replies(library: Library, tmp_path: Path) -> None:
    for name, read in (("copy.html", read_page), ("copy", read_folder)):
        out = tmp_path / name
        export_site(library, out, None, say_nothing)
        data = read(out)
        for endpoint, params in (
            ("metrics", {"run": "first"}),
            ("suspects", {"run": "first"}),
            ("evaluations", {"run": "alone"}),
            ("evaluation", {"run": "alone", "step": 0, "task": "maths", "decoding": "sampled"}),
            ("log", {"run": "first", "attempt": 1, "name": "main.log"}),
            ("compare", {"a": "first", "b": "first"}),
            ("step", {"run": "first", "step": 6}),
            ("group", {"run": "first", "step": 6, "group": 0}),
            ("answer", {"run": "first", "step": 6, "group": 0, "answer": 0}),
            ("answer", {"run": "alone", "step": 0, "task": "maths", "decoding": "sampled", "group": 1, "answer": 0}),
        ):
            expected = ENDPOINTS[endpoint](library, Params(params))
            found = data[canonical_key(endpoint, params)]
            assert {**found, "seconds": 0} == {**json.loads(json.dumps(expected)), "seconds": 0}, endpoint
        assert data["run?run=first"]["steps"] == [5, 6, 7, 8]
        about = data["about?"]
        assert (about["static"], about["runs"]) == (True, 2)


@pytest.mark.usefixtures("client")
def test_chosen_steps_alone_are_copied_and_lead_to_each_other(library: Library, tmp_path: Path) -> None:
    said: list[str] = []
    export_site(library, tmp_path / "copy", [6, 8, 99], said.append)
    data = read_folder(tmp_path / "copy")
    assert data["run?run=first"]["steps"] == [6, 8]
    assert "first: the answers of 2 of 4 steps are included." in said
    assert "first: the answers of 2 of 4 steps are included." in data["about?"]["notes"]
    steps = [key for key in data if key.startswith("step?run=first")]
    assert steps == ["step?run=first&step=6", "step?run=first&step=8"]
    assert (data[steps[0]]["previous"], data[steps[0]]["next"]) == (None, 8)
    assert data["group?group=1&run=first&step=6"]["next"] is None


@pytest.mark.usefixtures("client")
def test_a_full_copy_says_what_it_leaves_out(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = copying.Bounds(steps=2, groups=1, answers=1, problems=2, size=200_000)
    monkeypatch.setattr(export, "PAGE", bounds)
    said: list[str] = []
    export_site(library, tmp_path / "copy.html", None, said.append)
    data = read_page(tmp_path / "copy.html")
    assert sum(len(json.dumps(reply)) for reply in data.values()) < 300_000
    assert len(data["problems?run=first"]["problems"]) == 2
    assert any("of the problems" in line or "problems seen most often" in line for line in said)
    assert "runs?" in data


@pytest.mark.usefixtures("client")
def test_only_an_earlier_copy_is_replaced(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "small")
    library = Library([tmp_path / "runs"], tmp_path / "cache")
    report, folder = tmp_path / "report.html", tmp_path / "precious"
    report.write_text("<p>mine</p>")
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    for out in (report, folder, tmp_path / "runs"):
        with pytest.raises(UsageError, match="not an earlier copy"):
            export_site(library, out, None, say_nothing)
    assert report.read_text() == "<p>mine</p>"
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    for out in (tmp_path / "copy.html", tmp_path / "copy"):
        export_site(library, out, None, say_nothing)
    make_evaluation(tmp_path / "runs", "alone", share=0.5, answers=1)
    for out, read in ((tmp_path / "copy.html", read_page), (tmp_path / "copy", read_folder)):
        export_site(Library([tmp_path / "runs"], tmp_path / "cache"), out, None, say_nothing)
        assert len(read(out)["runs?"]["runs"]) == 2
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for name, kind in (("file", "file"), ("folder.html", "folder")):
        with pytest.raises(UsageError, match=f"is a {kind}"):
            export_site(library, tmp_path / name, None, say_nothing)
    with pytest.raises(UsageError, match="cannot be written"):
        export_site(library, tmp_path / "file" / "copy", None, say_nothing)


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"run": "a/b c", "step": 3}, "group?run=a%2Fb%20c&step=3"),
        ({"step": 3, "decoding": "greedy", "run": "é"}, "group?decoding=greedy&run=%C3%A9&step=3"),
        ({"id": "half a pair \ud800", "task": ""}, "group?id=half%20a%20pair%20%EF%BF%BD"),
        ({"id": "a&b=c?#%+!'()*~-_."}, "group?id=a%26b%3Dc%3F%23%25%2B!'()*~-_."),
    ],
)
def test_keys_are_those_of_the_page(params: dict[str, Any], key: str) -> None:
    assert canonical_key("group", params) == key


def test_steps_are_spaced_evenly_with_both_ends() -> None:
    assert choose_steps(range(1, 2_001), None, 5) == [1, 501, 1_001, 1_500, 2_000]
    assert choose_steps([3, 5], None, 5) == [3, 5]
    assert choose_steps([3, 5, 7], [7, 9, 3], 1) == [3, 7]
    assert choose_steps([], None, 5) == []


MODULES = {
    "app.js": (
        'import { show, twice as double } from "./views/show.js";\nimport { A } from "./a.js";\nshow(double(A));\n'
    ),
    "a.js": "/** One. */\nexport const A = 21;\n",
    "views/show.js": (
        'import {\n  A,\n} from "../a.js";\n\nlet seen = null;\nexport function show(value) {\n  seen = value;\n'
        "  console.log(`${seen} ${A} </script>`);\n}\nexport async function wait() {}\nexport class Box {}\n"
        "export function twice(value) {\n  return 2 * value;\n}\n"
    ),
}


def test_a_bundle_runs_as_one_script(tmp_path: Path) -> None:
    script = bundle_modules(MODULES, "app.js")
    assert "import" not in script
    assert "export" not in script
    assert "</script" not in script
    if node := shutil.which("node"):
        (tmp_path / "bundle.cjs").write_text(script)
        done = subprocess.run([node, str(tmp_path / "bundle.cjs")], capture_output=True, text=True, check=True)
        assert done.stdout == "42 21 </script>\n"


def test_each_module_stands_once_and_after_what_it_imports() -> None:
    script = bundle_modules(MODULES, "app.js")
    places = [script.index(f"// {name}\n") for name in ("views/show.js", "a.js", "app.js")]
    assert places[1] < places[0] < places[2]
    assert script.count("// a.js\n") == 1
    assert parse_module("views/show.js", MODULES["views/show.js"]).exports == ["show", "wait", "Box", "twice"]


@pytest.mark.parametrize(
    "source",
    [
        'import value from "./a.js";',
        'import * as all from "./a.js";',
        'import "./a.js";',
        'import { A } from "a";',
        "import { A } from './a.js';",
        'import { "x y" as A } from "./a.js";',
        "export default function f() {}",
        "export { A };",
        'export { A } from "./a.js";',
        'export * from "./a.js";',
        "export let count = 0;",
        "export const { a, b } = f();",
        'const module = await import("./a.js");',
        "await f();",
        "const here = import.meta.url;",
        'const text = "<!-- comment";',
    ],
)
def test_unknown_forms_are_refused(source: str) -> None:
    with pytest.raises(QedError, match=r"app\.js has"):
        bundle_modules({"app.js": f"{source}\n", "a.js": MODULES["a.js"]}, "app.js")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"app.js": 'import { B } from "./a.js";\n', "a.js": MODULES["a.js"]}, "does not export it"),
        ({"app.js": 'import { B } from "./b.js";\n'}, "there is no such module"),
        ({"app.js": 'import { B } from "../b.js";\n'}, "there is no such module"),
        (
            {"app.js": 'import { B } from "./b.js";\n', "b.js": 'import { C } from "./app.js";\nexport const B = 1;\n'},
            r"in a circle: app\.js → b\.js → app\.js",
        ),
    ],
)
def test_imports_that_lead_nowhere_are_refused(modules: dict[str, str], message: str) -> None:
    with pytest.raises(QedError, match=message):
        bundle_modules(modules, "app.js")


@pytest.mark.browser
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("name", ["copy.html", "copy"])
def test_a_copy_opens_from_the_file_system(
    library: Library, tmp_path: Path, open_tab: Callable[[str], Any], name: str
) -> None:
    out = tmp_path / name
    export_site(library, out, None, say_nothing)
    tab = open_tab((out if out.is_file() else out / "index.html").as_uri())
    tab.page.goto(tab.home)
    tab.page.wait_for_function("document.getElementById('main').textContent !== ''")
    notes = len(read_data(out if out.is_file() else out / "index.html")["notes"])
    assert tab.page.text_content("#main") == f"true 2 {notes} </script>"
    assert tab.page.evaluate("window.hacked") is None
    assert html.unescape(tab.page.title()) == "qed"
