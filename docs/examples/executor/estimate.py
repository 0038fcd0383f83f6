"""Estimate pi by the area below a curve: functions that know nothing of hpckit."""


def area(parts, width=1.0):
    step = width / parts
    return 4 * step * sum(1 / (1 + ((part + 0.5) * step) ** 2) for part in range(parts))


def refuse(parts):
    raise ValueError(f"{parts} parts are not enough")
