"""One initialised Hydra: loads configurations and lists groups, without explaining failures.

Hydra is initialised once for all points of a sweep; the state of a Hydra that the caller uses is put
back. In a session `${oc.env:NAME}` reads the request's environment, never the process's own.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import hydra
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.errors import MissingConfigException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.basecontainer import BaseContainer
from omegaconf.resolvers import oc

from hpckit.config.primary import choose_primary_config, import_configured_modules
from hpckit.config.request import ComposeRequest, list_conf_folders, shipped_conf_folder
from hpckit.config.schema import SCHEMA_NAME, register_schema_with_hydra
from hpckit.config.written import keep_config_values_as_written, keep_override_values_as_written
from hpckit.errors import ConfigError
from hpckit.model.launch import MISSING
from hpckit.model.node_setup import Data
from hpckit.model.plain import iterate_leaf_values
from hpckit.planning.secrecy import mask_message, mask_override
from hpckit.values import dataclass, field, field_names, replace

# hydra-core 1.3 warns if this is missing, 1.4 if it is given.
VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}

_OF_HYDRA = ("hydra/config", "hydra/launcher/basic", "hydra/sweeper/basic")
"""What Hydra always composes and has in no file: a file of that name takes its place."""

_OWN_CONFIGS = ("hydra", "hydra_config.yaml", "_dummy_empty_config_.yaml")
"""What Hydra itself stores."""

_OPTIONAL = "data"
"""A group that no configuration of hpckit begins with: many programs have a key of this name."""

_UNSET = object()
_HYDRA_LOCK = threading.RLock()
"""Hydra's state is one for all threads of a process."""


class _ComposingLoader(ConfigLoaderImpl):
    """Composes as Hydra does.

    `declared_missing` are the keys that the files of the latest composition finally set to `???`.
    Hydra keeps no list of these files; to have it made again would be a third of a composition.
    """

    declared_missing: frozenset[str] = frozenset()
    with_hydras_own = False

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        # Before Hydra merges the files: it may put their nodes into the result.
        self.declared_missing = _list_keys_declared_missing(defaults, repo)
        config = super()._compose_config_from_defaults_list(defaults, repo)
        if config.get("params"):  # so that a mistyped name of one is an error
            OmegaConf.set_struct(config.params, value=True)
        return config

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        path = str(default.config_path)
        if not path.startswith("hydra/"):
            # The repository's own stays: another package may get the same file.
            package = default.package or ""
            config = keep_config_values_as_written(loaded.config, package, loaded.path, path)
            loaded = ConfigResult(loaded.provider, loaded.path, config, loaded.header)
        return loaded

    def _parse_overrides_and_create_caching_repo(self, config_name: Any, overrides: list[str]) -> Any:
        parsed, files = super()._parse_overrides_and_create_caching_repo(config_name, overrides)
        if is_own_group_alone(_OPTIONAL, files.get_sources()):
            choice = next((word for word in overrides if self._chooses_optional_group(word, files)), None)
            if choice is None or choice.startswith("+"):
                added = choice
            else:
                added = self._add_choice_unless_set(choice, config_name, overrides)
            if choice != added:
                again = [word for word in (added if one == choice else one for one in overrides) if word]
                parsed, files = super()._parse_overrides_and_create_caching_repo(config_name, again)
            if added is None or not added.startswith("+"):
                _hide_group(_OPTIONAL, files)
        if not self.with_hydras_own:
            _leave_out_choices_of_hydras_own(files)
        return [keep_override_values_as_written(override) for override in parsed], files

    def _chooses_optional_group(self, word: str, files: Any) -> bool:
        name, _, option = word.partition("=")
        return name.lstrip("+") == _OPTIONAL and option in files.get_group_options(_OPTIONAL)

    def _add_choice_unless_set(self, word: str, config_name: Any, overrides: list[str]) -> str | None:
        """Return the word that chooses from the optional group: as it is if it sets a key of the user's.

        If the files have chosen from the group already, None, or what takes that away.
        """
        rest = [
            one for one in overrides if not one.lstrip("+~").startswith((f"{_OPTIONAL}=", f"{_OPTIONAL}."))
        ]
        found = self._compose_without_hydra_section(config_name, rest, RunMode.RUN, from_shell=False)
        if _OPTIONAL not in found:
            return f"+{word}"
        own = isinstance(found[_OPTIONAL], DictConfig) and {*field_names(Data)} <= {*found[_OPTIONAL]}
        unset = f"~{_OPTIONAL}" if word.endswith("=none") else None
        return unset if own else word

    def _load_configuration_impl(self, *words: Any, **named: Any) -> DictConfig:
        """Compose without Hydra's own section, whose 20 files are half of the time.

        No run reads it. With it again if a file sets some of it, so that Hydra checks it, and if
        anything is wrong, so that Hydra says what; but a plugin that it chooses may be missing.
        """
        try:
            config = self._compose_without_hydra_section(**named)
        except Exception:  # noqa: BLE001
            config = None
        if config is not None and "hydra" not in config:
            return config
        self.with_hydras_own = True
        try:
            return super()._load_configuration_impl(*words, **named)
        except MissingConfigException as error:
            if config is None or not str(error.missing_cfg_file).startswith("hydra/"):
                raise
            return config
        finally:
            self.with_hydras_own = False

    def _compose_without_hydra_section(
        self, config_name: str, overrides: list[str], run_mode: RunMode, **named: Any
    ) -> DictConfig:
        parsed, files = self._parse_overrides_and_create_caching_repo(config_name, overrides)
        for source in files.get_sources():
            if source.scheme() != "structured" and any(map(source.is_config, _OF_HYDRA)):
                raise ConfigLoadError
        self.validate_sweep_overrides_legal(parsed, run_mode, from_shell=named["from_shell"])
        chosen = create_defaults_list(files, config_name, parsed, False, False)  # noqa: FBT003
        config = self._compose_config_from_defaults_list(chosen.defaults, files)
        OmegaConf.set_struct(config, value=True)
        self._apply_overrides_to_config(chosen.config_overrides, config)
        return config


def is_own_group_alone(name: str, sources: Sequence[Any]) -> bool:
    """Return whether only hpckit's own conf has a group of this name."""
    found = [source for source in sources if source.is_group(name)]
    return bool(found) and all(source.path == str(shipped_conf_folder()) for source in found)


def _hide_group(name: str, files: Any) -> None:
    """Let a word like `data=x` set a key, as if there were no such group."""
    exists = files.group_exists
    files.group_exists = lambda config_path: config_path != name and exists(config_path)


def _leave_out_choices_of_hydras_own(files: Any) -> None:
    """Let files have no `override hydra/launcher: …`: its plugin may be missing, and nothing reads it."""
    load = files.load_config

    def load_config(config_path: str) -> ConfigResult | None:
        loaded: ConfigResult | None = load(config_path)
        if loaded is None or not loaded.defaults_list:
            return loaded
        kept = [
            one
            for one in loaded.defaults_list
            if not (isinstance(one, GroupDefault) and one.override and _chooses_for_hydra(config_path, one))
        ]
        return loaded if len(kept) == len(loaded.defaults_list) else replace(loaded, defaults_list=kept)

    files.load_config = load_config


def _chooses_for_hydra(path: str, choice: GroupDefault) -> bool:
    group = str(choice.group)
    return group.lstrip("/").startswith("hydra/") or (path.startswith("hydra/") and group[:1] != "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Hydra, initialised for one request.

    `columns` are the words that files of points set: errors show none of their secrets.
    """

    loader: _ComposingLoader
    config_name: str
    folders: tuple[Path, ...]
    columns: list[Sequence[str | None]] = field(default_factory=list)

    def compose_config(self, overrides: Sequence[str]) -> DictConfig:
        """Compose one configuration, unresolved; raises whatever Hydra raises."""
        config = self.loader.load_configuration(
            config_name=self.config_name, overrides=list(overrides), run_mode=RunMode.RUN, from_shell=False
        )
        with open_dict(config):
            config.pop("hydra", None)
        # OmegaConf does not merge a missing value over an existing one, so the schema's own default
        # would override a file's `partition: ???` (or `command: ???`).
        for key in self.loader.declared_missing:
            if not any(_override_sets_key(word, key) for word in overrides):
                OmegaConf.update(config, key, MISSING)
        return config

    def list_composed_files(self, overrides: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the files of the composition, in order, without Hydra's own."""
        listed: Sequence[ResultDefault] = self.loader.compute_defaults_list(
            config_name=self.config_name, overrides=list(overrides), run_mode=RunMode.RUN
        ).defaults
        paths = [str(default.config_path) for default in listed]
        return tuple(path for path in paths if not path.startswith("hydra/"))

    def list_option_groups(self, parent: str = "") -> dict[str, tuple[str, ...]]:
        """Return every group below `parent` with its options, without Hydra's own."""
        found: dict[str, tuple[str, ...]] = {}
        for name in self._list_group_entries(parent, ObjectType.GROUP):
            group = f"{parent}/{name}" if parent else name
            if self.has_group(group):
                found[group] = self.list_group_options(group)
                found |= self.list_option_groups(group)
        return found

    def has_group(self, name: str) -> bool:
        """Return whether a folder holds the options of this group; one of Hydra's own is none."""
        own = name.partition("/")[0] in ("", "hydra", "_dummy_empty_config_")
        sources = self.loader.get_sources()
        if name == _OPTIONAL and is_own_group_alone(name, sources):
            return False
        return not own and any(source.is_group(name) for source in sources)

    def list_group_options(self, group: str) -> tuple[str, ...]:
        """Return the options of a group; for the empty one, the primary configurations."""
        listed = self._list_group_entries(group, ObjectType.CONFIG)
        return tuple(name for name in listed if not name.startswith("_"))

    def _list_group_entries(self, group: str, kind: ObjectType) -> list[str]:
        """List a group as Hydra's loader does, which copies all it holds for each answer."""
        sources = [source for source in self.loader.get_sources() if source.is_group(group)]
        return sorted({name for source in sources for name in source.list(group, kind)})


@contextmanager
def open_hydra_session(request: ComposeRequest) -> Iterator[Session]:
    """Initialise Hydra with the request's folders; raises ConfigError if one does not exist."""
    folders = list_conf_folders(request)
    primary = choose_primary_config(request, folders)
    imported = import_configured_modules(request, folders, primary)
    with (
        _put_aside_callers_hydra(keep_configs=imported),
        warnings.catch_warnings(),
        redirect_env_resolver(request.environ),
        initialize_config_dir(config_dir=str(folders[0]), job_name="hpckit", **VERSION_BASE),
    ):
        if (moment := request.moment) is not None:
            local = moment.astimezone()
            register_resolver("now", lambda form: f"{local:{form}}", replace=True)
        # 1.3 warns if `_self_` is left at its default place, and if a folder of hydra.searchpath
        # does not exist; the first is fine, the second an error.
        warnings.filterwarnings("ignore", ".*missing `_self_`", UserWarning)
        warnings.filterwarnings("error", r".*is not available", UserWarning)
        path = GlobalHydra.instance().config_loader().get_search_path()
        for folder in reversed(folders[1:]):  # after the main one: the site's, and hpckit's own
            path.append("hpckit", str(folder), SearchPathQuery("main", None))
        session = Session(loader=_ComposingLoader(path), config_name=primary, folders=folders)
        try:
            yield session
        except ConfigError as error:
            raise _mask_secrets_in_error(error, session) from error


def _renew_lock_after_fork() -> None:
    global _HYDRA_LOCK  # noqa: PLW0603  # the thread that held it is not in the child
    _HYDRA_LOCK = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock_after_fork)


@contextmanager
def _put_aside_callers_hydra(*, keep_configs: bool) -> Iterator[None]:
    """Compose with a Hydra of our own inside the block: a notebook or application may use one, too.

    Its resolvers stay usable. Configurations that it has stored count only with `keep_configs`: Hydra
    would merge one named `config` into a file of that name.
    """
    with _HYDRA_LOCK:
        instances: dict[type, Any] = Singleton._instances  # noqa: SLF001
        resolvers = BaseContainer._resolvers  # noqa: SLF001
        before = {kind: instances.pop(kind, None) for kind in (GlobalHydra, JobRuntime, VersionBase)}
        known, store = dict(resolvers), ConfigStore.instance()
        stored = store.repo
        if not keep_configs:
            store.repo = {name: one for name, one in stored.items() if name in _OWN_CONFIGS}
        try:
            register_schema_with_hydra()
            yield
        finally:
            store.repo = stored
            resolvers.clear()
            resolvers.update(known)
            for kind, instance in before.items():
                instances.pop(kind, None)
                if instance is not None:
                    instances[kind] = instance


def _mask_secrets_in_error(error: ConfigError, session: Session) -> ConfigError:
    given = {word for column in session.columns for word in column if word is not None}
    secret = [word for word in given if mask_override(word) != word]
    if not secret:
        return error
    return ConfigError(mask_message(error.message, secret), hint=mask_message(error.hint, secret))


def _list_keys_declared_missing(
    defaults: Sequence[ResultDefault], files: IConfigRepository
) -> frozenset[str]:
    """Return the keys that the files, without the schema and Hydra's own, finally set to `???`."""
    missing: set[str] = set()
    for default in defaults:
        path = str(default.config_path)
        if path == SCHEMA_NAME or path.startswith("hydra/"):
            continue
        loaded = files.load_config(path)
        values = {} if loaded is None else OmegaConf.to_container(loaded.config)
        for key, value in iterate_leaf_values(values, default.package or ""):
            # A value fills the mappings around it, too.
            missing.difference_update(accumulate(key.split("."), "{}.{}".format))
            missing.update([key] if value == MISSING else [])
    return frozenset(missing)


def _override_sets_key(word: str, key: str) -> bool:
    name, _, value = word.lstrip("+~").partition("=")
    return name == key or (key.startswith(f"{name}.") and value.startswith("{"))


def find_resolver_registration(home: type) -> Callable[..., None]:
    """Return the function that registers a resolver in the installed OmegaConf.

    2.4 moves it to `register_resolver`. 2.3 has an older function with that name, which cannot
    replace a resolver.
    """
    newer = getattr(home, "register_resolver", None)
    if newer is not None and "replace" in signature(newer).parameters:
        return cast("Callable[..., None]", newer)
    return cast("Callable[..., None]", home.register_new_resolver)  # type: ignore[attr-defined]


register_resolver = find_resolver_registration(OmegaConf)


@contextmanager
def redirect_env_resolver(environ: Mapping[str, str]) -> Iterator[None]:
    """Make `${oc.env:NAME}` and `${oc.env:NAME,default}` read `environ` inside this block."""

    def env(key: str, default: object = _UNSET) -> str | None:
        # An empty variable of hpckit counts as unset, for launching and for showing.
        if key in environ and (environ[key] or not key.startswith("HPCKIT_")):
            return environ[key]
        if default is _UNSET:
            raise LookupError(f"environment variable {key} is not set")
        return None if default is None else str(default)

    register_resolver("oc.env", env, replace=True)
    try:
        yield
    finally:
        register_resolver("oc.env", oc.env, replace=True)
