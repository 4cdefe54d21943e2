"""The list of benchmark cases: pooling layers of well-known networks, and cases from public issues.

The runner times them and those of `array_cases`; the tests run each one at a reduced size. A group is one row
of the summary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ndpool._bench.array_cases import ARRAY_CASES, IMAGE_CASES
from ndpool._bench.case import Case


def select(
    pattern: str | None = None, quick: bool = False, of: Sequence[Case] | None = None
) -> tuple[Case, ...]:
    """The cases whose name, network, group or suite has the pattern; if quick, the smallest of each group."""
    wanted = f"*{(pattern or '').lower()}*"
    cases = tuple(
        case
        for case in (ALL_CASES if of is None else of)
        if any(
            fnmatchcase(text.lower(), wanted) for text in (case.name, case.network, case.group, case.suite)
        )
    )
    if not cases:
        raise ValueError(f"bench: no case matches {pattern!r}; --list shows them all")
    if not quick:
        return cases
    smallest: dict[str, Case] = {}
    for case in cases:
        if case.group not in smallest or case.moved < smallest[case.group].moved:
            smallest[case.group] = case
    return tuple(smallest.values())


_Row = tuple[str, str, tuple[int, ...]] | tuple[str, str, tuple[int, ...], Mapping[str, Any]]


def _group(
    group: str, function: str, arguments: Mapping[str, Any], *rows: _Row, **common: Any
) -> Iterator[Case]:
    for name, network, shape, *changes in rows:
        fields: dict[str, Any] = {"function": function, "arguments": arguments, **common}
        yield Case(name, network, group, shape=shape, **(fields | dict(changes[0] if changes else {})))


def _window(kernel: Any, stride: Any, padding: Any = 0, **more: Any) -> dict[str, Any]:
    return {"kernel_size": kernel, "stride": stride, "padding": padding, **more}


def _same(kernel: int) -> dict[str, Any]:
    return _window(kernel, 1, kernel // 2)


_2X2, _3X3_PADDED, _3X3 = _window(2, 2), _window(3, 2, 1), _window(3, 2)
_3X3_CEIL = {"arguments": _window(3, 2, 0, ceil_mode=True)}
_NHWC = {"layout": "NHWC"}
_7X7_STRIDE_1 = {"function": "avg_pool2d", "arguments": _window(7, 1)}
_TO_7, _TO_6 = {"output_size": 7}, {"arguments": {"output_size": 6}}

CASES: tuple[Case, ...] = (
    *_group(
        "max 2x2 s2 NCHW",
        "max_pool2d",
        _2X2,
        ("vgg-224", "VGG-16", (1, 64, 224, 224)),
        ("vgg-224-b4", "VGG-16", (4, 64, 224, 224)),
        ("vgg-112", "VGG-16", (1, 128, 112, 112)),
        ("vgg-56-b8", "VGG-16", (8, 256, 56, 56)),
        ("vgg-28-b8", "VGG-16", (8, 512, 28, 28)),
        ("vgg-14-b8", "VGG-16", (8, 512, 14, 14)),
        ("unet-568", "U-Net", (1, 64, 568, 568)),
        ("image-8k-2x2", "photographs", (1, 1, 8192, 8192)),
    ),
    *_group(
        "max 2x2 s2 NHWC",
        "max_pool2d",
        _2X2,
        ("vgg-224-nhwc", "VGG-16", (1, 64, 224, 224)),
        ("vgg-224-b4-nhwc", "VGG-16", (4, 64, 224, 224)),
        ("vgg-56-b8-nhwc", "VGG-16", (8, 256, 56, 56)),
        ("vgg-14-b8-nhwc", "VGG-16", (8, 512, 14, 14)),
        layout="NHWC",
    ),
    *_group(
        "max 3x3 s2 NCHW",
        "max_pool2d",
        _3X3_PADDED,
        ("resnet-stem-b1", "ResNet", (1, 64, 112, 112)),
        ("resnet-stem-b8", "ResNet", (8, 64, 112, 112)),
        ("resnet-stem-b32", "ResNet", (32, 64, 112, 112)),
        ("pytorch-51393", "ResNet-18, pytorch#51393", (10, 64, 112, 112)),
        ("pytorch-28733", "pytorch#28733", (1, 16, 3000, 2000), {"arguments": _3X3}),
        ("alexnet-55-b8", "AlexNet", (8, 64, 55, 55), {"arguments": _3X3}),
        ("alexnet-27-b8", "AlexNet", (8, 192, 27, 27), {"arguments": _3X3}),
        ("alexnet-13-b8", "AlexNet", (8, 256, 13, 13), {"arguments": _3X3}),
        ("googlenet-112-b8", "GoogLeNet", (8, 64, 112, 112), _3X3_CEIL),
        ("googlenet-56-b8", "GoogLeNet", (8, 192, 56, 56), _3X3_CEIL),
        ("googlenet-28-b8", "GoogLeNet", (8, 480, 28, 28), _3X3_CEIL),
        ("image-8k-3x3", "photographs", (1, 1, 8192, 8192)),
    ),
    *_group(
        "max 3x3 s2 NHWC",
        "max_pool2d",
        _3X3_PADDED,
        ("resnet-stem-b1-nhwc", "ResNet", (1, 64, 112, 112)),
        ("resnet-stem-b8-nhwc", "ResNet", (8, 64, 112, 112)),
        ("resnet-stem-b32-nhwc", "ResNet", (32, 64, 112, 112)),
        ("googlenet-28-b8-nhwc", "GoogLeNet", (8, 480, 28, 28), _3X3_CEIL),
        layout="NHWC",
    ),
    *_group(
        "max s2 + u8",
        "max_pool2d",
        _3X3_PADDED,
        ("train-vgg-56", "VGG-16 training", (8, 256, 56, 56), {"arguments": _2X2}),
        ("train-stem-b8", "ResNet training", (8, 64, 112, 112)),
        ("train-stem-b32", "ResNet training", (32, 64, 112, 112)),
        ("train-vgg-56-nhwc", "VGG-16 training", (8, 256, 56, 56), {"arguments": _2X2, **_NHWC}),
        ("train-stem-b8-nhwc", "ResNet training", (8, 64, 112, 112), _NHWC),
        mode="offsets",
    ),
    *_group(
        "max s2 + int64",
        "max_pool2d",
        _3X3_PADDED,
        ("segnet-56", "SegNet", (8, 256, 56, 56), {"arguments": _2X2}),
        ("segnet-224", "SegNet", (4, 64, 224, 224), {"arguments": _2X2}),
        ("indices-stem-b8", "ResNet", (8, 64, 112, 112)),
        ("segnet-56-nhwc", "SegNet", (8, 256, 56, 56), {"arguments": _2X2, **_NHWC}),
        ("indices-stem-b8-nhwc", "ResNet", (8, 64, 112, 112), _NHWC),
        mode="indices",
    ),
    *_group(
        "max k=s other",
        "max_pool2d",
        _window(4, 4),
        ("tensorflow-57828", "tensorflow#57828", (1, 32, 480, 640)),
        ("tensorflow-57828-nhwc", "tensorflow#57828", (1, 32, 480, 640), _NHWC),
        ("blocks-3x3", "photographs", (1, 3, 3000, 2001), {"arguments": _window(3, 3)}),
        ("blocks-8x8", "photographs", (1, 3, 2160, 3840), {"arguments": _window(8, 8)}),
    ),
    *_group(
        "max 3x3 s1",
        "max_pool2d",
        _same(3),
        ("inception-28-b8", "GoogLeNet", (8, 192, 28, 28)),
        ("inception-14-b8", "GoogLeNet", (8, 480, 14, 14)),
        ("inception-28-b8-nhwc", "GoogLeNet", (8, 192, 28, 28), _NHWC),
    ),
    *_group(
        "max 5x5 s1",
        "max_pool2d",
        _same(5),
        ("sppf-20-b1", "YOLO SPPF", (1, 512, 20, 20)),
        ("sppf-20-b8", "YOLO SPPF", (8, 512, 20, 20)),
        ("spp-13-5x5", "YOLO SPP", (8, 512, 13, 13)),
        ("sppf-20-b8-nhwc", "YOLO SPPF", (8, 512, 20, 20), _NHWC),
    ),
    *_group(
        "max 7x7 s1",
        "max_pool2d",
        _same(7),
        ("max7-112-b1", "morphology", (1, 64, 112, 112)),
        ("max7-112-b8", "morphology", (8, 64, 112, 112)),
        ("max7-1k", "morphology", (1, 1, 1024, 1024)),
    ),
    *_group(
        "max 9x9 s1",
        "max_pool2d",
        _same(9),
        ("spp-13-9x9", "YOLO SPP", (8, 512, 13, 13)),
        ("spp-20-9x9", "YOLO SPP", (1, 512, 20, 20)),
    ),
    *_group(
        "max 13x13 s1",
        "max_pool2d",
        _same(13),
        ("spp-13-13x13", "YOLO SPP", (8, 512, 13, 13)),
        ("spp-20-13x13", "YOLO SPP", (1, 512, 20, 20)),
        ("max13-112-b1", "morphology", (1, 64, 112, 112)),
    ),
    *_group("max 31x31 s1", "max_pool2d", _same(31), ("max31-512", "morphology", (1, 1, 512, 512))),
    *_group(
        "max s1 + int64",
        "max_pool2d",
        _same(7),
        ("indices-7x7", "morphology", (1, 64, 112, 112)),
        ("indices-13x13", "morphology", (1, 64, 112, 112), {"arguments": _same(13)}),
        mode="indices",
    ),
    *_group(
        "avg 2x2 s2",
        "avg_pool2d",
        _2X2,
        ("densenet-56-b8", "DenseNet", (8, 128, 56, 56)),
        ("densenet-28-b8", "DenseNet", (8, 256, 28, 28)),
        ("densenet-56-b8-nhwc", "DenseNet", (8, 128, 56, 56), _NHWC),
        ("image-8k-avg", "photographs", (1, 1, 8192, 8192)),
    ),
    *_group(
        "avg 3x3 s1",
        "avg_pool2d",
        _same(3),
        ("inception-35-b8", "Inception-v3", (8, 192, 35, 35)),
        ("inception-17-b8", "Inception-v3", (8, 768, 17, 17)),
        ("inception-8-b8", "Inception-v3", (8, 1280, 8, 8)),
        ("inception-35-b32", "Inception-v3", (32, 288, 35, 35)),
        ("inception-35-b8-nhwc", "Inception-v3", (8, 192, 35, 35), _NHWC),
    ),
    *_group(
        "avg k x k s1",
        "avg_pool2d",
        _same(7),
        ("avg7-112", "filters", (1, 64, 112, 112)),
        ("avg13-112", "filters", (1, 64, 112, 112), {"arguments": _same(13)}),
        ("avg31-512", "filters", (1, 1, 512, 512), {"arguments": _same(31)}),
    ),
    *_group(
        "global 7x7 avg",
        "adaptive_avg_pool2d",
        {"output_size": 1},
        ("resnet-head-b1", "ResNet-50", (1, 2048, 7, 7)),
        ("resnet-head-b32", "ResNet-50", (32, 2048, 7, 7)),
        ("resnet-head-b128", "ResNet-50", (128, 2048, 7, 7)),
        ("resnet-head-b32-nhwc", "ResNet-50", (32, 2048, 7, 7), _NHWC),
        ("resnet-head-s1-b32", "ResNet-50, AvgPool2d(7, stride=1)", (32, 2048, 7, 7), _7X7_STRIDE_1),
        (
            "resnet-head-s1-b32-nhwc",
            "ResNet-50, AvgPool2d(7, stride=1)",
            (32, 2048, 7, 7),
            {**_7X7_STRIDE_1, **_NHWC},
        ),
        (
            "pytorch-14615-avg",
            "pytorch#14615",
            (32, 2048, 7, 7),
            {"function": "avg_pool2d", "arguments": _window(7, 7)},
        ),
    ),
    *_group(
        "global avg",
        "adaptive_avg_pool2d",
        {"output_size": 1},
        ("se-56-b8", "SE-ResNet", (8, 256, 56, 56)),
        ("se-28-b8", "SE-ResNet", (8, 512, 28, 28)),
        ("se-14-b8", "SE-ResNet", (8, 1024, 14, 14)),
        ("se-56-b8-nhwc", "SE-ResNet", (8, 256, 56, 56), _NHWC),
    ),
    *_group(
        "global max",
        "adaptive_max_pool2d",
        {"output_size": 1},
        ("cbam-56-b8", "CBAM", (8, 256, 56, 56)),
        ("cbam-14-b8", "CBAM", (8, 1024, 14, 14)),
        ("cbam-7-b32", "CBAM", (32, 2048, 7, 7)),
        ("cbam-56-b8-nhwc", "CBAM", (8, 256, 56, 56), _NHWC),
        (
            "pytorch-14615-max",
            "pytorch#14615",
            (8, 512, 28, 28),
            {"function": "max_pool2d", "arguments": _window(28, 28)},
        ),
    ),
    *_group(
        "adaptive avg",
        "adaptive_avg_pool2d",
        _TO_7,
        ("adaptive-56-7", "VGG head", (8, 512, 56, 56)),
        ("adaptive-61x53-6", "AlexNet head", (8, 512, 61, 53), _TO_6),
        ("pspnet-1", "PSPNet", (1, 2048, 60, 60), {"arguments": {"output_size": 1}}),
        ("pspnet-2", "PSPNet", (1, 2048, 60, 60), {"arguments": {"output_size": 2}}),
        ("pspnet-3", "PSPNet", (1, 2048, 60, 60), {"arguments": {"output_size": 3}}),
        ("pspnet-6", "PSPNet", (1, 2048, 60, 60), _TO_6),
        ("adaptive-56-7-nhwc", "VGG head", (8, 512, 56, 56), _NHWC),
        ("adaptive-61x53-6-nhwc", "AlexNet head", (8, 512, 61, 53), _TO_6 | _NHWC),
    ),
    *_group(
        "adaptive max + idx",
        "adaptive_max_pool2d",
        _TO_7,
        ("adaptive-max-56-7", "VGG head", (8, 512, 56, 56)),
        ("adaptive-max-61x53-6", "AlexNet head", (8, 512, 61, 53), _TO_6),
        mode="indices",
    ),
    *_group(
        "adaptive max NHWC",
        "adaptive_max_pool2d",
        _TO_7,
        ("adaptive-max-56-7-nhwc", "VGG head", (8, 512, 56, 56)),
        ("adaptive-max-61x53-6-nhwc", "AlexNet head", (8, 512, 61, 53), _TO_6),
        layout="NHWC",
    ),
    *_group(
        "bwd max",
        "max_pool2d",
        _3X3_PADDED,
        ("bwd-vgg-56", "VGG-16 training", (8, 256, 56, 56), {"arguments": _2X2}),
        ("bwd-stem-b8", "ResNet training", (8, 64, 112, 112)),
        ("bwd-stem-b32", "ResNet training", (32, 64, 112, 112)),
        ("bwd-stem-b8-nhwc", "ResNet training", (8, 64, 112, 112), _NHWC),
        mode="backward",
    ),
    *_group(
        "bwd avg 3x3",
        "avg_pool2d",
        _same(3),
        ("bwd-inception-35", "Inception-v3 training", (8, 192, 35, 35)),
        ("bwd-inception-17", "Inception-v3 training", (8, 768, 17, 17)),
        mode="backward",
    ),
    *_group(
        "bwd adaptive avg",
        "adaptive_avg_pool2d",
        _TO_7,
        ("bwd-adaptive-56-7", "VGG head training", (8, 512, 56, 56)),
        ("bwd-adaptive-61x53-6", "AlexNet head training", (8, 512, 61, 53), _TO_6),
        mode="backward",
    ),
    *_group(
        "bwd global avg",
        "adaptive_avg_pool2d",
        {"output_size": 1},
        ("mxnet-10912", "SE-ResNet training, apache/mxnet#10912", (8, 256, 56, 56)),
        ("bwd-head-b32", "ResNet-50 training", (32, 2048, 7, 7)),
        mode="backward",
    ),
    *_group(
        "3-D",
        "max_pool3d",
        _2X2,
        ("unet3d-2x2x2", "3-D U-Net", (1, 32, 32, 128, 128)),
        ("resnet3d-3x3x3", "3-D ResNet", (1, 64, 16, 112, 112), {"arguments": _3X3_PADDED}),
        ("unet3d-2x2x2-nhwc", "3-D U-Net", (1, 32, 32, 128, 128), _NHWC),
        ("vnet-avg", "V-Net", (1, 32, 32, 128, 128), {"function": "avg_pool3d"}),
        ("i3d-3x3x3", "I3D", (1, 480, 8, 14, 14), {"arguments": _same(3)}),
        (
            "i3d-head",
            "I3D",
            (8, 1024, 3, 7, 7),
            {"function": "avg_pool3d", "arguments": {"kernel_size": (2, 7, 7), "stride": 1}},
        ),
    ),
    *_group(
        "1-D",
        "max_pool1d",
        _window(4, 4),
        ("m5-4", "M5 audio", (32, 128, 2000)),
        ("audio-3-s2", "audio", (16, 128, 4096), {"arguments": _3X3_PADDED}),
        ("audio-long", "audio", (1, 1, 2**24)),
        ("audio-avg", "audio", (1, 1, 2**24), {"function": "avg_pool1d"}),
    ),
    *_group(
        "uint8",
        "max_pool2d",
        _2X2,
        ("uint8-8k-2x2", "photographs", (1, 1, 8192, 8192)),
        ("uint8-8k-3x3", "photographs", (1, 1, 8192, 8192), {"arguments": _3X3_PADDED}),
        ("uint8-8k-avg", "photographs", (1, 1, 8192, 8192), {"function": "avg_pool2d"}),
        ("mask-3x3", "morphology", (1, 1, 4096, 4096), {"arguments": _same(3)}),
        ("mask-31x31", "morphology", (1, 1, 512, 512), {"arguments": _same(31)}),
        dtype="uint8",
    ),
    *_group(
        "other dtypes",
        "max_pool2d",
        _2X2,
        ("vgg-56-bfloat16", "VGG-16", (8, 256, 56, 56), {"dtype": "bfloat16"}),
        ("stem-b8-bfloat16", "ResNet", (8, 64, 112, 112), {"dtype": "bfloat16", "arguments": _3X3_PADDED}),
        ("vgg-56-float16", "VGG-16", (8, 256, 56, 56), {"dtype": "float16"}),
        ("vgg-56-float64", "VGG-16", (8, 256, 56, 56), {"dtype": "float64"}),
        ("vgg-56-int8", "quantised VGG-16", (8, 256, 56, 56), {"dtype": "int8"}),
        (
            "densenet-56-bfloat16",
            "DenseNet",
            (8, 128, 56, 56),
            {"dtype": "bfloat16", "function": "avg_pool2d"},
        ),
    ),
)

ALL_CASES: tuple[Case, ...] = (*CASES, *IMAGE_CASES, *ARRAY_CASES)
