"""GPU pooling in Triton: finished windows and memory in, memory out; no argument checks.

`memory` decides from shapes and strides how threads walk an array, `forward` and `backward` which kernel
serves a plan, `parts` how large windows are taken in passes, `kernels` holds the kernels. Called by `frameworks/_torch_gpu.py` alone.
"""
