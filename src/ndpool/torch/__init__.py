"""PyTorch modules computed by ndpool, and two ways to use ndpool in an existing model.

`accelerate` swaps the pooling modules of a model in place; `patch` replaces the pooling functions of
`torch.nn.functional`. Both can be undone. `warmup` compiles GPU kernels ahead. Importing this package imports
PyTorch; `import ndpool` does not.
"""

from ndpool.torch._accelerate import Entry, Report, accelerate, restore
from ndpool.torch._patch import Patch, patch, unpatch
from ndpool.torch._warmup import warmup
from ndpool.torch.modules import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    FractionalMaxPool2d,
    FractionalMaxPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
)

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "Entry",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Patch",
    "Report",
    "accelerate",
    "patch",
    "restore",
    "unpatch",
    "warmup",
]
