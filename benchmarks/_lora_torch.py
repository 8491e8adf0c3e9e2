"""A script that `benchmarks/language_training.py` runs as a process: steps of LoRA by PyTorch, transformers and peft.

Arguments: a GGUF file, threads, a .npz file with tokens, labels and what A begins with by layer and role, rank, rate.
Each line on standard input asks for a step; the reply is a line with a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter


def main(path: str, threads: str, given: str, rank: str, rate: str) -> None:
    """The process."""
    import numpy as np
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(os.path.dirname(path), gguf_file=path, dtype=torch.float32)
    config = LoraConfig(r=int(rank), lora_alpha=int(rank), target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = get_peft_model(model, config)
    data = np.load(given)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".lora_A." in name:
                layer, role = name.split(".layers.")[1].split(".")[0], "query" if "q_proj" in name else "value"
                value.copy_(torch.from_numpy(data[f"{layer}.{role}"].T.copy()))
    adam = torch.optim.Adam([value for value in model.parameters() if value.requires_grad], lr=float(rate))
    tokens, labels = (torch.from_numpy(data[name].astype(np.int64)) for name in ("tokens", "labels"))
    model.train()
    for _ in sys.stdin:
        begin = perf_counter()
        adam.zero_grad()
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
        loss.backward()
        adam.step()
        seconds = perf_counter() - begin
        print(json.dumps({"loss": float(loss.detach()), "seconds": seconds, "memory": peak()}), flush=True)


def peak() -> int:
    """Peak bytes of resident memory of this program."""
    with open("/proc/self/status", encoding="ascii") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
