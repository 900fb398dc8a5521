"""The files of the page: its HTML, styles and scripts, all from this package."""

from __future__ import annotations

from pathlib import Path

from qed.report.style import DARK, LIGHT, STYLE
from qed.viewer.params import Refused

STATIC = Path(__file__).parent / "static"
# A theme that the reader chose overrides that of the system, except in print.
THEMES = f"""
:root[data-theme="light"] {{ color-scheme: light; {LIGHT} }}
:root[data-theme="dark"] {{ color-scheme: dark; {DARK} }}
@media print {{ :root[data-theme] {{ color-scheme: light; {LIGHT} }} }}
"""
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}


def read_asset(name: str) -> tuple[bytes, str]:
    """Return a file of the page and its media type.

    Args:
        name: the path of the file within `static/`.

    Raises:
        Refused: there is no such file.
    """
    if any(not 32 < ord(sign) < 127 or sign == "\\" for sign in name) or {"", ".", ".."} & set(name.split("/")):
        raise Refused(404, "There is no such file.")
    path = (STATIC / name).resolve()
    if not path.is_relative_to(STATIC.resolve()) or path.suffix not in KINDS or not path.is_file():
        raise Refused(404, "There is no such file.")
    return path.read_bytes(), KINDS[path.suffix]


def build_page() -> bytes:
    """Return the page with links to all of its scripts, so that a browser loads them in parallel."""
    names = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js"))
    links = "".join(f'<link rel="modulepreload" href="/static/{name}">\n' for name in names)
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    return page.replace("</head>", f"{links}</head>").encode()


def build_style() -> bytes:
    """Return the style of the report, followed by the chosen theme and the style of the viewer."""
    own = [path.read_text(encoding="utf-8") for path in sorted((STATIC / "styles").glob("*.css"))]
    return "\n".join([STYLE, THEMES, *own]).encode()
