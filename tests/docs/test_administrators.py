"""The samples of the page for administrators hold as printed, for users with other wishes too."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs/guides/administrators.md"
OWN = {
    "experiment/mine": "# @package _global_\ndefaults: [digits]\nrecovery: {requeue: false}\n",
    "experiment/other": "# @package _global_\ndefaults: [digits]\nname: other\n",
}
"""Experiments of a user: one sets the site's key itself, one does not."""


@pytest.fixture
def user(tmp_path: Path) -> Any:
    """Return how a user without an address starts hpckit below the site's printed files."""
    text = PAGE.read_text(encoding="utf-8")
    sample = r"`/sw/hpckit/conf/(\S+\.yaml)`.*?^```yaml\n(.*?)^```$"
    printed = re.findall(sample, text, flags=re.MULTILINE | re.DOTALL)
    assert [name for name, _ in printed] == ["cluster/auto.yaml", "config.yaml"]
    site, own = tmp_path / "site" / "conf", tmp_path / "project" / "conf"
    mine = [(f"{name}.yaml", content) for name, content in OWN.items()]
    for folder, files in ((site, printed), (own, mine)):
        for name, content in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")

    def start(*words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "hpckit", *words, "--json"],
            cwd=own.parent,
            env={"PATH": "/usr/bin:/bin", "HPCKIT_SITE_CONFIG_DIR": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return start


@pytest.mark.parametrize(
    ("words", "requeue"),
    [
        (("experiment=digits",), True),
        (("experiment=other",), True),
        (("experiment=mine",), False),
        (("experiment=digits", "recovery.requeue=false"), False),
    ],
)
def test_sites_configuration_as_printed_holds_below_a_users_wishes(
    user: Any, words: tuple[str, ...], *, requeue: bool
) -> None:
    """Every user can launch, gets the site's value, and overrides it by experiment or word."""
    found = user("check", *words, "cluster=local")["findings"]
    assert [finding for finding in found if finding["severity"] == "error"] == []
    user("render", *words, "cluster=local")
    assert user("show")["config"]["recovery"]["requeue"] is requeue
