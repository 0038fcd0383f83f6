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
from waiting import run_to_end

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
        "conf/config.yaml": "defaults:\n  - _self_\n  - model: base_linear\nlr: 1\nexperiment: ???\n",
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
    return run_to_end([sys.executable, "-m", "hpckit", *words], cwd=folder, env=kept, timeout=240)


def _launched(folder: Path, words: Sequence[str], command: Sequence[str]) -> str:
    done = _hpckit(folder, "launch", "cluster=local", "--wait", *words, "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = json.loads(_hpckit(folder, "logs", "--json").stdout)["logs"]
    return "".join(log["text"] for log in logs)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", _PATTERNS)
def test_command_leaves_the_configuration_of_its_application_alone(pattern: str, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_modules_are_imported_before_composing_as_the_guide_shows(tmp_path: Path) -> None:
    """Structured configs are known, with their types, and values of resolvers are frozen."""
    page = (Path(__file__).parents[2] / "docs/guides/hydra-app.md").read_text(encoding="utf-8")
    part = page.partition("## Structured configs and resolvers")[2]
    module, primary = re.findall(r"```(?:python|yaml)\n(.*?)```", part, flags=re.DOTALL)[:2]
    files = {"myapp/config.py": module, "conf/hpc.yaml": primary}
    _project(tmp_path, files)
    hpc = ["launch", "cluster=local", "--config-name", "hpc", "--wait"]
    done = _hpckit(tmp_path, *hpc, "model.width=4,5", "-m", "--", "echo", "${model} ${hidden}")
    assert done.returncode == 0, done.stderr
    frozen = sorted(tmp_path.glob("outputs/**/runs/*/config.json"))
    values = [json.loads(file.read_text(encoding="utf-8")) for file in frozen]
    found = [(one["model"], one["hidden"]) for one in values]
    assert found == [({"width": 4}, 8), ({"width": 5}, 10)]
    assert "-m -- echo '${model} ${hidden}'" in _hpckit(tmp_path, "show").stdout  # to be pasted
    wrong = _hpckit(tmp_path, *hpc, "model.width=x", "--", "ls")
    assert (wrong.returncode, "Integer" in wrong.stderr) == (2, True)


def test_module_that_cannot_be_imported_in_time_is_told(tmp_path: Path) -> None:
    """One that is not there, one that fails, and one that an experiment names."""
    _project(
        tmp_path,
        {
            "bad.py": "raise SystemExit('no')\n",
            "late.py": "",
            "conf/experiment/mine.yaml": "# @package _global_\ncommand: ls\nimports: [late]\n",
        },
    )
    told = {
        "nope": "imports: nope cannot be imported: ModuleNotFoundError",
        "bad": "imports: bad cannot be imported: SystemExit: no",
    }
    for name, message in told.items():
        done = _hpckit(tmp_path, "launch", f"imports=[{name}]", "--", "ls")
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    done = _hpckit(tmp_path, "launch", "--cfg", "name", "experiment=mine")
    assert (done.returncode, "imports=[late]" in done.stderr) == (2, True), done.stderr
    done = _hpckit(tmp_path, "launch", "--cfg", "name", "experiment=mine", "imports=[late]")
    assert done.returncode == 0, done.stderr


def test_mandatory_group_of_a_structured_root_is_filled_by_its_choice(tmp_path: Path) -> None:
    """The pattern of Hydra's pages: `model: Any = MISSING` in the root, an option in a list."""
    root = "\n@dataclass\nclass Root:\n    lr: float = 0.1\n    model: Any = '???'\n\n"
    stored = "ConfigStore.instance().store(name='base_config', node=Root)\n"
    _project(
        tmp_path,
        {
            "myapp/config.py": f"from typing import Any\n{_STRUCTURED}{root}{stored}",
            "conf/config.yaml": "defaults: [base_config, {model: base_linear}, _self_]\nlr: 1\n",
            "conf/hpc.yaml": "defaults: [hpckit, config, _self_]\nimports: [myapp.config]\n",
        },
    )
    words = ["launch", "--config-name", "hpc", "--cfg", "model", "model.width=4"]
    assert _hpckit(tmp_path, *words).stdout == "model:\n  width: 4\n"


def test_group_that_two_files_choose_is_told(tmp_path: Path) -> None:
    """A list of one's own that chooses a group once more is at fault, not a word of the user's."""
    files = _PATTERNS["optional group"] | {"conf/experiment/fast.yaml": _FAST}
    list_of_both = "defaults: [hpckit, config, _self_, experiment: null]\n"
    _project(tmp_path, files | {"conf/hpc.yaml": list_of_both})
    for words in (["experiment=fast"], ["--", "ls"]):
        done = _hpckit(tmp_path, "launch", "--config-name", "hpc", "--cfg", *words)
        assert done.returncode == 2
        assert "hpc.yaml: experiment appears more than once" in done.stderr
        assert "remove one entry" in done.stderr
        assert "+experiment" not in done.stderr


_TYPED = """\
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from hydra.core.config_store import ConfigStore

class Opt(Enum):
    sgd = 1
    adam = 2

class Same(str, Enum):
    same = "same"

@dataclass
class Root:
    opt: Opt = Opt.sgd
    opts: list[Opt] = field(default_factory=lambda: [Opt.adam])
    same: Same = Same.same
    per: dict[Opt, float] = field(default_factory=lambda: {Opt.adam: 0.1})
    data: Path = Path("conf")

ConfigStore.instance().store(name="root", node=Root)
"""


def test_values_that_a_function_gets_as_texts_are_told(tmp_path: Path) -> None:
    """`config.opt == Opt.adam` is False without a word; a program of Hydra's own has the member."""
    primary = "defaults: [hpckit, root, _self_]\nimports: [myapp.config]\nparams: {at: {30: 0.1}}\n"
    _project(
        tmp_path,
        {
            "myapp/config.py": _TYPED,
            "conf/hpc.yaml": primary,
            "conf/config.yaml": "",
            "train.py": "def train(config, run): pass\n",
        },
    )
    hpc = ["--config-name", "hpc", "cluster=local", "opt=sgd,adam", "-m"]
    done = _hpckit(tmp_path, "launch", "--dry-run", *hpc, "entry_point=train:train")
    told = re.findall(r"the function gets (.*) as the text (.*), which .*: write (.*) there", done.stderr)
    assert told == [
        ("a key of params.at", "'30'", "key == '30'"),
        ("opt", "'sgd'", "Opt[config.opt]"),
        ("opts.0", "'adam'", "Opt[config.opts[0]]"),
        ("a key of per", "'adam'", "key == 'adam'"),
        ("data", "'conf'", "Path(config.data)"),
    ], done.stderr
    done = _hpckit(tmp_path, "launch", "--dry-run", *hpc, "--", "python", "train.py")
    assert (done.returncode, "as the text" in done.stderr) == (0, False), done.stderr
