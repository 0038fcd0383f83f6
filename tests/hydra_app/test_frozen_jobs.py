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
from hydra.core.utils import setup_globals
from hydra_plugins.hydra_submitit_launcher import config as submitit_config
from omegaconf import DictConfig, OmegaConf

from hpckit.config.session import register_resolver
from hpckit.errors import ForeignError, FrozenFolderError
from hpckit.hydra_app.freezing import freeze_config
from hpckit.hydra_app.jobs import Application, read_job, write_jobs
from hpckit.hydra_app.parameters import name_as_hydra_does, name_columns, read_parameters
from hydra_plugins.hpckit_launcher import launcher as plugin

APPLICATION = Application(
    script="/p/app.py", module=None, arguments=("-m",), cwd="/p", function="main", python_path=("/p",)
)
ON_SLURM = {"PATH": "/nowhere"}


class Colour(Enum):
    """A type that must survive."""

    red = 1


def test_freezing_draws_what_resolvers_say_and_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """References stay, as do functions of keys, variables of nodes, secrets, and what cannot be resolved.

    Types survive. No secret is in what is written, not even from a resolver of the application.
    """
    setup_globals()
    calls = iter(range(100))
    register_resolver("drawn", lambda *_: next(calls), replace=True)
    register_resolver("times", lambda one, two: one * two, replace=True)
    register_resolver("inside", lambda _root_: _root_.width, replace=True)
    register_resolver("pair", lambda: (1, 2), replace=True)
    register_resolver("vault", lambda: "Bearer-0123456789abcdef", use_cache=True, replace=True)
    register_resolver("made", lambda: OmegaConf.create({"a": [1, 2]}), replace=True)
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
            "area": "${times:${width},2}",
            "relative": {"of": "${times:${..width},2}", "at": "${ now:%H}-${..width}"},
            "inside": "${inside:}",
            "selected": "${oc.select:width}",
            "pair": "${pair:}",
            "vault": "${vault:}",
            "passphrase": "${drawn:}",
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
        "list": [{"x": 3}],
        "relative": raw["relative"] | {"at": config.relative.at},
    }
    assert "{" not in config.relative.at
    assert (config.same, config.colour) == (0, Colour.red)
    assert b"0123456789abcdef" not in pickle.dumps(config)
    again = pickle.loads(pickle.dumps(config))  # noqa: S301
    OmegaConf.set_readonly(again, value=False)
    again.width = 5
    assert (again.area, again.relative.of, again.inside, again.pair) == (10, 10, 5, (1, 2))
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
    folder.chmod(0o700)
    for gone in (folder / "3.pkl", folder / "jobs.json", folder):
        gone.unlink() if gone.is_file() else gone.rmdir()
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


OURS = """\
points[0]: resources.nodes=a: no (in the run ++hydra_job=0 command=[x,"${hydra_job}"])
run 3 (++hydra_job=3 command=[x,"${hydra_job}"]): sweep.runs_per_job is 0
resources.additional_parameters.mem_per_cpu=1.
cluster=local, or set cluster.bin_dir to it
recovery.restarts={x:1}; check=False launches
conf/cluster/x.yaml, cluster.python, hydra.launcher.nodes
"""
SHOWN = """\
hydra.launcher.nodes=a: no
hydra.launcher.runs_per_job is 0
hydra.launcher.mem_per_cpu=1.
hydra.launcher.cluster=local, or set hydra.launcher.cluster={bin_dir: …} to it
hydra.launcher.recovery={restarts: …}; hydra.launcher.check=false launches
conf/cluster/x.yaml, hydra.launcher.python, hydra.launcher.nodes
"""


def test_messages_have_the_keys_of_the_launcher() -> None:
    """And not those of hpckit's own configuration, nor words that nobody wrote."""
    assert [name_as_hydra_does(line) for line in OURS.splitlines()] == SHOWN.splitlines()


def test_overrides_become_columns_whatever_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers stay numbers; names that are hpckit's, and groups with keys of their own, get another one.

    A secret that an override reads is no column.
    """
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
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
        5: [
            "lr=0.1",
            "model/encoder@net=small",
            "text='a, b'",
            "+now=${now:%H}",
            r"key=$\{oc.env\:WANDB_API_KEY\}",
        ],
    }
    config: DictConfig = OmegaConf.create({"lr": 0.1, "seed": 1, "optim": {"lr": "${lr}"}, "text": "a, b"})
    config.key = "${oc.env:WANDB_API_KEY}"
    assert name_columns(jobs, dict.fromkeys(jobs, config)) == {
        4: {"hydra_job": 4, "lr": 0.1, "params.seed": 1, "optim.choice": "adam", "optim.lr": 0.1},
        5: {"hydra_job": 5, "lr": 0.1, "model.encoder_net": "small", "text": "a, b", "now": r"\${now:%H}"}
        | {"key": r"$\{oc.env\:WANDB_API_KEY\}"},
    }


def test_a_broken_hpckit_breaks_no_other_program_of_hydra() -> None:
    """The module that Hydra imports at each start needs no hpckit, and takes less than 5 ms.

    So long it takes a machine without other work to make a configuration of 100 keys.
    """
    program = """if True:
        import sys, time
        sys.modules["hpckit"] = None
        import hydra.main
        from hydra.core.plugins import Plugins
        from importlib import reload
        from omegaconf import OmegaConf
        found = Plugins.instance().class_name_to_class
        def fastest(action):
            took = []
            for _ in range(50):
                before = time.process_time()
                action()
                took.append(time.process_time() - before)
            return min(took)
        ours = fastest(lambda: reload(sys.modules["hydra_plugins.hpckit_launcher.launcher"]))
        usual = fastest(lambda: OmegaConf.create({f"key{number}": number for number in range(100)}))
        print("hydra_plugins.hpckit_launcher.launcher.HpckitLauncher" in found, ours, usual)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    known, ours, usual = done.stdout.split()
    assert known == "True"
    assert float(ours) < float(usual)
