"""What a run leaves for people to read: trajectories as JSON lines."""
