"""The folder of a node for data: whose it may be, and what may go from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from staged_node import Node, write_random

from hpckit.features.staging.items import StageItem
from hpckit.features.staging.place import (
    MANIFEST,
    NodeDataError,
    choose_folder,
    claim_for_node,
    end_use,
    evict_copies,
    find_shared_file_system,
    is_in_use,
    remove_leftovers,
)
from hpckit.model.failure import Cause
from hpckit.model.node_setup import KeptData

MakeNode = Callable[..., Node]
COME_AND_GO = f"""
import sys
from pathlib import Path
partial, manifest = Path(sys.argv[1], "big.0a1b.partial"), Path(sys.argv[1], "big.0a1b{MANIFEST}")
print(flush=True)
while True:
    partial.mkdir()
    manifest.touch()
    partial.rmdir()
    manifest.unlink(missing_ok=True)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a private folder."""
    folder = tmp_path / "scratch"
    folder.mkdir(mode=0o700)
    return folder


def test_a_folder_is_made_with_the_nodes_own_variables(here: Path) -> None:
    """`$SLURMD_NODENAME` in data.dir is the node's; one that the node does not have is refused."""
    found = choose_folder(f"{here}/$NODE", [], {"NODE": "n7"}, 0)
    assert found == here / "n7"
    assert found.stat().st_mode & 0o777 == 0o700
    with pytest.raises(NodeDataError, match="variable that the node does not have"):
        choose_folder(f"{here}/$OTHER", [], {}, 0)


def test_what_others_could_write_is_refused(here: Path) -> None:
    """Nothing that another user could have put there is trusted: a link, or a folder open to others."""
    (here / "link").symlink_to(here)
    (here / "open").mkdir()
    (here / "open").chmod(0o777)
    (here / "open" / "mine").mkdir()
    said_of = {"link": "symbolic link", "open": "others can write", "open/mine": "others can write"}
    for name, said in said_of.items():
        with pytest.raises(NodeDataError, match=said) as raised:
            choose_folder(str(here / name), [], {}, 0)
        assert raised.value.cause is Cause.data_refused


def test_everybodys_folder_gets_a_private_one(here: Path) -> None:
    """In a folder like /tmp the data lies in a folder that no other user can enter."""
    (here / "tmp").mkdir()
    (here / "tmp").chmod(0o1777)
    found = choose_folder(str(here / "tmp"), [], {}, 0)
    assert found.parent == here / "tmp"
    assert found.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_refused(here: Path) -> None:
    """Nor is one below it, or behind their link: they could put another one in its place."""
    (here / "theirs" / "mine").mkdir(parents=True)
    (here / "link").symlink_to(here / "own")
    (here / "own" / "mine").mkdir(parents=True)
    (here / "behind").symlink_to(here / "link")
    os.chown(here / "theirs", 12345, 12345)
    os.chown(here / "link", 12345, 12345, follow_symlinks=False)
    for name in ("theirs", "theirs/mine", "theirs/new", "link/mine", "behind/mine"):
        with pytest.raises(NodeDataError, match=r"(theirs|link) belongs to uid 12345") as raised:
            choose_folder(str(here / name), [], {}, 0)
        assert raised.value.cause is Cause.data_refused
    assert not (here / "theirs" / "new").exists()
    (here / "way").symlink_to("own")
    assert choose_folder(str(here / "way" / "mine"), [], {}, 0) == here / "way" / "mine"


def test_the_first_candidate_with_room_is_taken(here: Path) -> None:
    """Of cluster.node_scratch it is the first that is there and large enough; else all are named."""
    found = choose_folder(None, ["$GONE/x", "/no/such", str(here)], {}, 1)
    assert found == here
    with pytest.raises(NodeDataError, match=r"\$GONE/x is not there; .* [GT]iB free") as raised:
        choose_folder(None, ["$GONE/x", str(here)], {}, 10**18)
    assert raised.value.cause is Cause.scratch_full


def test_nodes_of_one_machine_have_parts_of_a_folder(here: Path) -> None:
    """Simulated nodes share a disk: each has its own part of a folder, the same one every time."""
    assert claim_for_node(here, "n1") == here
    assert claim_for_node(here, "n2") == here / "n2"
    assert claim_for_node(here, "n1") == here


def test_a_folder_that_another_machine_has_is_shared(here: Path) -> None:
    """Whatever its file system says: a node with another kernel wrote there."""
    (here / ".hpckit-node").write_text(json.dumps({"node": "n1", "boot": "another"}))
    with pytest.raises(NodeDataError, match="is shared: n1 has it, too"):
        claim_for_node(here, "n2")
    assert claim_for_node(here, "n1") == here  # which was started again since


def test_local_file_systems_are_told_from_shared_ones(tmp_path: Path) -> None:
    """A local disk is none of the shared file systems; nor is a folder that is still to be made."""
    assert find_shared_file_system(tmp_path / "not" / "there") is None


def test_the_longest_unused_copy_goes_first_and_none_in_use(tmp_path: Path, node: MakeNode) -> None:
    """The cache removes by last use, and never what a job is using."""
    copies = {}
    for number, name in enumerate(("old", "used", "new")):
        source = write_random(tmp_path / f"{name}.bin", 1000)
        here = node("n1", source, StageItem(name=name, source=str(source)))
        copies[name] = here.stage()
        if name != "used":
            here.close()
        (manifest,) = here.folder.glob(f"{name}.*{MANIFEST}")
        os.utime(manifest, (number, number))
    evict_copies(tmp_path / "n1", 2500, 0, "")
    assert [copy.exists() for copy in copies.values()] == [False, True, True]
    evict_copies(tmp_path / "n1", 0, 0, "")
    assert [copy.exists() for copy in copies.values()] == [False, True, False]
    assert not is_in_use(manifest)  # of a copy that is gone


def test_what_a_killed_agent_left_goes_when_its_run_has_ended(tmp_path: Path, node: MakeNode) -> None:
    """Data kept for a job is removed by the next agent, once its run has ended for good."""
    source = write_random(tmp_path / "data.bin", 1000)
    here = node("n1", source, keep=KeptData.job)
    copy = here.stage()
    here.close()
    remove_leftovers(here.folder, lambda _: False, print)
    assert copy.exists()
    remove_leftovers(here.folder, lambda owner: owner == {"launch": "/launch", "run": 0}, print)
    assert not copy.exists()


def test_copies_that_come_and_go_meanwhile_trouble_nobody(here: Path) -> None:
    """Other jobs of the node begin, finish and remove theirs at any time."""
    with subprocess.Popen([sys.executable, "-c", COME_AND_GO, here], stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        try:
            for _ in range(6000):
                remove_leftovers(here, lambda _: False, print)
                evict_copies(here, 0, 1, "")
            assert job.poll() is None
        finally:
            job.kill()


def test_what_was_begun_and_left_for_a_week_goes(here: Path) -> None:
    """A partial copy, with the journal of its blocks."""
    partial = here / "big.0a1b.partial"
    partial.mkdir()
    partial.with_suffix(".blocks").touch()
    remove_leftovers(here, lambda _: False, print)
    assert len([*here.iterdir()]) == 2
    os.utime(partial, (0, 0))
    remove_leftovers(here, lambda _: False, print)
    assert not [*here.iterdir()]


def test_a_forked_process_keeps_no_copy(tmp_path: Path, node: MakeNode) -> None:
    """What saves compile caches is forked while the environment is in use, and outlives that use."""
    here = node("n1", write_random(tmp_path / "data.bin", 10))
    here.stage()
    (manifest,) = here.folder.glob(f"*{MANIFEST}")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)  # until the other end is closed
        os._exit(0)
    end_use(here.used)
    assert not is_in_use(manifest)
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)
