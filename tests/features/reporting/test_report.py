"""Promises of `hpckit report`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_world import Desk, Shell
from report_launches import swept_launch, troubled_launch
from tiers import thorough

from hpckit.errors import NotFoundError, UsageError

pytestmark = pytest.mark.whole

needs_plotly = pytest.mark.skipif(
    importlib.util.find_spec("plotly") is None,
    reason="plotly is not installed: pip install '.[report]' in hpckit's checkout",
)


@needs_plotly
def test_report_writes_one_private_file(desk: Desk) -> None:
    """Without -o it is named after the launch, and nothing is left beside it."""
    launch = troubled_launch(desk)
    said = desk.say("report")
    target = desk.folder / f"{launch.id}.html"
    assert (said.code, said.out) == (0, "")
    assert said.err == f"hpckit: reported 1 run to {target}\n"
    text = target.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert text.endswith("</html>\n")
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in desk.folder.iterdir()) == [launch.id, target.name]


@needs_plotly
def test_report_replaces_its_own_file_and_no_other(desk: Desk) -> None:
    """A file that is no report is never replaced, whoever named it."""
    launch = desk.freeze("new", sweep=[("a=1",), ("a=2",)])
    target = desk.folder / f"{launch.id}.html"
    assert desk.say("report").code == desk.say("report").code == 0
    target.write_text("my notes")
    for words in ([], ["-o", target.name]):
        with pytest.raises(UsageError, match="exists, and is no report that hpckit wrote"):
            desk.say("report", *words)
    assert target.read_text() == "my notes"
    target.unlink()
    for _ in range(2):
        assert desk.say("report", "-o", target.name).code == 0
    assert target.read_text().startswith("<!DOCTYPE html>")


@needs_plotly
def test_report_goes_where_it_is_told(desk: Desk) -> None:
    """-o keeps permissions that a file was given, makes no folder, and refuses one."""
    desk.freeze("new")
    with pytest.raises(UsageError, match="there is no folder"):
        desk.say("report", "-o", "site/run.html")
    (desk.folder / "site").mkdir()
    target = desk.folder / "site" / "run.html"
    desk.say("report", "-o", "site/run.html")
    target.chmod(0o644)
    desk.say("report", "-o", "site/run.html", "--refresh", "30")
    assert target.stat().st_mode & 0o777 == 0o644
    assert '<meta http-equiv="refresh" content="30">' in target.read_text()
    with pytest.raises(UsageError, match="site is a folder"):
        desk.say("report", "-o", "site")


def test_report_prints_other_forms_without_html(desk: Desk) -> None:
    """--markdown and --json need no plotly and write no HTML by themselves."""
    launch = troubled_launch(desk)
    said = desk.say("report", "--markdown")
    assert said.out.startswith(f"# {launch.id}\n")
    assert not said.err
    found = json.loads(desk.say("report", "--json").out)
    assert found["runs"][0]["state"] == "failed"
    assert not list(desk.folder.glob("*.html"))


def test_report_without_plotly_names_the_extra(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error, with the words that install it, before anything is read or written."""
    desk.freeze("new")
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    with pytest.raises(UsageError, match="a report in HTML needs plotly") as caught:
        desk.say("report")
    assert "pip install '.[report]' in hpckit's checkout" in caught.value.hint
    assert not list(desk.folder.glob("*.html"))


def test_report_of_nothing_is_an_error(desk: Desk) -> None:
    """A launch that is not there is said to be missing."""
    with pytest.raises(NotFoundError, match="no launch or run matching"):
        desk.say("report", "missing", "--markdown")


@pytest.mark.parametrize("seconds", ["0", "nan", "0.5", "86401", "inf", "1e300"])
def test_page_is_renewed_from_every_second_to_every_day(desk: Desk, seconds: str) -> None:
    """Browsers pass over other times: the option is refused."""
    with pytest.raises(UsageError, match=r"--refresh is .* from 1 to 86400 \(a day\)"):
        desk.say("report", "-o", "page.html", "--refresh", seconds)


@thorough
@needs_plotly
@pytest.mark.slow
def test_report_of_a_thousand_runs_is_below_eight_megabytes(desk: Desk) -> None:
    """With plotly in it, and all tables whole."""
    launch = swept_launch(desk, 1000, steps=20)
    said = desk.say("report", launch.id, "-o", "big.html")
    assert "1000 runs" in said.err
    assert (desk.folder / "big.html").stat().st_size < 8_000_000


@needs_plotly
def test_report_in_a_shell_of_a_real_launch(shell: Shell, tmp_path: Path) -> None:
    """From the whole command line: a command that failed, reported with exit code 0."""
    words = ("experiment=command", "command=[sh,-c,'echo boom >&2; exit 3']", "cluster=local")
    assert shell("launch", "--wait", *words, "code.snapshot=false").code == 1
    said = shell("report", "-o", str(tmp_path / "r.html"))
    assert said.code == 0, said.err
    text = (tmp_path / "r.html").read_text()
    assert "exit_code" in text
    assert "<b>1</b> failed" in text
    assert "boom" in shell("report", "--markdown").out


@pytest.mark.parametrize("dirty", [5, "yes", []])
def test_report_takes_any_state_of_the_code(desk: Desk, dirty: Any) -> None:
    """What a file says of changes is not trusted to be true or false."""
    launch = desk.freeze()
    path = launch.paths.folder / "code.json"
    path.chmod(0o600)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dirty": dirty}))
    target = desk.folder / "r.html"
    assert desk.say("report", launch.id, "-o", str(target)).code == 0
    assert target.exists()
