"""GRPO steps of two peers on the work of `train_step.Trainer.step`: transformers + torch, and google-tunix.

The torch step is written as its libraries suggest: `generate` with its cache, one forward pass of the reference, one
forward and backward pass with the head on the reply's positions alone, AdamW.

Axes: `G` rollouts, `R` reply tokens.
"""

import copy
import dataclasses
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from remem_jax.errors import RememError
from remem_jax.model.config import ModelConfig


class TorchTrainer:
    """A policy of transformers in training beside its reference, with the weights of a model of ours."""

    def __init__(self, model, *, beta: float):
        import torch
        from generate import torch_twin

        self.torch, self.beta = torch, beta
        self.policy = torch_twin(model)
        self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-4, weight_decay=0.01)

    def step(self, prompts: Sequence[Sequence[int]], new: int) -> dict[str, float]:
        """Seconds of each phase of one step on a group of prompts and replies of `new` tokens."""
        torch = self.torch
        began = time.perf_counter()
        ids = torch.tensor(prompts)
        with torch.no_grad():
            whole = self.policy.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
            )
            rolled = time.perf_counter()
            reference = self.logprobs(self.reference, whole, new) if self.beta else None
        scored = time.perf_counter()
        self.update(whole, new, reference)
        done = time.perf_counter()
        parts = {"rollout": rolled - began, "reference": scored - rolled, "update": done - scored}
        return parts | {"all": done - began}

    def update(self, whole, new: int, reference) -> None:
        """One AdamW step; the old log-probabilities are the policy's own, as before a first update."""
        torch = self.torch
        rewards = (whole[:, -new:] % 2 == 0).float().mean(dim=1)
        advantages = (rewards - rewards.mean())[:, None]
        policy = self.logprobs(self.policy, whole, new)
        ratio = torch.exp(policy - policy.detach())
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        if reference is not None:
            difference = reference - policy
            loss = loss + self.beta * (torch.exp(difference) - difference - 1)
        self.optimizer.zero_grad()
        loss.mean().backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()

    def logprobs(self, model, whole, new: int):
        """Log-probabilities `[G, R]` of the last `new` tokens; the head runs on the positions before them."""
        logits = model(whole, use_cache=False, logits_to_keep=new + 1).logits[:, :-1]
        return logits.log_softmax(dim=-1).gather(2, whole[:, -new:, None])[..., 0]


class TunixTrainer:
    """google-tunix in a process of its own, which runs while we wait and waits while we run."""

    def __init__(self, python: Path, config: ModelConfig, *, group: int, prompt: int, new: int, beta: float):
        numbers = {"group": group, "prompt": prompt, "new": new, "beta": beta}
        command = [str(python), str(Path(__file__).with_name("train_tunix.py"))]
        command += ["--sizes", json.dumps(dataclasses.asdict(config))]
        command += [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as the process
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        self.versions = self._answer()

    def step(self) -> dict[str, float]:
        """Seconds of each phase of one step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process, which ends with its input."""
        self.process.communicate()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.close()
            self.errors.seek(0)
            last = (self.errors.read().strip() or "nothing").splitlines()[-1]
            raise RememError(f"--tunix: expected a Python with google-tunix 0.1.7, found: {last}")
        return json.loads(line)
