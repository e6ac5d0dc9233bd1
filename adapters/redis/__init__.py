"""What lives in Redis or Valkey beside messages: what may be lost. One script per step, so that each is atomic."""
