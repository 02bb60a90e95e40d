"""Declares the two ops that importing torchvision asks for: its wheels are built for CUDA, and
where that is missing they do not load what declares them. The models need no such op.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
FOUND = find_spec("torchvision") if find_spec("torch") is not None else None

if FOUND is not None and FOUND.origin is not None:
    import torch

    try:
        torch.ops.load_library(str(Path(FOUND.origin).with_name("_C.so")))
    except OSError:
        LIBRARY = torch.library.Library("torchvision", "DEF")
        for NAME in ("nms", "qnms"):
            LIBRARY.define(NAME + NMS)
