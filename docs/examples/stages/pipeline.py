"""Fit a line: prepare numbers, train on them, evaluate what was trained."""

import torch


def prepare(config, run):
    x = torch.linspace(-1, 1, 64)
    torch.save({"x": x, "y": config.slope * x}, run.folder / "data.pt")


def train(config, run):
    (prepared,) = run.earlier("prepare")
    data = torch.load(prepared.folder / "data.pt", weights_only=True)
    slope = torch.zeros(1)
    for step in run.steps(20):
        error = slope * data["x"] - data["y"]
        slope -= config.lr * 2 * (error * data["x"]).mean()
        run.log(step=step, loss=error.square().mean())
    if run.is_main:
        torch.save(slope, run.folder / "slope.pt")


def evaluate(config, run):
    (trained,) = run.earlier("train")  # the one of this run's point
    slope = torch.load(trained.folder / "slope.pt", weights_only=True)
    run.log(step=0, slope=slope, error=(slope - config.slope).abs())
