"""Looks for files and folders that a configuration or command names but the run will not find.

No file is opened. Nodes may see other file systems than this machine, so everything is only a warning. A text
that may be a path counts as one if it exists; if it exists nowhere, it must be clearly a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpckit.model.command import parse_invocation, parse_shell_commands
from hpckit.model.counted import format_short_list
from hpckit.model.finding import Finding, build_error_finding, build_warning_finding
from hpckit.model.launch import ClusterKind, LaunchConfig, WorkingFolder
from hpckit.model.node_setup import has_data_settings
from hpckit.model.plain import iterate_config_strings
from hpckit.model.plan import RunSpec
from hpckit.patterns import lazy_pattern
from hpckit.record.ownership import (
    explain_unsafe_path,
    explain_untrusted_data,
    find_weights_file,
    read_path_status,
)
from hpckit.values import dataclass, field

_READ = frozenset(
    {"checkpoint", "ckpt", "config", "container", "corpus", "data", "dataset", "datasets", "file"}
    | {"files", "image", "images", "input", "inputs", "path", "paths", "pretrained", "resume"}
    | {"root", "tokenizer", "train", "val", "valid", "test", "vocab", "weights", "datadir"}
)
"""Words in a key or option that suggest something to read."""

_WRITTEN = frozenset(
    {"cache", "log", "logs", "logdir", "out", "outdir", "output", "outputs", "outputdir", "result"}
    | {"results", "save", "saved", "savedir", "tmp", "write", "dump", "export", "target", "dest"}
)
"""Words anywhere in a key that suggest something to write."""

_WRITTEN_LAST = frozenset(
    {"artifacts", "exp", "experiment", "plots", "figures", "prefix", "report", "run", "runs"}
    | {"tb", "tensorboard", "wandb", "work", "workdir"}
)
"""Words that suggest something to write at the end of a key."""

_SAVED_TO = frozenset({"checkpoint", "checkpoints", "ckpt", "ckpts", "resume"})
"""Words in a key that may name the folder to save to; if it is a file, it is read."""

_DATA = frozenset({"data", "dataset", "datasets", "corpus", "inputs", "weights", "pretrained"})
"""Folder names that count as paths even without a slash."""

_OURS = frozenset(
    {"cluster", "code", "command", "container", "entry_point", "name", "observe", "output_dir", "recovery"}
    | {"resources", "runtime", "chaos", "budget", "seed", "checkpoint", "sweep", "stages", "hydra"}
    | {"notify", "tracker"}
)
_NO_PATH = lazy_pattern(r"[*?{}\[\]$<>|\n\0]|://|\A[-~@]")
_FILE = lazy_pattern(r"\.[A-Za-z][A-Za-z0-9]{0,9}\Z")
_DATA_FILE = lazy_pattern(
    r"\.(npz|npy|pt|pth|ckpt|csv|tsv|jsonl?|ya?ml|txt|parquet|hdf5|h5|tar|gz|bz2|xz|zst|zip|tgz"
    r"|safetensors|pkl|pickle|arrow|feather|lmdb|tfrecords?|mat|sqlite|db|png|jpe?g|wav|flac|mp4)\Z"
)
"""Endings that only files have: `owner/model-v1.5` is a name on a model hub."""

_SAVED_STATE = lazy_pattern(
    r"(?i)\.ckpt\Z|(ckpt|checkpoint|epoch|last|latest|model|resume|snapshot|state|step)[^/]*"
    r"\.(bin|pickle|pkl|pt|pth|safetensors|tar)\Z"
)
"""What plain scripts call the file from which they go on."""
_SHOWN = 3
_LONGEST = 1024
_MOST = 2000
"""At most _MOST texts are checked: each costs one file system call."""
_NO_FILES_READ = frozenset({"mkdir", "rm", "touch", "tee", "echo", "export", "printf", "module"})
"""Commands in a shell line whose arguments are not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFolder:
    """The project's folder that a run starts in.

    `missing` returns why runs will not find a path, None if they will. With `in_place` they start
    in this very folder. `seen` holds the checked texts with their keys, and `named` those that runs
    will not find: a command often gets its paths from the configuration. `elsewhere` are paths that only
    containers have.
    """

    folder: Path
    missing: Callable[[Path], str | None]
    in_place: bool = False
    seen: set[tuple[str, str]] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    elsewhere: tuple[str, ...] = ()


def build_project_folders(
    folder: Path, missing: Callable[[Path], str | None], runs: Iterable[RunSpec]
) -> Mapping[WorkingFolder, ProjectFolder]:
    """Return the folder of these runs' project, by the folder that they start in."""
    mounts = {mount for run in runs for mount in run.settings.container.mounts}
    elsewhere = tuple(mount.split(":")[1] for mount in mounts if ":/" in mount)
    return {
        where: ProjectFolder(
            folder=folder, missing=missing, in_place=where is WorkingFolder.project, elsewhere=elsewhere
        )
        for where in WorkingFolder
    }


def warn_about_config_paths(config: Mapping[str, Any], project: ProjectFolder) -> Iterator[Finding]:
    """Yield warnings for paths in the user's own keys."""
    ours = _OURS | ({"data"} if has_data_settings(config) else frozenset())  # checked where it is frozen
    own = {name: one for name, one in config.items() if name not in ours}
    for key, text in iterate_config_strings(own):
        if len(text) > 1:
            yield from _warn_if_path_is_missing(
                _Named(key=".".join(key), text=text, words=_split_key_words(key)), project
            )


def find_checkpoint_problems(settings: LaunchConfig) -> Iterator[Finding]:
    """Yield what is wrong with the folder of checkpoints, and the file that runs begin with."""
    yield from _find_save_folder_problems(settings)
    yield from _find_weights_problems(settings)


def warn_about_saved_model_files(untracked: Iterable[str]) -> Iterator[Finding]:
    """Yield a warning for saved states that are in the project as if they were code."""
    found = [path for path in untracked if _SAVED_STATE.search(path)]
    if found:
        yield build_warning_finding(
            "code.snapshot",
            found[0],
            f"{format_short_list(found, _SHOWN)} will be in the folder of every run, as git does "
            "not ignore it: a program that resumes from a file will resume from this one",
            "delete it, or let git ignore it (.gitignore); what runs need: git add -f FILE",
        )


def warn_about_command_paths(words: Sequence[str], project: ProjectFolder) -> Iterator[Finding]:
    """Yield warnings for paths in the words of a command or of a shell line."""
    started = parse_invocation(words)
    if started.is_shell and started.code is not None:
        for command, _ in parse_shell_commands(started.code):
            if command[0] not in _NO_FILES_READ:
                yield from warn_about_command_paths(command, project)
        return
    if started.code is None:
        for named in _list_argument_values(started.arguments):
            yield from _warn_if_path_is_missing(named, project)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A text that may be a path; `words` are those of its key or option."""

    key: str
    text: str
    words: tuple[str, ...] = ()

    @property
    def key_suggests_input(self) -> bool:
        """Whether the key suggests something to read."""
        return not _READ.isdisjoint(self.words)

    @property
    def may_be_input_path(self) -> bool:
        """Whether the text should be checked: something to read that is written like a path."""
        text, words = self.text, self.words
        written = not (_WRITTEN.isdisjoint(words) and _WRITTEN_LAST.isdisjoint(words[-2:]))
        if not text or len(text) > _LONGEST or written or text.endswith(".log"):
            return False
        if _NO_PATH.search(text):
            return False
        if text.startswith("/"):
            return self.key_suggests_input
        return self.key_suggests_input or "/" in text or text in _DATA or _FILE.search(text) is not None


def _list_argument_values(words: Sequence[str]) -> Iterator[_Named]:
    """Yield the values of options, of `key=value`, and separate words."""
    option: tuple[str, ...] = ()
    for word in words:
        name, equals, value = word.partition("=")
        if equals and (word.startswith("-") or re.fullmatch(r"[+~]*[A-Za-z_][\w./@-]*", name)):
            yield _Named(key="command", text=value, words=_split_key_words((name.strip("-+~"),)))
            option = ()
        elif word.startswith("-"):
            option = _split_key_words((word.strip("-"),))
        else:
            yield _Named(key="command", text=word, words=option)
            option = ()


def _split_key_words(key: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for part in key for word in re.split(r"[\W_]+", part.lower()) if word)


def _warn_if_path_is_missing(named: _Named, project: ProjectFolder) -> Iterator[Finding]:
    asked = (named.key, named.text)
    if not named.may_be_input_path or asked in project.seen or len(project.seen) >= _MOST:
        return
    project.seen.add(asked)
    path = project.folder / named.text
    try:
        there = path.exists()
    except (OSError, ValueError):  # a text that cannot be a path
        return
    if Path(named.text).is_absolute():
        if not there and not any(path.is_relative_to(folder) for folder in project.elsewhere):
            unless = "the nodes may see more than this machine"
            yield _build_missing_path_warning(named, "on this machine", unless)
    elif there:
        yield from _warn_if_run_lacks_path(named, path, project)
    elif named.key_suggests_input and "/" in named.text and _DATA_FILE.search(named.text):
        where = f"in {project.folder}, where the run starts"
        yield _build_missing_path_warning(named, where, "if the run itself creates it, ignore this")


def _warn_if_run_lacks_path(named: _Named, path: Path, project: ProjectFolder) -> Iterator[Finding]:
    """Yield a warning for a path that exists here but not where the run starts."""
    text, saves = named.text, not _SAVED_TO.isdisjoint(named.words)
    if project.in_place or text in project.named or (saves and path.is_dir()):
        return
    why = project.missing(path)
    if why is not None:
        project.named.add(text)
        normal = os.path.normpath(path)
        yield build_warning_finding(
            named.key,
            text,
            f"{text} exists in {project.folder}, but the run will not find it: {why}",
            f"give its whole path, {normal} (in code: $HPCKIT_PROJECT is {project.folder}); or "
            "start runs in the project itself: runtime.cwd=project"
            + (f"; or, if it is small: git add -f {text}" if "git" in why else ""),
        )


def _build_missing_path_warning(named: _Named, where: str, unless: str) -> Finding:
    what = "the command" if named.key == "command" else named.key
    return build_warning_finding(
        named.key,
        named.text,
        f"{what} names {named.text}, which does not exist {where}",
        f"look for a typing mistake; {unless}",
    )


def _find_weights_problems(settings: LaunchConfig) -> Iterator[Finding]:
    """Look at the file that runs begin with; ranks look again, at what they open."""
    key, value = "checkpoint.weights", settings.checkpoint.weights
    if value is None:
        return
    path = find_weights_file(Path(value).expanduser())
    try:
        stranger = explain_unsafe_path(path) or explain_untrusted_data(
            read_path_status(path.resolve()), os.geteuid()
        )
    except OSError as problem:
        said = f"{key} {path} cannot be read here: {problem.strerror}"
        if settings.cluster.kind is ClusterKind.local:
            yield build_error_finding(key, value, said, "look for a typing mistake: the ranks start here")
        else:
            hint = "look for a typing mistake; the nodes may see more than this machine"
            yield build_warning_finding(key, value, said, hint)
        return
    if stranger is not None:
        yield build_error_finding(
            key, value, f"{key}: {stranger.reason}", f"{stranger.hint}; or copy the file"
        )
    elif path.is_dir():
        yield build_error_finding(key, value, f"{key}: {path} is a folder", "name a file of weights")


def _find_save_folder_problems(settings: LaunchConfig) -> Iterator[Finding]:
    folder = settings.checkpoint.dir
    if folder is None or not Path(folder).is_absolute():
        return
    # The first save creates it; a folder above it has to exist.
    existing = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    if existing == Path("/") or not os.access(existing, os.W_OK):
        yield build_warning_finding(
            "checkpoint.dir",
            folder,
            f"checkpoint.dir {folder} cannot be created here: only {existing} exists"
            + ("" if existing == Path("/") else ", and you may not write there"),
            "look for a typing mistake; the nodes may see more than this machine",
        )
