"""Process groups and DTensors: arrays that processes share, and one model trained on several."""
