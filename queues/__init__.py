if __name__ == "queues":
    raise ImportError("import toolfleet.queues instead of queues")
