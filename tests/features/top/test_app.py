"""The application of `hpckit top`, driven by keys without a terminal: what its widgets show."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from textual.pilot import Pilot

from hpckit.errors import HpckitError, RunError
from hpckit.features.top.app import AskCancel, TopApp, TopSource
from hpckit.features.top.frame import GpuNow, RunActivity, TopDetail, TopFrame, build_top_rows
from hpckit.features.top.reader import TopRequest
from hpckit.features.top.table import RunTable
from hpckit.model.states import RunState
from hpckit.report.rows import RunRow

STATES = (RunState.running, RunState.completed, RunState.failed, RunState.pending)
EVIL = "[red]x[/red] [@click=app.quit]y[/] \x1b[2J\x1b]0;t\x07 [link=http://a]z"
BUSY = RunActivity(
    step_s=0.1,
    gpus=tuple(
        GpuNow(
            node="n1",
            index=place,
            utilization=0.87,
            memory_bytes=57 * 2**30,
            memory_total_bytes=80 * 2**30,
            power_w=612.0,
            temperature_c=64.0,
        )
        for place in range(8)
    ),
)


def row(index: int, name: str) -> RunRow:
    """Return a run; every fourth is running."""
    return RunRow(
        run=f"{name}.{index}",
        index=index,
        overrides=(f"lr=0.{index}", f"name={name}"),
        state=STATES[index % 4],
        job=None,
        slurm_state=None,
        reason="",
        attempt=1,
        round=0,
        step=index,
        nodes=("n1",),
        exit_code=None,
        failure=None,
        metrics={name: 1.0 / (index + 1), "accuracy": float(index)},
        started_at=None,
        ended_at=None,
        note="",
    )


PATIENCE_S = 60.0
"""A busy machine may draw slowly."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A made-up launch, as an application sees it; it keeps what it was asked for."""

    runs: int = 4
    name: str = "loss"
    step: int = 0
    looks: int = 0
    requests: list[TopRequest] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    loaded: list[TopRequest] = field(default_factory=list)
    error: HpckitError | None = None
    held: threading.Event | None = None

    def look(self, request: TopRequest) -> TopFrame:
        """Return the launch as it is now."""
        self.looks += 1
        if self.held is not None:
            self.held.wait(2 * PATIENCE_S)
        if self.error is not None:
            raise self.error
        return self.redraw(request)

    def redraw(self, request: TopRequest) -> TopFrame:
        """Return the launch for another request."""
        self.requests.append(request)
        metric = request.metric or self.name
        rows = [row(index, self.name) for index in range(self.runs)]
        rows[0] = replace(rows[0], step=self.step)
        selected = request.selected or 0
        return TopFrame(
            head=(f"{self.name}-ab12  10:00:00 UTC", f"40.0 % done; {self.runs} runs"),
            rows=build_top_rows(rows, {0: BUSY}, {0: 0.9}, metric=metric),
            metric=metric,
            metrics=(self.name, "accuracy"),
            detail=TopDetail(
                index=selected,
                title=f".{selected} of {self.name}",
                metric=metric,
                loading=not any(
                    (one.selected or 0, one.metric) == (selected, request.metric) for one in self.loaded
                ),
                points=tuple((float(step), math.exp(-step / 50)) for step in range(300)),
                activity=BUSY,
                log_title="log of rank 0",
                log=tuple(f"line {number} {self.name}" for number in range(50)),
                events=tuple(f"10:00:{second:02d} {self.name}" for second in range(20)),
            ),
        )

    def load(self, request: TopRequest) -> TopFrame:
        """Read the curve."""
        self.loaded.append(request)
        return self.redraw(request)

    def cancel(self, index: int) -> str:
        """Cancel a run."""
        self.cancelled.append(index)
        if self.error is not None:
            raise self.error
        return f"cancelling {self.name}.{index}"

    def app(self, interval_s: float = 1000.0) -> TopApp:
        """Return an application that looks at it."""
        source = TopSource(look=self.look, redraw=self.redraw, load=self.load, cancel=self.cancel)
        return TopApp(source, interval_s=interval_s)


def screen(app: TopApp) -> list[str]:
    """Return the lines on the screen."""
    return [strip.text for strip in app.screen._compositor.render_strips()]  # noqa: SLF001


async def until(pilot: Pilot[None], what: Callable[[], object]) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        await pilot.pause()
        if what():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(screen(pilot.app))  # type: ignore[arg-type]


def drive(
    app: TopApp, play: Callable[[Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)
) -> None:
    """Start an application, wait for its first frame, and play."""

    async def main() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.shown_text("title"))
            await play(pilot)

    asyncio.run(main())


def test_everything_has_its_place_at_80_by_24() -> None:
    """Runs at the left, the curve, GPUs and log at the right, events and keys below."""
    app = Cluster().app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.pause()
        lines = screen(app)
        assert (len(lines), {len(line) for line in lines}) == (24, {80})
        assert lines[0].startswith("loss-ab12  10:00:00 UTC")
        assert lines[1].startswith("40.0 % done; 4 runs")
        assert lines[2].split()[:3] == ["▲run", "state", "step"]
        assert lines[3].split()[:7] == ["0", "running", "1", "1", "87", "%", "▏"]
        text = "\n".join(lines)
        for words in ("GPU 0 87 % 57/80 GiB 612 W 64°", "log of rank 0", "line 49", "10:00:19"):
            assert words in text
        assert any("\u2800" < one <= "\u28ff" for one in text), "the curve"
        for key in ("/ Filter", "s Sort", "l Log", "g GPUs", "e Events", "c Cancel", "q Quit"):
            assert key in lines[-1]

    drive(app, play)


def test_arrows_select_a_run_and_its_detail_is_read() -> None:
    """The request names the selected run; ends of the table hold."""
    cluster = Cluster(runs=1000)
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("down", "down")
        await until(pilot, lambda: app.shown_text("title") == ".2 of loss")
        await pilot.press("up", "up", "up")
        await until(pilot, lambda: app.shown_text("title") == ".0 of loss")
        await pilot.press("end")
        await until(pilot, lambda: app.shown_text("title") == ".999 of loss")
        assert " 999 " in "\n".join(screen(app))
        await until(pilot, lambda: 999 in cluster.requests[-1].visible)
        assert len(cluster.requests[-1].visible) < 24, "only what is on the screen is read"

    drive(app, play)


def test_look_at_a_thousand_runs_draws_only_lines_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run advances: one line of the table is drawn again, and in a moment."""
    cluster = Cluster(runs=1000)
    app = cluster.app()
    redrawn: list[int] = []

    async def play(pilot: Pilot[None]) -> None:
        await pilot.pause(0.5)
        real = RunTable.refresh_line

        def refresh_line(table: RunTable, y: int) -> None:
            redrawn.append(y)
            real(table, y)

        monkeypatch.setattr(RunTable, "refresh_line", refresh_line)
        app.show_frame_and_schedule_next(cluster.redraw(app.current_request), None)
        assert redrawn == []
        cluster.step = 777
        app.show_frame_and_schedule_next(cluster.redraw(app.current_request), None)
        assert redrawn == [1], "the line below the heading"
        await pilot.pause()
        assert screen(app)[3].split()[2] == "778"

    drive(app, play)


def test_filter_takes_effect_as_it_is_typed_and_escape_removes_it() -> None:
    """Letters that are keys elsewhere are letters in the filter."""
    app = Cluster(runs=40).app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"lr=0.1*", "enter")
        await until(pilot, lambda: app.shown_text("head").endswith("40.0 % done; 40 runs"))
        assert [one.index for one in app.table.rows] == [1, *range(10, 20)]
        assert "11 match 'lr=0.1*'" in app.shown_text("head")
        await pilot.press("s")
        assert app.order.descending
        assert app.table.rows[0].index == 19
        await pilot.press("slash", *" cqsgle")
        assert app.is_running
        assert app.table.rows == ()
        await pilot.press("escape")
        await until(pilot, lambda: len(app.table.rows) == 40)
        assert not app.query_one("#filter").has_class("open")

    drive(app, play)


def test_selected_run_stays_selected_when_the_order_changes() -> None:
    """The run, not its place."""
    app = Cluster(runs=40).app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "s")
        assert app.table.cursor == 37
        selected = app.table.selected_row
        assert selected is not None
        assert selected.index == 2

    drive(app, play)


def test_keys_show_log_gpus_and_events_in_full_and_back() -> None:
    """On 80 columns they have the whole width; the same key brings the overview back."""
    app = Cluster().app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("l")
        await until(pilot, lambda: "line 35" in app.shown_text("log"))
        assert not app.query_one("#left").display
        await pilot.press("g")
        await until(pilot, lambda: "GPU 7" in app.shown_text("log"))
        await pilot.press("e")
        await until(pilot, lambda: "10:00:05" in app.shown_text("log"))
        await pilot.press("down")
        await until(pilot, lambda: app.shown_text("title") == ".1 of loss")
        await pilot.press("e")
        await until(pilot, lambda: "log of rank 0" in app.shown_text("log"))
        assert app.query_one("#left").display

    drive(app, play)


def test_frame_between_two_widgets_that_go_is_let_go() -> None:
    """An app that closes loses its widgets one by one; no frame may end it with a traceback."""
    cluster = Cluster()
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        await app.query_one("#plot").remove()
        await app.query_one("#events").remove()
        cluster.name = "later"
        app.show_frame_and_schedule_next(cluster.redraw(app.current_request), None)
        await pilot.pause()
        assert app.shown_text("title") == ".0 of later"

    drive(app, play)


def test_curve_is_loaded_once_for_each_run_and_metric() -> None:
    """A frame that lacks it asks for it; then it is there."""
    cluster = Cluster()
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.shown_text("plot").startswith("loss 0.0025"))
        await pilot.press("down")
        await until(pilot, lambda: len(cluster.loaded) == 2)
        await until(pilot, lambda: app.shown_text("plot").startswith("loss 0.0025"))
        app.show_frame_and_schedule_next(cluster.redraw(app.current_request), None)
        await pilot.pause()
        assert [one.selected for one in cluster.loaded] == [0, 1]

    drive(app, play)


def test_metric_key_changes_column_and_curve() -> None:
    """The next look asks for it."""
    cluster = Cluster()
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("m")
        await until(pilot, lambda: app.shown_text("plot").startswith("accuracy "))
        assert "accuracy" in screen(app)[2]
        assert cluster.requests[-1].metric == "accuracy"

    drive(app, play)


@pytest.mark.parametrize("key", ["n", "escape", "q", "enter"])
def test_cancel_asks_and_every_answer_but_yes_is_no(key: str) -> None:
    """Also Enter and q; the application stays."""
    cluster = Cluster()
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("c")
        assert isinstance(app.screen, AskCancel)
        assert any("Cancel loss.0 (running)?" in line for line in screen(app))
        await pilot.press(key)
        await until(pilot, lambda: "nothing is cancelled" in app.shown_text("head"))
        assert (cluster.cancelled, app.is_running) == ([], True)

    drive(app, play)


def test_cancel_after_yes_cancels_the_selected_run() -> None:
    """A run that is over is not asked about."""
    cluster = Cluster()
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.press("down", "c")
        assert "loss.1 is over: completed" in app.shown_text("head")
        assert not isinstance(app.screen, AskCancel)
        await pilot.press("down", "down", "c", "y")
        await until(pilot, lambda: app.shown_text("head").endswith("cancelling loss.3"))
        assert cluster.cancelled == [3]

    drive(app, play)


def test_cancellation_that_fails_is_told_and_the_application_stays() -> None:
    """Slurm may be away."""
    cluster = Cluster()
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        cluster.error = RunError("Slurm is [bold]away[/bold]")
        await pilot.press("c", "y")
        await until(pilot, lambda: "error: Slurm is [bold]away[/bold]" in app.shown_text("head"))
        assert app.is_running

    drive(app, play)


def test_hostile_names_are_text_everywhere() -> None:
    """In runs, metrics, logs, events, titles, questions; no click, link or colour comes of it."""
    cluster = Cluster(name=EVIL)
    app = cluster.app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.pause()
        text = "\n".join(screen(app))
        assert "[red]x[/red] [@click=app.quit]y[/] \\x1b[2J" in text
        await pilot.press("c")
        assert any("Cancel [red]x[/red]" in line for line in screen(app))
        await pilot.press("n", "l")
        await until(pilot, lambda: "line 49" in app.shown_text("log"))
        await pilot.press("slash", *"[red]", "enter")
        for strip in app.screen._compositor.render_strips():  # noqa: SLF001
            for segment in strip:
                assert not set(segment.text) & {"\x1b", "\x07"}
                style = segment.style
                assert style is None or (style.link is None and "@click" not in style.meta)

    drive(app, play, size=(160, 40))


def test_error_of_a_look_ends_the_application_and_is_kept() -> None:
    """The folder may be gone; the verb reports it below the restored screen."""
    cluster = Cluster()
    app = cluster.app(interval_s=0.05)

    async def main() -> None:
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.shown_text("title"))
            cluster.error = RunError("the folder is gone")
            for _ in range(600):
                if app.error is not None and not app.is_running:
                    return
                await asyncio.sleep(0.05)

    asyncio.run(main())
    assert app.error is cluster.error


def test_looks_repeat_and_quit_gives_the_screen_back_while_one_still_reads() -> None:
    """A slow file system must not keep the user in the application."""
    cluster = Cluster()
    app = cluster.app(interval_s=0.05)

    async def main() -> None:
        async with app.run_test() as pilot:
            await until(pilot, lambda: cluster.looks >= 3)
            cluster.held = threading.Event()
            looks = cluster.looks
            await until(pilot, lambda: cluster.looks > looks)
            await asyncio.wait_for(pilot.press("q"), PATIENCE_S)
            await asyncio.sleep(0.1)
            assert not app.is_running
            cluster.held.set()

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))


def test_small_terminal_still_shows_runs() -> None:
    """Forty by ten: no error, the states are there."""
    app = Cluster().app()

    async def play(pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert any("running" in line for line in screen(app))
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: "line 49" in "\n".join(screen(app)))

    drive(app, play, size=(40, 12))
