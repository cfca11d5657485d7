"""Tiny tokenizers made on the spot, one directory each, with special strings of every sort.

`<tool_call>` is added or user-defined but not special; `<|end|>` is special and in the base vocabulary.
"""

import io
import json
from pathlib import Path

import gguf
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = (
    "Document 1:\nThe old harbour\nThe keeper of the harbour wrote a letter to his sister in 1902.\n\n"
    "Document 2:\nThe letter\nShe answered the letter after the storm: <s> unk im_start end tool call |><|.\n"
) * 20
CONTROL = ("<|begin|>", "<|end|>")
ADDED = "<tool_call>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n"
    "{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


def write_json(directory: Path, path: str, content) -> None:
    (directory / path).write_text(json.dumps(content), encoding="utf-8")


def byte_level_bpe(directory: Path) -> Path:
    """tokenizer.json: byte-level BPE; control strings in the base vocabulary, `<tool_call>` added, template and EOS."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(CONTROL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([ADDED])
    tokenizer.save(str(directory / "tokenizer.json"))
    end = {"__type": "AddedToken", "content": "<|end|>", "lstrip": False, "normalized": False, "rstrip": False}
    config = {"bos_token": "<|begin|>", "eos_token": end, "chat_template": TEMPLATE}
    write_json(directory, "tokenizer_config.json", config)
    write_json(directory, "generation_config.json", {"eos_token_id": [1, 0]})
    return directory


def unigram_json(directory: Path) -> Path:
    """tokenizer.json: Unigram with a space put first; `<s>` and `</s>` in the vocabulary with the best score."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((f"<0x{byte:02X}>", -9.0) for byte in range(256))]
    pieces += [("▁", -2.0), ("▁the", -3.0), ("▁a", -3.0)]
    pieces += [(letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyz<>/"]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    return directory


def sentencepiece_model(directory: Path, kind: str) -> Path:
    """tokenizer.model of kind bpe or unigram, with bytes as pieces, control and user-defined symbols."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=written,
        model_type=kind,
        vocab_size=380,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        control_symbols=list(CONTROL),
        user_defined_symbols=[ADDED],
        num_threads=1,
        minloglevel=2,
    )
    (directory / "tokenizer.model").write_bytes(written.getvalue())
    return directory


def sentencepiece_gguf(directory: Path) -> Path:
    """A GGUF file without tensors whose metadata hold the SentencePiece BPE model of `sentencepiece_model`."""
    from sentencepiece import sentencepiece_model_pb2 as messages

    proto = messages.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    proto.ParseFromString((sentencepiece_model(directory, "bpe") / "tokenizer.model").read_bytes())
    path = directory / "pieces.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece.piece for piece in proto.pieces])
    writer.add_token_scores([piece.score for piece in proto.pieces])
    writer.add_token_types([piece.type for piece in proto.pieces])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    finish(writer)
    return path


def bpe_gguf(
    directory: Path, pre: str, tokens: list[str], merges: list[str], kinds: dict[str, int], bos_id: int
) -> Path:
    """A GGUF file without tensors that holds a byte-level BPE vocabulary; `kinds` of tokens that aren't normal (1)."""
    path = directory / "bpe.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([kinds.get(token, 1) for token in tokens])
    writer.add_bos_token_id(bos_id)
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
