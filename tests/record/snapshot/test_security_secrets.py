"""Promises of docs/explanations/security.md about secrets: what is taken, and who can read it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiers import thorough
from waiting import run_to_end

from hpckit.model.settings import Code
from hpckit.record.snapshot.collect import CodeSnapshot, find_project_files_to_freeze
from hpckit.record.snapshot.git import Git

pytestmark = pytest.mark.whole

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null"}
WORD = "PRIVATE KEY"
SECRETS = {
    ".ssh/config": "Host a",
    ".ssh/keys/deploy": "x",
    ".aws/credentials": "[default]",
    ".config/gcloud/credentials.db": "x",
    ".kube/config": "x",
    ".docker/config.json": "{}",
    ".huggingface/token": "hf",
    ".cache/huggingface/token": "hf",
    ".env": "A=b",
    ".env.local": "A=b",
    "sub/.env": "A=b",
    ".netrc": "machine a",
    ".git-credentials": "x",
    ".pypirc": "x",
    "client.p12": "x",
}
CODE = {
    "train.py": "print()",
    ".env.example": "A=",
    ".config/app.yaml": "a: 1",
    ".docker/Dockerfile": "FROM a",
    "environment.yaml": "a: 1",
    "ssh/config.py": "pass",
    "token.py": "pass",
}


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files below a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def git(folder: Path, *words: str) -> None:
    """Run git in a folder."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *who, *words], env=ENVIRON, check=True, timeout=60)


def taken(snapshot: CodeSnapshot) -> set[str]:
    """Return the paths of a snapshot."""
    return {file.path for file in snapshot.files or ()}


def found(folder: Path, secrets: Sequence[str] = ()) -> CodeSnapshot:
    """Return what a snapshot of a folder would hold."""
    code = Code(secrets=list(secrets))
    return find_project_files_to_freeze(code, cwd=folder, output_dir=folder / "outputs", git=Git(ENVIRON))


@pytest.fixture(params=["outside git", "untracked in git"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a project with code and secrets."""
    write(tmp_path, SECRETS | CODE)
    if request.param != "outside git":
        git(tmp_path, "init", "-q")
    return tmp_path


def test_security_snapshot_leaves_secrets_out_and_names_them(project: Path) -> None:
    """No secret is in the snapshot; what was left out is named, folders as a whole."""
    snapshot = found(project)
    assert taken(snapshot) == set(CODE)
    whole = {".ssh/", ".aws/", ".config/gcloud/", ".kube/", ".huggingface/"}
    files = {name for name in SECRETS if not any(name.startswith(folder) for folder in whole)}
    assert set(snapshot.left_out) == whole | files


def test_security_snapshot_takes_secrets_that_are_insisted_on(project: Path) -> None:
    """Names, folders and globs of `code.secrets` are taken; the rest is still left out."""
    snapshot = found(project, secrets=[".env", ".ssh", ".config/gcloud/", "*.p12"])
    insisted = {".env", ".ssh/config", ".ssh/keys/deploy", "client.p12"}
    insisted.add(".config/gcloud/credentials.db")
    assert taken(snapshot) == set(CODE) | insisted
    assert ".env" not in snapshot.left_out
    assert ".aws/" in snapshot.left_out


@pytest.mark.parametrize(
    "text",
    [
        f"-----BEGIN {WORD}-----\nMII\n",
        f"-----BEGIN RSA {WORD}-----\nMII\n",
        f"\n\n-----BEGIN OPENSSH {WORD}-----\nb3B\n",
        f"-----BEGIN ENCRYPTED {WORD}-----\r\nMII\r\n",
        f"Bag Attributes\n    localKeyID: 01\n-----BEGIN {WORD}-----\nMII\n",
        f"-----BEGIN PGP {WORD} BLOCK-----\n\nlQ\n",
        "PuTTY-User-Key-File-3: ssh-ed25519\n",
        json.dumps({"type": "service_account", "private_key": f"-----BEGIN {WORD}-----\nMII"}),
    ],
)
def test_security_snapshot_knows_private_keys_by_content(tmp_path: Path, text: str) -> None:
    """A file that begins with a private key is left out, whatever it is called."""
    write(tmp_path, {"notes": text, "train.py": "print()"})
    snapshot = found(tmp_path)
    assert (taken(snapshot), snapshot.left_out) == ({"train.py"}, ("notes",))


def test_security_snapshot_takes_code_that_only_looks_like_secrets(tmp_path: Path) -> None:
    """Public certificates, code that holds a key for its tests, and what git tracks are taken."""
    files = {
        "ca.pem": "-----BEGIN CERTIFICATE-----\nMII\n",
        "id_rsa.pub": "ssh-rsa AAAA",
        "test_keys.py": f'KEY = """\\\n-----BEGIN {WORD}-----\nMII\n"""\n',
        "id_map.py": "pass",
    }
    write(tmp_path, {**files, ".env": "A=b"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    snapshot = found(tmp_path)
    assert (taken(snapshot), snapshot.left_out) == ({*files, ".env"}, ())
    (tmp_path / ".git").rename(tmp_path.with_name("aside"))
    assert taken(found(tmp_path)) == set(files)


@pytest.mark.parametrize(
    "umask", [0o000, pytest.param(0o002, marks=thorough), pytest.param(0o022, marks=thorough)]
)
def test_security_launch_folder_is_private_to_the_last_file(tmp_path: Path, umask: int) -> None:
    """Nobody else may read or write anything in it, whatever the umask and the project's modes."""
    write(tmp_path, {"src/deep/lib.py": "pass", "run.sh": "true", ".netrc": "machine a"})
    (tmp_path / "src" / "deep").chmod(0o777)
    words = ("launch", "command=[sh,run.sh]", "experiment=command", "cluster=local", "--wait")
    done = run_to_end(
        [sys.executable, "-m", "hpckit", *words, "--json"],
        cwd=tmp_path,
        env={name: text for name, text in os.environ.items() if not name.startswith("SLURM")},
        umask=umask,
    )
    assert done.returncode == 0, done.stderr
    assert "look like secrets: .netrc" in done.stderr
    document = json.loads(done.stdout)
    assert document["left_out"] == [".netrc"]
    folder = Path(document["dir"])
    below = [folder, *folder.rglob("*")]
    assert [
        f"{path} {seen.st_mode:o}"
        for path in below
        if not stat.S_ISLNK((seen := path.lstat()).st_mode) and stat.S_IMODE(seen.st_mode) & 0o077
    ] == []
    assert any(path.name == "lib.py" for path in below)
    assert any(path.name == "rounds" for path in below)
