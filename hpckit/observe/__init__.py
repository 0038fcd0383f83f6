"""What a node measures of itself: GPUs, host, networks. It judges nothing."""
