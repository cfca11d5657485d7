"""The update: gradients summed over micro-batches of packed groups, then one AdamW step on float32 master weights.

A loss is a weighted sum over tokens; its total is known before packing, so micro-batches, packing and a shared prefix
change nothing but rounding.

Axes: `N` rows, `M` reply tokens of a row, `D` hidden.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int

from remem_jax.model.config import ModelConfig
from remem_jax.model.logprobs import chosen_logprobs, chosen_logprobs_and_entropy
from remem_jax.model.transformer import Params, forward
from remem_jax.rl.lora import attach
from remem_jax.rl.losses import Sums, logprob_gap, policy_loss, supervised_loss
from remem_jax.rl.rows import TrainRows


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is minimised; static under jit. `policy_loss` and `supervised_loss` have the formulas."""

    kind: Literal["policy", "sft"] = "policy"
    """`policy`: rewards speak through advantages. `sft`: replies are given; only `temperature` counts beside it."""
    temperature: float = 1.0
    """Divides the logits, as in the sampler."""
    eps_low: float = 0.2
    """Clip bound of the ratio below 1."""
    eps_high: float = 0.2
    """Clip bound of the ratio above 1."""
    dual_clip: float | None = None
    """Bound of the loss where the advantage is negative; none is off."""
    beta: float = 0.001
    """Weight of the KL estimate; 0 needs no reference policy."""
    importance_cap: float = 2.0
    """Truncation of the importance weights, where `sampled_logp` is given."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy at each reply token."""
    log_entropy: bool = True
    """Measure the entropy without a bonus too; it has no backward pass then."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """AdamW; static under jit. The learning rate is an argument of every step."""

    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.999
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled, on every parameter."""
    clip_norm: float = 1.0
    """Global norm that gradients are scaled down to."""

    def transformation(self) -> optax.GradientTransformation:
        """The update's direction; the caller multiplies by minus the learning rate."""
        return optax.chain(
            optax.clip_by_global_norm(self.clip_norm),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(self.weight_decay),
        )


@struct.dataclass
class TrainState:
    """Float32 master weights, layers stacked, the optimizer's moments, and steps taken."""

    params: Params
    moments: Any
    step: Int[Array, ""]
    skipped: Int[Array, ""]
    """Updates left out because a gradient was not finite."""


def init_state(params: Params, optimizer: Optimizer) -> TrainState:
    """A state before the first step; call it under jit with `out_shardings` to make it where it belongs."""
    params = jax.tree.map(lambda x: jnp.array(x, jnp.float32), params)  # copies: steps donate the state
    return TrainState(params, optimizer.transformation().init(params), jnp.int32(0), jnp.int32(0))


def reply_hidden(
    params: Params, config: ModelConfig, batch: TrainRows, *, backend: str | None = None
) -> Float[Array, "NM D"]:
    """Final hidden states, flat, that predict the reply tokens of a micro-batch."""
    hidden, _ = forward(params, config, batch.rows, backend=backend)
    hidden = jnp.take_along_axis(hidden, batch.index[..., None], axis=1)
    return hidden.reshape(-1, hidden.shape[-1])


def reply_logprobs(
    params: Params, config: ModelConfig, batch: TrainRows, *, temperature: float, backend: str | None = None
) -> Float[Array, "N M"]:
    """Log-probability of every reply token of a micro-batch; only their hidden states meet the head."""
    hidden = reply_hidden(params, config, batch, backend=backend)
    return chosen_logprobs(params, hidden, batch.targets.reshape(-1), temperature=temperature).reshape(
        batch.targets.shape
    )


@functools.partial(jax.jit, static_argnames=("config", "temperature", "dtype", "backend", "lora_scale"))
def logprobs(
    params: Params | None,
    batch: TrainRows,
    *,
    config: ModelConfig,
    temperature: float,
    dtype: str = "float32",
    backend: str | None = None,
    frozen: Params | None = None,
    lora_scale: float = 1.0,
) -> Float[Array, "N M"]:
    """Log-probabilities of a micro-batch as `accumulate` computes them, for old and reference policies.

    With adapters, `params` None is the base alone: the reference policy that costs no memory.
    """
    whole = _compute_params(params, frozen, dtype, lora_scale)
    return reply_logprobs(whole, config, batch, temperature=temperature, backend=backend)


def _compute_params(params: Params | None, frozen: Params | None, dtype: str, lora_scale: float) -> Params:
    """What the model runs on: trained parameters, or frozen ones with trained adapters, in `dtype`."""
    params, frozen = jax.tree.map(lambda x: x.astype(dtype), (params, frozen))
    if frozen is None:
        if params is None:
            raise ValueError("expected params, or frozen base parameters, found neither: pass one of them")
        return params
    return frozen if params is None else attach(frozen, params, lora_scale)


@functools.partial(
    jax.jit, static_argnames=("config", "objective", "dtype", "backend", "lora_scale"), donate_argnames="gradients"
)
def accumulate(
    gradients: Params,
    params: Params,
    batch: TrainRows,
    *,
    config: ModelConfig,
    objective: Objective,
    dtype: str = "float32",
    backend: str | None = None,
    frozen: Params | None = None,
    lora_scale: float = 1.0,
) -> tuple[Params, Sums, dict[str, Sums]]:
    """Adds the gradient of a micro-batch's loss sum to `gradients`; returns it, (sum, weight) and metrics.

    `params` are the master weights; they are cast to `dtype` inside, so gradients come back in float32. With `frozen`
    base parameters, `params` are the adapters of `lora`, applied with `lora_scale`; the base has no gradient.
    Metrics hold `gap_abs` and `gap_kl` of `logprob_gap`: before the first step of a rollout batch, the sampler's gap.
    """

    def loss(params):
        whole = _compute_params(params, frozen, dtype, lora_scale)
        (total, weight), metrics = _batch_loss(whole, batch, config, objective, backend)
        return total, (weight, metrics)

    (total, (weight, metrics)), new = jax.value_and_grad(loss, has_aux=True)(params)
    return jax.tree.map(jnp.add, gradients, new), (total, weight), metrics


def _batch_loss(params, batch: TrainRows, config, objective: Objective, backend) -> tuple[Sums, dict[str, Sums]]:
    if objective.kind == "sft":
        logp = reply_logprobs(params, config, batch, temperature=objective.temperature, backend=backend)
        return supervised_loss(logp, batch.weights)
    if objective.kind != "policy":
        raise ValueError(f"expected an objective of kind policy or sft, found {objective.kind!r}: choose one of them")
    if objective.entropy_bonus or objective.log_entropy:
        hidden = reply_hidden(params, config, batch, backend=backend)
        flat = chosen_logprobs_and_entropy(
            params,
            hidden,
            batch.targets.reshape(-1),
            temperature=objective.temperature,
            gradient=bool(objective.entropy_bonus),
        )
        logp, entropy = (x.reshape(batch.targets.shape) for x in flat)
    else:
        logp = reply_logprobs(params, config, batch, temperature=objective.temperature, backend=backend)
        entropy = None
    sums, metrics = policy_loss(
        logp,
        batch.logp_old,
        batch.advantages,
        batch.weights,
        eps_low=objective.eps_low,
        eps_high=objective.eps_high,
        dual_clip=objective.dual_clip,
        beta=objective.beta,
        logp_ref=batch.logp_ref,
        entropy_bonus=objective.entropy_bonus,
        entropy=entropy,
        sampled_logp=batch.sampled_logp,
        importance_cap=objective.importance_cap,
    )
    return sums, metrics | jax.lax.stop_gradient(logprob_gap(batch.logp_old, logp, batch.weights > 0))


@functools.partial(jax.jit, static_argnames="optimizer", donate_argnames="state")
def apply(
    state: TrainState,
    gradients: Params,
    total: Float[Array, ""],
    learning_rate: Float[Array, ""],
    *,
    optimizer: Optimizer,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One AdamW step with the gradient of `sum / total`; a gradient that is not finite leaves everything as it is.

    Metrics: `grad_norm` before clipping, `finite` a flag for each leaf of the gradient in `jax.tree.leaves` order.
    """
    gradients = jax.tree.map(lambda g: g / total, gradients)
    finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)])
    ok = finite.all()
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to its integer count
        updates, moments = optimizer.transformation().update(gradients, state.moments, state.params)
    params = jax.tree.map(lambda p, u: p - learning_rate * u, state.params, updates)

    def keep(new, old):
        return jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)

    state = TrainState(
        params=keep(params, state.params),
        moments=keep(moments, state.moments),
        step=state.step + 1,
        skipped=jnp.where(ok, state.skipped, state.skipped + 1),
    )
    return state, {"grad_norm": optax.tree.norm(gradients), "finite": finite}


def zeros_like(params: Params) -> Params:
    """Gradients before the first micro-batch."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
