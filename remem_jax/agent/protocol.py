"""What a reply says: the memory and the query of a memory turn, the boxed answer of the final turn.

Reads only what the policy wrote, in time linear in its length; no text at all makes it raise (METHOD 2).
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from remem_jax.errors import RememError

_BOX_OPEN = re.compile(r"\\box(?:ed)?\{")
_BRACE = re.compile(r"\\[{}]|[{}]")


@dataclass(frozen=True)
class Tags:
    """Names of the marks, without brackets; `memory=None` makes the whole reply the memory."""

    thinking: str = "thinking"
    callback: str = "callback"
    memory: str | None = "memory"

    def __post_init__(self):
        names = [self.thinking, self.callback] + ([] if self.memory is None else [self.memory])
        for name in names:
            if not isinstance(name, str) or not name or re.search(r"[<>/\s]", name):
                raise RememError(
                    f"a tag name is a word without spaces, '/', '<' and '>', found {name!r}: set another name"
                )
        if len(set(names)) < len(names):
            raise RememError(f"tag names must differ, found {', '.join(names)}: set a name of its own for each")

    @property
    def thinking_open(self) -> str:
        return f"<{self.thinking}>"

    @property
    def thinking_close(self) -> str:
        return f"</{self.thinking}>"

    @property
    def callback_open(self) -> str:
        return f"<{self.callback}>"

    @property
    def callback_close(self) -> str:
        return f"</{self.callback}>"

    @property
    def memory_open(self) -> str | None:
        return None if self.memory is None else f"<{self.memory}>"

    @property
    def memory_close(self) -> str | None:
        return None if self.memory is None else f"</{self.memory}>"


@dataclass(frozen=True)
class Reply:
    """A memory turn's reply.

    memory: the stripped body of the memory, None when the reply is invalid.
    callback: the stripped query; None when there is none (or the reply is invalid), "" for a blank one. Both are
      falsy and mean no query.
    reason: "" when valid, else one of thinking_mark, no_memory, unclosed_memory, two_memories, two_callbacks,
      stray_mark, nested, blank_memory.
    """

    memory: str | None
    callback: str | None
    valid: bool
    reason: str


def parse_reply(text: str, tags: Tags = Tags(), *, callbacks: bool = True) -> Reply:
    """Parse a memory turn's reply (METHOD 2, rules 1 to 3): valid as a whole, or nothing of it counts.

    callbacks=False is for agents that write no queries: callback marks are then plain text, also inside the memory.
    With `Tags(memory=None)` the memory is all that is left once the thinking and the callback pair are taken out.
    """
    rest = _without_thinking(text, tags)
    if tags.thinking_open in rest or tags.thinking_close in rest:
        return _invalid("thinking_mark")
    marks = [m for m in _mark_pattern(tags).finditer(rest) if callbacks or m["name"] != tags.callback]
    kinds = [m["slash"] + ("c" if m["name"] == tags.callback else "m") for m in marks]
    reason = _fault(kinds, tags.memory is not None)
    if reason:
        return _invalid(reason)
    spans = {kind: m.span() for kind, m in zip(kinds, marks)}
    callback = rest[spans["c"][1] : spans["/c"][0]].strip() if "c" in spans else None
    if tags.memory is not None:
        memory = rest[spans["m"][1] : spans["/m"][0]].strip()
    elif "c" in spans:
        memory = (rest[: spans["c"][0]] + rest[spans["/c"][1] :]).strip()
    else:
        memory = rest.strip()
    return Reply(memory, callback, True, "") if memory else _invalid("blank_memory")


def parse_answer(text: str) -> str | None:
    """The stripped body of the last complete box, or None where there is none (METHOD 2, rule 5)."""
    boxes = _boxes(text)
    return text[boxes[-1][0] : boxes[-1][1]].strip() if boxes else None


def count_boxes(text: str) -> int:
    """How many complete boxes a reply holds; a box inside a complete box does not count."""
    return len(_boxes(text))


def _invalid(reason: str) -> Reply:
    return Reply(None, None, False, reason)


@lru_cache(maxsize=64)
def _mark_pattern(tags: Tags) -> re.Pattern[str]:
    names = [tags.callback] + ([] if tags.memory is None else [tags.memory])
    return re.compile(f"<(?P<slash>/?)(?P<name>{'|'.join(map(re.escape, names))})>")


def _without_thinking(text: str, tags: Tags) -> str:
    """Text without its complete thinking blocks, each from an open mark to the first close mark after it."""
    kept, at = [], 0
    while True:
        start = text.find(tags.thinking_open, at)
        end = text.find(tags.thinking_close, start) if start >= 0 else -1
        if end < 0:
            return "".join(kept) + text[at:]
        kept.append(text[at:start])
        at = end + len(tags.thinking_close)


def _fault(kinds: list[str], has_memory_marks: bool) -> str:
    """Why this sequence of marks (m, /m, c, /c) is not one memory pair and at most one callback pair; "" if it is."""
    count = {kind: kinds.count(kind) for kind in ("m", "/m", "c", "/c")}
    if has_memory_marks and not count["m"] and not count["/m"]:
        return "no_memory"
    if count["m"] == 1 and not count["/m"]:
        return "unclosed_memory"
    if count["m"] > 1 and count["/m"] > 1:
        return "two_memories"
    if count["c"] > 1 and count["/c"] > 1:
        return "two_callbacks"
    for name in "mc":
        if count[name] != count["/" + name] or (count[name] and kinds.index("/" + name) < kinds.index(name)):
            return "stray_mark"
    in_a_row = all(kinds[i + 1] == "/" + kinds[i] for i in range(0, len(kinds), 2))
    return "" if in_a_row else "nested"


def _boxes(text: str) -> list[tuple[int, int]]:
    r"""Spans of the bodies of the outermost complete boxes, in order.

    One pass with a stack: matching a close brace with the last open one finds the same box as counting from each
    open mark would, without starting over at each of them. `\{` and `\}` are no braces.
    """
    box_braces = {m.end() - 1 for m in _BOX_OPEN.finditer(text)}
    stack: list[int] = []
    boxes: list[tuple[int, int]] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            stack.append(brace.start())
        elif brace[0] == "}" and stack:
            start = stack.pop()
            if start in box_braces:
                while boxes and boxes[-1][0] > start:
                    boxes.pop()
                boxes.append((start + 1, brace.start()))
    return boxes
