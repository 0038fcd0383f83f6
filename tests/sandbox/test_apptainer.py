"""Apptainer, as the sandbox installs it, starts real containers here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from containers_world import CheapImage


@pytest.mark.parametrize("kind", ["folder", "squashfs"])
def test_what_is_installed_starts_a_container(apptainer: str, cheap_image: CheapImage, kind: str) -> None:
    """Of a folder and of a file; the host's root has no /IMAGE."""
    image: Path = getattr(cheap_image, kind)
    words = [apptainer, "-q", "exec", "-B", *cheap_image.mounts, str(image), "/usr/bin/ls", "/"]
    inside = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "IMAGE" in inside.split()
    assert not Path("/IMAGE").exists()
