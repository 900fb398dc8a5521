"""Run the modules of the viewer's page in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from qed.viewer.assets import STATIC

NODE = shutil.which("node")
Script = Callable[..., Any]
needs_node = pytest.mark.skipif(NODE is None, reason="node is not on this machine")


def prepare_modules(place: Path, modules: Mapping[str, str]) -> Script:
    """Return a function that computes a JavaScript expression over `given` and modules.

    Args:
        place: an empty folder.
        modules: the path of each by the name that it has in expressions.
    """
    shutil.copytree(STATIC, place / "static")
    (place / "static" / "package.json").write_text('{"type": "module"}')
    imports = "".join(f'import * as {name} from "./{path}";\n' for name, path in modules.items())

    def compute(expression: str, given: object = None) -> Any:
        script = f"{imports}const given = {json.dumps(given)};\nconsole.log(JSON.stringify({expression}));"
        file = place / "static" / "script.js"
        file.write_text(script)
        done = subprocess.run([str(NODE), str(file)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return compute
