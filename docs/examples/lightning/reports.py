"""Tells hpckit of a Trainer's steps and metrics, and saves before a stop."""

import signal

import lightning

import hpckit


class Reports(lightning.Callback):
    def on_train_start(self, trainer, *_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # hpckit listens, instead of Lightning
        self.run = hpckit.attach()
        total = trainer.estimated_stepping_batches
        self.steps = self.run.steps(total, start=trainer.global_step)

    def on_train_batch_start(self, trainer, *_):
        if self.run.step == trainer.global_step:  # a further batch of the same step
            return
        try:
            next(self.steps)
        except SystemExit:  # told to stop; all ranks are here, at the same step
            trainer.save_checkpoint("checkpoints/last.ckpt")
            raise

    def on_train_batch_end(self, _trainer, _module, outputs, *_):
        self.run.log(loss=outputs["loss"])

    def on_train_end(self, *_):
        next(self.steps, None)  # the last step has ended, too
