"""Reads YAML with libyaml if PyYAML has it, which takes a tenth of the time.

Text that libyaml rejects is read by PyYAML's pure Python reader, which accepts a little more and explains errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_DEPTH = 100  # levels of a configuration; settings have fewer than ten
TOO_DEEP = "it is nested too deeply"


def load_yaml(text: str) -> Any:
    """Return the values of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or nested too deeply.
        ValueError: a value cannot be read, such as an impossible date.
    """
    try:
        return yaml.load(text, Loader=FAST)
    except (yaml.YAMLError, ValueError):
        with _refuse_depth():
            return yaml.safe_load(text)


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML text, with their lines; None if it is empty.

    Raises:
        yaml.YAMLError: the text is not YAML, or nested more deeply than settings are.
    """
    try:
        node = yaml.compose(text, Loader=FAST)
    except (yaml.YAMLError, ValueError):
        with _refuse_depth():
            node = yaml.compose(text, Loader=yaml.SafeLoader)
    level = [] if node is None else [node]
    for _ in range(MAX_DEPTH):
        # A node with several aliases is visited only once.
        level = list({id(child): child for parent in level for child in _list_children(parent)}.values())
    if level:
        raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=level[0].start_mark)
    return node


def _list_children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


@contextmanager
def _refuse_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem=TOO_DEEP) from error
