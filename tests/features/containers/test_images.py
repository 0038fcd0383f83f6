"""`hpckit image`: an image is pulled once into a file that is whole, and the user's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_world import Desk, Said, Writer, verb_said
from containers_world import make_cheap_root
from image_registry import Registry, image_registry
from waiting import until

from hpckit.errors import NotFoundError
from hpckit.features.containers.images import PulledImage, resolve_image
from hpckit.model.launch import Cluster
from hpckit.record.process import read_process_start_id
from hpckit.record.store import write_json

FAKE = """#!/bin/sh
# An apptainer that writes its words, waits while there is a file `hold`, and makes an image of its last word.
echo "$$ $*" >> {folder}/calls
while [ -e {folder}/hold ]; do sleep 0.02; done
[ ! -e {folder}/broken ] || {{ echo 'FATAL: no space left'; exit 255; }}
for word; do before=$last; last=$word; done
printf '%s' "$last" > "$before"
"""

DAEMON = """#!/bin/sh
# One that leaves a process in a session of its own, as a FUSE mount does, and heeds no signal.
echo "$$ $*" >> {folder}/calls
cd {folder}
setsid sh -c 'trap "" TERM; echo $$ > pid; mv pid daemon; while :; do sleep 1; done' &
trap "" TERM
wait
while :; do sleep 1; done
"""


@dataclass(slots=True, kw_only=True)
class Site:
    """A registry, a fake apptainer on PATH, and a user's folder."""

    folder: Path
    registry: Registry
    environ: dict[str, str]
    more: tuple[str, ...] = ("cluster=local",)

    @property
    def images(self) -> Path:
        """The folder of images."""
        return self.folder / "outputs" / "images"

    @property
    def reference(self) -> str:
        """What is pulled."""
        return f"docker://{self.registry.host}/team/app:1"

    def push(self, content: str) -> str:
        """Move the tag to another image; return its digest."""
        root = self.folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        make_cheap_root(root)
        (root / "IMAGE").write_text(content)
        return self.registry.push("team/app", "1", root)

    def words(self, *words: str) -> list[str]:
        """Return a command of `hpckit image` with this registry."""
        plain = ["--plain-http"] if words[0] == "pull" else []
        return ["image", *words, *plain, *self.more]

    def say(self, *words: str) -> Said:
        """Run `hpckit image`."""
        return verb_said(*self.words(*words), folder=self.folder, environ=self.environ)

    def pull(self) -> dict[str, Any]:
        """Pull, which must succeed; return what is told of the image, with `new`."""
        said = self.say("pull", self.reference, "--json")
        assert said.code == 0, said.err
        told = json.loads(said.out)
        return {**told["images"][0], "new": told["new"]}

    def start(self) -> subprocess.Popen[str]:
        """Pull in a process of its own."""
        words = [sys.executable, "-m", "hpckit", *self.words("pull", self.reference, "--json")]
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def calls(self) -> list[str]:
        """Return the words of each call of apptainer."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def tool(self) -> int:
        """Return the process of the first call."""
        return int(self.calls()[0].split()[0])

    def find(self, reference: str = "", suffix: str = ".sif") -> PulledImage:
        """Return what a launch would take."""
        outputs = self.folder / "outputs"
        return resolve_image(reference or self.reference, suffix, Cluster(), outputs, self.environ)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Return a site with one image in its registry."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "apptainer"
    program.write_text(FAKE.format(folder=tmp_path))
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    with image_registry() as registry:
        site = Site(folder=tmp_path, registry=registry, environ=environ)
        site.push("first")
        yield site


def test_pulled_once_by_digest_private_and_recorded(site: Site) -> None:
    """The second call finds it, and only the image and its record are there."""
    digest = site.push("again")
    site.registry.token, site.registry.login = "token", "tester:hunter2"
    login = {"APPTAINER_DOCKER_USERNAME": "tester", "APPTAINER_DOCKER_PASSWORD": "hunter2"}
    site.environ |= login
    image = site.pull()
    assert (image["digest"], image["new"], image["reference"]) == (digest, True, site.reference)
    assert digest[7:23] in image["name"]
    assert Path(image["file"]).read_text() == f"docker://{site.registry.host}/team/app@{digest}"
    assert sorted(path.name for path in site.images.iterdir()) == [image["name"], f"{image['name']}.json"]
    assert {path.stat().st_mode & 0o777 for path in site.images.iterdir()} == {0o600}
    assert site.images.stat().st_mode & 0o777 == 0o700
    assert site.pull() == {**image, "new": False}
    assert len(site.calls()) == 1
    kept = [*site.calls(), Path(f"{image['file']}.json").read_text()]
    assert not [text for text in kept if "hunter2" in text or "tester" in text]


def test_tag_that_moves_is_another_file(site: Site) -> None:
    """A launch takes the newest of a tag, and exactly what a digest says."""
    first = site.pull()
    site.push("second")
    second = site.pull()
    assert first["file"] != second["file"]
    assert site.find().file == second["file"]
    exact = f"docker://{site.registry.host}/team/app@{first['digest']}"
    assert site.find(exact).file == first["file"]


def test_program_that_fails_leaves_nothing(site: Site) -> None:
    """Its last words are told, and the exit code is 1; a later pull succeeds."""
    (site.folder / "broken").touch()
    said = site.say("pull", site.reference)
    assert said.code == 1
    assert "no space left" in said.err
    assert list(site.images.iterdir()) == []
    (site.folder / "broken").unlink()
    assert site.pull()["new"] is True


def test_killed_pull_leaves_no_image_and_the_next_one_tidies(site: Site) -> None:
    """However far the program was: a name is given only to what is whole."""
    (site.folder / "hold").touch()
    killed = site.start()
    until(site.calls)
    killed.kill()
    killed.communicate()
    until(lambda: read_process_start_id(site.tool()) is None)
    (left,) = site.images.glob(".*.partial.*")
    assert json.loads(site.say("ls", "--json").out)["images"] == []
    (site.folder / "hold").unlink()
    assert site.pull()["new"] is True
    assert not left.exists()
    assert not list(site.images.glob(".*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_pull_that_is_ended_leaves_nothing(site: Site, number: signal.Signals) -> None:
    """Neither the program nor a process of its own, also of another session; nor a file."""
    (site.folder / "hold").touch()
    (site.folder / "bin" / "apptainer").write_text(DAEMON.format(folder=site.folder))
    ended = site.start()
    daemon = until(lambda: (site.folder / "daemon").exists() and (site.folder / "daemon").read_text())
    ended.send_signal(number)
    ended.communicate(timeout=60)
    assert ended.returncode == 128 + number
    assert [pid for pid in (site.tool(), int(daemon)) if read_process_start_id(pid) is not None] == []
    assert list(site.images.iterdir()) == []


def test_of_two_pulls_at_once_one_pulls_and_both_find_it(site: Site) -> None:
    """The second one waits, and says for whom."""
    (site.folder / "hold").touch()
    both = [site.start(), site.start()]
    until(site.calls)
    (site.folder / "hold").unlink()
    told = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert sorted(one["new"] for one in told) == [False, True]
    assert told[0]["images"] == told[1]["images"]
    assert len(site.calls()) == 1


@pytest.mark.parametrize("kind", ["written by others", "link", "longer", "record of others", "no record"])
def test_what_others_may_have_written_is_no_image(site: Site, kind: str) -> None:
    """Neither is a link, nor a file that is not as it was pulled; `ls` says why, and a launch is refused."""
    file = Path(site.pull()["file"])
    record = Path(f"{file}.json")
    if kind == "link":
        file.rename(site.folder / "elsewhere")
        file.symlink_to(site.folder / "elsewhere")
    elif kind == "longer":
        file.write_text(file.read_text() + "more")
    elif kind == "no record":
        record.unlink()
    else:
        (file if kind == "written by others" else record).chmod(0o666)
    said = site.say("ls", "--json")
    assert json.loads(said.out)["images"] == []
    assert ("does not count" in said.err) is (kind != "no record")
    with pytest.raises(NotFoundError, match="is not in"):
        site.find()


def test_folder_of_the_cluster_may_name_the_user(site: Site) -> None:
    """A file of a site is for all its users; others may read what is in a folder that lets them in."""
    shared = site.folder / "shared" / "tester"
    shared.mkdir(parents=True)
    shared.chmod(0o755)
    site.environ["USER"] = "tester"
    site.more += (f"cluster.image_dir={shared.parent}/$USER",)
    file = Path(site.pull()["file"])
    assert file.parent == shared
    assert {path.stat().st_mode & 0o777 for path in shared.iterdir()} == {0o644}


def test_folder_in_which_everybody_replaces_files_is_refused(site: Site) -> None:
    """With the sticky bit only owners replace theirs."""
    site.pull()
    site.images.chmod(0o777)
    assert site.say("ls").code == 2
    site.images.chmod(0o1777)
    assert site.find()


def test_launch_is_told_to_pull_first(site: Site) -> None:
    """It never pulls."""
    with pytest.raises(NotFoundError) as raised:
        site.find()
    assert f"hpckit image pull {site.reference}" in raised.value.hint
    file = site.pull()["file"]
    assert site.find().file == file


def test_file_of_its_runtime_is_preferred(site: Site) -> None:
    """Each program pulls its own; what another one pulled is better than none."""
    first = site.pull()["file"]
    assert site.find(suffix=".sqsh").file == first
    shutil.copy(site.folder / "bin" / "apptainer", site.folder / "bin" / "enroot")
    site.more += ("container.runtime=pyxis",)
    second = site.pull()["file"]
    assert [site.find(suffix=suffix).file for suffix in (".sif", ".sqsh")] == [first, second]


def test_program_of_another_runtime_pulls_nothing(site: Site) -> None:
    """A site's program is that of its own runtime: another runtime's is looked for."""
    site.more += ("cluster.container_runtime=podman", "cluster.container_bin=/usr/bin/env")
    site.more += ("container.runtime=apptainer",)
    assert site.pull()["tool"] == "apptainer"


def test_rank_never_pulls(site: Site) -> None:
    """A thousand ranks would ask the registry at once."""
    site.environ["HPCKIT_RANK"] = "3"
    said = site.say("pull", site.reference)
    assert said.code == 2
    assert "before the launch" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pull",), "takes one reference, not none"),
        (("pull", "team/app"), "is not a reference"),
        (("ls", "--on", "gpu"), "option of `hpckit image pull`"),
        (("rm",), "takes names, not none"),
        (("rm", "sha256:123456"), "there is no image"),
        (("ls", "cluster.image_dir=images"), "no absolute path"),
        (("ls", "cluster.image_dir=/images/$NOT_SET"), "no absolute path"),
        (("pull", "docker://app", "container.runtime=podman"), "not for podman"),
        (("pull", "docker://app", "cluster.container_bin=/nowhere/apptainer"), "no /nowhere/apptainer"),
    ],
)
def test_wrong_words_are_one_error(site: Site, words: tuple[str, ...], message: str) -> None:
    """Nothing is made of it."""
    said = site.say(*words)
    assert said.code == 2
    assert message in said.err
    assert not site.images.exists()


def test_image_of_a_run_that_may_start_stays(site: Site, desk: Desk, writer: type[Writer]) -> None:
    """Until that has ended; `ls` names the launch."""
    image = site.pull()
    launch = desk.freeze()
    record = json.loads((launch.paths.launch).read_text())
    here = {key: image[key] for key in ("digest", "platform", "file", "bytes")}
    frozen = {**here, "runtime": "apptainer", "image": "docker://app", "stamp": [], "runs": [0]}
    write_json(launch.paths.launch, {**record, "containers": [frozen]})
    assert json.loads(site.say("ls", "--json").out)["images"][0]["used_by"] == [launch.id]
    assert launch.id in site.say("ls").out
    refused = site.say("rm", image["name"], "--yes")
    assert refused.code == 2
    assert f"run {launch.id}" in refused.err
    attempt = writer(launch=launch)
    attempt.start()
    attempt.complete()
    assert json.loads(site.say("rm", image["digest"][:15], "--json").out)["removed"] is False
    assert Path(image["file"]).exists()
    assert json.loads(site.say("rm", image["digest"][:15], "--json", "--yes").out)["removed"] is True
    assert list(site.images.iterdir()) == []


def test_enroot_makes_the_file_of_pyxis(site: Site) -> None:
    """It is told a tag, as some of its releases know no digests: a tag that moves meanwhile is an error."""
    (site.folder / "bin" / "apptainer").rename(site.folder / "bin" / "enroot")
    site.more += ("container.runtime=pyxis",)
    image = site.pull()
    assert (Path(image["file"]).suffix, image["tool"]) == (".sqsh", "enroot")
    assert Path(image["file"]).read_text() == f"docker://{site.registry.host}#team/app:1"
    site.push("second")
    (site.folder / "hold").touch()
    pulling = site.start()
    until(lambda: len(site.calls()) > 1)
    site.push("third")
    (site.folder / "hold").unlink()
    assert "moved while it was pulled" in pulling.communicate(timeout=60)[1]
    assert pulling.returncode == 1


def test_real_apptainer_pulls_what_it_then_starts(site: Site, apptainer: str) -> None:
    """From a registry that wants a login, without a trace in the home folder."""
    site.push("real")
    site.registry.token, site.registry.login = "token", "tester:hunter2"
    site.environ |= {"APPTAINER_DOCKER_USERNAME": "tester", "APPTAINER_DOCKER_PASSWORD": "hunter2"}
    site.more += (f"cluster.container_bin={apptainer}",)
    image = site.pull()
    words = [apptainer, "-q", "exec", "-B", "/usr", image["file"], "/usr/bin/cat", "/IMAGE"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("real", 0), done.stderr
    assert sorted(path.name for path in site.images.iterdir()) == [image["name"], f"{image['name']}.json"]
    assert not (site.folder / ".apptainer" / "cache").exists()
