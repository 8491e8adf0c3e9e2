"""A script that `benchmarks/augmentation.py` runs as a process: the same policies by torchvision.

A line of JSON (policy, size, images) on standard input is a turn; it is answered by CPU seconds for all images: each
image by itself as in a data set of torch, with nearest and with linear interpolation, and whole batches at once (which
torchvision changes all in the same way).
"""

from __future__ import annotations

import json
import sys
from time import process_time

import torch
from torchvision.transforms import InterpolationMode, v2

torch.set_num_threads(1)
KINDS = {"RandAugment": v2.RandAugment, "TrivialAugment": v2.TrivialAugmentWide}
images: dict = {}
for line in sys.stdin:
    said = json.loads(line)
    key = said["images"], said["size"]
    if key not in images:
        made = torch.Generator().manual_seed(0)
        images[key] = torch.randint(0, 256, (key[0], 3, key[1], key[1]), dtype=torch.uint8, generator=made)
    answer = {}
    for name, mode in (("torchvision", InterpolationMode.NEAREST), ("torchvision, linear", InterpolationMode.BILINEAR)):
        transform = KINDS[said["policy"]](interpolation=mode)
        begun = process_time()
        torch.stack([transform(image) for image in images[key]])
        answer[name] = process_time() - begun
    begun = process_time()
    for part in images[key].split(key[0] // 4):
        transform(part)
    answer["torchvision, linear, one change for a batch"] = process_time() - begun
    print(json.dumps(answer), flush=True)
