"""Clean text before it is printed or written: remove control characters, API keys and passwords."""

from __future__ import annotations

import os
import re
from functools import lru_cache

REDACTED = "REDACTED"  # without special characters of YAML, JSON, HTML or shells
# Values of environment variables with such names are redacted; shorter values could be part of ordinary words.
NAMES = re.compile(r"KEY|TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)  # TOKENIZER may name the model
MIN_LENGTH = 12
# Patterns of keys in the format of their issuer, or after a word such as "token"; group 1 is not redacted. Each match
# contains one of the words after the pattern, in any case; searching for these first takes a tenth of the time.
PATTERNS = {
    r"\b()hf_[A-Za-z0-9]{20,}": "hf_",
    r"\b()sk-[A-Za-z0-9_-]{20,}": "sk-",
    r"\b()gh[pousr]_[A-Za-z0-9]{20,}": "ghp_ gho_ ghu_ ghs_ ghr_",
    r"\b()github_pat_[A-Za-z0-9_]{20,}": "github_pat_",
    r"\b()glpat-[A-Za-z0-9_-]{20,}": "glpat-",
    r"\b()xox[abprs]-[A-Za-z0-9-]{10,}": "xox",
    r"\b()AIza[A-Za-z0-9_-]{35}": "aiza",
    r"\b()(?:AKIA|ASIA)[0-9A-Z]{16}\b": "akia asia",
    r"\b()eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}": "eyj",
    r"(\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@'\"]{0,200}:)[^\s/@'\"]+(?=@)": "://",
    r"\b()(?:npm_|pypi-|wandb_v\d_|r8_|dop_v1_)[A-Za-z0-9_-]{20,}": "npm_ pypi- wandb_v r8_ dop_v1_",
    r"(-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----)[^-]+(?=-----END)": "private",
    r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/:@'\"]{16,}(?=@)": "://",
    r"(?i)([?&](?:token|key|sig|signature|x-amz-[a-z-]{5,20})=)[^\s&'\"]{8,}": "=",
    r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{12,}": "bearer",
    r"(?i)(wandb[^\n]{0,24}?)\b[0-9a-f]{40}\b": "wandb",
    r"(?i)((?:api|access|secret|auth|private)[_.-]?(?:access[_.-]?)?(?:key|token)"
    r"['\"]?\s*(?:[=:]|\s)\s*['\"]?)[^\s'\",}\])]{8,}": "key token",
    r"(?i)(passw(?:or)?d['\"]?\s*[=:]\s*['\"]?)[^\s'\",}\])]{4,}": "passw",
}
_KEYS = [(re.compile(pattern), words.split()) for pattern, words in PATTERNS.items()]
SHORTEST = 7  # characters of the shortest text that a pattern matches: the address a://:x@
SHORT = 200  # characters: results for texts up to this length are cached, because names and labels repeat often


def strip_control(text: str) -> str:
    """Remove control characters, with which a model's answer could control a terminal."""
    return "".join(char for char in text if char in "\n\t" or (char.isprintable() and char not in "\x7f"))


def redact(text: str) -> str:
    """Replace keys and passwords: values of secret environment variables, and everything that looks like a key."""
    if len(text) >= MIN_LENGTH:
        for name, value in os.environ.items():
            if len(value) >= MIN_LENGTH and value in text and NAMES.search(name):
                text = text.replace(value, REDACTED)
    if len(text) < SHORTEST:
        return text
    return _redact_short(text) if len(text) <= SHORT else _redact_keys(text)


def _redact_keys(text: str) -> str:
    folded = text.casefold()
    for pattern, words in _KEYS:
        if any(word in folded for word in words):
            text = pattern.sub(rf"\g<1>{REDACTED}", text)
    return text


_redact_short = lru_cache(maxsize=8192)(_redact_keys)
