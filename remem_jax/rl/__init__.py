"""Reinforcement learning of the agent: rewards, advantages and losses as pure functions on `[N, T, G]` arrays."""
