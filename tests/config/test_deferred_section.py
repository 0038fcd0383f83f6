"""Promises of config.deferred_section: whoever needs Hydra's own section finds it as it is."""

from __future__ import annotations

import json
import subprocess
import sys

_SHOW = """
import json
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
node = ConfigStore.instance().load("hydra/config.yaml").node
print(json.dumps([OmegaConf.to_container(node), str(node._metadata.object_type)]))
"""


def shown(before: str) -> object:
    """Return Hydra's own section as a fresh Python finds it behind these lines."""
    said = subprocess.run(
        [sys.executable, "-c", before + _SHOW], capture_output=True, text=True, check=True
    )
    return json.loads(said.stdout)


def test_the_section_is_hydras_own_once_it_is_asked_for() -> None:
    """Completed, or with Hydra imported earlier, it has each value and type."""
    plain = shown("")
    deferred = "import hpckit.config.compose as compose\n"
    complete = "compose.deferred_section.complete_hydra()\n"
    assert shown(deferred) != plain
    assert shown(deferred + complete) == plain
    assert shown("import hydra\n" + deferred) == plain
    assert shown("import hydra\n" + deferred + complete) == plain
