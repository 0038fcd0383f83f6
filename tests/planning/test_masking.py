"""Promises of masking: what leaves it has no secret, and lacks nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpckit.errors import ConfigError
from hpckit.model.launch import Cluster, LaunchConfig
from hpckit.model.plain import to_plain
from hpckit.model.plan import SweepPoint
from hpckit.planning.masking import find_keys_exposing_secrets, mask_point_secrets
from hpckit.planning.secrecy import mask_message, mask_override
from hpckit.planning.signature import compute_run_signature

KEY = "hf_a1B2c3D4e5F6"
SETTINGS = LaunchConfig(
    entry_point="a:b",
    env={"HF_TOKEN": KEY, "A": "plain"},
    cluster=Cluster(env={"SITE_PASSWORD": "of the site", "B": "plain"}),
    stages={"train": {"overrides": [f"+env.HF_TOKEN={KEY}", "seed=1"]}, "test": {}},
)


def point(settings: LaunchConfig = SETTINGS, *overrides: str) -> SweepPoint:
    """Return a point with these settings."""
    return SweepPoint(overrides=overrides, config=to_plain(settings), settings=settings)


def test_masked_point_holds_its_secrets_in_one_place() -> None:
    """Configuration, settings, overrides and the text of the point have none; the rest stays."""
    masked = mask_point_secrets(point(SETTINGS, f"+env.HF_TOKEN={KEY}", "seed=1"))
    for text in (KEY, "of the site"):
        assert text not in repr(masked)
    assert masked.overrides == ("+env.HF_TOKEN=***", "seed=1")
    assert masked.config == to_plain(masked.settings)
    assert masked.settings.env == {"HF_TOKEN": "***", "A": "plain"}
    assert masked.settings.cluster.env == {"SITE_PASSWORD": "***", "B": "plain"}
    assert masked.secrets.env == {"HF_TOKEN": KEY}
    assert masked.secrets.cluster == {"SITE_PASSWORD": "of the site"}
    clear = LaunchConfig(entry_point="a:b", env={"A": "plain"})
    assert mask_point_secrets(point(clear)) == point(clear)


def test_copy_of_a_secret_under_another_key_is_named() -> None:
    """A key is named if it holds a secret, in a list, too; short values are not looked for."""
    settings = LaunchConfig(command=["train", f"--key={KEY}"], env={"HF_TOKEN": KEY, "A_TOKEN": "ab"})
    config = {**to_plain(settings), "model": {"key": KEY, "name": "ab"}}
    masked = mask_point_secrets(SweepPoint(overrides=(), config=config, settings=settings))
    assert find_keys_exposing_secrets(masked) == ("command", "model.key")
    assert find_keys_exposing_secrets(mask_point_secrets(point())) == ()


def test_signature_does_not_depend_on_a_secret() -> None:
    """Two tokens compute the same thing, and a signature is nothing to guess a token by."""
    other = replace(SETTINGS, env={**SETTINGS.env, "HF_TOKEN": "another"})
    none = replace(SETTINGS, env={"A": "plain"})
    found = [compute_run_signature(mask_point_secrets(point(one)).config) for one in (SETTINGS, other, none)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("value", ["***", "a\0b"])
def test_value_that_cannot_be_a_secret_is_refused(value: str) -> None:
    """The mask itself (pasted from an output), and what no variable can hold."""
    with pytest.raises(ConfigError, match=r"env\.HF_TOKEN"):
        mask_point_secrets(point(LaunchConfig(entry_point="a:b", env={"HF_TOKEN": value})))


@pytest.mark.parametrize(
    ("word", "masked"),
    [
        (f"env.HF_TOKEN={KEY}", "env.HF_TOKEN=***"),
        ("++cluster.env.DB_PASSWORD=abc", "++cluster.env.DB_PASSWORD=***"),
        ("train:+env.API_KEY='a b'", "train:+env.API_KEY=***"),
        (f"+env.HF_TOKEN={KEY},b", "+env.HF_TOKEN=***"),
        ("~env.HF_TOKEN=abc", "~env.HF_TOKEN=***"),
        ("+env={HF_TOKEN: abc, A: b}", "+env=***"),
        ("+env={A: b}", "+env={A: b}"),
        ("env.MAX_TOKENS=1,2", "env.MAX_TOKENS=1,2"),
        ("+env.HF_TOKEN=${oc.env:HF_TOKEN}", "+env.HF_TOKEN=${oc.env:HF_TOKEN}"),
        ("+env.HF_TOKEN=${oc.env:HF_TOKEN,abc}", "+env.HF_TOKEN=***"),
        ("~env.HF_TOKEN", "~env.HF_TOKEN"),
        ("model.token=abc", "model.token=abc"),
    ],
)
def test_word_is_masked_where_it_sets_a_secret(word: str, masked: str) -> None:
    """The key stays, the value goes, however the override is written."""
    assert mask_override(word) == masked


@pytest.mark.parametrize("word", [f"env.HF_TOKEN={KEY}", "+env.HF_TOKEN=abc,d", "env.A=ghp_12345678"])
def test_message_quotes_no_secret_of_the_command_line(word: str) -> None:
    """Neither the word as it was given, nor a value of its sweep, nor the value alone."""
    values = word.partition("=")[2].split(",")
    said = f"{word}: no. And {word.partition('=')[0]}={values[0]}, in {word!r}."
    text = mask_message(said, ("launch", word))
    assert not any(f"={value}" in text for value in values)
    assert text.startswith(f"{word.partition('=')[0]}=***: no. And ")
    assert mask_message("seed=1: no.", ("seed=1", word)) == "seed=1: no."
    assert mask_message("no key of mine", (), {"key of mine"}) == "no ***"
