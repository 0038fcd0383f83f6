"""What is known of nodes besides their load: incidents, and links between GPUs."""
