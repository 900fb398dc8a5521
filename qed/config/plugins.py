"""Load plugins by name: `--reward boxed` is `rewards/boxed.py`, and a path to a .py file is user code.

A shelf is a folder of plugins, its leaves. Listing one reads the first docstring line of each file without importing.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from qed.config.user_code import load_file, load_module
from qed.errors import UsageError, suggest_nearest

HOME = Path(__file__).parents[1]
# The folder of each shelf, and the name that each of its leaves defines; an algorithm defines a subclass instead.
SHELVES = {
    "algorithms": ("algorithms", ""),
    "commands": ("cli/commands", "run"),
    "environments": ("environments", "environment"),
    "prompts": ("data/prompts", "REWARD"),
    "rewards": ("rewards", "reward"),
    "samplers": ("sampling", "make"),
    "tasks": ("data/tasks", "PROMPT"),
    "trackers": ("trackers", "make"),
}


def list_leaves(name: str, only: str | None = None) -> dict[str, str]:
    """List the leaves of a shelf, such as `rewards`, each with the first line of its docstring.

    A leaf is a file or a package that defines the name that the shelf requires; helper files in the folder do not.
    `only` is the name of the one leaf that is looked for.
    """
    folder, required = SHELVES[name]
    leaves = {}
    for entry in sorted(os.scandir(HOME / folder), key=lambda entry: entry.name):
        stem, suffix = os.path.splitext(entry.name)
        if only is not None and stem != only:
            continue
        file = os.path.join(entry.path, "__init__.py") if not suffix and entry.is_dir() else entry.path
        if stem.startswith("_") or not file.endswith(".py") or not os.path.isfile(file):
            continue
        about = _describe_leaf(file, os.stat(file).st_mtime_ns, required)
        if about is not None:
            leaves[stem] = about
    return leaves


@functools.cache
def _describe_leaf(file: str, changed: int, required: str) -> str | None:
    """Return the first line of a leaf's docstring, None for another file; `changed` is the time of its last change."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    is_leaf = required in _find_defined_names(tree) if required else _has_algorithm(tree)
    return (ast.get_docstring(tree) or "").split("\n", 1)[0] if is_leaf else None


def _find_defined_names(tree: ast.Module) -> set[str]:
    """Find the names that a module binds at its top level."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.Assign(targets=targets):
                names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def _has_algorithm(tree: ast.Module) -> bool:
    """Whether a module defines a dataclass that is derived from another class."""
    return any(isinstance(node, ast.ClassDef) and node.bases and node.decorator_list for node in tree.body)


def is_users_own(name: str) -> bool:
    """Return whether a name refers to code outside of qed: a path to a .py file, or a dotted module name."""
    return name.endswith(".py") or ("." in name and "/" not in name and all(p.isidentifier() for p in name.split(".")))


def check_leaf(shelf_name: str, name: str) -> None:
    """Raise a UsageError if the name is neither a leaf of the shelf nor user code."""
    if is_users_own(name):
        if name.endswith(".py") and not Path(name).is_file():
            raise UsageError(f"There is no file {name} to load as one of the {shelf_name}.")
        return
    if not list_leaves(shelf_name, only=name.replace("-", "_")):
        leaves = list_leaves(shelf_name)
        choices = ", ".join(leaves)
        raise UsageError(
            f"There is no '{name}' among the {shelf_name}.{suggest_nearest(name, leaves)} There are: {choices}."
        )


def load_leaf(shelf_name: str, name: str) -> ModuleType:
    """Import a leaf by its name, or user code by dotted module name or path."""
    check_leaf(shelf_name, name)
    if name.endswith(".py"):
        return load_file(Path(name))
    if is_users_own(name):
        return load_module(name)
    folder, _ = SHELVES[shelf_name]
    return importlib.import_module(f"qed.{folder.replace('/', '.')}.{name.replace('-', '_')}")


def load_algorithm(name: str) -> type[Any]:
    """Import an algorithm by its name: the only class with a `loss` that its file defines.

    Raises:
        UsageError: the file defines none or several.
    """
    module = load_leaf("algorithms", name)
    classes = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and thing.__module__ == module.__name__ and hasattr(thing, "loss")
    ]
    if len(classes) != 1:
        raise UsageError(
            f"{name} must define exactly one subclass of qed.algorithms.base.Algorithm, not {len(classes)}."
        )
    return classes[0]
