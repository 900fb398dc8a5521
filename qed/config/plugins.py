"""Loads plugins by name: `--reward boxed` is `rewards/boxed.py`, and a path to a .py file is user code.

A shelf is a folder of plugins, its leaves. Listing it reads each file's first docstring line without importing it.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib
import inspect
import os
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from qed.config.user_code import HOME, load_file, load_module, require_callable
from qed.errors import UsageError, suggest_nearest

NEAR = 0.8  # similarity above which a method's name is considered a misspelling of another
# The folder of each shelf, and the name that each leaf must define; an algorithm defines a subclass instead.
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

    A leaf is a file or package that defines the name required by the shelf, unlike helper files in the folder.
    `only` restricts the search to the leaf of this name.
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
    """Return the first line of a leaf's docstring, None for other files; `changed` is the modification time."""
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
    """Return whether a module defines a dataclass derived from another class."""
    return any(isinstance(node, ast.ClassDef) and node.bases and node.decorator_list for node in tree.body)


def is_users_own(name: str) -> bool:
    """Return whether a name refers to user code: a path to a .py file, or a dotted module name."""
    return name.endswith(".py") or ("." in name and "/" not in name and all(p.isidentifier() for p in name.split(".")))


def spell_leaf(name: str) -> str:
    """Return the name of a leaf as its file spells it, with _ for -, or the name of user code unchanged."""
    return name if is_users_own(name) else name.replace("-", "_")


def check_leaf(shelf_name: str, name: str) -> None:
    """Raise a UsageError if the name is neither a leaf of the shelf nor user code."""
    if is_users_own(name):
        if name.endswith(".py") and not Path(name).is_file():
            place = "" if Path(name).is_absolute() else f" in {Path.cwd()}"
            raise UsageError(f"There is no file {name}{place} to load as one of the {shelf_name}.")
        return
    if not list_leaves(shelf_name, only=name.replace("-", "_")):
        leaves = list_leaves(shelf_name)
        choices = ", ".join(leaves)
        meant = suggest_nearest(name, leaves)
        if shelf_name == "tasks" and Path(name).is_dir():
            meant = f" The folder of this name is ./{name}."
        raise UsageError(f"There is no '{name}' among the {shelf_name}.{meant} There are: {choices}.")


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
    """Import an algorithm by name: the only class with a `loss` that its file defines.

    Raises:
        UsageError: the file defines no such class, or several.
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
    _require_read(classes[0], name)
    return classes[0]


def _require_read(kind: type[Any], name: str) -> None:
    """Reject an algorithm of which some code would be silently ignored.

    Raises:
        UsageError: it is not a dataclass, or has a default or a method that nothing uses.
    """
    own, inherited = vars(kind), {key for base in kind.__mro__[1:] for key in dir(base)}
    if "__dataclass_params__" not in own:
        raise UsageError(
            f"{name}: {kind.__name__} needs the decorator @dataclass(frozen=True); without it, its fields would not be "
            "settings, and its defaults would be those of its base class."
        )
    settings = {field.name for field in dataclasses.fields(kind)}
    for key in sorted(settings & own.keys() - inspect.get_annotations(kind).keys()):
        raise UsageError(
            f"{name}: {kind.__name__}.{key} hides the setting algorithm.{key}, which would keep its old default. Write "
            f"{key}: TYPE = ... to change the default, or rename a method."
        )
    functions = {key: value for key, value in own.items() if isinstance(value, FunctionType)}
    own_methods = {key for key in functions if not key.startswith("__")}  # the decorator adds others
    for key in own_methods & inherited:
        _require_parameters(f"{name}: {kind.__name__}.{key}", functions[key], getattr(super(kind, kind), key, None))
    called = {used for function in functions.values() for used in function.__code__.co_names}
    hooks = [key for key in inherited if not key.startswith("_")]
    for key in functions.keys() - inherited - called:
        near = difflib.get_close_matches(key, hooks, 1, NEAR)
        if near and not key.startswith("_"):
            raise UsageError(
                f"{name}: {kind.__name__}.{key} is a method that nothing calls. Did you mean {near[0]}? Names that "
                "begin with _ are not checked."
            )


def _require_parameters(what: str, function: FunctionType, inherited: Any) -> None:
    """Reject a method that cannot be called like the one that it overrides."""
    if not isinstance(inherited, FunctionType):
        return
    parameters = inspect.signature(inherited).parameters.values()
    given = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    require_callable(what, function, f"({', '.join(given)})", len(given))
