"""Write a static copy of the viewer that needs no server: one page, or a folder with a page and its data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from qed.errors import UsageError
from qed.viewer.assets import STATIC, build_style
from qed.viewer.bundle import bundle_modules
from qed.viewer.copying import FOLDER, PAGE, Copy
from qed.viewer.library import Library

APP = "app.js"  # the bundle in a folder
MARK = "qed-view.json"  # marks a folder that this module wrote, and so may replace
DATA = "data"
READ_BYTES = 1 << 16  # of a page, to find its generator
CHUNK = 1 << 19  # bytes of replies in one data file of a folder
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src data:; base-uri 'none'; form-action 'none'"
)
OWN = "'self'"  # also covers files next to a page that is opened from the file system
GENERATOR = '<meta name="generator" content="qed view --export">'
LINK = re.compile(r'<link rel="stylesheet" href="/style\.css"\s*/?>')
SCRIPT = re.compile(r'<script type="module" src="/static/([\w/]+\.js)"></script>\n?')
END = re.compile(r"</body>")
# Characters that could end a script element, or that older JavaScript parsers treat as the end of a line.
ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def export_site(library: Library, out: Path, steps: Sequence[int] | None, say: Callable[[str], None]) -> None:
    """Write a static copy of the runs.

    Args:
        library: the runs.
        out: a page if it ends in `.html`, else a folder.
        steps: the training steps whose answers are copied; None for a few of each run.
        say: prints a line.

    Raises:
        UsageError: `out` cannot be written, or exists and is not an earlier copy.
    """
    is_page = out.suffix.lower() in (".html", ".htm")
    copy = Copy(library, PAGE if is_page else FOLDER, steps)
    try:
        _require_replaceable(out, is_page)
        size = _write_page(copy, out) if is_page else _write_folder(copy, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}.") from error
    for note in copy.list_notes():
        say(note)
    say(f"{out}: {len(copy.keys):,} pages of data, {size / 1e6:.1f} MB. Open {out if is_page else out / 'index.html'}.")


def _require_replaceable(out: Path, is_page: bool) -> None:
    """Refuse an existing path that is not an earlier copy."""
    if not out.exists():
        return
    if is_page != out.is_file():
        kind = "folder" if is_page else "file"
        raise UsageError(f"{out} is a {kind}. The name of a page must end in .html, that of a folder must not.")
    if is_page:
        with out.open("rb") as file:
            is_copy = GENERATOR.encode() in file.read(READ_BYTES)
    else:
        is_copy = (out / MARK).is_file() or not any(out.iterdir())
    if not is_copy:
        raise UsageError(f"{out} exists and is not an earlier copy. Choose another name, or remove it.")


def _write_page(copy: Copy, out: Path) -> int:
    """Write one page that contains everything, and return its size."""
    replies = [f"{json.dumps(key)}:{content}" for key, content in _iterate(copy)]
    data = f'{{"replies":{{{",".join(replies)}}},"notes":{json.dumps(copy.list_notes())}}}'
    script, style = build_script(), build_style().decode("utf-8")
    if "</style" in style.lower():
        raise UsageError("A style sheet of the viewer contains the end tag of a style element.")
    policy = POLICY.format(script=hash_source(script), style=hash_source(style))
    head = f'{_write_policy(policy)}<style data-qed="style">{style}</style>'
    return _write_text(out, build_page(head + _write_data(data), f'<script data-qed="app">{script}</script>'))


def _write_folder(copy: Copy, out: Path) -> int:
    """Write a page, its style and script, and data files that it loads on demand; return their total size.

    The data files are scripts, because a page opened from the file system can load nothing else.
    """
    shutil.rmtree(out / DATA, ignore_errors=True)
    _write_text(out / MARK, '{"written": "qed view --export"}\n')
    files: dict[str, str] = {}
    size = 0
    for number, chunk in enumerate(_split_chunks(_iterate(copy))):
        name = f"{DATA}/{number}.js"
        files |= dict.fromkeys((key for key, _ in chunk), name)
        # Parsed from a string, not a literal, so that no key of the data (such as __proto__) is special to the script.
        calls = (f"qedReply({json.dumps(key)}, JSON.parse({json.dumps(content)}));\n" for key, content in chunk)
        size += _write_text(out / name, escape_json("".join(calls)))
    size += _write_text(out / APP, build_script())
    size += _write_text(out / "style.css", build_style().decode("utf-8"))
    policy = POLICY.format(script=OWN, style=OWN)
    data = _write_data(json.dumps({"replies": {}, "files": files, "notes": copy.list_notes()}))
    head = f'{_write_policy(policy)}<link rel="stylesheet" href="style.css">{data}'
    page = build_page(head, f'<script src="{APP}" data-qed="app"></script>')
    return size + _write_text(out / "index.html", page)


def _write_data(content: str) -> str:
    """Return the data element, which api.js reads; it is in the head, because frame.js fills the body."""
    return f'<script type="application/json" id="qed-data">{escape_json(content)}</script>'


def _iterate(copy: Copy) -> Iterator[tuple[str, str]]:
    """Yield all replies as JSON; the one that describes the copy comes last."""
    for key, content in copy.collect():
        yield key, content.decode("utf-8")
    key, content = copy.describe()
    yield key, content.decode("utf-8")


def _split_chunks(replies: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Split replies into lists of about CHUNK bytes."""
    chunk: list[tuple[str, str]] = []
    size = 0
    for key, content in replies:
        chunk.append((key, content))
        size += len(content)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def escape_json(text: str) -> str:
    """Escape what could end a script element in JSON; such characters occur only in its strings."""
    return text.translate(ESCAPED)


def hash_source(content: str) -> str:
    """Return the source of a Content-Security-Policy that allows exactly this script or style."""
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def build_page(head: str, tail: str) -> str:
    """Return the viewer's page with its links to the server replaced.

    Args:
        head: replaces the link to the style.
        tail: replaces the script; it is at the end of the page, after the elements that it needs.
    """
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    for pattern, content in ((LINK, head), (SCRIPT, ""), (END, f"{tail}</body>")):
        if len(pattern.findall(page)) != 1:
            raise UsageError(f"The viewer's index.html must contain {pattern.pattern} exactly once.")
        page = pattern.sub(lambda _, content=content: content, page)  # type: ignore[misc]
    return page


def build_script() -> str:
    """Return the module that the viewer's page loads, with everything it imports, as one script."""
    found = SCRIPT.search((STATIC / "index.html").read_text(encoding="utf-8"))
    if found is None:
        raise UsageError(f"The viewer's index.html must contain {SCRIPT.pattern} exactly once.")
    return bundle_modules(read_modules(), found[1])


def read_modules() -> dict[str, str]:
    """Return the viewer's modules by their paths."""
    return {
        path.relative_to(STATIC).as_posix(): path.read_text(encoding="utf-8") for path in sorted(STATIC.rglob("*.js"))
    }


def _write_policy(policy: str) -> str:
    return f'{GENERATOR}<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'


def _write_text(path: Path, content: str) -> int:
    """Write a file atomically and return its size.

    Raises:
        OSError: it cannot be written.
    """
    data = content.encode("utf-8", "backslashreplace")
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return len(data)
