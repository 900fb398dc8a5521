"""Reads YAML files as layers: values stay text, with file and line, until the type of their setting is known.

PyYAML composes the tree without constructing objects, so no file can run code or turn `no` into a boolean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import yaml

import qed
from qed.config.task_names import DATA_SUFFIXES
from qed.config.values import Raw, read_node
from qed.config.yaml_text import compose_yaml
from qed.errors import UsageError, suggest_nearest

SUFFIXES = (".yaml", ".yml")
COLUMN_MAP = "data.map"  # the setting that may be a mapping
MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Entry:
    """A setting in a layer; `shown` is its key as written."""

    key: str
    raw: Raw
    shown: str


Layer = list[Entry]


def find_shipped_configs() -> Path:
    """Return the folder of the configurations shipped with qed, in the installed package or in a checkout."""
    inside = Path(qed.__file__).parent / "configs"
    return inside if inside.is_dir() else inside.parent.parent / "configs"


def list_config_folders() -> tuple[Path, Path]:
    """Return the folders that are searched for a configuration by name: the user's before qed's."""
    return Path("configs"), find_shipped_configs()


def list_configs(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the configurations in folders by name; for equal names, the one in the first folder."""
    found: dict[str, Path] = {}
    for folder in folders:
        for file in sorted(folder.glob("*")):
            if file.suffix in SUFFIXES and file.is_file():
                found.setdefault(file.stem, file)
    return found


def read_title(file: Path) -> str:
    """Return the comment in the first line of a configuration up to its first colon or full stop."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        first = lines.readline().strip()
    return re.split(r"[.:](?:\s|$)", first.lstrip("# "))[0] if first.startswith("#") else ""


def find_config(name: str, folders: tuple[Path, ...] = ()) -> Path:
    """Find the file of a configuration: a path, or a bare name in ./configs and then among those shipped with qed.

    With `folders`, search only those, and not the current folder.
    """
    path, bare = Path(name), os.path.basename(name) == name
    places = folders or (list_config_folders() if bare else (path.parent,))
    # A bare word is a name first, because the current folder may contain an unrelated file of that name.
    files = [path] if not folders and (not bare or path.suffix in SUFFIXES) else []
    files += [place / f"{path.name}{suffix}" for place in places for suffix in ("", *SUFFIXES)]
    for file in files:
        if file.is_file() and (file.suffix in SUFFIXES or not bare):
            return file
    if (path / "settings.yaml").is_file():
        raise UsageError(f"{name} is a folder. Did you mean {path / 'settings.yaml'}?")
    raise UsageError(_explain_missing(name, places))


def _explain_missing(name: str, folders: tuple[Path, ...]) -> str:
    files = list_configs(folders)
    choices = f" There are: {', '.join(files)}." if files else ""
    return f"There is no configuration {name}.{suggest_nearest(Path(name).stem, files)}{choices}"


def read_layers(path: Path, chain: tuple[Path, ...] = ()) -> list[Layer]:
    """Read the layers of a YAML file: first those of the files that it extends, most distant first, then its own."""
    chain = (*chain, path)
    if path.resolve() in [before.resolve() for before in chain[:-1]]:
        raise UsageError(f"{path} extends itself: {' extends '.join(map(_shorten_path, chain))}.")
    entries: dict[str, Entry] = {}
    for entry in _read_entries(path):
        before = entries.setdefault(entry.key, entry)
        if before is not entry:
            raise UsageError(
                f"{entry.raw.origin}: {entry.shown} is already set at {before.raw.origin}. Keep only one of them."
            )
    extends = entries.pop("extends", None)
    bases = [_find_base(path, raw) for raw in _list_texts(extends.raw)] if extends else []
    return [layer for base in bases for layer in read_layers(base, chain)] + [list(entries.values())]


def read_method(path: Path) -> str:
    """Return the command of a saved run: its method, or `pipeline` if it has two phases."""
    methods = [entry.raw.text for layer in read_layers(path) for entry in layer if entry.key == "method"]
    return methods[-1] if methods else "pipeline"


def _list_texts(raw: Raw) -> tuple[Raw, ...]:
    return raw.items if raw.items is not None else (raw,)


def _find_base(path: Path, raw: Raw) -> Path:
    """Find the file that another file extends: relative to its folder, or by name among those shipped with qed."""
    shipped = find_shipped_configs()
    folders = [path.parent, shipped] if os.path.basename(raw.text) == raw.text else [path.parent]
    for base in [folder / f"{raw.text}{suffix}" for folder in folders for suffix in ("", *SUFFIXES)]:
        if base.is_file():
            return base
    names = list(list_configs([shipped]))
    raise UsageError(
        f"{raw.origin}: extends names {raw.text!r}, but there is no file {_shorten_path(path.parent / raw.text)}, and "
        f"no configuration of that name is shipped with qed.{suggest_nearest(raw.text, names)}"
    )


def _shorten_path(path: Path) -> str:
    """Return a path relative to the current folder if it is inside, otherwise the absolute path, normalized."""
    full, here = os.path.normpath(path.absolute()), os.getcwd()
    return os.path.relpath(full) if Path(full).is_relative_to(here) else full


def _read_entries(path: Path) -> Iterator[Entry]:
    """Yield all settings of a YAML file under dotted keys."""
    if path.name.lower().endswith(DATA_SUFFIXES) and path.suffix.lower() != ".json":  # JSON may be read as YAML
        raise UsageError(
            f"{_shorten_path(path)} is a data file, but is used as a configuration here. Set several data files as one "
            "value, --tasks A,B or their folder: a shell expands a pattern such as *.jsonl to separate arguments."
        )
    node = _parse_yaml(path)
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(
            f"{_shorten_path(path)}:1: a configuration must consist of `key: value` lines, and this does not."
        )
    yield from _walk_mapping(node, _shorten_path(path), "", ())


def _parse_yaml(path: Path) -> yaml.Node | None:
    try:
        return compose_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{_shorten_path(path)} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{_shorten_path(path)} cannot be read: it is not UTF-8 text.") from error
    except yaml.MarkedYAMLError as error:
        raise UsageError(_explain_syntax(error, _shorten_path(path))) from error
    except yaml.reader.ReaderError as error:
        raise UsageError(
            f"{_shorten_path(path)} cannot be read: it contains the character {error.character!r}."
        ) from error


def _explain_syntax(error: yaml.MarkedYAMLError, file: str) -> str:
    """Format a YAML syntax error as one sentence with file and line."""
    mark = error.problem_mark or error.context_mark
    where = f"{file}:{mark.line + 1}" if mark else file
    if "'\\t'" in str(error.problem):
        return f"{where}: a value or line starts with a tab; YAML requires spaces."
    problem = error.problem or error.context or "it cannot be understood"
    return f"{where}: this is not valid YAML: {' '.join(problem.split())}."


def _walk_mapping(node: yaml.MappingNode, file: str, prefix: str, above: tuple[yaml.Node, ...]) -> Iterator[Entry]:
    """Yield the settings of a mapping and of the mappings inside it; `above` are the enclosing mappings."""
    if node in above:
        raise UsageError(f"{file}:{node.start_mark.line + 1}: an alias here contains itself.")
    for key, value in _list_pairs(node, file, above):
        line = key.start_mark.line + 1
        shown = prefix + key.value
        if isinstance(value, yaml.MappingNode) and value.value and shown.endswith(COLUMN_MAP):
            items = tuple(_list_columns(value, file, (*above, node)))
            yield Entry(_convert_to_snake(shown), Raw(items=items, origin=f"{file}:{line}"), shown)
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _walk_mapping(value, file, f"{shown}.", (*above, node))
        elif isinstance(value, yaml.MappingNode):
            # An empty section is like one whose lines are all commented out.
            yield Entry(_convert_to_snake(shown), Raw(missing=True, origin=f"{file}:{line}"), shown)
        else:
            yield Entry(_convert_to_snake(shown), read_node(value, file, line), shown)


def _list_columns(node: yaml.MappingNode, file: str, above: tuple[yaml.Node, ...]) -> Iterator[Raw]:
    """Yield the entries of a mapping of columns: OURS=THEIRS, or TASK?OURS=THEIRS&… for a mapping by task."""
    for key, value in _list_pairs(node, file, above):
        if isinstance(value, yaml.MappingNode):
            columns = {ours.value: read_node(theirs, file).text for ours, theirs in _list_pairs(value, file, above)}
            text = f"{key.value}?{urlencode(columns)}"
        else:
            text = f"{key.value}={read_node(value, file).text}"
        yield Raw(text, origin=f"{file}:{key.start_mark.line + 1}")


def _convert_to_snake(key: str) -> str:
    return key.replace("-", "_")


def _list_pairs(
    node: yaml.MappingNode, file: str, above: tuple[yaml.Node, ...]
) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    """Return the key-value pairs of a mapping, followed by those merged with `<<` whose keys it lacks."""
    pairs: list[tuple[yaml.ScalarNode, yaml.Node]] = []
    merged: list[tuple[yaml.ScalarNode, yaml.Node]] = []
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{file}:{key.start_mark.line + 1}: a key must be a plain word.")
        if key.tag != MERGE:
            pairs.append((key, value))
            continue
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode) or source in above or source is node:
                raise UsageError(f"{file}:{key.start_mark.line + 1}: << merges mappings, but this value is not one.")
            names = {key.value for key, _ in pairs + merged}
            merged += [pair for pair in _list_pairs(source, file, (*above, node)) if pair[0].value not in names]
    names = {key.value for key, _ in pairs}
    return pairs + [pair for pair in merged if pair[0].value not in names]
