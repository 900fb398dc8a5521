"""Detect the engine of a server and its capabilities."""

from __future__ import annotations

from typing import Any

from qed.errors import UsageError
from qed.net.client import HttpClient, RequestError
from qed.sampling.server.dialect import KEY_VARIABLE, Capabilities, Reader, Server
from qed.sampling.server.native import NativeServer
from qed.sampling.server.sglang import SglangServer
from qed.sampling.server.vllm import VllmServer

SECONDS = 30.0  # timeout of requests for what a server is
DIALECTS: dict[str, type[Server]] = {"qed": NativeServer, "vllm": VllmServer, "sglang": SglangServer}


def recognise(url: str, reader: Reader, seconds: float, model: str = "", samples: bool = True) -> Server:
    """Detect a server's engine, and return a `Server` of its dialect.

    Args:
        url: address, with or without /v1.
        reader: determines how answers end.
        seconds: timeout of a request without progress.
        model: name of the model to use if it serves several; empty for the first that is not an adapter.
        samples: whether the server is used to sample, not only to score.

    Raises:
        UsageError: no server answers there, its engine is unknown, or it does not report the log-probs that it samples
            from.
    """
    client = _connect(url)
    base, card = client.url, _read_card(client, model)
    owner = str(card.get("owned_by", ""))
    engine = owner if owner in DIALECTS else _find_engine(client)
    if engine is None:
        raise UsageError(
            f"The server {base} is of '{owner}', but qed samples from servers of qed, vLLM and SGLang, which take and "
            "return token ids. Any OpenAI-compatible server can be evaluated: qed evaluate --model openai:NAME --url."
        )
    describe = {"qed": _describe_native, "vllm": _describe_vllm, "sglang": _describe_sglang}[engine]
    capabilities = describe(client, card)
    if samples and engine == "vllm":
        _require_processed(base, capabilities)
    server = DIALECTS[engine](client, capabilities, reader, seconds)
    if model and card.get("parent"):
        server.note_weights(0, model)
    if engine == "qed":
        server.note_weights(int(card["qed"]["weight_version"]))
    return server


def find_served_model(url: str) -> tuple[str, str]:
    """Return the name of the model that a server serves, and the folder or hub name of its weights.

    Raises:
        UsageError: no server answers there, or it lists no model.
    """
    client = _connect(url)
    try:
        card = _read_card(client)
        return str(card["id"]), str(card.get("root") or card["id"])
    finally:
        client.close()


def _connect(url: str) -> HttpClient:
    return HttpClient(url.rstrip("/").removesuffix("/v1"), KEY_VARIABLE)


def _read_card(client: HttpClient, model: str = "") -> dict[str, Any]:
    """Return a server's description of its first model, or of the named one; adapters have a parent.

    Raises:
        UsageError: no server answers, or it has no model of that name.
    """
    try:
        cards = client.ask("GET", "/v1/models", seconds=SECONDS)["data"]
        card: dict[str, Any] = next(each for each in cards if not each.get("parent") and each["id"])
        names = {str(each["id"]): each for each in cards}
    except RequestError as error:
        raise UsageError(_explain(client.url, error)) from error
    except (KeyError, TypeError, StopIteration, AttributeError) as error:
        raise UsageError(f"{client.url} lists no model at /v1/models, so it is not an inference server.") from error
    if model and model not in names:
        raise UsageError(f"The server {client.url} serves no model {model}; it has {', '.join(names)}.")
    return {**card, **names[model]} if model else card


def _find_engine(client: HttpClient) -> str | None:
    """Detect a server's engine by its routes; None if it is unknown."""
    for engine, route in (("sglang", "/get_model_info"), ("vllm", "/version")):
        if _ask(client, route) is not None:
            return engine
    return None


def _ask(client: HttpClient, route: str) -> dict[str, Any] | None:
    """Return the reply of a route, or None if the server has no such route."""
    try:
        found = client.ask("GET", route, seconds=SECONDS)
        return found if isinstance(found, dict) else None
    except RequestError:
        return None


def _describe_native(client: HttpClient, card: dict[str, Any]) -> Capabilities:
    details = {"root": str(card.get("root") or card["id"]), **card["qed"]}
    return Capabilities(
        "qed",
        str(details.get("qed", "")),
        card["id"],
        int(card["max_model_len"]),
        precision=str(details["precision"]),
        exact_logps=bool(details["exact_logps"]),
        records=True,
        streams=True,
        details=details,
    )


def _describe_vllm(client: HttpClient, card: dict[str, Any]) -> Capabilities:
    version = str((_ask(client, "/version") or {}).get("version", "?"))
    config = (_ask(client, "/server_info?config_format=json") or {}).get("vllm_config")
    config = config if isinstance(config, dict) else {}  # older versions return text
    mode = (config.get("model_config") or {}).get("logprobs_mode")
    worker = (config.get("parallel_config") or {}).get("worker_extension_cls")
    details = {"root": str(card.get("root") or card["id"]), "logprobs_mode": mode, "worker": worker}
    return Capabilities("vLLM", version, card["id"], int(card["max_model_len"]), streams=True, details=details)


def _require_processed(url: str, capabilities: Capabilities) -> None:
    """Require that a server reports the log-probs that it samples from."""
    mode = capabilities.details["logprobs_mode"]
    if mode not in (None, "processed_logprobs"):
        raise UsageError(
            f"The server {url} reports {mode}, which are not the log-probs that it samples from. Start vLLM "
            "with --logprobs-mode processed_logprobs."
        )


def _describe_sglang(client: HttpClient, card: dict[str, Any]) -> Capabilities:
    info = _ask(client, "/get_server_info") or _ask(client, "/server_info") or {}
    window = card.get("max_model_len") or info.get("context_length") or 1 << 30
    details = {"root": str(card.get("root") or card["id"]), "deterministic": info.get("enable_deterministic_inference")}
    return Capabilities("SGLang", str(info.get("version", "?")), card["id"], int(window), details=details)


def _explain(base: str, error: RequestError) -> str:
    if error.status in (401, 403):
        return f"The server {base} refuses the key: {error}. Put its key into the environment variable {KEY_VARIABLE}."
    if error.kind == "refused":
        return f"No server answers at {base} ({error}). Start one with: qed serve MODEL."
    return f"The server {base} does not report what it is: {error}."
