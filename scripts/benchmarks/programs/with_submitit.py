"""The training as submitit runs it: a callable with `checkpoint`, submitted by this very file."""

import json
import sys

import submitit
import torch
import torch.distributed as dist
import work


class Training:
    """Trains, saves every few steps, and saves again when submitit announces the end."""

    def __call__(self) -> None:
        """Train from the last save."""
        submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        dist.init_process_group("gloo")
        self.model, self.optimizer = work.begin()
        self.done = work.load(self.model, self.optimizer)
        for step in range(self.done, work.STEPS):
            work.train_one(self.model, self.optimizer, step)
            self.done = step + 1
            if self.done % work.SAVE_EVERY == 0:
                work.save(self.model, self.optimizer, self.done)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Save now, and requeue the job."""
        work.save(self.model, self.optimizer, self.done)
        return submitit.helpers.DelayedSubmission(Training())


def main() -> None:
    """Submit with the parameters given as JSON, and print the job's id."""
    torch.set_num_threads(1)
    executor = submitit.SlurmExecutor(folder=work.HERE / "submitit", max_num_timeout=3)
    executor.update_parameters(**json.loads(sys.argv[1]))
    print(executor.submit(Training()).job_id)


if __name__ == "__main__":
    from with_submitit import main as submit

    submit()
