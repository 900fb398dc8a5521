"""`qed export` writes a folder that other programs take, and uploads it to the hub's interface."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from cutting import TINY, run_small
from huggingface_hub import ModelCard
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from qed.errors import QedError
from qed.models.load import build_model
from qed.report.model_card import find_hub_base
from qed.runs.run import read_evaluations
from qed.training import export

pytestmark = pytest.mark.xdist_group("adapters")
IDS = torch.arange(14).reshape(2, 7)


@pytest.fixture(scope="module")
def pipeline_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two phases that trains all weights, with a best checkpoint that is not its last."""
    out = tmp_path_factory.mktemp("pipeline") / "run"
    tiny = [str(word).replace("--learner.", "--sft.learner.") for word in TINY]
    arguments = ["pipeline", "--sft.learner.steps", 2, "--rl.learner.steps", 0, *tiny, "--run.save_every", 1]
    arguments += ["--data.validation_split", 0.1, "--evaluation.every", 1, "--out", out]
    run_small(arguments)
    (out / "checkpoints" / "BEST").write_text("step_000001\n")
    return out


def front(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "README.md").read_text().split("---\n")[1]))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def exact_logits(model: Any) -> torch.Tensor:
    """In float64, where only the weights' own rounding is left: in float32 a product with the merged weight and the sum
    of two products differ by more."""
    return logits(model.double())


def test_a_whole_model_is_read_by_transformers(qed: Callable[..., Any], pipeline_run: Path, tmp_path: Path) -> None:
    for which, step, dtype in (("last", 2, "float32"), ("best", 1, "bfloat16"), ("2", 2, "float16")):
        out = tmp_path / which
        done = qed(
            *("export", pipeline_run, "--checkpoint", which, "--out", out, "--json"),
            *(["--dtype", dtype] if dtype != "float32" else []),
        )
        assert done.code == 0, done.err
        assert (done.result["step"], done.result["dtype"], done.result["kind"]) == (step, dtype, "model")
        source = pipeline_run / "checkpoints" / f"step_{step:06d}" / "hf"
        kept = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
        model = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
        assert model.dtype == getattr(torch, dtype)
        assert all(torch.equal(value, kept.state_dict()[name]) for name, value in model.state_dict().items())
        assert model.generation_config.eos_token_id == kept.generation_config.eos_token_id
        tokenizer = AutoTokenizer.from_pretrained(out)
        assert tokenizer.chat_template == AutoTokenizer.from_pretrained(source).chat_template
        assert {path.name for path in out.iterdir()} >= {"config.json", "generation_config.json", "README.md"}
        text = (out / "README.md").read_text()
        assert f"After step {step}." in text
        assert front(out)["library_name"] == "transformers"
    assert "base_model" not in front(out)  # random weights are on no hub
    figures = dict(read_evaluations(pipeline_run))[2]["arithmetic"]["greedy"]
    (entry,) = front(tmp_path / "last")["model-index"]
    (result,) = entry["results"]  # validation is no benchmark
    assert result["metrics"][0]["value"] == round(100 * figures["accuracy"], 2)
    # The hub's own reader understands all of it.
    card = ModelCard.load(tmp_path / "last" / "README.md").data
    assert [one.dataset_name for one in card.eval_results] == ["arithmetic", "arithmetic"]


def test_the_card_of_a_run_has_its_last_evaluation_only_and_its_data(pipeline_run: Path) -> None:
    text = (pipeline_run / "README.md").read_text()
    assert len([line for line in text.splitlines() if line.startswith("| arithmetic")]) == 2
    assert "After step 2." in text
    assert re.search(r"\d+ training problems of arithmetic with the prompt `\w+` \(fingerprint `\w+`\)", text)
    assert re.search(r"Held out and never trained on: .*\d+ for validation\.", text)


def test_adapters_are_exported_alone_or_merged(
    qed: Callable[..., Any], lora_run: Path, complete_model: Path, tmp_path: Path
) -> None:
    done = qed("export", lora_run, "--out", tmp_path / "adapter", "--json")
    assert done.code == 0, done.err
    assert "--merge exports complete weights" in " ".join(done.err.split())
    merged = qed("export", lora_run, "--merge", "--out", tmp_path / "merged", "--license", "mit")
    assert merged.code == 0, merged.err
    base = AutoModelForCausalLM.from_pretrained(complete_model, dtype=torch.float32)
    expected = exact_logits(PeftModel.from_pretrained(base, lora_run / "final" / "adapter"))
    for model in (
        AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32),
        AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32),
    ):
        torch.testing.assert_close(exact_logits(model), expected, rtol=0, atol=1e-6)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    template = AutoTokenizer.from_pretrained(lora_run / "final" / "hf").chat_template
    assert AutoTokenizer.from_pretrained(tmp_path / "adapter").chat_template == template
    assert front(tmp_path / "adapter")["library_name"] == "peft"
    assert front(tmp_path / "merged")["license"] == "mit"


def test_a_card_names_the_base_model_and_the_data(lora_run: Path, qed: Callable[..., Any], tmp_path: Path) -> None:
    """Of a run on a hub's model and data; its folder is edited, because no test asks the hub."""
    run = shutil.copytree(lora_run, tmp_path / "run", symlinks=True)
    settings = (run / "settings.yaml").read_text()
    name = yaml.safe_load(settings)["model"]["name"]
    settings = settings.replace(name, "Qwen/Qwen2.5-0.5B").replace("- arithmetic", "- gsm8k:train")
    (run / "settings.yaml").write_text(settings.replace("[arithmetic]", "[gsm8k]"))
    step = run / "eval" / "step_000001"
    summary = json.loads((step / "summary.json").read_text())
    (step / "summary.json").write_text(json.dumps({"math-test500": summary["arithmetic"]}))
    done = qed("export", run, "--out", tmp_path / "adapter")
    assert done.code == 0, done.err
    card = front(tmp_path / "adapter")
    assert (card["base_model"], card["base_model_relation"]) == ("Qwen/Qwen2.5-0.5B", "adapter")
    assert card["datasets"] == ["openai/gsm8k"]
    assert card["model-index"][0]["results"][0]["dataset"]["type"] == "HuggingFaceH4/MATH-500"
    assert qed("export", run, "--merge", "--out", tmp_path / "merged").code == 0
    assert front(tmp_path / "merged")["base_model_relation"] == "finetune"
    # A run on the weights of this one has the same base on the hub.
    assert find_hub_base(str(run / "final" / "hf")) == "Qwen/Qwen2.5-0.5B"
    cached = tmp_path / "hub" / "models--Qwen--Qwen3-4B" / "snapshots" / "0a1b"
    cached.mkdir(parents=True)
    assert find_hub_base(str(cached)) == "Qwen/Qwen3-4B"


def test_what_nobody_else_has_is_merged(qed: Callable[..., Any], lora_run: Path, tmp_path: Path) -> None:
    """The adapter of random weights alone would be of no use; a quantized base is said."""
    run = shutil.copytree(lora_run, tmp_path / "run", symlinks=True)
    settings = (run / "settings.yaml").read_text()
    name = yaml.safe_load(settings)["model"]["name"]
    (run / "settings.yaml").write_text(settings.replace(name, "new:tiny"))
    done = qed("export", run)
    assert done.code == 0, done.err
    assert "exists only in this run" in done.out
    assert (run / "export" / "model.safetensors").is_file()
    (run / "settings.yaml").write_text(re.sub("quantization: .*", "quantization: nf4", settings))
    assert "no GPU is needed" in " ".join(qed("export", run, "--merge", "--out", tmp_path / "merged").out.split())
    assert "bitsandbytes" in " ".join(qed("export", run, "--out", tmp_path / "adapter").out.split())


def test_large_weights_are_sharded(
    qed: Callable[..., Any], pipeline_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SHARD_SIZE", "500KB")
    assert qed("export", pipeline_run, "--out", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    whole = AutoModelForCausalLM.from_pretrained(pipeline_run / "final" / "hf", dtype=torch.float32)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(whole))


def test_what_cannot_be_exported_is_refused(
    qed: Callable[..., Any], pipeline_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert qed("export", pipeline_run, "--out", out).code == 0
    again = qed("export", pipeline_run, "--out", out)
    assert (again.code, "Replace it with --overwrite" in again.err) == (2, True)
    assert qed("export", pipeline_run, "--out", out, "--overwrite", "--dtype", "bfloat16").code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    for place in (tmp_path / "mine", pipeline_run / "final" / "hf", pipeline_run):
        refused = qed("export", pipeline_run, "--out", place, "--overwrite")
        assert (refused.code, "choose another folder" in refused.err) == (2, True)
    for words, said in (
        (["--checkpoint", "7"], "no checkpoint of step 7. Its checkpoints are of step 1, 2"),
        (["--checkpoint", "newest"], "not 'newest'"),
        (["--public"], "--public is for --push"),
        (["--dtype", "int8"], "invalid choice"),
    ):
        done = qed("export", pipeline_run, *words)
        assert done.code in (2, 3)
        assert said in done.err
    assert "is not a run" in qed("export", out).err
    for mistyped in (f"{pipeline_run}n", pipeline_run / "final" / "hf"):
        assert "Did you mean" in qed("export", mistyped).err
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 1000))
    full = qed("export", pipeline_run, "--out", tmp_path / "full")
    assert (full.code, "0.00 GiB free. Nothing has been written" in full.err) == (1, True)
    assert not (tmp_path / "full").exists()


def test_a_disk_that_is_full_before_the_tokenizer_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizers raise a bare Exception there."""
    model, tokenizer = build_model("new:tiny", ["1 + 1 = 2"], 0)

    def fill(*_: Any) -> None:
        tokenizer.backend_tokenizer.save("/dev/full")

    monkeypatch.setattr(tokenizer, "save_pretrained", fill)
    monkeypatch.setattr(export, "load_model", lambda _: (model, tokenizer))
    model.save_pretrained(tmp_path / "checkpoint" / "hf")
    with pytest.raises(QedError, match=r"No space left on device.*Nothing is left behind"):
        export.write_export(export.Export(tmp_path / "checkpoint", tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_damaged_checkpoint_is_named(qed: Callable[..., Any], pipeline_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(pipeline_run, tmp_path / "run", symlinks=True)
    weights = run / "checkpoints" / "step_000002" / "hf" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    done = qed("export", run)
    assert done.code == 3
    assert f"{weights.relative_to(run)} is damaged" in done.err.replace(f"{run}/", "")
    assert not (run / "export").exists()
    assert qed("export", run, "--checkpoint", "best").code == 0


class Hub(BaseHTTPRequestHandler):
    """What the hub answers to an upload; it remembers what it was sent."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/whoami-v2":
            self.answer({"name": "me", "type": "user"})
        elif "/tree/" in path:
            self.answer([{"type": "file", "path": p, "size": 1, "oid": "0" * 40} for p in self.server.state["files"]])
        elif path.removeprefix("/api/models/").partition("/revision/")[0] in self.server.state["repos"]:
            name = path.removeprefix("/api/models/").partition("/revision/")[0]
            private = self.server.state["repos"][name]
            self.answer({"id": name, "sha": "0" * 40, "private": private, "siblings": []})
        else:
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        state = self.server.state
        state["tokens"].add(self.headers.get("Authorization"))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            state["repos"].setdefault(name, bool(asked.get("private")))
            self.answer({"url": f"http://{self.headers['Host']}/{name}"})
        elif self.path == "/api/validate-yaml":
            state["yaml"] = json.loads(body)["content"]
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [{**one, "uploadMode": "regular", "shouldIgnore": False} for one in json.loads(body)["files"]]
            self.answer({"files": files})
        elif "/commit/" in self.path:
            for line in body.decode().splitlines():
                record = json.loads(line)
                if record["key"] == "file":
                    state["files"][record["value"]["path"]] = base64.b64decode(record["value"]["content"])
                elif record["key"] == "deletedFile":
                    del state["files"][record["value"]["path"]]
            self.answer(
                {
                    "commitUrl": f"http://{self.headers['Host']}/me/mine/commit/1",
                    "commitOid": "1" * 40,
                    "hookOutput": "",
                    "success": True,
                }
            )
        else:
            self.answer({"error": "not here"}, 404)

    def answer(self, content: Any, code: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A server on this machine in the hub's place; its state."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.state = {"repos": {}, "files": {}, "tokens": set()}  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 30)
    yield server.state  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def test_a_push_is_private_unless_public_is_asked_for(
    qed: Callable[..., Any], lora_run: Path, hub: dict[str, Any], tmp_path: Path
) -> None:
    refused = qed("export", lora_run, "--push", "me/mine", "--out", tmp_path / "adapter")
    assert (refused.code, "which others cannot load. Add --merge" in refused.err) == (2, True)
    hub["files"] = {"adapter_config.json": b"{}", "figure.png": b"."}  # of an earlier upload
    hub["repos"]["me/mine"] = True
    done = qed("export", lora_run, "--merge", "--push", "mine", "--out", tmp_path / "merged", "--json")
    assert done.code == 0, done.err
    assert done.result["url"].endswith("/me/mine")
    written = {path.name: path.read_bytes() for path in (tmp_path / "merged").iterdir()}
    assert hub["files"] == {**written, "figure.png": b"."}
    assert hub["repos"] == {"me/mine": True}
    assert hub["tokens"] == {"Bearer hf_" + "a" * 30}
    assert "hf_aaa" not in done.out + done.err
    assert not any(b"hf_aaa" in content for content in written.values())
    public = qed("export", lora_run, "--merge", "--push", "me/open", "--public", "--out", tmp_path / "open")
    assert public.code == 0, public.err
    assert hub["repos"]["me/open"] is False
    again = qed("export", lora_run, "--merge", "--push", "me/open", "--out", tmp_path / "again")
    assert (again.code, "is a public repository" in again.err) == (2, True)
    closed = qed("export", lora_run, "--merge", "--push", "mine", "--public", "--out", tmp_path / "again")
    assert (closed.code, "me/mine is a private repository" in closed.err) == (2, True)
    assert not (tmp_path / "again").exists()


def test_a_push_that_cannot_be_made_says_so_before_anything_is_written(
    qed: Callable[..., Any], lora_run: Path, hub: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["export", lora_run, "--merge", "--out", tmp_path / "out", "--push"]
    assert "needs a name on the hub" in qed(*asked, "not a name").err
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "The hub cannot be reached" in qed(*asked, "me/mine").err
    monkeypatch.setattr("qed.models.push.get_token", lambda: None)
    assert "hf auth login" in qed(*asked, "me/mine").err
    assert not (tmp_path / "out").exists()
