"""Loads user code: a file, also one inside a package, or a module by its dotted name.

A file inside a package is loaded within that package, so that its relative imports work, but the packages'
`__init__.py` run only if something in them is requested: those of large libraries import much that a single file does
not need. Folders that the author would have on sys.path are appended to it, where they cannot hide other modules.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

from qed.errors import UsageError

# PyPI names of packages that are imported by another name.
PACKAGES = {
    "antlr4": "antlr4-python3-runtime",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dotenv": "python-dotenv",
    "latex2sympy2_extended": "latex2sympy2-extended",
    "math_verify": "math-verify",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "swift": "ms-swift",
    "yaml": "pyyaml",
}

HOME = Path(__file__).parents[1]
PREFIX = "qed_user_"  # of the module names of imported files and their packages


def require_callable(what: str, function: Any, form: str, count: int) -> None:
    """Reject what cannot be called with `count` arguments, before a call fails far from the file.

    Raises:
        UsageError: it is not a function, or takes arguments other than `form`.
    """
    if not callable(function):
        raise UsageError(f"{what} must be a function {form}, not {function!r}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Python does not know the parameters of some built-ins
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        raise UsageError(f"{what}{signature} is called with the arguments {form}: {error}.") from None


def load_file(path: Path) -> ModuleType:
    """Import a file.

    Raises:
        UsageError: the file cannot be imported; the message says why, and names a missing package.
    """
    path = path.resolve()
    packages = _list_packages(path)
    root = path.parents[len(packages)]
    _append_to_path(root if packages else path.parent)
    # Files of the same name in different folders need different module names.
    name = f"{PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if packages:
        name = _enter_packages(root, packages) + ("" if path.name == "__init__.py" else f".{path.stem}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as a Python module.")
    module = importlib.util.module_from_spec(spec)
    # The dataclass decorator looks the module up by name in sys.modules.
    sys.modules[module.__name__] = module
    try:
        _import(str(path), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    except UsageError:
        del sys.modules[module.__name__]
        raise
    # A package may replace itself with an object that imports lazily.
    return sys.modules[module.__name__]


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name; the current folder is on the path.

    Raises:
        UsageError: there is no such module, or it cannot be imported.
    """
    _append_to_path(Path.cwd())
    module: ModuleType = _import(name, lambda: importlib.import_module(name))
    return module


def list_files(name: str) -> list[Path]:
    """List the file of user code, given by path or dotted name, and the files of its folder that it imports.

    For an installed package, list only the file itself.
    """
    waiting = [Path(name)] if name.endswith(".py") else _find_module_file(name)
    found: list[Path] = []
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.append(file)
        if not str(file.resolve()).startswith(_list_libraries()):
            waiting += _list_imported(file)
    return found


@cache
def _list_libraries() -> tuple[str, ...]:
    """List the folders of code that is not the user's: first qed's, then those of Python and of installed packages."""
    return tuple(os.path.join(folder, "") for folder in (str(HOME), get_path("stdlib"), get_path("purelib")))


def _find_module_file(name: str) -> list[Path]:
    _append_to_path(Path.cwd())
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        return [Path(spec.origin)] if spec is not None and spec.has_location and spec.origin else []
    return []


def _list_imported(file: Path) -> Iterator[Path]:
    """List where the modules that a file imports would be in its folder; most of them are elsewhere."""
    tree = ast.parse("")
    with suppress(SyntaxError, ValueError):
        tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, folder = [alias.name for alias in node.names], file.parent
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
            above = file.resolve().parents
            folder = above[min(node.level, len(above)) - 1] if node.level > 1 else file.parent
        else:
            continue
        for name in filter(None, names):
            place = folder.joinpath(*name.split("."))
            yield from (place.with_suffix(".py"), place / "__init__.py")


def find_users_line(error: BaseException) -> str:
    """Return the innermost line of user code, called by qed, that an error has passed through; empty if there is none.

    A mistake in user code often shows only in the code that it calls.
    """
    frames, libraries = traceback.extract_tb(error.__traceback__), _list_libraries()
    first = next((place for place, frame in enumerate(frames) if frame.filename.startswith(libraries[0])), len(frames))
    # Code generated by a dataclass has no source line.
    own = [frame for frame in frames[first:] if frame.line and not frame.filename.startswith(libraries)]
    return f"line {own[-1].lineno} of {own[-1].filename}" if own else ""


def _import(shown: str, load: Callable[[], Any]) -> Any:
    """Return the result of `load` in the same working folder; turn its errors into UsageErrors that explain them."""
    try:
        here = os.getcwd()
    except OSError:  # the folder has been deleted
        here = ""
    try:
        return load()
    except SyntaxError as error:
        where = f"{error.filename or shown}, line {error.lineno}"
        raise UsageError(f"{where}: {error.msg}.") from error
    except ModuleNotFoundError as error:
        raise UsageError(_explain_missing(shown, error)) from error
    except SystemExit as error:
        raise UsageError(
            f"{shown} cannot be imported: it ends the program (sys.exit). Put that under "
            'if __name__ == "__main__":, which an import skips.'
        ) from error
    except Exception as error:
        raise UsageError(f"{shown} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        if here:  # a file that goes to another folder would take the run and relative paths with it
            os.chdir(here)


def _explain_missing(shown: str, error: ModuleNotFoundError) -> str:
    """Explain a missing module: the requested one, or one that it imports."""
    missing = error.name or ""
    if not missing:
        return f"{shown} cannot be imported: {error}."
    if shown == missing or shown.startswith(f"{missing}."):
        parent, _, last = shown.rpartition(".")
        hint = f" If {last} is a function of {parent}, write {parent}:{last}." if parent and missing == shown else ""
        return f"There is no module {missing}. Put its folder on PYTHONPATH, or install its package.{hint}"
    if missing.startswith(PREFIX):
        return f"{shown} cannot be imported: its package has no module {missing.partition('.')[2]}."
    package, _, rest = missing.partition(".")
    if rest and _is_installed(package):
        return f"{shown} cannot be imported: the package {package} has no module {rest}."
    return f"{shown} needs the package {package}, which is not installed: pip install {PACKAGES.get(package, package)}"


def _is_installed(package: str) -> bool:
    """Return whether there is a package of this name; a folder without Python files is none."""
    known = sys.modules.get(package)
    spec = importlib.util.find_spec(package) if known is None else known.__spec__
    return spec is not None and spec.origin is not None


def _append_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _list_packages(path: Path) -> list[str]:
    """Return the names of the packages around a file, the outermost first."""
    names: list[str] = []
    for folder in path.parents:
        if not (folder / "__init__.py").is_file() or not folder.name.isidentifier():
            break
        names.insert(0, folder.name)
    return names


def _enter_packages(root: Path, names: list[str]) -> str:
    """Register the packages around a file in sys.modules; return the name of the innermost.

    They keep their usual names unless another package of that name is already imported.
    """
    top = sys.modules.get(names[0])
    if top is None:
        sys.meta_path.insert(0, PackageFinder(names[0], root))
    elif str(root / names[0]) not in list(getattr(top, "__path__", [])):
        address = PREFIX + hashlib.sha256(str(root).encode()).hexdigest()[:8]
        sys.modules[address] = LazyPackage(address)
        sys.modules[address].__path__ = [str(root)]
        sys.meta_path.insert(0, PackageFinder(names[0], root))
        names = [address, *names]
    full = ".".join(names)
    importlib.import_module(full)
    return full


class PackageFinder(MetaPathFinder, Loader):
    """Finds the packages around a user's file, without running their `__init__.py`.

    Args:
        name: name of the outermost package.
        root: folder that contains it.
    """

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.root = name, root

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Return the spec of a package; return None for other modules, to leave them to Python."""
        parent, _, last = fullname.rpartition(".")
        inside = isinstance(sys.modules.get(parent), LazyPackage) and path
        folder = Path(path[0]) / last if inside and path else self.root / last
        if not (inside or fullname == self.name) or not (folder / "__init__.py").is_file():
            return None
        spec = ModuleSpec(fullname, self, origin=str(folder / "__init__.py"), is_package=True)
        spec.submodule_search_locations = [str(folder)]
        spec.has_location = True  # gives the package its __file__
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty package."""
        return LazyPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, because the package runs its file only when needed."""


class LazyPackage(ModuleType):
    """A package whose `__init__.py` runs on access to an attribute that is not a module of its folder."""

    def __getattr__(self, name: str) -> Any:
        """Import a module of the folder, or run `__init__.py` and look up the attribute there."""
        own = self.__dict__
        if name.startswith("__"):
            raise AttributeError(name)
        folder = Path(own["__path__"][0])
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
            return importlib.import_module(f"{own['__name__']}.{name}")
        if not own.get("_ran"):
            own["_ran"] = True
            SourceFileLoader(own["__name__"], str(folder / "__init__.py")).exec_module(self)
        # Some packages replace themselves in sys.modules with an object that imports lazily.
        module = sys.modules[own["__name__"]]
        if module is not self:
            return getattr(module, name)
        if name in own:
            return own[name]
        raise AttributeError(f"module {own['__name__']} has no attribute {name}")
