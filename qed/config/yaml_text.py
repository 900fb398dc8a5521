"""Read YAML with libyaml where PyYAML has it, which takes a tenth of the time.

What libyaml refuses is read by PyYAML's own reader, which accepts a little more and explains errors.
"""

from __future__ import annotations

from typing import Any

import yaml

FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str) -> Any:
    """Return the values of a text.

    Raises:
        yaml.YAMLError: it is no YAML.
        ValueError: a value cannot be read, such as a date without such a day.
    """
    try:
        return yaml.load(text, Loader=FAST)
    except (yaml.YAMLError, ValueError):
        return yaml.safe_load(text)


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the nodes of a text, with their lines; None if it is empty.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    try:
        return yaml.compose(text, Loader=FAST)
    except (yaml.YAMLError, ValueError):
        return yaml.compose(text, Loader=yaml.SafeLoader)
