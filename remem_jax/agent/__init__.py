"""The agent: what a reply means, what a memory recalls, what a prompt holds, and the loop over a document's chunks.

Nothing is imported here, so that the parts on plain text work before JAX is loaded.
"""
