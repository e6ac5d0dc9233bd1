"""What the fleet tells the outside about itself: spans (tracing), metrics, log lines. Nothing else may live here."""
