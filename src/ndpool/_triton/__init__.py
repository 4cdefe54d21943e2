"""GPU pooling in Triton: plans and memory in, memory out; no argument checks.

`memory` describes arrays by merged axes and strides. `forward` and `backward` choose a kernel for a plan and
a layout (`strip`, `planes`, `regions`, `scan` and `walk` prepare particular kernels), `decompose` splits
large windows into several passes, `launch` holds what launchers share, and `kernels` holds the kernels. Only
the CUDA part of the PyTorch framework calls this package.
"""
