"""Promises of the rule that tells secrets from other environment variables."""

from __future__ import annotations

import pytest

from hpckit.planning.secrecy import find_secrets_in_environment, is_secret_variable

LONG = "a1B2c3D4e5F6g7H8i9J0"

BY_NAME = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN", "AWS_SESSION_TOKEN", "GITHUBTOKEN"),
    *("WANDB_API_KEY", "COMET_API_KEY", "OPENAI_APIKEY", "wandbApiKey", "KAGGLE_KEY"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "SSH_PRIVATE_KEY", "CLIENT_SECRET"),
    *("MLFLOW_TRACKING_PASSWORD", "PGPASSWORD", "DB_PASSWD", "MYSQL_PWD", "SMTP_PASS"),
    *("GOOGLE_CREDENTIALS", "CREDENTIAL", "KEY_PASSPHRASE", "REGISTRY_AUTH", "AUTH", "GH_PAT"),
)
BY_VALUE = (
    f"hf_{LONG}",
    f"sk-{LONG}",
    f"sk-proj-{LONG}",
    f"ghp_{LONG}",
    f"gho_{LONG}",
    f"github_pat_{LONG}",
    f"glpat-{LONG}",
    "AKIAIOSFODNN7EXAMPLE",
    f"xoxb-{LONG}",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3B",
    "postgres://me:word@db.example.org/study",
    "https://:word@proxy:3128",
    f"Bearer {LONG}",
    f"x=1,key=hf_{LONG}",
)
PLAIN = (
    ("TOKENIZERS_PARALLELISM", "false"),
    ("MAX_TOKENS", "4096"),
    ("MAX_TOKEN", "none at all"),
    ("TOKENS_PER_BATCH", "4096 or so"),
    ("EOS_TOKEN_ID", "50256"),
    ("PAD_TOKEN_ID", "x"),
    ("PAD_TOKEN", "0.5"),
    ("EOS_TOKEN", "</s>"),
    ("MASK_TOKEN", "[MASK]"),
    ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
    ("HF_TOKEN", ""),
    ("HF_TOKEN_PATH", "/home/me/.cache/huggingface/token"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/token"),
    ("SSH_AUTH_SOCK", "/run/agent.1"),
    ("OS_AUTH_URL", "https://keystone:5000/v3"),
    ("XAUTHORITY", "/home/me/.Xauthority"),
    ("AUTHOR", "Ada Lovelace"),
    ("PATH", "/usr/bin"),
    ("PWD", "/home/me"),
    ("OLDPWD", "/home/me"),
    ("COMPASS", "north"),
    ("SORT_KEY", "loss"),
    ("MONKEY", "see"),
    ("MODEL", "hf_transformer"),
    ("LIBRARY", "sk-learn-contrib"),
    ("MASTER_ADDR", "tcp://10.0.0.1:29500"),
    ("PROXY", "http://proxy:3128"),
    ("MAIL", "me@example.org"),
    ("HF_TOKEN", "${oc.env:HF_TOKEN}"),
    ("OMP_NUM_THREADS", "8"),
    ("NCCL_SOCKET_IFNAME", "ib0"),
)


@pytest.mark.parametrize("name", BY_NAME)
def test_secret_is_known_by_its_name(name: str) -> None:
    """Whatever its value, a variable of such a name is taken for a secret."""
    assert is_secret_variable(name, "word of mine")
    assert is_secret_variable(name.lower(), "12345678901234567890")


@pytest.mark.parametrize("value", BY_VALUE)
def test_secret_is_known_by_its_value(value: str) -> None:
    """Whatever its name, a variable that holds a key of a well-known kind is a secret."""
    assert is_secret_variable("SETTING", value)
    assert is_secret_variable("SETTING_PATH", value)


@pytest.mark.parametrize(("name", "value"), PLAIN)
def test_plain_variable_is_not_taken_for_a_secret(name: str, value: str) -> None:
    """What only sounds like a secret stays visible, and tells runs apart."""
    assert not is_secret_variable(name, value)


def test_secret_is_known_by_the_environment_it_comes_from() -> None:
    """A value that holds a secret of the launching shell is one under any name."""
    known = find_secrets_in_environment(
        {"MY_SECRET": "of no known form", "A_TOKEN": "abc", "HOME": "/home/me"}
    )
    assert known == {"of no known form"}
    assert is_secret_variable("HEADER", "key: of no known form!", known)
    assert not is_secret_variable("WORKING_FOLDER", "/home/me/abc", known)
