"""Data from node to node: read from its source once, whoever is lost on the way."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_node import Node, write_random

from hpckit.features.staging.items import StageItem, Verify
from hpckit.features.staging.listing import BLOCK
from hpckit.features.staging.transfer import (
    ProviderLostError,
    assign_providers,
    compute_direct_seconds,
    compute_tree_seconds,
    derive_key,
    is_tree_better,
    list_providers,
    receive_listing_and_blocks,
)

MakeNode = Callable[..., Node]


def _start_tree(nodes: list[Node]) -> list[threading.Thread]:
    return [
        node.start(*(nodes[one].address for one in list_providers(place))) for place, node in enumerate(nodes)
    ]


@pytest.mark.parametrize("verify", [Verify.sha256, Verify.crc32, Verify.size])
def test_four_nodes_read_the_source_once(tmp_path: Path, node: MakeNode, verify: Verify) -> None:
    """Of four nodes one reads the source, and all have it; none but that one ever opens it."""
    source = write_random(tmp_path / "data.bin", 5 * BLOCK + 11)
    item = StageItem(name="big", source=str(source), verify=verify)
    nodes = [node(f"n{number}", source, item) for number in range(4)]
    for each in nodes[1:]:  # these could not read it
        each.source = nodes[0].source
    threads = _start_tree(nodes)
    for thread in threads:
        thread.join(60)
    assert [each.how for each in nodes] == ["copied", "tree", "tree", "tree"]
    copies = {next(each.folder.glob("big.*/data.bin")).read_bytes() for each in nodes}
    assert copies == {source.read_bytes()}


def test_a_folder_goes_through_the_tree(tmp_path: Path, node: MakeNode) -> None:
    """Small files go from node to node as one row of blocks."""
    source = tmp_path / "set"
    source.mkdir()
    for number in range(200):
        write_random(source / f"{number}", number * 3)
    nodes = [node(f"n{number}", source) for number in range(3)]
    for thread in _start_tree(nodes):
        thread.join(60)
    for each in nodes:
        (copy,) = each.folder.glob("big.*/set")
        assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
            path.name: path.read_bytes() for path in source.iterdir()
        }


def _slow(node: Node, at: int) -> threading.Event:
    """Let a node wait at a block until the event is set."""
    goes_on = threading.Event()
    node.shelf.on_block = lambda blocks: goes_on.wait(60) and None if blocks == at else None
    return goes_on


def test_the_children_of_a_lost_node_go_on_with_its_parent(tmp_path: Path, node: MakeNode) -> None:
    """If an inner node is lost in the middle, its child gets the rest from the grandparent."""
    source = write_random(tmp_path / "data.bin", 6 * BLOCK)
    root, middle, leaf = (node(name, source) for name in ("n1", "n2", "n3"))
    goes_on = _slow(middle, 2)
    threads = [root.start(), middle.start(root.address), leaf.start(middle.address, root.address)]
    leaf.stop_at(2)()
    middle.close()
    threads[2].join(60)
    goes_on.set()
    assert leaf.how == "tree"
    assert next(leaf.folder.glob("big.*/data.bin")).read_bytes() == source.read_bytes()


def test_the_heir_of_a_lost_root_reads_on_from_the_source(tmp_path: Path, node: MakeNode) -> None:
    """If the root is lost, one of its children reads the rest of the source, and serves the other."""
    source = write_random(tmp_path / "data.bin", 6 * BLOCK)
    root, heir, other = (node(name, source) for name in ("n1", "n2", "n3"))
    goes_on = _slow(root, 2)
    threads = [root.start(), heir.start(root.address), other.start(root.address, heir.address)]
    heir.stop_at(2)()
    root.close()
    for thread in threads[1:]:
        thread.join(60)
    goes_on.set()
    assert (heir.how, other.how) == ("copied", "tree")
    assert next(other.folder.glob("big.*/data.bin")).read_bytes() == source.read_bytes()


def test_nobody_waits_for_a_node_that_has_failed(tmp_path: Path, node: MakeNode) -> None:
    """A node whose disk fills up in the middle lives on: who gets blocks from it goes elsewhere at once."""
    source = write_random(tmp_path / "data.bin", 4 * BLOCK)
    first, second = node("n1", source), node("n2", source)

    def fill_up(blocks: int) -> None:
        if blocks == 2:
            second.stop_at(2)()
            raise OSError(errno.ENOSPC, "full")

    first.shelf.on_block = fill_up
    threads = [first.start(), second.start(first.address)]
    for thread in threads:
        thread.join(60)
    assert second.how == "copied"
    assert next(second.folder.glob("big.*/data.bin")).read_bytes() == source.read_bytes()


def test_a_node_with_damaged_blocks_gives_none(tmp_path: Path, node: MakeNode) -> None:
    """A block that no longer has its sum is not taken: the rest comes from elsewhere."""
    source = write_random(tmp_path / "data.bin", 3 * BLOCK)
    first, second = node("n1", source), node("n2", source)
    copy = first.stage()
    with copy.open("r+b") as file:
        file.seek(BLOCK)
        file.write(b"damaged")
    assert second.stage(first.address).read_bytes() == source.read_bytes()
    assert second.how == "copied"


def test_who_does_not_know_the_secret_gets_nothing(tmp_path: Path, node: MakeNode) -> None:
    """Neither a caller with another secret, nor one that only connects, gets a byte of data."""
    source = write_random(tmp_path / "data.bin", BLOCK)
    first = node("n1", source)
    first.stage()
    blocks = receive_listing_and_blocks(
        first.address, derive_key("cd" * 32), first.source.id, Verify.sha256, lambda: 0
    )
    with pytest.raises(ProviderLostError):
        next(blocks)
    with socket.create_connection(("127.0.0.1", first.server.port), timeout=10) as caller:
        caller.sendall(os.urandom(64 + 40))
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := caller.recv(4096):
                got += more
    assert len(got) <= 32  # its challenge alone


@given(st.integers(0, 2000))
def test_nobody_waits_for_who_waits_for_it(place: int) -> None:
    """All providers of a node are above it in the tree, and few."""
    providers = list_providers(place)
    assert all(provider < place for provider in providers)
    assert len(providers) == len({*providers}) <= place.bit_length() + 2
    assert bool(providers) == (place > 0)


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=9))
def test_new_nodes_get_it_from_those_that_have_it(nodes: int, ready: set[int]) -> None:
    """Where nodes have the data, the others ask these alone, and those ask nobody."""
    there = sorted(one for one in ready if one < nodes)
    found = assign_providers(nodes, there)
    assert len(found) == nodes
    if there:
        assert all({*providers} <= {*there} for providers in found)
        assert all(bool(found[place]) == (place not in there) for place in range(nodes))


@given(st.integers(1, 10**13), st.integers(2, 4096))
def test_a_tree_is_taken_where_it_is_not_slower(size: int, nodes: int) -> None:
    """The choice follows the model's own figures, and more nodes never make direct copies better."""
    better = is_tree_better(size, nodes)
    assert better == (compute_tree_seconds(size, nodes) <= 1.1 * compute_direct_seconds(size, nodes))
    if size > 10**9 and better:
        assert is_tree_better(size, 2 * nodes)
    assert not is_tree_better(size, 1)
