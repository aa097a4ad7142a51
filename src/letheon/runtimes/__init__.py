"""Where clients run: one machine (``inprocess``), later Flower."""
