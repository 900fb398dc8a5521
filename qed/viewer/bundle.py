"""Bundle the viewer's ES modules into one classic script, which works in a page without a server.

Only the form in which these modules are written is supported: named imports at the top of a module, and `export` before
a function, a class or a constant. Everything else is refused, because a wrong bundle would fail only in a browser.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from qed.errors import QedError

IMPORT = re.compile(r'^import\s*\{([^{}]*)\}\s*from\s*"(\.\.?/[^"\n]+\.js)";[ \t]*$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) ([A-Za-z_$][\w$]*))", re.MULTILINE)
NAMES = re.compile(r"([A-Za-z_$][\w$]*)(?:\s+as\s+([A-Za-z_$][\w$]*))?")
# The rest of a module must contain none of these.
UNKNOWN = re.compile(r"^\s*(?:import|export)\b[^\n]*|\bimport\s*\(|\bimport\.meta\b|^await\b[^\n]*|<!--", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """A parsed module: its imports as (file, name there, name here), its exported names, and its rewritten body."""

    imports: list[tuple[str, str, str]]
    exports: list[str]
    body: str


def bundle_modules(sources: Mapping[str, str], entry: str) -> str:
    """Return one classic script of a module and everything it imports.

    Each module becomes a function that runs once, after the modules that it imports, and returns its exports.

    Args:
        sources: the text of each module by its path.
        entry: the path of the module that starts the page.

    Raises:
        QedError: a module has an unsupported form, imports something that does not exist, or imports itself indirectly.
    """
    modules: dict[str, Module] = {}
    order: list[str] = []
    _visit(entry, sources, modules, order, ())
    numbers = {name: number for number, name in enumerate(order)}
    parts = [_write_module(name, modules[name], numbers) for name in order]
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"
    # The text must not end the script element that may contain it.
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)


def _visit(
    name: str, sources: Mapping[str, str], modules: dict[str, Module], order: list[str], above: tuple[str, ...]
) -> None:
    """Parse a module and those that it imports, and append each to `order` after its imports."""
    if name in above:
        circle = " → ".join([*above[above.index(name) :], name])
        raise QedError(f"The modules import each other in a circle: {circle}. Move what they share to another module.")
    if name in modules:
        return
    if name not in sources:
        raise QedError(f"{above[-1] if above else 'The page'} imports {name}, but there is no such module.")
    module = parse_module(name, sources[name])
    for file, _, _ in module.imports:
        _visit(file, sources, modules, order, (*above, name))
    for file, wanted, _ in module.imports:
        if wanted not in modules[file].exports:
            raise QedError(f"{name} imports {wanted} from {file}, which does not export it.")
    modules[name] = module
    order.append(name)


def parse_module(name: str, source: str) -> Module:
    """Parse the imports and exports of a module.

    Args:
        name: the path of the module.
        source: the text of the module.

    Raises:
        QedError: the module has an unsupported form.
    """
    source = source.replace("\r\n", "\n")
    imports: list[tuple[str, str, str]] = []
    for match in IMPORT.finditer(source):
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
        imports += [(file, *pair) for pair in _parse_names(name, match[1])]
    exports = [match[1] for match in EXPORT.finditer(source)]
    body = EXPORT.sub("", IMPORT.sub("", source))
    if unknown := UNKNOWN.search(body):
        raise QedError(f"{name} has a form that the bundler does not support: {unknown[0].strip()[:80]}")
    return Module(imports, exports, body.strip("\n"))


def _parse_names(name: str, content: str) -> list[tuple[str, str]]:
    """Parse the names between the braces of an import."""
    pairs: list[tuple[str, str]] = []
    for part in filter(None, (part.strip() for part in content.split(","))):
        match = NAMES.fullmatch(part)
        if match is None:
            raise QedError(f"{name} has an import that the bundler does not support: {part[:80]}")
        pairs.append((match[1], match[2] or match[1]))
    return pairs


def _write_module(name: str, module: Module, numbers: Mapping[str, int]) -> str:
    """Write a module as a function."""
    wanted: dict[str, list[str]] = {}
    for file, there, here in module.imports:
        wanted.setdefault(file, []).append(there if there == here else f"{there}: {here}")
    taken = [f"const {{ {', '.join(names)} }} = module{numbers[file]};" for file, names in wanted.items()]
    given = f"return {{ {', '.join(module.exports)} }};"
    lines = [f"// {name}", f"const module{numbers[name]} = (() => {{", *taken, module.body, given, "})();", ""]
    return "\n".join(lines)
