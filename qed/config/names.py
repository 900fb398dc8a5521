"""Suggests settings for an unknown name, which may be a typo, lack its section, or be another library's name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from qed.config.fields import Table
from qed.config.foreign_names import advise, find_rule, find_words

CLOSE = 0.8  # similarity required to suggest a name; less is enough within its own section


def suggest(key: str, table: Table, others: Iterable[str] = (), dashes: str = "") -> str:
    """Return a sentence that suggests what an unknown name may mean, or an empty string.

    `others` are further names to suggest besides settings; `dashes` is the prefix of names on the command line.
    """
    last = key.rpartition(".")[2]
    if advice := advise(key, table.command):
        return advice
    sections = [name for name in table.sections if name and name in (key, f"sft.{key}", f"rl.{key}")]
    if sections:
        return f" It is a section with the settings {_explain_section(sections, table)}."
    matches = _find_existing(find_words(key), table)
    matches = matches or [name for name in table.settings if name.rpartition(".")[2] == last]
    rule = None if matches else find_rule(key)
    if rule is not None:
        matches = _find_existing(rule.ours, table)
        if not matches:
            return f" {rule.title} has this setting, but qed does not: {rule.why or 'another command may have it'}."
    matches = matches or _find_near(key, table, others)
    if matches:
        return f" Did you mean {' or '.join(repr(format_name(name, dashes)) for name in matches)}?"
    section = key.rpartition(".")[0]
    inside = _explain_section([section], table)
    return f" The settings of that section are {inside}." if inside else ""


def explain_repetition(first: str, again: str, pairs: bool) -> str:
    """Explain why setting a list twice is rejected, and how to write several entries.

    Args:
        first: the name of its first occurrence, with any dashes.
        again: the name of its second occurrence.
        pairs: whether the entries are NAME=VALUE.
    """
    example = f"{first}{' ' if first.startswith('-') else '='}{'A=X,B=Y' if pairs else 'A,B'}"
    if first == again:
        return f"{first} is given twice. Separate several with a comma: {example}."
    return f"{first} and {again} are two names of one list. Use one, and separate several with a comma: {example}."


def format_name(name: str, dashes: str) -> str:
    """Format a name as on the command line if `dashes` is given, otherwise as in a file."""
    return dashes + name.replace("_", "-") if dashes else name


def _explain_section(sections: Iterable[str], table: Table) -> str:
    return ", ".join(
        key
        for section in sections
        for key, setting in table.settings.items()
        if section and setting.path.startswith(f"{section}.")
    )


def _find_existing(settings: Iterable[str], table: Table) -> list[str]:
    """Return the first of these settings that this command has, in each of its phases."""
    for setting in settings:
        names = (setting, *(f"{phase}.{setting}" for phase in table.methods))
        if found := [name for name in names if name in table.settings]:
            return found
    return []


def _find_near(key: str, table: Table, others: Iterable[str]) -> list[str]:
    """Return the names closest to a mistyped one: shortcuts and flags, in its section, in any section, or in full."""
    section, _, last = key.rpartition(".")
    if not section and (near := _find_like(key, others)):
        return near
    inside = {setting.field for setting in table.settings.values() if setting.section == section}
    inside |= {setting.name for key, setting in table.settings.items() if key.rpartition(".")[0] == section}
    near = _find_like(last, inside, 0.6)
    if near:
        return [f"{section}.{near[0]}".lstrip(".")]
    near = _find_like(last, {setting.name for setting in table.settings.values()})
    if near:
        return [name for name, setting in table.settings.items() if setting.name == near[0]]
    # In an existing section, the long common prefix would make all names similar.
    return [] if section in table.sections and section else _find_like(key, table.settings)


def _find_like(name: str, candidates: Iterable[str], cutoff: float = CLOSE) -> list[str]:
    return difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=cutoff)
