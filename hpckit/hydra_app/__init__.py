"""The Hydra door: jobs of an application's own sweep become runs; it must not decide how runs are treated."""
