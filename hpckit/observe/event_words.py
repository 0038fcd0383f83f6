"""What happened to a node's GPUs, in words for people. Pure."""

from __future__ import annotations

from hpckit.model.telemetry.vocabulary import TelemetryEvent, TelemetryEventKind

_XIDS = {
    13: "an exception of a kernel, mostly an access out of bounds",
    31: "a memory page fault, mostly of the program",
    43: "the GPU stopped processing, mostly because of the program",
    45: "the program was ended on the GPU",
    48: "an uncorrectable memory error",
    61: "an error of its microcontroller",
    62: "an error of its microcontroller",
    63: "a memory row will be replaced at the next reset",
    64: "a memory row could not be replaced",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "an uncorrectable memory error, contained in one program",
    95: "an uncorrectable memory error that may concern every program",
    109: "the program did not let go of the GPU in time",
    119: "its system processor does not answer",
    120: "its system processor failed",
}
"""NVIDIA's documentation of XID errors, in few words."""

_WORDS = {
    TelemetryEventKind.gpu_lost: "the GPU no longer answers",
    TelemetryEventKind.driver_lost: "the driver of the GPUs no longer answers",
    TelemetryEventKind.gpus_stalled: "a call of the GPUs' driver does not return",
}


def event_words(event: TelemetryEvent, node: str) -> str | None:
    """Return what to warn of; None if it is no trouble."""
    place = node if event.uuid is None else f"{event.uuid} on {node}"
    if event.kind is TelemetryEventKind.note:
        return f"{node}: {event.message}"
    if event.kind is TelemetryEventKind.xid:
        meaning = _XIDS.get(event.code or 0, "see NVIDIA's list of XID errors")
        return f"{place}: XID {event.code}: {meaning}"
    words = _WORDS.get(event.kind)
    if words is None:
        return None
    return f"{place}: {words}" + ("" if event.code is None else f" (NVML error {event.code})")
