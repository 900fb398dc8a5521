"""A model's folder runs no code, pickled weights are not read, and nothing listens on a network."""

from __future__ import annotations

import ast
import json
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import qed
from qed.config.settings import ModelSettings
from qed.errors import ModelError
from qed.models.load import build_model, load_model, load_tokenizer

HOME = Path(qed.__file__).parent
EVIL = "import pathlib\npathlib.Path({marker!r}).write_text('owned')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder as it should be."""
    network, tokenizer = build_model("new:tiny", ["one two 1 2 3"], seed=0)
    home = tmp_path / "model"
    network.save_pretrained(home)
    tokenizer.save_pretrained(home)
    return home


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("known", [True, False], ids=["of a known type", "of a type of its own"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_a_model_folder_never_runs(folder: Path, tmp_path: Path, file: str, known: bool) -> None:
    """The library's own class is taken where there is one, and a model that needs its own code is refused."""
    marker = tmp_path / "owned"
    (folder / "evil.py").write_text(EVIL.format(marker=str(marker)) + "Evil = None\n")
    parts = {"config.json": ("AutoConfig", "AutoModelForCausalLM"), "tokenizer_config.json": ("AutoTokenizer",)}[file]
    own = {"AutoTokenizer": ["evil.Evil", None]} if file == "tokenizer_config.json" else {}
    change(folder / file, auto_map={**dict.fromkeys(parts, "evil.Evil"), **own})
    if not known:
        name = {"model_type": "evil"} if file == "config.json" else {"tokenizer_class": "EvilTokenizer"}
        change(folder / file, **name)
    with suppress(ModelError):
        load_model(ModelSettings(name=str(folder)))
    assert not marker.exists()


@pytest.mark.parametrize(
    "key", ["_attn_implementation_internal", "_attn_implementation", "attn_implementation", "_experts_implementation"]
)
def test_an_attention_that_a_config_names_is_not_fetched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The hole of transformers before 5.3: a config.json named a kernel, whose code was fetched and run."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("something was to be fetched")

    monkeypatch.setattr("socket.socket.connect", refused)
    change(folder / "config.json", **{key: "somebody/kernel"})
    model, _ = load_model(ModelSettings(name=str(folder)))
    assert "somebody" not in str(model.config._attn_implementation)


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.marker, "owned"))


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "model.ckpt"]
)
@pytest.mark.parametrize("has_safetensors", [False, True])
def test_pickled_weights_are_not_read(folder: Path, tmp_path: Path, name: str, has_safetensors: bool) -> None:
    """Refused where there are no others, and left alone where there are."""
    marker = tmp_path / "owned"
    (folder / name).write_bytes(pickle.dumps(Payload(marker)))
    if has_safetensors:
        load_model(ModelSettings(name=str(folder)))
    else:
        (folder / "model.safetensors").unlink()
        with pytest.raises(ModelError, match="pickled ones"):
            load_model(ModelSettings(name=str(folder)))
    assert not marker.exists()


def test_a_safetensors_file_that_is_a_pickle_is_refused(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "owned"
    (folder / "model.safetensors").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(ModelSettings(name=str(folder)))
    assert not marker.exists()


def test_a_model_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for function in (
        lambda: load_model(ModelSettings(name="nobody/nothing")),
        lambda: load_tokenizer("nobody/nothing"),
    ):
        with pytest.raises(ModelError, match="nobody/nothing cannot be loaded"):
            function()


def test_a_tokenizer_is_of_the_revision_of_its_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model of the hub, and of the base model that an adapter names; a folder has no revision."""
    asked = []

    class Reader:
        @staticmethod
        def from_pretrained(name: str, **options: Any) -> Any:
            asked.append((name, options.get("revision")))
            raise OSError("nobody is there")

    monkeypatch.setattr("qed.models.sources.AutoTokenizer", Reader)
    adapter = folder / "adapter"
    adapter.mkdir()
    about = {"base_model_name_or_path": "owner/base", "revision": "v2", "peft_type": "LORA"}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    (adapter / "adapter_model.safetensors").touch()
    for name, revision in (("owner/name", "v1"), ("owner/name", ""), (str(folder), "v1"), (str(adapter), "v1")):
        with pytest.raises(ModelError, match="nobody is there"):
            load_tokenizer(name, revision)
    assert asked == [("owner/name", "v1"), ("owner/name", None), (str(folder), None), ("owner/base", "v2")]


@cache
def parse_sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in HOME.rglob("*.py")}


def calls() -> list[tuple[Path, ast.Call]]:
    found = [(path, node) for path, tree in parse_sources().items() for node in ast.walk(tree)]
    return [(path, node) for path, node in found if isinstance(node, ast.Call)]


def test_no_call_trusts_remote_code() -> None:
    """Nowhere is the flag anything but False, and whoever loads a configuration, tokenizer or model sets it."""
    flags = [
        ast.unparse(node)
        for tree in parse_sources().values()
        for node in ast.walk(tree)
        if (isinstance(node, ast.keyword) and node.arg == "trust_remote_code")
        or (isinstance(node, ast.Constant) and node.value == "trust_remote_code")
    ]
    assert len(flags) >= 3
    assert set(flags) <= {"trust_remote_code=False", "'trust_remote_code'"}
    text = "".join((HOME / "models" / name).read_text() for name in ("load.py", "sources.py"))
    assert '{"trust_remote_code": False}' in text
    assert text.count("trust_remote_code") == 3
    for path, node in calls():
        called = ast.unparse(node.func)
        if called.endswith(".from_pretrained") and called != "GenerationConfig.from_pretrained":
            told = ast.unparse(node)
            assert "trust_remote_code=False" in told or "**source" in told, f"{path}: {called}"


def test_nothing_listens_on_a_network() -> None:
    """Two files of qed listen: the socket of `qed serve` and `qed view`, and the gate before a server that Ray has
    placed. Others only keep a port for one that will listen. A run of one process opens none, see below."""
    for path, node in calls():
        called = ast.unparse(node.func).rpartition(".")[2]
        assert called not in {"bind", "listen", "create_server", "start_server", "serve_forever", "HTTPServer"} or (
            # A process to its parent's death; sockets that never listen; arguments to a signature.
            (called == "bind" and path.name in ("child.py", "ports.py", "parents.py", "processes.py", "user_code.py"))
            or (called == "create_server" and path.name == "listening.py")
            or (called == "start_server" and path.name == "gate.py")
        ), f"{path}: {ast.unparse(node)}"


def test_a_run_opens_no_port(qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a port was to be opened")

    monkeypatch.setattr(socket.socket, "bind", refused)
    monkeypatch.setattr(socket.socket, "listen", refused)
    small = ["--steps", 1, "--sampling.problems_per_step", 2, "--sampling.group_size", 2, "--sampling.max_tokens", 4]
    small += ["--evaluation.problems", 2, "--algorithm.entropy", 0.01]
    assert qed("grpo", "--out", tmp_path / "run", *small).code == 0


@pytest.mark.parametrize("key", ["data.reward", "data.prompt", "method"])
def test_a_file_may_name_users_code_only_when_that_is_allowed(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """On the command line a path is the user's own word; in somebody's YAML file it is not."""
    marker = tmp_path / "owned"
    (tmp_path / "evil.py").write_text(EVIL.format(marker=str(marker)))
    lines = {"method": f"rl: {{method: {tmp_path / 'evil.py'}}}"}
    (tmp_path / "x.yaml").write_text(lines.get(key, f"{key}: {tmp_path / 'evil.py'}"))
    command = "pipeline" if key == "method" else "grpo"
    done = qed(command, tmp_path / "x.yaml", "--out", tmp_path / "run")
    assert done.code == 2, done.err
    assert "--allow-user-code" in done.err
    assert not marker.exists()
    done = qed(command, tmp_path / "x.yaml", "--out", tmp_path / "run", "--allow-user-code")
    assert done.code != 0
    assert marker.exists()
