"""SentencePiece tokenizers: from a `.model` file, or from a GGUF file that holds one (`tokenizer.ggml.model` = llama).

SentencePiece never reads control symbols out of a text, but always user-defined ones; these are made control symbols
for plain text, and special strings are looked for here where they are to be parsed.

No space is put before a text, though such models were trained with one: prompts are tokenised in segments, and a space
before each would be one that the text does not have. Joined ids of segments thus decode to the joined text.
"""

import functools
import hashlib
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from remem_jax.errors import RememError
from remem_jax.token_rules import ChatFormat, cut_ids, valid_text

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "▁"


@dataclass(frozen=True)
class PieceTokenizer:
    """A SentencePiece model; see `remem_jax.tokenizer.Tokenizer` for its methods."""

    model: sentencepiece.SentencePieceProcessor  # decodes; knows user-defined symbols
    plain: sentencepiece.SentencePieceProcessor  # encodes; knows none
    special: Mapping[str, int]
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    bos_id: int | None
    format: ChatFormat

    @property
    def vocab_size(self) -> int:
        return self.model.get_piece_size()

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha256(self.plain.serialized_model_proto()).hexdigest()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        text = valid_text(text)
        if not special or not self.special:
            return self._plain(text)
        longest_first = sorted(self.special, key=len, reverse=True)
        ids = []
        for part in re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text):
            ids += [self.special[part]] if part in self.special else self._plain(part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        known = [i for i in ids if 0 <= i < self.vocab_size and i != self.model.unk_id()]
        return self.model.decode([i for i in known if not self.model.is_control(i)])

    def show(self, ids: Sequence[int]) -> str:
        shown, text = "", []
        for i in ids:
            if 0 <= i < self.vocab_size and self.model.is_control(i):
                shown, text = shown + self.decode(text) + self.model.id_to_piece(i), []
            else:
                text.append(i)
        return shown + self.decode(text)

    def chat(self) -> tuple[list[int], list[int]]:
        return self.format.ids(lambda text: self.encode(text, special=True))

    def cut(self, ids: Sequence[int], limit: int) -> list[int]:
        return cut_ids(ids, limit, self._bytes)

    def _plain(self, text: str) -> list[int]:
        # A character outside the vocabulary becomes the unknown id, which is special: such characters are dropped.
        return [i for i in self.plain.encode(text) if i not in self.special_ids]

    def _bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self.vocab_size or self.model.is_control(token_id) or self.model.is_unknown(token_id):
            return b""
        piece = self.model.id_to_piece(token_id)
        return bytes([int(piece[3:5], 16)]) if self.model.is_byte(token_id) else piece.replace(_SPACE, " ").encode()


def build(
    source: Path,
    proto: Any,
    names: Mapping[str, str],
    eos_ids: Sequence[int],
    template: str | None,
    add_bos: bool | None,
) -> PieceTokenizer:
    """A tokenizer from a SentencePiece `ModelProto`.

    names: special strings by role, as {"bos_token": "<s>"}; the model's own BOS and EOS where absent. add_bos: whether
    a text without template starts with BOS; None: it does where there is one, as Llama and Mistral do.
    """
    proto.normalizer_spec.add_dummy_prefix = False
    model = _load(source, proto)
    kinds = (_UNKNOWN, _CONTROL, _USER_DEFINED)
    special = {piece.piece: i for i, piece in enumerate(proto.pieces) if piece.type in kinds}
    for piece in proto.pieces:
        if piece.type == _USER_DEFINED:
            piece.type = _CONTROL
    own = {"bos_token": model.bos_id(), "eos_token": model.eos_id()}
    names = {role: model.id_to_piece(i) for role, i in own.items() if i >= 0} | dict(names)
    bos_id = special.get(names.get("bos_token", ""))
    eos = [*eos_ids, special.get(names.get("eos_token", ""))]
    starts_with_bos = bos_id is not None and add_bos is not False
    return PieceTokenizer(
        model=model,
        plain=_load(source, proto),
        special=special,
        eos_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
        special_ids=frozenset(special.values()),
        bos_id=bos_id,
        format=ChatFormat(template, names, (bos_id,) if starts_with_bos and bos_id is not None else ()),
    )


def proto_of_file(path: Path) -> Any:
    """The `ModelProto` in a SentencePiece `.model` file."""
    from google.protobuf.message import DecodeError

    proto = _messages().ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except (DecodeError, OSError):
        raise RememError(f"{path} is not a SentencePiece model: give one, or a tokenizer.json") from None
    return proto


def proto_of_gguf(path: Path, metadata: Mapping[str, Any]) -> Any:
    """The `ModelProto` that a GGUF file with `tokenizer.ggml.model` = llama describes: BPE by scores."""
    keys = [f"tokenizer.ggml.{key}" for key in ("tokens", "scores", "token_type")]
    if lacking := [key for key in keys if not metadata.get(key)]:
        raise RememError(f"{path} lacks the metadata entry {lacking[0]}: fetch a file that holds its tokenizer")
    tokens, scores, kinds = (metadata[key] for key in keys)
    proto = _messages().ModelProto()
    for token, score, kind in zip(tokens, scores, kinds):
        proto.pieces.add(piece=token, score=score, type=kind)
    proto.trainer_spec.model_type = _messages().TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = _BYTE in kinds
    proto.trainer_spec.vocab_size = len(tokens)
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.remove_extra_whitespaces = False
    return proto


def _messages() -> Any:
    """SentencePiece's protobuf messages, whose classes are made at import."""
    return importlib.import_module("sentencepiece.sentencepiece_model_pb2")


def _load(source: Path, proto: Any) -> sentencepiece.SentencePieceProcessor:
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.load_from_serialized_proto(proto.SerializeToString())
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise RememError(f"{source} does not hold a usable SentencePiece model: {reason}") from None
    return model
