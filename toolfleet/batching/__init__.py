"""Batches: reading a file of requests, the front door, and the lines of the answer files."""
