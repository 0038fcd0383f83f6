"""Count the ranks: a script that knows nothing of hpckit, only torchrun's variables."""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--weight", type=float, default=1.0)
weight = parser.parse_args().weight

dist.init_process_group("gloo")
total = torch.tensor(weight)
dist.all_reduce(total)
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: total {total.item()}")
dist.destroy_process_group()
