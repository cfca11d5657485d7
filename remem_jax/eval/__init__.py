"""How good an agent is: the answer normaliser, the metrics, and intervals for tables."""
