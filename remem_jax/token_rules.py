"""What all tokenizers share: the chat template split around one user message, cutting ids, text made valid.

A tokenizer brings its vocabulary; these rules make three kinds of vocabulary behave alike.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from remem_jax.errors import RememError

_PLACEHOLDER = "remem-user-message-b6d1"
# Llama 3 templates print today's date unless told one; this is the date they fall back to, so prompts don't age.
_DATE = "26 Jul 2024"
_LONGEST_CHARACTER = 4  # bytes


@dataclass(frozen=True)
class ChatFormat:
    """How a conversation becomes text.

    template: Jinja source, or None for a model without one. names: what the template may insert, as `bos_token`.
    bos: ids that open a text without a template: the BOS id where the tokenizer itself adds one, else nothing.
    """

    template: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    bos: tuple[int, ...] = ()

    def ids(self, encode: Callable[[str], list[int]]) -> tuple[list[int], list[int]]:
        """Ids before and after one user message; `encode` turns text with special strings into ids."""
        if self.template is None:
            return list(self.bos), []
        head, tail = chat_texts(self.template, self.names)
        return encode(head), encode(tail)


def chat_texts(template: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Text before and after one user message: no system message, generation prompt on, thinking mode off.

    Raises RememError for a template that fails, or that does not print a user message unchanged exactly once.
    """
    with _quiet_import():
        from transformers.utils.chat_template_utils import render_jinja_template
    import jinja2

    conversation = [{"role": "user", "content": _PLACEHOLDER}]
    options: dict[str, Any] = {"add_generation_prompt": True, "enable_thinking": False, "date_string": _DATE, **names}
    try:
        rendered = render_jinja_template([conversation], chat_template=template, **options)[0][0]
    except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise RememError(f"the chat template can't render a single user message: {reason}") from None
    parts = rendered.split(_PLACEHOLDER)
    if len(parts) != 2:
        found = f"found it {len(parts) - 1} times"
        raise RememError(f"expected the chat template to print the user message unchanged once, {found}: mend it")
    return parts[0], parts[1]


def cut_ids(ids: Sequence[int], limit: int, token_bytes: Callable[[int], bytes]) -> list[int]:
    """The first `limit` ids; then ids are dropped from the end while their bytes end inside a UTF-8 character.

    Bytes are looked at, not decoded text: a text may really end in U+FFFD, which is what broken bytes decode to.
    """
    kept = list(ids[: max(limit, 0)])
    while kept and _ends_broken(_tail(kept, token_bytes)):
        kept.pop()
    return kept


def valid_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates, which no encoding can hold, replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _tail(ids: Sequence[int], token_bytes: Callable[[int], bytes]) -> bytes:
    """The last bytes of the ids, enough of them to hold a whole character."""
    tail = b""
    for token in reversed(ids):
        tail = token_bytes(token) + tail
        if len(tail) >= _LONGEST_CHARACTER:
            break
    return tail


def _ends_broken(tail: bytes) -> bool:
    """True where the last character of `tail` is not whole."""
    starts = [place for place, byte in enumerate(tail) if byte & 0xC0 != 0x80]
    try:
        tail[starts[-1] if starts else 0 :].decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


@contextmanager
def _quiet_import():
    """Imports transformers without its advice to install torch, which nothing here needs."""
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
