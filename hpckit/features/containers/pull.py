"""Pulls an image into a file, here or by a job on a node of another platform.

A rank never does. Whatever ends it, a file has its name only when it is whole.
"""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from hpckit.context import Context
from hpckit.errors import RunError, SchedulerError, UsageError
from hpckit.features.containers.digests import name_platform
from hpckit.features.containers.images import PulledImage, check_trusted_file, list_images
from hpckit.features.containers.registry import HUB, ImageReference, resolve_digest
from hpckit.features.containers.runtimes import find_first_program, find_named_runtime, list_programs
from hpckit.model.failure import SHELL_SIGNAL
from hpckit.model.launch import LaunchConfig
from hpckit.model.node_setup import ContainerRuntime
from hpckit.model.plain import to_plain
from hpckit.operations.add_job import hold_lock_with_patience
from hpckit.record.remove import remove_tree
from hpckit.record.store import PRIVATE_FILE, make_private_folder, write_json
from hpckit.runtime.checkpoint.manifest import sync_folder
from hpckit.runtime.left_behind import die_with_parent, end_what_is_started
from hpckit.slurm.commands import SlurmCommands
from hpckit.values import dataclass

_BOUNDED = "-mem 1G -processors 4"
"""For mksquashfs, which otherwise takes all cores and a quarter of the memory of a login node."""
_ON_NODE = 'uname -m >"$1"; exec >"$1.out" 2>&1; shift; exec env "$@"'
_JOB_MIN, _PATIENCE = 120, timedelta(days=2)
_LEAVE_S = 5.0
_SHOWN_LINES, _SHOWN_DIGEST = 6, len("sha256:") + 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOrder:
    """What to pull, into which folder, by which program; with `partition` by a job there."""

    reference: ImageReference
    folder: Path
    program: str
    settings: LaunchConfig
    plain_http: bool = False
    partition: str | None = None

    @property
    def is_enroot(self) -> bool:
        """Whether enroot makes the file, for pyxis."""
        return Path(self.program).name == "enroot"

    @property
    def suffix(self) -> str:
        """The end of the file's name."""
        return ".sqsh" if self.is_enroot else ".sif"

    def build_words(self, target: Path, digest: str | None) -> list[str]:
        """Return the command line that writes the image into `target`."""
        reference, place = self.reference, self.reference.place
        if self.is_enroot:  # it names the host with `#`, and a tag cannot be replaced by its digest
            place = reference.name if reference.registry == HUB else place.replace("/", "#", 1)
            end = f"@{reference.digest}" if reference.digest else f":{reference.tag}"
            return [self.program, "import", "--output", str(target), f"docker://{place}{end}"]
        source = f"{reference.scheme}://{place}@{digest}" if digest else str(reference)
        # `pull` makes the same of docker://, but takes no bound for mksquashfs.
        verb = "build" if reference.scheme == "docker" else "pull"
        plain = ["--no-https"] if self.plain_http else []
        return [self.program, verb, "--disable-cache", *plain, str(target), source]


def choose_program(settings: LaunchConfig, environ: Mapping[str, str], *, on_node: bool) -> str:
    """Return the program that makes image files for the runtime of these settings; raises UsageError."""
    wanted, cluster = find_named_runtime(settings), settings.cluster
    apptainers = list_programs(ContainerRuntime.apptainer, cluster)
    names = {
        ContainerRuntime.apptainer: apptainers,
        ContainerRuntime.pyxis: ["enroot"],
        ContainerRuntime.auto: apptainers if cluster.container_bin else [*apptainers, "enroot"],
    }.get(wanted)
    if names is None:
        hint = f"make a folder or a .sqsh with the tools of {wanted}, and name it in container.image"
        raise UsageError(f"image pull makes files for apptainer and pyxis, not for {wanted}", hint=hint)
    if on_node:
        return names[0]
    if (program := find_first_program(names, environ)) is None:
        hint = "load its module, set cluster.container_bin, or pull by a job: --on PARTITION"
        raise UsageError(f"there is no {' or '.join(names)} on this machine to pull with", hint=hint)
    return program


def pull_image(order: PullOrder, context: Context) -> tuple[PulledImage, bool]:
    """Pull an image unless it is there; return it, and whether it is new. Another pull of it is awaited.

    Raises UsageError, RunError if the program fails, SchedulerError if Slurm does.
    """
    if "HPCKIT_RANK" in context.environ:
        raise UsageError("image pull is in a rank, and each would pull", hint="pull once, before the launch")
    reference, folder = order.reference, order.folder
    try:
        make_private_folder(folder)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}", hint="set cluster.image_dir") from error
    ask_registry = partial(resolve_digest, reference, context.environ, plain_http=order.plain_http)
    digest = ask_registry()
    text = f"{reference} {order.suffix} {order.partition}"
    key = f".{reference.slugify()}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    lock = folder / f"{key}.lock-{os.getuid()}"
    with _leave_on_signals(), ExitStack() as held:
        held.enter_context(
            hold_lock_with_patience(lock, f"is pulling {reference}", context, patience=None, passing=True)
        )
        if (known := _find_pulled(order, digest)) is not None:
            return known, False
        _remove_partial(folder, key)  # of pulls that were killed
        scratch = folder / f"{key}.partial.{os.getpid()}"
        scratch.mkdir(mode=0o700)
        try:
            target = scratch / f"image{order.suffix}"
            platform = _run_tool(order, target, digest, context)
            if order.is_enroot and ask_registry() != digest:
                raise RunError(f"{reference} moved while it was pulled", hint="pull it again")
            if (known := _find_pulled(order, digest, platform)) is not None:
                return known, False  # pulled elsewhere: runs that have it are not to lose it
            return _keep_image(order, target, digest, platform, context.now()), True
        finally:
            _remove_partial(folder, key)


def _find_pulled(order: PullOrder, digest: str | None, platform: str = "") -> PulledImage | None:
    """Return what was pulled for this order; without a platform, on the same one or in the same partition."""
    for known in list_images(order.folder):
        same = (known.reference, known.digest) == (str(order.reference), digest)
        where = known.platform == (platform or name_platform())
        if order.partition is not None and not platform:
            where = known.partition == order.partition
        if same and where and known.file.endswith(order.suffix):
            return known
    return None


@contextmanager
def _leave_on_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end this process as SIGINT does, by an exception: what was begun is undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(SHELL_SIGNAL + number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove_partial(folder: Path, key: str) -> None:
    """Remove what pulls of this reference have left: we hold its lock."""
    for path in folder.glob(f"{key}.partial.*"):
        seen = path.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid():
            remove_tree(path)


def _run_tool(order: PullOrder, target: Path, digest: str | None, context: Context) -> str:
    """Have the program write the image; return its platform. All that it keeps meanwhile lies beside it."""
    own = {f"ENROOT_{name}_PATH": str(target.parent) for name in ("TEMP", "CACHE")}
    own |= {"ENROOT_ALLOW_HTTP": "yes"} if order.plain_http else {}
    for tool in ("APPTAINER", "SINGULARITY"):
        own |= {f"{tool}_{name}": str(target.parent) for name in ("TMPDIR", "CACHEDIR")}
        own[f"{tool}_MKSQUASHFS_ARGS"] = context.environ.get(f"{tool}_MKSQUASHFS_ARGS", _BOUNDED)
    words = order.build_words(target, digest)
    if order.partition is not None:
        own_words = [f"{key}={text}" for key, text in own.items()]
        return _run_tool_on_node(order, target, [*own_words, *words], context)
    context.note(f"pulling {order.reference} with {order.program}; this may take minutes")
    try:
        with end_what_is_started(_LEAVE_S):
            process = subprocess.Popen(
                words,
                env={**context.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # by which it is known, with all that it starts
                preexec_fn=die_with_parent,  # noqa: PLW1509  # the only other thread renews the lock
            )
            printed, _ = process.communicate()
    except OSError as error:
        raise UsageError(f"cannot run {order.program}: {error}", hint="set cluster.container_bin") from error
    if process.returncode != 0 or not target.exists():
        raise _build_pull_error(order, f"exit code {process.returncode}", printed)
    return name_platform()


def _run_tool_on_node(order: PullOrder, target: Path, words: Sequence[str], context: Context) -> str:
    cluster, resources = order.settings.cluster, order.settings.resources
    commands = SlurmCommands(bin_dir=cluster.bin_dir, environ=context.environ, timeout=_PATIENCE)
    job, told = f"hpckit-image-{context.token()}", target.with_name("machine")
    account = resources.account or cluster.account
    options = [
        *(f"--partition={order.partition}", "--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--mem=4G"),
        *(f"--time={_JOB_MIN}", f"--job-name={job}", f"--chdir={target.parent}"),
        *([f"--account={account}"] if account else []),
    ]
    context.note(f"pulling {order.reference} by a job in {order.partition}, {_JOB_MIN} minutes at most")
    try:
        commands.run_with_all_output("srun", *options, "/bin/sh", "-c", _ON_NODE, "sh", str(told), *words)
    except SchedulerError as error:
        if told.exists():  # the job ran: the program failed, not Slurm
            printed = Path(f"{told}.out").read_text(errors="replace")
            raise _build_pull_error(order, error.message, printed) from None
        raise
    except BaseException:
        with suppress(SchedulerError):
            commands.run("scancel", f"--name={job}")
        raise
    if not target.exists():
        hint = "set cluster.image_dir to a folder on a file system that nodes see"
        raise RunError(f"the job in {order.partition} ended, and its image is not seen here", hint=hint)
    return name_platform(told.read_text().strip())


def _build_pull_error(order: PullOrder, how: str, printed: str) -> RunError:
    lines = "\n".join(printed.strip().splitlines()[-_SHOWN_LINES:])
    return RunError(f"{Path(order.program).name} could not pull {order.reference}: {how}", hint=lines)


def _keep_image(order: PullOrder, part: Path, digest: str | None, platform: str, at: datetime) -> PulledImage:
    """Give a whole image its name, after all of it is on the disk."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
        own = hashlib.file_digest(file, "sha256").hexdigest()
    # Others may read it where the folder lets them in.
    part.chmod(PRIVATE_FILE | (order.folder.stat().st_mode & 0o044))
    digest = digest or f"sha256:{own}"
    end = f"{digest[:_SHOWN_DIGEST]}.{platform}".replace(":", "-").replace("/", "-")
    target = order.folder / f"{order.reference.slugify()}.{end}{order.suffix}"
    image = PulledImage(
        file=str(target),
        reference=str(order.reference),
        digest=digest,
        sha256=own,
        platform=platform,
        bytes=part.stat().st_size,
        pulled_at=at,
        tool=Path(order.program).name,
        partition=order.partition,
    )
    record = part.with_name("record")
    write_json(record, {key: value for key, value in to_plain(image).items() if key != "file"})
    record.chmod(part.stat().st_mode & 0o777)
    for place in (target, image.record):
        with suppress(FileNotFoundError):
            try:
                check_trusted_file(place)
            except ValueError as error:
                raise UsageError(f"{place} is there and not replaced: {error}", hint="remove it") from None
    record.replace(image.record)
    part.replace(target)
    sync_folder(order.folder)
    return image
