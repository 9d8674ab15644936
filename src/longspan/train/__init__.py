"""Training an MTP head on text that the model wrote itself. Needs the extra `train` (PyTorch)."""
