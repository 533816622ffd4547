"""Watches what is asked of a device, without having one: torch's `meta` device has shapes and no numbers.

By itself it raises where the host waits for a number (`.item()`, `float()`, `bool()`, `nonzero`). It is silent where
the host sends one, and waits for that on CUDA: a CPU tensor among the arguments, `.to(device)`, `torch.tensor(list)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")


class DeviceWatch:
    """What some work asked of the device."""

    def __init__(self) -> None:
        self.operators: Counter[str] = Counter()  # but for views
        self.sent: Counter[str] = Counter()  # from the host, by the operator that did it

    def __sub__(self, other: DeviceWatch) -> DeviceWatch:
        """Return what was asked here and not there."""
        beyond = DeviceWatch()
        beyond.operators = self.operators - other.operators
        beyond.sent = self.sent - other.sent
        return beyond


def watched(work: Callable[[], object]) -> DeviceWatch:
    """Return what work asks of the device."""
    watch = DeviceWatch()
    with _Constants(watch), _Operators(watch):
        work()
    return watch


class _Constants(TorchFunctionMode):
    """Finds numbers of the host that become a tensor on the device."""

    def __init__(self, watch: DeviceWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and _is_meta(kwargs.get("device")):
            self._watch.sent[function.__name__] += 1
        return function(*args, **kwargs)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators on the device, and finds those that bring something there from the host."""

    def __init__(self, watch: DeviceWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(self, function: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        devices = {one.device.type for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        is_for_device = "meta" in devices or _is_meta(kwargs.get("device"))
        if is_for_device and not function.is_view:
            self._watch.operators[name] += 1
        if is_for_device and "cpu" in devices:
            self._watch.sent[name] += 1
        return function(*args, **kwargs)


def _is_meta(device: Any) -> bool:  # noqa: ANN401 - whatever torch takes for a device
    return device is not None and torch.device(device).type == "meta"
