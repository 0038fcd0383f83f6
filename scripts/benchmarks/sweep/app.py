"""An application of several config groups, as somebody with a sweep has one."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

CONF = str(Path(__file__).parent / "conf")


@hydra.main(version_base="1.3", config_path=CONF, config_name="config")
def main(config: DictConfig) -> None:
    """Do nothing: what is measured lies before."""


if __name__ == "__main__":
    main()
