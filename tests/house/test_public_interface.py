"""What users' scripts rely on, held against a snapshot: a change of it is a deliberate one.

`python tests/house/test_public_interface.py` writes the snapshot anew; the difference belongs into CHANGELOG.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qed import errors
from qed.cli.main import main
from qed.config import plugins
from qed.config.arguments import Flags
from qed.config.fields import SHORTCUTS, build_table
from qed.config.training_commands import PIPELINES
from qed.guards import watchdog

SNAPSHOT = Path(__file__).with_name("public_interface.json")
RUN_FOLDER = ["--steps", "1", "--sampling.problems_per_step", "2", "--sampling.group_size", "2"]
RUN_FOLDER += ["--sampling.max_tokens", "4", "--evaluation.problems", "2", "--algorithm.kl", "0.1"]
RUN_FOLDER += ["--run.on_no_signal", "warn"]


def describe_interface() -> dict[str, Any]:
    """Describe commands, settings with their defaults, options, shelves and exit codes."""
    return {
        "commands": [*PIPELINES, *plugins.list_leaves("algorithms"), *plugins.list_leaves("commands")],
        "settings": dict(list_settings()),
        "shortcuts": SHORTCUTS,
        "flags": sorted(vars(Flags())),
        "options": {name: list_options(name) for name in plugins.list_leaves("commands")},
        "shelves": {name: list(plugins.list_leaves(name)) for name in ("prompts", "rewards", "samplers", "tasks")},
        "exit_codes": {
            **{
                name: kind.exit_code
                for name, kind in vars(errors).items()
                if isinstance(kind, type)
                and issubclass(kind, errors.QedError)
                and hasattr(kind, "exit_code")
                and isinstance(kind.exit_code, int)
            },
            "hung": watchdog.EXIT_CODE,
        },
    }


def list_settings() -> Iterator[tuple[str, Any]]:
    """Yield the settings of grpo, and of every other algorithm those that differ from them."""
    common = settings_of("grpo")
    yield "grpo", common
    for name in plugins.list_leaves("algorithms"):
        if name != "grpo":
            own = settings_of(name)
            yield name, {key: value for key, value in own.items() if common.get(key) != value}


def settings_of(algorithm: str) -> dict[str, str]:
    """Return the settings of an algorithm with their defaults as text."""
    table = build_table(algorithm, {"": algorithm})
    return {key: repr(setting.default) for key, setting in table.settings.items()}


def list_options(command: str) -> list[str]:
    """Return the options that a command's help names."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", out.getvalue())))


def list_run_folder(folder: Path) -> list[str]:
    """Train one step, and return the files that it leaves."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        main(["grpo", *RUN_FOLDER, "--out", str(folder)])
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_scripts_rely_on_is_as_it_was(tmp_path: Path) -> None:
    told = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(describe_interface() | {"run_folder": list_run_folder(tmp_path / "run")}))
    for part, value in told.items():
        assert found[part] == value, f"{part} changed: if it is meant, run this file and write it into CHANGELOG.md"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        described = describe_interface() | {"run_folder": list_run_folder(Path(folder) / "run")}
    SNAPSHOT.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
