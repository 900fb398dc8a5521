"""The text of each token is its part of the text of all, whatever the tokens are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from qed.errors import DataError
from qed.models.load import build_tokenizer
from qed.models.token_text import MAX_FILE, TokenText, encode_tokenizer, load_token_text

ADDED = {"id": 3, "content": "xxx", "single_word": False, "lstrip": False, "rstrip": False, "special": False}
GROWING = {"type": "Replace", "pattern": {"String": "x"}, "content": "xx"}
WORDS = ("\u2581", "\u2581a", "b", "\u2581the", "日", "x")


def make_byte_level(folder: Path) -> tuple[Tokenizer, TokenText]:
    """The tokenizer of a new model, of which a token may end within a character."""
    tokenizer = build_tokenizer(["the cat sat on the mat, 日本"], 300)
    tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)  # leaves traces in the tokenizer
    (folder / "bytes.json").write_bytes(encode_tokenizer(tokenizer) or b"")
    plain = Tokenizer.from_file(str(folder / "bytes.json"))
    assert (plain.truncation, plain.padding) == (None, None)
    return plain, load_token_text(folder / "bytes.json")


def make_sentence_piece(folder: Path) -> tuple[Tokenizer, TokenText]:
    """One of words that begin with a space, and of single bytes, as those of Llama 2 and Gemma."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [], byte_fallback=True))
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.save(str(folder / "pieces.json"))
    return tokenizer, load_token_text(folder / "pieces.json")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Tokenizer, TokenText]]:
    """Tokenizers of both kinds."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return [make_byte_level(folder), make_sentence_piece(folder)]


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 320) | st.integers(257, 262) | st.just(-1), max_size=40))
def test_the_texts_of_tokens_joined_are_the_text(both: list[tuple[Tokenizer, TokenText]], ids: list[int]) -> None:
    """Also of bytes that are no text, and of ids that are no token."""
    for tokenizer, text in both:
        pieces = text.split(ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == tokenizer.decode([one for one in ids if one >= 0], skip_special_tokens=False)
        assert all(isinstance(text.name(one), str) and text.name(one) for one in ids)


def test_a_character_belongs_to_the_token_that_ends_it(both: list[tuple[Tokenizer, TokenText]]) -> None:
    tokenizer, text = both[1]
    names = ["\u2581the", *(f"<0x{byte:02X}>" for byte in "é😀".encode()), "\u2581a", "<0x0A>", "日"]
    ids = [tokenizer.token_to_id(name) or 0 for name in names]
    assert text.split(ids) == ["the", "", "é", "", "", "", "😀", " a", "\n", "日"]
    assert [text.name(one) for one in ids[:2]] == [" the", "\\xc3"]
    tokenizer, text = both[0]
    pieces = text.split(tokenizer.encode("ü😀 the", add_special_tokens=False).ids)
    assert pieces[:6] == ["", "ü", "", "", "", "😀"]
    assert text.name(9999) == "<9999>"


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    for content in (b"", b"{}", b'{"model": 3}', b"\xff", b"[" * 99_999):
        file.write_bytes(content)
        with pytest.raises(DataError, match=re.escape(str(file))):
            load_token_text(file)
    with file.open("wb") as large:
        large.truncate(MAX_FILE + 1)
    with pytest.raises(DataError, match="larger than"):
        load_token_text(file)
    with pytest.raises(DataError, match="cannot be read"):
        load_token_text(tmp_path / "missing.json")


HARMFUL = {
    "a long token": {"model": {"type": "WordLevel", "vocab": {"x" * 513: 0}, "unk_token": "x"}},
    "a long added token": {"added_tokens": [{**ADDED, "content": "x" * 513}]},
    "a regular expression": {"decoder": {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""}},
    "growth": {"decoder": {"type": "Sequence", "decoders": [GROWING] * 40}},
    "growth between characters": {"decoder": {"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": ""}]}},
    "a failure": {"decoder": {"type": "Strip", "content": "x", "start": 0, "stop": 5}},
    "many parts": {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 17}},
    "a sequence in it": {"decoder": {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": []}]}},
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_tokenizer_that_would_end_the_process_is_refused(tmp_path: Path, name: str) -> None:
    """Where the library gets no more memory, no error is raised: the process ends."""
    file = tmp_path / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}
    usual = {"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": model}
    file.write_text(json.dumps(usual))
    assert load_token_text(file).split([0, 0]) == ["x", "x"]
    file.write_text(json.dumps({**usual, **HARMFUL[name]}))
    with pytest.raises(DataError, match=r"a token of more than|an unknown part"):
        load_token_text(file)


def test_what_only_encodes_is_not_read(tmp_path: Path) -> None:
    """A normalizer works on the added tokens while a tokenizer is loaded."""
    double = {"type": "Replace", "pattern": {"String": "x"}, "content": "xx"}
    parts = {"type": "Sequence", "normalizers": [double] * 64}
    model = {"type": "BPE", "vocab": {"x": 0, "y": 1, "xy": 2}, "merges": [["x", "y"]]}
    added = [{**ADDED, "normalized": True}]
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": added, "normalizer": parts, "model": model}))
    text = load_token_text(file)
    assert [text.name(one) for one in range(4)] == ["x", "y", "xy", "xxx"]


def test_a_slow_tokenizer_has_no_file() -> None:
    assert encode_tokenizer(object()) is None
