"""The launchers `hydra/launcher=hpckit` and `hpckit_local`; their work is done by `hpckit.hydra_app`."""
