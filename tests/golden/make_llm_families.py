"""Writes llm_families.json with PyTorch: `python -m tests.golden.make_llm_families`."""

import json

import numpy as np

from tests.models.llm.families import FAMILIES, GOLDEN, NEW_TOKENS, prompts
from tests.models.llm.peer import torch_greedy, torch_logits, torch_model

KEPT_LOGITS = 12


def main() -> None:
    made = {}
    for name in FAMILIES:
        model = torch_model(name)
        logits = [torch_logits(model, prompt)[-1, :KEPT_LOGITS] for prompt in prompts()]
        tokens = [torch_greedy(model, prompt, NEW_TOKENS) for prompt in prompts()]
        made[name] = {
            "last_logits": [[float(f"{x:.7g}") for x in row] for row in np.stack(logits)],
            "greedy": [" ".join(map(str, row)) for row in tokens],
        }
    GOLDEN.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
