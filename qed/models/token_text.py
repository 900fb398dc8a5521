"""The text of each token of an answer, from a `tokenizer.json`, without transformers.

A token of a byte-level tokenizer may end within a character. The joined texts of the tokens are the text of the answer,
so a character belongs to the token with its last byte, and earlier tokens have no part of it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from qed.errors import DataError
from qed.runs.step_file import parse_row

NAME = "tokenizer.json"
MAX_FILE = 1 << 27  # bytes; the largest public ones have about 35 MB
CONTEXT = 8  # preceding tokens to decode with a token, if tokens are not bytes
SEARCHED = 32  # characters within which a token's text is searched
MAX_ID = 1 << 32
MAX_TOKEN = 512  # characters; the longest in public tokenizers are 128 spaces
MAX_PARTS = 16  # of a decoder
# Decoder parts whose output is hardly longer than the tokens, and that cannot fail.
PLAIN_PARTS = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "WordPiece")
BROKEN = "\ufffd"
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def encode_tokenizer(tokenizer: Any) -> bytes | None:
    """Encode a fast tokenizer as `tokenizer.json`, without truncation and padding; return None for others."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    text = backend.to_str()
    if backend.truncation is not None or backend.padding is not None:
        plain = Tokenizer.from_str(text)
        plain.no_truncation()
        plain.no_padding()
        text = plain.to_str()
    return str(text).encode()


def load_token_text(file: Path) -> TokenText:
    """Load the tokenizer of a run.

    Raises:
        DataError: the file is missing, damaged or far too large.
    """
    try:
        if file.stat().st_size > MAX_FILE:
            raise DataError(f"{file} is larger than {MAX_FILE >> 20} MiB, so it is not a tokenizer.")
        description = _reduce(parse_row(file.read_bytes()))
        return TokenText(Tokenizer.from_str(json.dumps(description)), _is_byte_level(description))
    except DataError:
        raise
    # The library raises a bare Exception or, if it panics, a BaseException.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise DataError(f"{file} cannot be read as a tokenizer: {str(error)[:200]}.") from None


class TokenText:
    """Splits answers into the texts of their tokens.

    Args:
        tokenizer: tokenizer of the library tokenizers.
        byte_level: whether its tokens are bytes, each written as a character.
    """

    def __init__(self, tokenizer: Any, byte_level: bool) -> None:
        self._tokenizer = tokenizer
        self._byte_level = byte_level

    def split(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, including special ones; joined, they are the text of all.

        An id unknown to the tokenizer has no text.
        """
        return self._split_bytes(ids) if self._byte_level else self._split_windows(ids)

    def name(self, token: int) -> str:
        """Return the text of a single token; bytes that are not a complete character as `\\xNN`."""
        text = self._find(token)
        if text is None:
            return f"<{token}>"
        if self._byte_level:
            return _read_bytes(text).decode("utf-8", "backslashreplace")
        found = BYTE.fullmatch(text)
        if found:
            return bytes.fromhex(found[1]).decode("utf-8", "backslashreplace")
        return text.replace("\u2581", " ")

    def _find(self, token: int) -> str | None:
        """Return a token as in the vocabulary."""
        text = self._tokenizer.id_to_token(token) if 0 <= token < MAX_ID else None
        return text if isinstance(text, str) else None

    def _split_bytes(self, ids: Sequence[int]) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = [decoder.decode(_read_bytes(self._find(token) or "")) for token in ids]
        if pieces:
            pieces[-1] += decoder.decode(b"", final=True)
        return pieces

    def _split_windows(self, ids: Sequence[int]) -> list[str]:
        """Return what each token adds to the preceding text, located in the text of all."""
        whole, begin = self._decode(ids), 0
        pieces: list[str] = []
        for added in self._list_additions(ids):
            # A decoder may treat a few tokens differently from the same ones in the whole; later ones find the place.
            found = whole.find(added, begin, begin + len(added) + SEARCHED)
            end = begin if found < 0 else found + len(added)
            pieces.append(whole[begin:end])
            begin = end
        if pieces:
            pieces[-1] += whole[begin:]
        return pieces

    def _list_additions(self, ids: Sequence[int]) -> Iterator[str]:
        """Yield what each token adds to the text of the few preceding tokens."""
        done = 0  # tokens whose text has been yielded
        for end in range(1, len(ids) + 1):
            begin = max(0, done - CONTEXT)
            text = self._decode(ids[begin:end])
            if text.endswith(BROKEN) and end - done < CONTEXT:
                yield ""  # a later token completes the character
                continue
            yield text[len(self._decode(ids[begin:done])) :]
            done = end

    def _decode(self, ids: Sequence[int]) -> str:
        known = [token for token in ids if 0 <= token < MAX_ID]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))


def _reduce(description: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a tokenizer needed to decode.

    A run's folder may come from a stranger, and the library ends the process if it runs out of memory: a few tokens of
    a
    million characters, or a decoder that doubles a text a few dozen times, would be enough.

    Raises:
        ValueError: a token is too long, or the decoder has a part that is not known to be harmless.
    """
    model, added = dict(description["model"]), description.get("added_tokens") or []
    names = (entry if isinstance(entry, str) else entry[0] for entry in model["vocab"])
    if any(len(name) > MAX_TOKEN for name in (*names, *(token["content"] for token in added))):
        raise ValueError(f"it has a token of more than {MAX_TOKEN} characters")
    parts = _list_parts(description)
    if len(parts) > MAX_PARTS or not all(map(_is_harmless, parts)):
        raise ValueError("its decoder has an unknown part")
    if "merges" in model:
        model["merges"] = []  # needed only to encode
    plain = [{**token, "normalized": False} for token in added]
    return {"version": "1.0", "added_tokens": plain, "decoder": description.get("decoder"), "model": model}


def _list_parts(description: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a tokenizer's decoder."""
    decoder = description.get("decoder") or {}
    if decoder.get("type") == "Sequence":
        return list(decoder["decoders"])
    return [decoder] if decoder else []


def _is_harmless(part: dict[str, Any]) -> bool:
    kind = part["type"]
    if kind == "Replace":  # a regular expression may run forever, and longer replacements would add up
        pattern = part["pattern"].get("String")
        return bool(pattern) and len(part["content"]) <= len(pattern)
    if kind == "Strip":  # the library fails when it strips the end of a text that is too short
        return bool(part["stop"] == 0)
    if kind in ("BPEDecoder", "CTC"):  # an empty text would be replaced between all characters
        return bool(part["suffix"] if kind == "BPEDecoder" else part["word_delimiter_token"])
    return kind in PLAIN_PARTS


def _is_byte_level(description: dict[str, Any]) -> bool:
    """Return whether a tokenizer's decoder is only that of byte-level BPE, alone or in a sequence."""
    return [part.get("type") for part in _list_parts(description)] == ["ByteLevel"]


def _read_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token; added tokens are plain text."""
    try:
        return bytes(BYTES[character] for character in token)
    except KeyError:
        return token.encode("utf-8", "replace")


def _list_bytes() -> dict[str, int]:
    """Return the byte of each character that byte-level BPE writes: itself if printable, otherwise one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


BYTES = _list_bytes()
