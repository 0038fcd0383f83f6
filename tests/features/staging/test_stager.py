"""One item on one node: copied, checked, resumed, kept, and refused where it must be."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from small_disk import small_disk
from staged_node import Node, write_random

from hpckit.features.staging.items import How, StageItem, Verify
from hpckit.features.staging.listing import BLOCK, SourceError
from hpckit.features.staging.mounting import mount_squashfs, unmount
from hpckit.features.staging.place import MANIFEST, NodeDataError, remove_copy, remove_leftovers
from hpckit.features.staging.sources import read_source
from hpckit.features.staging.stager import StagingStoppedError
from hpckit.model.failure import Cause

MakeNode = Callable[..., Node]


def _manifest(node: Node) -> Path:
    (found,) = node.folder.glob(f"*{MANIFEST}")
    return found


@pytest.mark.parametrize("size", [0, 1, BLOCK, 2 * BLOCK + 5])
@pytest.mark.parametrize("verify", list(Verify))
def test_a_copy_is_the_source(tmp_path: Path, node: MakeNode, size: int, verify: Verify) -> None:
    """A file is copied whole, whatever its size and check; its manifest says what it is a copy of."""
    source = write_random(tmp_path / "data.bin", size)
    here = node("n1", source, StageItem(name="big", source=str(source), verify=verify))
    copy = here.stage()
    assert (here.how, copy.name) == ("copied", "data.bin")
    assert copy.read_bytes() == source.read_bytes()
    assert json.loads(_manifest(here).read_text())["source"] == str(source)


def test_what_is_there_is_not_read_again(tmp_path: Path, node: MakeNode) -> None:
    """The next job on the node finds the data there, even if the source cannot be read any more."""
    source = write_random(tmp_path / "data.bin", BLOCK)
    first = node("n1", source)
    first.stage()
    source.unlink()
    again = node("n1", first.source)
    assert again.stage().stat().st_size == BLOCK
    assert again.how == "kept"


@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone"])
def test_a_damaged_copy_is_found_and_mended(tmp_path: Path, node: MakeNode, damage: str) -> None:
    """A copy that was truncated, changed in one byte, or removed is found by its sums and copied again."""
    source = write_random(tmp_path / "data.bin", 3 * BLOCK)
    first = node("n1", source)
    copy = first.stage()
    first.close()
    if damage == "truncated":
        os.truncate(copy, BLOCK + 7)
    elif damage == "gone":
        copy.unlink()
    else:
        with copy.open("r+b") as file:
            file.seek(2 * BLOCK + 9)
            byte = file.read(1)
            file.seek(2 * BLOCK + 9)
            file.write(bytes([byte[0] ^ 1]))
    again = node("n1", source)
    assert again.stage().read_bytes() == source.read_bytes()
    assert again.how == "copied"


def test_a_copy_that_was_stopped_goes_on_where_it_was(tmp_path: Path, node: MakeNode) -> None:
    """After a stop in the middle, the blocks that are there are not read from the source again."""
    source = write_random(tmp_path / "data.bin", 6 * BLOCK)
    first = node("n1", source)
    before = source.stat()
    stager = first.stager()
    first.shelf.on_block = lambda blocks: first.stopped.set() if blocks >= 3 else None
    with pytest.raises(StagingStoppedError):
        stager.stage()
    first.close()
    content = source.read_bytes()
    with source.open("r+b") as file:  # nobody would see this, but who reads it
        file.write(b"other" * 20)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = node("n1", source)
    assert again.stage().read_bytes() == content


def _stage_in_process(folder: Path, source: Path, told: multiprocessing.queues.SimpleQueue[str]) -> None:
    node = Node(folder, source)
    node.stage()
    told.put(node.how)
    signal.pause()


def test_two_jobs_copy_once_under_one_lock(tmp_path: Path) -> None:
    """Two processes that want the same data at once have one copy: one copies, the other finds it."""
    source = write_random(tmp_path / "data.bin", 8 * BLOCK)
    context = multiprocessing.get_context("spawn")
    told: multiprocessing.queues.SimpleQueue[str] = context.SimpleQueue()
    jobs = [context.Process(target=_stage_in_process, args=(tmp_path / "n1", source, told)) for _ in range(2)]
    for job in jobs:
        job.start()
    hows = sorted(told.get() for _ in jobs)
    for job in jobs:
        job.kill()
        job.join()
    assert hows == ["copied", "kept"]
    assert len([*(tmp_path / "n1").glob(f"*{MANIFEST}")]) == 1


@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_a_full_disk_is_told_before_and_leaves_nothing(tmp_path: Path, node: MakeNode, margin: float) -> None:
    """Where there is no room for data and margin, the node says so with figures, and keeps nothing."""
    source = write_random(tmp_path / "data.bin", 8 * BLOCK)
    with small_disk(tmp_path / "disk", "60m" if not margin else "100m"):
        here = node("disk/n1", source, margin_gb=margin)
        with pytest.raises(NodeDataError, match=r"0\.1 GB free|needed") as raised:
            here.stage()
        assert raised.value.cause is Cause.scratch_full
        assert not [path for path in here.folder.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_disk_that_fills_meanwhile_is_told_and_left_clean(tmp_path: Path, node: MakeNode) -> None:
    """If others take the room during the copy, that is the node's failure; no partial copy stays."""
    source = write_random(tmp_path / "data.bin", 8 * BLOCK)
    with small_disk(tmp_path / "disk", "100m"):
        here = node("disk/n1", source)
        here.shelf.on_begin = lambda: (tmp_path / "disk" / "other").write_bytes(bytes(60 << 20))
        with pytest.raises(NodeDataError) as raised:
            here.stage()
        assert raised.value.cause is Cause.scratch_full
        assert not [*here.folder.glob("*.partial")]


def test_an_old_partial_copy_that_goes_on_is_no_leftover(tmp_path: Path, node: MakeNode) -> None:
    """Another job of the node begins meanwhile, and removes what was left for a week."""
    source = write_random(tmp_path / "data.bin", 2 * BLOCK)
    here = node("n1", source)
    partial = here.folder / f"big.{here.source.id}.partial"
    partial.mkdir()
    os.utime(partial, (0, 0))
    here.shelf.on_begin = lambda: remove_leftovers(here.folder, lambda _: False, print)
    assert here.stage().read_bytes() == source.read_bytes()


@pytest.mark.parametrize("change", ["longer", "touched", "gone"])
def test_a_source_that_changed_since_the_launch_is_refused(
    tmp_path: Path, node: MakeNode, change: str
) -> None:
    """What was frozen is what is staged: a source that is another by now is refused."""
    source = write_random(tmp_path / "data.bin", BLOCK)
    here = node("n1", source)
    if change == "gone":
        source.unlink()
    elif change == "touched":
        os.utime(source, ns=(1, 1))
    else:
        source.write_bytes(bytes(BLOCK + 1))
    with pytest.raises(NodeDataError, match=r"changed since the launch|cannot be read") as raised:
        here.stage()
    assert raised.value.cause is Cause.data_refused


def test_a_folder_is_copied_with_its_links_and_empty_files(tmp_path: Path, node: MakeNode) -> None:
    """A folder comes as it is: many small files, empty ones, folders, and links within it."""
    source = tmp_path / "set"
    (source / "deep" / "empty").mkdir(parents=True)
    for number in range(300):
        (source / "deep" / f"{number:03d}").write_bytes(os.urandom(number * 7))
    (source / "link").symlink_to("deep/007")
    (source / "run.sh").write_text("true")
    (source / "run.sh").chmod(0o755)
    copy = node("n1", source).stage()
    done = subprocess.run(
        ["diff", "-r", "--no-dereference", source, copy], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert (copy / "deep" / "empty").is_dir()
    assert os.access(copy / "run.sh", os.X_OK)


def test_a_changed_file_in_a_folder_is_refused(tmp_path: Path, node: MakeNode) -> None:
    """The launch froze the sizes and times of all files of a folder."""
    source = tmp_path / "set"
    source.mkdir()
    write_random(source / "a", 10)
    here = node("n1", source)
    os.utime(source / "a", ns=(1, 1))
    with pytest.raises(NodeDataError, match="has changed since the launch"):
        here.stage()


def test_a_tar_is_unpacked_once_and_kept(tmp_path: Path, node: MakeNode) -> None:
    """A tar file becomes a folder on the node, without the tar; damage to it is found the next time."""
    write_random(tmp_path / "a.txt", 100)
    source = tmp_path / "set.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        archive.add(tmp_path / "a.txt", "inner/a.txt")
    first = node("n1", source)
    folder = first.stage()
    assert folder.name == "set"
    assert (folder / "inner" / "a.txt").read_bytes() == (tmp_path / "a.txt").read_bytes()
    again = node("n1", source)
    again.stage()
    assert again.how == "kept"
    os.truncate(folder / "inner" / "a.txt", 5)
    again.close()
    first.close()
    third = node("n1", source)
    assert (third.stage() / "inner" / "a.txt").stat().st_size == 100
    assert third.how == "copied"


def test_a_copy_stays_while_another_job_uses_it(tmp_path: Path, node: MakeNode) -> None:
    """The first of two jobs to end takes nothing from the other; the last one may."""
    source = write_random(tmp_path / "data.bin", 10)
    first, second = node("n1", source), node("n1", source)
    first.stage()
    second.stage()
    second.close()
    assert not remove_copy(_manifest(first))
    manifest = _manifest(first)
    first.close()
    assert remove_copy(manifest)


def test_what_jobs_write_into_an_unpacked_tar_takes_it_from_no_other(tmp_path: Path, node: MakeNode) -> None:
    """Programs keep an index or a lock beside their data."""
    write_random(tmp_path / "a.txt", 100)
    source = tmp_path / "set.tar"
    with tarfile.open(source, "w") as archive:
        archive.add(tmp_path / "a.txt", "a.txt")
    first, second = node("n1", source), node("n1", source)
    index = first.stage() / "index"
    index.touch()
    second.stage()
    assert (second.how, index.exists()) == ("kept", True)


def test_a_folder_that_changes_while_it_is_copied_is_refused(tmp_path: Path, node: MakeNode) -> None:
    """A mix of old and new would train on what never was."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("a", "b", "c"):
        write_random(folder / name, BLOCK)
    here = node("n1", folder)
    stager = here.stager()
    here.shelf.on_block = lambda blocks: (folder / "c").write_bytes(b"new" * 9) if blocks == 1 else None
    with pytest.raises(NodeDataError) as raised:
        stager.stage()
    assert raised.value.cause in (Cause.data_refused, Cause.data_damaged)


def test_a_damaged_archive_is_the_source_s_fault(tmp_path: Path, node: MakeNode) -> None:
    """No node is blamed, and no thread ends without a word."""
    source = tmp_path / "set.tar.gz"
    write_random(tmp_path / "a", 200_000)
    with tarfile.open(source, "w:gz") as archive:
        archive.add(tmp_path / "a", "a")
    content = bytearray(source.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 400] = bytes(400)
    source.write_bytes(content)
    with pytest.raises(NodeDataError) as raised:
        node("n1", source).stage()
    assert raised.value.cause is Cause.data_refused


@pytest.mark.parametrize("damage", ["header", "cut", "hole", "long name"])
def test_a_plain_tar_comes_whole_or_not_at_all(tmp_path: Path, node: MakeNode, damage: str) -> None:
    """Nothing but its end ends an archive; what cannot be unpacked leaves nothing on the node."""
    source = tmp_path / "set.tar"
    with tarfile.open(source, "w") as archive:
        for name in ("a", "b", "n" * 300 if damage == "long name" else "c"):
            archive.addfile(tarfile.TarInfo(name))
    content = source.read_bytes()
    changed = {
        "header": content[:600] + b"!" + content[601:],
        "cut": content[:700],
        "hole": content[:512] + bytes(512) + content[1024:],
        "long name": content,
    }
    source.write_bytes(changed[damage])
    here = node("n1", source)
    with pytest.raises(NodeDataError, match=r"set\.tar cannot be unpacked") as raised:
        here.stage()
    assert raised.value.cause is Cause.data_refused
    assert [path.name for path in here.folder.iterdir()] == ["big.lock"]


def test_a_tar_needs_no_end_marker(tmp_path: Path, node: MakeNode) -> None:
    """As GNU tar, which accepts an archive that ends with its last member."""
    source = tmp_path / "set.tar"
    with tarfile.open(source, "w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    os.truncate(source, 512)
    assert (node("n1", source).stage() / "a").exists()


def test_a_source_that_cannot_be_read_is_named_and_no_node_is_blamed(tmp_path: Path, node: MakeNode) -> None:
    """A file of it that fails while it is read is the source's fault."""
    folder = tmp_path / "set"
    folder.mkdir()
    file = write_random(folder / "a", 10)

    def break_file() -> None:
        file.unlink()
        file.symlink_to("a")

    here = node("n1", folder)
    here.shelf.on_begin = break_file
    with pytest.raises(NodeDataError, match=f"cannot be read: {file}") as raised:
        here.stage()
    assert raised.value.cause is Cause.data_refused


def test_a_launch_refuses_a_folder_with_a_file_that_its_user_cannot_read(tmp_path: Path) -> None:
    """The launch lists it anyway."""
    folder = tmp_path / "set"
    folder.mkdir()
    write_random(folder / "secret", 10).chmod(0)
    for path in (folder, *folder.parents[:-2]):
        path.chmod(path.stat().st_mode | 0o711)
    folder.chmod(0o755)

    def list_as_nobody(told: multiprocessing.connection.Connection) -> None:
        if not os.geteuid():
            os.setuid(65534)
        try:
            read_source(folder)
        except SourceError as error:
            told.send(str(error))

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=list_as_nobody, args=(there,))
    child.start()
    child.join()
    assert here.recv() == f"has a file that you cannot read: {folder / 'secret'}"


def test_a_tar_that_leads_out_of_its_folder_is_refused(tmp_path: Path, node: MakeNode) -> None:
    """A member `../x` is never written."""
    source = tmp_path / "set.tar"
    write_random(tmp_path / "a", 10)
    with tarfile.open(source, "w") as archive:
        archive.add(tmp_path / "a", "../../escaped")
    with pytest.raises(NodeDataError, match="cannot be unpacked"):
        node("n1", source).stage()
    assert not (tmp_path / "escaped").exists()


def test_a_squashed_file_is_mounted_and_deaf_to_notices(tmp_path: Path) -> None:
    """Files of a mounted image stay readable when a notice reaches the process that serves it."""
    (tmp_path / "set").mkdir()
    write_random(tmp_path / "set" / "a", 5000)
    image, target = tmp_path / "set.sqsh", tmp_path / "mnt"
    try:
        subprocess.run(["mksquashfs", tmp_path / "set", image, "-quiet"], check=True, capture_output=True)
        process = mount_squashfs(image, target, dict(os.environ))
    except (FileNotFoundError, NodeDataError) as error:
        pytest.skip(f"no squashfs here: {error}")
    try:
        if process is not None:
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
                process.send_signal(number)
        assert (target / "a").read_bytes() == (tmp_path / "set" / "a").read_bytes()
    finally:
        unmount(target, dict(os.environ))
        if process is not None:
            process.wait(10)
    assert not os.path.ismount(target)


def test_a_link_stays_where_it_is(tmp_path: Path, node: MakeNode) -> None:
    """With how=link nothing is copied."""
    source = write_random(tmp_path / "data.bin", 10)
    here = node("n1", source, StageItem(name="big", source=str(source), how=How.link))
    assert here.stage() == source
    assert here.how == "linked"
