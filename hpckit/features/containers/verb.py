"""`hpckit image`: pulls images into files that all nodes see, lists and removes them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from hpckit.cli.compose_options import add_config_source_options, build_compose_request
from hpckit.cli.options import add_confirmation_options, add_flag, add_json_option, confirm_removal
from hpckit.cli.terminal.pager import show_page
from hpckit.context import Context
from hpckit.errors import RunError, UsageError
from hpckit.features.containers.images import PulledImage, find_image_folder, find_named_images, list_images
from hpckit.features.containers.pull import PullOrder, choose_program, pull_image
from hpckit.features.containers.registry import parse_image_reference
from hpckit.model.counted import format_byte_size, format_count
from hpckit.model.launch import ClusterKind, LaunchConfig
from hpckit.model.moment import format_local_time_to_minute
from hpckit.model.plain import attributes_to_json, iterate_config_strings
from hpckit.planning.clean import explain_why_clean_keeps_run
from hpckit.record.launches import load_launch
from hpckit.record.layout import LaunchPaths
from hpckit.record.lookup import list_own_launches
from hpckit.record.store import read_json_object
from hpckit.report.text import TextTable
from hpckit.views.launch_view import build_launch_view

EPILOG = """\
examples:
  hpckit image pull docker://nvcr.io/nvidia/pytorch:25.01-py3 cluster=lab
  hpckit image pull docker://nvcr.io/nvidia/pytorch:25.01-py3 cluster=lab --on gh200
  hpckit image ls cluster=lab
  hpckit image rm sha256:0a1b2c cluster=lab --dry-run
"""

_NAMES = {"pull": (1, 1, "one reference"), "ls": (0, 0, "no name"), "rm": (1, sys.maxsize, "names")}
"""By action: how many references or names it takes."""
_OPTIONS = {"on": "pull", "plain_http": "pull", "yes": "rm", "dry_run": "rm"}
_SHORT = len("sha256:") + 12
_Uses = Mapping[PulledImage, Sequence[Path]]
"""Images, each with the launches that use it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `image`."""
    parser.add_argument(
        "action", metavar="ACTION", choices=[*_NAMES], help="pull a REFERENCE; ls: list; rm: remove NAMEs"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="REFERENCE|NAME|OVERRIDE",
        help="what to pull, like docker://NAME:TAG; files or digests to remove; overrides, like cluster=lab",
    )
    parser.add_argument(
        "--on", metavar="PARTITION", help="pull by a job there, for nodes of another platform than this one"
    )
    add_flag(parser, "--plain-http", "the registry speaks HTTP, not HTTPS: one of your own")
    add_confirmation_options(parser)
    add_config_source_options(parser)
    add_json_option(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Pull, list or remove; raises HpckitError."""
    for name, action in _OPTIONS.items():
        if getattr(arguments, name) and arguments.action != action:
            raise UsageError(f"--{name.replace('_', '-')} is an option of `hpckit image {action}`")
    named = [word for word in arguments.overrides if "=" not in word and not word.startswith("~")]
    least, most, what = _NAMES[arguments.action]
    if not least <= len(named) <= most:
        hint = "hpckit image pull docker://NAME:TAG; `hpckit image ls` shows the names for rm"
        raise UsageError(f"image {arguments.action} takes {what}, not {' '.join(named) or 'none'}", hint=hint)
    arguments.overrides = [word for word in arguments.overrides if word not in named]
    # Imports Hydra, which --help does not need.
    compose = import_module("hpckit.operations.environment").compose_settings_of_single_run
    settings: LaunchConfig = compose(
        build_compose_request(arguments, context), "image needs one configuration"
    )
    output = context.cwd / Path(settings.output_dir).expanduser()
    folder = find_image_folder(settings.cluster, output, context.environ)
    if arguments.action == "pull":
        order = PullOrder(
            reference=parse_image_reference(named[0]),
            folder=folder,
            program=choose_program(settings, context.environ, on_node=arguments.on is not None),
            settings=settings,
            plain_http=arguments.plain_http,
            partition=arguments.on,
        )
        _pull(order, arguments, context)
        return 0
    images = list_images(folder, lambda text: context.note(f"warning: {text}"))
    if named:
        images = find_named_images(named, images)
    uses = _find_uses(images, output)
    removed = _remove(uses, arguments, context) if named else None
    if arguments.json:
        context.say_json(_to_json(folder, uses, removed=removed))
    elif not named:
        empty = f"no images in {folder}; `hpckit image pull docker://NAME:TAG` pulls one"
        show_page([_build_table(uses) if images else empty], context)
    return 0


def _pull(order: PullOrder, arguments: argparse.Namespace, context: Context) -> None:
    image, new = pull_image(order, context)
    if arguments.json:
        context.say_json(_to_json(order.folder, {image: ()}, new=new))
    else:
        context.say(f"{image.file} ({image.digest}, {image.platform}, {format_byte_size(image.bytes)})")
        context.note("pulled" if new else "it was there already: nothing was pulled")


def _find_uses(images: Sequence[PulledImage], output: Path) -> _Uses:
    """Return the launches that name each image by its file or digest, newest first."""
    uses: dict[PulledImage, list[Path]] = {image: [] for image in images}
    for launch in list_own_launches(output) if images else ():
        known = read_json_object(LaunchPaths(launch).launch).get("containers")
        texts = {text for _, text in iterate_config_strings(known)}
        for image in images:
            if texts & {image.file, image.digest, f"sha256:{image.sha256}"}:
                uses[image].append(launch)
    return uses


def _remove(uses: _Uses, arguments: argparse.Namespace, context: Context) -> bool:
    """Show, ask and remove; return whether they were removed. Raises UsageError if one is needed."""
    for image, launches in uses.items():
        if reason := next(_explain_needs(launches, context), None):
            hint = "wait for it, or cancel it; nothing was removed"
            raise UsageError(f"{image.name} is used: {reason}", hint=hint)
    if not arguments.json:
        show_page([_build_table(uses)], context)
    what = f"{format_count(len(uses), 'image')}, {format_byte_size(sum(image.bytes for image in uses))}"
    if not confirm_removal(arguments, what, context):
        return False
    for image in uses:
        try:
            for path in (Path(image.file), image.record):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"{image.file} cannot be removed: {error.strerror}") from error
    if not arguments.json:
        context.say(f"removed {what}")
    return True


def _explain_needs(launches: Sequence[Path], context: Context) -> Iterator[str]:
    """Yield the runs that may still start or go on."""
    for launch in map(load_launch, launches):
        of_slurm = launch.cluster.kind is ClusterKind.slurm
        for run in build_launch_view(launch, context).runs:
            if (reason := explain_why_clean_keeps_run(run, of_slurm=of_slurm)) is not None:
                yield f"run {run.record.id} is {run.state}, and {reason}"


def _build_table(uses: _Uses) -> TextTable:
    rows = tuple(
        (
            *(image.name, image.reference, image.digest[:_SHORT], image.platform),
            *(format_byte_size(image.bytes), format_local_time_to_minute(image.pulled_at)),
            ", ".join(launch.name for launch in launches),
        )
        for image, launches in uses.items()
    )
    header = ("name", "reference", "digest", "platform", "size", "pulled", "used by")
    return TextTable(header=header, rows=rows, flexible=("used by",))


def _to_json(folder: Path, uses: _Uses, **more: bool | None) -> dict[str, Any]:
    fields = "name file reference digest sha256 platform bytes pulled_at tool partition"
    told = [
        {**attributes_to_json(image, fields), "used_by": [launch.name for launch in launches]}
        for image, launches in uses.items()
    ]
    return {"image_dir": str(folder), "images": told, "new": None, "removed": None, **more}
