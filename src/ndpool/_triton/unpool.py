"""Unpooling: scatter values to their indices; of repeated indices the last in row-major order wins.

Each index is owned by the largest value number that claims it, regardless of the order of the claims, so the
result is deterministic despite the atomic maximum.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ndpool import _record
from ndpool._triton.kernels.unpool import claim_kernel, settle_kernel
from ndpool._triton.tuning import BLOCK


def unpool(values: Tensor, indices: Tensor, plane: int) -> Tensor:
    """Planes of zeros, one per row of `values`, with every value at its index."""
    if _record.recording and not values.is_contiguous():
        _record.note_copy("values: packed, pooled axes last")
    if _record.recording and not indices.is_contiguous():
        _record.note_copy("indices: packed, pooled axes last")
    values, indices = values.contiguous(), indices.contiguous()
    result = torch.empty((len(values), plane), dtype=values.dtype, device=values.device)
    n, count = values.numel(), values.shape[1]
    if not n or not plane:
        return result.zero_()
    if count >= 2**31 - 1:
        raise ValueError(f"ndpool: unpooling takes fewer than 2**31 values per plane on a GPU; got {count}")
    raw, out = (t.view(torch.uint8) if t.dtype is torch.bool else t for t in (values, result))
    owner = torch.zeros((len(values), plane), dtype=torch.int32, device=values.device)
    if _record.recording:
        for kernel in ("claim", "settle"):
            _record.note_kernel("unpool", kernel, str(values.device))
    with torch.cuda.device(values.device if values.is_cuda else -1):
        claim_kernel[(triton.cdiv(n, BLOCK),)](owner, indices, n, count, plane, BLOCK=BLOCK)
        all_ = result.numel()
        settle_kernel[(triton.cdiv(all_, BLOCK),)](owner, raw, out, all_, count, plane, BLOCK=BLOCK)
    return result
