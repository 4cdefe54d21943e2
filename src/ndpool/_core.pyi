from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

# An array, or (address, shape, strides in elements) of memory that the caller keeps alive.
Buffer = NDArray[Any] | tuple[int, tuple[int, ...], tuple[int, ...]]

_Axis = tuple[int, int, int, int, int, int, int, int, NDArray[Any] | None, NDArray[Any] | None, int, int]

class Plan:
    def __init__(self, axes: Sequence[_Axis]) -> None: ...
    @property
    def taps(self) -> int: ...

class Call:
    def __init__(
        self,
        plan: Plan,
        op: int,
        x: tuple[int, tuple[int, ...], tuple[int, ...]],
        y: tuple[int, tuple[int, ...], tuple[int, ...]],
        type: int,
        axes: Sequence[int],
        extra_kind: int,
        divide: bool,
        backward: bool,
        divisor: int = 0,
        norm: float = 0.0,
        inputs: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> None: ...
    def run(self, x: Any, y: Any, extra: Any, inputs: Any = None) -> bool: ...

class TensorCall:
    def __init__(
        self,
        call: Call,
        usual: Callable[[Any, Any], Any],
        allocate: Callable[..., Any],
        result: tuple[Any, ...],
        extra: tuple[Any, ...] | None,
        bytes: int,
        item: int,
    ) -> None: ...
    def __call__(self, x: Any, out: Any) -> Any: ...

class TensorTraining:
    def __init__(
        self,
        forward: Call,
        backward: Call | None,
        usual_forward: Callable[[Any, Any], Any],
        usual_backward: Callable[[Any, Any, Any], Any],
        allocate: Callable[..., Any],
        result: tuple[Any, ...],
        offsets: tuple[Any, ...] | None,
        grad: tuple[Any, ...],
        packed: int,
        bytes: int,
        results: int,
        item: int,
        offset_item: int,
        keeps_input: bool,
        of_norms: bool,
    ) -> None: ...
    def forward(self, context: Any, x: Any) -> Any: ...
    def backward(self, context: Any, grad: Any) -> Any: ...

class CallCache:
    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    def get(self, function: object, x: Any, arguments: tuple[Any, ...], indices: bool) -> Any: ...
    def put(
        self, function: object, x: Any, arguments: tuple[Any, ...], indices: bool, value: object
    ) -> None: ...
    def run(self, function: object, x: Any, arguments: tuple[Any, ...], indices: bool) -> Any: ...

def set_recording(on: bool) -> None: ...
def recorded() -> list[tuple[str, str, str, int]]: ...
def set_serial_bytes(n: int) -> int: ...
def set_tensors(
    types: tuple[type, ...],
    capsule: object,
    watchers: tuple[Callable[[], Any], ...],
    level: ModuleType,
    grad_enabled: Callable[[], bool],
    legacy_batch: Callable[[Any], bool],
) -> bool: ...
def forward(
    plan: Plan,
    op: int,
    x: Buffer,
    x_type: int,
    axes: Sequence[int],
    y: Buffer,
    y_type: int,
    extra: Buffer | None,
    extra_kind: int,
    divide: bool,
    divisor: int,
    norm: float,
) -> bool: ...
def backward(
    plan: Plan,
    op: int,
    grad: Buffer,
    type: int,
    axes: Sequence[int],
    grad_input: Buffer,
    offsets: Buffer | None,
    offset_kind: int,
    outputs: Buffer | None,
    divide: bool,
    divisor: int,
    norm: float,
    inputs: Buffer | None = None,
) -> bool: ...
def unpool(
    wide: Buffer, narrow: Buffer, indices: Buffer, type: int, n_axes: int, scatter: bool
) -> tuple[bool, int | None]: ...
def zero(address: int, bytes: int) -> None: ...
def jax_handler() -> object: ...
def isa() -> str: ...
def isa_names() -> list[str]: ...
def set_isa(name: str) -> bool: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def set_default_threads(n: int) -> None: ...
def borrow_threads() -> bool: ...
