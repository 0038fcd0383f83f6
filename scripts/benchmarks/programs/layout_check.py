"""Checks a model of 32 blocks in a layout of 1024 ranks, as `hpckit check` does in its process.

Prints a line of JSON: the CPU seconds until torch was imported, and those of the check after that.
"""

from __future__ import annotations

import json
import sys
import time

from hpckit.experiments.charlm import Transformer, build_layout_plan
from hpckit.model.parallel.layout import Layout, MeshAxis
from hpckit.model.parallel.settings import Parallel
from hpckit.runtime.model_check.model_fit import FittedModel, fake_process_group, measure_stage_memory
from hpckit.runtime.parallel.build import build_model_on_meta


def main() -> None:
    """Check the layout of the sizes in the first word."""
    imported = time.process_time()
    layout = Layout(**json.loads(sys.argv[1]))
    model = FittedModel(
        model=build_model_on_meta(lambda: Transformer(width=1024, layers=32, heads=16, context=2048), seed=0),
        plan=build_layout_plan(16),
        layout=layout,
        settings=Parallel(),
    )
    problems = model.find_problems()
    for stage in range(layout.pipeline):
        rank = layout.rank_at({MeshAxis.pipeline: stage})
        with fake_process_group(rank, layout.world_size):
            measure_stage_memory(stage, [model.lay_out_model_of_rank(rank).module])
    checked = time.process_time() - imported
    print(json.dumps({"import_s": imported, "check_s": checked, "problems": len(problems)}))


if __name__ == "__main__":
    main()
