"""The relay's starting point: one token a word, weights that look back and know nothing, an ordinary checkpoint."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.agent.protocol import parse_answer, parse_reply
from remem_jax.config import read_agent_json
from remem_jax.data.relay_start import start_config, start_params, train_tokenizer, write_start
from remem_jax.data.relay_task import WORDS, agent_settings, make_records
from remem_jax.model import load_model, token_logprobs
from remem_jax.model.config import count_parameters
from remem_jax.model.transformer import embed, rms_norm, rope_tables, rotate
from remem_jax.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A starting checkpoint."""
    path = tmp_path_factory.mktemp("relay") / "start"
    write_start(path, agent_settings("memagent"), seed=3)
    return path


def relay_tokens(tokenizer, count: int) -> jax.Array:
    """`[count, 24]` ids of the facts of questions of 8 documents."""
    return jnp.array(
        [tokenizer.encode("\n".join(p.text for p in record.paragraphs)) for record in make_records(8, count, "tokens")]
    )


def test_every_word_is_one_token_wherever_it_stands(start):
    tokenizer = load_tokenizer(start)
    alone = {word: tokenizer.encode(word) for word in WORDS}
    assert all(len(ids) == 1 for ids in alone.values())
    assert len({ids[0] for ids in alone.values()}) == len(WORDS)
    together = [alone[word][0] for word in WORDS]
    assert tokenizer.encode(" ".join(WORDS)) == tokenizer.encode("\n".join(WORDS)) == together
    assert tokenizer.encode("  " + "".join(f"{word} \n" for word in WORDS)) == together


def test_text_of_ids_reads_as_the_protocol_and_gives_the_ids_back(start):
    tokenizer = load_tokenizer(start)
    reply = "<memory> home BORIS OSLO </memory> <callback> BORIS </callback>"
    text = tokenizer.decode(tokenizer.encode(reply))
    parsed = parse_reply(text)
    assert (parsed.memory, parsed.callback, parsed.valid) == ("home BORIS OSLO", "BORIS", True)
    assert tokenizer.encode(parsed.memory or "") == tokenizer.encode(reply)[1:4]
    assert parse_answer(tokenizer.decode(tokenizer.encode("home BORIS OSLO \\box{ OSLO }"))) == "OSLO"


def test_unknown_words_are_left_out_and_nothing_is_put_before_a_text(start):
    tokenizer = load_tokenizer(start)
    assert tokenizer.encode("Zurich home now") == tokenizer.encode("home")
    assert tokenizer.chat() == ([], [])
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (None, (1,), len(WORDS) + 2)


def test_the_tokenizer_is_the_same_every_time():
    assert train_tokenizer() == train_tokenizer()


def test_the_checkpoint_loads_with_the_agents_settings(start):
    assert read_agent_json(start) == agent_settings("memagent")
    model = load_model(start)
    assert model.config == start_config()
    assert 150_000 < count_parameters(model.config) < 160_000
    assert jnp.array_equal(model.params["embed"], start_params(start_config(), seed=3)["embed"])
    assert not jnp.array_equal(model.params["embed"], start_params(start_config(), seed=4)["embed"])


def test_the_first_loss_is_that_of_a_guess_among_all_words(start):
    model = load_model(start)
    tokens = relay_tokens(model.tokenizer, 20)
    logp = token_logprobs(model, tokens, jnp.full(20, 24))
    assert abs(-float(logp.mean()) - np.log(len(WORDS) + 2)) < 0.15


def test_heads_of_the_first_layer_look_one_and_two_tokens_back(start):
    model = load_model(start)
    config, layer = model.config, model.params["layers"][0]
    tokens = relay_tokens(model.tokenizer, 1)[0]

    @jax.jit
    def attention(tokens):
        y = rms_norm(embed(model.params, tokens), layer["attn_norm"], config.rms_norm_eps)
        turned = rope_tables(config, jnp.arange(24))
        q, k = (rotate((y @ layer[name].T + layer[f"{name}_bias"]).reshape(24, 2, 32), *turned) for name in ("q", "k"))
        return jnp.einsum("qhd,khd->hqk", q, k) * 32**-0.5

    scores = np.array(attention(tokens))
    for head, back in ((0, 1), (1, 2)):
        for place in range(back, 24):
            seen = scores[head, place, : place + 1]
            weights = np.exp(seen - seen.max())
            assert seen.argmax() == place - back
            assert weights[place - back] / weights.sum() > 0.9


@pytest.mark.parity
def test_transformers_loads_the_checkpoint_and_gives_our_log_probabilities(start):
    import torch
    import transformers

    model = load_model(start)
    tokens = relay_tokens(model.tokenizer, 4)
    ids = torch.tensor(np.asarray(tokens), dtype=torch.long)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    with torch.no_grad():
        logits = theirs(ids).logits[:, :-1]
    expected = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    np.testing.assert_allclose(token_logprobs(model, tokens, jnp.full(4, 24)), expected.numpy(), atol=2e-5)
