"""One rank of a small training: `one_rank.py ENTRY_POINT CONFIG_JSON`.

Its place among the ranks is in torchrun's variables.
"""

import gc
import importlib
import json
import sys

from hpckit.runtime.fork_server.server import pause_gc_for_imports

with pause_gc_for_imports():
    import torch.distributed as dist

    from hpckit import attach
    from hpckit.runtime.generators import seed_all_generators
    from hpckit.runtime.rank.config import Config

    module, function = sys.argv[1].split(":")
    train = getattr(importlib.import_module(module), function)


def main() -> None:
    """Call the entry point as a launch would, in the working directory."""
    config = Config(json.loads(sys.argv[2]))
    run = attach()
    seed_all_generators(config.seed)
    train(config, run)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    # The wrapped model is a ring of references and keeps gloo's threads alive; one that outlives
    # the interpreter ends the process by SIGABRT.
    gc.collect()
