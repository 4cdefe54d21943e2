"""GPU pooling in Triton: finished windows and memory in, memory out; no argument checks.

`memory` decides from shapes and strides how threads walk an array, `forward` and `backward` which kernel
serves a plan, `kernels` holds these. Called by `frameworks/_torch_gpu.py` alone.
"""
