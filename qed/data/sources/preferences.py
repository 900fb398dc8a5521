"""Read preferences: two replies to one prompt, as in TRL, LLaMA-Factory, UltraFeedback, Orca and HH-RLHF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qed.data.sources import conversations
from qed.data.sources.fields import Fields, SkippedRow, convert_to_text, find_filled_column
from qed.data.sources.instructions import INPUTS, join_input, skip_history
from qed.data.sources.rows import Place, Row

CHOSEN, REJECTED = ("chosen", "chosen_response"), ("rejected", "rejected_response")
PROMPTS = ("context_messages", "question", "problem", "instruction", "input", "conversations")
TWO_CONVERSATIONS = "preferences between replies to two different conversations"
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"  # the turns of a transcript of HH-RLHF


def has_preference(row: Row) -> bool:
    """Return whether a row has a chosen and a rejected reply."""
    return bool(set(CHOSEN) & set(row)) and bool(set(REJECTED) & set(row))


def read_preference(row: Row, place: Place) -> Fields:
    """Read a preference: both replies go into `meta`, and the chosen one is the demonstration.

    Without a prompt column, the prompt is contained in both replies: the user's message of a conversation, a transcript
    without its last reply (the bare message if there is one turn), or else the common prefix of both texts.
    """
    keys = [next(name for name in names if name in row) for names in (CHOSEN, REJECTED)]
    chosen, rejected = (row[key] for key in keys)
    skip_history(row)
    prompt_key = _find_prompt(row, (chosen, rejected))
    if prompt_key:
        question = conversations.read_question(row[prompt_key], place, prompt_key)
        if prompt_key == "instruction":
            question = join_input(question, row, place)
    elif conversations.is_conversation(chosen):
        question = conversations.read_question(chosen, place, keys[0])
    else:
        texts = [convert_to_text(reply, place, key) for key, reply in zip(keys, (chosen, rejected), strict=True)]
        question, chosen, rejected = _split_transcripts(*texts) or _split_prefix(*texts)
    better, worse = (
        conversations.read_reply(reply, place, key) for key, reply in zip(keys, (chosen, rejected), strict=True)
    )
    _require_one_conversation(dict(zip(keys, (chosen, rejected), strict=True)), place)
    used = (prompt_key or "", *(INPUTS if prompt_key == "instruction" else ()), *keys, "history", "margin")
    margin = {} if row.get("margin") is None else {"margin": row["margin"]}
    return Fields(question, completion=better, used=used, extra={"chosen": better, "rejected": worse, **margin})


def _find_prompt(row: Row, replies: Sequence[Any]) -> str | None:
    """Return the column of the prompt, if there is one; `query` counts only if no reply repeats its question."""
    if "prompt" in row or not (key := find_filled_column(row, (*PROMPTS, "query"))):
        return "prompt" if "prompt" in row else None
    has_question = key == "query" and any(_repeats_question(reply, str(row[key]).strip()) for reply in replies)
    return None if has_question else key


def _repeats_question(reply: Any, question: str) -> bool:
    """Return whether a reply is a conversation or transcript that includes its question, or starts with this one."""
    if conversations.is_conversation(reply):
        return any(turn.get("role", turn.get("from")) in ("user", "human") for turn in reply)
    return isinstance(reply, str) and (ASSISTANT in reply or reply.lstrip().startswith(question))


def _require_one_conversation(replies: Mapping[str, Any], place: Place) -> None:
    """Raise SkippedRow if both replies (by column) include their questions, and these differ."""
    if all(map(conversations.is_conversation, replies.values())):
        asked, other = (
            [text.strip() for role, text in conversations.read_turns(turns, place, key) if role == "user"]
            for key, turns in replies.items()
        )
        if asked and other and asked != other:
            raise SkippedRow(TWO_CONVERSATIONS)


def _split_transcripts(chosen: str, rejected: str) -> tuple[str, Any, Any] | None:
    """Split two transcripts before their last reply; return None if they are not transcripts.

    Raises:
        SkippedRow: the transcripts differ before their last reply.
    """
    if not all(ASSISTANT in text and HUMAN in f"\n\n{text}" for text in (chosen, rejected)):
        return None
    (asked, _, better), (other, _, worse) = (text.rpartition(ASSISTANT) for text in (chosen, rejected))
    if asked.strip() != other.strip():
        raise SkippedRow(TWO_CONVERSATIONS)
    single = ASSISTANT not in asked and f"\n\n{asked}".count(HUMAN) == 1
    question = asked.strip().removeprefix(HUMAN.strip()) if single else asked
    return question.strip(), better.strip(), worse.strip()


def _split_prefix(chosen: str, rejected: str) -> tuple[str, Any, Any]:
    """Split two texts after their common prefix, at the end of a word."""
    pairs = zip(chosen, rejected, strict=False)
    differs = next((at for at, pair in enumerate(pairs) if len(set(pair)) > 1), len(rejected))
    # The replies may start with the same letters, so the prompt ends with the last complete word of the prefix.
    length = max(chosen.rfind(" ", 0, differs), chosen.rfind("\n", 0, differs)) + 1
    return chosen[:length], chosen[length:], rejected[length:]
