"""Writes runs as TensorBoard event files, with TensorBoard's own writer.

One folder for each run, with one file of hpckit's, which holds what was not undone and nothing
else. An export writes a new file, as a whole, and empties the one before. The file begins with a
session start at step 0, at which a TensorBoard that has read an older file drops its values.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from hpckit.features.exporting.exported_run import ExportedRun, Points, Written
from hpckit.operations.output_file import make_export_scratch_folder
from hpckit.record.store import make_private_folder

_OURS = "events.out.tfevents.*.hpckit"
_VERSION = "brain.Event:2"
"""How files of events begin."""


def export_run(run: ExportedRun, target: Path) -> Written:
    """Write a run to its folder below `target`; raises OSError."""
    folder = make_private_folder(target / run.safe_name)
    earlier = sorted(folder.glob(_OURS))
    points = Points(run=run)
    with make_export_scratch_folder(target) as part:
        file = part / "events"
        # In this thread: TensorBoard's EventFileWriter does not report errors.
        with file.open("wb") as opened:
            writer = RecordWriter(opened)
            for event in _build_events(points):
                writer.write(event.SerializeToString())
        # TensorBoard reads the files of a folder in the order of their names.
        file.rename(folder / _OURS.replace("*", f"{time.time_ns():020d}"))
    # A TensorBoard that has the latest one open would never go on to the next file if it were gone.
    for path in earlier[-1:]:
        os.truncate(path, 0)
    for path in earlier[:-1]:
        path.unlink()
    return Written(values=points.written, left_out=points.left_out)


def _build_events(points: Points) -> Iterator[Event]:
    yield Event(wall_time=time.time(), file_version=_VERSION)
    yield Event(step=0, session_log=SessionLog(status=SessionLog.START))
    for point in points:
        value = Summary.Value(tag=point.key, simple_value=point.number)
        yield Event(wall_time=point.at, step=point.step, summary=Summary(value=[value]))
