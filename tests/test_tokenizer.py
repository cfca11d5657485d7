"""Tokenizers of every kind: no text becomes a special id, texts come back, cuts fall between characters."""

import json
import os
import subprocess
import sys

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from remem_jax.errors import RememError
from remem_jax.token_rules import chat_texts
from remem_jax.tokenizer import load_tokenizer
from tests import tokenizer_fixtures as made

KINDS = ["byte_level", "unigram_json", "pieces_bpe", "pieces_unigram", "pieces_gguf", "smollm2"]
SPECIAL = ["<|begin|>", "<|end|>", "<tool_call>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TEXTS = st.lists(st.sampled_from(SPECIAL) | st.text(max_size=8), max_size=8).map("".join)


@pytest.fixture(scope="module")
def all_tokenizers(tmp_path_factory, smollm2_path):
    def directory(name):
        return tmp_path_factory.mktemp(name)

    paths = {
        "byte_level": made.byte_level_bpe(directory("byte_level")),
        "unigram_json": made.unigram_json(directory("unigram_json")),
        "pieces_bpe": made.sentencepiece_model(directory("pieces_bpe"), "bpe"),
        "pieces_unigram": made.sentencepiece_model(directory("pieces_unigram"), "unigram"),
        "pieces_gguf": made.sentencepiece_gguf(directory("pieces_gguf")),
        "smollm2": smollm2_path,
    }
    return {kind: load_tokenizer(path) for kind, path in paths.items()}


@pytest.fixture(scope="module")
def smollm2(all_tokenizers):
    return all_tokenizers["smollm2"]


@pytest.fixture(scope="module")
def byte_level(all_tokenizers):
    return all_tokenizers["byte_level"]


def has_every_byte(tokenizer, text):
    """SmolLM2's vocabulary lacks some byte symbols, whose characters nobody can encode."""
    alphabet = {b: c for c, b in byte_alphabet().items()}
    return all(tokenizer.plain.token_to_id(alphabet[byte]) is not None for byte in text.encode("utf-8"))


def byte_alphabet():
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_no_text_becomes_a_special_id(all_tokenizers, kind, text):
    tokenizer = all_tokenizers[kind]
    assert not tokenizer.special_ids.intersection(tokenizer.encode(text))


@pytest.mark.parametrize("kind", KINDS[:-1])
@given(text=TEXTS.filter(lambda text: "▁" not in text))
def test_any_text_comes_back_special_strings_included(all_tokenizers, kind, text):
    tokenizer = all_tokenizers[kind]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=TEXTS)
def test_smollm2_gives_back_every_text_whose_bytes_it_has(smollm2, text):
    kept = "".join(character for character in text if has_every_byte(smollm2, character))
    assert smollm2.decode(smollm2.encode(kept)) == kept


@pytest.mark.parametrize("kind", KINDS[:-1])
@given(first=TEXTS, second=TEXTS)
def test_ids_of_segments_joined_decode_to_the_joined_text(all_tokenizers, kind, first, second):
    tokenizer = all_tokenizers[kind]
    joined = (first + second).replace("▁", " ")
    assert tokenizer.decode(tokenizer.encode(first) + tokenizer.encode(second)) == joined


@pytest.mark.parametrize("kind", KINDS)
def test_lone_surrogates_become_replacement_characters(all_tokenizers, kind):
    tokenizer = all_tokenizers[kind]
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.encode("\ud83e\udd9c") == tokenizer.encode("\U0001f99c")


def test_special_strings_are_parsed_on_request(byte_level, all_tokenizers):
    ids = byte_level.encode("<|begin|>user<|end|><tool_call>", special=True)
    assert (ids[0], ids[-2], ids[-1]) == (0, 1, 344)
    assert byte_level.special_ids == {0, 1, 344}
    pieces = all_tokenizers["pieces_bpe"]
    assert [i for i in pieces.encode("<s>a<|end|>", special=True) if i in pieces.special_ids] == [1, 4]


def test_decoding_drops_control_tokens_and_prints_added_tokens_that_are_none(byte_level, all_tokenizers):
    for tokenizer in (byte_level, all_tokenizers["pieces_bpe"], all_tokenizers["pieces_gguf"]):
        ids = tokenizer.encode("<|begin|>a letter<|end|><tool_call>", special=True)
        assert tokenizer.decode(ids) == "a letter<tool_call>"


def test_characters_outside_the_vocabulary_are_dropped_not_turned_into_the_unknown_id(tmp_path):
    pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0)]
    tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)).save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("aéb") == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_inside_a_character_drops_the_whole_character(all_tokenizers, kind):
    tokenizer = all_tokenizers[kind]
    ids = tokenizer.encode("the 🦜")
    whole = len(tokenizer.encode("the "))
    assert len(ids) - whole >= 2
    for limit in range(whole, len(ids)):
        assert tokenizer.decode(tokenizer.cut(ids, limit)).rstrip() == "the"
    assert tokenizer.cut(ids, len(ids)) == ids
    assert tokenizer.cut(ids, len(ids) + 5) == ids
    assert tokenizer.cut(ids, 0) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_keeps_replacement_characters_that_the_text_holds(all_tokenizers, kind):
    tokenizer = all_tokenizers[kind]
    ids = tokenizer.encode("a\ufffd\ufffd")
    assert tokenizer.cut(ids, len(ids)) == ids


def test_a_cut_drops_only_broken_bytes_at_the_end(byte_level):
    alphabet = {byte: character for character, byte in byte_alphabet().items()}

    def ids(raw):
        return [byte_level.whole.token_to_id(alphabet[byte]) for byte in raw]

    assert byte_level.cut(ids(b"a\xf0\x9f"), 9) == ids(b"a")
    assert byte_level.cut(ids(b"a\x80\x80"), 9) == ids(b"a")
    assert byte_level.cut(ids(b"\xf0\x9fa"), 9) == ids(b"\xf0\x9fa")
    assert byte_level.cut(ids(b"\xe2\x82\xac"), 9) == ids(b"\xe2\x82\xac")
    assert byte_level.cut([*ids(b"a\xe2\x82"), 1], 9) == ids(b"a")


@given(text=TEXTS, limit=st.integers(0, 30))
def test_a_cut_is_the_longest_whole_start_of_a_text(byte_level, text, limit):
    ids = byte_level.encode(text)
    kept = byte_level.cut(ids, limit)
    assert kept == ids[: len(kept)]
    assert len(kept) <= limit
    assert text.startswith(byte_level.decode(kept))


def test_the_chat_of_smollm2_is_its_template_around_the_message(smollm2):
    head, tail = smollm2.chat()
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nWho wrote it?<|im_end|>\n<|im_start|>assistant\n"
    assert head + smollm2.encode("Who wrote it?") + tail == smollm2.encode(text, special=True)
    assert tail == [2, 198, 1, 520, 9531, 198]


def test_our_chat_equals_the_whole_rendering_by_transformers(byte_level, tmp_path):
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(made.byte_level_bpe(tmp_path))
    message = [{"role": "user", "content": "the keeper's letter"}]
    whole = theirs.apply_chat_template(message, add_generation_prompt=True, enable_thinking=False, return_dict=False)
    head, tail = byte_level.chat()
    assert head + byte_level.encode("the keeper's letter") + tail == whole
    assert byte_level.whole.decode(tail, skip_special_tokens=False).endswith("assistant\n<think></think>")


def test_without_a_template_a_chat_is_bos_where_the_tokenizer_adds_it(all_tokenizers, tmp_path):
    assert all_tokenizers["unigram_json"].chat() == ([1], [])
    assert all_tokenizers["pieces_bpe"].chat() == ([1], [])
    made.unigram_json(tmp_path)
    made.write_json(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "add_bos_token": False})
    assert load_tokenizer(tmp_path).chat() == ([], [])


def test_a_template_file_goes_before_the_template_in_the_settings(tmp_path):
    made.byte_level_bpe(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("<|begin|>{{ messages[0].content }}<|end|>", encoding="utf-8")
    assert load_tokenizer(tmp_path).chat() == ([0], [1])


def test_of_several_templates_the_default_is_taken(tmp_path):
    made.byte_level_bpe(tmp_path)
    default = {"name": "default", "template": "{{ messages[0].content }}<|end|>"}
    templates = [{"name": "tool_use", "template": "x"}, default]
    made.write_json(tmp_path, "tokenizer_config.json", {"chat_template": templates})
    assert load_tokenizer(tmp_path).chat() == ([], [1])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].content[:5] }}", "unchanged once, found it 0 times"),
        ("{{ messages[0].content | upper }}", "unchanged once, found it 0 times"),
        ("{{ messages[0].content }} {{ messages[0].content }}", "unchanged once, found it 2 times"),
        ("{{ raise_exception('a system message is needed') }}", "a system message is needed"),
        ("{% if %}", "can't render a single user message"),
    ],
)
def test_a_template_that_mangles_the_message_is_refused(template, message):
    with pytest.raises(RememError, match=message):
        chat_texts(template, {})


def test_a_dated_template_prints_the_same_date_on_any_day():
    template = "{% if not date_string is defined %}{% set date_string = strftime_now('%d') %}{% endif %}"
    assert chat_texts(template + "{{ date_string }}|{{ messages[0].content }}", {})[0] == "26 Jul 2024|"


def test_a_chat_is_rendered_without_torch_and_in_silence(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from remem_jax.tokenizer import load_tokenizer\n"
        f"print(load_tokenizer({str(made.byte_level_bpe(tmp_path))!r}).chat()[1][0])"
    )
    clean = {name: value for name, value in os.environ.items() if name != "TRANSFORMERS_NO_ADVISORY_WARNINGS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_ids_that_end_a_reply_come_from_every_setting(byte_level, smollm2, tmp_path):
    assert byte_level.eos_ids == (1, 0)
    assert smollm2.eos_ids == (2, 0)
    assert (smollm2.bos_id, smollm2.vocab_size, len(smollm2.special_ids)) == (1, 49152, 17)
    made.byte_level_bpe(tmp_path)
    made.write_json(tmp_path, "config.json", {"eos_token_id": 7})
    (tmp_path / "generation_config.json").unlink()
    assert load_tokenizer(tmp_path).eos_ids == (7, 1)


def test_added_tokens_that_only_the_settings_list_are_special_too(tmp_path):
    made.byte_level_bpe(tmp_path)
    made.write_json(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": {"345": {"content": "<late>"}}})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<late>", special=True) == [345]
    assert tokenizer.special_ids == {0, 1, 344, 345}


def test_a_named_end_token_inside_the_base_vocabulary_is_special(tmp_path):
    path = made.byte_level_bpe(tmp_path) / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    spec["added_tokens"] = []
    made.write_json(tmp_path, "tokenizer.json", spec)
    assert load_tokenizer(path).special_ids == {0, 1}


@pytest.mark.parametrize(
    ("pre", "number", "word", "composed"),
    [
        ("gpt2", ["123", "4"], ["c", "a", "b"], False),
        ("smollm", ["1", "2", "3", "4"], ["c", "a", "b"], False),
        ("qwen2", ["1", "2", "3", "4"], ["c", "a", "b"], True),
        ("llama-bpe", ["123", "4"], ["cab"], False),
    ],
)
def test_a_gguf_vocabulary_splits_words_as_its_name_says(tmp_path, pre, number, word, composed):
    # `cab` is in the vocabulary, but no merge makes it: only Llama 3 looks whole words up.
    tokens = [*byte_alphabet(), "12", "123", "cab", "<|end|>", "<tool_call>"]
    kinds = {"<|end|>": 3, "<tool_call>": 4}
    path = made.bpe_gguf(tmp_path, pre, tokens, ["1 2", "12 3"], kinds, bos_id=259)
    tokenizer = load_tokenizer(path)
    assert [tokens[i] for i in tokenizer.encode("1234")] == number
    assert [tokens[i] for i in tokenizer.encode("cab")] == word
    assert (tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")) is composed
    assert tokenizer.special_ids == {259, 260}
    assert tokenizer.encode("<tool_call><|end|>", special=True) == [260, 259]
    assert tokenizer.decode([258, 260, 259]) == "cab<tool_call>"
    assert tokenizer.chat() == (([259], []) if pre == "llama-bpe" else ([], []))


def test_an_ordinary_token_named_as_bos_or_padding_stays_text(tmp_path):
    # Some Qwen files name token 11, a comma, as BOS; some fine-tuned models pad with an exclamation mark.
    path = made.bpe_gguf(tmp_path, "qwen2", [*byte_alphabet(), "on", "<|end|>"], ["o n"], {"<|end|>": 3}, bos_id=11)
    tokenizer = load_tokenizer(path)
    assert (tokenizer.special_ids, tokenizer.bos_id) == ({257}, None)
    assert tokenizer.decode(tokenizer.encode("one, two!")) == "one, two!"
    made.byte_level_bpe(tmp_path)
    made.write_json(tmp_path, "tokenizer_config.json", {"pad_token": "!"})
    assert load_tokenizer(tmp_path).special_ids == {0, 1, 344}


def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path):
    def message(path):
        with pytest.raises(RememError) as caught:
            load_tokenizer(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "does not exist" in message(tmp_path / "absent")
    assert "holds no tokenizer: expected tokenizer.json" in message(tmp_path)
    for content, expected in [
        ("{", "is not valid JSON"),
        ("[]", "holds a JSON list"),
        ("{}", "has no entry 'model'"),
        ('{"model": {"type": "BPE", "vocab": 3}}', "does not hold a usable tokenizer"),
    ]:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        assert expected in message(tmp_path)
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.save(str(tmp_path / "tokenizer.json"))
    assert "is a WordLevel tokenizer: supported are BPE and Unigram" in message(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b'{"a": "\xff"}')
    assert "is not UTF-8 at byte 7" in message(tmp_path)
    (tmp_path / "other.model").write_bytes(b"\xff\xff not a model")
    assert "not a SentencePiece model" in message(tmp_path / "other.model")


@pytest.mark.needs_data
def test_smollm2_ids_equal_the_reference(smollm2, data_dir):
    cases = json.loads((data_dir / "golden_generation.json").read_text(encoding="utf-8"))[0]["cases"]
    assert len(cases) == 5
    for case in cases:
        assert smollm2.encode(case["prompt"], special=True) == case["input_ids"]
        assert smollm2.decode(case["greedy_ids"]) == case["greedy_text"].removesuffix("<|im_end|>")


@pytest.mark.needs_data
@pytest.mark.needs_qwen
def test_qwen_ids_equal_the_reference(data_dir):
    tokenizer = load_tokenizer(os.environ["REMEM_QWEN_GGUF"])
    golden = json.loads((data_dir / "golden_tokenizer_qwen2.json").read_text(encoding="utf-8"))
    assert (len(golden["plain"]), len(golden["with_special_tokens"]), len(golden["chat"])) == (72, 2, 6)
    for case in golden["plain"]:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
    for case in golden["with_special_tokens"] + golden["chat"]:
        assert tokenizer.encode(case["text"], special=True) == case["ids"]
    head, tail = tokenizer.chat()
    assert head + tokenizer.encode("Hi") + tail == golden["chat"][0]["ids"]
    assert tokenizer.eos_ids == (151645, 151643)
