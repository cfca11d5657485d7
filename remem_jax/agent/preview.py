"""The first prompt of a reading, as text, with its prefix border and token counts: what `--dry-run` prints."""

from remem_jax.agent.loop import Agent
from remem_jax.agent.prompts import LOOPLESS, assemble, prompt_parts
from remem_jax.agent.reading import Reading

BORDER = "⟪ prefix ends, suffix begins ⟫"


def first_prompt_ids(agent: Agent, reading: Reading) -> tuple[list[int], list[int]]:
    """Ids of prefix and suffix of the first prompt of `reading`."""
    config, blocks = agent.config, agent.blocks
    final = config.agent in LOOPLESS or not reading.chunks
    prefix, suffix = prompt_parts(blocks, config.agent, config.prompt_order, final)
    values = {
        "question": reading.question_ids,
        "chunk": reading.chunks[0].tolist() if reading.chunks else (),
        "memory": blocks.no_memory,
        "recalled": blocks.no_recall,
    }
    return assemble(prefix, values), assemble(suffix, values)


def first_prompt(agent: Agent, reading: Reading) -> str:
    """The exact first prompt of `reading`: special tokens spelled out, the border on a line of its own."""
    head, tail = first_prompt_ids(agent, reading)
    show = agent.model.tokenizer.show
    chunks = len(reading.chunks)
    counts = (
        f"prefix {len(head)} tokens + suffix {len(tail)} tokens = {len(head) + len(tail)}; reply up to "
        f"{agent.config.max_reply_tokens}; context {agent.model.config.max_positions}; "
        f"document {reading.document_tokens} tokens in {chunks} chunk{'' if chunks == 1 else 's'}"
    )
    return f"{show(head)}\n{BORDER}\n{show(tail)}\n\n{counts}"
