"""What the sandbox writes into slurm.conf."""

from __future__ import annotations

import pytest

from hpckit.sandbox.lifecycle import render_slurm_conf
from hpckit.sandbox.settings import PREEMPT_MODES, PREEMPT_TYPES, Options
from hpckit.slurm.site_parse import parse_partitions, parse_site_settings


@pytest.mark.parametrize("mode", PREEMPT_MODES)
@pytest.mark.parametrize("by", sorted(PREEMPT_TYPES))
def test_preemption_is_as_ordered_and_of_one_piece(mode: str, by: str) -> None:
    """Slurm starts with no PreemptMode but OFF without a PreemptType, and with OFF only then."""
    text = render_slurm_conf(Options(preempt_mode=mode, preempt_by=by))
    settings = parse_site_settings(text)
    off = mode == "off"
    assert settings.preempt_type == ("preempt/none" if off else PREEMPT_TYPES[by])
    assert settings.preempt_mode.value == mode.upper()
    assert parse_partitions(text)["batch"].preemption.mode.value == mode.upper()
    assert ("OverSubscribe=FORCE:1" in text) is (mode == "suspend")
