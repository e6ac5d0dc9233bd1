if __name__ == "workers":
    raise ImportError("import toolfleet.workers instead of workers")
