"""Tells hpckit of a Trainer's steps and metrics, and saves before a stop."""

from transformers import TrainerCallback

import hpckit


class Reports(TrainerCallback):
    stop = None

    def on_train_begin(self, args, state, control, **_):
        self.run = hpckit.attach()
        self.steps = self.run.steps(state.max_steps, start=state.global_step)
        next(self.steps, None)

    def on_step_end(self, args, state, control, **_):
        try:
            next(self.steps, None)
        except SystemExit as stop:  # all ranks are here, at the same step
            self.stop = stop
            control.should_save = control.should_training_stop = True

    def on_log(self, args, state, control, logs, **_):
        self.run.log(step=state.global_step - 1, **logs)

    def on_save(self, *_, **__):
        if self.stop:
            raise self.stop
