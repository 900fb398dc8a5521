"""Reads configurations of other systems: YAML files, shell scripts, and command-line arguments.

A shell script is read, never run: its assignments replace `$NAME` and `${NAME:-default}`, and its options are
those of the form `--name value`, `name=value` or `a.b.c=value`. In YAML files, Hydra's `${a.b}` is resolved.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from qed.config.yaml_text import load_yaml
from qed.errors import UsageError

YAML_SUFFIXES = (".yaml", ".yml", ".json")  # JSON is valid YAML
PYTHON_SUFFIXES = (".py", ".ipynb")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]((?:[^{}]|\{[^{}]*\})*))?\}|(\w+))")
ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)=(?!=)(.*)$", re.DOTALL)
DECLARATIONS = ("export", "declare", "local", "readonly")
# A name without a dot begins with a small letter; capitals are variables of the shell.
SETTING = re.compile(r"^\+{0,2}([A-Za-z_][\w-]*(?:[./][\w-]+)+|[a-z]\w*)=(.*)$", re.DOTALL)
OPTION = re.compile(r"^--([A-Za-z_][\w.-]*)(?:=(.*))?$", re.DOTALL)
REFERENCE = re.compile(r"^\$\{(?:oc\.select:)?([\w.]+)(?:,(.*))?\}$")
ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)")
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    ast.Div: operator.floordiv,
}
# Words that are followed by the name of a method, and files that are named after one.
METHOD_AFTER = ("trl", "rlhf_type")
FILES = ("config", "config_file")
METHOD = "method"


def read_options(files: Sequence[Path], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of files, overridden by arguments, by dotted name.

    Raises:
        UsageError: a file cannot be read.
    """
    found: dict[str, Any] = {}
    for file in files:
        found |= _read_file(file)
    return _resolve(found | _read_arguments(arguments, Path()))


def _read_file(file: Path) -> dict[str, Any]:
    if file.suffix in PYTHON_SUFFIXES:
        raise UsageError(f"{file} is Python code, which is not run. Pass its settings after --, as in -- --beta 0.1.")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} cannot be read: it is not UTF-8 text.") from error
    if file.suffix not in YAML_SUFFIXES:
        found = _read_arguments(_split_script(text), file.parent)
        if not found:
            raise UsageError(f"{file} has no settings: none has the form --name value or name=value.")
        return found
    try:
        tree = load_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(tree, dict):
        raise UsageError(f"{file} is not a configuration: it has no `key: value` lines.")
    return dict(_flatten(tree, ""))


def _flatten(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    """Yield the settings of a tree by dotted name; entries of a list of mappings are named by their index."""
    if isinstance(value, dict) and (value or not prefix):
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}".lstrip("."))
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{prefix}.{index}")
    else:
        yield prefix, [_read_value(one) for one in value] if isinstance(value, list) else _read_value(value)


def _read_value(value: Any) -> Any:
    """Return a text as the number, boolean or list that it means; YAML would read 1e-6 as a text."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text in ("null", "None", "~", ""):
        return None
    if text.startswith("[") and text.endswith("]"):
        return [_read_value(part.strip().strip("'\"")) for part in text[1:-1].split(",") if part.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return value


def _split_script(text: str) -> list[str]:
    """Return the words of a shell script, with the values of its assignments filled in."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).split("\n"):
        found = _split_line(_compute_all(line, variables))
        # Assignments come first in a line, possibly before a command.
        while found and (found[0] in DECLARATIONS or ASSIGNMENT.match(found[0])):
            # The output of a command is unknown.
            if (match := ASSIGNMENT.match(found.pop(0))) and not match[2].startswith(("$(", "`")):
                variables[match[1]] = _expand(match[2], variables)
        words += [_expand(word, variables) for word in found]
    return words


def _split_line(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()  # a quotation that ends on another line


def _compute_all(line: str, variables: Mapping[str, str]) -> str:
    """Replace `$((1024 * n))` with its value; expressions that cannot be computed are kept."""

    def compute(match: re.Match[str]) -> str:
        try:
            return str(_compute(ast.parse(_expand(match[1], variables).strip(), mode="eval").body, variables))
        except (SyntaxError, KeyError, TypeError, ValueError, ZeroDivisionError):
            return match[0]

    return ARITHMETIC.sub(compute, line)


def _compute(node: ast.expr, variables: Mapping[str, str]) -> int:
    """Compute a shell expression as an integer; raise a KeyError or ValueError if it cannot be computed."""
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_compute(node.left, variables), _compute(node.right, variables))
    return int(variables[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node))


def _expand(text: str, variables: Mapping[str, str]) -> str:
    def put_in(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables[name] if name in variables else match[0] if match[2] is None else _expand(match[2], variables)

    return VARIABLE.sub(put_in, text)


def _read_arguments(words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return the options among the words of a command line, which override files that it names with --config."""
    found: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for index, word in enumerate(words):
        if match := SETTING.match(word):
            found[match[1].replace("/", ".")] = _read_value(match[2])
        elif match := OPTION.match(word):
            name = match[1].replace("-", "_")
            texts = [match[2]] if match[2] is not None else _take_values(words[index + 1 :])
            if name in FILES and texts:
                files |= _read_named_file(texts[0], folder)
            values = [_read_value(text) for text in texts] or [True]  # a switch has no value
            found[name] = values[0] if len(values) == 1 else values
        elif word in METHOD_AFTER and index + 1 < len(words):
            found[METHOD] = words[index + 1]
        elif word.endswith((".py", "main_ppo", "sft_trainer")):
            found.setdefault(METHOD, re.split(r"[./]", word.removesuffix(".py"))[-1])
    return files | found


def _take_values(words: Sequence[str]) -> list[str]:
    """Return the words up to the next option: the values of an option that may have several."""
    values: list[str] = []
    for word in words:
        if word.startswith("--") or SETTING.match(word) or word in ("|", "&&", "&", ";", "2>&1"):
            break
        values.append(word)
    return values


def _read_named_file(name: str, folder: Path) -> dict[str, Any]:
    """Read a YAML file that a command line names, relative to the current folder or the script's."""
    files = [Path(name), *(parent / name for parent in (folder, *folder.absolute().parents))]
    file = next((file for file in files if file.suffix in YAML_SUFFIXES and file.is_file()), None)
    return _read_file(file) if file else {}


def _resolve(options: dict[str, Any]) -> dict[str, Any]:
    """Replace Hydra's references with what they refer to, or None if there is no such option.

    A name without a dot that is not an option is kept, because it may be a shell variable.
    """
    resolved = {}
    for name, value in options.items():
        for _ in range(5):
            match = REFERENCE.match(value) if isinstance(value, str) else None
            if match is None or (match[1] not in options and match[2] is None and "." not in match[1]):
                break  # possibly a shell variable
            value = options.get(match[1], _read_value(match[2] or ""))
        resolved[name] = value
    return resolved
