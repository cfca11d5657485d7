"""Documents, questions, the long contexts built of both, and the batches that training and evaluation read.

`load_contexts` is loaded on first use, so that importing a part costs no more than that part.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remem_jax.data.built import load_contexts

__all__ = ["load_contexts"]


def __getattr__(name: str) -> Any:
    if name != "load_contexts":
        raise AttributeError(f"module 'remem_jax.data' has no attribute {name!r}")
    from remem_jax.data.built import load_contexts

    return load_contexts
