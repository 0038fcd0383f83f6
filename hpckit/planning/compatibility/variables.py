"""Which variables of an environment are worth showing. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpckit.model.plain import MASK
from hpckit.planning.secrecy import is_secret, known_secrets

_BEGINNINGS = ("NCCL_", "TORCH_NCCL_", "GLOO_")
_NAMES = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"})


def chosen_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change what NCCL, gloo, CUDA and OpenMP do; secrets are masked."""
    known = known_secrets(environ)
    return {
        name: MASK if is_secret(name, value, known) else value
        for name, value in sorted(environ.items())
        if name.startswith(_BEGINNINGS) or name in _NAMES
    }
