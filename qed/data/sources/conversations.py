"""Rows that are conversations: lists of messages, in the forms of OpenAI, ShareGPT, TRL, verl and LUFFY."""

from __future__ import annotations

from typing import Any, TypeGuard

from qed.data.sources.fields import Fields, SkippedRow, convert_answer, convert_to_text
from qed.data.sources.rows import Place, Row
from qed.errors import DataError

TRACES, PROBABILITIES = "target_lst", "target_ds_qwen_7b_probs"  # LUFFY's
MOST_TRACES = 5
ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names


def is_conversation(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Whether a value is a list of messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(turn, dict) for turn in value)


def read_turns(value: Any, place: Place, key: str) -> list[tuple[str, str]]:
    """The messages as (role, text), system messages left out: a prompt of ours asks in its own words."""
    if not is_conversation(value):
        raise DataError(f"{place}: {key} is no list of messages: {str(value)[:80]}")
    found = []
    for turn in value:
        role = turn.get("role", turn.get("from"))
        said = turn.get("content", turn.get("value"))
        if role is None or said is None:
            raise DataError(f"{place}: a message of {key} has no role or no content: {str(turn)[:80]}")
        found.append((ROLES.get(role, role), convert_to_text(said, place, key)))
    return [(role, said) for role, said in found if role != "system"]


def read_question(value: Any, place: Place, key: str) -> str:
    """The question of a prompt, given as text or as messages."""
    if not is_conversation(value):
        return convert_to_text(value, place, key)
    said = [said for role, said in read_turns(value, place, key) if role == "user"]
    if len(said) != 1:
        raise SkippedRow("conversations that do not ask one question")
    return said[0]


def read_reply(value: Any, place: Place, key: str) -> str:
    """The reply, given as text or as messages."""
    if not is_conversation(value):
        return convert_to_text(value, place, key)
    said = [said for role, said in read_turns(value, place, key) if role == "assistant"]
    if len(said) != 1:
        raise SkippedRow("conversations that do not give one answer")
    return said[0]


def read_messages(row: Row, place: Place) -> Fields:
    """A conversation as TRL and prime-rl keep it; `messages` win over the prompt and completion beside them."""
    return _read_single_turn(row, place, "messages")


def read_sharegpt(row: Row, place: Place) -> Fields:
    """A conversation as ShareGPT keeps it."""
    return _read_single_turn(row, place, "conversations")


def _read_single_turn(row: Row, place: Place, key: str) -> Fields:
    """One question and one answer."""
    found = read_turns(row[key], place, key)
    if [role for role, _ in found] != ["user", "assistant"]:
        raise SkippedRow("conversations that are not one question and one answer")
    return Fields(found[0][1], completion=found[1][1], used=(key, "prompt", "completion"))


def read_verl(row: Row, place: Place) -> Fields:
    """A row of verl or LUFFY: messages to ask with, the gold in `reward_model`, LUFFY's worked trace in `target`.

    LUFFY's `target_lst` holds several traces, `target_ds_qwen_7b_probs` how likely each token of `target` was to its
    writer, negative where that is not known; they become `traces` and `trace_probabilities` in `meta`.

    Data made for verl may have an instruction around the question, and then keeps the bare question in `extra_info`;
    what `qed data convert` writes keeps the solution, the subject and the level there too.
    """
    gold = row["reward_model"].get("ground_truth")
    target = row.get("target")
    completion = ""
    if isinstance(target, str) or is_conversation(target):
        completion = read_reply(target, place, "target")
    traces = [convert_to_text(trace, place, TRACES) for trace in row.get(TRACES) or ()][:MOST_TRACES]
    probabilities = [float(value) for value in row.get(PROBABILITIES) or ()] if completion else []
    question = read_question(row["prompt"], place, "prompt")
    info = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
    bare, solution = (info[key] if isinstance(info.get(key), str) else "" for key in ("question", "solution"))
    return Fields(
        bare if bare.strip() and bare in question else question,
        convert_answer(gold, place, "reward_model.ground_truth") if gold is not None else "",
        solution,
        completion or next(iter(traces), ""),
        ("prompt", "reward_model", "target", TRACES, PROBABILITIES, "__index_level_0__"),
        {key: info[key] for key in ("subject", "level") if info.get(key) is not None}
        | ({"traces": traces} if traces else {})
        | ({"trace_probabilities": probabilities} if probabilities else {}),
    )


def read_preference(row: Row, place: Place) -> Fields:
    """TRL's preferences: the better and the worse reply in `meta`, the better one to imitate.

    Without a prompt, the prompt is what both begin with.
    """
    chosen, rejected = row["chosen"], row["rejected"]
    if "prompt" in row:
        question = read_question(row["prompt"], place, "prompt")
        better, worse = read_reply(chosen, place, "chosen"), read_reply(rejected, place, "rejected")
    elif is_conversation(chosen):
        question = read_question(chosen, place, "chosen")
        better, worse = read_reply(chosen, place, "chosen"), read_reply(rejected, place, "rejected")
    else:
        better, worse = convert_to_text(chosen, place, "chosen"), convert_to_text(rejected, place, "rejected")
        alike = next((at for at, pair in enumerate(zip(better, worse, strict=False)) if len(set(pair)) > 1), len(worse))
        # The replies may begin alike: the prompt ends with the last word that both have whole.
        length = max(better.rfind(" ", 0, alike), better.rfind("\n", 0, alike)) + 1
        question, better, worse = better[:length], better[length:], worse[length:]
    return Fields(
        question,
        completion=better,
        used=("prompt", "chosen", "rejected"),
        extra={"chosen": better, "rejected": worse},
    )
