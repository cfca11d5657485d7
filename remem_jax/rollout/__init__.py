"""Generation for groups of prompts that share a prefix: packed prefill, two-part cache, sampling, size buckets."""

from remem_jax.rollout.generate import Generation, generate
from remem_jax.rollout.sampling import row_keys

__all__ = ["Generation", "generate", "row_keys"]
