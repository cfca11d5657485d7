"""Text to ids and back: one small protocol over Hugging Face, SentencePiece and GGUF tokenizers.

Text never becomes a special id unless asked for, and BOS or EOS are never added: prompts are put together from segments
that are encoded apart.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from remem_jax.errors import RememError
from remem_jax.paths import local

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_NORMAL, _CONTROL = 1, 3  # tokenizer.ggml.token_type


class Tokenizer(Protocol):
    """What the rest of the package asks of a tokenizer.

    vocab_size: number of ids. eos_ids: ids that end a reply. special_ids: every id that text must never turn into:
    control tokens, the unknown token and all added tokens. bos_id: None for a vocabulary without BOS.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of all that turns plain text into ids."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, without BOS or EOS. Special strings in it are plain text, or their ids where `special`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`. Control tokens vanish, broken bytes become U+FFFD; added tokens that are not control tokens
        (`<think>`, `<tool_call>`) are printed, since a model means them as text."""
        ...

    def show(self, ids: Sequence[int]) -> str:
        """Text of `ids` with every special token spelled out, for people to look at."""
        ...

    def chat(self) -> tuple[list[int], list[int]]:
        """Ids before and after one user message by the chat template: the template's own system text, no thinking, the
        reply opened. Without a template ([BOS], []) where the tokenizer adds BOS by itself, else ([], [])."""
        ...

    def cut(self, ids: Sequence[int], limit: int) -> list[int]:
        """The first `limit` ids, less those at the end whose bytes stop inside a character."""
        ...


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a model directory (tokenizer.json, else a SentencePiece *.model), or of a file: tokenizer.json,
    a SentencePiece model, or GGUF.

    Raises RememError where there is none or it can't be read.
    """
    path = local(path)
    if path.is_dir():
        path = _in_directory(path)
    if not path.is_file():
        raise RememError(f"path {path} does not exist: give a model directory, tokenizer.json, .model or .gguf file")
    with path.open("rb") as file:
        starts_as_gguf = file.read(4) == b"GGUF"
    if starts_as_gguf or path.suffix == ".gguf":
        return _from_gguf(path)
    return _from_hugging_face(path)


def _in_directory(directory: Path) -> Path:
    """The file of a model directory that holds its tokenizer."""
    models = sorted(directory.glob("*.model"), key=lambda path: (path.name != "tokenizer.model", path.name))
    for path in (directory / "tokenizer.json", *models):
        if path.is_file():
            return path
    raise RememError(f"{directory} holds no tokenizer: expected tokenizer.json or a SentencePiece *.model in it")


def _from_hugging_face(path: Path) -> Tokenizer:
    """tokenizer.json or a SentencePiece model, with the settings that lie beside it."""
    settings = _read_json(path.parent / "tokenizer_config.json")
    special_map = _read_json(path.parent / "special_tokens_map.json")
    names = {role: _content(special_map.get(role)) for role in _ROLES}
    names |= {role: _content(settings[role]) for role in _ROLES if role in settings}
    names = {role: name for role, name in names.items() if name}
    template = _template(path.parent, settings)
    eos_ids = [i for name in ("generation_config.json", "config.json") for i in _eos_ids(path.parent / name)]
    add_bos = settings.get("add_bos_token")
    if path.suffix == ".json":
        from remem_jax import tokenizer_json

        spec = _read_json(path)
        if "model" not in spec:
            raise RememError(f"{path} is not a tokenizer.json of the tokenizers library: it has no entry 'model'")
        spec["added_tokens"] = _all_added(spec.get("added_tokens") or [], settings.get("added_tokens_decoder") or {})
        return tokenizer_json.build(path, spec, names, eos_ids, template, add_bos)
    from remem_jax import tokenizer_pieces

    return tokenizer_pieces.build(path, tokenizer_pieces.proto_of_file(path), names, eos_ids, template, add_bos)


def _from_gguf(path: Path) -> Tokenizer:
    """The tokenizer in the metadata of a GGUF file."""
    from remem_jax.model.gguf import read_metadata
    from remem_jax.model.gguf_config import eos_ids

    metadata = read_metadata(path)
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    ids = {role: metadata.get(f"tokenizer.ggml.{role}_id") for role in ("bos_token", "eos_token")}
    kinds = metadata.get("tokenizer.ggml.token_type") or [_CONTROL] * len(tokens)
    # Some files name an ordinary token, as a comma for BOS; it must stay text.
    usable = {role: i for role, i in ids.items() if i is not None and i < len(tokens) and kinds[i] != _NORMAL}
    names = {role: tokens[i] for role, i in usable.items()}
    template = metadata.get("tokenizer.chat_template")
    add_bos = metadata.get("tokenizer.ggml.add_bos_token")
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        from remem_jax import tokenizer_json

        # llama.cpp adds BOS for Llama 3 vocabularies where the file doesn't say
        adds = metadata.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3", "llama-v3") if add_bos is None else add_bos
        spec = tokenizer_json.spec_of_gguf(path, metadata)
        return tokenizer_json.build(path, spec, names, eos_ids(metadata), template, adds)
    if kind == "llama":
        from remem_jax import tokenizer_pieces

        proto = tokenizer_pieces.proto_of_gguf(path, metadata)
        return tokenizer_pieces.build(path, proto, names, eos_ids(metadata), template, add_bos)
    raise RememError(f"{path} holds a tokenizer of kind {kind}: supported in GGUF are gpt2 (byte-level BPE) and llama")


def tokenizer_files(path: str | Path) -> dict[str, bytes | Path]:
    """File name -> content or file to copy: what must lie beside exported weights so that `load_tokenizer` and
    transformers read the tokenizer at `path`, a model directory or a GGUF file. Empty for one without a tokenizer.
    """
    path = Path(path)
    if path.is_dir():
        beside = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json")
        wanted = ("tokenizer.json", *beside, "vocab.json", "merges.txt", "generation_config.json")
        return {file.name: file for name in (*wanted, "*.model") for file in sorted(path.glob(name))}
    if path.suffix != ".gguf":
        return {}
    from remem_jax.model.gguf import read_metadata

    metadata = read_metadata(path)
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    roles = {role: metadata.get(f"tokenizer.ggml.{role}_id") for role in ("bos_token", "eos_token")}
    settings = {role: tokens[i] for role, i in roles.items() if i is not None and i < len(tokens)}
    settings["chat_template"] = metadata.get("tokenizer.chat_template")
    settings["add_bos_token"] = metadata.get("tokenizer.ggml.add_bos_token")
    known = {name: value for name, value in settings.items() if value is not None}
    known["tokenizer_class"] = "PreTrainedTokenizerFast"
    files: dict[str, bytes | Path] = {"tokenizer_config.json": json.dumps(known, ensure_ascii=False).encode()}
    if metadata.get("tokenizer.ggml.model") == "gpt2":
        from remem_jax import tokenizer_json

        spec = tokenizer_json.spec_of_gguf(path, metadata)
        return files | {"tokenizer.json": json.dumps(spec, ensure_ascii=False).encode()}
    from remem_jax import tokenizer_pieces

    return files | {"tokenizer.model": tokenizer_pieces.proto_of_gguf(path, metadata).SerializeToString()}


def _all_added(added: list[dict[str, Any]], decoder: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Added tokens of tokenizer.json, then those that only tokenizer_config.json lists, by id."""
    known = {token["content"] for token in added}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    more = [{**flags, **token, "id": int(i)} for i, token in decoder.items() if token["content"] not in known]
    for token in more:
        token.pop("__type", None)
    return [*added, *sorted(more, key=lambda token: token["id"])]


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Source of the chat template: a file of its own goes before the settings; of several the one named default."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    found = settings.get("chat_template") or _read_json(directory / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found or None


def _eos_ids(path: Path) -> list[int]:
    """`eos_token_id` of a configuration file, which is a number, a list or absent."""
    found = _read_json(path).get("eos_token_id")
    return [] if found is None else found if isinstance(found, list) else [found]


def _content(token: Any) -> str | None:
    """The string of a special token, which stands as such or as a dictionary."""
    return token.get("content") if isinstance(token, dict) else token


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; {} where the file is absent."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise RememError(f"{path} is not valid JSON: {error}; fetch the file again") from None
    if not isinstance(found, dict):
        raise RememError(f"{path} holds a JSON {type(found).__name__}: expected an object; fetch the file again")
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RememError(f"{path} is not UTF-8 at byte {error.start}: fetch the file again") from None
