"""Gives a model that was laid out on the meta device its values, one module after the other.

Each module that has parameters or buffers of its own is made on the host, initialised by a
generator of its own, and cut as the rank's part of it is; the rest is freed. So no host ever holds
more than one module on top of what its ranks keep, and values depend on seed and name alone: not on
the layout, nor on which rank has them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpckit.errors import UsageError
from hpckit.runtime.generators import derive_seed, preserve_generators
from hpckit.runtime.parallel.batch_checks import checksum_tensors
from hpckit.runtime.tensor_parts import slice_tensor_like_shard
from hpckit.values import dataclass, field

Init = Callable[[str, nn.Module], None]
"""Takes the name of a module and the module; fills the tensors that are its own."""


def reset_parameters(name: str, module: nn.Module) -> None:
    """Initialise one module by its own `reset_parameters()`, as torch's modules do when built.

    For `run.parallelize(build, plan, init=reset_parameters)`. Modules of your own with parameters or buffers
    need such a method, which fills all of them and nothing else. Raises UsageError for one that has none.

    Example: `init=hpckit.reset_parameters`.
    """
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        own = ", ".join(key for key, _ in _list_direct_tensors(module))
        raise UsageError(
            f"{_format_module_name(name)}, a {type(module).__name__}, has {own} and no reset_parameters()",
            hint="give it that method, or pass an init(name, module) of your own that fills them",
        )
    reset()


@dataclass(slots=True, kw_only=True)
class PartInitialiser:
    """Fills a model's parts by `init`. `whole` is the model on meta, which stays as it is.

    Buffers go to `device`, and parameters too, unless `offload` says that the host keeps them.
    `digests` has a checksum of each tensor of the whole model that was made here.
    """

    whole: nn.Module
    init: Init
    seed: int
    device: torch.device
    offload: bool = False
    digests: dict[str, int] = field(init=False, default_factory=dict)
    _names: dict[int, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, tensor in _list_all_tensors(self.whole):
            self._names.setdefault(id(tensor), []).append(name)

    def initialise_own_tensors(self, part: nn.Module) -> None:
        """Give this rank's tensors their values; ties stay. Raises UsageError."""
        here = dict(_list_all_tensors(part))
        done: set[int] = set()
        for name, module in self.whole.named_modules():
            wanted = {
                key: self._find_own_parts_of_tensor(tensor, here)
                for key, tensor in _list_direct_tensors(module)
                if id(tensor) not in done
            }
            done |= {id(tensor) for _, tensor in _list_direct_tensors(module)}
            if any(wanted.values()):
                self._initialise_module_tensors(name, module, wanted)

    def _find_own_parts_of_tensor(self, tensor: Tensor, here: Mapping[str, Tensor]) -> list[Tensor]:
        names = self._names[id(tensor)]
        return list({id(here[name]): here[name] for name in names if name in here}.values())

    def _initialise_module_tensors(
        self, name: str, module: nn.Module, wanted: Mapping[str, list[Tensor]]
    ) -> None:
        made = self._make_module_on_host(name, module)
        values = dict(_list_direct_tensors(made))
        for key, held in wanted.items():
            self.digests[f"{name}.{key}".lstrip(".")] = checksum_tensors(values[key])
            for one in held:
                on_host = self.offload and isinstance(one, nn.Parameter)
                device = torch.device("cpu") if on_host else self.device
                own = slice_tensor_like_shard(values[key].detach(), one).contiguous()
                _fill_meta_tensor(one, own.to(device, copy=True))

    def _make_module_on_host(self, name: str, module: nn.Module) -> nn.Module:
        """Return one module of the whole model on the host, initialised, without those below it."""
        made = copy.copy(module)
        empty = {id(tensor): _make_unset_tensor(tensor) for _, tensor in _list_direct_tensors(module)}
        for kept in ("_parameters", "_buffers"):
            tensors = getattr(module, kept).items()
            filled = {key: one if one is None else empty[id(one)] for key, one in tensors}
            object.__setattr__(made, kept, filled)
        with preserve_generators(seed=derive_seed(self.seed, name)), torch.no_grad():
            self.init(name, made)
        for key, tensor in _list_direct_tensors(made):
            if tensor.is_meta or _has_unset_value(tensor):
                raise UsageError(
                    f"init left {key} of {_format_module_name(name)}, a {type(module).__name__}, "
                    "without a value, or with NaN",
                    hint="init(name, module) fills all parameters and buffers that are the "
                    "module's own: the model is built without memory",
                )
        return made


def _format_module_name(name: str) -> str:
    return name or "the model itself"


def _list_direct_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _list_all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _make_unset_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor on the host that is like another one; a value tells that it is not set."""
    made = torch.full_like(tensor.detach(), _marker_of_unset_values(tensor.dtype), device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _marker_of_unset_values(dtype: torch.dtype) -> float | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return False if dtype is torch.bool else torch.iinfo(dtype).max


def _has_unset_value(tensor: Tensor) -> bool:
    if tensor.dtype is torch.bool:
        return False
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.isnan().any())
    return bool((tensor == torch.iinfo(tensor.dtype).max).any())


def _fill_meta_tensor(here: Tensor, local: Tensor) -> None:
    """Give a tensor on meta its values. It stays the same object, which others hold."""
    new = local
    if isinstance(here, DTensor):
        new = DTensor.from_local(
            local, here.device_mesh, here.placements, run_check=False, shape=here.shape, stride=here.stride()
        )
    if isinstance(here, nn.Parameter):
        new = nn.Parameter(new, requires_grad=here.requires_grad)
    torch.utils.swap_tensors(here, new)  # type: ignore[no-untyped-call]
