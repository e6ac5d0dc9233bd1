"""The ports of the cache inside one process: for the embedded fleet, and for every process while the cache is away."""
