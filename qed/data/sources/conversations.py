"""Read rows with conversations: lists of messages in the schemas of OpenAI, ShareGPT, TRL, verl and LUFFY."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, TypeGuard

from qed.data.sources.fields import Fields, SkippedRow, convert_answer, convert_to_text, read_answer_beside_reply
from qed.data.sources.rows import Place, Row
from qed.errors import DataError

TRACES, PROBABILITIES = "target_lst", "target_ds_qwen_7b_probs"  # LUFFY's
ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names


def is_conversation(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether a value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) for turn in value)


def read_turns(value: Any, place: Place, key: str) -> list[tuple[str, str]]:
    """Return the messages as (role, text), without system messages, because qed's prompts have their own."""
    if not is_conversation(value):
        raise DataError(f"{place}: {key} is not a list of messages: {str(value)[:80]}")
    turns = []
    for turn in value:
        role = turn.get("role", turn.get("from"))
        content = turn.get("content", turn.get("value"))
        if content is None and turn.get("tool_calls"):
            raise SkippedRow("conversations with tool calls")
        if not isinstance(role, str) or content is None:
            raise DataError(f"{place}: a message of {key} has no role or no content: {str(turn)[:80]}")
        turns.append((ROLES.get(role, role), read_content(content, place, key)))
    return [(role, text) for role, text in turns if role != "system"]


def read_content(content: Any, place: Place, key: str) -> str:
    """Return the text of a message, given as a text or as a list of text parts.

    Raises:
        SkippedRow: a part is an image or another kind.
    """
    if not isinstance(content, list):
        return convert_to_text(content, place, key)
    texts = [part.get("text") if isinstance(part, dict) else part for part in content]
    if any(text is None for text in texts):
        raise SkippedRow("conversations with images or other parts that are not text")
    return "".join(convert_to_text(text, place, key) for text in texts)


def read_question(value: Any, place: Place, key: str) -> str:
    """Return the question of a prompt, given as text or as messages."""
    if not is_conversation(value):
        return convert_to_text(value, place, key)
    return _read_only_turn(read_turns(value, place, key), "user", "conversations that do not ask one question")


def read_reply(value: Any, place: Place, key: str) -> str:
    """Return the reply, given as text, as a message or as messages."""
    if isinstance(value, dict):
        content = next((value[name] for name in ("content", "value", "text") if name in value), None)
        return read_content(content, place, key)
    if not is_conversation(value):
        return convert_to_text(value, place, key)
    return _read_only_turn(read_turns(value, place, key), "assistant", "conversations that do not give one answer")


def _read_only_turn(turns: list[tuple[str, str]], role: str, reason: str) -> str:
    """Return the text of a role's only turn; skip the row with a reason if the role has no or several turns."""
    texts = [text for own, text in turns if own == role]
    if len(texts) != 1:
        raise SkippedRow(reason)
    return texts[0]


def read_messages(row: Row, place: Place) -> Fields:
    """Read a conversation of TRL or prime-rl; `messages` take precedence over prompt and completion in the same row."""
    return _read_single_turn(row, place, "messages")


def read_sharegpt(row: Row, place: Place) -> Fields:
    """Read a ShareGPT conversation."""
    return _read_single_turn(row, place, "conversations")


def _read_single_turn(row: Row, place: Place, key: str) -> Fields:
    """Read a conversation of one question and one reply; with a gold answer the reply may be missing."""
    turns = read_turns(row[key], place, key)
    answer_key, answer = read_answer_beside_reply(row, place)
    roles = [role for role, _ in turns]
    if roles != ["user", "assistant"] and not (answer.strip() and roles == ["user"]):
        raise SkippedRow("conversations that are not one question and one answer")
    reply = "".join(text for _, text in turns[1:])
    return Fields(turns[0][1], answer, completion=reply, used=(key, "prompt", "completion", answer_key))


def read_verl(row: Row, place: Place) -> Fields:
    """Read a row of verl or LUFFY: messages in `prompt`, the gold in `reward_model`, LUFFY's demonstration in `target`.

    LUFFY's `target_lst` has several demonstrations; `target_ds_qwen_7b_probs` has the probability of each token of
    `target` under the model that wrote it, negative if unknown. They become `traces` and `trace_probabilities` in
    `meta`.

    Data for verl may have an instruction around the question, and the bare question in `extra_info`; rows written by
    `qed data convert` also have the solution, the subject and the level there.
    """
    gold = row["reward_model"].get("ground_truth")
    target = row.get("target")
    completion = ""
    if isinstance(target, str) or is_conversation(target):
        completion = read_reply(target, place, "target")
    traces = _read_traces(row.get(TRACES), place)
    probabilities = [float(value) for value in row.get(PROBABILITIES) or ()] if completion else []
    question = read_question(row["prompt"], place, "prompt")
    info = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
    bare, solution = (info[key] if isinstance(info.get(key), str) else "" for key in ("question", "solution"))
    return Fields(
        bare if bare.strip() and bare in question else question,
        _convert_gold(gold, place) if gold is not None else "",
        solution,
        completion or next(iter(traces), ""),
        ("prompt", "reward_model", "target", TRACES, PROBABILITIES, "__index_level_0__"),
        {key: info[key] for key in ("subject", "level") if info.get(key) is not None}
        # Rewards of verl users read values other than texts unchanged.
        | ({"ground_truth": gold} if isinstance(_read_listed(gold), dict | list) else {})
        | ({"traces": traces} if traces else {})
        | ({"trace_probabilities": probabilities} if probabilities else {}),
    )


def _read_traces(given: Any, place: Place) -> list[str]:
    """Return a list of demonstrations, each in a form of `target`: a text, a message or messages. Skip nulls.

    A list of messages that includes a user's is one conversation.
    """
    roles = [str(turn.get("role", turn.get("from"))) for turn in given] if is_conversation(given) else []
    is_single = not isinstance(given, list) or "user" in [ROLES.get(role, role) for role in roles]
    return [read_reply(each, place, TRACES) for each in ([given] if is_single else given) if each]


def _read_listed(gold: Any) -> Any:
    """Return a ground truth that is a JSON list of one text, as in Skywork-OR1, as that list; others unchanged."""
    if isinstance(gold, str) and gold.startswith('["'):
        with suppress(ValueError):
            listed = json.loads(gold)
            return listed if len(listed) == 1 and isinstance(listed[0], str) else gold
    return gold


def _convert_gold(gold: Any, place: Place) -> str:
    """Convert verl's ground truth to text: the `target` of a dict, the first of several alternatives."""
    gold = _read_listed(gold)
    if not isinstance(gold, dict):
        return convert_answer(gold, place, "reward_model.ground_truth")
    target = gold.get("target", gold.get("answer"))
    if isinstance(target, list | tuple):
        target = next(iter(target), None)
    plain = isinstance(target, str | int | float)
    return convert_answer(target, place, "reward_model.ground_truth.target") if plain else json.dumps(gold)
