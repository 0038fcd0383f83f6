"""Promises of record.snapshot.outside: code that runs take and no snapshot holds is found."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from hpckit.model.launch import Cluster, LaunchConfig, Runtime, WorkingFolder
from hpckit.record.snapshot.collect import CodeFile, CodeSnapshot
from hpckit.record.snapshot.outside import (
    PROJECT,
    list_changed_outside_code_paths,
    list_outside_code_checksums,
    parse_outside_code_paths,
    select_outside_code_of_run,
    warn_about_unfrozen_code,
)
from hpckit.values import replace

OTHERS = [f"x.{ending}" for ending in ("R", "rb", "c", "cpp", "cu", "F90", "m", "js", "go", "rs")]
OTHERS += ["x.java", "x.php", "x.sql", "x.tcl", "x.jinja", "CMakeLists.txt", ".env.local"]


def project_at(root: Path, *files: str) -> CodeSnapshot:
    """Return a project of these files, which are made."""
    for name in files:
        write(root / name)
    held = tuple(CodeFile(path=name, size=1, executable=False) for name in files)
    return CodeSnapshot(root=root, working_dir=".", python_path=(".",), files=held, git=None)


def runs(*commands: Any, **more: Any) -> list[LaunchConfig]:
    """Return the settings of runs with these commands."""
    return [LaunchConfig(command=command, **more) for command in commands]


def write(path: Path, text: str = "1\n") -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of a user whose Pythons have nothing installed."""
    monkeypatch.setattr("sys.prefix", str(tmp_path / "none"))
    monkeypatch.setattr("site.getuserbase", lambda: str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return {"HOME": str(tmp_path), PROJECT: str(tmp_path / "project")}


@pytest.mark.parametrize(
    "command",
    [
        "python {0}/tools/train.py --lr 0.1",
        ["python", "{0}/tools/train.py"],
        ["bash", "-c", "cd /tmp && OMP=1 python '{0}/tools/train.py'; echo"],
        ["bash", "-c", 'bash -c "python <{0}/tools/train.py"'],
        ["bash", "-c", "echo `cat {0}/tools/train.py`"],
        ["prog", "--config={0}/tools/train.py"],
        "python ~/tools/train.py",
        ["bash", "-c", "exec python $HOME/tools/train.py"],
        ["bash", "-c", "exec python ${{HOME}}/tools/train.py"],
        "python ../tools/train.py",
        "python {0}/link.py",
    ],
)
def test_a_program_is_found_however_a_command_names_it(
    tmp_path: Path, environ: dict[str, str], command: object
) -> None:
    """With a shell or without, quoted, by a variable, relative, or through a link."""
    script = write(tmp_path / "tools" / "train.py")
    (tmp_path / "link.py").symlink_to(script)
    snapshot = project_at(tmp_path / "project", "a.py")
    text = json.dumps(command).replace("{0}", str(tmp_path)).replace("{{HOME}}", "{HOME}")
    before = list_outside_code_checksums(runs(json.loads(text)), snapshot, environ)
    assert parse_outside_code_paths(before) == (str(script),)
    script.write_text("2\n")
    assert list_outside_code_checksums(runs(json.loads(text)), snapshot, environ) != before


@pytest.mark.parametrize("name", ["a b(1).py", "ü.py", "[x].sh", "base.yaml", *OTHERS])
def test_odd_names_and_other_languages_count(tmp_path: Path, environ: dict[str, str], name: str) -> None:
    """Whatever a name looks like, as a word and within quotes."""
    script = write(tmp_path / name)
    snapshot = project_at(tmp_path / "project", "a.py")
    for command in (["x", str(script)], f"x '{script}'", ["sh", "-c", f"x '{script}'"]):
        assert parse_outside_code_paths(list_outside_code_checksums(runs(command), snapshot, environ)) == (
            str(script),
        )


def test_what_a_program_imports_beside_itself_counts(tmp_path: Path, environ: dict[str, str]) -> None:
    """Modules and packages in its folder, a folder with __main__, a program of no suffix."""
    write(tmp_path / "tools" / "train.py")
    write(tmp_path / "tools" / "pkg" / "__init__.py")
    write(tmp_path / "main" / "__main__.py")
    plain = write(tmp_path / "bin" / "train")
    snapshot = project_at(tmp_path / "project", "a.py")
    words = [str(tmp_path / "tools" / "train.py"), str(tmp_path / "main"), str(plain)]
    assert str(plain) not in parse_outside_code_paths(
        list_outside_code_checksums(runs(words), snapshot, environ)
    )
    plain.chmod(0o700)
    seen = {list_outside_code_checksums(runs(words), snapshot, environ)}
    for file in ("tools/helper.py", "tools/pkg/deep.py", "main/model.py", "bin/train"):
        write(tmp_path / file, "changed\n")
        seen.add(list_outside_code_checksums(runs(words), snapshot, environ))
    assert len(seen) == 5
    assert f"{tmp_path}/tools/pkg/deep.py" in parse_outside_code_paths(
        list_outside_code_checksums(runs(words), snapshot, environ)
    )


def test_what_a_program_adds_to_its_path_counts(tmp_path: Path, environ: dict[str, str]) -> None:
    """Scripts in a folder of their own import the packages in the folder above."""
    script = write(tmp_path / "repo" / "scripts" / "train.py", "import sys; sys.path.append('..')")
    write(tmp_path / "repo" / "nets" / "__init__.py")
    snapshot = project_at(tmp_path / "project", "a.py")
    before = list_outside_code_checksums(runs(f"python {script}"), snapshot, environ)
    assert parse_outside_code_paths(before) == (f"{tmp_path}/repo/nets/__init__.py", str(script))
    write(tmp_path / "repo" / "nets" / "__init__.py", "2\n")
    assert list_outside_code_checksums(runs(f"python {script}"), snapshot, environ) != before


def test_folders_that_python_imports_from_count(tmp_path: Path, environ: dict[str, str]) -> None:
    """PYTHONPATH, `pip install -e` of any of its Pythons, files .pth; not hidden ones, no venvs."""
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    about = {"url": (tmp_path / "dist").as_uri(), "dir_info": {"editable": True}}
    write(site / "dist-1.dist-info" / "direct_url.json", json.dumps(about))
    for number, bad in enumerate(('{"url": 5, "dir_info": {"editable": true}}', "[]", "{", "\0")):
        write(site / f"bad{number}-1.dist-info" / "direct_url.json", bad)
    os.mkfifo(site / "pipe.pth")
    write(site / "own.pth", f"import os\n{tmp_path}/own\nrelative\n{tmp_path}/gone\n")
    folders = [tmp_path / name for name in ("dist", "own", "lib")]
    files = [write(folder / "build" / "site-packages" / "deep.py") for folder in folders]
    environ["PYTHONPATH"] = f"{tmp_path}/lib:{tmp_path}/lib/build:"
    snapshot = project_at(tmp_path / "project", "a.py")
    for more in ({"VIRTUAL_ENV": str(tmp_path / "venv")}, {}):
        python = "python" if more else f"{tmp_path}/venv/bin/python"
        seen = {lines := list_outside_code_checksums(runs(f"{python} a.py"), snapshot, {**environ, **more})}
        assert parse_outside_code_paths(lines) == (*sorted(f"{folder}/" for folder in folders), "PYTHONPATH/")
        for file in files:
            file.write_text(python)
            seen.add(list_outside_code_checksums(runs(f"{python} a.py"), snapshot, {**environ, **more}))
        assert len(seen) == 4
    for name in (".git/a.py", "env/pyvenv.cfg", "env/a.py", "wandb/a.py", "__pycache__/a.py"):
        write(tmp_path / "dist" / name)
    assert (
        list_outside_code_checksums(runs("a"), snapshot, {**environ, "VIRTUAL_ENV": f"{tmp_path}/venv"})
        in seen
    )


def test_of_a_project_only_what_is_not_frozen_counts(tmp_path: Path, environ: dict[str, str]) -> None:
    """A module that git ignores counts, the project's own files and launches in it do not."""
    project = project_at(tmp_path / "project", "train.py", "src/model.py")
    environ["PYTHONPATH"] = str(tmp_path)
    assert list_outside_code_checksums(runs("python train.py"), project, environ) == ()
    (tmp_path / "project" / "outputs" / "a" / "runs").mkdir(parents=True)
    write(tmp_path / "project" / "outputs" / "a" / "launch.json")
    write(tmp_path / "project" / "outputs" / "a" / "code" / "train.py")
    assert list_outside_code_checksums(runs("python train.py"), project, environ) == ()
    write(tmp_path / "project" / "vendored" / "fast.py")
    lines = list_outside_code_checksums(runs("python vendored/fast.py"), project, environ)
    assert parse_outside_code_paths(lines) == (f"{tmp_path}/", f"{tmp_path}/project/vendored/fast.py")


def test_what_is_no_regular_file_is_no_code(tmp_path: Path, environ: dict[str, str]) -> None:
    """A pipe would block for ever, and a device never end."""
    os.mkfifo(tmp_path / "pipe.py")
    os.mkfifo(tmp_path / "tools.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    write(tmp_path / "lib" / "a.py")
    os.mkfifo(tmp_path / "lib" / "pipe.py")
    (tmp_path / "lib" / "loop").symlink_to(tmp_path / "lib")
    environ["PYTHONPATH"] = str(tmp_path / "lib")
    words = ["x", str(tmp_path / "pipe.py"), str(tmp_path / "zero.py"), "a\0b/c.py", "/" * 5000]
    lines = list_outside_code_checksums(runs(words), project_at(tmp_path / "project", "a.py"), environ)
    assert parse_outside_code_paths(lines) == (f"{tmp_path}/lib/",)


def test_a_folder_that_a_link_of_the_project_leads_to_counts(tmp_path: Path, environ: dict[str, str]) -> None:
    """The snapshot holds the link alone."""
    write(tmp_path / "shared" / "ops.py")
    project = project_at(tmp_path / "project", "a.py")
    (tmp_path / "project" / "ops").symlink_to(tmp_path / "shared")
    link = CodeFile(path="ops", size=0, executable=False, link=str(tmp_path / "shared"))
    linked = CodeSnapshot(
        root=project.root, working_dir=".", python_path=(), files=(*(project.files or ()), link), git=None
    )
    before = list_outside_code_checksums(runs("x"), linked, environ)
    assert parse_outside_code_paths(before) == (f"{tmp_path}/shared/",)
    write(tmp_path / "shared" / "ops.py", "2\n")
    assert list_outside_code_checksums(runs("x"), linked, environ) != before


def test_folders_with_very_many_modules_are_told_apart(tmp_path: Path, environ: dict[str, str]) -> None:
    """Of the last ones the size and time count."""
    for number in range(2050):
        write(tmp_path / "lib" / f"m{number:05d}.py")
    environ["PYTHONPATH"] = str(tmp_path / "lib")
    snapshot = project_at(tmp_path / "project", "a.py")
    before = list_outside_code_checksums(runs("x"), snapshot, environ)
    assert list_outside_code_checksums(runs("x"), snapshot, environ) == before
    write(tmp_path / "lib" / "m02049.py", "22\n")
    assert list_outside_code_checksums(runs("x"), snapshot, environ) != before


def test_a_run_takes_what_its_own_command_names(tmp_path: Path, environ: dict[str, str]) -> None:
    """A sweep of scripts is compared script by script."""
    scripts = [write(tmp_path / f"{name}" / "s.py") for name in "ab"]
    write(tmp_path / "lib" / "l.py")
    environ["PYTHONPATH"] = str(tmp_path / "lib")
    snapshot = project_at(tmp_path / "project", "a.py")
    lines = list_outside_code_checksums(runs(*(f"python {script}" for script in scripts)), snapshot, environ)
    assert len(lines) == 3
    own = select_outside_code_of_run(lines, runs(f"python {scripts[0]}")[0], [snapshot.root], environ)
    assert parse_outside_code_paths(own) == (str(scripts[0]), f"{tmp_path}/lib/")


NAMED = [
    ["bash", "-c", "cd {0}/ext && python t.py"],
    ["env", "-C", "{0}/ext", "python", "t.py"],
    ["bash", "-c", "cd .. && python ext/t.py"],
    ["python", "{0}/ext/noext"],
    ["python", "{0}/ext/z.zip"],
    ["bash", "-c", "for f in {0}/ext/*.sh; do sh $f; done"],
    "x --cfgs={0}/ext/c.yaml,{0}/ext/d.yaml",
    "x -f{0}/ext/c.yaml",
    "x file://{0}/ext/c.yaml",
    ["make", "-f", "{0}/ext/Makefile"],
    ["bash", "{0}/ext/outer.sh"],
    ["{0}/ext/train"],
    ["python", "{0}/ext/t.py"],
    ["bash", "-c", "python $D/t.py"],
    ["mine"],
]


@pytest.mark.parametrize("command", NAMED)
def test_whatever_way_a_file_is_taken_its_edit_is_seen(
    tmp_path: Path, environ: dict[str, str], command: object
) -> None:
    """Of each file that the command takes, in turn; the project itself is not touched."""
    ext = tmp_path / "ext"
    for name in ("t.py", "noext", "z.zip", "a.sh", "c.yaml", "d.yaml", "Makefile", "inner.sh"):
        write(ext / name)
    write(ext / "outer.sh", "bash $(dirname $0)/inner.sh\nbash inner.sh\n")
    write(ext / "train", "#!/usr/bin/env python\nimport lib.h\n").chmod(0o700)
    write(ext / "tool" / "mine", "#!/bin/sh\n").chmod(0o700)
    write(ext / "lib" / "h.py")  # no __init__
    environ |= {"PATH": f"/usr/bin:/bin:{ext}/tool"}
    words = json.loads(json.dumps(command).replace("{0}", str(tmp_path)))
    edited = {
        "noext": "noext", "z.zip": "z.zip", "*.sh": "a.sh", "cfgs": "d.yaml", "c.yaml": "c.yaml",
        "Makefile": "Makefile", "outer": "inner.sh", "/train": "lib/h.py", "t.py": "lib/h.py",
        "mine": "tool/mine",
    }  # fmt: skip
    file = ext / next(name for word, name in edited.items() if word in str(command))
    snapshot = project_at(tmp_path / "project", "a.py")
    settings = runs(words, env={"D": str(ext)})
    before = list_outside_code_checksums(settings, snapshot, environ)
    assert str(file) in parse_outside_code_paths(before)
    assert select_outside_code_of_run(before, settings[0], [snapshot.root], environ) == {*before}
    file.write_text("changed\n")
    after = list_outside_code_checksums(settings, snapshot, environ)
    assert list_changed_outside_code_paths({*after}, {*before}) == (str(file),)


LIVE = [
    "python {0}/t.py",
    ["python", "{0}/t.py"],
    ["bash", "-c", "cd {0} && python t.py"],
    ["bash", "-c", "cd {0}/sub && python ../t.py"],
    ["bash", "-c", "cd {0}; cd sub; cd ..; exec python t.py"],
    ["bash", "-c", 'cd "$HPCKIT_PROJECT" && python t.py'],
    ["bash", "-c", "P=${{HPCKIT_PROJECT}}; pushd $P; python -m t"],
    ["bash", "-c", "python $HPCKIT_PROJECT/t.py"],
    ["bash", "-c", "cd '{0}'/sub && python ../t.py"],
    ["bash", "-c", 'bash -c "cd {0}"; D="{0}"; cd "$D" && python t.py'],
    ["bash", "-c", "cd -P ${{HPCKIT_PROJECT:?}} && python t.py"],
    ["bash", "-c", 'cd "$SLURM_SUBMIT_DIR/sub" && python ../t.py'],
    ["env", "-C", "{0}", "python", "t.py"],
    "env --chdir={0} python -m t",
    ["bash", "job.sh"],
    ["sh", "-c", "bash job.sh"],
    ["bash", "{0}/own.sh"],
    ["python", "a.py", "--settings={0}/t.py"],
]
FROZEN: list[Any] = [
    "python t.py",
    ["bash", "-c", "cd sub && python ../t.py"],
    ["python", "t.py", "--data", "{0}/sub"],
    ["python", "t.py", "--project", "{0}"],
    ["bash", "-c", "cd sub && python ../t.py --project {0}"],
    ["bash", "-c", "python $PWD/t.py"],
    ["bash", "-c", "PYTHONPATH=sub python t.py"],
    "python -m t",
]


@pytest.mark.parametrize("command", LIVE)
def test_files_of_the_project_that_a_command_takes_from_there_count(
    tmp_path: Path, environ: dict[str, str], command: object
) -> None:
    """By a path from the root, or after a step into the project: not the frozen ones."""
    snapshot = project_at(tmp_path / "project", "t.py", "a.py", "sub/b.py", "job.sh", "own.sh")
    write(snapshot.root / "job.sh", f"cd {snapshot.root}\npython -m t\n")
    write(snapshot.root / "own.sh", 'python "$(dirname "$0")"/t.py\n')
    text = json.dumps(command).replace("{0}", str(snapshot.root)).replace("{{", "{")
    settings = runs(json.loads(text.replace("}}", "}")))
    before = list_outside_code_checksums(settings, snapshot, environ)
    assert f"{snapshot.root}/t.py" in parse_outside_code_paths(before)
    assert select_outside_code_of_run(before, settings[0], [snapshot.root], environ) == {*before}
    (warned,) = warn_about_unfrozen_code(replace(snapshot, outside=before), str(command))
    assert warned.value in {"t.py", "job.sh", "own.sh", "a.py"}
    assert "run what you edit until then" in warned.message
    write(snapshot.root / "t.py", "changed\n")
    after = list_outside_code_checksums(settings, snapshot, environ)
    assert list_changed_outside_code_paths({*after}, {*before}) == (f"{snapshot.root}/t.py",)


@pytest.mark.parametrize("command", FROZEN)
def test_frozen_files_of_the_project_do_not_count(
    tmp_path: Path, environ: dict[str, str], command: object
) -> None:
    """Also if a command names the project as a place of data: later edits change nothing."""
    snapshot = project_at(tmp_path / "project", "t.py", "sub/b.py")
    words = json.loads(json.dumps(command).replace("{0}", str(snapshot.root)))
    environ |= {"PWD": str(snapshot.root)}
    assert list_outside_code_checksums(runs(words), snapshot, environ) == ()


def test_runs_in_the_project_itself_take_all_but_their_own_script_from_there(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Only the frozen script is started; `python -m`, a shell and settings find today's files."""
    snapshot = project_at(tmp_path / "project", "t.py", "conf/c.yaml", "job.sh")
    in_place = Runtime(cwd=WorkingFolder.project)

    def taken(*words: str) -> tuple[str, ...]:
        lines = list_outside_code_checksums(runs(list(words), runtime=in_place), snapshot, environ)
        return tuple(path.removeprefix(f"{snapshot.root}/") for path in parse_outside_code_paths(lines))

    assert taken("python", "t.py") == taken("python", "-P", "-m", "t") == ()
    assert "t.py" not in taken("torchrun", "--nproc-per-node", "2", "t.py")
    for command in ("python -m t", "nohup python -m t --lr 1", "uv run t.py"):
        assert "t.py" in taken(*command.split())
    assert "t.py" in taken("bash", "-c", "python t.py")
    assert taken("python", "t.py", "conf/c.yaml") == ("conf/c.yaml",)
    write(snapshot.root / "job.sh", "python t.py\n")
    assert "t.py" in taken("bash", "job.sh")


def test_modules_of_the_project_count_in_a_folder_that_is_imported_from_there(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Unless the frozen one comes first on the path."""
    snapshot = project_at(tmp_path / "project", "t.py", "lib/nets.py")
    environ["PYTHONPATH"] = f"{snapshot.root}/lib:{snapshot.root}"
    before = list_outside_code_checksums(runs("python t.py"), snapshot, environ)
    assert f"{snapshot.root}/lib/nets.py" in parse_outside_code_paths(before)
    assert f"{snapshot.root}/t.py" not in parse_outside_code_paths(before)
    own = select_outside_code_of_run(before, runs("python t.py")[0], [snapshot.root], environ)
    assert own == {*before}
    first = replace(snapshot, python_path=(".", "lib"))
    assert parse_outside_code_paths(list_outside_code_checksums(runs("python t.py"), first, environ)) == (
        "PYTHONPATH/",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--config-dir", "{0}"],
        ["--config-dir={0}"],
        ["-cd", "{0}"],
        ["--config-path", "{0}"],
        ["hydra.searchpath=[pkg://x,file://{0}]"],
    ],
)
def test_yaml_in_folders_of_a_hydra_application_counts(
    tmp_path: Path, environ: dict[str, str], words: list[str]
) -> None:
    """Those that the command names; also in a line for a shell, and in a script of the project."""
    file = write(tmp_path / "site" / "model" / "big.yaml")
    snapshot = project_at(tmp_path / "project", "app.py", "job.sh")
    told = [word.replace("{0}", str(tmp_path / "site")) for word in words]
    line = shlex.join(["python", "app.py", *told])
    write(snapshot.root / "job.sh", f"{line}\n")
    for command in (["python", "app.py", *told], line, ["sh", "-c", line], ["bash", "job.sh"]):
        before = list_outside_code_checksums(runs(command), snapshot, environ)
        assert parse_outside_code_paths(before) == (str(file),)
        write(file, f"{command}\n")
        assert list_changed_outside_code_paths(
            {*list_outside_code_checksums(runs(command), snapshot, environ)}, {*before}
        )


@pytest.mark.parametrize("how", ["env", "cluster", "word", "line", "setup", "relative", "shell"])
def test_python_path_counts_wherever_it_is_set(tmp_path: Path, environ: dict[str, str], how: str) -> None:
    """With the order of its folders, and the settings in packages."""
    for name in ("a", "b"):
        write(tmp_path / name / "q.py")
    snapshot, (a, b) = project_at(tmp_path / "project", "a.py"), (tmp_path / "a", tmp_path / "b")

    def lines(value: str) -> set[str]:
        told, more, command, setup = dict(environ), {}, "python a.py", []
        match how:
            case "env":
                more = {"PYTHONPATH": value}
            case "word":
                command = f"env PYTHONPATH={value} python a.py"
            case "line":
                command = f"bash -c 'export PYTHONPATH={value}; python a.py'"
            case "setup":
                setup = [f"export PYTHONPATH={value}"]
            case "shell":
                told["PYTHONPATH"] = value
            case _:
                pass
        cluster = Cluster(setup=setup, env={"PYTHONPATH": value} if how == "cluster" else {})
        if how == "relative":
            told["PYTHONPATH"] = ":".join(f"../{Path(one).name}" for one in value.split(":"))
        return {*list_outside_code_checksums(runs(command, env=more, cluster=cluster), snapshot, told)}

    both, turned, one = lines(f"{a}:{b}"), lines(f"{b}:{a}"), lines(str(a))
    assert {f"{a}/", f"{b}/"} <= {*parse_outside_code_paths(both)}
    assert list_changed_outside_code_paths(turned, both) == ("PYTHONPATH/",)
    assert f"{b}/" in list_changed_outside_code_paths(one, both)
    write(a / "pkg" / "conf" / "c.yaml")
    assert list_changed_outside_code_paths(lines(str(a)), one) == (f"{a}/",)
    (a / "q.py").unlink()
    assert f"{a}/" in list_changed_outside_code_paths(lines(str(a)), one)


def test_what_a_run_wrote_by_a_path_in_its_command_is_no_code(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """It was not there when the run was recorded."""
    snapshot = project_at(tmp_path / "project", "a.py")
    settings = runs(["python", "a.py", f"{tmp_path}/out.yaml", f"{tmp_path}/out.ipynb"])
    before = list_outside_code_checksums(settings, snapshot, environ)
    write(tmp_path / "out.yaml")
    write(tmp_path / "out.ipynb")
    assert (
        list_changed_outside_code_paths(
            {*list_outside_code_checksums(settings, snapshot, environ)}, {*before}
        )
        == ()
    )


def test_a_folder_of_data_hides_no_code(tmp_path: Path, environ: dict[str, str]) -> None:
    """Its files are not looked at, and those of other folders are."""
    data = tmp_path / "big" / "adata"
    data.mkdir(parents=True)
    for number in range(5100):
        (data / f"{number}.jpg").touch()
    write(tmp_path / "big" / "src" / "__init__.py")
    environ["PYTHONPATH"] = str(tmp_path / "big")
    snapshot = project_at(tmp_path / "project", "a.py")
    before = list_outside_code_checksums(runs("x"), snapshot, environ)
    write(tmp_path / "big" / "src" / "__init__.py", "2\n")
    assert list_outside_code_checksums(runs("x"), snapshot, environ) != before


def test_a_module_that_is_gone_is_a_difference(tmp_path: Path, environ: dict[str, str]) -> None:
    """A script may look for plugins beside it; of another run's folder nothing counts."""
    scripts = [write(tmp_path / name / "s.py") for name in "ab"]
    plugins = [write(tmp_path / name / "plugin.py") for name in "ab"]
    snapshot = project_at(tmp_path / "project", "a.py")
    taken = runs(*(f"python {script}" for script in scripts))
    recorded = frozenset(list_outside_code_checksums(taken, snapshot, environ))
    plugins[0].unlink()
    lines = list_outside_code_checksums(taken, snapshot, environ)
    own = [select_outside_code_of_run(lines, run, [snapshot.root], environ) for run in taken]
    assert [list_changed_outside_code_paths(now, recorded) for now in own] == [(str(plugins[0]),), ()]


def test_without_a_snapshot_the_modules_of_a_function_count(tmp_path: Path, environ: dict[str, str]) -> None:
    """Git may not know them yet."""
    project = tmp_path / "project"
    write(project / "task.py")
    bare = CodeSnapshot(root=project, working_dir=".", python_path=(), files=None, git=None)
    run = LaunchConfig(entry_point="task:main")
    before = list_outside_code_checksums([run], bare, environ)
    assert select_outside_code_of_run(before, run, [project], environ) == frozenset(before)
    assert parse_outside_code_paths(before) == (f"{project}/task.py",)
    write(project / "task.py", "2\n")
    assert list_outside_code_checksums([run], bare, environ) != before
    held = project_at(project, "task.py")
    assert list_outside_code_checksums([run], held, environ) == ()
    assert select_outside_code_of_run((), run, [project], environ) == frozenset()
