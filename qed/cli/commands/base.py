"""What commands share: the parser of their own options, and the names of those that train."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from qed.config import plugins
from qed.config.fields import PIPELINES
from qed.errors import UsageError, suggest_nearest


class Parser(argparse.ArgumentParser):
    """argparse without its abbreviations, its usage dump and its exits."""

    def __init__(self, command: str, about: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"qed {command}",
            description=about,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_argument("--debug", action="store_true", help="print the traceback of an error too")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command line.

        Raises:
            UsageError: it cannot be meant.
        """
        found, unknown = self.parse_known_args(list(arguments))
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            raise UsageError(
                f"{self.prog} has no option {unknown[0]}.{suggest_nearest(unknown[0], known)}{self._suggest_help()}"
            )
        return found

    def error(self, message: str) -> NoReturn:
        """What argparse calls on a mistake."""
        raise UsageError(f"{self.prog}: {message}.{self._suggest_help()}")

    def _suggest_help(self) -> str:
        return f" `{self.prog} --help` lists what it takes."


def resolve_training_command(name: str) -> str:
    """A training command in the spelling of its file; a UsageError proposes the nearest of all commands."""
    if name in PIPELINES or plugins.is_users_own(name):
        return name
    leaves = plugins.list_leaves("algorithms")
    if name.replace("-", "_") in leaves:
        return name.replace("-", "_")
    known = [*PIPELINES, *(leaf.replace("_", "-") for leaf in (*leaves, *plugins.list_leaves("commands")))]
    raise UsageError(f"There is no command '{name}'.{suggest_nearest(name, known)} There are: {', '.join(known)}.")
