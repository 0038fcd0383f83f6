"""Walk down a parabola: a program without any library, whose metrics are lines of a file."""

import json
import os
import sys
from pathlib import Path

rate, place = float(sys.argv[1]), 1.0
metrics = Path(os.environ["HPCKIT_ATTEMPT_DIR"], "metrics.jsonl")
with metrics.open("a") as file:
    for step in range(20):
        place -= rate * 2 * place
        file.write(json.dumps({"step": step, "height": place**2}) + "\n")
print("ended at", place)
