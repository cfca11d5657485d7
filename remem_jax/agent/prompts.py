"""Prompts as text files with named slots, and the one place that says which pieces make a prompt, in which order.

A prompt is two lists of segments, prefix and suffix. A segment is token ids that never change, or the name of a
source ("question", "chunk", "recalled", "memory") whose ids are put there at every turn; each is tokenised apart.

A text stands as in its file, less one final newline. Blocks are joined by a blank line; an empty text is no block.
`{name}` is a slot only where `name` is one of `SLOTS`; all other braces, as in `\\boxed{}`, are plain text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from remem_jax.agent.protocol import Tags
from remem_jax.errors import RememError
from remem_jax.paths import local
from remem_jax.tokenizer import Tokenizer

AGENTS = ("rememr1", "memagent", "rule_callback", "full_context", "retrieval")
LOOPLESS = ("full_context", "retrieval")  # one prompt, with the document where the chunk stands
Segment = tuple[int, ...] | str
Parts = tuple[Segment, ...]

_TAG_SLOTS = tuple(f"{tag}_{side}" for tag in ("thinking", "callback", "memory") for side in ("open", "close"))
# Text name -> the slot that it must hold once. All but the two placeholders may also hold the marks of the tags.
_NEEDS = {
    "rules": None,  # a memory turn's rules, with memory marks
    "rules_bare": None,  # the same for tags without memory marks
    "rules_callback": None,  # follows the rules for the agent that writes queries
    "question": "question",
    "chunk": "chunk",
    "recalled": "recalled",
    "memory": "memory",
    "cue": None,  # the request for a memory turn's reply, with memory marks
    "cue_bare": None,  # the same for tags without memory marks
    "final_rules": None,
    "final_cue": None,
    "document_rules": None,  # rules of the agents without a loop
    "document": "document",  # takes the place of the chunk for them
    "no_memory": None,  # stands for the memory while there is none
    "no_recall": None,  # stands for the recalled memory where nothing is recalled
}
_PLACEHOLDERS = ("no_memory", "no_recall")
_CUES = ("cue", "cue_bare", "final_cue")  # never blank, so that a suffix is never empty
SLOTS = (*(slot for slot in _NEEDS.values() if slot), *_TAG_SLOTS)
_SLOT = re.compile(r"\{(" + "|".join(SLOTS) + r")\}")
_LIKE_A_SLOT = re.compile(r"\{([A-Za-z_]+)\}")

_LAYOUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "section_last": (("head", "question"), ("recalled", "memory", "chunk", "cue")),
    "section_first": (("head", "question", "chunk"), ("recalled", "memory", "cue")),
    "document_first": (("head", "chunk"), ("question", "recalled", "memory", "cue")),
    "question_last": (("head", "chunk"), ("recalled", "memory", "question", "cue")),
}
ORDERS = tuple(_LAYOUTS)


@dataclass(frozen=True)
class Prompts:
    """Every prompt text, checked; make one with `load_prompts`."""

    pairs: tuple[tuple[str, str], ...]

    def texts(self) -> dict[str, str]:
        """Text name -> text, for `remem.json`; `load_prompts` takes it back."""
        return dict(self.pairs)


@dataclass(frozen=True)
class PromptBlocks:
    """Prompt texts as token segments: block name -> segments, for memory turns and for the final turn."""

    memory_turn: Mapping[str, Parts]
    final_turn: Mapping[str, Parts]
    no_memory: tuple[int, ...]
    no_recall: tuple[int, ...]


def load_prompts(source: str | Path | Mapping[str, str] | None = None) -> Prompts:
    """Our own texts, with those of a folder (`rules.txt`, ...) or of a mapping (`rules`, ...) put in their place.

    Every text is optional. An unknown name, a missing, repeated, misplaced or misspelt slot is refused.
    """
    texts = {name: _read(resources.files("remem_jax.agent") / "prompt_texts" / f"{name}.txt") for name in _NEEDS}
    where = "prompt texts"
    if isinstance(source, Mapping):
        given = dict(source)
    elif source is None:
        given = {}
    else:
        where = f"prompt folder {source}"
        given = _read_folder(local(source))
    for name, text in given.items():
        if name not in _NEEDS:
            raise RememError(f"{where}: unknown text {name!r}, {_nearest(name, _NEEDS)}")
        if not isinstance(text, str):
            raise RememError(f"{where}: {name} must be a text, found {type(text).__name__}: give a string")
        _check(name, text, where)
    return Prompts(tuple((texts | given).items()))


def encode_blocks(prompts: Prompts, tokenizer: Tokenizer, agent: str, tags: Tags) -> PromptBlocks:
    """Tokenise every constant piece of an agent's prompts, once.

    The chat template's head and tail are the only special ids: the texts themselves are encoded with special-token
    parsing off, whoever wrote them.
    """
    _known(agent, AGENTS, "agent")
    texts = prompts.texts()
    chat_head, chat_tail = (tuple(ids) for ids in tokenizer.chat())
    bare = "_bare" if tags.memory is None else ""

    def block(*names: str, last: bool = False) -> Parts:
        filled = [_fill_tags(name, texts[name], tags) for name in names if texts[name]]
        text = "\n\n".join(filled)
        return _split_slots(text if last or not text else text + "\n\n", tokenizer)

    shared = {name: block(name) for name in ("question", "recalled", "memory")}
    memory_turn: dict[str, Parts] = {}
    if agent not in LOOPLESS:
        rules = (f"rules{bare}", "rules_callback") if agent == "rememr1" else (f"rules{bare}",)
        cue = block(f"cue{bare}", last=True)
        memory_turn = shared | {"head": (chat_head, *block(*rules)), "chunk": block("chunk"), "cue": (*cue, chat_tail)}
    final_rules = block("document_rules" if agent in LOOPLESS else "final_rules")
    final_cue = block("final_cue", last=True)
    final_turn = shared | {"head": (chat_head, *final_rules), "cue": (*final_cue, chat_tail)}
    if agent in LOOPLESS:
        final_turn["chunk"] = tuple("chunk" if s == "document" else s for s in block("document"))
    no_memory, no_recall = (tuple(tokenizer.encode(texts[name])) for name in _PLACEHOLDERS)
    return PromptBlocks(memory_turn, final_turn, no_memory, no_recall)


def layout(agent: str, order: str, final: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Block names of prefix and suffix, in order (METHOD 1): the only place that knows the order of a prompt."""
    _known(agent, AGENTS, "agent")
    _known(order, ORDERS, "prompt order")
    if agent in LOOPLESS and not final:
        raise RememError(f"agent {agent} has a final turn only, a memory turn was asked for: ask for the final turn")
    left_out = {"recalled"} if agent == "memagent" else set()
    if agent in LOOPLESS:
        left_out = {"recalled", "memory"}
    elif final:
        left_out |= {"chunk"}
    prefix, suffix = _LAYOUTS[order]
    return tuple(b for b in prefix if b not in left_out), tuple(b for b in suffix if b not in left_out)


def prompt_parts(blocks: PromptBlocks, agent: str, order: str, final: bool) -> tuple[Parts, Parts]:
    """Segments of prefix and suffix, neighbouring constants merged; the suffix ends with a constant, never empty."""
    prefix, suffix = layout(agent, order, final)
    of = blocks.final_turn if final else blocks.memory_turn
    return _merged(s for name in prefix for s in of[name]), _merged(s for name in suffix for s in of[name])


def assemble(parts: Parts, values: Mapping[str, Sequence[int]]) -> list[int]:
    """Token ids of segments, sources filled in from `values`: the plain-Python reference of the device's assembly."""
    return [token for segment in parts for token in (values[segment] if isinstance(segment, str) else segment)]


def _merged(segments: Iterable[Segment]) -> Parts:
    merged: list[Segment] = []
    for segment in segments:
        if isinstance(segment, tuple) and merged and isinstance(merged[-1], tuple):
            merged[-1] = merged[-1] + segment
        elif segment:
            merged.append(segment)
    return tuple(merged)


def _split_slots(text: str, tokenizer: Tokenizer) -> Parts:
    """Text with its tag slots already filled -> constants and sources. Every second piece is a slot's name."""
    pieces = _SLOT.split(text)
    return tuple(piece if i % 2 else tuple(tokenizer.encode(piece)) for i, piece in enumerate(pieces) if piece)


def _fill_tags(name: str, text: str, tags: Tags) -> str:
    def mark(match: re.Match[str]) -> str:
        if match[1] not in _TAG_SLOTS:
            return match[0]
        value = getattr(tags, match[1])
        if value is None:
            raise RememError(f"{name}.txt has the slot {match[0]}, but the tags have no memory marks: take it out")
        return value

    return _SLOT.sub(mark, text)


def _check(name: str, text: str, where: str) -> None:
    """Refuse a text whose slots are not those of its name."""
    file = f"{where}: {name}.txt"
    needed = _NEEDS[name]
    found = [match[1] for match in _SLOT.finditer(text)]
    allowed = () if name in _PLACEHOLDERS else (*_TAG_SLOTS, *((needed,) if needed else ()))
    for slot in found:
        if slot not in allowed:
            raise RememError(f"{file} has the slot {{{slot}}}, which does not belong there: take it out")
    for slot in _LIKE_A_SLOT.findall(text):
        near = get_close_matches(slot.lower(), SLOTS, 1, 0.8)
        if slot not in SLOTS and near:
            raise RememError(f"{file} has {{{slot}}}, which is no slot: write {{{near[0]}}}, or set spaces inside")
    if needed and found.count(needed) != 1:
        raise RememError(f"{file} must hold the slot {{{needed}}} once, found {found.count(needed)} times")
    if name in _CUES and not text.strip():
        raise RememError(f"{file} is blank: it must ask for the reply")


def _read_folder(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise RememError(f"prompt folder {folder}: expected a folder of .txt files, found none: give another path")
    texts = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith("."):
            continue
        if file.suffix != ".txt" or file.stem not in _NEEDS or not file.is_file():
            nearest = _nearest(file.name, [f"{name}.txt" for name in _NEEDS])
            raise RememError(f"prompt folder {folder}: unknown file {file.name}, {nearest}")
        texts[file.stem] = _read(file)
    return texts


def _read(file) -> str:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise RememError(f"{file}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except OSError as error:
        raise RememError(f"{file}: cannot be read ({error.strerror})") from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n")


def _nearest(name: str, known: Iterable[str]) -> str:
    return f"the nearest known one is {get_close_matches(name, known, 1, 0)[0]}"


def _known(value: str, known: Sequence[str], what: str) -> None:
    if value not in known:
        raise RememError(f"{what} must be one of {', '.join(known)}, found {value!r}")
