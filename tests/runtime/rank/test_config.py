"""What a user's code may do with the configuration that it is given."""

import copy
import io
import json
import multiprocessing
import operator
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from hpckit.runtime.rank.config import Config

VALUES = {
    "lr": 0.1,
    "model": {"width": 8, "head": {"bias": True}},
    "blocks": [{"depth": 1}, {"depth": 2}],
    "count": {"_target_": "collections.Counter", "red": 2},
    "later": {"_target_": "collections.Counter", "_partial_": True},
    "values": 3,
}


@pytest.fixture
def config() -> Config:
    """Return a configuration with mappings in mappings and in lists."""
    return Config(VALUES)


def through_torch(config: Config) -> Any:
    """Save as a checkpoint of the user's own, and load as torch does unless told otherwise."""
    file = io.BytesIO()
    torch.save({"config": config}, file)
    file.seek(0)
    with torch.serialization.safe_globals([Config]):
        return torch.load(file)["config"]


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        *(
            lambda config, protocol=protocol: pickle.loads(pickle.dumps(config, protocol))  # noqa: S301  # our own
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
        through_torch,
    ],
)
def test_config_copies_as_what_it_is(config: Config, copied: Callable[[Config], Any]) -> None:
    """A copy, by whichever way, is equal, and its keys are attributes all the way down."""
    one = copied(config)
    assert one == config
    assert one.model.head.bias is True


def test_config_reaches_spawned_workers(config: Config) -> None:
    """A process that is not forked gets it, too."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(operator.attrgetter("model.width"), [config]) == [8]


def test_config_reads_by_key_and_by_attribute(config: Config) -> None:
    """Both ways lead to the same values, through mappings and lists, and so does iteration."""
    assert config.model.head.bias is config["model"]["head"]["bias"] is True
    assert [block.depth for block in config.blocks] == [1, 2]
    assert config.get("model").width == 8
    assert config.get("none", 5) == 5
    assert {key: value for key, value in config.items() if key == "model"}["model"].width == 8
    assert "model" in config
    assert "none" not in config
    assert list(config) == list(VALUES)
    assert dict(**config.model) == VALUES["model"]


def test_config_converts_to_what_libraries_take(config: Config) -> None:
    """Plain dicts, JSON, OmegaConf and Hydra's instantiate: none of them meets a foreign type."""
    assert type(dict(config)["model"]) is dict
    assert json.loads(json.dumps(config)) == VALUES
    assert OmegaConf.to_container(OmegaConf.create(dict(config))) == VALUES
    assert instantiate(config.count) == Counter(red=2)
    more = Counter(red=2, blue=0.1)  # type: ignore[call-overload]  # a float on purpose
    assert instantiate(config.count, blue=config.lr) == more
    assert isinstance(instantiate(config.later), partial)


def test_config_names_the_keys_there_are(config: Config) -> None:
    """A missing key is an AttributeError with the keys there are, so that `hasattr` works."""
    with pytest.raises(AttributeError, match="no 'widht' here; it has width, head"):
        _ = config.model.widht
    assert not hasattr(config, "widht")


@pytest.mark.parametrize(
    "change",
    [
        lambda config: operator.setitem(config, "lr", 1),
        lambda config: operator.delitem(config, "lr"),
        lambda config: setattr(config.model, "width", 1),
        lambda config: delattr(config, "lr"),
        lambda config: config.update(lr=1),
        lambda config: config.pop("lr"),
        lambda config: config.setdefault("none", 1),
        lambda config: config.clear(),
        lambda config: operator.ior(config, {"lr": 1}),  # type: ignore[no-untyped-call]  # typeshed has no types of it
    ],
)
def test_config_refuses_to_be_changed(config: Config, change: Callable[[Config], Any]) -> None:
    """Every way to change it says that a copy can be changed, and changes nothing."""
    with pytest.raises(TypeError, match="read-only"):
        change(config)
    assert config == VALUES
