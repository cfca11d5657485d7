"""Two optimizer steps of the clipped objective with KL against transformers and torch: loss, gradients, parameters.

Axes: `B` sequences, `R` tokens of a reply. The torch side reads every sequence by itself, and its autograd, gradient
clip and AdamW are its own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.model.config import parameter_tree
from remem_jax.model.load import load_model
from remem_jax.rl.rows import Group, Reply, pack_rows
from remem_jax.rl.step import Objective, Optimizer, accumulate, apply, init_state, zeros_like

OBJECTIVE = Objective(temperature=0.8, eps_low=0.2, eps_high=0.3, beta=0.2)
# Eps is far above the usual: otherwise a first step is the sign of every gradient, rounding noise included.
OPTIMIZER = Optimizer(b1=0.8, b2=0.9, eps=1e-3, weight_decay=0.1, clip_norm=0.5)
RATE, TOTAL = 0.02, 2.0


def tiny_qwen2():
    """A random Qwen2 of transformers whose biases and norms matter."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes: dict = dict(vocab_size=90, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    config = transformers.Qwen2Config(**sizes, num_key_value_heads=2, initializer_range=0.2, tie_word_embeddings=False)
    model = transformers.Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter += 0.3 * torch.randn_like(parameter)
    return model.float()


def torch_logp(model, prefix, reply: Reply):
    """Log-probabilities `[R]` of one reply, its sequence read alone."""
    import torch

    ids = torch.tensor(np.concatenate([prefix, reply.suffix_ids, reply.reply_ids]))
    count = len(reply.reply_ids)
    logits = model(ids[None]).logits[0, -count - 1 : -1] / OBJECTIVE.temperature
    return torch.log_softmax(logits, dim=-1)[torch.arange(count), ids[-count:]]


def torch_loss(model, groups):
    """METHOD 6 on every sequence: the sum over tokens, weighted."""
    import torch

    total = torch.zeros(())
    for group in groups:
        for reply in group.replies:
            logp = torch_logp(model, group.prefix_ids, reply)
            rho = torch.exp(logp - torch.tensor(reply.logp_old))
            clipped = torch.clamp(rho, 1 - OBJECTIVE.eps_low, 1 + OBJECTIVE.eps_high)
            surrogate = torch.minimum(rho * reply.advantage, clipped * reply.advantage)
            d = torch.tensor(reply.logp_ref) - logp
            token_loss = -surrogate + OBJECTIVE.beta * (torch.exp(d) - d - 1)
            total = total + (torch.tensor(reply.weights) * token_loss).sum()
    return total


def groups_for(model) -> list[Group]:
    """Old and reference log-probabilities lie around the model's own, so that some ratios are clipped."""
    rng = np.random.default_rng(0)

    def one(prefix, suffix: int, length: int) -> Reply:
        ids = rng.integers(0, 90, suffix), rng.integers(0, 90, length)
        weights = np.full(length, 1 / length, np.float32)
        own = torch_logp(model, prefix, Reply(*ids, weights)).detach().numpy()
        old, ref = (own + rng.normal(0, scale, length).astype(np.float32) for scale in (0.3, 0.5))
        return Reply(*ids, weights, advantage=float(rng.normal()), logp_old=old, logp_ref=ref)

    prefixes = rng.integers(0, 90, 17), rng.integers(0, 90, 5)
    sizes = [(3, 6), (1, 2), (8, 4), (2, 9)], [(4, 5), (6, 1)]
    return [Group(prefix, tuple(one(prefix, *size) for size in of)) for prefix, of in zip(prefixes, sizes, strict=True)]


def stacked(params):
    layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])
    return params | {"layers": layers}


def hf_names(config, tree) -> dict[str, np.ndarray]:
    """Our stacked arrays by transformers' parameter names, layer by layer."""
    named = {}
    for path, spec in jax.tree_util.tree_leaves_with_path(parameter_tree(config, stacked=True)):
        array = np.asarray(tree[path[0].key][path[1].key] if len(path) == 2 else tree[path[0].key])
        layers = enumerate(array) if len(path) == 2 else [(0, array)]
        named |= {spec.hf_name.format(layer=i): value for i, value in layers}
    return named


@pytest.mark.parity
def test_two_adamw_steps_equal_those_of_transformers_and_torch(tmp_path):
    import torch

    theirs = tiny_qwen2()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    groups = groups_for(theirs)
    batch = pack_rows(groups)
    o = OPTIMIZER
    adamw = torch.optim.AdamW(theirs.parameters(), lr=RATE, betas=(o.b1, o.b2), eps=o.eps, weight_decay=o.weight_decay)
    state = init_state(stacked(ours.params), o)
    start = hf_names(ours.config, state.params)
    for _ in range(2):
        gradients, (loss, _), metrics = accumulate(
            zeros_like(state.params), state.params, batch, config=ours.config, objective=OBJECTIVE
        )
        adamw.zero_grad()
        wanted = torch_loss(theirs, groups)
        (wanted / TOTAL).backward()
        assert float(loss) == pytest.approx(wanted.item(), rel=1e-4)
        assert metrics["clip_high"][0] > 0 and metrics["clip_low"][0] > 0
        found = hf_names(ours.config, gradients)
        assert found.keys() == dict(theirs.named_parameters()).keys()
        for name, parameter in theirs.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.numpy() * TOTAL
            assert np.abs(found[name] - gradient).max() <= 2e-5 * np.abs(gradient).max(), name
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), o.clip_norm)
        adamw.step()
        state, metrics = apply(state, gradients, jnp.float32(TOTAL), jnp.float32(RATE), optimizer=o)
        assert norm.item() > 2 * o.clip_norm and float(metrics["grad_norm"]) == pytest.approx(norm.item(), rel=1e-5)
    after = hf_names(ours.config, state.params)
    for name, parameter in theirs.named_parameters():
        moved = np.abs(after[name] - start[name]).max()
        assert np.abs(after[name] - parameter.detach().numpy()).max() <= 1e-3 * moved, name
