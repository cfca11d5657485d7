"""Tokenizers of the `tokenizers` library: from a Hugging Face tokenizer.json, or from the metadata of a GGUF file.

Each is built twice from one JSON description: whole, to parse special strings, and plain, with no added token and no
special string in its vocabulary, so that no text can become a special id. (The library's `encode_special_tokens` is not
enough: it still matches added tokens that aren't marked special, and leaves special strings in the base vocabulary.)
"""

import copy
import functools
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from remem_jax.errors import RememError
from remem_jax.token_rules import ChatFormat, cut_ids, valid_text

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|\p{N}" + _REST
_LLAMA3 = _CONTRACTIONS + r"|\p{N}{1,3}" + _REST
_NORMAL, _USER_DEFINED = 1, 4
# tokenizer.ggml.pre -> steps before the byte-level alphabet, NFC first?, whole words looked up before merging?
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = [{**_BYTES, "use_regex": True}]
_DIGITS = [{"type": "Digits", "individual_digits": True}, *_GPT2]


def _by_regex(pattern: str) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, _BYTES]


_PRE = {
    "default": (_GPT2, False, False),
    "gpt2": (_GPT2, False, False),
    "gpt-2": (_GPT2, False, False),
    "smollm": (_DIGITS, False, False),
    "starcoder": (_DIGITS, False, False),
    "qwen2": (_by_regex(_QWEN2), True, False),
    "llama-bpe": (_by_regex(_LLAMA3), False, True),
    "llama3": (_by_regex(_LLAMA3), False, True),
    "llama-v3": (_by_regex(_LLAMA3), False, True),
}


@dataclass(frozen=True)
class JsonTokenizer:
    """A tokenizer of the `tokenizers` library; see `remem_jax.tokenizer.Tokenizer` for its methods."""

    whole: tokenizers.Tokenizer
    plain: tokenizers.Tokenizer
    vocab_size: int
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    bos_id: int | None
    format: ChatFormat
    token_bytes: Callable[[int], bytes]

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha256(self.plain.to_str().encode()).hexdigest()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        text = valid_text(text)
        if special:
            return self.whole.encode(text, add_special_tokens=False).ids
        # A character outside the vocabulary becomes the unknown id, which is special: such characters are dropped.
        return [i for i in self.plain.encode(text, add_special_tokens=False).ids if i not in self.special_ids]

    def decode(self, ids: Sequence[int]) -> str:
        return self.whole.decode([int(i) for i in ids], skip_special_tokens=True)

    def show(self, ids: Sequence[int]) -> str:
        return self.whole.decode([int(i) for i in ids], skip_special_tokens=False)

    def chat(self) -> tuple[list[int], list[int]]:
        return self.format.ids(lambda text: self.encode(text, special=True))

    def cut(self, ids: Sequence[int], limit: int) -> list[int]:
        return cut_ids(ids, limit, self.token_bytes)


def build(
    source: Path,
    spec: dict[str, Any],
    names: Mapping[str, str],
    eos_ids: Iterable[int],
    template: str | None,
    add_bos: bool | None,
) -> JsonTokenizer:
    """A tokenizer from a tokenizer.json dictionary.

    names: special strings by role, as {"bos_token": "<s>"}. add_bos: whether a text without template starts with BOS;
    None asks the description's own post-processor.
    """
    adds_bos = _adds_bos(source, spec, names.get("bos_token")) if add_bos is None else add_bos
    spec = _without_space_prefix({**spec, "truncation": None, "padding": None, "post_processor": None})
    whole = _parse(source, spec)
    added = {token.content for token in whole.get_added_tokens_decoder().values()}
    # Not the padding token: models without one of their own name an ordinary token, which must stay text.
    roles = [names.get("bos_token"), names.get("eos_token"), _unknown(spec["model"])]
    whole.add_special_tokens(
        [name for name in roles if name and name not in added and whole.token_to_id(name) is not None]
    )
    special = whole.get_added_tokens_decoder()
    bos_id = whole.token_to_id(names["bos_token"]) if "bos_token" in names else None
    eos = [*eos_ids, whole.token_to_id(names["eos_token"]) if "eos_token" in names else None]
    return JsonTokenizer(
        whole=whole,
        plain=_parse(source, _without_special(source, spec, {i: token.content for i, token in special.items()})),
        vocab_size=max(whole.get_vocab(with_added_tokens=True).values()) + 1,
        eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
        special_ids=frozenset(special),
        bos_id=bos_id,
        format=ChatFormat(template, dict(names), (bos_id,) if adds_bos and bos_id is not None else ()),
        token_bytes=_token_bytes(whole, spec, special),
    )


def spec_of_gguf(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json dictionary that a GGUF file with `tokenizer.ggml.model` = gpt2 describes."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in _PRE:
        raise RememError(f"{path} splits words as {name}: supported in GGUF are {', '.join(_PRE)}")
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise RememError(f"{path} lacks tokenizer.ggml.tokens or .merges: fetch a file that holds its tokenizer")
    kinds = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    steps, nfc, whole_words = _PRE[name]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": token, "special": kind != _USER_DEFINED, **flags}
        for i, (token, kind) in enumerate(zip(tokens, kinds))
        if kind != _NORMAL
    ]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "ignore_merges": whole_words, "byte_fallback": False}
    model |= {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": [m.split(" ", 1) for m in merges]}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": _BYTES,
        "model": model,
    }


def _parse(source: Path, spec: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises plain Exception for whatever it can't read
        reason = " ".join(str(error).split())
        raise RememError(f"{source} does not hold a usable tokenizer: {reason}") from None


def _adds_bos(source: Path, spec: dict[str, Any], bos: str | None) -> bool:
    """True where the description's post-processor puts BOS before a text."""
    if bos is None or spec.get("post_processor") is None:
        return False
    tokens = _parse(source, spec).encode("a", add_special_tokens=True).tokens
    return tokens[:1] == [bos]


def _unknown(model: Mapping[str, Any]) -> str | None:
    """The string of a model's unknown token."""
    place = model.get("unk_id")
    return model.get("unk_token") if place is None else model["vocab"][place][0]


def _without_space_prefix(spec: dict[str, Any]) -> dict[str, Any]:
    """The description without the space that SentencePiece-like tokenizers put before a text.

    Prompts are tokenised in segments, and such a space before each would be one that the text does not have; without
    it the ids of joined segments decode to the joined text.
    """

    def mend(step: Any, key: str) -> Any:
        if step is None:
            return None
        kind = step["type"]
        if kind == "Sequence":
            parts = [mend(part, key) for part in step[key]]
            return {**step, key: [part for part in parts if part is not None]}
        if kind == "Prepend" or (kind == "Strip" and key == "decoders" and step.get("content") == " "):
            return None
        if kind == "Metaspace":
            kept = {name: step[name] for name in ("type", "replacement", "split") if name in step}
            return {**kept, "prepend_scheme": "never"}
        return {**step, "add_prefix_space": False} if kind == "ByteLevel" else step

    keys = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    return {**spec, **{part: mend(spec.get(part), key) for part, key in keys.items()}}


def _without_special(source: Path, spec: dict[str, Any], special: Mapping[int, str]) -> dict[str, Any]:
    """The description of a tokenizer that can't produce the ids of `special` from any text."""
    model = copy.copy(spec["model"])
    strings = set(special.values())
    if model["type"] == "BPE":
        model["vocab"] = {token: i for token, i in model["vocab"].items() if token not in strings}
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if not strings & {a, b, a + b}]
        model |= {"unk_token": None, "dropout": None}
    elif model["type"] == "Unigram":
        # Places are ids, so a piece can't be removed; it is renamed to what nobody can have written.
        hidden = secrets.token_hex(16)
        vocab = [list(piece) for piece in model["vocab"]]
        for i in special:
            if i < len(vocab):
                vocab[i][0] = f"{hidden}-{i}"
        model["vocab"] = vocab
    else:
        raise RememError(f"{source} is a {model['type']} tokenizer: supported are BPE and Unigram")
    return {**spec, "added_tokens": [], "model": model}


def _token_bytes(
    whole: tokenizers.Tokenizer, spec: dict[str, Any], special: Mapping[int, tokenizers.AddedToken]
) -> Callable[[int], bytes]:
    """A function from an id to the bytes that `decode` makes of it: none for control tokens and unknown ids."""
    decoder = spec.get("decoder") or {}
    kinds = {step["type"] for step in decoder.get("decoders", [decoder]) if step}
    alphabet = _byte_alphabet()

    def of(token_id: int) -> bytes:
        if token_id in special:
            return b"" if special[token_id].special else special[token_id].content.encode("utf-8")
        token = whole.id_to_token(token_id) or ""
        if "ByteLevel" in kinds:
            return bytes(alphabet[c] for c in token if c in alphabet)
        if "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.encode("utf-8")

    return of


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: a visible Latin-1 character is its own byte, the others follow from 256."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
