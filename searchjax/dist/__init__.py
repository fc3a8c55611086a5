"""What a run needs around it: settings, run log, checkpoints."""
