"""Git for training state."""
