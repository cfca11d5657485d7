"""Where a relay agent starts: its SentencePiece tokenizer, trained on the spot, and a tiny Qwen2-form checkpoint.

All that is special is in the first weights: two heads of the first layer look one and two tokens back by their biases.

Axes: `L` layers, `D` hidden, `H` heads, `h` head size, `F` feed-forward, `V` vocabulary.
"""

import importlib
import io
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece

from remem_jax.config import AgentConfig, write_agent_json
from remem_jax.data.relay_task import WORDS
from remem_jax.model.config import ModelConfig, Spec, parameter_tree, rope_frequencies
from remem_jax.model.safetensors import save_model

EOS_ID = 1
_LOOK_BACK = 4.0  # of both biases: a head's scores differ by tens between the token meant and its neighbours
_CONTENT = 0.1  # scale of the first layer's query and key weights: what a token is hardly matters there at first
_ADDED = 0.25  # scale of what attention and feed-forward add to the stream


def train_tokenizer() -> bytes:
    """A SentencePiece model in which every word of the task is one piece, wherever it stands.

    Its normaliser puts a space (SentencePiece's own, ▁) before each word that has none: the first word of a text, or
    one behind a new line, is then the same piece as any other.
    """
    spaced = {space + word: f"▁{word}" for word in WORDS for space in ("", " ", "\n")} | {"\n": " "}
    lines = [f"{_code_points(found)}\t{_code_points(put)}" for found, put in spaced.items()]
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "rules.tsv"
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(WORDS),
            model_writer=model,
            model_type="word",
            use_all_vocab=True,
            vocab_size=len(WORDS) + 2,
            unk_id=0,
            eos_id=EOS_ID,
            bos_id=-1,
            pad_id=-1,
            normalization_rule_tsv=str(table),
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
    proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(model.getvalue())
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # a path, which would differ from run to run
    return proto.SerializeToString(deterministic=True)


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):04X}" for character in text)


def start_config() -> ModelConfig:
    """A decoder of 155,000 parameters (L 3, D 64, H 2, h 32, F 172)."""
    return ModelConfig(
        model_type="qwen2",
        vocab_size=len(WORDS) + 2,
        hidden_size=64,
        intermediate_size=172,
        num_layers=3,
        num_heads=2,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-6,
        rope_theta=20.0,
        rope_scaling=None,
        tie_embeddings=True,
        qkv_bias=True,
        o_bias=False,
        qk_norm=False,
        max_positions=1024,
        eos_ids=(EOS_ID,),
    )


def start_params(config: ModelConfig, seed: int = 0) -> dict:
    """First weights, float32, layers as a tuple; equal seeds give equal weights.

    The embedding has variance 1, which the gain of the last norm takes back, so that the first loss is `ln V`. What
    layers add to the stream starts small: without this, learning to look facts up takes 700 or 3,000 steps by chance.
    """
    chance = np.random.default_rng(seed)

    def draw(spec: Spec) -> np.ndarray:
        if spec.init == "normal":
            return chance.normal(0, spec.shape[1] ** -0.5, spec.shape).astype(np.float32)
        return np.full(spec.shape, {"ones": 1, "zeros": 0}[spec.init], np.float32)

    tree = parameter_tree(config)
    params = {name: draw(spec) for name, spec in tree.items() if name != "layers"}
    layers = [{name: draw(spec) for name, spec in layer.items()} for layer in tree["layers"]]
    params["embed"] *= np.float32(config.hidden_size**0.5)
    params["norm"] *= np.float32(2 / config.hidden_size)
    first, *others = layers
    first |= _looking_back(config) | {name: np.float32(_CONTENT) * first[name] for name in ("q", "k")}
    for layer in others:
        layer |= {name: chance.normal(0, 0.5, layer[name].shape).astype(np.float32) for name in ("q_bias", "k_bias")}
    for layer in layers:
        layer |= {name: np.float32(_ADDED) * layer[name] for name in ("o", "down")}
    return params | {"layers": tuple(layers)}


def _looking_back(config: ModelConfig) -> dict[str, np.ndarray]:
    """Query and key biases `[H * h]` with which head `i` attends to the token `i + 1` places back.

    Rotated to its place p, a key is exp(ipf) at each frequency f, and a query at place q is exp(i(q - back)f): their
    product is largest where p = q - back.
    """
    frequencies, _ = rope_frequencies(config)
    backs = np.arange(1, config.num_heads + 1)[:, None] * frequencies
    query = np.concatenate([np.cos(backs), -np.sin(backs)], axis=1)
    key = np.concatenate([np.ones_like(backs), np.zeros_like(backs)], axis=1)
    return {
        "q_bias": (_LOOK_BACK * query).reshape(-1).astype(np.float32),
        "k_bias": (_LOOK_BACK * key).reshape(-1).astype(np.float32),
    }


def write_start(path: str | Path, agent: AgentConfig, seed: int = 0) -> None:
    """A new model directory with weights, tokenizer and the agent's settings (`remem.json`)."""
    config = start_config()
    with tempfile.TemporaryDirectory() as folder:
        settings = write_agent_json(folder, agent)
        files = {"tokenizer.model": train_tokenizer(), settings.name: settings}
        save_model(path, config, start_params(config, seed), extra_files=files)
