"""What jobs are made of: frozen configurations, files that only their user writes, words for hpckit."""

from __future__ import annotations

import pickle
import stat
import subprocess
import sys
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hydra_plugins.hydra_submitit_launcher import config as submitit_config
from omegaconf import DictConfig, OmegaConf

from hpckit.errors import ForeignError, FrozenFolderError
from hpckit.hydra_app.freezing import freeze_config
from hpckit.hydra_app.jobs import Application, read_job, write_jobs
from hpckit.hydra_app.parameters import name_columns, read_parameters
from hydra_plugins.hpckit_launcher import launcher as plugin

APPLICATION = Application(script="/p/app.py", module=None, arguments=("-m",), cwd="/p", function="main")
ON_SLURM = {"PATH": "/nowhere"}


class Colour(Enum):
    """A type that must survive."""

    red = 1


def test_freezing_draws_what_resolvers_say_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """References stay, as do variables of nodes, secrets, and what cannot be resolved; types survive."""
    calls = iter(range(100))
    OmegaConf.register_new_resolver("drawn", lambda *_: next(calls), replace=True)
    OmegaConf.register_new_resolver("made", lambda: OmegaConf.create({"a": [1, 2]}), replace=True)
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    config = OmegaConf.create(
        {
            "drawn": "${drawn:}",
            "text": "n-${drawn:}-${oc.env:DATA}",
            "made": "${made:}",
            "list": [{"x": "${drawn:${width}}"}],
            "width": 3,
            "same": "${drawn}",
            "rank": "${oc.env:RANK,0}",
            "device": "cuda:${oc.decode:${oc.env:LOCAL_RANK,0}}",
            "secret": "${oc.env:WANDB_API_KEY}",
            "unset": "${oc.env:THIS_IS_NOT_SET}",
            "escaped": r"\${drawn:}",
            "colour": Colour.red,
        }
    )
    OmegaConf.set_readonly(config, value=True)
    raw: Any = OmegaConf.to_container(config, resolve=False)
    freeze_config(config)
    assert OmegaConf.to_container(config, resolve=False) == raw | {
        "drawn": 0,
        "text": "n-1-/data",
        "made": {"a": [1, 2]},
        "list": [{"x": 2}],
    }
    assert (config.same, config.colour) == (0, Colour.red)
    again = pickle.loads(pickle.dumps(config))  # noqa: S301
    monkeypatch.setenv("RANK", "7")
    assert (again.rank, again.text, again.colour) == ("7", "n-1-/data", Colour.red)


def test_runs_read_their_jobs_only_as_they_were_written(tmp_path: Path) -> None:
    """The folder is the user's alone; a file that was changed, or others may write, is not unpickled."""
    folder = tmp_path / "sweep" / ".hpckit" / "1"
    digest = write_jobs(folder, APPLICATION, {3: {"lr": 0.1}}, {3: {"lr": "0.1"}}, None)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    job = read_job(folder, digest, 3)
    assert (pickle.loads(job.config), job.application) == ({"lr": 0.1}, APPLICATION)  # noqa: S301
    for name in ("3.pkl", "jobs.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b" ")
        with pytest.raises(FrozenFolderError, match="is not as it was at the launch"):
            read_job(folder, digest, 3)
        (folder / name).write_bytes(content)
    folder.chmod(0o770)
    with pytest.raises(ForeignError, match="can be written by others"):
        read_job(folder, digest, 3)
    (folder / "3.pkl").unlink()
    folder.chmod(0o700)
    with pytest.raises(FrozenFolderError, match="cannot be read"):
        read_job(folder, digest, 3)


def test_every_parameter_of_submitit_slurm_is_known_with_its_default() -> None:
    """By the dataclasses that are installed; only `tasks_per_node` may be null here, too."""
    for installed in (submitit_config.SlurmQueueConf(), submitit_config.LocalQueueConf()):
        theirs = {one.name: getattr(installed, one.name) for one in fields(installed)} | {"_target_": None}
        assert theirs.items() <= (plugin.SUBMITIT | {"_target_": None}).items()
    meant = dict.fromkeys(plugin.SUBMITIT, 7) | {
        "setup": ["module load x"],
        "additional_parameters": {"x": 1},
    }
    meant |= {"submitit_folder": "/elsewhere", "stderr_to_stdout": True, "use_srun": False}
    found = read_parameters({**meant, "cluster": "slurm", "recovery": "default"}, ON_SLURM)
    (*groups, words) = found.words
    assert groups == ["cluster=slurm", "recovery=default"]
    assert words == {
        **{f"resources.{key}": 7 for key in ("timeout_min", "nodes", "tasks_per_node", "gpus_per_node")},
        **{f"resources.{key}": 7 for key in ("cpus_per_task", "mem_gb", "partition", "qos", "account")},
        **{f"resources.{key}": 7 for key in ("constraint", "exclude", "gres", "comment")},
        "resources.array_parallelism": 7,
        "cluster.setup": ["module load x"],
        "cluster.srun_args": 7,
        "cluster.python": 7,
        "name": 7,
        "runtime.save_before_timeout_s": 7,
        "++recovery.restarts.time_limit": 7,
        "resources.additional_parameters": {
            **dict.fromkeys(("cpus_per_gpu", "gpus_per_task", "mem_per_gpu", "mem_per_cpu"), 7),
            "x": 1,
        },
    }
    assert found.ignored == ["submitit_folder=/elsewhere", "stderr_to_stdout=True", "use_srun=False"]
    usual = {
        **plugin.SUBMITIT,
        **plugin.OWN,
        "submitit_folder": "/sweep/.submitit/%j",
        "tasks_per_node": None,
    }
    found = read_parameters(usual | {"name": "app"}, ON_SLURM)
    assert (found.words, found.ignored) == (
        ("cluster=auto", "recovery=default", "checkpoint=run_folder", {"name": "app"}),
        [],
    )


def test_overrides_become_columns_whatever_their_form() -> None:
    """Numbers stay numbers; names that are hpckit's, and groups with keys of their own, get another one."""
    jobs = {
        4: [
            "lr=0.1",
            "+seed=1",
            "optim=adam",
            "optim.lr=${lr}",
            "~gone",
            "hydra.job.chdir=true",
            "hydra/x=y",
        ],
        5: ["lr=0.1", "model/encoder@net=small", "text='a, b'", "+now=${now:%H}"],
    }
    config: DictConfig = OmegaConf.create({"lr": 0.1, "seed": 1, "optim": {"lr": "${lr}"}, "text": "a, b"})
    assert name_columns(jobs, dict.fromkeys(jobs, config)) == {
        4: {"++lr": 0.1, "++params.seed": 1, "++optim.choice": "adam", "++optim.lr": 0.1},
        5: {"++lr": 0.1, "++model.encoder_net": "small", "++text": "a, b", "++now": "{now:%H}"},
    }


def test_a_broken_hpckit_breaks_no_other_program_of_hydra() -> None:
    """The module that Hydra imports at each start needs no hpckit, and takes less than 5 ms."""
    program = """if True:
        import sys, time
        sys.modules["hpckit"] = None
        import hydra.main
        from hydra.core.plugins import Plugins
        from importlib import reload
        found = Plugins.instance().class_name_to_class
        took = []
        for _ in range(30):
            before = time.process_time()
            reload(sys.modules["hydra_plugins.hpckit_launcher.launcher"])
            took.append(time.process_time() - before)
        print("hydra_plugins.hpckit_launcher.launcher.HpckitLauncher" in found, min(took))
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    known, took = done.stdout.split()
    assert known == "True"
    assert float(took) < 0.005
