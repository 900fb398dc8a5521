"""docs/viewer.md says what tests hold; and the package holds all that the page needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "viewer.md"
STATIC = Path(qed.__file__).parent / "viewer" / "static"
NAMED = re.compile(r"`(test_\w+)`")


def test_each_claim_of_the_table_names_a_test() -> None:
    """A feature that is there is held by a test that exists."""
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == 29
    for row in rows:
        name, mark = row.split("|")[2:4]
        tests = NAMED.findall(row)
        assert bool(tests) == (mark.strip() == "✓"), name
        for test in tests:
            assert f"def {test}(" in sources, f"{name}: there is no {test}"


def test_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[([^\]]+)\]\(([\w./-]+\.png)\)", PAGE.read_text(encoding="utf-8"))
    assert len(pictures) >= 5
    for about, name in pictures:
        assert len(about) > 15, f"{name} needs a description"
        assert (PAGE.parent / name).stat().st_size <= 150_000, name


def test_the_viewer_needs_no_build() -> None:
    """Its page is made of files as they are served: nothing is minified, generated, or loaded from elsewhere."""
    files = [file for file in STATIC.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} <= {".html", ".js", ".css", ".svg"}
    assert not list(ROOT.glob("package*.json"))
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert max(map(len, text.splitlines())) <= 300, file.name
        assert not re.search(r"(?:src|href|url|import|from)\s*[=(]?\s*[\"']?(?:https?:)?//", text), file.name


@pytest.mark.parametrize(
    "word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
)
def test_scripts_make_no_elements_of_text(word: str) -> None:
    for file in STATIC.rglob("*.js"):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert word not in code.replace("isFunction(", ""), file.name
