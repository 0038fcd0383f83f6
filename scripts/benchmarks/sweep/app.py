"""An application with several config groups, as a user with a sweep would have."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

CONF = str(Path(__file__).parent / "conf")


@hydra.main(version_base="1.3", config_path=CONF, config_name="config")
def main(config: DictConfig) -> None:
    """Do nothing: what is measured happens before."""


if __name__ == "__main__":
    main()
