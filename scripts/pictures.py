"""Makes the pictures of docs/pictures from a sweep that it runs on this machine.

    python scripts/pictures.py      # needs the extras top and report, and a Chromium on the PATH

`top.svg` is the terminal of `hpckit top` while runs train, `results.svg` what `hpckit results`
prints, `report.png` a part of `hpckit report` in a browser. It takes about two minutes.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from hpckit.context import Context
from hpckit.features.top.reader import TopReader
from hpckit.record.launches import Launch, load_launch

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
TRAIN = """\
import time
import torch

def train(config, run):
    torch.manual_seed(config.seed)
    points = torch.rand(512, 2)
    kinds = ((points - 0.5).norm(dim=1) < 0.35).float()
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    run.state(model=model, optimizer=optimizer)
    for step in run.steps(400):
        time.sleep(0.05)
        guess = model(points).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(guess, kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = ((guess > 0) == kinds.bool()).float().mean()
        run.log(step=step, loss=loss, accuracy=accuracy)
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
"""
EXPERIMENT = "# @package _global_\nname: circle\nentry_point: train:train\nlr: 0.1\n"
SWEEP = ("experiment=circle", "-m", "lr=0.1,0.3,1.0", "seed=1,2")


def hpckit(folder: Path, *words: str) -> str:
    """Run a verb in a folder; returns what it printed."""
    command = [sys.executable, "-m", "hpckit", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def context_of(folder: Path) -> Context:
    """Return an invocation in a folder that prints nothing."""
    return Context(
        environ=os.environ,
        cwd=folder,
        now=lambda: datetime.now(UTC),
        sleep=time.sleep,
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )


def without_addresses(svg: str) -> str:
    """Return a drawing that asks no server for its font."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace(
        "Fira Code", "DejaVu Sans Mono, Menlo, Consolas"
    )


def terminal(text: str, title: str) -> str:
    """Return an SVG of a terminal that shows this text."""
    width = max(map(len, text.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text(text.rstrip("\n")), no_wrap=True)
    return without_addresses(console.export_svg(title=title))


def top(launch: Launch, context: Context, size: tuple[int, int] = (104, 24)) -> str:
    """Return an SVG of `hpckit top` as it shows this launch now."""
    app_module = importlib.import_module("hpckit.features.top.app")
    reader = TopReader(launch=launch, context=context)
    source = app_module.TopSource(reader.read_frame, reader.rebuild_frame, reader.load_selected_curve, str)
    app = app_module.TopApp(source)

    async def shoot() -> str:
        async with app.run_test(size=size) as pilot:
            for _ in range(200):
                await pilot.pause(0.1)
                if app.shown_text("title") and app.shown_text("events"):
                    break
            await pilot.press("down", "down")  # a run under way: its curve and log
            await pilot.pause(3)
            drawing: str = app.export_screenshot(title="hpckit top")
            return drawing

    return without_addresses(asyncio.run(shoot()))


def report(file: Path, picture: Path) -> None:
    """Take a picture of the curves in a report."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    playwrights: Any = importlib.import_module("playwright.sync_api")
    with playwrights.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = started.new_context(viewport={"width": 1000, "height": 800}).new_page()
        page.goto(file.as_uri(), timeout=120_000)
        page.locator("body[data-ready]").wait_for(timeout=120_000)
        page.get_by_role("link", name="Curves").click()
        page.mouse.move(0, 0)  # away from what a chart shows there
        page.wait_for_timeout(2000)
        page.screenshot(path=picture, timeout=120_000)
        started.close()


def wait(done: Callable[[], bool], context: Context) -> None:
    """Look once a second, for ten minutes at most."""
    for _ in range(600):
        if done():
            return
        context.sleep(1.0)
    raise TimeoutError("the sweep did not come so far within ten minutes")


def main() -> None:
    """Run the sweep, and write the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "conf" / "experiment").mkdir(parents=True)
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")
        (folder / "conf" / "experiment" / "circle.yaml").write_text(EXPERIMENT, encoding="utf-8")
        words = ("cluster=local", "cluster.max_parallel=2", "--json")
        launched = json.loads(hpckit(folder, "launch", *SWEEP, *words))
        context = context_of(folder)

        def steps() -> list[int]:
            runs = json.loads(hpckit(folder, "status", "--json"))["runs"]
            return [run["step"] or 0 for run in runs]

        wait(lambda: max(steps()[2:]) > 20, context)  # noqa: PLR2004  # two are done, two train
        picture = top(load_launch(Path(launched["dir"])), context)
        (PICTURES / "top.svg").write_text(picture, encoding="utf-8")
        wait(lambda: min(steps()) >= 399, context)  # noqa: PLR2004  # the last of 400
        hpckit(folder, "launch", *SWEEP, *words, "--wait")  # adopts what still ends
        table = hpckit(folder, "results", "--sort", "loss")
        (PICTURES / "results.svg").write_text(terminal(table, "hpckit results --sort loss"), encoding="utf-8")
        hpckit(folder, "report", "-o", "circle.html")
        report(folder / "circle.html", PICTURES / "report.png")


if __name__ == "__main__":
    main()
