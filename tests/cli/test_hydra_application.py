"""An application of Hydra's own, with the conf/ that Hydra's pages teach, from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_APP = """\
import hydra
from omegaconf import OmegaConf
{imported}

@hydra.main(version_base=None, config_path="../conf", config_name="config")
def main(cfg):
    print("READ", OmegaConf.to_container(cfg, resolve=True), flush=True)

if __name__ == "__main__":
    main()
"""
_STRUCTURED = """\
from dataclasses import dataclass
from hydra.core.config_store import ConfigStore

@dataclass
class Linear:
    width: int = 3

ConfigStore.instance().store(group="model", name="base_linear", node=Linear)
"""
_PATTERNS = {
    "optional group": {
        "conf/config.yaml": "defaults: [{model: small}, _self_, {experiment: null}]\nlr: 1\n",
        "conf/model/small.yaml": "width: 8\n",
        "myapp/config.py": "",
    },
    "structured": {
        "conf/config.yaml": "defaults:\n  - _self_\n  - model: base_linear\nlr: 1\n"
        "experiment: ???\n",
        "myapp/config.py": _STRUCTURED,
    },
}
_FAST = "# @package _global_\nlr: 2\n"


def _project(folder: Path, files: dict[str, str]) -> None:
    app = {"myapp/train.py": _APP.format(imported="import myapp.config"), "myapp/__init__.py": ""}
    for name, text in {**app, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _hpckit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HPCKIT_")}
    return subprocess.run(
        [sys.executable, "-m", "hpckit", *words],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _launched(folder: Path, words: Sequence[str], command: Sequence[str]) -> str:
    done = _hpckit(folder, "launch", "cluster=local", "--wait", *words, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = json.loads(_hpckit(folder, "logs", "--json").stdout)["logs"]
    return "".join(log["text"] for log in logs)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", _PATTERNS)
def test_command_leaves_the_configuration_of_its_application_alone(
    pattern: str, tmp_path: Path
) -> None:
    """The application composes its conf/config.yaml, which hpckit could not."""
    files = {**_PATTERNS[pattern], "conf/cluster/lab.yaml": "setup: ['export HERE=lab']\n"}
    if pattern == "optional group":
        files["conf/experiment/fast.yaml"] = _FAST
    _project(tmp_path, files)
    command = ["python", "-m", "myapp.train", "experiment=fast"]
    text = _launched(tmp_path, [], command)
    assert "'model': {'width': " in text
    shown = _hpckit(tmp_path, "launch", "cluster=lab", "--cfg", "cluster", "--", *command)
    assert "HERE=lab" in shown.stdout  # groups of the same folder are hpckit's, too


@pytest.mark.parametrize("pattern", _PATTERNS)
@pytest.mark.parametrize("option", [(), ("--config-name", "config")])
def test_composing_it_on_purpose_says_what_to_write_first(
    pattern: str, option: tuple[str, ...], tmp_path: Path
) -> None:
    """Before anything that Hydra says of it; also for a command, if it is named."""
    _project(tmp_path, _PATTERNS[pattern])
    words = [*option, "experiment=fast"] + (["--", "ls"] if option else [])
    done = _hpckit(tmp_path, "launch", "--cfg", *words)
    assert done.returncode == 2
    assert "conf/config.yaml does not build on hpckit's configuration" in done.stderr
    assert "hpc.yaml" in done.stderr


def test_advice_composes_to_the_letter(tmp_path: Path) -> None:
    """The defaults list of the error is the file; the group of its own is chosen from as ours."""
    for number, own in enumerate(("", "  - experiment: null\n")):
        folder = tmp_path / str(number)
        files = {
            "conf/train.yaml": f"defaults:\n  - _self_\n  - model: small\n{own}lr: 1\n",
            "conf/model/small.yaml": "width: 8\n",
            "conf/experiment/example.yaml": f"{_FAST}entry_point: train:main\n",
        }
        _project(folder, files)
        told = _hpckit(folder, "launch", "--config-name", "train", "--cfg").stderr
        advice = re.findall(r"`(defaults: \[[^`]*\])`", told)
        assert len(advice) == 2
        for text, word in zip(advice, ("+experiment=example", "experiment=example"), strict=True):
            (folder / "conf" / "hpc.yaml").write_text(text, encoding="utf-8")
            done = _hpckit(folder, "launch", "--config-name", "hpc", "--cfg", "lr", word)
            assert done.stdout == "lr: 2\n", done.stderr


def test_group_that_two_files_choose_is_told(tmp_path: Path) -> None:
    """A list of one's own that chooses a group once more is at fault, not a word of the user's."""
    files = _PATTERNS["optional group"] | {"conf/experiment/fast.yaml": _FAST}
    list_of_both = "defaults: [hpckit, config, _self_, experiment: null]\n"
    _project(tmp_path, files | {"conf/hpc.yaml": list_of_both})
    for words in (["experiment=fast"], ["--", "ls"]):
        done = _hpckit(tmp_path, "launch", "--config-name", "hpc", "--cfg", *words)
        assert done.returncode == 2
        assert "hpc.yaml: experiment appears more than once" in done.stderr
        assert "take one entry out" in done.stderr
        assert "+experiment" not in done.stderr
