"""Values that a run gets when it begins: Optuna's only home."""
