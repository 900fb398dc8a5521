"""Write the completion script of a shell: `source <(qed --completion bash)`.

The script is static: it holds the commands, their options and the values of choices, so completing starts no Python.
"""

from __future__ import annotations

import functools
import importlib
import io
import re
import shlex
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin

from qed.cli.commands.base import Parser, ParserRevealed, reveal_parsers
from qed.config import plugins
from qed.config.arguments import Flags
from qed.config.checks import TASKS
from qed.config.fields import SHORTCUTS, Table
from qed.config.layers import SUFFIXES, find_shipped_configs
from qed.config.resolve import read_sources
from qed.config.training_commands import PIPELINES
from qed.errors import UsageError, suggest_nearest

OPTION = re.compile(r"--[a-z][\w-]*")
ROOT_OPTIONS = ("--help", "--version", "--completion")


@dataclass
class Words:
    """What can be completed.

    `commands` maps each command to a line of help, `training` lists those that train, `actions` maps a command to its
    second words, `options` a command, or `COMMAND ACTION`, to its options, and `choices` an option to its values. An
    option without choices takes any value or a file; `switches` take no value.
    """

    configs: list[str]
    commands: dict[str, str] = field(default_factory=dict)
    training: list[str] = field(default_factory=list)
    actions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)

    def add_choices(self, option: str, choices: Iterable[str]) -> None:
        """Add values of an option; other commands may have the same option with other values."""
        self.choices[option] = tuple(dict.fromkeys((*self.choices.get(option, ()), *choices)))


def write_script(shell: str) -> str:
    """Return the completion script of a shell.

    Raises:
        UsageError: the shell is not bash, zsh or fish.
    """
    if shell not in SHELLS:
        raise UsageError(
            f"There is no completion for '{shell}'.{suggest_nearest(shell, SHELLS)} Choose one of {', '.join(SHELLS)}."
        )
    return SHELLS[shell](collect_words())


@functools.cache
def collect_words() -> Words:
    """Collect the words of all commands from the tables of settings and the parsers."""
    words = Words(configs=_list_configs())
    for name, line in (PIPELINES | plugins.list_leaves("algorithms")).items():
        command = name.replace("_", "-")
        words.training.append(command)
        words.commands[command] = line
        words.options[command] = tuple(_add_table(read_sources(name, []).table, words))
    for name, line in plugins.list_leaves("commands").items():
        command = name.replace("_", "-")
        words.commands[command] = line
        module = importlib.import_module(f"qed.cli.commands.{name}")
        actions = tuple(getattr(module, "ACTIONS", ()))
        if actions:
            words.actions[command] = actions
        for action in actions or ("",):
            parser = _find_parser(module.run, [action] if action else [])
            key = f"{command} {action}".strip()
            usage = dict.fromkeys((*OPTION.findall(getattr(module, "USAGE", "")), "--help"))
            words.options[key] = tuple(_add_parser(parser, words) if parser else usage)
    return words


def _list_configs() -> list[str]:
    return sorted(path.stem for path in find_shipped_configs().iterdir() if path.suffix in SUFFIXES)


def _add_table(table: Table, words: Words) -> Iterator[str]:
    """Yield the options of a training command, and add their choices and switches to the words."""
    names = {name: table.expand_key(name)[-1] for name in SHORTCUTS if table.expand_key(name)}
    names |= {key: key for key in table.settings}
    for name, key in names.items():
        option, setting = f"--{name.replace('_', '-')}", table.settings[key]
        if setting.kind is bool:
            words.switches.update((option, f"--no-{option[2:]}"))
            yield f"--no-{option[2:]}"
        found = tuple(_list_leaves(setting.shelf, key) or _list_choices(setting.kind))
        if found:
            words.add_choices(option, found)
        yield option
    for flag in fields(Flags):
        option = f"--{flag.name.replace('_', '-')}"
        if str(flag.type) == "bool":
            words.switches.add(option)
        yield option


def _list_leaves(shelf: str | None, key: str) -> list[str]:
    """Return the leaves that a setting may name."""
    if key.endswith(TASKS):
        shelf = "tasks"
    return [name for name in _list_shelf(shelf) if name != "files"] if shelf else []


@functools.cache
def _list_shelf(shelf: str) -> tuple[str, ...]:
    return tuple(plugins.list_leaves(shelf))


def _list_choices(kind: Any) -> list[str]:
    """Return the choices of a type: those of a Literal, also inside a list or an optional type."""
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if get_origin(kind) in (tuple, list, Union, types.UnionType):
        return list(dict.fromkeys(name for part in get_args(kind) for name in _list_choices(part)))
    return []


def _find_parser(run: Callable[[list[str]], Any], words: list[str]) -> Parser | None:
    """Return the parser that a command would use; None if it has none."""
    with reveal_parsers():
        try:
            with redirect_stdout(io.StringIO()):
                run([*words, "--help"])
        except ParserRevealed as revealed:
            return revealed.parser
        except UsageError:
            return None
    return None


def _add_parser(parser: Parser, words: Words) -> Iterator[str]:
    for action in parser._actions:
        for option in (name for name in action.option_strings if name.startswith("--")):
            if action.nargs == 0:
                words.switches.add(option)
            elif action.choices:
                words.add_choices(option, map(str, action.choices))
            yield option


def _write_bash(words: Words) -> str:
    """Return a script for bash: one `case` over the option before the cursor, and one over the command."""
    values = "\n".join(
        f"        {option}) words={shlex.quote(' '.join(found))} ;;" for option, found in sorted(words.choices.items())
    )
    free = sorted({one for found in words.options.values() for one in found} - words.switches - set(words.choices))
    options = "\n".join(
        f"        {names}) words={shlex.quote(' '.join(found))} ;;" for names, found in _group_commands(words.options)
    )
    actions = "\n".join(
        f"            {command}) words={shlex.quote(' '.join(found))} ;;" for command, found in words.actions.items()
    )
    return BASH.format(
        commands=" ".join((*words.commands, *ROOT_OPTIONS)),
        values=values,
        free="|".join(free),
        actions=actions,
        acting="|".join(words.actions),
        options=options,
        configs=" ".join(words.configs),
        training="|".join(words.training),
    )


def _group_commands(options: Mapping[str, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    """Return patterns of commands with the same options, such as `grpo|dr-grpo`, together with these options."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for command, found in options.items():
        groups.setdefault(found, []).append(f'"{command}"')
    return [("|".join(names), found) for found, names in groups.items()]


def _write_zsh(words: Words) -> str:
    """Return a script for zsh, which runs the bash script."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_write_bash(words)}"


def _write_fish(words: Words) -> str:
    """Return a script for fish: a line per command, and one per option with the commands that have it."""
    lines = ["complete -c qed -e"]
    lines += [
        f"complete -c qed -n __fish_use_subcommand -f -a {command} -d {_quote_fish(line)}"
        for command, line in words.commands.items()
    ]
    lines += [f"complete -c qed -n __fish_use_subcommand -l {option[2:]}" for option in ROOT_OPTIONS]
    for command, found in words.actions.items():
        lines.append(f"complete -c qed -n '__fish_seen_subcommand_from {command}' -f -a {_quote_fish(' '.join(found))}")
    training = " ".join(words.training)
    configs = _quote_fish(" ".join(words.configs))
    lines.append(f"complete -c qed -n '__fish_seen_subcommand_from {training}' -a {configs}")
    holders: dict[str, list[str]] = {}
    for command, found in words.options.items():
        for option in found:
            holders.setdefault(option, []).append(command.partition(" ")[0])
    for option, commands in holders.items():
        where = f"-n '__fish_seen_subcommand_from {' '.join(dict.fromkeys(commands))}'"
        lines.append(f"complete -c qed {where} -l {option[2:]}{_describe_value(option, words)}")
    return "\n".join(lines) + "\n"


def _describe_value(option: str, words: Words) -> str:
    """Return what fish needs to know about an option's value."""
    if option in words.switches:
        return ""
    return f" -x -a {_quote_fish(' '.join(words.choices[option]))}" if option in words.choices else " -r"


def _quote_fish(text: str) -> str:
    """Quote a text for fish, on one line."""
    line = textwrap.shorten(text, 10_000).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{line}'"


SHELLS: dict[str, Callable[[Words], str]] = {"bash": _write_bash, "zsh": _write_zsh, "fish": _write_fish}

BASH = """\
# Completion of qed. In bash: source <(qed --completion bash)
_qed() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" words=""
    COMPREPLY=()
    if [ "$cur" = "=" ]; then
        cur=""
    elif [ "$prev" = "=" ]; then
        prev="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$cur"))
        return
    fi
    case "$prev" in
        --completion) words="bash zsh fish" ;;
{values}
        {free}) return ;;
    esac
    if [ -n "$words" ]; then
        # Of several values, the last is completed.
        local before=""
        case "$cur" in
            *,*) before="${{cur%,*}},"; cur="${{cur##*,}}" ;;
        esac
        COMPREPLY=($(compgen -P "$before" -W "$words" -- "$cur"))
        return
    fi
    case "$command" in
        {acting})
        if [ "$COMP_CWORD" -eq 2 ]; then
            case "$command" in
{actions}
            esac
            COMPREPLY=($(compgen -W "$words" -- "$cur"))
            return
        fi
        command="$command ${{COMP_WORDS[2]}}" ;;
    esac
    case "$command" in
{options}
    esac
    case "$cur" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$cur")); return ;;
    esac
    case "$command" in
        {training}) COMPREPLY=($(compgen -W "{configs}" -- "$cur")) ;;
    esac
    COMPREPLY+=($(compgen -f -- "$cur"))
}}
complete -o default -o filenames -F _qed qed
"""
