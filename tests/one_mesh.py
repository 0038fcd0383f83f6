"""One mesh for each layout of a world: a process group has threads that wake 100 times a second."""

from __future__ import annotations

from functools import cache

from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh


@cache
def init_device_mesh(device: str, sizes: tuple[int, ...], *, mesh_dim_names: tuple[str, ...]) -> DeviceMesh:
    """Return the mesh of these sizes, which all ranks ask for in the same order."""
    return device_mesh.init_device_mesh(device, sizes, mesh_dim_names=mesh_dim_names)
