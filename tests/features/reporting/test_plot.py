"""Promises of `hpckit plot`."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from cli_world import NOW, Desk, Writer, make_context
from report_launches import hostile_launch, swept_launch, troubled_launch

from hpckit.errors import NotFoundError, UsageError
from hpckit.features.reporting import drawing
from hpckit.features.reporting.figure import CurveAxis, CurveFigure
from hpckit.features.reporting.plotted import PlotQuestion, build_curve_figure
from hpckit.model import events
from hpckit.views.across_launches import find_named_runs

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        importlib.util.find_spec("matplotlib") is None,
        reason="matplotlib is not installed: pip install '.[plot]' in hpckit's checkout",
    ),
]
BEGINNINGS = {"pdf": b"%PDF-", "svg": b"<?xml", "png": b"\x89PNG"}


def figure(desk: Desk, **question: object) -> CurveFigure:
    """Return what would be drawn of the latest launch."""
    context = make_context(desk.folder, desk.environ, now=lambda: NOW, sleep=lambda _: None)
    named = find_named_runs((), desk.folder, context)
    return build_curve_figure(named, PlotQuestion(**question), context)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["pdf", "svg", "png"])
def test_plot_writes_the_same_private_file_every_time(desk: Desk, form: str) -> None:
    """One file, of the form that its suffix says, without a date; then it is replaced."""
    troubled_launch(desk)
    target = desk.folder / "figures" / f"loss.{form}"
    target.parent.mkdir()
    said = desk.say("plot", "-o", f"figures/loss.{form}")
    assert (said.code, said.out) == (0, "")
    assert said.err == f"hpckit: plotted loss of 1 run to {target}\n"
    first = target.read_bytes()
    assert first.startswith(BEGINNINGS[form])
    assert target.stat().st_mode & 0o777 == 0o600
    target.chmod(0o644)
    desk.say("plot", "-o", f"figures/loss.{form}")
    assert target.read_bytes() == first
    assert target.stat().st_mode & 0o777 == 0o644
    assert not re.search(rb"CreationDate|ModDate|dc:date", first)


def test_plot_embeds_its_fonts(desk: Desk) -> None:
    """As TrueType, which publishers take."""
    troubled_launch(desk)
    desk.say("plot", "-o", "a.pdf")
    content = (desk.folder / "a.pdf").read_bytes()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content


def test_plot_shows_what_was_undone_and_each_restart(desk: Desk) -> None:
    """The report's own history: three rounds, of which later ones undid steps of earlier ones."""
    troubled_launch(desk)
    (panel,) = figure(desk).panels
    (line,) = panel.lines
    assert line.live[0] == tuple(sorted(line.live[0]))
    assert [(min(x), max(x)) for x, _ in line.undone] == [(300, 419), (600, 799)]
    assert line.restarts[0] == (300, 600)


def test_plot_over_time_has_restarts_and_what_they_cost(desk: Desk) -> None:
    """Wall time goes on while nothing is done; productive time does not, and has nothing undone."""
    troubled_launch(desk)
    wall, productive = (figure(desk, axis=one) for one in (CurveAxis.wall, CurveAxis.productive))
    assert (wall.x_label, productive.x_label) == ("wall time (min)", "productive time (min)")
    (of_wall,), (of_work,) = (one.panels[0].lines for one in (wall, productive))
    assert len(of_wall.undone) == 2
    assert of_work.undone == ()
    assert of_work.live[0] == tuple(sorted(of_work.live[0]))
    steps = 300 * 2.0 + 300 * 2.5 + 600 * 2.0
    assert of_work.live[0][-1] == pytest.approx(steps / 60, rel=0.05)
    assert of_wall.live[0][-1] > of_work.live[0][-1] + 20


def test_plot_names_runs_by_their_overrides(desk: Desk) -> None:
    """A launch is one figure."""
    swept_launch(desk, 3)
    assert all("=" in name for name, _ in figure(desk).legend_entries)


def test_plot_of_one_run_has_its_name(desk: Desk) -> None:
    """There is nothing that it differs from: its overrides would fill the legend."""
    launch = troubled_launch(desk)
    assert [name for name, _ in figure(desk).legend_entries] == [f"{launch.id}.0"]


@pytest.mark.parametrize("axis", [CurveAxis.step, CurveAxis.wall])
def test_plot_marks_a_restart_from_the_beginning(desk: Desk, axis: CurveAxis) -> None:
    """A run that failed before its first save: all that it had done is undone."""
    writer = Writer(launch=desk.freeze("early"))
    writer.start()
    for number, end in ((0, 5), (1, 9)):
        writer.round(number)
        writer.tell(events.StepReached(at=NOW, round=number, step=0))
        for step in range(end):
            writer.metrics(step, round=number, loss=1 / (1 + step))
    (line,) = figure(desk, axis=axis).panels[0].lines
    assert len(line.undone) == 1
    assert len(line.restarts[0]) == 1
    assert line.restarts[0][0] == line.live[0][0]


def test_plot_labels_logarithmic_ticks_plainly(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As numbers, not as the TeX that would be parsed if `$` were no letter in users' names."""
    troubled_launch(desk)
    monkeypatch.setitem(drawing.SETTINGS, "svg.fonttype", "none")  # letters instead of shapes
    desk.say("plot", "-o", "a.svg", "--log")
    content = (desk.folder / "a.svg").read_text(encoding="utf-8")
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", content)
    assert {"1", "2", "3", "4"} <= set(texts)
    assert "mathdefault" not in content


def test_plot_of_many_runs_has_a_band(desk: Desk) -> None:
    """Those that the report highlights have a curve of their own."""
    swept_launch(desk, 30)
    (panel,) = figure(desk, metrics=("loss",)).panels
    assert len(panel.lines) == 12
    assert panel.band is not None
    assert panel.band.runs == 18
    desk.say("plot", "-o", "many.pdf", "--log", "--style", "slides", "--x", "wall")


def test_plot_smooths_what_holds(desk: Desk) -> None:
    """The mean of the latest values."""
    troubled_launch(desk)
    plain, smooth = (figure(desk, smooth=one).panels[0].lines[0].live[1] for one in (1, 50))
    assert abs(smooth[-1] - smooth[-2]) < abs(plain[-1] - plain[-2])


def test_plot_of_hostile_names_is_drawn(desk: Desk) -> None:
    """Markup, mathematics and control characters are letters."""
    hostile_launch(desk)
    assert desk.say("plot", "-o", "a.svg").code == 0


def test_plot_ignores_the_users_own_settings(desk: Desk) -> None:
    """A matplotlibrc, and what the program has set, change nothing."""
    matplotlib = pytest.importorskip("matplotlib")
    troubled_launch(desk)
    desk.say("plot", "-o", "a.png")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red"}):
        desk.say("plot", "-o", "b.png")
        assert matplotlib.rcParams["axes.facecolor"] == "red"
    assert (desk.folder / "a.png").read_bytes() == (desk.folder / "b.png").read_bytes()
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "a.doc"), "the name of a figure must end with .pdf, .svg, .png"),
        (("-o", "a"), "the name of a figure must end with"),
        (("-o", "a.pdf", "--metric", "accuracy"), "--metric accuracy: no run has two values"),
        (("-o", "a.pdf", "--smooth", "0"), "--smooth is 0"),
        (("-o", "a.pdf", "--smooth", str(10**6 + 1)), "from 1 to 1000000"),
        (("-o", "a.pdf", "--smooth", str(10**22)), "from 1 to 1000000"),
        (("-o", "a.pdf", "--width", "0.1"), "--width is 0.1; it is in inches"),
        (("-o", "a.pdf", "--height", "nan"), "--height is nan"),
        (("-o", "folder.pdf"), "is a folder"),
    ],
)
def test_plot_refuses_wrong_words(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """One error each, and no file."""
    troubled_launch(desk)
    (desk.folder / "folder.pdf").mkdir()
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        desk.say("plot", *words)
    assert caught.value.exit_code == 2
    assert not (desk.folder / "a.pdf").exists()


def test_plot_without_curves_says_so(desk: Desk) -> None:
    """A run that logged nothing."""
    desk.freeze("new")
    with pytest.raises(UsageError, match="no metric of these runs has numbers"):
        desk.say("plot", "-o", "a.pdf")
    with pytest.raises(NotFoundError):
        desk.say("plot", "nowhere", "-o", "a.pdf")


def test_plot_without_matplotlib_names_the_extra(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no dependency."""
    troubled_launch(desk)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="which is not installed") as caught:
        desk.say("plot", "-o", "a.pdf")
    assert ".[plot]" in caught.value.hint
